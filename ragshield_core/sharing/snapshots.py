"""Snapshots: the whole state of a guard at one position of the journal.

A snapshot is written in pieces, because databases limit the size of a row, and in many short
transactions, so that no writer waits for all of them; the last one lists the pieces, and only then
is there a snapshot.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, delete, func, insert, select
from sqlalchemy.orm import Session

from ragshield_core.database.namespaces import checked_namespace
from ragshield_core.database.tables import ChunkRow, SnapshotRow, table_of
from ragshield_core.model.errors import OvertakenError, StateError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import PLAIN, Digests
from ragshield_core.sharing.rows import DAMAGE, form_of, formed, now, raise_damaged
from ragshield_core.state import check_format

# Number of stored snapshots, with the journal after them: one may be damaged.
KEPT = 2
CHUNK = 2**21  # bytes of a row, and of the rows of a transaction, which takes milliseconds
SWEPT = 4  # rows that a transaction deletes, which takes milliseconds, too
SHOWN = 60  # characters of a name
FORMAT = 1

_SNAPSHOTS, _CHUNKS = table_of(SnapshotRow), table_of(ChunkRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot, without its contents."""

    id: str
    position: int  # of the last event that it includes
    made_at: float  # seconds since 1970, by the database's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The pieces of a snapshot that no list names yet."""

    id: str  # of the snapshot
    manifest: str
    number: int


