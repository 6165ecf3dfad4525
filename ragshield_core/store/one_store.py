"""A guard is of one store, and what it holds is held under the name of that store.

The store may be where its neighbours are found, and a folder of it is for one process.
"""

from __future__ import annotations

import os
import warnings
import weakref
from pathlib import Path
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from ragshield_core.database import Database
from ragshield_core.database.tables import StoreRow, table_of
from ragshield_core.guard import Guard
from ragshield_core.model.errors import SharedFolderWarning, SharedQuarantineWarning, StateError
from ragshield_core.model.findings import printable
from ragshield_core.neighbors.stored import VectorTable, Where
from ragshield_core.quarantine import Quarantine
from ragshield_core.quarantine.digests import Digests
from ragshield_core.sharing.rows import raise_damaged

try:
    import fcntl
except ImportError:  # no such locks there: a second process is not noticed
    fcntl = None  # type: ignore[assignment]

# Between the class and the collection in the name of a store.
COLLECTION = " "
SHOWN = 60  # characters of a name

# Of each folder that this process has open, by its id: a lock that ends with the process.
_LOCKS: dict[tuple[int, Path], int] = {}
# Of this process, and only as long as they are used.
_STORE_OF: weakref.WeakKeyDictionary[Guard, weakref.ref[Any]] = weakref.WeakKeyDictionary()
_QUARANTINES: weakref.WeakKeyDictionary[Quarantine, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def claim(
    guard: Guard,
    store: Any,
    name: str | None,
    found: str,
    *,
    folder: str | None = None,
    stacklevel: int = 3,
) -> None:
    """Note that a guard is a store's; from now on it holds entries under the store's name.

    ``name`` is as the user gave it; ``None`` takes the one that the quarantine was made for,
    else ``found``: the class and the name of the collection, which identify the store in every
    process that uses it, empty where there is no such thing. ``folder`` is where the store
    keeps its data, if that is for one process.

    Raises ValueError if the guard is another store's: what it has learned there says nothing
    here; and StateError if the guard was opened in a namespace that is another store's.
    """
    theirs = _alive(_STORE_OF.get(guard))
    if theirs is not None and theirs is not store:
        msg = (
            f"this guard belongs to another {type(theirs).__name__}, and knows what that one holds:"
            " give each store a guard, and a quarantine with a namespace, of its own."
        )
        raise ValueError(msg)
    given = guard.quarantine.store if name is None else name
    mine = guard.quarantine.for_store(found if given is None else given)
    if guard.writes.shared:
        _check_namespace(mine, stacklevel + 1)
    guard.quarantine = mine
    _STORE_OF[guard] = weakref.ref(store)
    note_folder(folder, type(store).__name__, stacklevel=stacklevel + 1)
    # A name that the user gives is meant: two objects of that name are one store.
    for quarantine, reference in list(_QUARANTINES.items()) if name is None else ():
        other = _alive(reference)
        if other is not None and other is not store and _same_place(quarantine, mine):
            what = f"named {mine.store!r}" if mine.store else "without a name"
            msg = (
                f"two stores {what} hold entries in {mine!r}: unless they are one and the same, "
                "release of one would write entries of the other into it. Give each a name=, or a "
                "namespace: Quarantine(url, namespace=...)."
            )
            warnings.warn(msg, SharedQuarantineWarning, stacklevel=stacklevel)
            break
    _QUARANTINES[mine] = weakref.ref(store)


def _same_place(one: Quarantine, other: Quarantine) -> bool:
    """Return whether two quarantines see the same entries."""
    places = [(q.database.url, q.namespace, q.store) for q in (one, other)]
    same = one.database is other.database or not one.database.in_memory
    return same and places[0] == places[1]


def _check_namespace(mine: Quarantine, stacklevel: int) -> None:
    """Refuse a second store in the namespace of an opened guard."""
    name = mine.store or ""
    first = store_of(mine.database, mine.namespace, name, mine.log.digests)
    if name == first:
        return
    shown, before = (printable(one, SHOWN) if one else "" for one in (name, first))
    way_out = (
        "ids of both would be taken for one. Open its guard in another namespace, "
        f"Guard.open(url, namespace), or pass name={before!r} if it is the same store, renamed or "
        "moved."
    )
    # Of one collection, each framework has a class of its own.
    if COLLECTION in name and name.partition(COLLECTION)[2] == first.partition(COLLECTION)[2]:
        msg = (
            f"the store {shown!r} is guarded in the namespace of {before!r}: what is held for one "
            f"is not held for the other. If these are one collection in two frameworks, pass "
            f"name={before!r} here; otherwise {way_out}"
        )
        warnings.warn(msg, SharedQuarantineWarning, stacklevel=stacklevel)
        return
    msg = (
        f"the namespace {printable(mine.namespace, SHOWN)!r} is that of the store {before!r}, and "
        f"this one is {shown!r}: {way_out}"
    )
    raise StateError(msg)


def name_of(store: object, collection: object) -> str:
    """Return the name of a store that has a collection, table or index of some name."""
    return f"{type(store).__name__}{COLLECTION}{collection}" if collection else ""


def _alive(reference: weakref.ref[Any] | None) -> Any:
    return None if reference is None else reference()


def folder_of_chroma(client: Any) -> str | None:
    """Return the folder of a client of Chroma; ``None`` for one in memory or of a server."""
    settings: Any = getattr(client, "get_settings", dict)()
    kept = getattr(settings, "is_persistent", False) and not settings.chroma_server_host
    return str(settings.persist_directory) if kept else None


def note_folder(folder: str | None, kind: str, *, stacklevel: int = 2) -> None:
    """Note that this process has a folder open, and warn if another one has it open as well."""
    if folder is None or fcntl is None:
        return
    key = os.getpid(), Path(folder).resolve()
    if key in _LOCKS:
        return
    try:
        lock = os.open(key[1], os.O_RDONLY)
    except OSError:  # not made yet, or not to be opened like this
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        msg = (
            f"the folder {printable(folder, 200)!r} of this {kind} is open in another process: it "
            "is for one process, and reads of each miss what the other writes. Use a server, such "
            "as `chroma run --path FOLDER` with chromadb.HttpClient."
        )
        warnings.warn(msg, SharedFolderWarning, stacklevel=stacklevel)
        return
    _LOCKS[key] = lock


def store_of(database: Database, namespace: str, name: str, digests: Digests) -> str:
    """Return the name of a namespace's store, which is the first that was named."""

    def there(session: Session) -> str | None:
        query = select(table_of(StoreRow)).where(StoreRow.namespace == namespace)
        row = session.execute(query).mappings().one_or_none()
        if row is not None and not digests.match(StoreRow, row):
            raise_damaged(f"the store of namespace {printable(namespace, 60)!r}", StoreRow)
        return None if row is None else str(row["name"])

    with database.read() as session:
        found = there(session)
    if found is not None:
        return found

    def work(session: Session) -> str:
        first = there(session)
        if first is None:
            row = {"namespace": namespace, "name": name}
            row["digest"] = digests.of(StoreRow, row)
            session.execute(insert(table_of(StoreRow)), row)
        return name if first is None else first

    return database.write(work)


def use_table(
    guard: Guard, table: VectorTable | None, neighbors: Where | None, *, store: object, able: str
) -> bool:
    """Let a guard find neighbours in the store inside, if it is to; return whether it could.

    ``table`` are the store's vectors; ``None`` where it cannot be asked for neighbours.
    ``neighbors`` is as of :meth:`ragshield_core.learning.connections.Connections.use_table`,
    which raises what cannot be. ``able`` names the kinds of stores of the framework that can be
    asked.
    """
    if table is not None:
        guard.state.use_table(table, neighbors)
        return True
    if neighbors not in (None, "memory", "store"):
        msg = f"neighbors is {neighbors!r}, expected 'memory', 'store' or None."
        raise ValueError(msg)
    if neighbors == "store" or guard.state.where == "store":
        msg = (
            f"neighbours cannot be found in {type(store).__name__}, expected {able}, or an "
            "inner_store with a table; leave neighbors out, or use such a store."
        )
        raise TypeError(msg)
    return False
