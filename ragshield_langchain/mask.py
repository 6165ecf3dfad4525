"""Held entries that the store inside still has: kept out of what reads return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from langchain_core.documents import Document

from ragshield_core import Batch, Entry, Quarantine
from ragshield_core.errors import InvalidBatchError
from ragshield_core.quarantine import Status
from ragshield_langchain.convert import MetadataKeys

T = TypeVar("T")

PAGE = 1000
NO_VECTOR = np.empty(0, dtype=np.float32)


class Mask:
    """Knows which revisions are held, and searches for more where results are hidden.

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

    def remove(self, entries: Batch) -> list[str]:
        """Hide revisions no longer, since they were let in; return the ids that were hidden."""
        shown = []
        for entry in entries:
            held = self._held.get(entry.id)
            if held is None and not self._confirmed:
                continue
            fingerprint = entry.fingerprint
            if held is not None and fingerprint in held:
                shown.append(entry.id)
                if rest := held - {fingerprint}:
                    self._held[entry.id] = rest
                else:
                    del self._held[entry.id]
            self._confirmed -= {fingerprint}
        return shown

    def hides(self, document: Document) -> bool:
        """Return whether a document is a revision that is held."""
        held = self._held.get(str(document.id))
        if held is None and not self._confirmed:
            return False
        fingerprint = self._fingerprint(document)
        return fingerprint in self._confirmed or (held is not None and fingerprint in held)

    def visible(self, results: Sequence[T]) -> list[T]:
        """Return results, documents or tuples that begin with one, without those that are held."""
        if not self._held and not self._confirmed:
            return list(results)
        return [one for one in results if not self.hides(document_of(one))]

    def search(self, ask: Callable[[int], list[T]], k: int, *, post_filtered: bool) -> list[T]:
        """Return k visible results, or as many as there are, in the order of the store.

        Parameters
        ----------
        ask
            Returns that many results of the store.
        k
            How many are wanted.
        post_filtered
            Whether fewer results than asked for do not mean that there are no more.
        """
        asked = k
        while True:
            results = ask(asked)
            visible = self.visible(results)
            more = self._more(asked, k, len(results), len(visible), post_filtered=post_filtered)
            if more is None:
                return visible if asked == k else visible[:k]
            asked = more

    async def asearch(
        self, ask: Callable[[int], Awaitable[list[T]]], k: int, *, post_filtered: bool
    ) -> list[T]:
        """Do as :meth:`search` does."""
        asked = k
        while True:
            results = await ask(asked)
            visible = self.visible(results)
            more = self._more(asked, k, len(results), len(visible), post_filtered=post_filtered)
            if more is None:
                return visible if asked == k else visible[:k]
            asked = more

    def _more(
        self, asked: int, k: int, found: int, visible: int, *, post_filtered: bool
    ) -> int | None:
        """Return how many to ask for next, or None if it is enough."""
        hidden = found - visible
        if not hidden or visible >= k or (found < asked and not post_filtered):
            return None
        # Confirmed revisions may be there under other ids, nobody knows how many.
        most = k + len(self._held) + (PAGE if self._confirmed else 0)
        following = min(max(2 * asked, asked + hidden), most)
        return following if following > asked else None

    def _fingerprint(self, document: Document) -> str | None:
        entry_id = str(document.id)
        try:
            (label,) = self._keys.read(self._keys.label, [document.metadata], [entry_id])
            (lineage,) = self._keys.read(self._keys.lineage, [document.metadata], [entry_id])
        except InvalidBatchError:  # no such revision was ever held
            return None
        return Entry(
            id=entry_id,
            text=document.page_content,
            embedding=NO_VECTOR,
            label=label,
            lineage=lineage,
        ).fingerprint


def document_of(result: Any) -> Document:
    """Return the document of a result, which may be a tuple of one and its score."""
    document: Document = result[0] if isinstance(result, tuple) else result
    return document
