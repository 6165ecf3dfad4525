"""The contract: what a guard needs of a store, and how it is read while it is written."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore
from numpy.typing import NDArray

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.neighbors.stored import VectorTable
from ragshield_core.store.steps import Step, Steps, asked

T = TypeVar("T")

# In the thread that works for a caller on an event loop, that loop: stores whose connections live
# on it do their part there.
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


def off_loop(work: Callable[[], Any]) -> Step:
    """Return work as a step that is done by :func:`in_thread` for a caller on an event loop."""
    return Step(work, partial(in_thread, work))


class Stored(NamedTuple):
    """Documents that are in the store, with their vectors in the same order."""

    documents: list[Document]
    vectors: NDArray[np.float32]  # (n_documents, dim)


class Gate:
    """Lets reads in together and writes alone; a waiting write goes before later reads.

    For stores that fail, or return half a write, when they are read while they change. A thread
    that is inside may come in again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reading = 0
        self._writing = False
        self._waiting = 0
        self._inside = threading.local()

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """Come in with other reads, or alone to write; not to write from within a read."""
        if getattr(self._inside, "yes", False):
            yield
            return
        with self._changed:
            self._waiting += alone
            try:
                self._changed.wait_for(
                    lambda: not (self._writing or (self._reading if alone else self._waiting))
                )
            finally:
                self._waiting -= alone
            self._writing = alone
            self._reading += not alone
        self._inside.yes = True
        try:
            yield
        finally:
            self._inside.yes = False
            with self._changed:
                self._writing = False
                self._reading -= not alone
                self._changed.notify_all()


class InnerStore(ABC):
    """Access to one kind of vector store, below LangChain's interface.

    Attributes
    ----------
    of
        Module and name of the class of stores, which need not be imported for it.
    gated
        Whether a read in the middle of a write can fail, so that they take turns.
    searches
        Methods of this kind of store, beyond LangChain's interface, whose first argument is what to
        search for and that return documents, or tuples that begin with one. A guarded store offers
        them, without the held documents.
    refused
        Methods that would write around the guard, or return what is not judged, and what to do
        instead.
    """

    of: ClassVar[tuple[str, str]] = ("", "")
    gated: ClassVar[bool] = False
    searches: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[Mapping[str, str]] = {}

    def __init__(self, store: Any) -> None:
        self._store = store
        self._gate = Gate() if self.gated else None

    @classmethod
    def handles(cls, store_cls: type[VectorStore]) -> bool:
        """Return whether this class knows stores of that class, which inherit from :attr:`of`."""
        return any((c.__module__, c.__name__) == cls.of for c in store_cls.__mro__)

    @classmethod
    def create(
        cls,
        store_cls: type[VectorStore],
        embedding: Embeddings,
        dim: int,  # noqa: ARG003 - for stores that have to be told
        options: dict[str, Any],
    ) -> VectorStore:
        """Return a new, empty store of that class for vectors of that dimension."""
        return store_cls(embedding, **options)  # type: ignore[call-arg]

    @property
    def folder(self) -> str | None:
        """Where it keeps its data, if that is for one process."""
        return None

    @property
    def name(self) -> str:
        """What identifies the store in every process that uses it; empty where nothing does."""
        return ""

    @abstractmethod
    def read(self, ids: Sequence[str]) -> Stored:
        """Return what is stored under the ids; missing ones are ignored."""

    @abstractmethod
    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries under their ids, replacing older revisions; all of them or none.

        Parameters
        ----------
        batch
            At least one entry; ``batch.vectors`` are to be stored.
        metadatas
            To be stored, one per entry; they may say more than ``batch.metadatas``.
        """

    def unfit(
        self,
        batch: Batch,  # noqa: ARG002 - for those that look at it
        metadatas: Sequence[Mapping[str, Any]],  # noqa: ARG002
    ) -> dict[int, str]:
        """Return the rows of entries that this kind of store cannot keep, each with the reason.

        They are held before anything is written; ``write`` may fail on them. The reason names keys
        and types, never values.
        """
        return {}

    def check(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> None:
        """Refuse what this kind of store cannot keep.

        Raises
        ------
        InvalidBatchError
            Names the first entry.
        """
        for row, reason in self.unfit(batch, metadatas).items():
            msg = f"entry {batch.ids[row]!r} cannot be kept, and nothing was written: {reason}"
            raise InvalidBatchError(msg)

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete what is stored under the ids; missing ones are ignored.

        Raises
        ------
        NotImplementedError
            If this store cannot delete; a guarded store then hides what it holds.
        """

    def ids(self) -> list[str]:
        """Return the ids of all that is stored, if possible without reading it.

        Needed for an audit of the whole store, and to compare it with its guard.

        Raises
        ------
        NotImplementedError
            If this kind of store cannot name them.
        """
        msg = (
            f"{type(self).__name__} does not say which ids its store holds, so the store cannot be "
            "scanned or reconciled; define ids() in it."
        )
        raise NotImplementedError(msg)

    def size(self) -> int:
        """Return how many entries are stored; may raise where nobody can be asked."""
        return len(self.ids())

    def ready(self) -> None:  # noqa: B027 - most stores can be written from anywhere
        """Check that the store can be written from here.

        Raises
        ------
        RuntimeError
            If it can be used from an event loop only, and there is none.
        """

    def matching(self, **kwargs: Any) -> list[str] | None:  # noqa: ARG002 - for those that can
        """Return the ids that such arguments of the store's ``delete`` would delete.

        ``None`` where the store knows no deletion without ids.
        """
        return None

    @property
    def table(self) -> VectorTable | None:
        """The vectors, searched by the store for detectors; ``None`` where it cannot be asked."""
        return None

    def near(self, vector: list[float], k: int) -> list[Document]:
        """Return the k documents nearest to a vector, or none where the store cannot be asked."""
        try:
            found = self.call("similarity_search_by_vector", vector, k=k)
        except NotImplementedError:
            return []
        return [self.outward(document) for document in found]

    def get(self, ids: Sequence[str]) -> Steps[list[Document]]:
        """Return documents as the caller knows them; missing ones are ignored."""
        if not ids:
            return []
        found = yield asked(self, "call", "get_by_ids", self._inward(ids))
        return [self.outward(document) for document in found]

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a reading method of the store returns."""
        with self.reading():
            return getattr(self._store, name)(*args, **kwargs)

    async def acall(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the async twin of a reading method returns."""
        if self._gate is None:
            return await getattr(self._store, f"a{name}")(*args, **kwargs)
        # Such a store's own twin does the same; here, it takes turns with writes.
        return await run_in_executor(None, self.call, name, *args, **kwargs)

    def reading(self) -> AbstractContextManager[None]:
        """Hold writes off while the store is read."""
        return nullcontext() if self._gate is None else self._gate.entered(alone=False)

    def writing(self) -> AbstractContextManager[None]:
        """Hold reads off while the store is written."""
        return nullcontext() if self._gate is None else self._gate.entered(alone=True)

    def outward(self, document: Document) -> Document:
        """Return a document of the store as the caller wrote it."""
        return document

    def _inward(self, ids: Sequence[str]) -> list[Any]:
        """Return ids as the store knows them."""
        return list(ids)


def chunks(n: int, size: int) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``n`` items."""
    return (slice(start, start + size) for start in range(0, n, size))
