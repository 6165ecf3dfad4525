"""Origin of an agent's notes: the least of all texts that it has read. Needs `langchain` 1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage

from ragshield_core.origin import Origin, OriginKey
from ragshield_core.store.keys import expect
from ragshield_langchain.memory import GuardedStore

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain.agents.middleware.types import AgentState, PrivateStateAttr
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command
except ImportError as error:  # pragma: no cover - an extra
    _MISSING = f"{error.name} is not installed; pip install 'ragshield[agents]'."
    raise ImportError(_MISSING, name=error.name) from error


class _State(AgentState[Any]):
    """The state of an agent, and names of the keys of all that it has read; "" without a proof."""

    ragshield_read: NotRequired[Annotated[list[str], PrivateStateAttr]]


class MemoryOriginMiddleware(AgentMiddleware[_State, Any, Any]):
    """Agent middleware that stamps what tools write into memory.

    A memory gets the least tier of all that the agent has read in its thread: messages of the user
    and results of tools. So a note that the agent makes from a web page has no proof, and
    replaces no memory of a higher tier. Messages that are trimmed or summarized later
    still count.

    Key init args:
        store: GuardedStore
            The memory that the agent was compiled with.
        key: OriginKey
            The key of the agent.
        user: str | None
            Name of the key that stands for human messages, in ``guard.origins``. Default: messages
            of the user have no proof.
        tools: Mapping[str, str] | None
            Name of the key that stands for the results of a tool, by the tool's name. Results of
            all other tools have no proof. Default: of all tools. A tool that searches the memory
            may be named if the store's ``least_tier`` is that of the key.

    Instantiate:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from ragshield_core import Guard, Quarantine
        >>> from ragshield_core.detectors import InstructionDetector
        >>> from ragshield_core.origin import OriginKey, Origins, Voucher
        >>> from ragshield_langchain import GuardedStore
        >>> guard = Guard([InstructionDetector()], quarantine=Quarantine("sqlite://"))
        >>> secrets = {"user": b"the user's secret", "agent": b"the agent's secret"}
        >>> guard.origins = Origins(
        ...     {name: Voucher(tier="trusted", secrets=(one,)) for name, one in secrets.items()}
        ... )
        >>> store = GuardedStore(InMemoryStore(), guard=guard)
        >>> key = OriginKey("agent", secret=secrets["agent"])
        >>> middleware = MemoryOriginMiddleware(store, key, user="user")

    Raises
    ------
    TypeError
        If ``store`` is no :class:`GuardedStore`.
    """

    state_schema = _State

    def __init__(
        self,
        store: GuardedStore,
        key: OriginKey,
        *,
        user: str | None = None,
        tools: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        expect("store", store, GuardedStore, "the agent's memory")
        self._store, self._key, self._user, self._tools = store, key, user, dict(tools or {})

    def before_model(self, state: _State, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002
        """Note the keys of all messages that the model is about to read."""
        known = state.get("ragshield_read", [])
        read = self._read(state)
        return {"ragshield_read": read} if read != known else None

    async def abefore_model(self, state: _State, runtime: Any) -> dict[str, Any] | None:
        """Do as :meth:`before_model` does."""
        return self.before_model(state, runtime)

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run the tool, and stamp all that it puts into the memory."""
        with self._store.written_by(self._key, derived_from=self._inputs(request)):
            return handler(request)

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Do as :meth:`wrap_tool_call` does, without blocking the event loop."""
        with self._store.written_by(self._key, derived_from=self._inputs(request)):
            return await handler(request)

    def _inputs(self, request: ToolCallRequest) -> list[Origin]:
        """Return an origin for each key of the texts that the agent has read."""
        return [Origin(key=name or None) for name in self._read(request.state)]

    def _read(self, state: Mapping[str, Any]) -> list[str]:
        """Return the names of keys that stand for all that was read in a thread, in order."""
        messages: Iterable[AnyMessage] = state.get("messages", ())
        named = {name for one in messages if (name := self._name(one)) is not None}
        return sorted(named.union(state.get("ragshield_read", ())))

    def _name(self, message: AnyMessage) -> str | None:
        """Return the name of a message's key, "" without proof; None for a message that adds none.

        The model's own messages come from those before, and the system's from the developer.
        """
        if isinstance(message, ToolMessage):
            return self._tools.get(message.name or "", "")
        if isinstance(message, HumanMessage):
            # Middleware that summarizes a thread writes messages in the name of the user.
            made = "lc_source" in message.additional_kwargs
            return "" if made or self._user is None else self._user
        return None
