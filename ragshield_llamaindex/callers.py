"""What a store is not told about a call: who makes it, and as part of what.

A plain pipeline or index hands a store some nodes and keeps them elsewhere as well; an update by an
index is a deletion and an insertion that know nothing of each other.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

from llama_index.core import VectorStoreIndex
from llama_index.core.callbacks.base import global_stack_trace_ids
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode, ImageNode, IndexNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from ragshield_core.errors import HeldTextElsewhereWarning
from ragshield_core.findings import printable

# As VectorStoreIndex names them; refreshes are made of them.
UPDATES = frozenset({"update_ref_doc", "aupdate_ref_doc"})
# Methods from which a pipeline, and an index, call their store.
OF_PIPELINE = frozenset({"run", "arun", "_handle_upserts", "_ahandle_upserts"})
OF_INDEX = frozenset({"_add_nodes_to_index", "_async_add_nodes_to_index"})


def in_update() -> bool:
    """Return whether an index is replacing a document, rather than deleting or inserting one."""
    return not UPDATES.isdisjoint(global_stack_trace_ids.get())


def caller_of(store: BasePydanticVectorStore) -> IngestionPipeline | VectorStoreIndex | None:
    """Return the pipeline or index that is calling its store, if one is.

    Raises
    ------
    TypeError
        If it is a pipeline with a document store as well; says what to use.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing else names the caller
    while frame is not None:
        name = frame.f_code.co_name
        caller = frame.f_locals.get("self") if name in OF_PIPELINE or name in OF_INDEX else None
        if isinstance(caller, VectorStoreIndex) and caller.vector_store is store:
            return caller
        if isinstance(caller, IngestionPipeline) and caller.vector_store is store:
            _refuse_docstore(caller)
            return caller
        frame = frame.f_back
    return None


def warn_of_held(caller: Any, held: Sequence[BaseNode]) -> None:
    """Say where else a caller of :func:`caller_of` keeps nodes that its store holds.

    Parameters
    ----------
    caller
        As returned there, before the write.
    held
        Of what it wrote, the nodes that are held.
    """
    if isinstance(caller, VectorStoreIndex):
        if not caller._store_nodes_override:  # noqa: SLF001 - there is no public way to it
            held = [node for node in held if isinstance(node, ImageNode | IndexNode)]
        where = f"the docstore of a {type(caller).__name__} keeps"
        instead = "use a GuardedVectorStoreIndex over store.inner, whose docstore holds none"
    elif caller is not None:
        where = f"what {type(caller).__name__}.run() returns contains"
        instead = "do not pass it on, or use GuardedIngestionPipeline, which returns what went in"
    if caller is not None and held:
        msg = (
            f"{where} {len(held)} nodes that its vector store holds in quarantine "
            f"({printable(held[0].node_id)}, ...); {instead}."
        )
        warnings.warn(msg, HeldTextElsewhereWarning, stacklevel=4)


def refuse_document_store() -> None:
    """Refuse to be a step of a plain pipeline that has a document store.

    Raises
    ------
    TypeError
        If one is calling; says what to use.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - nothing else names the caller
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_name in OF_PIPELINE else None
        if isinstance(caller, IngestionPipeline) and caller.docstore is not None:
            msg = (
                f"a {type(caller).__name__} with a docstore writes the texts of held nodes into "
                "that, records their documents as done, and deletes the good version of a document "
                "before any step looks at the new one; expected GuardedIngestionPipeline("
                "transformations, vector_store=..., docstore=...), with this PoisonGuard among the "
                "transformations, or no docstore. Run it over the documents of this call: those "
                "that are known have left the vector store already."
            )
            raise TypeError(msg)
        frame = frame.f_back


def _refuse_docstore(pipeline: IngestionPipeline) -> None:
    if pipeline.docstore is not None:
        msg = (
            f"a {type(pipeline).__name__} with a docstore writes the texts of held nodes into "
            "that, records their documents as done, and deletes the good version of a document "
            "before it looks at the new one; expected GuardedIngestionPipeline(transformations, "
            "guard=store.guard, vector_store=store, docstore=...), or no docstore. The vector "
            "store was not changed."
        )
        raise TypeError(msg)
