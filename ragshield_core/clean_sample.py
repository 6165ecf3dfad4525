"""The entries of a knowledge base that stand for what is clean in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration import TIE
from ragshield_core.entries import Batch, together

# Of a sample, so many entries should lie beyond the threshold of the accepted rate: the rate that
# results is then off by a sixth, as a rule. More cost time whenever the sample is scored again.
BEYOND = 40
# With fewer than so many beyond it, a threshold is a matter of chance: a guard that begins with
# nothing waits for them.
FEWEST_BEYOND = 10
# No lineage makes up more than this share of a sample, so that no source says alone what is usual.
LARGEST_SOURCE = 0.05


# Of entries that speak against each other, no more than so many count, in a part of the sample that
# nobody has vouched for. Clean ones come in pairs and threes, poisoned ones in fives.
OF_A_GROUP = 2
PARTS = ("core", "later", "held")
# The share of a sample in which groups are looked for: of the highest scores.
SUSPICIOUS = 0.05


@dataclass(frozen=True, kw_only=True)
class CleanSample:
    """Entries that thresholds are taken from, again and again, as the knowledge base grows.

    Its core is what the knowledge base held at first. What comes in later, held or not, joins it
    until it is large enough.

    Attributes
    ----------
    core
        Of the entries that were there at first, those that the knowledge base still holds.
    later
        Of those that joined, those that it holds.
    held
        Of either, those that are held. They stay part of the sample: without its most unusual
        entries it promises less than what comes, and the next one less again.
    rate
        Accepted false-positive rate, (0, 1): the smaller, the larger the sample.
    vetted
        Whether somebody has said that the core is clean.

    Notes
    -----
    Why nobody can walk a threshold up by bringing entries. Let the core alone put it at t. Of the m
    entries that are not of the core, at most rate * m count that lie above t, the least unusual
    ones. So at most a share of rate of the whole sample lies above t, and the threshold is no
    higher than t, whatever came. It can come down, where clean entries turn out to be less unusual
    than the core let expect, or where poisoned ones in a core that nobody vouched for had kept it
    up. What entries do to the scores of the core, by lying near to it, is bounded by how many of
    the core they can lie near to.
    """

    core: Batch
    later: Batch
    held: Batch
    rate: float
    vetted: bool

    @classmethod
    def drawn(cls, batch: Batch, rate: float, *, seed: int, vetted: bool) -> Self:
        """Draw a core from a knowledge base, in its order.

        Parameters
        ----------
        batch
            The knowledge base.
        rate, vetted
            As of the class.
        seed
            Of the draw.
        """
        size = min(len(batch), math.ceil(BEYOND / rate))
        order = np.random.default_rng(seed).permutation(len(batch))
        if size < len(batch):
            order = order[_of_many_sources([batch.lineages[row] for row in order], rate)]
        return cls.of(batch.take(np.sort(order[:size])), rate, vetted=vetted)

    @classmethod
    def of(cls, core: Batch, rate: float, *, vetted: bool) -> Self:
        """Return a sample of all entries of a batch."""
        nothing = core.take([])
        return cls(core=core, later=nothing, held=nothing, rate=rate, vetted=vetted)

    def __len__(self) -> int:
        return len(self.core) + len(self.later) + len(self.held)

    @cached_property
    def inside(self) -> Batch:
        """What the knowledge base holds of it, with vectors."""
        return together([self.core, self.later])

    def joined_by(self, entries: Batch, *, held: bool) -> Self:
        """Return the sample with entries that came in later, as far as there is room."""
        room = math.ceil(BEYOND / self.rate) - len(self)
        if room <= 0 or not len(entries):
            return self
        everything = together([self.inside, self.held])
        fits = _of_many_sources([*everything.lineages, *entries.lineages], self.rate)
        known = set(everything.ids)
        rows = [r for r in (fits[fits >= len(self)] - len(self)) if entries.ids[r] not in known]
        part = "held" if held else "later"
        return replace(self, **{part: together([getattr(self, part), entries.take(rows[:room])])})

    def without(self, ids: Collection[str]) -> Self:
        """Return the sample without entries that have left, or were replaced."""
        return replace(
            self,
            core=_but(self.core, ids),
            later=_but(self.later, ids),
            held=_but(self.held, ids),
        )

    def after_holding(self, ids: Collection[str]) -> Self:
        """Return the sample after some of it was held."""
        inside = self.inside
        gone = inside.take(np.array([i in ids for i in inside.ids], dtype=np.bool_))
        if not len(gone):
            return self
        return replace(
            self,
            core=_but(self.core, ids),
            later=_but(self.later, ids),
            held=together([self.held, gone]),
        )

    def counting(
        self,
        scores: Mapping[str, NDArray[np.float64]],
        accomplices: Mapping[str, Callable[[Sequence[str]], NDArray[np.intp]]],
    ) -> NDArray[np.bool_]:
        """Return which entries thresholds are taken from.

        Parameters
        ----------
        scores
            Per detector, of the core, later and held entries, one after the other; NaN without an
            opinion.
        accomplices
            Per detector, which of some entries speak against each other.

        Returns
        -------
        NDArray[np.bool_]
            Shape (n_sample,).
        """
        n_core, n_inside = len(self.core), len(self.core) + len(self.later)
        counting = np.ones(len(self), dtype=np.bool_)
        rarest = np.full(len(self), np.nan)  # as a share of the core
        for name, column in scores.items():
            known = np.sort(column[:n_core][~np.isnan(column[:n_core])])
            if not known.size:
                continue
            share = 1.0 - np.searchsorted(known, column - TIE) / len(known)
            rarest = np.fmin(rarest, np.where(np.isnan(column), np.nan, share))
            doubted = np.arange(len(self)) >= (n_core if self.vetted else 0)
            doubted[n_inside:] = False
            rows = np.flatnonzero(doubted & (share <= SUSPICIOUS))
            rows = rows[np.argsort(-column[rows], kind="stable")]
            groups = accomplices[name]([self.inside.ids[row] for row in rows])
            seen: Counter[int] = Counter()
            for row, group in zip(rows.tolist(), groups.tolist(), strict=True):
                seen[group] += 1
                counting[row] &= seen[group] <= OF_A_GROUP
        suspicious = n_core + np.flatnonzero(rarest[n_core:] <= self.rate)
        explained = int(self.rate * (len(self) - n_core))
        counting[suspicious[np.argsort(-rarest[suspicious], kind="stable")][explained:]] = False
        return counting

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        values: dict[str, Any] = {"rate": self.rate, "vetted": self.vetted}
        arrays = {}
        for name in PARTS:
            part: Batch = getattr(self, name)
            values[name] = {
                "ids": part.ids,
                "texts": part.texts,
                "labels": part.labels,
                "lineages": part.lineages,
            }
            arrays[name] = part.embeddings
        return values, arrays

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the sample that :meth:`state` described."""
        parts = {
            name: Batch.of(
                **values[name], embeddings=arrays[name] if arrays[name].shape[1] else None
            )
            for name in PARTS
        }
        return cls(**parts, rate=float(values["rate"]), vetted=bool(values["vetted"]))


def _of_many_sources(lineages: Sequence[str | None], rate: float) -> NDArray[np.intp]:
    """Return the rows that stay if no lineage may have more than its share of a sample."""
    most = max(1, int(LARGEST_SOURCE * BEYOND / rate))
    taken: Counter[str] = Counter()
    rows = []
    for row, lineage in enumerate(lineages):
        if lineage is not None:
            taken[lineage] += 1
        if lineage is None or taken[lineage] <= most:
            rows.append(row)
    return np.array(rows, dtype=np.intp)


def _but(batch: Batch, ids: Collection[str]) -> Batch:
    kept = np.array([i not in ids for i in batch.ids], dtype=np.bool_)
    return batch if kept.all() else batch.take(kept)


def first_size(rate: float) -> int:
    """Return how many entries a guard that began with nothing needs before it calibrates itself."""
    return math.ceil(FEWEST_BEYOND / rate)
