"""langchain-postgres' PGVectorStore, a table of its own per store; not imported until needed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from ragshield_core import Batch
from ragshield_core.adapters.one_store import name_of
from ragshield_core.adapters.postgres_vectors import Place, PostgresVectors
from ragshield_core.errors import InvalidBatchError
from ragshield_core.findings import printable
from ragshield_langchain.inner.base import CALLERS_LOOP, InnerStore, Stored, chunks, comes_from
from ragshield_langchain.inner.postgres import AT_ONCE, unfit_for_postgres, unquoted

T = TypeVar("T")

TEXTS = frozenset({"text", "character varying"})
TSV = "_ragshield_tsv"  # the parameter that a column for full-text search is made of


class PGVectorStoreInner(InnerStore):
    """langchain-postgres' PGVectorStore, from ``create_sync`` or ``create``.

    A write is one transaction. It runs on the loop of the ``PGEngine``, or, where that has none, on
    the caller's event loop; then only the async methods of a guarded store work.
    """

    searches = frozenset(
        {
            "similarity_search_with_score_by_vector",
            "max_marginal_relevance_search_with_score_by_vector",
        }
    )
    refused: ClassVar[Mapping[str, str]] = {
        "create": "await GuardedVectorStore.aadopt(await PGVectorStore.create(...))",
        "create_sync": "GuardedVectorStore.adopt(PGVectorStore.create_sync(...))",
    }

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        # What knows the table: there is no public way to it.
        self._inside: Any = getattr(store, "_PGVectorStore__vs", None)
        self._engine: Any = getattr(store, "_engine", None)
        if self._inside is None or self._engine is None:
            msg = (
                "this version of langchain-postgres does not say which table a PGVectorStore "
                "writes; known are 0.0.14 to 0.0.19. Use one of these, or PGVector."
            )
            raise TypeError(msg)
        if self._inside.metadata_json_column is None:
            msg = (
                f"the table {self._inside.table_name!r} of this PGVectorStore has no column for "
                "metadata as JSON, so that it drops metadata without a column of its own, and the "
                "guard's remarks; add one: ALTER TABLE ... ADD COLUMN langchain_metadata JSON."
            )
            raise TypeError(msg)
        self._kinds: dict[str, str] = {}  # of columns, asked at the first use

    @property
    def name(self) -> str:
        """Its class and table."""
        return name_of(self._store, self._inside.table_name)

    @property
    def fuses(self) -> bool:
        """Whether it also searches for words."""
        return self._inside.hybrid_search_config is not None

    @classmethod
    def handles(cls, store_cls: type[VectorStore]) -> bool:
        """Return whether it is PGVectorStore, without importing langchain-postgres."""
        return comes_from(store_cls, "langchain_postgres.v2.vectorstores", "PGVectorStore")

    @classmethod
    def create(
        cls,
        store_cls: type[VectorStore],
        embedding: Embeddings,
        dim: int,  # noqa: ARG003 - the table has one
        options: dict[str, Any],
    ) -> VectorStore:
        """Return a store on a table that exists; ``PGEngine.init_vectorstore_table`` makes it."""
        store: VectorStore = store_cls.create_sync(  # type: ignore[attr-defined]
            embedding_service=embedding, **options
        )
        return store

    def ready(self) -> None:
        """Check that there is an event loop to work on, other than the one that would wait."""
        loop = self._engine._loop or CALLERS_LOOP.get()  # noqa: SLF001
        if loop is not None and loop is not _running():
            return
        msg = (
            "the PGEngine of this PGVectorStore works on the caller's event loop: use the async "
            "methods (await store.aadd_documents(...)), or PGEngine.from_connection_string(...), "
            "which has a loop of its own."
        )
        raise RuntimeError(msg)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a reading method returns; of an engine without a loop, by its async twin."""
        if self._engine._loop is not None:  # noqa: SLF001
            self.ready()
            return super().call(name, *args, **kwargs)
        return self._wait(lambda: getattr(self._store, f"a{name}")(*args, **kwargs))

    def get(self, ids: Sequence[str]) -> list[Document]:
        """Return documents; ids that the table cannot hold are missing ones."""
        return super().get(self._holdable(ids, self._run(self._kind_of_ids))) if ids else []

    async def aget(self, ids: Sequence[str]) -> list[Document]:
        """Do as :meth:`get` does."""
        if not ids:
            return []
        kind = await self._engine._run_as_async(self._there(self._kind_of_ids))  # noqa: SLF001
        return await super().aget(self._holdable(ids, kind))

    def near(self, vector: list[float], k: int) -> list[Document]:
        """Return the nearest documents by their vectors alone, also of a hybrid store."""
        search = self._store.asimilarity_search_by_vector
        found: list[Document] = self._wait(lambda: search(vector, k=k, hybrid_search_config=None))
        return found

    def matching(self, **kwargs: Any) -> list[str] | None:
        """Return the ids that ``filter`` would delete."""
        if not kwargs.get("filter"):
            return None
        where = kwargs["filter"]
        found: list[str] = self._wait(lambda: self._store.aget(where=where, include=[]))["ids"]
        return found

    @property
    def table(self) -> PostgresVectors:
        """The vectors of the table."""
        return PostgresVectors(
            self.name,
            self._run,
            self._place,
            lambda connection, ids: self._holdable(ids, self._kind_of_ids(connection)),
        )

    def _place(self, connection: Any) -> Place:
        inside, quoted = self._inside, connection.dialect.identifier_preparer
        return Place(
            table=quoted.format_table(self._table(connection)),
            key_column=quoted.quote(inside.id_column),
            id_column=quoted.quote(inside.id_column),
            vector_column=quoted.quote(inside.embedding_column),
            condition="TRUE",
            values={},
        )

    def read(self, ids: Sequence[str]) -> Stored:
        """Return what the table holds under the ids."""
        from sqlalchemy import select  # noqa: PLC0415 - slow to import

        inside, wanted = self._inside, list(dict.fromkeys(ids))

        def work(connection: Any) -> list[Any]:
            table = self._table(connection)
            known = self._holdable(wanted, self._kind_of_ids(connection))
            query = select(*(table.c[name] for name in self._columns))
            return [
                row
                for part in chunks(len(known), AT_ONCE)
                for row in connection.execute(
                    query.where(table.c[inside.id_column].in_(known[part]))
                ).mappings()
            ]

        found = {str(row[inside.id_column]): row for row in self._run(work)}
        rows = [found[entry_id] for entry_id in wanted if entry_id in found]
        documents = [
            Document(
                id=str(row[inside.id_column]),
                page_content=row[inside.content_column],
                metadata={
                    **(row[inside.metadata_json_column] or {}),
                    **{name: row[name] for name in inside.metadata_columns},
                },
            )
            for row in rows
        ]
        vectors = [row[inside.embedding_column] for row in rows]
        return Stored(documents, np.array(vectors, dtype=np.float32))

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with metadata or texts that PostgreSQL cannot keep."""
        return unfit_for_postgres(batch.texts, self._without_columns(metadatas))

    def _without_columns(self, metadatas: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return what of metadata goes into the column of JSON."""
        own = self._inside.metadata_columns
        return [{k: v for k, v in metadata.items() if k not in own} for metadata in metadatas]

    def write(self, batch: Batch, metadatas: list[dict[str, Any]]) -> None:
        """Store entries in one transaction."""
        from sqlalchemy import Text, bindparam, func  # noqa: PLC0415
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415

        inside, search = self._inside, self._inside.hybrid_search_config
        with_columns = self._without_columns(metadatas)
        self.check(batch, metadatas)
        tsv = search.tsv_column if search is not None else None

        def work(connection: Any) -> None:
            table = self._table(connection)
            self._check_ids(batch.ids, self._kind_of_ids(connection))
            new = insert(table)
            changed = {
                name: new.excluded[name] for name in self._columns if name != inside.id_column
            }
            if tsv:
                language = [search.tsv_lang] if search.tsv_lang else []
                content = bindparam(TSV, type_=Text)
                new = new.values({tsv: func.to_tsvector(*map(_language, language), content)})
                changed[tsv] = new.excluded[tsv]
            for part in chunks(len(batch), AT_ONCE):
                rows = [
                    {
                        inside.id_column: entry_id,
                        inside.content_column: text,
                        inside.embedding_column: vector,
                        inside.metadata_json_column: rest,
                        **{n: _plain(metadata.get(n)) for n in inside.metadata_columns},
                        **({TSV: text} if tsv else {}),
                    }
                    for entry_id, text, vector, metadata, rest in zip(
                        batch.ids[part],
                        batch.texts[part],
                        batch.vectors[part].tolist(),
                        metadatas[part],
                        with_columns[part],
                        strict=True,
                    )
                ]
                connection.execute(
                    new.on_conflict_do_update(index_elements=[inside.id_column], set_=changed),
                    rows,
                )

        with unquoted(batch, f"the table {inside.table_name!r}"):
            self._run(work)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete what the table holds under the ids."""
        from sqlalchemy import delete  # noqa: PLC0415

        def work(connection: Any) -> None:
            table = self._table(connection)
            known = self._holdable(ids, self._kind_of_ids(connection))
            for part in chunks(len(known), AT_ONCE):
                which = table.c[self._inside.id_column].in_(known[part])
                connection.execute(delete(table).where(which))

        self._run(work)

    def ids(self) -> list[str]:
        """Return the ids of all that the table holds."""
        from sqlalchemy import select  # noqa: PLC0415

        def work(connection: Any) -> list[str]:
            column = self._table(connection).c[self._inside.id_column]
            return [str(one) for one in connection.scalars(select(column).order_by(column))]

        return self._run(work)

    @property
    def _columns(self) -> list[str]:
        """The names of the columns that are written and read."""
        inside = self._inside
        names = [inside.id_column, inside.content_column, inside.embedding_column]
        return [*names, inside.metadata_json_column, *inside.metadata_columns]

    def _table(self, connection: Any) -> Any:
        """Return the table, with the types that matter here."""
        from pgvector.sqlalchemy import Vector  # noqa: PLC0415 - needed by langchain-postgres
        from sqlalchemy import JSON, Text, Uuid, column, table  # noqa: PLC0415
        from sqlalchemy.dialects.postgresql import JSONB  # noqa: PLC0415

        inside = self._inside
        self._kind_of_ids(connection)
        is_jsonb = self._kinds.get(inside.metadata_json_column) == "jsonb"
        types: dict[str, Any] = {
            inside.id_column: Text() if self._kinds[inside.id_column] in TEXTS else Uuid(False),  # noqa: FBT003
            inside.content_column: Text(),
            inside.embedding_column: Vector(),
            inside.metadata_json_column: JSONB() if is_jsonb else JSON(),
        }
        search = inside.hybrid_search_config
        names = [*self._columns, *([search.tsv_column] if search and search.tsv_column else [])]
        columns = [column(name, types.get(name)) for name in names]
        return table(inside.table_name, *columns, schema=inside.schema_name)

    def _kind_of_ids(self, connection: Any) -> str:
        """Return the type of the column of ids."""
        from sqlalchemy import text  # noqa: PLC0415

        inside = self._inside
        if not self._kinds:
            query = text(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_name = :name AND table_schema = :schema"
            )
            where = {"name": inside.table_name, "schema": inside.schema_name}
            self._kinds = {name: kind for name, kind in connection.execute(query, where)}  # noqa: C416
        kind = self._kinds.get(inside.id_column)
        if kind is None:
            msg = (
                f"the table {inside.table_name!r} is not in the database any more; make it again "
                "with PGEngine.init_vectorstore_table(...)."
            )
            raise RuntimeError(msg)
        if kind != "uuid" and kind not in TEXTS:
            msg = (
                f"the ids of the table {inside.table_name!r} are of type {kind}, expected TEXT, "
                "VARCHAR or UUID: ids are strings here."
            )
            raise TypeError(msg)
        return kind

    def _check_ids(self, ids: Sequence[str], kind: str) -> None:
        """Refuse ids that the table cannot hold, or would give back as others."""
        known = set(self._holdable(ids, kind))
        for entry_id in ids:
            if entry_id not in known:
                msg = (
                    f"id {printable(entry_id)!r} is no UUID in lower case with hyphens, and the "
                    f"table {self._inside.table_name!r} takes no other; nothing was written. Make "
                    'it with id_column=Column("langchain_id", "TEXT").'
                )
                raise InvalidBatchError(msg)

    @staticmethod
    def _holdable(ids: Sequence[str], kind: str) -> list[str]:
        """Return the ids that a column of that type can hold."""
        return list(ids) if kind in TEXTS else [one for one in ids if _is_uuid(one)]

    def _run(self, work: Callable[[Any], T]) -> T:
        """Run ``work`` in one transaction."""
        return self._wait(lambda: self._there(work))

    async def _there(self, work: Callable[[Any], T]) -> T:
        async with self._inside.engine.begin() as connection:
            done: T = await connection.run_sync(work)
            return done

    def _wait(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Have something done on the loop where the connections are."""
        self.ready()
        loop: Any = self._engine._loop or CALLERS_LOOP.get()  # noqa: SLF001
        return asyncio.run_coroutine_threadsafe(start(), loop).result()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_uuid(entry_id: str) -> bool:
    try:
        return str(uuid.UUID(entry_id)) == entry_id
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    """Return a value as PGVectorStore itself hands it to a column."""
    return json.dumps(value) if isinstance(value, dict) else value


def _language(name: str) -> Any:
    from sqlalchemy import cast, literal  # noqa: PLC0415
    from sqlalchemy.dialects.postgresql import REGCONFIG  # noqa: PLC0415

    return cast(literal(name), REGCONFIG)
