"""Access to the store inside: seven methods, and what else differs by kind of store."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from typing import Any, ClassVar, Generic, TypeVar

from ragshield_core.neighbors.stored import VectorTable

Item = TypeVar("Item")
T = TypeVar("T")

# In a thread that works for a caller on an event loop, that loop: stores whose connections live on
# it do their part there.
CALLERS_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar(
    "ragshield_callers_loop", default=None
)


async def in_thread(work: Callable[[], T], executor: Executor | None = None) -> T:
    """Run work in a thread, from which the store inside may come back to this loop."""
    loop = asyncio.get_running_loop()

    def there() -> T:
        CALLERS_LOOP.set(loop)  # in a copy of the context, which ends with this call
        return work()

    return await loop.run_in_executor(executor, copy_context().run, there)


def on_loop(loop: asyncio.AbstractEventLoop, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Have a coroutine done on a loop that runs in another thread."""
    return asyncio.run_coroutine_threadsafe(start(), loop).result()


class InnerStore(ABC, Generic[Item]):
    """Access to one kind of vector store, below the framework's interface.

    An access has seven methods: ``read``, ``write``, ``delete``, ``ids``, ``count``, ``near`` and
    ``unfit``. They are synchronous; callers on an event loop run them in a thread.

    Attributes
    ----------
    of
        Module and name of the class of stores, which need not be imported for it.
    inner
        The store inside.
    """

    of: ClassVar[tuple[str, str]] = ("", "")

    def __init__(self, store: Any) -> None:
        self.inner = self._store = store

    @classmethod
    def handles(cls, store_cls: type) -> bool:
        """Return whether this class knows stores of that class, which inherit from :attr:`of`."""
        return any((c.__module__, c.__name__) == cls.of for c in store_cls.__mro__)

    @property
    def name(self) -> str:
        """What identifies the store in every process that uses it; empty where nothing does."""
        return ""

    @property
    def folder(self) -> str | None:
        """Where it keeps its data, if that is for one process."""
        return None

    @property
    def table(self) -> VectorTable | None:
        """The vectors, searched by the store for detectors; ``None`` where it cannot be asked."""
        return None

    @abstractmethod
    def read(self, ids: Sequence[str]) -> Any:
        """Return what is stored under the ids, with vectors; missing ones are ignored."""

    @abstractmethod
    def write(self, *what: Any, **options: Any) -> None:
        """Store entries under their ids."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete what is stored under the ids; missing ones are ignored.

        Raises
        ------
        NotImplementedError
            If this store cannot delete; a guarded store then hides what it holds.
        """

    @abstractmethod
    def ids(self) -> list[str]:
        """Return the ids of all that is stored, if possible without reading it.

        Raises
        ------
        NotImplementedError
            If this kind of store cannot name them; it is then neither scanned nor reconciled.
        """

    def count(self) -> int:
        """Return how many entries are stored; may raise where nobody can be asked."""
        return len(self.ids())

    @abstractmethod
    def near(self, vector: list[float], k: int) -> Sequence[Item]:
        """Return the k nearest to a vector, or none where the store cannot be asked."""

    def unfit(self, *what: Any) -> dict[int, str]:  # noqa: ARG002 - for those that look at it
        """Return the rows of entries that this kind of store cannot keep, each with the reason.

        They are held before anything is written; ``write`` may fail on them. The reason names keys
        and types, never values.
        """
        return {}


def chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Yield parts of at most ``size`` items."""
    return (list(items[start : start + size]) for start in range(0, len(items), size))
