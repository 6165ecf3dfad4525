"""Of which store a namespace is: what is known of one says nothing of another."""

from __future__ import annotations

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from ragshield_core.database import Database
from ragshield_core.database.tables import StoreRow, table_of
from ragshield_core.model.findings import printable
from ragshield_core.quarantine.digests import Digests
from ragshield_core.sharing.rows import raise_damaged


def store_of(database: Database, namespace: str, name: str, digests: Digests) -> str:
    """Return the name of a namespace's store, which is the first that was named.

    Parameters
    ----------
    database
        Of the guard.
    namespace
        Of a tenant.
    name
        Of the store that asks; it is the one if none was before.
    digests
        Of the row.

    Raises
    ------
    StateError
        If the row was changed by hand.
    """

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
