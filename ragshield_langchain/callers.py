"""What a store is not told about a call: who makes it, and what that one does besides.

``langchain_core.indexing.index`` hands a store documents, ignores what became of them, records all
of them as indexed, and deletes what they were to replace. Retrievers of whole documents write and
search parts, and return the documents, which no store has seen.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import NamedTuple

from langchain_core.indexing import aindex, index

from ragshield_langchain.inner.base import comes_from

# LangChain's functions, and what takes their place.
INDEXING = {
    inspect.unwrap(index).__code__: "guarded_index",
    inspect.unwrap(aindex).__code__: "aguarded_index",
}
# What it calls to write and to delete; its sources, which it calls as well, may do what they like.
WRITING = frozenset({"add_documents", "aadd_documents", "upsert", "aupsert", "_delete", "_adelete"})

# Methods of retrievers from which a store is searched and written.
OF_RETRIEVERS = frozenset(
    {"_get_relevant_documents", "_aget_relevant_documents", "add_documents", "aadd_documents"}
)
# The base of ParentDocumentRetriever as well; where LangChain 1 has it, and where it was before.
OF_PARENTS = ("langchain_classic.retrievers.multi_vector", "langchain.retrievers.multi_vector")


class ParentRetriever(NamedTuple):
    """A retriever that finds parts, and returns the documents that they were cut from."""

    name: str
    id_key: str  # of the metadata of parts: the document's id
    judged: bool  # whether a GuardedRetriever judges what it returns


class GoBetween:
    """Stands between LangChain's indexing and a guarded store, and knows what became of a write."""


def refuse_plain_indexing() -> None:
    """Refuse a write, or a deletion, of LangChain's own indexing.

    Raises
    ------
    TypeError
        If one is under way, and nobody stands between; says what to use.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing else names the caller
    below = ""
    while frame is not None:
        if frame.f_code in INDEXING and below in WRITING:
            if isinstance(frame.f_locals.get("vector_store"), GoBetween):
                return
            msg = (
                f"langchain_core.indexing.{frame.f_code.co_name} over a guarded store records held "
                "documents as indexed, skips them for ever after, and deletes the good versions "
                f"that they were to replace; use ragshield_langchain.{INDEXING[frame.f_code]}("
                "docs_source, record_manager, store, ...), which takes the same arguments and the "
                "same records. The store was not changed by this call."
            )
            raise TypeError(msg)
        below = frame.f_code.co_name
        frame = frame.f_back


def parent_retriever() -> ParentRetriever | None:
    """Return the retriever of whole documents that is writing or searching, if one is."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    found: ParentRetriever | None = None
    while frame is not None:
        if frame.f_code.co_name in OF_RETRIEVERS:
            caller = frame.f_locals.get("self")
            kind = type(caller)
            if comes_from(kind, "ragshield_langchain.retrieval", "GuardedRetriever"):
                return found and found._replace(judged=True)
            if any(comes_from(kind, module, "MultiVectorRetriever") for module in OF_PARENTS):
                found = ParentRetriever(kind.__name__, str(caller.id_key), judged=False)  # type: ignore[union-attr]
        frame = frame.f_back
    return found
