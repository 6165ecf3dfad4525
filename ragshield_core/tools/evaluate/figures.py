"""Figures of an evaluation, which can be written to a file and read again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, computed_field

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.evaluate.rates import exact_interval

# How texts arrive: those of one target alone, with nothing else of the attack known; one by one in
# a stream of clean entries; all of an attack at once, which flatters the guard.
Regime = Literal["alone", "stream", "batch"]
REGIMES: tuple[Regime, ...] = ("alone", "stream", "batch")


@dataclass(frozen=True, slots=True)
class Rate:
    """Hits among ``n`` trials, with the exact 95 % interval; NaN if there are none."""

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
    """Share of an attack's texts that were held.

    Attributes
    ----------
    attack
        Name of the attack.
    regime
        How the texts arrived, see :data:`REGIMES`.
    size
        Number of texts of each target.
    held
        Held texts among those that arrived.
    by
        Number of held texts that each detector objected to.
    """

    attack: str
    regime: Regime
    size: int
    held: Rate
    by: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Share of questions with poison among the nearest entries, without a guard and with it."""

    attack: str
    before: Rate
    after: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A planted text that stayed in the knowledge base.

    Attributes
    ----------
    entry_id
        Id of the planted text.
    attack, regime
        Attack of the text, and how the text arrived.
    mark
        Digest of attack and text: the same in every evaluation that plants the text, under any id.
    """

    entry_id: str
    attack: str
    regime: Regime
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Figures of an evaluation.

    Attributes
    ----------
    settings
        Settings of the run.
    n_known, n_clean
        Number of entries of the knowledge base, and of new clean entries.
    false_positives
        Clean entries that were held, by regime; for ``"stream"``, in all streams with poison.
    false_by
        Number of clean entries held in batches that each detector objected to.
    recalls
        Recalls by attack and regime.
    reached
        Reached questions by attack.
    lost
        Of questions about clean entries, those that miss a wrongly held entry among their nearest
        ones.
    fit_seconds, milliseconds
        Time of fitting, and of screening an entry in batches of a hundred.
    idle
        Detectors that judged none of the clean entries, and the reasons; these figures are
        without their findings.
    recipes
        By attack, the source of its recipe, and the changes at its difficulty.
    missed
        Planted texts that were held neither on arrival nor later: in streams, or alone for attacks
        with one text for a target.
    wrongly_held
        Objecting detectors, by the id of each clean entry that was held in batches.
    format
        Version of the JSON.
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
        """The main recall of each attack: in a stream, or alone with one text for a target."""
        streamed = {r.attack for r in self.recalls if r.regime == "stream"}
        return tuple(
            r
            for r in self.recalls
            if r.regime == "stream" or (r.regime == "alone" and r.attack not in streamed)
        )

    @property
    def groups_alone(self) -> dict[str, dict[int, Rate]]:
        """Held texts of groups that arrived alone, by attack and size.

        Only for attacks that arrived in several sizes.
        """
        found: dict[str, dict[int, Rate]] = {}
        for r in self.recalls:
            if r.regime == "alone":
                found.setdefault(r.attack, {})[r.size] = r.held
        return {name: rates for name, rates in found.items() if len(rates) > 1}

    def to_json(self) -> str:
        """Return all figures as JSON, with shares and intervals beside the counts."""
        return _JSON.dump_json(self, indent=1).decode() + "\n"

    @staticmethod
    def read(path: Path) -> Evaluation:
        """Read a file that :meth:`to_json` wrote.

        Raises
        ------
        SourceError
            If the file is no such report, or has another format.
        """
        try:
            return _JSON.validate_json(path.read_bytes())
        except (OSError, ValueError) as error:  # its message may quote hostile text
            msg = (
                f"{path} is no report of an evaluation that this version reads "
                f"({type(error).__name__}); expected what ragshield evaluate --output FILE.json "
                "wrote."
            )
            raise SourceError(msg) from None


_JSON = TypeAdapter(Evaluation)
