"""Decisions of a guard about arriving documents: entries held at once, and recalled later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.model.entries import concatenate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a stream."""

    held: np.ndarray  # (n,)
    recalled: np.ndarray  # (n,)
    before: np.ndarray  # (n,): arrived before the guard was calibrated
    findings: Counter[str]
    named: str  # detectors with a shift
    seconds: tuple[float, float]  # screening, everything else
    calibrations: int
    others: int  # recalled entries that were stored before the stream

    @property
    def out(self) -> np.ndarray:
        """Mask of the entries that were held or recalled."""
        gone: np.ndarray = self.held | self.recalled
        return gone


def chunks(batch: Batch, size: int | None) -> list[Batch]:
    """Return a batch in parts of a size; in one part if the size is none."""
    size = size or max(1, len(batch))
    return [batch.take(range(s, min(s + size, len(batch)))) for s in range(0, len(batch), size)]


def arrive(guard: Guard, parts: Sequence[Batch], standing: Batch | None = None) -> Outcome:
    """Write batches as the guarded stores do: screen, hold, recall, admit.

    Parameters
    ----------
    guard
        The guard; it learns the entries that it admits.
    parts
        Batches in the order of their arrival; no id comes twice.
    standing
        Entries that the guard knows before. Those that are recalled count as ``others``; an entry
        leaves before its new version is admitted.
    """
    stream = concatenate(parts)
    row_of = {entry_id: row for row, entry_id in enumerate(stream.ids)}
    before_of = {} if standing is None else {i: row for row, i in enumerate(standing.ids)}
    held, recalled, before = (np.zeros(len(stream), dtype=np.bool_) for _ in range(3))
    findings: Counter[str] = Counter()
    named: set[str] = set()
    screening = rest = 0.0
    calibrated_at: set[int | None] = set()
    came, others = 0, 0
    for batch in parts:
        rows = slice(came, came + len(batch))
        came += len(batch)
        before[rows] = not guard.calibrated
        begin = time.perf_counter()
        report = guard.screen(batch)
        screened = time.perf_counter()
        report = guard.hold(report)
        for decision in report.quarantined:
            held[row_of[decision.entry_id]] = True
            findings.update(f.detector for f in decision.findings)
        mine = [d for d in report.retroactive if row_of.get(d.entry_id, came) < came]
        if mine:
            earlier = [row_of[d.entry_id] for d in mine]
            guard.recall(stream.take(earlier), mine, lambda _: None)
            recalled[earlier] = True
            findings.update(f"{f.detector} (recalled)" for d in mine for f in d.findings)
        seen = {d.entry_id for d in mine}
        old = [d for d in report.retroactive if d.entry_id not in seen and d.entry_id in before_of]
        if old and standing is not None:
            guard.recall(standing.take([before_of[d.entry_id] for d in old]), old, lambda _: None)
            others += len(old)
        new = [i for i, come in zip(batch.ids, report.admitted, strict=True) if come]
        replaced = [before_of.pop(i) for i in new if i in before_of]
        if replaced and standing is not None:
            guard.forget(standing.take(replaced))
        guard.admit(report)
        screening, rest = screening + screened - begin, rest + time.perf_counter() - screened
        status = guard.status()
        calibrated_at.add(status.calibrated_at)
        named |= {f"shift in {shift.detector}" for shift in status.shifts}
    return Outcome(
        held=held,
        recalled=recalled,
        before=before,
        findings=findings,
        named=", ".join(sorted(named)) or "–",
        seconds=(screening, rest),
        calibrations=len(calibrated_at - {None}),
        others=others,
    )


def opened(folder: Path | str) -> Guard:
    """Return a saved guard with a new quarantine."""
    return Guard.load(folder, quarantine=Quarantine("sqlite://"))


def most(findings: Counter[str], n: int = 3) -> str:
    """Return the most frequent findings with their counts."""
    return ", ".join(f"{count} {name}" for name, count in findings.most_common(n)) or "none"


def failed(broken: Iterable[str]) -> None:
    """Exit with an error that names the missed goals, if there are any."""
    if lines := list(broken):
        raise SystemExit("Goals that are broken:\n" + "\n".join(f"- {line}" for line in lines))
