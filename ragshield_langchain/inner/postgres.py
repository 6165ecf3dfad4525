"""langchain-postgres' PGVector; that package is an extra and not imported until needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore

from ragshield_core import Batch
from ragshield_core.adapters.one_store import name_of
from ragshield_core.adapters.postgres_vectors import Place, PostgresVectors
from ragshield_core.errors import InvalidBatchError
from ragshield_core.findings import printable
from ragshield_langchain.inner.base import CALLERS_LOOP, InnerStore, Stored, chunks, comes_from

T = TypeVar("T")

AT_ONCE = 1000  # rows of one statement; PostgreSQL allows 65,535 parameters


class PostgresInner(InnerStore):
    """langchain-postgres' PGVector, with a synchronous engine or in async mode.

    A write is one transaction. In async mode it runs on the caller's event loop, where the
    connections are; with a synchronous engine, which PGVector itself cannot use from async code,
    async reads run in a thread.
    """

    searches = frozenset(
        {
            "similarity_search_with_score_by_vector",
            "max_marginal_relevance_search_with_score",
            "max_marginal_relevance_search_with_score_by_vector",
        }
    )
    refused: ClassVar[Mapping[str, str]] = {
        "from_existing_index": "GuardedVectorStore.adopt(PGVector(...))",
        "afrom_existing_index": "await GuardedVectorStore.aadopt(PGVector(..., async_mode=True))",
    }

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._preparing = asyncio.Lock()
        self._is_prepared = False

    @classmethod
    def handles(cls, store_cls: type[VectorStore]) -> bool:
        """Return whether it is PGVector, without importing langchain-postgres."""
        return comes_from(store_cls, "langchain_postgres.vectorstores", "PGVector")

    @classmethod
    def create(
        cls,
        store_cls: type[VectorStore],
        embedding: Embeddings,
        dim: int,  # noqa: ARG003 - a column takes vectors of any dimension
        options: dict[str, Any],
    ) -> VectorStore:
        """Return the collection of the given name; it is made where there is none."""
        return store_cls(embedding, **options)  # type: ignore[call-arg]

    def ready(self) -> None:
        """Check that in async mode there is an event loop."""
        if self._store.async_mode and CALLERS_LOOP.get() is None:
            msg = (
                "this PGVector is in async mode: use the async methods (await "
                "store.aadd_documents(...)), or give PGVector a synchronous engine."
            )
            raise RuntimeError(msg)

    async def acall(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a reading method returns, by PGVector's own async method if it works."""
        if self._store.async_mode:
            await self._prepared()
            return await super().acall(name, *args, **kwargs)
        return await run_in_executor(None, self.call, name, *args, **kwargs)

    @property
    def name(self) -> str:
        """Its class and collection."""
        return name_of(self._store, self._store.collection_name)

    @property
    def table(self) -> PostgresVectors:
        """The vectors of the collection."""
        return PostgresVectors(self.name, self._run, self._place)

    def _place(self, session: Any) -> Place:
        table = self._table()
        quoted = session.get_bind().dialect.identifier_preparer
        return Place(
            table=quoted.format_table(table),
            key_column="id",
            id_column="id",
            vector_column="embedding",
            condition="e.collection_id = :collection",
            values={"collection": self._collection(session)},
        )

    def read(self, ids: Sequence[str]) -> Stored:
        """Return what the collection holds under the ids."""
        from sqlalchemy import select  # noqa: PLC0415 - slow to import

        wanted = list(dict.fromkeys(ids))

        def work(session: Any) -> list[Any]:
            table, collection = self._table(), self._collection(session)
            return [
                row
                for part in chunks(len(wanted), AT_ONCE)
                for row in session.execute(
                    select(table.c.id, table.c.document, table.c.cmetadata, table.c.embedding)
                    .where(table.c.collection_id == collection)
                    .where(table.c.id.in_(wanted[part]))
                )
            ]

        found = {row.id: row for row in self._run(work)}
        rows = [found[entry_id] for entry_id in wanted if entry_id in found]
        documents = [
            Document(id=row.id, page_content=row.document or "", metadata=row.cmetadata or {})
            for row in rows
        ]
        return Stored(documents, np.array([row.embedding for row in rows], dtype=np.float32))

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with metadata or texts that PostgreSQL cannot keep."""
        return unfit_for_postgres(batch.texts, metadatas)

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries in one transaction."""
        from sqlalchemy import select  # noqa: PLC0415
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415

        self.check(batch, metadatas)

        def work(session: Any) -> None:
            table, collection = self._table(), self._collection(session)
            for part in chunks(len(batch), AT_ONCE):
                ids = list(batch.ids[part])
                # Ids are unique across collections: PGVector would overwrite the other's entry.
                foreign = session.scalar(
                    select(table.c.id)
                    .where(table.c.id.in_(ids))
                    .where(table.c.collection_id != collection)
                    .limit(1)
                )
                if foreign is not None:
                    msg = (
                        f"id {foreign!r} is taken by another collection of this database, and ids "
                        "are unique across them; put the collection's name in front of it."
                    )
                    raise InvalidBatchError(msg)
                rows = [
                    {
                        "id": entry_id,
                        "collection_id": collection,
                        "embedding": vector,
                        "document": text,
                        "cmetadata": metadata,
                    }
                    for entry_id, vector, text, metadata in zip(
                        ids,
                        batch.vectors[part].tolist(),
                        batch.texts[part],
                        metadatas[part],
                        strict=True,
                    )
                ]
                new = insert(table)
                changed = {
                    column: getattr(new.excluded, column)
                    for column in ("embedding", "document", "cmetadata")
                }
                session.execute(
                    new.on_conflict_do_update(index_elements=["id"], set_=changed), rows
                )

        with unquoted(batch, f"the collection {self._store.collection_name!r}"):
            self._run(work)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete what the collection holds under the ids."""
        from sqlalchemy import delete  # noqa: PLC0415

        def work(session: Any) -> None:
            table, collection = self._table(), self._collection(session)
            for part in chunks(len(ids), AT_ONCE):
                session.execute(
                    delete(table)
                    .where(table.c.collection_id == collection)
                    .where(table.c.id.in_(list(ids[part])))
                )

        self._run(work)

    def near(self, vector: list[float], k: int) -> list[Document]:
        """Return the nearest documents, on the caller's loop where the store works on one."""
        loop = CALLERS_LOOP.get()
        if not self._store.async_mode or loop is None:
            return super().near(vector, k)

        async def there() -> list[Document]:
            await self._prepared()
            found: list[Document] = await self._store.asimilarity_search_by_vector(vector, k=k)
            return found

        return asyncio.run_coroutine_threadsafe(there(), loop).result()

    def ids(self) -> list[str]:
        """Return the ids of all that the collection holds."""
        from sqlalchemy import select  # noqa: PLC0415

        def work(session: Any) -> list[str]:
            table, collection = self._table(), self._collection(session)
            query = select(table.c.id).where(table.c.collection_id == collection)
            return list(session.scalars(query.order_by(table.c.id)))

        return self._run(work)

    def _table(self) -> Any:
        return self._store.EmbeddingStore.__table__

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
        """Have tables made, once; PGVector itself lets a second task pass while the first works."""
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

        async def there() -> T:
            await self._prepared()
            async with self._store._make_async_session() as session, session.begin():  # noqa: SLF001
                done: T = await session.run_sync(work)
                return done

        return asyncio.run_coroutine_threadsafe(there(), loop).result()


