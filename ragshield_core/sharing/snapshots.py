"""Snapshots: the whole of what a guard has learned, at one position of the journal."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from ragshield_core.database.namespaces import checked_namespace
from ragshield_core.database.tables import ChunkRow, SnapshotRow, table_of
from ragshield_core.model.errors import PrunedError, StateError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import PLAIN, Digests
from ragshield_core.sharing import rows as named_arrays
from ragshield_core.sharing.rows import now, raise_damaged, to_json
from ragshield_core.state import check_format

# Runs work in a transaction of its own that writes, and returns what it returns.
Write = Callable[[Callable[[Session], Any]], Any]

# Complete ones that are kept, with all of the journal after them: one may be damaged.
KEPT = 2
# Bytes of a row, and about those of a transaction: others write between two of them.
CHUNK = 2**23
# Seconds after which one that is not complete, and is not being written to, is removed.
GIVEN_UP = 600.0
SHOWN = 60  # characters of a name
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A complete snapshot."""

    id: str
    position: int  # of the last event that it includes
    made_at: float  # seconds since 1970, by the database's clock


class _Part(NamedTuple):
    """One array, or the values, in the rows of a snapshot."""

    name: str | None  # None for the values
    first: int  # number of its first row
    n_rows: int


class Snapshots:
    """The snapshots of one namespace.

    Parameters
    ----------
    namespace
        Of a tenant, as the quarantine's.
    chunk
        Bytes of a row.
    digests
        Of the rows.
    """

    def __init__(
        self, namespace: str = "default", *, chunk: int = CHUNK, digests: Digests = PLAIN
    ) -> None:
        self.namespace = checked_namespace(namespace)
        self.chunk = chunk
        self.digests = digests

    def __repr__(self) -> str:
        return f"Snapshots({printable(self.namespace, SHOWN)!r})"

    def write(
        self,
        write: Write,
        position: int,
        values: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        beside: Callable[[Session], object] = lambda _session: None,
    ) -> Snapshot:
        """Write a snapshot, in several short transactions; it is seen when it is complete.

        Parameters
        ----------
        write
            Runs work in a transaction of its own; others may write between two of them.
        position
            Of the last event that it includes.
        values, arrays
            JSON-ready, and without objects. None may change meanwhile.
        beside
            What is written at the same moment as the snapshot is complete; if it raises, the
            snapshot is not.

        Raises
        ------
        TypeError
            If something could only be pickled; nothing is written then.
        StateError
            If the snapshot was removed meanwhile, because nothing was added for too long.
        """
        content = to_json(values, "the values of a snapshot").encode()
        for name, array in arrays.items():
            named_arrays.check(name, np.asarray(array))
        snapshot = uuid.uuid4().hex
        row = {"id": snapshot, "namespace": self.namespace, "position": position}
        write(lambda session: session.execute(insert(_SNAPSHOTS).values(touched=now(), **row)))
        parts: list[_Part] = []
        rows: list[dict[str, Any]] = []
        number = size = 0

        def add(session: Session) -> None:
            self._touch(session, snapshot)
            session.execute(insert(_CHUNKS), rows)

        every: Iterator[tuple[str | None, Iterable[bytes]]] = chain(
            [(None, _cut(content, self.chunk))],
            ((name, named_arrays.pieces(array, self.chunk)) for name, array in arrays.items()),
        )
        for part, data in every:
            first = number
            for piece in data:
                values = {"snapshot": snapshot, "number": number, "data": piece}
                rows.append(values | {"digest": self.digests.of(ChunkRow, values)})
                number, size = number + 1, size + len(piece)
                if size >= self.chunk:
                    write(add)
                    rows.clear()
                    size = 0
            parts.append(_Part(part, first, number - first))
        if rows:
            write(add)
        manifest = json.dumps({"format": FORMAT, "parts": parts})
        digest = self.digests.of(SnapshotRow, row | {"manifest": manifest})

        def complete(session: Session) -> Snapshot:
            beside(session)  # first: it may lock the journal
            made_at = self._touch(session, snapshot, manifest=manifest, digest=digest)
            return Snapshot(id=snapshot, position=position, made_at=made_at)

        made: Snapshot = write(complete)
        return made

    def list(self, session: Session) -> tuple[Snapshot, ...]:
        """Return the complete snapshots, the latest first."""
        row = SnapshotRow
        query = (
            select(row.id, row.position, row.touched)
            .where(row.namespace == self.namespace, row.manifest.is_not(None))
            .order_by(row.position.desc(), row.touched.desc(), row.id)
        )
        return tuple(
            Snapshot(id=number, position=position, made_at=made_at)
            for number, position, made_at in session.execute(query)
        )

    def latest(self, session: Session) -> Snapshot | None:
        """Return the complete snapshot that is furthest in the journal."""
        return next(iter(self.list(session)), None)

    def read(
        self, session: Session, snapshot: Snapshot, *, only: str | tuple[str, ...] = ""
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the values and arrays of a snapshot.

        Parameters
        ----------
        session
            Of any transaction.
        snapshot
            One that is listed.
        only
            How the names of the arrays to be read begin, one way or several.

        Raises
        ------
        PrunedError
            If it was removed: there are later ones.
        StateError
            If it is damaged, names the part, or of another format. The one before may not be.
        """
        there = select(_SNAPSHOTS).where(self._is(snapshot.id))
        row = session.execute(there).mappings().one_or_none()
        if row is None or row["manifest"] is None:
            raise self._removed(snapshot)
        where = f"the snapshot at position {snapshot.position} of {self!r}"
        if not self.digests.match(SnapshotRow, row):
            raise_damaged(f"the list of parts of {where}", SnapshotRow)
        manifest = json.loads(row["manifest"])
        check_format(manifest["format"], FORMAT, where)
        values: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        parts = [_Part(*fields) for fields in manifest["parts"]]
        for part in [one for one in parts if one.name is None or one.name.startswith(only)]:
            name = "the values" if part.name is None else f"array {printable(part.name, SHOWN)!r}"
            what = f"{name} of {where}"
            data = bytearray()
            for number in range(part.first, part.first + part.n_rows):
                query = select(_CHUNKS).where(
                    ChunkRow.snapshot == snapshot.id, ChunkRow.number == number
                )
                chunk = session.execute(query).mappings().one_or_none()
                if chunk is None:
                    if session.execute(there).mappings().one_or_none() != row:
                        raise self._removed(snapshot)
                    msg = f"{what} is missing; restore the database from a backup."
                    raise StateError(msg)
                if not self.digests.match(ChunkRow, chunk):
                    raise_damaged(what, ChunkRow)
                data += chunk["data"]
            try:
                if part.name is None:
                    values = json.loads(data)
                else:
                    arrays[part.name] = named_arrays.joined(data)
            except (ValueError, TypeError, EOFError, RecursionError) as error:
                msg = f"{what} cannot be read ({type(error).__name__}); restore the database."
                raise StateError(msg) from error
        return values, arrays

    def prune(self, write: Write) -> int:
        """Remove all but the last complete ones, and those that were never completed.

        Parameters
        ----------
        write
            As of :meth:`write`.

        Returns
        -------
        int
            How many.
        """
        removed = write(self._take_out)
        for snapshot in removed:
            # A few rows at a time: each may be of megabytes, and others wait meanwhile.
            while write(partial(self._remove_some, snapshot=snapshot)):
                pass
        return len(removed)

    def _take_out(self, session: Session) -> Sequence[str]:
        """Return which are to be removed; from now on nobody sees them or writes to them."""
        row = SnapshotRow
        mine = row.namespace == self.namespace
        kept = [snapshot.id for snapshot in self.list(session)[:KEPT]]
        given_up = row.touched <= now() - GIVEN_UP
        old = mine & row.id.not_in(kept) & or_(row.manifest.is_not(None), given_up)
        ids = session.execute(select(row.id).where(old).with_for_update()).scalars().all()
        gone = {"manifest": None, "digest": None, "touched": 0.0}
        session.execute(update(_SNAPSHOTS).where(mine, row.id.in_(ids)).values(**gone))
        return ids

    def _is(self, snapshot: str) -> ColumnElement[bool]:
        return (SnapshotRow.id == snapshot) & (SnapshotRow.namespace == self.namespace)

    def _touch(self, session: Session, snapshot: str, **values: Any) -> float:
        """Say that a snapshot is being written; return when."""
        # What is taken out was touched at 0.
        there = self._is(snapshot) & (SnapshotRow.touched > 0.0)
        session.execute(update(_SNAPSHOTS).where(there).values(touched=now(), **values))
        at = session.execute(select(SnapshotRow.touched).where(there)).scalar()
        if at is None:
            msg = (
                "a snapshot was removed while it was written: nothing had been added for "
                f"{GIVEN_UP:g} s; write it again."
            )
            raise StateError(msg)
        return at

    def _remove_some(self, session: Session, snapshot: str) -> bool:
        """Remove some rows of what is taken out, or, after the last, itself; return False then."""
        mine = ChunkRow.snapshot == snapshot
        query = select(ChunkRow.number).where(mine).order_by(ChunkRow.number).limit(_DELETED)
        numbers = session.execute(query).scalars().all()
        session.execute(delete(_CHUNKS).where(mine, ChunkRow.number.in_(numbers)))
        if not numbers:
            session.execute(delete(_SNAPSHOTS).where(self._is(snapshot)))
        return bool(numbers)

    def _removed(self, snapshot: Snapshot) -> PrunedError:
        msg = (
            f"the snapshot at position {snapshot.position} of {self!r} was removed, because there "
            "are later ones; read the latest."
        )
        return PrunedError(msg)


_SNAPSHOTS = table_of(SnapshotRow)
_CHUNKS = table_of(ChunkRow)
# Rows that are deleted at once.
_DELETED = 16


def _cut(data: bytes, size: int) -> Iterator[bytes]:
    """Yield bytes in pieces of a size."""
    return (data[start : start + size] for start in range(0, len(data), size))
