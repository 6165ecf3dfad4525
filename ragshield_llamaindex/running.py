"""Which pipelines and engines are running, as LlamaIndex's instrumentation tells it.

A store is not told which pipeline writes into it, nor a step or a postprocessor which others there
are. The span of a call names its object.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.ingestion import IngestionPipeline
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.span.base import BaseSpan
from llama_index_instrumentation.span_handlers import BaseSpanHandler

T = TypeVar("T")

# Fields of steps and postprocessors that have a language model read nodes: metadata extractors,
# parsers of tables, rerankers.
READ_BY_MODELS = ("llm", "program")

WATCHED = (IngestionPipeline, BaseQueryEngine, BaseChatEngine)
_RUNNING: ContextVar[tuple[object, ...]] = ContextVar("ragshield_running", default=())


class _Watcher(BaseSpanHandler[BaseSpan]):
    """Notes pipelines and engines while they run, each in the context of its own call."""

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
    """Begin to note what runs; once for all."""
    root = get_dispatcher()
    if not any(handler is _WATCHER for handler in root.span_handlers):
        root.add_span_handler(_WATCHER)


def running(kind: type[T]) -> list[T]:
    """Return the objects of a kind in whose calls this is, innermost first."""
    return [one for one in reversed(_RUNNING.get()) if isinstance(one, kind)]


def read_by_model(step: object) -> bool:
    """Return whether a step or postprocessor has a language model read nodes."""
    return any(getattr(step, name, None) is not None for name in READ_BY_MODELS)


def expect_no_docstore(pipeline: IngestionPipeline, arguments: str) -> None:
    """Refuse a plain pipeline that tells a document store of nodes which are held.

    Raises
    ------
    TypeError
        If it has one; says with which arguments a guarded one does the same.
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
