"""Arrivals since the calibration: the rate they spent, and sources for a person to judge."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Report, Verdict, printable
from ragshield_core.model.p_values import TIE, Calibration

Choice = Literal["adopt", "keep holding"]

# The guard asks about a source that has spent this multiple of the accepted rate, if chance would
# do so in one of ten thousand sources. Fewer held entries are reviewed one by one.
FAR_BEYOND, BY_CHANCE, FEWEST_HELD = 3.0, 1e-4, 5
# Number of remembered sources; sources with the fewest entries are forgotten first.
MAX_SOURCES = 1_000
# Number of remembered held entries of a source: one decision can release as many.
MAX_HELD = 5_000
SHOWN_IDS = 5
# Arrivals that are tested for a shift: enough to tell 3 % from 1 %.
WINDOW = 500
# Number of remembered admitted entries that were unusual: as many as in a million arrivals.
MOST_UNUSUAL = 20_000
# The p-value of a clean entry is at most x with probability x. Poison, as long as it is the
# minority, has far smaller p-values than these, and does not move the others.
LOWER, MIDDLE = 0.02, 0.25
# Standard deviations by which the share between those limits must be off to count as a shift:
# with a dozen detectors and hundreds of tests, chance does not reach that.
SHIFTED = 6.0
# Fewest entries with which a detector is tested.
FEWEST = 100
# Smallest share of distinct clean scores with which the p-values of a detector are tested.
DISTINCT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Share of the accepted rate that one detector, or all together, used up.

    An upper bound: every held entry counts as if it were clean.
    """

    judged: int = 0
    held: int = 0
    recalled: int = 0

    @property
    def share(self) -> float:
        """Share of the judged entries that were ever held or recalled, in [0, 1]."""
        return (self.held + self.recalled) / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Arrivals that differ from a detector's clean sample as a whole, not by a few entries."""

    detector: str
    n_entries: int
    share: float  # of entries with a p-value in (0.02, 0.25], among those above 0.02
    expected: float  # the same share for entries like those of the clean sample

    def __str__(self) -> str:
        how = "more" if self.share > self.expected else "less"
        return (
            f"{printable(self.detector, 60)}: recent arrivals ({self.n_entries} entries) are {how} "
            f"suspicious as a whole than the clean sample ({self.share:.0%} of p-values in the "
            f"lower quarter, {self.expected:.0%} expected)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A source with far more held entries than the accepted rate of clean ones."""

    source: str | None  # a claim of the uploader; None for entries that name no source
    n_entries: int  # entries of the source since the calibration
    n_held: int  # of these, held or recalled
    since: dt.datetime  # time at which the first of these was held, UTC
    detectors: Mapping[str, int]  # number of entries that each objected to
    held_ids: tuple[str, ...] = ()  # a few examples of each kind
    admitted_ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = "that name no source"
        if self.source is not None:
            of = f"of {printable(self.source, 60)!r}"
        by = ", ".join(f"{printable(name, 40)} {n}" for name, n in self.detectors.items())
        which = "them" if self.n_held == self.n_entries else "both sides"
        return (
            f"a new source or a mass attack: {self.n_entries} documents {of} since "
            f"{self.since:%Y-%m-%d %H:%M} UTC, {self.n_held} of them held ({by}). Read some of "
            f"{which}, then adopt the source, or keep holding"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return asdict(self) | {"since": self.since.isoformat()}


@dataclass(slots=True)
class SourceCount:
    """Counts of one source's entries since the calibration."""

    judged: int = 0
    held: int = 0
    recalled: int = 0
    first_held: float | None = None  # seconds since the epoch
    detectors: Counter[str] = field(default_factory=Counter)
    held_ids: dict[str, None] = field(default_factory=dict)
    admitted_ids: tuple[str, ...] = ()
    decided: Choice | None = None
    asked_again_at: int = 0  # number of held entries at which a closed question is asked again

    def note_held(self, ids: Collection[str], at: float) -> None:
        """Record held entries."""
        if not ids:
            return
        self.first_held = at if self.first_held is None else self.first_held
        self.held_ids.update(dict.fromkeys(ids))
        while len(self.held_ids) > MAX_HELD:
            del self.held_ids[next(iter(self.held_ids))]

    def question(self, source: str | None, rate: float) -> Question | None:
        """Return a question if the source has spent far more than the accepted rate."""
        from scipy.special import bdtrc  # noqa: PLC0415 - keeps `import ragshield_core` quick

        out = self.held + self.recalled
        if out < max(FEWEST_HELD, self.asked_again_at) or self.first_held is None:
            return None
        if bdtrc(out - 1, max(self.judged, out), min(1.0, FAR_BEYOND * rate)) > BY_CHANCE:
            return None
        return Question(
            source=source,
            n_entries=self.judged,
            n_held=out,
            since=dt.datetime.fromtimestamp(self.first_held, dt.UTC),
            detectors=dict(self.detectors.most_common()),
            held_ids=tuple(self.held_ids)[-SHOWN_IDS:],
            admitted_ids=self.admitted_ids,
        )

    def decide(self, choice: Choice) -> None:
        """Close the question; it is asked again once as many more entries are held."""
        self.decided, self.asked_again_at = choice, 2 * (self.held + self.recalled) + FEWEST_HELD

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"detectors": dict(self.detectors), "held_ids": list(self.held_ids)}

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> Self:
        """Return the counts from the result of :meth:`state`."""
        own = {
            "detectors": Counter(values["detectors"]),
            "held_ids": dict.fromkeys(values["held_ids"]),
            "admitted_ids": tuple(values["admitted_ids"]),
        }
        return cls(**{**values, **own})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """The part of a report that is counted."""

    ids: tuple[str, ...]  # one per entry
    sources: tuple[str | None, ...]  # one per entry
    held: NDArray[np.bool_]  # (n_entries,), for any reason
    scores: Mapping[str, NDArray[np.float64]]  # (n_entries,) per detector; NaN: no opinion
    held_by: Mapping[str, Sequence[int]]  # per detector, rows of held entries it objected to
    at: float  # time of the decisions, in seconds since the epoch

    @classmethod
    def of(cls, report: Report) -> Self:
        """Return the counted part of a report, after entries were held."""
        objecting: dict[str, list[int]] = {}
        for row, decision in sorted(report.remarkable.items()):
            if decision.verdict is Verdict.QUARANTINE:
                for name in {f.detector: None for f in decision.findings if f.score > f.threshold}:
                    objecting.setdefault(name, []).append(row)
        return cls(
            ids=report.batch.ids,
            sources=report.batch.sources,
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
        arrays: dict[str, NDArray[Any]] = {"held": self.held}
        if self.scores:
            arrays["scores"] = np.stack(list(self.scores.values()))
        return values, arrays

    @classmethod
    def from_parts(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the value from the result of :meth:`to_parts`.

        Raises
        ------
        ValueError
            If columns differ in length, or have another type.
        """
        counted = cls(
            ids=tuple(values["ids"]),
            sources=tuple(values["sources"]),
            held=arrays["held"],
            scores=dict(zip(values["scores"], arrays.get("scores", ()), strict=True)),
            held_by={name: list(map(int, rows)) for name, rows in values["held_by"].items()},
            at=float(values["at"]),
        )
        columns = (counted.sources, counted.held, *counted.scores.values())
        if any(len(column) != len(counted.ids) for column in columns):
            msg = "columns of counted entries differ in length"
            raise ValueError(msg)
        if counted.held.dtype != np.bool_:
            msg = "the column of held entries has another type"
            raise ValueError(msg)
        return counted


class Arrivals:
    """Counts the decisions of a guard, and tests whether its calibration still holds."""

    def __init__(self) -> None:
        self.spent: Counter[tuple[str, str]] = Counter()  # (detector or "", judged/held/recalled)
        self.sources: dict[str | None, SourceCount] = {}
        self._latest_at = 0.0  # time of the latest decision, in seconds since the epoch
        self._p_values: dict[str, NDArray[np.float32]] = {}
        self._asked: set[str | None] = set()  # sources of open questions
        # Ids of entries that were admitted although they were unusual, latest last.
        self.unusual: dict[str, None] = {}

    def count(
        self,
        counted: Counted,
        thresholds: Mapping[str, float],
        calibrations: Mapping[str, Calibration],
    ) -> None:
        """Count the decisions in a report, given the thresholds and clean scores in force.

        ``calibrations`` has the detectors that measure usual values.
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
        for name, column in scores.items():
            calibration = calibrations.get(name)
            if calibration is not None and _distinct(calibration):
                new = calibration.p_values(column[~np.isnan(column)]).astype(np.float32)
                before = self._p_values.get(name, new[:0])
                self._p_values[name] = np.concatenate([before, new])[-WINDOW:]

    def note_unusual(self, counted: Counted, unusual: NDArray[np.bool_]) -> None:
        """Remember the unusual admitted entries; a new revision is judged by itself."""
        for entry_id in counted.ids:
            self.unusual.pop(entry_id, None)
        rows = np.flatnonzero(unusual & ~counted.held).tolist()
        self.unusual |= dict.fromkeys(counted.ids[row] for row in rows)
        for entry_id in list(self.unusual)[:-MOST_UNUSUAL]:
            del self.unusual[entry_id]

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
        """Return the questions that no earlier call has returned."""
        asked = {question.source: question for question in self.questions(rate)}
        new = [question for source, question in asked.items() if source not in self._asked]
        self._asked = set(asked)
        return new

    def decide(self, source: str | None, choice: Choice) -> None:
        """Close the question about a source."""
        self.sources.setdefault(source, SourceCount()).decide(choice)

    def questions(self, rate: float) -> tuple[Question, ...]:
        """Return the sources with far more held entries than accepted, most entries first."""
        asked = (count.question(source, rate) for source, count in self.sources.items())
        return tuple(sorted(filter(None, asked), key=lambda one: -one.n_held))

    def calibrated(self) -> None:
        """Restart the tests: the p-values belong to the previous calibration."""
        self._p_values = {}

    def refitted(self) -> None:
        """Restart everything except the counts of the spent rate."""
        self.calibrated()
        self.sources = {}

    def of(self, detector: str = "") -> Spent:
        """Return the counts of a detector; by default, those of all together."""
        judged, held, recalled = (self.spent[detector, w] for w in ("judged", "held", "recalled"))
        return Spent(judged=judged, held=held, recalled=recalled)

    def of_sources(self, sources: Iterable[str | None]) -> dict[str, Spent]:
        """Return the counts of these sources, as far as they are remembered."""
        return {
            source: Spent(judged=count.judged, held=count.held, recalled=count.recalled)
            for source in dict.fromkeys(sources)
            if source is not None and (count := self.sources.get(source)) is not None
        }

    def decided(self, rate: float) -> Spent:
        """Return the counts of sources that a person has decided on, unless asked again."""
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
        """Return the shifts away from the clean sample, largest first."""
        found: list[tuple[float, Shift]] = []
        expected = (MIDDLE - LOWER) / (1.0 - LOWER)
        for name, values in self._p_values.items():
            rest = values[values > LOWER]  # p-values that poison does not affect
            if len(values) < FEWEST or not len(rest):
                continue
            share = float(np.mean(rest <= MIDDLE))
            off = abs(share - expected) / math.sqrt(expected * (1.0 - expected) / len(rest))
            if off > SHIFTED:
                shift = Shift(detector=name, n_entries=len(values), share=share, expected=expected)
                found.append((off, shift))
        return [shift for _, shift in sorted(found, key=lambda item: -item[0])]

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        values = {
            "spent": [[*key, n] for key, n in self.spent.items()],
            "latest_at": self._latest_at,
            "asked": sorted(self._asked, key=lambda source: source or ""),
            "sources": [[source, count.state()] for source, count in self.sources.items()],
            "unusual": list(self.unusual),
        }
        return values, {f"p_values.{name}": array for name, array in self._p_values.items()}

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Arrivals:
        """Return the arrivals from the result of :meth:`state`."""
        again = cls()
        again.spent.update({(name, what): n for name, what, n in values["spent"]})
        again._latest_at = values["latest_at"]
        again._asked = set(values["asked"])
        again.unusual = dict.fromkeys(values["unusual"])
        again.sources = {name: SourceCount.restored(kept) for name, kept in values["sources"]}
        again._p_values = {key.partition(".")[2]: array for key, array in arrays.items()}
        return again

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
        if len(self.sources) > 2 * MAX_SOURCES:  # forget the sources with the fewest entries
            most = sorted(self.sources, key=lambda s: -self.sources[s].judged)[:MAX_SOURCES]
            self.sources = {source: self.sources[source] for source in most}


def _distinct(calibration: Calibration) -> bool:
    scores = calibration.clean_scores
    return bool(np.count_nonzero(np.diff(scores) > TIE) >= DISTINCT * len(scores))
