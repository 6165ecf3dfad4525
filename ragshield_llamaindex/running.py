"""A record of running pipelines and engines, from LlamaIndex's instrumentation.

A store does not know which pipeline writes into it, and a step or postprocessor does not know its
neighbours. The span of a call names the called object.
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

# Fields of steps and postprocessors that let a language model read nodes: metadata extractors,
# table parsers, rerankers.
READ_BY_MODELS = ("llm", "program")

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


def read_by_model(step: object) -> bool:
    """Return whether a step or postprocessor lets a language model read nodes."""
    return any(getattr(step, name, None) is not None for name in READ_BY_MODELS)


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
