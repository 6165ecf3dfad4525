"""What a store is not told about a call: who makes it, and as part of what.

A plain pipeline hands a store some nodes and keeps the rest to itself; an update by an index is a
deletion and an insertion that know nothing of each other.
"""

from __future__ import annotations

import sys
from types import FrameType

from llama_index.core.callbacks.base import global_stack_trace_ids
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.vector_stores.types import BasePydanticVectorStore

# As VectorStoreIndex names them; refreshes are made of them.
UPDATES = frozenset({"update_ref_doc", "aupdate_ref_doc"})
# Methods from which a pipeline calls its store.
WRITERS = frozenset({"run", "arun", "_handle_upserts", "_ahandle_upserts"})


def in_update() -> bool:
    """Return whether an index is replacing a document, rather than deleting or inserting one."""
    return not UPDATES.isdisjoint(global_stack_trace_ids.get())


def pipeline_of(store: BasePydanticVectorStore) -> IngestionPipeline | None:
    """Return the ingestion pipeline that is writing to its store, if it is one that calls.

    Raises
    ------
    TypeError
        If it has a document store as well; says what to use.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing else names the caller
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_name in WRITERS else None
        if isinstance(caller, IngestionPipeline) and caller.vector_store is store:
            break
        frame = frame.f_back
    else:
        return None
    if caller.docstore is not None:
        msg = (
            f"a {type(caller).__name__} with a docstore writes the texts of held nodes into that, "
            "records their documents as done, and deletes the good version of a document before "
            "it looks at the new one; expected GuardedIngestionPipeline(transformations, "
            "guard=store.guard, vector_store=store, docstore=...), or no docstore. The vector "
            "store was not changed."
        )
        raise TypeError(msg)
    return caller
