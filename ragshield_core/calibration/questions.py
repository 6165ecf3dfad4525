"""Ask a person what neither detectors nor statistics tell: a new source, or a mass attack."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ragshield_core.model.findings import printable

Choice = Literal["adopt", "keep holding"]

# A source is asked about once it has spent so many times the accepted rate, and chance would do
# that once in ten thousand sources. Fewer held entries than so many are reviewed one by one.
FAR_BEYOND, BY_CHANCE, FEWEST_HELD = 3.0, 1e-4, 5
# Sources that are remembered; those that brought least are forgotten first.
MAX_SOURCES = 1_000
# Held entries that are remembered of a source: what one decision can free.
MAX_HELD = 5_000
SHOWN_IDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A source of which far more is held than of clean entries.

    Attributes
    ----------
    source
        Its name, a claim of whoever brings the entries; ``None`` for entries that name none.
    n_entries, n_held
        How many came since the calibration, and how many of these are held or were recalled.
    since
        When the first of these was held, UTC.
    detectors
        How many each detector objected to.
    held_ids, admitted_ids
        A few of both sides.
    """

    source: str | None
    n_entries: int
    n_held: int
    since: dt.datetime
    detectors: Mapping[str, int]
    held_ids: tuple[str, ...] = ()
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
        return {
            "source": self.source,
            "n_entries": self.n_entries,
            "n_held": self.n_held,
            "since": self.since.isoformat(),
            "detectors": dict(self.detectors),
            "held_ids": list(self.held_ids),
            "admitted_ids": list(self.admitted_ids),
        }


@dataclass(slots=True)
class SourceCount:
    """What became of the entries of one source since the calibration."""

    judged: int = 0
    held: int = 0
    recalled: int = 0
    first_held: float | None = None  # seconds since the epoch
    detectors: Counter[str] = field(default_factory=Counter)
    held_ids: dict[str, None] = field(default_factory=dict)
    admitted_ids: tuple[str, ...] = ()
    decided: Choice | None = None
    asked_again_at: int = 0  # held entries from which on a closed question is asked again

    def note_held(self, ids: Collection[str], at: float) -> None:
        """Note held entries."""
        if not ids:
            return
        self.first_held = at if self.first_held is None else self.first_held
        self.held_ids.update(dict.fromkeys(ids))
        while len(self.held_ids) > MAX_HELD:
            del self.held_ids[next(iter(self.held_ids))]

    def question(self, source: str | None, rate: float) -> Question | None:
        """Return what to ask of the source, if it has spent far more than the accepted rate."""
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
        """Close the question; it is asked again once as many more are held."""
        self.decided, self.asked_again_at = choice, 2 * (self.held + self.recalled) + FEWEST_HELD

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {
            "counts": [self.judged, self.held, self.recalled, self.asked_again_at],
            "first_held": self.first_held,
            "detectors": dict(self.detectors),
            "held_ids": list(self.held_ids),
            "admitted_ids": list(self.admitted_ids),
            "decided": self.decided,
        }

    @classmethod
    def restored(cls, values: Mapping[str, Any]) -> SourceCount:
        """Return the count that :meth:`state` described."""
        judged, held, recalled, again = values["counts"]
        return cls(
            judged=judged,
            held=held,
            recalled=recalled,
            first_held=values["first_held"],
            detectors=Counter(values["detectors"]),
            held_ids=dict.fromkeys(values["held_ids"]),
            admitted_ids=tuple(values["admitted_ids"]),
            decided=values["decided"],
            asked_again_at=again,
        )
