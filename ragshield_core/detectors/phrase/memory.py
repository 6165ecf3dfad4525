"""Memory of a phrase detector: phrases of the knowledge base, and recent entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.carriers import KnownSample
from ragshield_core.detectors.phrase.counts import (
    SKETCH,
    Arrival,
    Background,
    Grams,
    Place,
    Recent,
    arrivals_of,
)
from ragshield_core.model.entries import Batch
from ragshield_core.state import part_of

# Distinct n-grams of recent entries that are kept, 4 bytes each: 4,096 entries of 100 words have
# two millions.
MAX_RECENT_GRAMS = 1 << 22
# The recent share of all text stays at a half at the most, but in a small knowledge base.
SMALLEST_WINDOW = 1_000
# Entries of one lineage that share a phrase count as one, up to the size of all but the largest
# twentieth of lineages here; a lineage is a claim, and explains no more than lineages here show.
LARGE_LINEAGE = 0.95
# A document may have so many parts that share a running head, whatever is usual here; and fewer
# lineages than so many do not tell what is.
PARTS, FEWEST_LINEAGES = 10, 30
# Entries counted at a time.
CHUNK = 2_000


class Memory:
    """What a phrase detector remembers.

    Parameters
    ----------
    max_recent
        Entries that are recent, at most.

    Attributes
    ----------
    background
        The phrases of the knowledge base; ``None`` before the first entry.
    recent
        Entries that came lately, or are held.
    sample
        A sample of the knowledge base.
    lineages
        Entries of the knowledge base, by lineage.
    updating
        Entries that have left: one that comes back is an update.
    """

    def __init__(self, max_recent: int) -> None:
        self.max_recent = max_recent
        self.background: Background | None = None
        self.recent = Recent()
        self.sample = KnownSample()
        self.lineages: Counter[str] = Counter()
        self.updating: set[str] = set()

    def note_lineages(self, entries: Batch) -> None:
        """Count entries by lineage."""
        self.lineages.update(name for name in entries.lineages if name is not None)

    def forget(self, entries: Batch) -> None:
        """Take entries that were learned out again."""
        if len(self.updating) > self.max_recent:
            self.updating.clear()
        self.updating.update(entries.ids)
        self.lineages -= Counter(name for name in entries.lineages if name is not None)
        recent = self.forget_recent(entries.ids, held=False)
        rest = entries.take(np.array([i not in recent for i in entries.ids], dtype=np.bool_))
        self.sample.forget(rest.ids)
        self.count(rest, -1)

    def count(self, entries: Batch, sign: int) -> NDArray[np.uint32]:
        """Count entries as background, or no longer, and return their sketches."""
        assert self.background is not None  # noqa: S101
        sketches = [np.empty((0, SKETCH), dtype=np.uint32)]
        for start in range(0, len(entries), CHUNK):
            grams = Grams.of(entries.texts[start : start + CHUNK])
            self.background.add(grams, sign)
            sketches.append(grams.sketches())
            if sign > 0:
                end = start + CHUNK
                hashes = np.split(grams.hashes, np.cumsum(grams.sizes())[:-1])
                vectors = entries.embeddings[start:end]
                ids, lineages = entries.ids[start:end], entries.lineages[start:end]
                self.sample.add(ids, lineages, hashes, vectors)
        self.sample.changed()
        return np.concatenate(sketches)

    def arrive(
        self, entries: Batch, judged: tuple[Grams, Place] | None = None, *, held: bool
    ) -> None:
        """Count entries among the recent ones; ``judged``: their n-grams and places."""
        assert self.background is not None  # noqa: S101
        if judged is None:
            grams = Grams.of(entries.texts)
            places = self.sample.places(entries, grams, self.background)
        else:
            grams, places = judged
        self.forget_recent(entries.ids, held=held)  # a write that is repeated
        updates = [not held and entry_id in self.updating for entry_id in entries.ids]
        self.updating.difference_update(entries.ids)
        self.recent.append(arrivals_of(entries, grams, places, held=held, updates=updates))
        window = min(self.max_recent, max(SMALLEST_WINDOW, self.background.n_entries))
        self.make_background(self.recent.remove(self.recent.surplus(window, MAX_RECENT_GRAMS)))

    def make_background(self, arrivals: Sequence[Arrival], *, again: bool = False) -> None:
        """Count entries that are no longer recent as background, unless they are held."""
        ordinary = [arrival for arrival in arrivals if not arrival.held]
        if not ordinary or self.background is None:
            return
        hashes = [arrival.hashes for arrival in ordinary]
        self.background.add_hashes(np.concatenate(hashes), 0 if again else len(ordinary))
        self.sample.changed()
        if not again:
            ids, lineages = [a.id for a in ordinary], [a.lineage for a in ordinary]
            dims = {len(arrival.vector) for arrival in ordinary}
            if len(dims) == 1:
                vectors = np.stack([arrival.vector for arrival in ordinary])
                self.sample.add(ids, lineages, hashes, vectors)

    def forget_recent(self, ids: Sequence[str], *, held: bool) -> set[str]:
        """Remove recent entries by id, and return which there were."""
        wanted = set(ids)
        marked = [a.held is held and a.id in wanted for a in self.recent.arrivals]
        return {a.id for a in self.recent.remove(np.array(marked, dtype=np.bool_))}

    @property
    def large_lineage(self) -> float:
        """How many entries the large lineages of the knowledge base have."""
        sizes = list(self.lineages.values())
        if len(sizes) < FEWEST_LINEAGES:
            return PARTS
        return max(PARTS, float(np.quantile(sizes, LARGE_LINEAGE)))

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        assert self.background is not None  # noqa: S101
        recent, arrays = self.recent.state()
        arrays = {f"recent.{key}": array for key, array in arrays.items()}
        arrays |= {f"background.{key}": array for key, array in self.background.state().items()}
        standing, more = self.sample.state()
        arrays |= {f"standing.{key}": array for key, array in more.items()}
        return {"recent": recent, "standing": standing, "lineages": dict(self.lineages)}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` returned."""
        self.background = Background.restored(part_of(arrays, "background."))
        self.recent = Recent.restored(values["recent"], part_of(arrays, "recent."))
        self.sample = KnownSample.restored(values["standing"], part_of(arrays, "standing."))
        self.lineages = Counter(values["lineages"])
