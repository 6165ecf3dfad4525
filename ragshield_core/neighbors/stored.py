"""Vectors left in the store: a store's own search, and an index without vectors that uses it."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index as whole
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import UNIT_TOLERANCE, row_norms
from ragshield_core.model.errors import InvalidBatchError, NeighborsError
from ragshield_core.model.findings import printable
from ragshield_core.neighbors.index import NeighborIndex
from ragshield_core.neighbors.search import Neighbors, check_rows, merged, none_found
from ragshield_core.neighbors.slots import Slots, packed, unpacked
from ragshield_core.state import part_of

if TYPE_CHECKING:
    from ragshield_core.neighbors.known import NeighborSource

T = TypeVar("T")

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Place of the vectors that detectors use: the memory of every worker, or the store.
Where = Literal["memory", "store"]

# Number requested beyond k, since some results may be unknown here or have another revision.
SPARE = 8
# If that is not enough, the next request is this many times larger, up to the most.
MORE, MOST = 4, 1_000
# Vectors kept from the latest searches and fetches, as questions about the same entries follow a
# search. At most 50 MB of 384 dimensions, unless a single search finds more.
REMEMBERED = 32_768
# Vectors fetched by one statement.
AT_ONCE = 2_048
# Number of entries learned before the store is asked which of them it has by now.
LET_GO_AFTER = 1_000
# A stored vector belongs to an entry from this cosine on; stores of half precision stay above it.
SAME = 1.0 - 1e-4
# No id contains it; keys with it belong to entries that no store has, such as held entries.
NUL = "\0"


class FoundEntries(NamedTuple):
    """The entries of a table near to some queries, each entry once.

    ``rows`` gives the entries near to each query, as positions among the m entries in any order; -1
    where there are fewer than k.
    """

    ids: Sequence[str]
    vectors: NDArray[np.float32]  # (m, dim), as they are stored: of any length
    rows: NDArray[np.int64]  # (n_queries, k)


class VectorTable(ABC):
    """The vectors of a store, searched by the store itself.

    Searches may be approximate. Any exception of a method counts as an error of the store and is
    reported under :attr:`name`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the store in messages, e.g. its class and collection."""

    @abstractmethod
    def search(self, embeddings: NDArray[np.float32], k: int) -> FoundEntries:
        """Return about k nearest entries of each query by cosine, in one round trip.

        Parameters
        ----------
        embeddings
            Shape (n_queries, dim), float32, rows of unit length; at least one.
        k
            Number of entries, at least 1. Return fewer only if the store holds no more.
        """

    @abstractmethod
    def vectors(self, ids: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Return those of the ids that the store holds, and their vectors as stored, (n, dim)."""


class IndexOwner(ABC):
    """Base class of a detector with an index that others may borrow, or a store may replace.

    Detectors declare it by inheritance, because a guard makes other detectors depend on it.
    """

    @abstractmethod
    def neighbors(self) -> NeighborSource:
        """Return a source of neighbours for detectors that would repeat the same search."""

    @property
    @abstractmethod
    def in_store(self) -> str | None:
        """Name of the store that finds the neighbours; ``None`` if memory holds the vectors."""

    @property
    @abstractmethod
    def n_local(self) -> int:
        """Number of vectors kept in memory."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the store is at hand, if one is needed: a saved detector may lack it."""

    @abstractmethod
    def use_table(self, table: VectorTable, where: Where | None) -> None:
        """Use a store's vectors.

        Parameters
        ----------
        table
            The vectors of the store.
        where
            ``"store"`` finds neighbours there from now on, ``"memory"`` fetches all vectors;
            ``None`` leaves them in their place.
        """

    @abstractmethod
    def let_go(self) -> int:
        """Drop the vectors that the store has by now; return their number.

        If the store does not answer, all vectors are kept.
        """


