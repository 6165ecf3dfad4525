"""Held documents that the store inside still has: kept out of what reads return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from langchain_core.documents import Document

from ragshield_core.adapters.mask import Claims, Search
from ragshield_core.adapters.mask import Mask as CoreMask
from ragshield_langchain.convert import MetadataKeys

T = TypeVar("T")


class Found(NamedTuple):
    """What a search found: results to show, and how many hidden ones stood before the last."""

    results: list[Any]
    hidden: int


class Mask(CoreMask[Document]):
    """Knows which revisions are held, and searches for more where results are hidden.

    Parameters
    ----------
    keys
        Where metadata says what belongs to a revision.
    """

    def __init__(self, keys: MetadataKeys) -> None:
        super().__init__()
        self._keys = keys

    def id_of(self, item: Document) -> str:
        """Return the id of a document."""
        return str(item.id)

    def claims_of(self, item: Document) -> Claims:
        """Return text, label, lineage and context of a document."""
        where = [item.metadata], [self.id_of(item)]
        (label,) = self._keys.tolerant("label", *where)
        (lineage,) = self._keys.tolerant("lineage", *where)
        (context,) = self._keys.contexts([item.metadata])
        return Claims(item.page_content, label, lineage, context)

    def visible(self, results: Sequence[T]) -> list[T]:
        """Return results, documents or tuples that begin with one, without those that are held."""
        if not self:
            return list(results)
        return [one for one in results if not self.hides(document_of(one))]

    def search(
        self, ask: Callable[[int], list[Any]], k: int, *, post_filtered: bool, nested: bool
    ) -> Found:
        """Return k visible results, or as many as there are, in the order of the store.

        Parameters
        ----------
        ask
            Returns that many results of the store.
        k
            How many are wanted.
        post_filtered, nested
            As of :class:`ragshield_core.adapters.mask.Search`.
        """
        if not self:  # nearly always, and a search may take no longer than this would
            return Found(ask(k), 0)
        search = Search(self, k, post_filtered=post_filtered, nested=nested)
        while True:
            results = ask(search.asked)
            if search.enough(len(results), map(self._shows, results)):
                return Found([results[row] for row in search.rows], search.hidden)

    async def asearch(
        self,
        ask: Callable[[int], Awaitable[list[Any]]],
        k: int,
        *,
        post_filtered: bool,
        nested: bool,
    ) -> Found:
        """Do as :meth:`search` does."""
        if not self:  # nearly always, and a search may take no longer than this would
            return Found(await ask(k), 0)
        search = Search(self, k, post_filtered=post_filtered, nested=nested)
        while True:
            results = await ask(search.asked)
            if search.enough(len(results), map(self._shows, results)):
                return Found([results[row] for row in search.rows], search.hidden)

    def _shows(self, result: Any) -> bool:
        return not self.hides(document_of(result))


def document_of(result: Any) -> Document:
    """Return the document of a result, which may be a tuple of one and its score."""
    document: Document = result[0] if isinstance(result, tuple) else result
    return document
