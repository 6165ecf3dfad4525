"""Held documents that the store inside still has: kept out of what reads return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from langchain_core.documents import Document

from ragshield_core import Quarantine
from ragshield_core.model.entries import Entry
from ragshield_core.store.mask import PAGE, Claims, Search
from ragshield_core.store.mask import Mask as CoreMask
from ragshield_core.store.steps import Steps
from ragshield_langchain.convert import MetadataKeys

T = TypeVar("T")

# Where ParentDocumentRetriever and MultiVectorRetriever note what a document is a part of, unless
# they are given another key. They look a document up by any part that they find, so that no part is
# shown while another one is held.
PARENT_KEY = "doc_id"


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
        self._parent_keys: frozenset[str] = frozenset()

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

    def wholes_of(self, entry: Entry) -> frozenset[str]:
        """Return the ids of documents that retrievers of whole ones return for an entry."""
        return self._parents(entry.metadata)

    def _parents(self, metadata: Mapping[str, Any]) -> frozenset[str]:
        values = (metadata.get(key) for key in self._parent_keys)
        return frozenset(value for value in values if isinstance(value, str))

    @property
    def parent_keys(self) -> frozenset[str]:
        """Metadata keys that say what a document is a part of."""
        return self._parent_keys

    def know(self, parent_keys: frozenset[str], quarantine: Quarantine) -> None:
        """Look under other keys of the metadata for what held entries are parts of."""
        if parent_keys != self._parent_keys:
            self._parent_keys = parent_keys
            self.load(quarantine)

    def visible(self, results: Sequence[T]) -> list[T]:
        """Return results, documents or tuples that begin with one, without those that are held."""
        self.catch_up()
        if not self:
            return list(results)
        return [one for one in results if not self.hides(document_of(one))]

    def search(
        self,
        ask: Callable[[int], Steps[list[Any]]],
        k: int,
        *,
        post_filtered: bool,
        nested: bool,
    ) -> Steps[Found]:
        """Return k visible results, or as many as there are, in the order of the store.

        Parameters
        ----------
        ask
            Returns that many results of the store.
        k
            How many are wanted.
        post_filtered, nested
            As of :class:`ragshield_core.store.mask.Search`.
        """
        self.catch_up()
        if not self:  # nearly always, and a search may take no longer than this would
            return Found((yield from ask(k)), 0)
        wholes = self.wholes

        def shows(result: Any) -> bool:
            document = document_of(result)
            parents = self._parents(document.metadata) if wholes else wholes
            return not self.hides(document) and wholes.isdisjoint(parents)

        others = PAGE if wholes else 0  # nobody knows how many parts those documents have
        search = Search(self, k, others=others, post_filtered=post_filtered, nested=nested)
        while True:
            results = yield from ask(search.asked)
            if search.enough(len(results), map(shows, results)):
                return Found([results[row] for row in search.rows], search.hidden)


def document_of(result: Any) -> Document:
    """Return the document of a result, which may be a tuple of one and its score."""
    document: Document = result[0] if isinstance(result, tuple) else result
    return document
