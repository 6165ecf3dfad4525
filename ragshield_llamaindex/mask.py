"""Held entries that the store inside still has: kept out of what reads return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult

from ragshield_core import Batch, Entry, Quarantine
from ragshield_core.errors import InvalidBatchError
from ragshield_core.quarantine import Status
from ragshield_llamaindex.convert import MetadataKeys, text_of

PAGE = 1000
NO_VECTOR = np.empty(0, dtype=np.float32)


class Mask:
    """Knows which revisions are held.

    A revision is hidden under the id it is held under, and one that was confirmed as poisoned under
    any. Another revision under the same id, such as the older one of a rejected update, is not.

    Parameters
    ----------
    keys
        Where metadata says what belongs to a revision.
    """

    def __init__(self, keys: MetadataKeys) -> None:
        self._keys = keys
        self._held: dict[str, frozenset[str]] = {}  # id -> fingerprints of its held revisions
        self._confirmed: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._held)

    def load(self, quarantine: Quarantine) -> None:
        """Take over what a quarantine holds; an SQLite file that is not there is not made."""
        held: dict[str, frozenset[str]] = {}
        confirmed = set()
        if quarantine._exists():  # noqa: SLF001 - asking otherwise would make the file
            offset = 0
            while page := quarantine.list(None, limit=PAGE, offset=offset):
                offset += len(page)
                for item in page:
                    if item.status is Status.RELEASED:
                        continue
                    fingerprint = item.entry.fingerprint
                    held[item.id] = held.get(item.id, frozenset()) | {fingerprint}
                    if item.status is Status.CONFIRMED:
                        confirmed.add(fingerprint)
        # Replaced, never changed, since reads go on meanwhile.
        self._held, self._confirmed = held, frozenset(confirmed)

    def add(self, entries: Batch) -> None:
        """Hide revisions from now on."""
        for entry in entries:
            self._held[entry.id] = self._held.get(entry.id, frozenset()) | {entry.fingerprint}

    def discard(self, ids: Sequence[str]) -> None:
        """Hide nothing under these ids any more, unless it was confirmed."""
        for entry_id in ids:
            self._held.pop(entry_id, None)

    def hides(self, node: BaseNode) -> bool:
        """Return whether a node is a revision that is held."""
        held = self._held.get(node.node_id)
        if held is None and not self._confirmed:
            return False
        try:
            fingerprint = Entry(
                id=node.node_id,
                text=text_of(node),
                embedding=NO_VECTOR,
                label=self._keys.label_of(node),
                lineage=self._keys.lineage_of(node),
            ).fingerprint
        except InvalidBatchError:  # no such revision was ever held
            return False
        return fingerprint in self._confirmed or (held is not None and fingerprint in held)

    def visible(self, nodes: Sequence[BaseNode]) -> list[BaseNode]:
        """Return nodes without those that are held."""
        return [node for node in nodes if not self.hides(node)]

    def more(self, asked: int, k: int, found: int, visible: int, extra: int = 0) -> int | None:
        """Return how many to ask for next, None for no more; ``extra`` others may be hidden."""
        hidden = found - visible
        if not hidden or visible >= k or found < asked:
            return None
        # Confirmed revisions may be there under other ids, nobody knows how many.
        most = k + len(self._held) + extra + PAGE
        following = min(max(2 * asked, asked + hidden), most)
        return following if following > asked else None


def kept_rows(
    result: VectorStoreQueryResult, keep: Callable[[str | None, BaseNode | None], bool]
) -> list[int]:
    """Return the rows of a result to keep, decided by id and node, as far as it has them."""
    ids, nodes = result.ids, result.nodes
    n = len(ids) if ids is not None else len(nodes or ())
    return [
        row
        for row in range(n)
        if keep(None if ids is None else ids[row], nodes[row] if nodes else None)
    ]


def cut(result: VectorStoreQueryResult, rows: Sequence[int]) -> VectorStoreQueryResult:
    """Return those rows of a result; nodes, similarities and ids stay parallel."""
    return VectorStoreQueryResult(
        nodes=[result.nodes[row] for row in rows] if result.nodes else result.nodes,
        similarities=(
            [result.similarities[row] for row in rows]
            if result.similarities
            else result.similarities
        ),
        ids=[result.ids[row] for row in rows] if result.ids else result.ids,
    )


def asking_for(query: VectorStoreQuery, asked: int) -> VectorStoreQuery:
    """Return a query for more results, in every part that limits them."""
    extra = asked - query.similarity_top_k
    if not extra:
        return query
    return replace(
        query,
        similarity_top_k=asked,
        sparse_top_k=None if query.sparse_top_k is None else query.sparse_top_k + extra,
        hybrid_top_k=None if query.hybrid_top_k is None else query.hybrid_top_k + extra,
    )
