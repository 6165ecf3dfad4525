"""What a store is not told about a write: that it is a step of LangChain's indexing.

``langchain_core.indexing.index`` hands a store documents, ignores what became of them, records all
of them as indexed, and deletes what they were to replace.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType

from langchain_core.indexing import aindex, index

# LangChain's functions, and what takes their place.
INDEXING = {
    inspect.unwrap(index).__code__: "guarded_index",
    inspect.unwrap(aindex).__code__: "aguarded_index",
}
# What it calls to write and to delete; its sources, which it calls as well, may do what they like.
WRITING = frozenset({"add_documents", "aadd_documents", "upsert", "aupsert", "_delete", "_adelete"})


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
