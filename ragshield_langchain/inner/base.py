"""Access to a LangChain store for its guarded store, with a gate between reads and writes."""

from __future__ import annotations

import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor
from numpy.typing import NDArray

from ragshield_core import Batch
from ragshield_core.store import inner
from ragshield_core.store.inner import in_thread
from ragshield_core.store.steps import Step

T = TypeVar("T")
LARGEST = 2**63


def off_loop(work: Callable[[], Any]) -> Step:
    """Return work as a step that runs in a thread for a caller on an event loop."""
    return Step(work, partial(in_thread, work))


class Stored(NamedTuple):
    """Documents that are in the store, with their vectors in the same order."""

    documents: list[Document]
    vectors: NDArray[np.float32]  # (n_documents, dim)


def survives_json(metadata: Mapping[str, Any], *texts: str) -> bool:
    """Return whether JSON returns metadata unchanged, and the texts are valid Unicode.

    Numbers that are not finite, or integers beyond 64 bits, do not survive in every store.
    """
    try:
        written = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        "".join((written, *texts)).encode()
        return bool(json.loads(written, parse_int=_of_64_bits) == metadata)
    except Exception:  # noqa: BLE001 - no JSON, a lone surrogate, too deep
        return False


def _of_64_bits(digits: str) -> int | None:
    number = int(digits)
    return number if -LARGEST <= number < LARGEST else None


class Gate:
    """Lets reads run together and writes alone; a waiting write goes before later reads.

    It is for stores that fail, or return half a write, if they are read during a write. A thread
    that is inside may enter again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reading = 0
        self._writing = False
        self._waiting = 0
        self._inside = threading.local()

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """Enter with other reads, or alone to write; a read must not start a write."""
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


class InnerStore(inner.StoreAccess[Document]):
    """Access to one kind of vector store, below LangChain's interface.

    LangChain's interface has no method that writes vectors as they are, and none that returns them.

    Attributes
    ----------
    gated
        Whether a read in the middle of a write can fail, so that they take turns.
    searches
        Search methods of this kind of store, beyond LangChain's interface. The first argument is
        the query, and they return documents, or tuples that begin with one. A guarded store offers
        them, without held documents.
    """

    gated: ClassVar[bool] = False
    searches: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._gate = Gate() if self.gated else None

    @abstractmethod
    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids; missing ids are ignored."""

    @abstractmethod
    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries under their ids, replacing older revisions; all of them or none.

        Parameters
        ----------
        batch
            At least one entry; its ``batch.vectors`` are stored.
        metadatas
            Metadata to store, one per entry; it may say more than ``batch.metadatas``.
        """

    def near(self, vector: list[float], k: int) -> list[Document]:
        """Return the k documents nearest to a vector, or none if the store cannot search."""
        try:
            found = self.call("similarity_search_by_vector", vector, k=k)
        except NotImplementedError:
            return []
        return [self.outward(document) for document in found]

    def unfit(
        self,
        batch: Batch,  # noqa: ARG002 - for subclasses
        metadatas: Sequence[Mapping[str, Any]],  # noqa: ARG002
    ) -> dict[int, str]:
        """Return the rows of entries that this kind of store cannot keep, each with the reason."""
        return {}

    # Beyond the seven: methods that some kinds of stores override

    def ready(self) -> None:
        """Check that the store can be written from here.

        Raises
        ------
        RuntimeError
            If it can be used from an event loop only, and there is none.
        """

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a reading method of the store."""
        with self.reading():
            return getattr(self._store, name)(*args, **kwargs)

    async def acall(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a reading method's async twin."""
        if self._gate is None:
            return await getattr(self._store, f"a{name}")(*args, **kwargs)
        # Such a store's own twin does the same; here, it takes turns with writes.
        return await run_in_executor(None, self.call, name, *args, **kwargs)

    def reading(self) -> AbstractContextManager[None]:
        """Block writes while the store is read."""
        return nullcontext() if self._gate is None else self._gate.entered(alone=False)

    def writing(self) -> AbstractContextManager[None]:
        """Block reads while the store is written."""
        return nullcontext() if self._gate is None else self._gate.entered(alone=True)

    def outward(self, document: Document) -> Document:
        """Return a document of the store as the caller wrote it."""
        return document

    def _inward(self, ids: Sequence[str]) -> list[Any]:
        """Return the store's own ids for entry ids."""
        return list(ids)
