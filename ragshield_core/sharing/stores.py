"""Of which store a namespace is: what is known of one says nothing of another."""

from __future__ import annotations

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from ragshield_core.database import Database
from ragshield_core.database.tables import StoreRow, table_of


def store_of(database: Database, namespace: str, name: str) -> str:
    """Return the name of a namespace's store, which is the first that was named.

    Parameters
    ----------
    database
        Of the guard.
    namespace
        Of a tenant.
    name
        Of the store that asks; it is the one if none was before.
    """
    query = select(StoreRow.name).where(StoreRow.namespace == namespace)
    with database.read() as session:
        found = session.execute(query).scalar()
    if found is not None:
        return found

    def work(session: Session) -> str:
        first = session.execute(query).scalar()
        if first is None:
            row = {"namespace": namespace, "name": name}
            session.execute(insert(table_of(StoreRow)), row)
        return name if first is None else first

    return database.write(work)
