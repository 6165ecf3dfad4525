"""Binding of a guard to one store, under whose name it holds entries.

The guard may find neighbours in the store. A store's folder is for one process only.
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
except ImportError:  # no such locks on this platform: a second process goes unnoticed
    fcntl = None  # type: ignore[assignment]

# Separates the class from the collection in the name of a store.
COLLECTION = " "
SHOWN = 60  # characters of a name

# Locks on the folders that this process has open, by its id; they end with the process.
_LOCKS: dict[tuple[int, Path], int] = {}
# Stores of this process's guards and quarantines, only as long as these are used.
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
    """Bind a guard to a store; from now on it holds entries under the store's name.

    ``name`` is the user's choice; ``None`` takes the name that the quarantine was made for, else
    ``found``: the class and the name of the collection, which identify the store in every
    process that uses it; empty if the store has no such name. ``folder`` is the store's data
    folder, if only one process may use it.

    Raises ValueError if the guard belongs to another store, since its knowledge does not apply
    here; and StateError if the guard was opened in a namespace of another store.
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
    # A name from the user is deliberate: two objects with that name are one store.
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
    # Each framework has a class of its own for the same collection.
    if COLLECTION in name and name.partition(COLLECTION)[2] == first.partition(COLLECTION)[2]:
        msg = (
            f"the store {shown!r} is guarded in the namespace of {before!r}: entries held for one "
            f"are not held for the other. If these are one collection in two frameworks, pass "
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
    """Return the name of a store from its class and its collection, table or index."""
    return f"{type(store).__name__}{COLLECTION}{collection}" if collection else ""


def _alive(reference: weakref.ref[Any] | None) -> Any:
    return None if reference is None else reference()


def folder_of_chroma(client: Any) -> str | None:
    """Return the folder of a Chroma client; ``None`` for one in memory or on a server."""
    settings: Any = getattr(client, "get_settings", dict)()
    kept = getattr(settings, "is_persistent", False) and not settings.chroma_server_host
    return str(settings.persist_directory) if kept else None


def note_folder(folder: str | None, kind: str, *, stacklevel: int = 2) -> None:
    """Lock a folder that this process has open, and warn if another process has it open."""
    if folder is None or fcntl is None:
        return
    key = os.getpid(), Path(folder).resolve()
    if key in _LOCKS:
        return
    try:
        lock = os.open(key[1], os.O_RDONLY)
    except OSError:  # not made yet, or cannot be opened like this
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
    """Return the name of a namespace's store: the first one recorded, else ``name``."""

    def recorded(session: Session) -> str | None:
        query = select(table_of(StoreRow)).where(StoreRow.namespace == namespace)
        row = session.execute(query).mappings().one_or_none()
        if row is not None and not digests.match(StoreRow, row):
            raise_damaged(f"the store of namespace {printable(namespace, 60)!r}", StoreRow)
        return None if row is None else str(row["name"])

    with database.read() as session:
        found = recorded(session)
    if found is not None:
        return found

    def work(session: Session) -> str:
        first = recorded(session)
        if first is None:
            row = {"namespace": namespace, "name": name}
            row["digest"] = digests.of(StoreRow, row)
            session.execute(insert(table_of(StoreRow)), row)
        return name if first is None else first

    return database.write(work)


def use_table(
    guard: Guard, table: VectorTable | None, neighbors: Where | None, *, store: object, able: str
) -> bool:
    """Set where a guard finds neighbours; return whether the store inside can find them.

    ``table`` holds the store's vectors; ``None`` if the store cannot find neighbours.
    ``neighbors`` is as in :meth:`ragshield_core.learning.guard_state.GuardState.use_table`,
    which raises if the choice is impossible. ``able`` names the framework's kinds of stores that
    can find neighbours.
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
