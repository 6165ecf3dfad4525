"""Agents: what retriever tools return is screened before the model sees it. Needs `langchain` 1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from langchain_core.prompts import BasePromptTemplate, PromptTemplate, format_document

from ragshield_langchain.retrieval import PoisonFilter

try:
    from langchain.agents.middleware import AgentMiddleware
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command
except ImportError as error:  # pragma: no cover - an extra
    _MISSING = f"{error.name} is not installed; pip install 'ragshield[agents]'."
    raise ImportError(_MISSING, name=error.name) from error

# Arguments of a tool that hold what was asked for, if nothing else is said.
QUERY_ARGUMENTS = ("query", "question", "input", "search_query", "q")

# What the model is told where nothing is left: an empty message some models refuse.
NOTHING_LEFT = "No relevant documents were found."


class PoisonGuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Agent middleware that drops suspicious documents from what retriever tools return.

    A tool with ``response_format="content_and_artifact"`` hands documents on twice, as text in the
    content and as they are in the artifact: both are filtered. Other messages pass unchanged.

    Setup:
        Install ``ragshield[agents]``.

    Key init args:
        poison_filter: PoisonFilter | None
            Default: a new one with published rules and without vectors. Give it ``store=`` to look
            for groups too, and ``quarantine=`` to keep held documents out.
        text_tools: Collection[str]
            Names of retriever tools that return text only (``response_format="content"``, the
            default of ``create_retriever_tool``). Their text is cut at ``document_separator`` and
            the parts are judged; a part has no id, so that the quarantine cannot be asked, and a
            document with blank lines in it is judged in pieces. Prefer artifacts.
        document_prompt, document_separator:
            As given to ``create_retriever_tool``; the content is made anew with them where
            documents were dropped.

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
    """

    def __init__(
        self,
        poison_filter: PoisonFilter | None = None,
        *,
        text_tools: Collection[str] = (),
        document_prompt: BasePromptTemplate[str] | None = None,
        document_separator: str = "\n\n",
    ) -> None:
        super().__init__()
        if isinstance(text_tools, str):
            msg = f"text_tools is the str {text_tools!r}, expected a list of names."
            raise TypeError(msg)
        self.poison_filter = PoisonFilter() if poison_filter is None else poison_filter
        self._text_tools = frozenset(text_tools)
        self._prompt = document_prompt or PromptTemplate.from_template("{page_content}")
        self._separator = document_separator

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run the tool, and return its message without suspicious documents."""
        result = handler(request)
        query = _query(request)
        kept = {
            number: self.poison_filter.compress_documents(documents, query)
            for number, documents in enumerate(self._found(result))
        }
        return self._replaced(result, kept)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Do as :meth:`wrap_tool_call` does, with async methods."""
        result = await handler(request)
        query = _query(request)
        kept = {
            number: await self.poison_filter.acompress_documents(documents, query)
            for number, documents in enumerate(self._found(result))
        }
        return self._replaced(result, kept)

    def _found(self, result: ToolMessage | Command[Any]) -> list[list[Document]]:
        """Return the documents of each message, in the order of the messages."""
        return [self._documents(message) for message in _messages(result)]

    def _documents(self, message: ToolMessage) -> list[Document]:
        documents = _in_artifact(message.artifact)
        if not documents and message.name in self._text_tools:
            documents = [Document(page_content=part) for part in self._parts(message)]
        return documents

    def _parts(self, message: ToolMessage) -> list[str]:
        return [part for part in message.text.split(self._separator) if part.strip()]

    def _replaced(
        self, result: ToolMessage | Command[Any], kept: Mapping[int, Sequence[Document]]
    ) -> ToolMessage | Command[Any]:
        """Return the result with the documents that were kept, or itself if all were."""
        messages = _messages(result)
        filtered = [self._filtered(message, kept[n]) for n, message in enumerate(messages)]
        if all(new is old for new, old in zip(filtered, messages, strict=True)):
            return result
        if isinstance(result, ToolMessage):
            return filtered[0]
        following = iter(filtered)
        update = dict(result.update or {})
        update["messages"] = [
            next(following) if isinstance(message, ToolMessage) else message
            for message in update["messages"]
        ]
        return Command(graph=result.graph, update=update, resume=result.resume, goto=result.goto)

    def _filtered(self, message: ToolMessage, kept: Sequence[Document]) -> ToolMessage:
        documents = _in_artifact(message.artifact)
        if documents:
            if len(kept) == len(documents):
                return message
            # From what is left alone: nothing of a dropped document can stay behind.
            content = self._separator.join(format_document(one, self._prompt) for one in kept)
            artifact = _without(message.artifact, {id(document) for document in kept})
            update = {"content": content or NOTHING_LEFT, "artifact": artifact}
            return message.model_copy(update=update)
        if message.name not in self._text_tools or len(kept) == len(self._parts(message)):
            return message
        content = self._separator.join(document.page_content for document in kept)
        return message.model_copy(update={"content": content or NOTHING_LEFT})


def _query(request: ToolCallRequest) -> str:
    """Return what was asked for: the argument of a usual name, else the longest text."""
    arguments = request.tool_call["args"]
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    for name in QUERY_ARGUMENTS:
        if name in texts:
            return texts[name]
    return max(texts.values(), key=len, default="")


def _messages(result: ToolMessage | Command[Any]) -> list[ToolMessage]:
    """Return the tool messages of a result."""
    if isinstance(result, ToolMessage):
        return [result]
    update = result.update if isinstance(result, Command) else None
    messages = update.get("messages") if isinstance(update, Mapping) else None
    if not isinstance(messages, list | tuple):
        return []
    return [message for message in messages if isinstance(message, ToolMessage)]


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
    """Return an artifact with those documents only, in the shape that it had."""
    if isinstance(artifact, Mapping):
        return {
            key: _without(value, kept)
            for key, value in artifact.items()
            if not isinstance(value, Document) or id(value) in kept
        }
    if isinstance(artifact, list | tuple):
        # A document with its score goes with the document.
        parts = [
            _without(part, kept)
            for part in artifact
            if all(id(document) in kept for document in _alone(part))
        ]
        return type(artifact)(parts)
    return artifact if not isinstance(artifact, Document) or id(artifact) in kept else None


def _alone(part: Any) -> list[Document]:
    """Return the document of a part that is one, or a tuple that begins with one."""
    if isinstance(part, tuple) and part and isinstance(part[0], Document):
        part = part[0]
    return [part] if isinstance(part, Document) else []
