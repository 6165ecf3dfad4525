"""What came in since the calibration: budget spent, shifts, topics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration.questions import (
    MAX_SOURCES,
    SHOWN_IDS,
    Choice,
    Question,
    SourceCount,
)
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Report, Verdict, printable
from ragshield_core.model.p_values import TIE, Calibration

# Arrivals that are looked at for a shift: enough to tell 3 % from 1 %.
WINDOW = 500
# How many of the admitted entries that were unusual are remembered: of a million arrivals.
MOST_UNUSUAL = 20_000
# Clean entries have a p-value of at most so much just as often. Poison, as long as it is the
# smaller part, has far smaller ones, and leaves the others alone.
LOWER, MIDDLE = 0.02, 0.25
# Standard deviations by which the share of those must be off to be called a shift: with a dozen
# detectors and hundreds of looks, chance does not reach that.
SHIFTED = 6.0
# A source is tested by itself from so many entries on.
FEWEST = 100
# A topic is an arrival and so many of the latest that are nearest to it, itself included; if nearly
# all of them are held, a reviewer should look.
TOPIC, NEARLY_ALL = 30, 0.9
# Parts of [0, 1] in which p-values are counted, to be drawn.
PARTS = 10
# Of the clean scores of a detector, at least this share must differ for its p-values to be tested.
DISTINCT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """How much of the accepted rate a detector, or all together, has used up.

    A bound: whatever was held counts, as if all of it were clean.
    """

    judged: int = 0
    held: int = 0
    recalled: int = 0

    @property
    def share(self) -> float:
        """Share of the judged entries that was ever held or recalled, [0, 1]."""
        return (self.held + self.recalled) / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Entries that are unlike those a detector was calibrated on, as a whole and not by a few."""

    detector: str
    source: str | None  # None for all that came lately
    n_entries: int
    share: float  # with a p-value in (0.02, 0.25], among those above 0.02
    expected: float  # of that, for entries like those of the clean sample

    def __str__(self) -> str:
        who = "what came lately"
        if self.source is not None:  # a claim of whoever brought it
            who = f"source {printable(self.source, 60)!r}"
        how = "more" if self.share > self.expected else "less"
        return (
            f"{self.detector}: {who} ({self.n_entries} entries) is {how} suspicious as a whole "
            f"than the clean sample ({self.share:.0%} of p-values in the lower quarter, "
            f"{self.expected:.0%} expected)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Entries near to each other that came lately and of which nearly all were held."""

    entry_ids: tuple[str, ...]  # held, the one in their midst first
    n_entries: int  # held or not

    def __str__(self) -> str:
        return (
            f"{len(self.entry_ids)} of {self.n_entries} entries around "
            f"{printable(self.entry_ids[0], 60)!r} that came lately are held: a campaign, or good "
            "entries about something that is new here; review them, release what is good, and "
            "adopt anew if most is"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """What counts of a report.

    Attributes
    ----------
    ids, sources
        One per entry.
    embeddings
        Shape (n_entries, dim), float32, rows of unit length.
    held
        Shape (n_entries,): which of them were held, whoever said so.
    scores
        Per detector, shape (n_entries,); NaN where it had no opinion.
    held_by
        Per detector, rows of the held entries that it objected to.
    at
        When they were decided, in seconds since the epoch.
    """

    ids: tuple[str, ...]
    sources: tuple[str | None, ...]
    embeddings: NDArray[np.float32]
    held: NDArray[np.bool_]
    scores: Mapping[str, NDArray[np.float64]]
    held_by: Mapping[str, Sequence[int]]
    at: float

    @classmethod
    def of(cls, report: Report) -> Self:
        """Return what counts of a report, after entries were held."""
        objecting: dict[str, list[int]] = {}
        for row, decision in sorted(report.remarkable.items()):
            if decision.verdict is Verdict.QUARANTINE:
                for name in {f.detector: None for f in decision.findings if f.score > f.threshold}:
                    objecting.setdefault(name, []).append(row)
        return cls(
            ids=report.batch.ids,
            sources=report.batch.sources,
            embeddings=report.batch.embeddings,
            held=~report.admitted,
            scores=report.scores,
            held_by=objecting,
            at=time.time(),
        )

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        values = {
            "ids": list(self.ids),
            "sources": list(self.sources),
            "held_by": {name: list(rows) for name, rows in self.held_by.items()},
            "at": self.at,
            "scores": list(self.scores),
        }
        arrays: dict[str, NDArray[Any]] = {"embeddings": self.embeddings, "held": self.held}
        if self.scores:
            arrays["scores"] = np.stack(list(self.scores.values()))
        return values, arrays

    @classmethod
    def from_parts(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return what :meth:`to_parts` described.

        Raises
        ------
        ValueError
            If columns are not of one length, or of other types.
        """
        counted = cls(
            ids=tuple(values["ids"]),
            sources=tuple(values["sources"]),
            embeddings=arrays["embeddings"],
            held=arrays["held"],
            scores=dict(zip(values["scores"], arrays.get("scores", ()), strict=True)),
            held_by={name: list(map(int, rows)) for name, rows in values["held_by"].items()},
            at=float(values["at"]),
        )
        columns = (counted.sources, counted.embeddings, counted.held, *counted.scores.values())
        if any(len(column) != len(counted.ids) for column in columns):
            msg = "columns of what was counted differ in length"
            raise ValueError(msg)
        if counted.held.dtype != np.bool_ or counted.embeddings.dtype != np.float32:
            msg = "columns of what was counted are of other types"
            raise ValueError(msg)
        return counted


class Arrivals:
    """Counts what a guard decided, and looks for signs that its calibration no longer holds."""

    def __init__(self) -> None:
        self.spent: Counter[tuple[str, str]] = Counter()  # (detector or "", judged/held/recalled)
        self.sources: dict[str | None, SourceCount] = {}
        self._latest_at = 0.0  # when something was decided last, in seconds since the epoch
        self._p_values: dict[str, NDArray[np.float32]] = {}
        self._by_source: dict[str, dict[str, NDArray[np.float32]]] = {}
        # Of the latest arrivals that have vectors, in order.
        self._ids: list[str] = []
        self._vectors: NDArray[np.float32] | None = None
        self._held: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        self._announced: set[str] = set()  # of entries of topics
        self._asked: set[str | None] = set()  # sources of open questions
        # Ids of entries that were let in although they were unusual, the latest last.
        self.unusual: dict[str, None] = {}

    def count(
        self,
        counted: Counted,
        thresholds: Mapping[str, float],
        calibrations: Mapping[str, Calibration],
    ) -> None:
        """Count what was decided in a report.

        Parameters
        ----------
        counted
            What counts of it.
        thresholds
            Per detector, the score above which it holds.
        calibrations
            Scores of the clean sample, of those detectors that measure what is usual.
        """
        scores = {name: s for name, s in counted.scores.items() if name in thresholds}
        for name, column in scores.items():
            self.spent[name, "judged"] += int(np.count_nonzero(~np.isnan(column)))
        held = counted.held
        self.spent["", "judged"] += len(held)
        self.spent["", "held"] += int(np.count_nonzero(held))
        for name, rows in counted.held_by.items():
            self.spent[name, "held"] += len(rows)
        self._latest_at = counted.at
        self._count_sources(counted)
        self._remember(counted)
        for name, column in scores.items():
            calibration = calibrations.get(name)
            if calibration is not None and _distinct(calibration):
                self._note(name, calibration, column, counted.sources)

    def note_unusual(self, counted: Counted, unusual: NDArray[np.bool_]) -> None:
        """Remember which admitted entries are unusual; a new revision is judged by itself."""
        for entry_id in counted.ids:
            self.unusual.pop(entry_id, None)
        rows = np.flatnonzero(unusual & ~counted.held).tolist()
        self.unusual |= dict.fromkeys(counted.ids[row] for row in rows)
        for entry_id in list(self.unusual)[:-MOST_UNUSUAL]:
            del self.unusual[entry_id]

    def topics(self) -> list[Topic]:
        """Return topics of which nearly all that came lately was held, the fullest first."""
        rows = np.flatnonzero(self._held)
        if self._vectors is None or len(rows) < NEARLY_ALL * TOPIC:
            return []
        similar = self._vectors[rows] @ self._vectors.T
        around = np.argsort(-similar, axis=1, kind="stable")[:, :TOPIC]
        share = self._held[around].mean(axis=1)
        named = np.zeros(len(self._held), dtype=np.bool_)
        found = []
        for place in np.argsort(-share, kind="stable").tolist():
            held = around[place][self._held[around[place]]]
            if share[place] < NEARLY_ALL:
                break
            if not named[held].any():
                ids = tuple(self._ids[row] for row in held.tolist())
                found.append(Topic(entry_ids=ids, n_entries=TOPIC))
                named[held] = True
        return found

    def new_topics(self) -> list[Topic]:
        """Return topics that were not among those returned before."""
        topics = [t for t in self.topics() if self._announced.isdisjoint(t.entry_ids)]
        self._announced.intersection_update(self._ids)
        self._announced.update(entry_id for topic in topics for entry_id in topic.entry_ids)
        return topics

    def recalled(self, entries: Batch, accused: Mapping[str, Iterable[str]]) -> None:
        """Count entries that were recalled, by id, each with the detectors that accused it."""
        for entry_id, source in zip(entries.ids, entries.sources, strict=True):
            count = self.sources.setdefault(source, SourceCount())
            count.recalled += 1
            count.note_held([entry_id], self._latest_at)
            names = list(dict.fromkeys(accused.get(entry_id, ())))
            count.detectors.update(names)
            self.spent["", "recalled"] += 1
            for name in names:
                self.spent[name, "recalled"] += 1

    def new_questions(self, rate: float) -> list[Question]:
        """Return questions that were not among those returned before."""
        asked = {question.source: question for question in self.questions(rate)}
        new = [question for source, question in asked.items() if source not in self._asked]
        self._asked = set(asked)
        return new

    def decide(self, source: str | None, choice: Choice) -> None:
        """Close the question about a source."""
        self.sources.setdefault(source, SourceCount()).decide(choice)

    def questions(self, rate: float) -> tuple[Question, ...]:
        """Return the sources of which far more is held than accepted, the most entries first."""
        asked = (count.question(source, rate) for source, count in self.sources.items())
        return tuple(sorted(filter(None, asked), key=lambda one: -one.n_held))

    def calibrated(self) -> None:
        """Start the tests anew: p-values are of another calibration now."""
        self._p_values, self._by_source = {}, {}

    def refitted(self) -> None:
        """Start everything but the count of what was spent anew."""
        self.calibrated()
        self.sources = {}
        self._ids, self._vectors, self._held = [], None, np.empty(0, dtype=np.bool_)
        self._announced = set()

    def of(self, detector: str = "") -> Spent:
        """Return what a detector has spent; by default, all together."""
        return Spent(
            **{what: self.spent[detector, what] for what in ("judged", "held", "recalled")}
        )

    def of_sources(self, sources: Iterable[str | None]) -> dict[str, Spent]:
        """Return what was held of the entries of some sources, as far as they are remembered."""
        return {
            source: Spent(judged=count.judged, held=count.held, recalled=count.recalled)
            for source in dict.fromkeys(sources)
            if source is not None and (count := self.sources.get(source)) is not None
        }

    def decided(self, rate: float) -> Spent:
        """Return what was spent on sources that a person has decided on, unless asked again."""
        closed = [
            count
            for source, count in self.sources.items()
            if count.decided is not None and count.question(source, rate) is None
        ]
        return Spent(
            judged=sum(count.judged for count in closed),
            held=sum(count.held for count in closed),
            recalled=sum(count.recalled for count in closed),
        )

    def shifts(self) -> list[Shift]:
        """Return what is unlike the clean sample, the most unlike first."""
        found: list[tuple[float, Shift]] = []
        places = [(None, self._p_values), *self._by_source.items()]
        for source, by_detector in places:
            for name, values in by_detector.items():
                z, share, expected = _middle(values)
                if len(values) >= FEWEST and abs(z) > SHIFTED:
                    shift = Shift(
                        detector=name,
                        source=source,
                        n_entries=len(values),
                        share=share,
                        expected=expected,
                    )
                    found.append((abs(z), shift))
        return [shift for _, shift in sorted(found, key=lambda item: -item[0])]

    def spread(self) -> dict[str, tuple[int, ...]]:
        """Return how many of the latest p-values are in each tenth of [0, 1], by detector.

        Of entries like those of the clean sample, about as many are in each.
        """
        edges = np.linspace(0.0, 1.0, PARTS + 1)
        return {
            name: tuple(np.histogram(values, edges)[0].tolist())
            for name, values in sorted(self._p_values.items())
            if len(values) >= FEWEST
        }

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        # An array for each detector: there may be thousands of sources.
        by_source: dict[str, dict[str, NDArray[np.float32]]] = {}
        for source, by_detector in sorted(self._by_source.items()):
            for name, p_values in sorted(by_detector.items()):
                by_source.setdefault(name, {})[source] = p_values
        values = {
            "spent": [[*key, n] for key, n in self.spent.items()],
            "latest_at": self._latest_at,
            "asked": sorted(self._asked, key=lambda source: source or ""),
            "sources": [[source, count.state()] for source, count in self.sources.items()],
            "by_source": {
                name: [[source, len(p_values)] for source, p_values in found.items()]
                for name, found in by_source.items()
            },
            "latest": {"ids": self._ids, "announced": sorted(self._announced)},
            "unusual": list(self.unusual),
        }
        arrays: dict[str, NDArray[Any]] = {f"p_values.{n}": a for n, a in self._p_values.items()}
        arrays |= {
            f"by_source.{name}": np.concatenate(list(found.values()))
            for name, found in by_source.items()
        }
        if self._vectors is not None:
            arrays |= {"latest.vectors": self._vectors, "latest.held": self._held}
        return values, arrays

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Arrivals:
        """Return what :meth:`state` described."""
        again = cls()
        again.spent.update({(name, what): n for name, what, n in values["spent"]})
        again._latest_at = values["latest_at"]
        again._asked = set(values["asked"])
        again.unusual = dict.fromkeys(values["unusual"])
        again.sources = {name: SourceCount.restored(kept) for name, kept in values["sources"]}
        for key, array in arrays.items():
            kind, _, name = key.partition(".")
            if kind == "p_values":
                again._p_values[name] = array
        for name, sizes in values["by_source"].items():
            start = 0
            for source, n in sizes:
                p_values = arrays[f"by_source.{name}"][start : start + n]
                again._by_source.setdefault(source, {})[name] = p_values
                start += n
        if "latest.vectors" in arrays:
            again._ids = list(values["latest"]["ids"])
            again._announced = set(values["latest"]["announced"])
            again._vectors, again._held = arrays["latest.vectors"], arrays["latest.held"]
        return again

    def _remember(self, counted: Counted) -> None:
        if not counted.embeddings.shape[1]:
            return
        before = self._vectors if self._vectors is not None else counted.embeddings[:0]
        self._vectors = np.concatenate([before, counted.embeddings])[-WINDOW:]
        self._ids = [*self._ids, *counted.ids][-WINDOW:]
        self._held = np.concatenate([self._held, counted.held])[-WINDOW:]

    def _count_sources(self, counted: Counted) -> None:
        rows_of: dict[str | None, list[int]] = {}
        for row, source in enumerate(counted.sources):
            rows_of.setdefault(source, []).append(row)
        for source, rows in rows_of.items():
            count = self.sources.setdefault(source, SourceCount())
            held = [counted.ids[row] for row in rows if counted.held[row]]
            admitted = [counted.ids[row] for row in rows if not counted.held[row]]
            count.judged += len(rows)
            count.held += len(held)
            count.note_held(held, counted.at)
            count.admitted_ids = (*count.admitted_ids, *admitted)[-SHOWN_IDS:]
            mine = set(rows)
            for name, objected in counted.held_by.items():
                if n := len(mine.intersection(objected)):
                    count.detectors[name] += n
        if len(self.sources) > 2 * MAX_SOURCES:  # those that brought least are forgotten
            most = sorted(self.sources, key=lambda s: -self.sources[s].judged)[:MAX_SOURCES]
            self.sources = {source: self.sources[source] for source in most}
            self._by_source = {s: kept for s, kept in self._by_source.items() if s in self.sources}

    def _note(
        self,
        name: str,
        calibration: Calibration,
        scores: NDArray[np.float64],
        sources: Iterable[str | None],
    ) -> None:
        p_values = calibration.p_values(scores).astype(np.float32)
        p_values[np.isnan(scores)] = np.nan
        known = ~np.isnan(p_values)
        self._p_values[name] = _latest(self._p_values.get(name), p_values[known])
        by_source: dict[str, list[int]] = {}
        for row, source in enumerate(sources):
            if source is None or not known[row] or source not in self.sources:
                continue
            if self.sources[source].judged >= FEWEST // 2:
                by_source.setdefault(source, []).append(row)
        for source, rows in by_source.items():
            kept = self._by_source.setdefault(source, {})
            kept[name] = _latest(kept.get(name), p_values[rows])


def _latest(before: NDArray[Any] | None, new: NDArray[Any]) -> NDArray[Any]:
    return new[-WINDOW:] if before is None else np.concatenate([before, new])[-WINDOW:]


def _distinct(calibration: Calibration) -> bool:
    scores = calibration.clean_scores
    return bool(np.count_nonzero(np.diff(scores) > TIE) >= DISTINCT * len(scores))


def _middle(p_values: NDArray[np.float32]) -> tuple[float, float, float]:
    """Return how far the share of middling p-values is off, in standard deviations, and both."""
    return _between(p_values, LOWER, MIDDLE)


def _between(p_values: NDArray[np.float32], low: float, high: float) -> tuple[float, float, float]:
    """Return how far the share of p-values in (low, high] is off, as :func:`_middle`, and both.

    Of those above :data:`LOWER`: what poison leaves alone.
    """
    rest = p_values[p_values > LOWER]
    expected = (high - low) / (1.0 - LOWER)
    if not len(rest):
        return 0.0, 0.0, expected
    share = float(np.mean((rest > low) & (rest <= high)))
    deviation = float(np.sqrt(expected * (1.0 - expected) / len(rest)))
    return (share - expected) / deviation, share, expected
