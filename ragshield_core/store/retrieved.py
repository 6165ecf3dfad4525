"""Retrieved passages as a batch, and the choice of those that pass."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ragshield_core.detectors.base import Need
from ragshield_core.model.claims import ORIGIN_KEY
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import Report
from ragshield_core.origin import Origins
from ragshield_core.quarantine import Quarantine
from ragshield_core.retrieval import RetrievalGuard

Item = TypeVar("Item")

logger = logging.getLogger("ragshield")  # ids and counts, never text

# At least so many passages are screened together, because a group stands out only among others;
# twice the wanted number is fetched, so that enough passages survive.
LEAST_FETCHED, OVERFETCH = 10, 2
# Beyond this many, dropped passages are not replaced: more are not judged together either.
MOST_FETCHED = 64


class Retrieved(NamedTuple, Generic[Item]):
    """Retrieved passages in the form of a batch: ids are unique, and each passage occurs once."""

    ids: list[str]
    texts: list[str]
    items: list[Item]
    row_of: list[int]  # row of each retrieved passage
    doubtful: list[int]  # rows under a new id, since another text has their own

    @classmethod
    def of(cls, found: Iterable[tuple[str | None, str, Item]]) -> Retrieved[Item]:
        """Return ids, texts and items; passages without an id get one."""
        made = cls([], [], [], [], [])
        rows: dict[tuple[str | None, str], int] = {}
        taken: set[str] = set()
        for number, (own_id, text, item) in enumerate(found):
            if own_id and (own_id, text) in rows:
                made.row_of.append(rows[own_id, text])
                continue
            row = rows[own_id, text] = len(made.ids)
            entry_id = own_id or f"retrieved-{number}"
            if entry_id in taken:
                made.doubtful.append(row)
                entry_id = f"{entry_id}#{number}"
                while entry_id in taken:  # pragma: no cover - if passages are named like this
                    entry_id += "#"
            taken.add(entry_id)
            made.ids.append(entry_id)
            made.texts.append(text)
            made.items.append(item)
            made.row_of.append(row)
        return made

    def passing(
        self,
        report: Report,
        guard: RetrievalGuard,
        own: Callable[[Item], tuple[str, str | None]],
    ) -> list[bool]:
        """Return for each retrieved passage whether a report and the quarantine let it pass.

        ``own`` returns the original id of a passage, and its context.
        """
        kept = report.admitted.copy()
        for row in self.doubtful:
            entry_id, context = own(self.items[row])
            kept[row] &= not guard.masks(entry_id, self.texts[row], context)
        return [bool(kept[row]) for row in self.row_of]


def wants_vectors(guard: RetrievalGuard) -> bool:
    """Return whether some detectors need vectors."""
    return any(Need.EMBEDDING in detector.needs for detector in guard.detectors)


def knowing(
    guard: RetrievalGuard, quarantine: Quarantine | None, origins: Origins | None = None
) -> RetrievalGuard:
    """Return a guard that drops a quarantine's held entries and shares the given one's state.

    It knows the given origins, unless it has some of its own.
    """
    guard = copy.copy(guard)
    if quarantine is not None:
        guard.quarantine = quarantine
    guard.origins = guard.origins or origins or Origins()
    return guard


def shown(origins: Origins, text: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata that shows the proven origin of a passage, in place of a claim."""
    return {ORIGIN_KEY: str(origins.of(text, metadata))}


def screened(
    guard: RetrievalGuard,
    query: str | None,
    vectors: Mapping[int, Any],
    query_vector: Sequence[float] | None,
    **columns: Any,
) -> Report:
    """Judge passages; without vectors if some are unknown or unusable.

    ``vectors`` holds the known vectors by row; ``columns`` holds the other columns of the batch.
    """
    n = len(columns["ids"])
    if len(vectors) == n:
        try:
            batch = Batch.of(embeddings=[vectors[row] for row in range(n)], **columns)
            return guard.screen(query, batch, query_vector)
        except InvalidBatchError:
            # A zero vector, or one of another model: that must not stop a chain.
            logger.warning("vectors of %d retrieved passages are of no use", n)
    # Rows of ones stand in for unknown vectors.
    batch = Batch.of(embeddings=np.ones((n, 1)), **columns)
    return guard.screen(query, batch, has_vectors=False)


def first_size(k: int | None) -> int:
    """Return how many passages to fetch if k are wanted; ``None`` wants all that are found."""
    return max(LEAST_FETCHED, OVERFETCH * (k or 0))


def next_size(size: int, k: int | None, found: int, kept: int) -> int | None:
    """Return how many passages to fetch next; ``None`` if enough survived or no more exist."""
    if k is None or kept >= k or found < size or size >= MOST_FETCHED:
        return None
    return min(2 * size, MOST_FETCHED)
