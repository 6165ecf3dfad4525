"""Screening of tool results in agents, before the model sees them. Needs `langchain` 1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.documents import Document
from langchain_core.messages import ToolMessage, convert_to_messages
from langchain_core.prompts import BasePromptTemplate, PromptTemplate, format_document

from ragshield_core.store.parts import good_parts
from ragshield_core.store.steps import Step, Steps, adone, asked, done
from ragshield_langchain.retrieval import PoisonFilter

try:
    from langchain.agents.middleware import AgentMiddleware
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command
except ImportError as error:  # pragma: no cover - an extra
    _MISSING = f"{error.name} is not installed; pip install 'ragshield[agents]'."
    raise ImportError(_MISSING, name=error.name) from error

# Names of tool arguments that usually hold the query.
QUERY_ARGUMENTS = ("query", "question", "input", "search_query", "q")

# Message to the model if no document is left: some models refuse an empty message.
NOTHING_LEFT = "No relevant documents were found."
# Message for tools that return text: they may have acted, so the model must know that they ran.
WITHHELD = "The tool has run, but its result was withheld because it looks suspicious."

T = TypeVar("T")


class PoisonGuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Agent middleware that drops suspicious content from tool results.

    A tool with ``response_format="content_and_artifact"`` returns documents twice, as text in the
    content and as objects in the artifact: both are filtered. Other text, from retriever tools with
    the default ``response_format="content"`` and from all other tools, is cut at
    ``document_separator``, and suspicious parts are withheld. Then the rest is judged as one text,
    and parts that are suspicious only together are withheld as well. A part has no id, so the
    quarantine cannot be asked about it: prefer artifacts.

    Not guarded: tools that the model's provider runs itself, messages other than tool messages in
    the ``Command`` of a tool, and other state that it sets.

    Setup:
        Install ``ragshield[agents]``.

    Key init args:
        poison_filter: PoisonFilter | None
            Default: a new one with default thresholds and without vectors. Give it ``store=`` to
            look for groups too, and ``quarantine=`` to keep held documents out.
        exempt_tools: Collection[str]
            Names of tools whose results are passed on unchanged, e.g. tools that return the user's
            own text. A name without a tool has no effect.
        document_prompt, document_separator:
            As given to ``create_retriever_tool``; they rebuild the content if documents were
            dropped.

    Instantiate:
        >>> middleware = PoisonGuardMiddleware(PoisonFilter())

    Use:
        >>> from langchain.agents import create_agent
        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> from langchain_core.language_models import GenericFakeChatModel
        >>> from langchain_core.tools import create_retriever_tool
        >>> from langchain_core.vectorstores import InMemoryVectorStore
        >>> retriever = InMemoryVectorStore(DeterministicFakeEmbedding(size=8)).as_retriever()
        >>> tool = create_retriever_tool(
        ...     retriever, "search", "Search the manual.", response_format="content_and_artifact"
        ... )
        >>> model = GenericFakeChatModel(messages=iter([]))  # yours
        >>> agent = create_agent(model, [tool], middleware=[middleware])

    Async:
        ``await agent.ainvoke(...)`` uses the filter's async methods.

    Raises
    ------
    TypeError
        If ``poison_filter`` is of another type, e.g. a store, or ``exempt_tools`` is a str.
    """

    def __init__(
        self,
        poison_filter: PoisonFilter | None = None,
        *,
        exempt_tools: Collection[str] = (),
        document_prompt: BasePromptTemplate[str] | None = None,
        document_separator: str = "\n\n",
    ) -> None:
        super().__init__()
        if poison_filter is not None and not isinstance(poison_filter, PoisonFilter):
            msg = (
                f"poison_filter is of type {type(poison_filter).__name__}, expected a PoisonFilter;"
                " of a store, make one: PoisonFilter(store=store)."
            )
            raise TypeError(msg)
        if isinstance(exempt_tools, str):
            msg = f"exempt_tools is the str {exempt_tools!r}, expected a list of names."
            raise TypeError(msg)
        if not document_separator:
            msg = "document_separator is empty, expected what stands between two documents."
            raise ValueError(msg)
        self.poison_filter = PoisonFilter() if poison_filter is None else poison_filter
        self._exempt = frozenset(exempt_tools)
        self._prompt = document_prompt or PromptTemplate.from_template("{page_content}")
        self._separator = document_separator

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run the tool, and return its message without suspicious content."""
        return done(self._handed_on(handler(request), request))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Do as :meth:`wrap_tool_call` does, without blocking the event loop."""
        return await adone(self._handed_on(await handler(request), request))

    def _handed_on(self, result: T, request: ToolCallRequest) -> Steps[T]:
        if request.tool_call["name"] in self._exempt:
            return result
        screened = []
        for message in _messages(result):
            screened.append((yield from self._screened(message, request)))  # noqa: PERF401
        return _replaced(result, screened)

    def _screened(self, message: ToolMessage, request: ToolCallRequest) -> Steps[ToolMessage]:
        """Judge the documents of a message, then its other text."""
        documents = _in_artifact(message.artifact)
        if documents:
            kept = yield self._judging(documents, _query(request))
            if len(kept) < len(documents):
                # Built from the kept documents alone: nothing of a dropped one can remain.
                content = self._separator.join(format_document(one, self._prompt) for one in kept)
                artifact = _without(message.artifact, {id(document) for document in kept})
                update = {"content": content or NOTHING_LEFT, "artifact": artifact}
                message = message.model_copy(update=update)
            documents = kept
        text = str(message.text)
        judged = self._separator.join(document.page_content for document in documents)
        if text in (judged, NOTHING_LEFT):
            return message
        query = _query(request, usual=True)

        def good(texts: list[str]) -> Steps[list[str]]:
            given = [Document(page_content=one) for one in texts]
            return [one.page_content for one in (yield self._judging(given, query))]

        left = yield from good_parts(text, self._separator, good)
        if left is None:
            return message
        return message.model_copy(update={"content": left or WITHHELD})

    def _judging(self, documents: list[Document], query: str) -> Step:
        return asked(self.poison_filter, "compress_documents", documents, query)


