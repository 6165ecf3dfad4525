"""The clean sample: entries that represent the clean part of a knowledge base."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch, concatenate

# Wanted number of sample entries beyond the threshold of the accepted rate: the actual rate is then
# typically off by a sixth. More entries cost time whenever the sample is scored again.
BEYOND = 40
# With fewer entries beyond it, a threshold is a matter of chance: a guard that begins empty waits
# until it has as many.
FEWEST_BEYOND = 10
# Largest share of one lineage in a sample, so that no document alone defines the usual values.
LARGEST_SOURCE = 0.05


@dataclass(frozen=True, kw_only=True)
class CleanSample:
    """Entries that set the thresholds, scored again as the knowledge base grows.

    Later entries do not join the sample. They affect thresholds only through the scores that the
    sample has among them: an attacker can raise a threshold only by placing entries near the
    entries of the sample, one by one.
    """

    inside: Batch  # entries that the knowledge base holds, with their vectors
    # Entries that it does not hold, scored as if they came now: clean entries of the user, and
    # entries of an unvetted sample that were held later. Those stay in the sample: without its most
    # unusual entries, it would promise a lower rate than the actual one, and lower still after the
    # next calibration.
    outside: Batch
    vetted: bool  # a person has said that the sample is clean

    @classmethod
    def of(cls, batch: Batch, *, vetted: bool) -> Self:
        """Return a sample with all entries of a batch."""
        return cls(inside=batch, outside=batch.take([]), vetted=vetted)

    def __len__(self) -> int:
        return len(self.inside) + len(self.outside)

    def without(self, ids: Collection[str]) -> Self:
        """Return the sample without entries that have left, or were replaced."""
        return replace(self, inside=_but(self.inside, ids), outside=_but(self.outside, ids))

    def after_holding(self, ids: Collection[str]) -> Self:
        """Return the sample after some of its entries were held."""
        gone = self.inside.take(np.array([i in ids for i in self.inside.ids], dtype=np.bool_))
        if not len(gone):
            return self
        return replace(
            self, inside=_but(self.inside, ids), outside=concatenate([self.outside, gone])
        )

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        values: dict[str, Any] = {"vetted": self.vetted}
        arrays = {}
        for name, part in (("inside", self.inside), ("outside", self.outside)):
            values[name] = {
                "ids": part.ids,
                "texts": part.texts,
                "labels": part.labels,
                "lineages": part.lineages,
                "sources": part.sources,
            }
            if any(context is not None for context in part.contexts):
                values[name]["contexts"] = part.contexts
            arrays[name] = part.embeddings
        return values, arrays

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the sample from the result of :meth:`state`."""
        parts = {
            name: Batch.of(
                **values[name], embeddings=arrays[name] if arrays[name].shape[1] else None
            )
            for name in ("inside", "outside")
        }
        return cls(**parts, vetted=bool(values["vetted"]))


def drawn_rows(lineages: Sequence[str | None], rate: float, seed: int) -> NDArray[np.int64]:
    """Return the rows of the drawn entries, ascending, given the lineages of all."""
    size = min(len(lineages), full_size(rate))
    order = np.random.default_rng(seed).permutation(len(lineages))
    if size < len(lineages):  # limit the share of each lineage
        taken: Counter[str] = Counter()
        for place, row in enumerate(order.tolist()):
            if (lineage := lineages[row]) is not None:
                taken[lineage] += 1
                if taken[lineage] > max(1, int(LARGEST_SOURCE * size)):
                    order[place] = -1
    return np.sort(order[order >= 0][:size])


def _but(batch: Batch, ids: Collection[str]) -> Batch:
    kept = np.array([i not in ids for i in batch.ids], dtype=np.bool_)
    return batch if kept.all() else batch.take(kept)


def latest(batches: Sequence[Batch], known: Collection[str] | None = None) -> Batch:
    """Return the latest revision of each entry, in order of arrival, from at least one batch.

    ``known`` are the ids of the wanted entries; ``None`` for all.
    """
    seen: set[str] = set()
    parts = []
    for batch in reversed(batches):
        rows = [
            row
            for row, entry_id in enumerate(batch.ids)
            if entry_id not in seen and (known is None or entry_id in known)
        ]
        seen.update(batch.ids)
        parts.append(batch.take(rows))
    return concatenate(parts[::-1])


def first_size(rate: float) -> int:
    """Return how many entries a guard that began empty needs before it calibrates itself."""
    return math.ceil(FEWEST_BEYOND / rate)


def full_size(rate: float) -> int:
    """Return the size of a sample if there are enough entries."""
    return math.ceil(BEYOND / rate)
