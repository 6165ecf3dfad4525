"""What an evaluation found, in figures that can be written down and read again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, computed_field

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.evaluate.rates import exact_interval

# How texts come: those of one target by themselves, nothing else of the attack known; trickling in
# among clean entries; all of an attack at once, which flatters.
Regime = Literal["alone", "stream", "batch"]
REGIMES: tuple[Regime, ...] = ("alone", "stream", "batch")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many of so many, with the exact 95 % interval; NaN where there was nothing."""

    hits: int
    n: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def share(self) -> float:
        """Hits as a share, [0, 1]."""
        return self.hits / self.n if self.n else math.nan

    @computed_field  # type: ignore[prop-decorator]
    @property
    def low(self) -> float:
        """Lower end of the interval (Clopper-Pearson)."""
        return exact_interval(self.hits, self.n).low

    @computed_field  # type: ignore[prop-decorator]
    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return exact_interval(self.hits, self.n).high

    def __str__(self) -> str:
        return str(exact_interval(self.hits, self.n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Which share of an attack's texts was held.

    Attributes
    ----------
    attack
        Its name.
    regime
        How they came, see :data:`REGIMES`.
    size
        Texts of each target that came.
    held
        Of the texts that came.
    by
        How many of those that were held each detector objected to.
    """

    attack: str
    regime: Regime
    size: int
    held: Rate
    by: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """For how many target questions poison is among the nearest, without a guard and with it."""

    attack: str
    before: Rate
    after: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A planted text that stayed in the knowledge base.

    Attributes
    ----------
    entry_id
        The id that it was planted under.
    attack, regime
        Whose text it is, and how it came.
    mark
        Digest of attack and text: the same in every evaluation that plants it, whatever its id.
    """

    entry_id: str
    attack: str
    regime: Regime
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What was found.

    Attributes
    ----------
    settings
        What it was run with.
    n_known, n_clean
        Entries of the knowledge base; clean ones that came.
    false_positives
        Clean entries that were held, by regime; ``"stream"`` among the poison of all streams.
    false_by
        How many of those that were held in batches each detector objected to.
    recalls
        By attack and regime.
    reached
        By attack.
    lost
        Of questions about clean entries, those among whose nearest a clean entry is missing that
        was wrongly held.
    fit_seconds, milliseconds
        What fitting took, and screening an entry in batches of a hundred.
    idle
        Detectors that judged none of the clean entries, and why: what they would find is not
        found in these figures.
    recipes
        By attack, the source of its recipe, and what is done otherwise at its difficulty.
    missed
        Planted texts that were held neither when they came nor later: in streams, and of attacks
        with one text for a target, alone.
    wrongly_held
        By the ids of clean entries that were held in batches, the detectors that objected.
    format
        Of the JSON.
    """

    settings: Mapping[str, Any]
    n_known: int
    n_clean: int
    false_positives: Mapping[Regime, Rate]
    false_by: Mapping[str, int]
    recalls: tuple[Recall, ...]
    reached: tuple[Reached, ...]
    lost: Rate
    fit_seconds: float
    milliseconds: float
    idle: Mapping[str, str]
    recipes: Mapping[str, str] = field(default_factory=dict)
    missed: tuple[Missed, ...] = ()
    wrongly_held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    format: Literal[2] = 2

    @property
    def main_recalls(self) -> tuple[Recall, ...]:
        """The one of each attack that counts: in a stream, and of one text for a target, alone."""
        streamed = {r.attack for r in self.recalls if r.regime == "stream"}
        return tuple(
            r
            for r in self.recalls
            if r.regime == "stream" or (r.regime == "alone" and r.attack not in streamed)
        )

    @property
    def groups_alone(self) -> dict[str, dict[int, Rate]]:
        """By attack and size, what was held of groups of which nothing else was known.

        Of attacks that came in several sizes.
        """
        found: dict[str, dict[int, Rate]] = {}
        for r in self.recalls:
            if r.regime == "alone":
                found.setdefault(r.attack, {})[r.size] = r.held
        return {name: rates for name, rates in found.items() if len(rates) > 1}

    def to_json(self) -> str:
        """Return everything as JSON; shares and intervals stand beside the counts."""
        return _JSON.dump_json(self, indent=1).decode() + "\n"

    @staticmethod
    def read(path: Path) -> Evaluation:
        """Return what :meth:`to_json` wrote to a file.

        Raises
        ------
        SourceError
            If it is none, or of another format.
        """
        try:
            return _JSON.validate_json(path.read_bytes())
        except (OSError, ValueError) as error:  # whose message may quote hostile text
            msg = (
                f"{path} is no report of an evaluation that this version reads "
                f"({type(error).__name__}); expected what ragshield evaluate --output FILE.json "
                "wrote."
            )
            raise SourceError(msg) from None


_JSON = TypeAdapter(Evaluation)