def _query(request: ToolCallRequest, *, usual: bool = False) -> str:
    """Return the query: the argument with a usual name, else the longest text.

    A tool that retrieves nothing may well repeat its longest argument. So with ``usual``, for text
    that may not be retrieved, only usual names count.
    """
    arguments = request.tool_call["args"]
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    for name in QUERY_ARGUMENTS:
        if name in texts:
            return texts[name]
    return "" if usual else max(texts.values(), key=len, default="")


def _messages(result: Any) -> list[ToolMessage]:
    """Return the tool messages of a result, in order."""
    if isinstance(result, ToolMessage):
        return [result]
    if isinstance(result, Command):
        return _messages(_update(result)[1])
    if isinstance(result, list | tuple):
        return [message for part in result for message in _messages(part)]
    return []


def _update(command: Command[Any]) -> tuple[str | None, Any]:
    """Return the key of a command's messages, if any, and the messages, converted from dicts."""
    update = command.update
    if isinstance(update, Mapping):
        key, found = "messages", update.get("messages", ())
    else:
        key, found = None, update
    if isinstance(found, list | tuple):
        found = convert_to_messages(found)
    return key, found


def _replaced(result: T, screened: Sequence[ToolMessage]) -> T:
    """Return a result with other tool messages, or itself if none of them was changed."""
    if all(new is old for new, old in zip(screened, _messages(result), strict=True)):
        return result
    replaced: T = _with(result, iter(screened))
    return replaced


def _with(result: Any, following: Iterator[ToolMessage]) -> Any:
    if isinstance(result, ToolMessage):
        return next(following)
    if isinstance(result, list | tuple):
        return [_with(part, following) for part in result]
    if not isinstance(result, Command) or not _messages(result):
        return result
    key, found = _update(result)
    messages = _with(found, following)
    update = messages if key is None else dict(result.update or {}) | {key: messages}
    return Command(graph=result.graph, update=update, resume=result.resume, goto=result.goto)


def _in_artifact(artifact: Any) -> list[Document]:
    """Return the documents of an artifact: alone, in lists, tuples and values of mappings."""
    if isinstance(artifact, Document):
        return [artifact]
    if isinstance(artifact, Mapping):
        artifact = list(artifact.values())
    if isinstance(artifact, list | tuple):
        return [document for part in artifact for document in _in_artifact(part)]
    return []


def _without(artifact: Any, kept: Collection[int]) -> Any:
    """Return an artifact with the kept documents only, in its original shape."""
    if isinstance(artifact, Mapping):
        return {
            key: _without(value, kept)
            for key, value in artifact.items()
            if not isinstance(value, Document) or id(value) in kept
        }
    if isinstance(artifact, list | tuple):
        # A tuple of a document and its score is dropped with the document.
        parts = [
            _without(part, kept)
            for part in artifact
            if all(id(document) in kept for document in _alone(part))
        ]
        return type(artifact)(parts)
    return artifact if not isinstance(artifact, Document) or id(artifact) in kept else None


def _alone(part: Any) -> list[Document]:
    """Return the document of a part: the part itself, or the first item of a tuple."""
    if isinstance(part, tuple) and part and isinstance(part[0], Document):
        part = part[0]
    return [part] if isinstance(part, Document) else []
