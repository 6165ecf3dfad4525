"""Notes of the index that submitted a held entry, so that it finds the entry once released."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Select, delete, select
from sqlalchemy.orm import Session

from ragshield_core.database import chunks
from ragshield_core.database.tables import IndexedRow
from ragshield_core.quarantine.changes import next_number
from ragshield_core.quarantine.log import AuditLog


class Indexes:
    """The notes of indexes, such as LangChain's record manager, in one quarantine.

    Parameters
    ----------
    log
        The quarantine's log; its namespace and digests are used.
    """

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def note(self, ids: Sequence[str], index: str) -> None:
        """Note the index that submitted held entries, so that it finds them once released.

        Otherwise an index that records only stored entries would never learn of them, and never
        delete them when their source drops them.
        """

        def work(session: Session) -> None:
            known = set(session.scalars(self._noted_by(index)))
            new = [entry_id for entry_id in dict.fromkeys(ids) if entry_id not in known]
            first = next_number(session, IndexedRow)
            for number, entry_id in enumerate(new, start=first):
                row = {"number": number, "namespace": self._log.namespace}
                row |= {"index_name": index, "entry_id": entry_id}
                digest = self._log.digests.of(IndexedRow, row)
                session.add(IndexedRow(**row, digest=digest))

        if ids:
            self._log.write(work)

    def ids(self, index: str) -> tuple[str, ...]:
        """Return the ids that :meth:`note` has noted, whatever their entries' status."""
        if not self._log.database.exists():
            return ()
        with self._log.database.read() as session:
            return tuple(session.scalars(self._noted_by(index)))

    def of(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the indexes that have noted each of the ids, see :meth:`note`."""
        if not self._log.database.exists():
            return {}
        named: dict[str, tuple[str, ...]] = {}
        with self._log.database.read() as session:
            for some in chunks(ids):
                query = select(IndexedRow.entry_id, IndexedRow.index_name)
                query = query.where(IndexedRow.namespace == self._log.namespace)
                query = query.where(IndexedRow.entry_id.in_(some)).order_by(IndexedRow.number)
                for entry_id, index in session.execute(query):
                    named[entry_id] = (*named.get(entry_id, ()), index)
        return named

    def forget(self, ids: Sequence[str], index: str) -> None:
        """Delete an index's notes of entries that it has recorded or that are gone."""
        if ids:
            self._log.write(lambda session: self.drop(session, ids, index))

    def _noted_by(self, index: str) -> Select[tuple[str]]:
        """Return the query for an index's noted ids, oldest first."""
        noted = (IndexedRow.namespace == self._log.namespace, IndexedRow.index_name == index)
        return select(IndexedRow.entry_id).where(*noted).order_by(IndexedRow.number)

    def drop(self, session: Session, ids: Sequence[str], index: str | None = None) -> None:
        """Delete the notes of entries, of one index or of all."""
        for some in chunks(ids):
            query = delete(IndexedRow).where(IndexedRow.namespace == self._log.namespace)
            query = query.where(IndexedRow.entry_id.in_(some))
            if index is not None:
                query = query.where(IndexedRow.index_name == index)
            session.execute(query)