class StoredIndex(Slots):
    """Nearest entries by cosine: a :class:`NeighborIndex` whose vectors are left in the store.

    It keeps the ids, and the vectors that the store lacks: those of held entries, and of entries
    that the store does not have yet, or has in another revision. A search joins the nearest of
    these with the results of the store; similarities are those of the vectors that the store
    returns, brought to unit length.

    Results leave out entries of the store that are unknown here. A known entry that is gone from
    the store is no longer found, and has a vector of zeros. Entries that the store's own index
    misses stay unseen. If the table is not at hand, ``expected`` names the store. :meth:`search`
    and :meth:`vectors` raise :class:`~ragshield_core.model.errors.NeighborsError` if the store does
    not answer.
    """

    def __init__(
        self,
        dim: int,
        table: VectorTable | None = None,
        *,
        expected: str = "",
    ) -> None:
        super().__init__()
        self.dim, self.store = dim, expected
        self._table: VectorTable | None = None
        if table is not None:
            self.connect(table)
        self._local = NeighborIndex(dim)
        self._waiting: dict[str, None] = {}  # ids whose vectors stay here until the store has them
        self._ask_at = LET_GO_AFTER  # number of waiting ids at which the store is asked
        self._pages: deque[tuple[NDArray[np.int64], NDArray[np.float32]]] = deque()
        self._lock = threading.Lock()  # guards the pages: several threads ask for vectors

    @property
    def connected(self) -> bool:
        """Whether the store is at hand."""
        return self._table is not None

    @property
    def n_local(self) -> int:
        """Number of vectors kept in this index."""
        return len(self._local)

    @classmethod
    def of(cls, index: NeighborIndex, table: VectorTable) -> Self:
        """Return an index of the same entries in the same slots, to replace the given one.

        It still keeps all vectors: see :meth:`let_go`.
        """
        stored = cls(index.dim, table)
        stored.take_over(index.ids, index.present, index.capacity)
        stored._keep(index)
        return stored

    def _keep(self, local: NeighborIndex) -> None:
        """Keep the vectors of an index until the store has them."""
        self._local = local
        self._waiting = dict.fromkeys(_of_store(local.ids))

    def connect(self, table: VectorTable) -> None:
        """Use this table of the store."""
        self._table, self.store = table, table.name

    def into_memory(self) -> NeighborIndex:
        """Return an index of the same entries in the same slots, with all vectors.

        Raises
        ------
        NeighborsError
            If the store lacks a known entry; names it.
        """
        slots = self.present
        vectors = self._taken(slots, remember=False)
        if (lost := np.flatnonzero(~vectors.any(axis=1))).size:
            name = self.ids_of(slots[lost[:1]])[0]
            msg = (
                f"{len(lost)} known entries are not in {self._shown} any more "
                f"({printable(name)!r}), so that they cannot be taken into memory; reconcile the "
                "store with its guard first."
            )
            raise NeighborsError(msg)
        by_slot = np.full((self.capacity, self.dim), np.nan, dtype=np.float32)
        by_slot[slots] = vectors
        values, arrays = NeighborIndex(self.dim).state()
        arrays |= {"slots": slots, "vectors": by_slot, **packed(self.ids)}
        return NeighborIndex.restored(values | {"capacity": self.capacity}, arrays)

    def add(self, ids: Sequence[str], embeddings: NDArray[np.float32]) -> NDArray[np.int64]:
        """Add entries and return their slots.

        The index keeps their vectors until the store has them; it asks the store once many wait.
        """
        if len(self._waiting) >= self._ask_at:
            self.let_go()
        self.check_new(ids)
        self._local.add(ids, embeddings)
        self._waiting |= dict.fromkeys(_of_store(ids))
        return self.hand_out(ids)

    def remove(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Remove entries and return their slots."""
        slots = self.take_back(ids)
        self._drop(self._local.among(ids))
        return slots

    def compact(self) -> NDArray[np.int64]:
        """Renumber the entries, without gaps; return their old slots."""
        with self._lock:
            self._pages.clear()
        return self.renumber()

    def vectors(self, slots: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Return the vectors of the given slots, shape (n, dim); zeros where the store has none."""
        return self._taken(np.asarray(slots, dtype=np.int64), remember=True)

    def search(self, embeddings: NDArray[np.float32], k: int) -> Neighbors:
        """Return the k nearest entries of each query: one round trip, as a rule."""
        check_rows("embeddings", embeddings, self.dim, k=k)
        found = none_found(len(embeddings), k)
        if not len(embeddings):
            return found
        if len(self._local):
            near = self._local.search(embeddings, k)
            there = near.slots >= 0
            found.similarities[:] = near.similarities
            found.slots[there] = self.slots_of(self._local.ids_of(near.slots[there]))
        n_stored = len(self) - len(self._local)
        if n_stored:
            found = merged([found, self._stored(embeddings, k, min(k, n_stored))], k)
        return found

    def let_go(self) -> int:
        """Drop the vectors that the store has by now; return their number.

        If the store does not answer, all vectors are kept and a later call asks again.
        """
        if self._table is None or not self._waiting:
            return 0
        there: list[str] = []
        try:
            for ids in _blocks(list(self._waiting)):
                names, rows = self._fetched(ids)
                own = self._local.vectors(self._local.slots_of(names))
                same = np.einsum("ij,ij->i", own, rows) >= SAME
                there += [name for name, alike in zip(names, same, strict=True) if alike]
        except NeighborsError as error:
            logger.warning("vectors are kept in memory for now: %s", error)
            there = []
        self._drop(there)
        self._ask_at = LET_GO_AFTER + len(self._waiting)
        return len(there)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the index as JSON-ready values and arrays, with only the vectors kept here."""
        local, arrays = self._local.state()
        return (
            {
                "store": self.store,
                "dim": self.dim,
                "capacity": self.capacity,
                "local": local,
            },
            {f"local.{key}": array for key, array in arrays.items()}
            | {"slots": self.present}
            | packed(self.ids),
        )

    @classmethod
    def restored(
        cls,
        values: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        table: VectorTable | None = None,
    ) -> Self:
        """Return the index with this :meth:`state`; :meth:`connect` may add the store later.

        :class:`ValueError` if the parts do not fit together.
        """
        index = cls(whole(values["dim"]), table, expected=str(values["store"]))
        index.take_over(unpacked(arrays), arrays["slots"], values["capacity"])
        index._keep(NeighborIndex.restored(values["local"], part_of(arrays, "local.")))
        if (index.slots_of(index._local.ids) < 0).any() or index._local.dim != index.dim:
            msg = "the vectors kept in it are not those of its entries"
            raise ValueError(msg)
        return index

    # Inside

    @property
    def _shown(self) -> str:
        return f"the store {printable(self.store)!r}" if self.store else "the store"

    def _drop(self, ids: Sequence[str]) -> None:
        """Drop vectors; if few are left, move them to a new index."""
        for entry_id in ids:
            self._waiting.pop(entry_id, None)
        if 2 * len(ids) < len(self._local):
            self._local.remove(ids)
            if self._local.sparse:
                self._local.compact()
        elif ids:
            gone, old = set(ids), self._local
            names = [entry_id for entry_id in old.ids if entry_id not in gone]
            self._local = NeighborIndex(self.dim)
            self._local.add(names, old.vectors(old.slots_of(names)))

    def _stored(self, embeddings: NDArray[np.float32], k: int, wanted: int) -> Neighbors:
        """Return the store's results, limited to known entries whose vectors are not kept here."""
        best = none_found(len(embeddings), k)
        rows, asked = np.arange(len(embeddings)), k + SPARE
        while len(rows):
            queries, most = np.ascontiguousarray(embeddings[rows]), asked
            found = self._asked(lambda table: table.search(queries, most))  # noqa: B023 - at once
            slots = self.slots_of(found.ids)
            slots[self._local.slots_of(found.ids) >= 0] = -1
            vectors, whole = _unit(found.vectors, self.dim)
            slots[~whole] = -1
            self._remember(slots[slots >= 0], vectors[slots >= 0])
            near = _nearest(queries, found.rows, slots, vectors, k)
            best.slots[rows], best.similarities[rows] = near
            # Ask again only for queries with too few results, if the store may have more.
            short = (near.slots >= 0).sum(axis=1) < wanted
            short &= (found.rows >= 0).sum(axis=1) >= asked
            if asked >= MOST:
                break
            rows, asked = rows[short], min(MORE * asked, MOST)
        return best

    def _taken(self, slots: NDArray[np.int64], *, remember: bool) -> NDArray[np.float32]:
        unique, inverse = np.unique(slots, return_inverse=True)
        names = np.array([*self.ids_of(unique), None], dtype=np.object_)[:-1]
        rows = np.zeros((len(unique), self.dim), dtype=np.float32)
        left = np.ones(len(unique), dtype=np.bool_)
        with self._lock:
            pages = tuple(self._pages)
        for have, vectors in pages:
            place = np.minimum(np.searchsorted(have, unique), len(have) - 1)
            here = left & (have[place] == unique)
            rows[here] = vectors[place[here]]
            left &= ~here
        missing = np.flatnonzero(left)
        local = self._local.slots_of(names[missing])
        rows[missing[local >= 0]] = self._local.vectors(local[local >= 0])
        missing = missing[local < 0]
        n_lost = 0
        for part in _blocks(missing):
            row_of = dict(zip(names[part], part.tolist(), strict=True))
            known, vectors = self._fetched(list(row_of))
            where = np.array([row_of[name] for name in known], dtype=np.intp)
            rows[where] = vectors
            n_lost += len(part) - len(known)
            if remember:
                self._remember(unique[where], vectors)
        if n_lost:
            logger.warning(
                "%d entries that are known are not in %s any more, and count as neighbours of "
                "nothing; reconcile the store with its guard",
                n_lost,
                self._shown,
            )
        return np.asarray(rows[inverse.reshape(slots.shape)])

    def _fetched(self, ids: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Return those of the ids that the store has, with their unit vectors."""
        names, vectors = self._asked(lambda table: table.vectors(ids))
        if not len(names):
            return [], np.empty((0, self.dim), dtype=np.float32)
        rows, whole = _unit(vectors, self.dim)
        return [name for name, is_whole in zip(names, whole, strict=True) if is_whole], rows[whole]

    def _remember(self, slots: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        if not len(slots):
            return
        order = np.argsort(slots)
        with self._lock:
            self._pages.appendleft((slots[order], vectors[order]))
            while len(self._pages) > 1 and sum(len(have) for have, _ in self._pages) > REMEMBERED:
                self._pages.pop()

    def _asked(self, ask: Callable[[VectorTable], T]) -> T:
        """Ask the store, and turn its exceptions into a :class:`NeighborsError`."""
        if self._table is None:
            raise not_at_hand(self.store)
        try:
            return ask(self._table)
        except NeighborsError:
            raise
        except Exception as error:  # noqa: BLE001 - any database's error, named and raised as ours
            # Without its message: messages of databases quote the query.
            msg = (
                f"{self._shown} did not answer a search for neighbours ({type(error).__name__}); "
                "try again once it does."
            )
            raise NeighborsError(msg) from None


# Nearest entries by cosine, with vectors in memory or in the store.
EntryIndex = NeighborIndex | StoredIndex


def not_at_hand(store: str) -> NeighborsError:
    """Return the error for a named store that is needed but not at hand."""
    name = f" {printable(store)!r}" if store else ""
    msg = (
        f"this guard keeps no vectors and finds neighbours in the store{name}, which is not at "
        "hand: wrap that store with it, GuardedVectorStore(store, guard=guard), before anything is "
        "screened, learned or measured."
    )
    return NeighborsError(msg)


def _of_store(ids: Iterable[str]) -> Iterator[str]:
    """Yield the keys under which a store may have an entry."""
    return (entry_id for entry_id in ids if NUL not in entry_id)


def _nearest(
    queries: NDArray[np.float32],
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
    vectors: NDArray[np.float32],
    k: int,
) -> Neighbors:
    """Return the k best of the found entries, by the cosines of their vectors."""
    near = none_found(len(queries), max(k, rows.shape[1]))
    query, column = np.nonzero(rows >= 0)
    known = slots[rows[query, column]] >= 0
    query, column = query[known], column[known]
    for start in range(0, len(query), REMEMBERED):
        part = np.s_[start : start + REMEMBERED]
        hit = rows[query[part], column[part]]
        near.slots[query[part], column[part]] = slots[hit]
        near.similarities[query[part], column[part]] = np.einsum(
            "ij,ij->i", queries[query[part]], vectors[hit]
        )
    return merged([near], k)


def _unit(vectors: NDArray[np.float32], dim: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return rows of unit length, and a mask of the rows that have a direction."""
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.shape[1:] != (dim,):
        msg = f"the store has vectors of shape {rows.shape}, expected rows of {dim}."
        raise InvalidBatchError(msg)
    norms = row_norms(rows)
    whole = np.isfinite(norms) & (norms > 0.0)
    norms[~whole | (np.abs(norms - 1.0) <= UNIT_TOLERANCE)] = 1.0  # as entries are taken
    return (rows / norms[:, None]).astype(np.float32), whole


def _blocks(items: Any) -> Iterator[Any]:
    return (items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE))