class Snapshots:
    """The snapshots of one namespace.

    Parameters
    ----------
    namespace
        Name of a tenant, the same as the quarantine's.
    chunk
        Bytes of a row.
    digests
        Digests of the rows.
    """

    def __init__(
        self, namespace: str = "default", *, chunk: int = CHUNK, digests: Digests = PLAIN
    ) -> None:
        self.namespace = checked_namespace(namespace)
        self.chunk = chunk
        self.digests = digests

    def __repr__(self) -> str:
        return f"Snapshots({printable(self.namespace, SHOWN)!r})"

    def write_pieces(
        self,
        write: Callable[[Callable[[Session], object]], object],
        values: str,
        arrays: Mapping[str, NDArray[Any]],
    ) -> Pieces:
        """Write the pieces of a snapshot, some at a time, by calls of ``write`` with their work.

        ``values`` are JSON.
        """
        forms = {name: form_of(name, array) for name, array in arrays.items()}
        content = np.frombuffer(values.encode(), np.uint8)
        snapshot = uuid.uuid4().hex
        number, parts = 0, list[tuple[Any, ...]]()
        rows, size = list[dict[str, Any]](), 0  # that wait for a transaction
        named: list[tuple[str | None, NDArray[Any]]] = [(None, content), *arrays.items()]
        for name, array in named:
            first = number
            flat = np.ascontiguousarray(array).reshape(-1)  # does not copy the array
            data = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
            for start in range(0, len(data), self.chunk):
                piece = data[start : start + self.chunk].tobytes()
                row: dict[str, Any] = {"namespace": self.namespace, "snapshot": snapshot}
                row |= {"number": number, "data": piece}
                row["digest"] = self.digests.of(ChunkRow, row)
                if rows and size + len(piece) > self.chunk:
                    write(partial(Session.execute, statement=insert(_CHUNKS), params=rows))
                    rows, size = [], 0
                rows.append(row)
                size += len(piece)
                number += 1
            parts.append((name, first, number - first, *(() if name is None else forms[name])))
        write(partial(Session.execute, statement=insert(_CHUNKS), params=rows))
        return Pieces(
            id=snapshot, manifest=json.dumps({"format": FORMAT, "parts": parts}), number=number
        )

    def finish(self, session: Session, pieces: Pieces, position: int) -> tuple[str, ...]:
        """List the pieces of a snapshot; return the names of snapshots that are not listed.

        ``position`` is that of the last event in the snapshot. All but the latest snapshots leave
        the list. Pieces of others are there, too, if their writer has failed, or is slower than
        this one. :meth:`sweep` deletes them: in one transaction, writers would wait for seconds.

        Raises
        ------
        OvertakenError
            If there is a snapshot at this position or a later one, or pieces are gone.
        """
        mine = self._pieces_of(pieces.id)
        there = session.scalar(select(func.count()).select_from(ChunkRow).where(*mine))
        latest = self.latest(session)
        if there != pieces.number or (latest is not None and latest.position >= position):
            msg = f"another process has written a snapshot of {self!r}; go on from that one."
            raise OvertakenError(msg)
        row: dict[str, Any] = {"id": pieces.id, "namespace": self.namespace}
        row |= {"position": position, "manifest": pieces.manifest}
        row |= {"digest": self.digests.of(SnapshotRow, row)}
        session.execute(insert(_SNAPSHOTS).values(made_at=now(), **row))
        for old in self.list(session)[KEPT:]:
            session.execute(delete(_SNAPSHOTS).where(self._is(old)))
        listed = select(SnapshotRow.id).where(SnapshotRow.namespace == self.namespace)
        gone = (ChunkRow.namespace == self.namespace, ChunkRow.snapshot.not_in(listed))
        return tuple(session.scalars(select(ChunkRow.snapshot).where(*gone).distinct()))

    def sweep(self, session: Session, snapshot: str) -> bool:
        """Delete some pieces of a snapshot that is not listed; return whether more may be left."""
        mine = self._pieces_of(snapshot)
        some = session.scalars(select(ChunkRow.number).where(*mine).limit(SWEPT)).all()
        session.execute(delete(_CHUNKS).where(*mine, ChunkRow.number.in_(some)))
        return len(some) == SWEPT

    def list(self, session: Session) -> tuple[Snapshot, ...]:
        """Return the snapshots, latest first."""
        row = SnapshotRow
        query = (
            select(row.id, row.position, row.made_at)
            .where(row.namespace == self.namespace)
            .order_by(row.position.desc(), row.made_at.desc(), row.id)
        )
        return tuple(
            Snapshot(id=number, position=position, made_at=made_at)
            for number, position, made_at in session.execute(query)
        )

    def latest(self, session: Session) -> Snapshot | None:
        """Return the snapshot with the highest position."""
        return next(iter(self.list(session)), None)

    def read(
        self, session: Session, snapshot: Snapshot, *, only: str | tuple[str, ...] = ""
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the values and arrays of a snapshot that this session has listed.

        ``only`` is the prefix, or prefixes, of the names of the arrays to read. Raises
        StateError, which names the part, if the snapshot is damaged or of another format;
        an older snapshot may still be good.
        """
        where = f"the snapshot at position {snapshot.position} of {self!r}"
        query = select(_SNAPSHOTS).where(self._is(snapshot))
        listed = session.execute(query).mappings().one_or_none()
        if listed is None or not self.digests.match(SnapshotRow, listed):
            raise_damaged(f"the list of parts of {where}", SnapshotRow)
        manifest = json.loads(listed["manifest"])
        check_format(manifest["format"], FORMAT, where)
        values: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        for name, first, n_rows, *form in manifest["parts"]:
            if name is not None and not name.startswith(only):
                continue
            part = "the values" if name is None else f"array {printable(name, SHOWN)!r}"
            what, data = f"{part} of {where}", bytearray()
            for number in range(first, first + n_rows):
                here = (*self._pieces_of(snapshot.id), ChunkRow.number == number)
                chunk = session.execute(select(_CHUNKS).where(*here)).mappings().one_or_none()
                if chunk is None:
                    msg = f"{what} is missing; restore the database from a backup."
                    raise StateError(msg)
                if not self.digests.match(ChunkRow, chunk):
                    raise_damaged(what, ChunkRow)
                data += chunk["data"]
            try:
                if name is None:
                    values = json.loads(data)
                else:
                    arrays[name] = formed(data, *form)
            except DAMAGE as error:
                msg = f"{what} cannot be read ({type(error).__name__}); restore the database."
                raise StateError(msg) from error
        return values, arrays

    def _pieces_of(self, snapshot: str) -> tuple[ColumnElement[bool], ...]:
        return ChunkRow.namespace == self.namespace, ChunkRow.snapshot == snapshot

    def _is(self, snapshot: Snapshot) -> ColumnElement[bool]:
        return (SnapshotRow.id == snapshot.id) & (SnapshotRow.namespace == self.namespace)
