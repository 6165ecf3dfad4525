"""Mask that keeps held documents out of reads if the store inside still has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from langchain_core.documents import Document
from langchain_core.stores import BaseStore

from ragshield_core import Quarantine
from ragshield_core.model.entries import Entry
from ragshield_core.model.errors import QuarantineError
from ragshield_core.quarantine import HeldEntry
from ragshield_core.store.keys import MetadataKeys
from ragshield_core.store.malformed import unfit_metadata
from ragshield_core.store.mask import PAGE, Claims, Search
from ragshield_core.store.mask import Mask as CoreMask
from ragshield_core.store.steps import Steps, asked, own
from ragshield_langchain.convert import context_of

T = TypeVar("T")

# Default metadata key by which ParentDocumentRetriever and MultiVectorRetriever name a part's whole
# document. They look a document up by any part that they find, so no part is shown while another
# one is held.
PARENT_KEY = "doc_id"


class Found(NamedTuple):
    """Results of a search to show, and the number of hidden ones before the last of them."""

    results: list[Any]
    hidden: int


class Mask(CoreMask[Document]):
    """Knows which revisions are held, and searches for more if results are hidden."""

    def __init__(self, keys: MetadataKeys) -> None:
        super().__init__()
        self._keys = keys
        self._parent_keys: frozenset[str] = frozenset()
        self._docstore: BaseStore[str, Any] | None = None  # has the parents, if it is known
        self._quarantine: Quarantine | None = None  # has the texts to look for in parents
        self._parts: dict[tuple[str, frozenset[str]], list[_Part]] = {}  # of held revisions

    def id_of(self, item: Document) -> str:
        """Return the id of a document."""
        return str(item.id)

    def claims_of(self, item: Document) -> Claims:
        """Return text, label, lineage and context of a document."""
        label, lineage = self._keys.claims(item.metadata, self.id_of(item))
        context = context_of(item.metadata, self._keys.prompt)
        return Claims(item.page_content, label, lineage, context)

    def wholes_of(self, entry: Entry) -> frozenset[str]:
        """Return the ids of whole documents that retrievers return in place of an entry."""
        return self._parents(entry.metadata)

    def _parents(self, metadata: Mapping[str, Any]) -> frozenset[str]:
        values = (metadata.get(key) for key in self._parent_keys)
        return frozenset(value for value in values if isinstance(value, str))

    @property
    def parent_keys(self) -> frozenset[str]:
        """Metadata keys that name the whole document of a part."""
        return self._parent_keys

    def know(
        self,
        parent_keys: frozenset[str],
        quarantine: Quarantine,
        docstore: BaseStore[str, Any] | None = None,
    ) -> None:
        """Set the metadata keys that name the whole documents of held entries.

        The docstore has the parents. It shows whether a parent holds the text of an entry that
        claims to be a part of it; without a docstore, claims are believed.
        """
        self._quarantine = quarantine
        if docstore is not None:
            self._docstore = docstore
        if parent_keys != self._parent_keys:
            self._parent_keys = parent_keys
            self.load(quarantine)

    def visible(self, results: Sequence[T]) -> list[T]:
        """Return results, documents or tuples that begin with one, without the held ones."""
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
    ) -> Steps[Found]:
        """Return k visible results, or as many as there are, in the order of the store.

        ``ask`` returns a given number of results from the store.
        """
        self.catch_up()
        if not self:  # nearly always, and then a search must not cost extra time
            return Found((yield from ask(k)), 0)
        claimed, wholes, answered = self.wholes, frozenset[str](), frozenset[str]()

        def shows(result: Any) -> bool:
            document = document_of(result)
            parents = self._parents(document.metadata) if wholes else wholes
            return not self.hides(document) and wholes.isdisjoint(parents)

        others = PAGE if claimed else 0  # those documents have an unknown number of parts
        search = Search(self, k, others=others, post_filtered=post_filtered)
        while True:
            results = yield from ask(search.asked)
            if claimed:
                parents = (self._parents(document_of(one).metadata) for one in results)
                new = claimed.intersection(frozenset[str]().union(*parents)) - answered
                answered |= new
                wholes |= (yield from self._whole_of_held(new)) if new else new
            if search.enough(len(results), map(shows, results)):
                return Found([results[row] for row in search.rows], search.hidden)

    def _whole_of_held(self, claimed: frozenset[str]) -> Steps[frozenset[str]]:
        """Return the parents that hold the text of an entry which claims to be a part of them.

        A part's claim alone is not enough: its author could make the mask hide any parent.
        """
        if self._docstore is None:
            return claimed
        named = sorted(claimed)
        parents = yield asked(self._docstore, "mget", named)
        believed: frozenset[str] = yield own(self._believed, dict(zip(named, parents, strict=True)))
        return believed

    def _believed(self, parents: Mapping[str, Any]) -> frozenset[str]:
        parts = {
            entry_id: wholes.intersection(parents)
            for entry_id, wholes in list(self._wholes.items())
            if not wholes.isdisjoint(parents)
        }
        found = set[str]()
        for entry_id, wholes in parts.items():
            held = self._parts_under(entry_id)
            for whole in wholes - found:
                text = getattr(parents[whole], "page_content", None)
                if not isinstance(text, str):  # it may hold any text
                    found.add(whole)
                    continue
                beside = context_of(parents[whole].metadata, self._keys.prompt)
                letters = _letters(text), _letters(beside or "")
                if any(part.is_in(*letters) for part in held):
                    found.add(whole)
        return frozenset(found)

    def _parts_under(self, entry_id: str) -> list[_Part]:
        """Return the hidden revisions of an id, in the form in which parents are searched for them.

        An unreadable one becomes the empty text, which every parent holds. A text that was not
        judged because of its metadata says nothing about a parent.
        """
        revisions = self._held.get(entry_id, frozenset())
        known = self._parts.get((entry_id, revisions))
        if known is None:
            assert self._quarantine is not None  # noqa: S101 - parents are known since `know`
            try:
                found = self._quarantine.revisions_of(entry_id, revisions)
            except QuarantineError:  # its database is unreachable, and reads go on
                return [_Part("", ())]
            if not found:
                return [_Part("", ())]
            known = [_Part.of(one) for one in found if not unfit_metadata(one)]
            if len(self._parts) >= PAGE:
                self._parts.clear()
            self._parts[entry_id, revisions] = known
        return known


class _Part(NamedTuple):
    """A held text without spaces, and the texts beside it where only these are suspicious."""

    text: str
    beside: tuple[str, ...]

    @classmethod
    def of(cls, held: HeldEntry) -> Self:
        """Return the form of a held entry in which parents are searched for it."""
        only = bool(held.findings) and all(one.only_beside for one in held.findings)
        beside = (held.entry.context or "").split("\n\n") if only else ()
        return cls(_letters(held.entry.text), tuple(map(_letters, beside)))

    def is_in(self, text: str, beside: str) -> bool:
        """Return whether a parent, by its text and its metadata, holds this part."""
        return self.text in text and all(one in text or one in beside for one in self.beside)


def _letters(text: str) -> str:
    """Return a text without spaces, since splitters change these."""
    return "".join(text.split())


def document_of(result: Any) -> Document:
    """Return the document of a result, which may be a tuple of one and its score."""
    document: Document = result[0] if isinstance(result, tuple) else result
    return document
