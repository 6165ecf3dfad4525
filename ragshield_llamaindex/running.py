"""A record of running pipelines and engines, from LlamaIndex's instrumentation.

A store does not know which pipeline writes into it, and a step or postprocessor does not know its
neighbours. The span of a call names the called object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.callbacks.base import global_stack_trace_ids
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.types import BasePydanticProgram
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.span.base import BaseSpan
from llama_index_instrumentation.span_handlers import BaseSpanHandler

T = TypeVar("T")

# Trace names of an index's updates. A refresh consists of updates, and an update of a deletion and
# an insertion that know nothing of each other.
UPDATES = frozenset({"update_ref_doc", "aupdate_ref_doc"})

WATCHED = (IngestionPipeline, BaseQueryEngine, BaseChatEngine)
_RUNNING: ContextVar[tuple[object, ...]] = ContextVar("ragshield_running", default=())


class _Watcher(BaseSpanHandler[BaseSpan]):
    """Records pipelines and engines while they run, each in the context of its own call."""

    def new_span(self, **call: Any) -> None:  # type: ignore[override]
        if isinstance(call["instance"], WATCHED):
            _RUNNING.set((*_RUNNING.get(), call["instance"]))

    def prepare_to_exit_span(self, **call: Any) -> None:  # type: ignore[override]
        running = _RUNNING.get()
        if running and running[-1] is call["instance"]:
            _RUNNING.set(running[:-1])

    prepare_to_drop_span = prepare_to_exit_span  # type: ignore[assignment]


_WATCHER = _Watcher()


def watch() -> None:
    """Begin to record running objects; only the first call has an effect."""
    root = get_dispatcher()
    if not any(handler is _WATCHER for handler in root.span_handlers):
        root.add_span_handler(_WATCHER)


def running(kind: type[T]) -> list[T]:
    """Return the objects of a kind whose calls are running here, innermost first."""
    return [one for one in reversed(_RUNNING.get()) if isinstance(one, kind)]


def updating() -> bool:
    """Return whether LlamaIndex's own update of a document is running here."""
    return not UPDATES.isdisjoint(global_stack_trace_ids.get())


def postprocessors_around() -> Iterator[tuple[object, list[Any]]]:
    """Yield the running engines that have postprocessors, with their lists, innermost first."""
    for engine in running(object):
        listed = getattr(engine, "_node_postprocessors", None)
        if isinstance(listed, list):
            yield engine, listed


def read_by_model(step: object) -> bool:
    """Return whether a step or postprocessor lets a language model read nodes.

    It has a model, or a program of one, under any name. One with an empty ``llm`` takes that of
    LlamaIndex's settings.
    """
    kept = getattr(step, "__dict__", {}) | (getattr(step, "__pydantic_private__", None) or {})
    models = (BaseLLM, BasePydanticProgram)
    return "llm" in kept or any(isinstance(one, models) for one in kept.values())


def expect_no_docstore(pipeline: IngestionPipeline, arguments: str) -> None:
    """Refuse a plain pipeline with a document store, which would record held nodes.

    Raises
    ------
    TypeError
        If it has one; names the arguments of an equivalent guarded pipeline.
    """
    if pipeline.docstore is not None:
        msg = (
            f"a {type(pipeline).__name__} with a docstore writes the texts of held nodes into "
            "that, records their documents as done, and deletes the good version of a document "
            f"before it looks at the new one; expected GuardedIngestionPipeline({arguments}, "
            "docstore=...), or no docstore. Run it over the documents of this call: those that "
            "are known may have left an unguarded vector store already."
        )
        raise TypeError(msg)


def unsettle(docstore: BaseDocumentStore, documents: Iterable[str | None]) -> None:
    """Make the next refresh or run process known documents again, in any version.

    The record has text and hash of a version that is no longer stored; without a hash, the next
    version would be inserted beside the stored one.
    """
    for document in dict.fromkeys(documents):
        if document is not None and docstore.get_document_hash(document) is not None:
            docstore.delete_document(document, raise_error=False)
            docstore.set_document_hash(document, f"to be processed again: {document}")
