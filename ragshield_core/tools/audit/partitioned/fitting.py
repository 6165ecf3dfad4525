"""A fit by partitions: what takes the vectors of all is found by tasks, and put together in order.

Tasks number entries by partition (see :mod:`ragshield_core.tools.audit.partitioned.placing`); a
guard has them in the order of the input, which tells who came first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.pieces import Pieces, Progress
from ragshield_core.detectors.groups.evidence import CHANNELS, SIZES, K
from ragshield_core.detectors.groups.found import FoundGroups
from ragshield_core.detectors.groups.graph import Lists
from ragshield_core.model.entries import Batch
from ragshield_core.tools.audit.partitioned import placing, searching
from ragshield_core.tools.audit.partitioned.files import divided
from ragshield_core.tools.audit.partitioned.plan import Plan
from ragshield_core.tools.audit.partitioned.rows import LISTS, Partitions

logger = logging.getLogger("ragshield")  # ids and counts, never text


class PartitionedPieces(Pieces):
    """The input of a plan, with what its tasks have found.

    Parameters
    ----------
    plan
        What was done.
    progress
        Told how many entries were read.
    """

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan, self._tell = plan, progress

    def __len__(self) -> int:
        return self._plan.n_rows

    def batches(self, what: str) -> Iterator[Batch]:
        """Yield all entries in the order of the input."""
        done = 0
        self._tell(what, done, len(self))
        for number in range(len(self._plan.pieces)):
            for batch in placing.batches_of(self._plan, number):
                yield batch
                done += len(batch)
                self._tell(what, done, len(self))

    def groups(self) -> FoundGroups:
        """Return what the tasks found, in the order of the input."""
        partitions, n = Partitions(self._plan), len(self)
        places = self._places(partitions)
        words: list[NDArray[np.uint32]] = [np.empty(0, dtype=np.uint32)] * n
        lists = Lists.empty(n, K)
        tightness = {c: np.empty((n, len(SIZES)), dtype=np.float32) for c in CHANNELS}
        for partition in partitions.filled:
            own = places[partitions.starts[partition] : partitions.starts[partition + 1]]
            rows = partitions.rows(partition)
            flat = np.array(rows["words"])  # its file will be removed
            for place, mine in zip(
                own.tolist(), divided(flat, rows["word_ends"], np.arange(len(own))), strict=True
            ):
                words[place] = mine
            lists.put(own, _named(partitions, partition, places))
            for channel, column in tightness.items():
                kind = "tight_any" if channel == "any" else "tight"
                column[own] = partitions.rows(partition, kind)[channel]
        if told := searching.missed(partitions.n, searching.share_found(self._plan)):
            logger.info("%s", told)
        return FoundGroups(
            words=words, lists=lists, unrelated=partitions.unrelated, tightness=tightness
        )

    def _places(self, partitions: Partitions) -> NDArray[np.int64]:
        """Return where in the input each entry stands, by its number."""
        sizes = [piece.n_rows for piece in self._plan.pieces]
        before = np.cumsum([0, *sizes[:-1]])
        places = np.empty(len(self), dtype=np.int64)
        for partition in partitions.filled:
            rows = partitions.rows(partition)
            places[partitions.own(partition)] = before[rows["piece"]] + rows["row"]
        return places


def _named(partitions: Partitions, partition: int, places: NDArray[np.int64]) -> Lists:
    """Return the lists of a partition, which name entries by their place; of equals the oldest."""
    found = partitions.rows(partition, LISTS)
    slots = np.where(found["slots"] < 0, -1, places[found["slots"]])
    order = np.lexsort((slots, -found["similarities"]), axis=1)
    columns = (slots, found["similarities"], found["copied"])
    return Lists(*(np.take_along_axis(column, order, 1) for column in columns))
