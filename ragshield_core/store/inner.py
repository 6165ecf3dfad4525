"""Access to the store inside: seven methods, and the check that a store's author runs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from ragshield_core.model.entries import Batch
from ragshield_core.neighbors.stored import VectorTable

Item = TypeVar("Item")
T = TypeVar("T")

# Entries read at a time when a store is adopted or audited.
PART = 1000

# The event loop of the caller that a thread works for: stores whose connections live on that loop
# run their coroutines there.
CALLERS_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar(
    "ragshield_callers_loop", default=None
)


class StoredEntries(NamedTuple, Generic[Item]):
    """The content of a store under some ids, including entries that bypassed the guard.

    ``entries`` have vectors, and usable claims only. ``items`` are the store's own objects, and may
    be more: some stores keep several revisions under one id, or return no vectors.
    """

    entries: Batch
    items: Sequence[Item]


def chosen(batch: Batch, ids: Iterable[str], but: Iterable[str] = ()) -> Batch:
    """Return the entries of a batch with some ids, without others."""
    wanted = set(ids) - set(but)
    return batch.take([row for row, entry_id in enumerate(batch.ids) if entry_id in wanted])


async def in_thread(work: Callable[[], T], executor: Executor | None = None) -> T:
    """Run work in a thread, from which the store inside may still use this loop."""
    loop = asyncio.get_running_loop()

    def in_context() -> T:
        CALLERS_LOOP.set(loop)  # in a copy of the context, which ends with this call
        return work()

    return await loop.run_in_executor(executor, copy_context().run, in_context)


def on_loop(loop: asyncio.AbstractEventLoop, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on another thread's event loop; return its result."""
    return asyncio.run_coroutine_threadsafe(start(), loop).result()


class StoreAccess(ABC, Generic[Item]):
    """Access to one kind of vector store, below the framework's interface.

    An access has seven methods: ``read``, ``write``, ``delete``, ``ids``, ``count``, ``near`` and
    ``unfit``. They are synchronous; callers on an event loop run them in a thread.

    Attributes
    ----------
    of
        Module and name of the store class, which need not be imported.
    inner
        The store inside.
    """

    of: ClassVar[tuple[str, str]] = ("", "")

    def __init__(self, store: Any) -> None:
        self.inner = self._store = store

    @classmethod
    def handles(cls, store_cls: type) -> bool:
        """Return whether a class of stores is :attr:`of`, or inherits from it."""
        return any((c.__module__, c.__name__) == cls.of for c in store_cls.__mro__)

    @property
    def name(self) -> str:
        """The name that identifies the store in every process; empty if there is none."""
        return ""

    @property
    def folder(self) -> str | None:
        """The data folder, if only one process may use it."""
        return None

    @property
    def table(self) -> VectorTable | None:
        """The vectors, which the store searches for detectors; ``None`` if it cannot."""
        return None

    @abstractmethod
    def read(self, ids: Sequence[str]) -> Any:
        """Return the items under the ids, with vectors; missing ids are ignored."""

    @abstractmethod
    def write(self, *what: Any, **options: Any) -> None:
        """Store entries under their ids."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete the entries under the ids; missing ids are ignored.

        Raises
        ------
        NotImplementedError
            If this store cannot delete; a guarded store then hides its held entries.
        """

    @abstractmethod
    def ids(self) -> list[str]:
        """Return the ids of all entries, if possible without reading the entries.

        Raises
        ------
        NotImplementedError
            If this kind of store cannot name them; it is then neither scanned nor reconciled.
        """

    def count(self) -> int:
        """Return the number of entries; may raise if the store cannot be asked."""
        return len(self.ids())

    @abstractmethod
    def near(self, vector: list[float], k: int) -> Sequence[Item]:
        """Return the k items nearest to a vector, or none if the store cannot search."""

    def unfit(self, *what: Any) -> dict[int, str]:  # noqa: ARG002 - for subclasses
        """Return the rows of entries that this kind of store cannot keep, each with the reason.

        They are held before anything is written; ``write`` may fail on them. The reason names keys
        and types, never values.
        """
        return {}


def chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """Yield parts of at most ``size`` items."""
    return (list(items[start : start + size]) for start in range(0, len(items), size))


# UUIDs: some stores take no other ids.
IDS = tuple(f"00000000-0000-4000-8000-00000000000{n}" for n in range(4))
TEXTS = ("The ferry leaves at nine.", "Lunch is at noon.", "Visitors sign in.", "The yard closes.")
DIM = 8


def check_inner_store(
    access: StoreAccess[Any],
    write: Callable[[Batch], None],
    read: Callable[[Sequence[str]], dict[str, tuple[str, dict[str, Any], Sequence[float]]]],
    dim: int = DIM,
) -> None:
    """Check the access to an empty store, which is empty again afterwards.

    Parameters
    ----------
    access
        The access to check.
    write, read
        Write entries and read them back as text, metadata and vector by id, by the framework.
    dim
        Dimension of the vectors.

    Raises
    ------
    AssertionError
        If the store does not behave as expected; the message says how.
    """
    vectors = np.random.default_rng(0).normal(size=(len(IDS), dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def batch(rows: Sequence[int], *metadatas: dict[str, Any]) -> Batch:
        texts = [TEXTS[row] for row in rows]
        ids = [IDS[row] for row in rows]
        return Batch.of(ids=ids, texts=texts, embeddings=vectors[list(rows)], metadatas=metadatas)

    def expect(what: str, found: object, expected: object) -> None:
        if found != expected:
            msg = f"{type(access).__name__}: {what} is {found!r}, expected {expected!r}."
            raise AssertionError(msg)

    expect("ids() of an empty store", list(access.ids()), [])
    access.delete([IDS[0]])  # missing ids are ignored
    write(batch([0, 1, 2], {"page": 1, "old": True}, {}, {"flag": False}))
    expect("count() of three entries", access.count(), 3)
    expect("ids()", sorted(access.ids()), sorted(IDS[:3]))
    found = read([IDS[0], IDS[2], IDS[3]])
    expect("what read() finds", sorted(found), sorted([IDS[0], IDS[2]]))
    expect("a text", found[IDS[2]][0], TEXTS[2])
    expect("metadata", found[IDS[0]][1], {"page": 1, "old": True})
    vector = np.asarray(found[IDS[0]][2], dtype=np.float64)
    cosine = round(float(vector @ vectors[0] / np.linalg.norm(vector)), 4)
    expect("the cosine of a vector with the one that was written", cosine, 1.0)
    near = access.near(vectors[1].tolist(), 1)
    expect("the number of entries that near() finds", len(near), 1)
    access.delete([IDS[1], IDS[3]])
    expect("ids() after delete()", sorted(access.ids()), [IDS[0], IDS[2]])
    access.delete([*IDS])
    expect("count() after delete()", access.count(), 0)
