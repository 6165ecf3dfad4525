"""Which index brought a held entry, so that the index finds it again once it is released."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ragshield_core.quarantine.changes import next_number
from ragshield_core.quarantine.grouping import CHUNK
from ragshield_core.quarantine.tables import IndexedRow

if TYPE_CHECKING:
    from ragshield_core.quarantine.store import Quarantine


class Indexes:
    """The notes of indexes, such as LangChain's record manager, in one quarantine.

    Parameters
    ----------
    quarantine
        Its namespace is the one that is read and written.
    """

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine

    def note(self, ids: Sequence[str], index: str, *, session: Session | None = None) -> None:
        """Note by which index held entries came, which then finds them once they are released.

        Otherwise an index that records only what is in the store would never hear of them, and
        never delete them when their source drops them.

        Parameters
        ----------
        ids
            Of held entries; those that it has noted before stay noted.
        index
            Its name, e.g. the namespace of LangChain's record manager.
        """

        def work(session: Session) -> None:
            known = {row.entry_id for row in self._notes(session, index)}
            new = [entry_id for entry_id in dict.fromkeys(ids) if entry_id not in known]
            first = next_number(session, IndexedRow)
            for number, entry_id in enumerate(new, start=first):
                row = IndexedRow(
                    number=number,
                    namespace=self._quarantine.namespace,
                    index_name=index,
                    entry_id=entry_id,
                )
                row.digest = self._quarantine.digests.of_row(row)
                session.add(row)

        if ids:
            self._quarantine.written(work, session)

    def ids(self, index: str) -> tuple[str, ...]:
        """Return the ids that :meth:`note` has noted, whatever became of the entries."""
        if not self._quarantine.database.exists():
            return ()
        with self._quarantine.database.read() as session:
            return tuple(row.entry_id for row in self._notes(session, index))

    def of(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return by which indexes each of the ids is noted, see :meth:`note`."""
        if not self._quarantine.database.exists():
            return {}
        named: dict[str, tuple[str, ...]] = {}
        with self._quarantine.database.connection() as connection:
            for start in range(0, len(ids), CHUNK):
                query = (
                    select(IndexedRow.entry_id, IndexedRow.index_name)
                    .where(IndexedRow.namespace == self._quarantine.namespace)
                    .where(IndexedRow.entry_id.in_(ids[start : start + CHUNK]))
                    .order_by(IndexedRow.number)
                )
                for entry_id, index in connection.execute(query):
                    named[entry_id] = (*named.get(entry_id, ()), index)
        return named

    def forget(self, ids: Sequence[str], index: str, *, session: Session | None = None) -> None:
        """Note no longer by which index entries came: it knows them, or they are gone."""
        if ids:
            self._quarantine.written(lambda session: self.drop(session, ids, index), session)

    def _notes(self, session: Session, index: str) -> Iterator[IndexedRow]:
        """Return what is noted of an index, in the order in which it was."""
        query = (
            select(IndexedRow)
            .where(IndexedRow.namespace == self._quarantine.namespace)
            .where(IndexedRow.index_name == index)
            .order_by(IndexedRow.number)
        )
        return iter(session.scalars(query))

    def drop(self, session: Session, ids: Sequence[str], index: str | None = None) -> None:
        """Delete what is noted of entries, by one index or by all."""
        for start in range(0, len(ids), CHUNK):
            query = (
                delete(IndexedRow)
                .where(IndexedRow.namespace == self._quarantine.namespace)
                .where(IndexedRow.entry_id.in_(ids[start : start + CHUNK]))
            )
            if index is not None:
                query = query.where(IndexedRow.index_name == index)
            session.execute(query)