@contextmanager
def unquoted(batch: Batch, place: str) -> Iterator[None]:
    """Keep texts and metadata out of what is said of a write that failed.

    Raises
    ------
    InvalidBatchError
        If the database refused what was to be written.
    """
    from sqlalchemy.exc import OperationalError, StatementError  # noqa: PLC0415

    try:
        yield
    except OperationalError as error:  # of the server, not of what was written
        error.hide_parameters = True
        raise
    except StatementError as error:
        # Neither its message nor its cause: both may quote what was to be written.
        kind = type(error.orig or error).__name__
        msg = (
            f"entry {printable(batch.ids[0])!r} and its batch were refused by {place} ({kind}), "
            "nothing was written; expected vectors of its dimension, and metadata of the types of "
            "its columns."
        )
        raise InvalidBatchError(msg) from None


def unfit_for_postgres(
    texts: Sequence[str], metadatas: Sequence[Mapping[str, Any]]
) -> dict[int, str]:
    """Return the rows with metadata or texts that PostgreSQL cannot keep, each with the reason."""
    columns = zip(texts, metadatas, strict=True)
    reasons = {row: _unfit(*column) for row, column in enumerate(columns)}
    return {row: reason for row, reason in reasons.items() if reason is not None}


def _unfit(text: str, metadata: Mapping[str, Any]) -> str | None:
    """Return why PostgreSQL cannot keep an entry, if it cannot."""
    try:
        nul = "\\u0000" in json.dumps(metadata, allow_nan=False) or "\0" in text
        (text + json.dumps(metadata, ensure_ascii=False)).encode()
    except (TypeError, ValueError) as error:  # what they say may quote values
        return (
            f"PostgreSQL cannot keep it ({type(error).__name__}), expected Unicode text and "
            "metadata that JSON can hold."
        )
    return "it holds a NUL, which PostgreSQL cannot keep; take it out." if nul else None
