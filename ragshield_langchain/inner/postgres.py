"""langchain-postgres' PGVector; that package is an extra and not imported until needed."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import printable
from ragshield_core.store.inner import CALLERS_LOOP, chunks, on_loop
from ragshield_core.store.one_store import name_of
from ragshield_core.store.postgres_vectors import PostgresVectors, VectorColumns
from ragshield_langchain.inner.base import InnerStore, Stored

T = TypeVar("T")

WORDS = "_ragshield_tsv"  # parameter with the text for a full-text search column
AT_ONCE = 1000  # rows of one statement; PostgreSQL allows 65,535 parameters


class EntryRows(NamedTuple):
    """Table and columns of a store's entries, as SQLAlchemy objects of one transaction."""

    table: Any
    condition: Any  # selects the rows of this store
    columns: Sequence[str]  # of ids, texts, vectors, metadata as JSON, and single keys of metadata
    values: Mapping[str, Any] = {}  # other values of every row of this store
    words: tuple[str, str | None] | None = None  # column for full-text search, and its language

    @property
    def id(self) -> Any:
        """The column of ids."""
        return self.table.c[self.columns[0]]


class PostgresRows(InnerStore):
    """Entries as rows of a table in PostgreSQL; a write is one transaction."""

    @abstractmethod
    def _run(self, work: Callable[[Any], T]) -> T:
        """Run ``work`` in one transaction, given a session or a connection."""

    @abstractmethod
    def _rows(self, connection: Any) -> EntryRows:
        """Return the table and columns of the entries."""

    @property
    @abstractmethod
    def _place_name(self) -> str:
        """Name of the rows' place in errors."""

    @property
    def table(self) -> PostgresVectors:
        """The vectors of these rows."""
        return PostgresVectors(self.name, self._run, self._place, self._holdable)

    def _place(self, connection: Any) -> VectorColumns:
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415

        dialect: Any = postgresql.dialect
        rows, quoted = self._rows(connection), dialect().identifier_preparer
        key, _, vectors, *_ = map(quoted.quote, rows.columns)
        conditions = [f"e.{quoted.quote(name)} = :{name}" for name in rows.values]
        return VectorColumns(
            table=quoted.format_table(rows.table),
            key_column=key,
            id_column=key,
            vector_column=vectors,
            condition=" AND ".join(conditions) or "TRUE",
            values=dict(rows.values),
        )

    def _holdable(self, connection: Any, ids: Sequence[str]) -> list[str]:  # noqa: ARG002
        """Return the ids that the table can hold."""
        return list(ids)

    def _check_ids(self, connection: Any, rows: EntryRows, ids: Sequence[str]) -> None:
        """Refuse ids that cannot be written."""

    def read(self, ids: Sequence[str]) -> Stored:
        """Return the documents under the ids."""
        from sqlalchemy import select  # noqa: PLC0415 - slow to import

        wanted = list(dict.fromkeys(ids))

        def work(connection: Any) -> tuple[EntryRows, list[Any]]:
            rows = self._rows(connection)
            query = select(*(rows.table.c[name] for name in rows.columns)).where(rows.condition)
            known = self._holdable(connection, wanted)
            return rows, [
                row
                for part in chunks(known, AT_ONCE)
                for row in connection.execute(query.where(rows.id.in_(part)))
            ]

        rows, read = self._run(work)
        found = {str(row[0]): row for row in read}
        standing = [found[entry_id] for entry_id in wanted if entry_id in found]
        documents = [
            Document(
                id=str(entry_id),
                page_content=text or "",
                metadata={**(rest or {}), **dict(zip(rows.columns[4:], single, strict=True))},
            )
            for entry_id, text, _, rest, *single in standing
        ]
        return Stored(documents, np.array([row[2] for row in standing], dtype=np.float32))

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with metadata or texts that PostgreSQL cannot keep."""
        columns = zip(batch.texts, metadatas, strict=True)
        reasons = {row: _unfit(*column) for row, column in enumerate(columns)}
        return {row: reason for row, reason in reasons.items() if reason is not None}

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries in one transaction; errors of the database quote no texts."""
        from sqlalchemy import Text, bindparam, cast, func, literal  # noqa: PLC0415
        from sqlalchemy.dialects.postgresql import REGCONFIG, insert  # noqa: PLC0415
        from sqlalchemy.exc import OperationalError, StatementError  # noqa: PLC0415

        def work(connection: Any) -> None:
            rows = self._rows(connection)
            self._check_ids(connection, rows, batch.ids)
            new = insert(rows.table)
            key, content, vectors, rest, *single = rows.columns
            changed = {name: new.excluded[name] for name in rows.columns if name != key}
            if rows.words is not None:
                column, language = rows.words
                of = [] if language is None else [cast(literal(language), REGCONFIG)]
                words = func.to_tsvector(*of, bindparam(WORDS, type_=Text))
                new = new.values({column: words})
                changed[column] = new.excluded[column]
            columns = zip(batch.ids, batch.texts, batch.vectors.tolist(), metadatas, strict=True)
            values = [
                {
                    **rows.values,
                    key: entry_id,
                    content: text,
                    vectors: vector,
                    rest: {k: v for k, v in metadata.items() if k not in single},
                    **{name: _plain(metadata.get(name)) for name in single},
                    **({} if rows.words is None else {WORDS: text}),
                }
                for entry_id, text, vector, metadata in columns
            ]
            for part in chunks(values, AT_ONCE):
                connection.execute(
                    new.on_conflict_do_update(index_elements=[key], set_=changed), part
                )

        try:
            self._run(work)
        except OperationalError as error:  # of the server, not of the values
            error.hide_parameters = True
            raise
        except StatementError as error:
            # Neither its message nor its cause: both may quote values.
            kind = type(error.orig or error).__name__
            msg = (
                f"entry {printable(batch.ids[0])!r} and its batch were refused by "
                f"{self._place_name} ({kind}), nothing was written; expected vectors of its "
                "dimension, and metadata of the types of its columns."
            )
            raise InvalidBatchError(msg) from None

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the documents under the ids."""
        from sqlalchemy import delete  # noqa: PLC0415

        def work(connection: Any) -> None:
            rows = self._rows(connection)
            known = self._holdable(connection, ids)
            for part in chunks(known, AT_ONCE):
                which = rows.condition, rows.id.in_(part)
                connection.execute(delete(rows.table).where(*which))

        self._run(work)

    def ids(self) -> list[str]:
        """Return the ids of all documents."""
        from sqlalchemy import select  # noqa: PLC0415

        def work(connection: Any) -> list[str]:
            rows = self._rows(connection)
            query = select(rows.id).where(rows.condition).order_by(rows.id)
            return [str(one) for one in connection.scalars(query)]

        return self._run(work)

    def count(self) -> int:
        """Return the number of documents."""
        from sqlalchemy import func, select  # noqa: PLC0415

        def work(connection: Any) -> int:
            rows = self._rows(connection)
            query = select(func.count()).select_from(rows.table).where(rows.condition)
            return int(connection.scalar(query))

        return self._run(work)


class PostgresInner(PostgresRows):
    """langchain-postgres' PGVector, with a synchronous engine or in async mode.

    A write is one transaction. In async mode it runs on the caller's event loop, where the
    connections are; with a synchronous engine, which PGVector itself cannot use from async code,
    async reads run in a thread.
    """

    of = ("langchain_postgres.vectorstores", "PGVector")
    searches = frozenset(
        {
            "similarity_search_with_score_by_vector",
            "max_marginal_relevance_search_with_score",
            "max_marginal_relevance_search_with_score_by_vector",
        }
    )

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._preparing = asyncio.Lock()
        self._is_prepared = False

    def ready(self) -> None:
        """Check that in async mode there is an event loop."""
        if self._store.async_mode and CALLERS_LOOP.get() is None:
            msg = (
                "this PGVector is in async mode: use the async methods (await "
                "store.aadd_documents(...)), or give PGVector a synchronous engine."
            )
            raise RuntimeError(msg)

    async def acall(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a reading method, by PGVector's own async twin if that works."""
        if self._store.async_mode:
            await self._prepared()
            return await super().acall(name, *args, **kwargs)
        return await run_in_executor(None, self.call, name, *args, **kwargs)

    @property
    def name(self) -> str:
        """Class and collection of the store."""
        return name_of(self._store, self._store.collection_name)

    def _rows(self, connection: Any) -> EntryRows:
        table, collection = self._store.EmbeddingStore.__table__, self._collection(connection)
        return EntryRows(
            table,
            table.c.collection_id == collection,
            ("id", "document", "embedding", "cmetadata"),
            {"collection_id": collection},
        )

    @property
    def _place_name(self) -> str:
        return f"the collection {self._store.collection_name!r}"

    def _check_ids(self, connection: Any, rows: EntryRows, ids: Sequence[str]) -> None:
        """Refuse ids of other collections: PGVector would overwrite their entries."""
        from sqlalchemy import select  # noqa: PLC0415

        for part in chunks(ids, AT_ONCE):
            foreign = select(rows.id).where(rows.id.in_(part), ~rows.condition).limit(1)
            if (taken := connection.scalar(foreign)) is not None:
                msg = (
                    f"id {taken!r} is taken by another collection of this database, and ids are "
                    "unique across them; put the collection's name in front of it."
                )
                raise InvalidBatchError(msg)

    def near(self, vector: list[float], k: int) -> list[Document]:
        """Return the nearest documents, on the caller's loop if the store works on one."""
        loop = CALLERS_LOOP.get()
        if not self._store.async_mode or loop is None:
            return super().near(vector, k)

        async def search() -> list[Document]:
            await self._prepared()
            found: list[Document] = await self._store.asimilarity_search_by_vector(vector, k=k)
            return found

        return on_loop(loop, search)

    def _collection(self, session: Any) -> Any:
        store = self._store
        found = store.CollectionStore.get_by_name(session, store.collection_name)
        if found is None:
            msg = (
                f"the collection {store.collection_name!r} is not in the database any more; make "
                "it again with create_collection of the store inside."
            )
            raise RuntimeError(msg)
        return found.uuid

    async def _prepared(self) -> None:
        """Make the tables, once; PGVector itself lets a second task pass while the first works."""
        if self._is_prepared:
            return
        async with self._preparing:
            try:
                await self._store.__apost_init__()
            except BaseException:
                self._store._async_init = False  # noqa: SLF001 - else it is never tried again
                raise
            self._is_prepared = True

    def _run(self, work: Callable[[Any], T]) -> T:
        """Run ``work`` in one transaction."""
        self.ready()
        loop = CALLERS_LOOP.get()
        if not self._store.async_mode or loop is None:
            with self._store._make_sync_session() as session, session.begin():  # noqa: SLF001
                return work(session)

        async def transaction() -> T:
            await self._prepared()
            async with self._store._make_async_session() as session, session.begin():  # noqa: SLF001
                done: T = await session.run_sync(work)
                return done

        return on_loop(loop, transaction)


def _unfit(text: str, metadata: Mapping[str, Any]) -> str | None:
    """Return why PostgreSQL cannot keep an entry, if it cannot."""
    try:
        nul = "\\u0000" in json.dumps(metadata, allow_nan=False) or "\0" in text
        (text + json.dumps(metadata, ensure_ascii=False)).encode()
    except (TypeError, ValueError) as error:  # their messages may quote values
        return (
            f"PostgreSQL cannot keep it ({type(error).__name__}), expected Unicode text and "
            "metadata that JSON can hold."
        )
    return "it holds a NUL, which PostgreSQL cannot keep." if nul else None


def _plain(value: Any) -> Any:
    """Return a value as PGVectorStore itself passes it to a column."""
    return json.dumps(value) if isinstance(value, dict) else value
