"""langchain-postgres' PGVectorStore, a table of its own per store; not imported until needed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.documents import Document

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import printable
from ragshield_core.store.inner import CALLERS_LOOP, on_loop
from ragshield_core.store.one_store import name_of
from ragshield_langchain.inner.postgres import EntryRows, PostgresRows

T = TypeVar("T")

TEXTS = frozenset({"text", "character varying"})


class PGVectorStoreInner(PostgresRows):
    """langchain-postgres' PGVectorStore, from ``create_sync`` or ``create``.

    A write is one transaction. It runs on the loop of the ``PGEngine``, or, if that has none, on
    the caller's event loop; then only the async methods of a guarded store work.
    """

    of = ("langchain_postgres.v2.vectorstores", "PGVectorStore")
    searches = frozenset(
        {
            "similarity_search_with_score_by_vector",
            "max_marginal_relevance_search_with_score_by_vector",
        }
    )

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        # The object that knows the table; there is no public way to it.
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
        self._kinds: dict[str, str] = {}  # types of columns, read at the first use

    @property
    def name(self) -> str:
        """Class and table of the store."""
        return name_of(self._store, self._inside.table_name)

    def ready(self) -> None:
        """Check that there is an event loop to work on, other than this thread's own."""
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
        """Return the result of a reading method, or of its async twin without an engine's loop."""
        if self._engine._loop is not None:  # noqa: SLF001
            self.ready()
            return super().call(name, *args, **kwargs)
        return self._wait(lambda: getattr(self._store, f"a{name}")(*args, **kwargs))

    def near(self, vector: list[float], k: int) -> list[Document]:
        """Return the nearest documents by their vectors alone, also of a hybrid store."""
        search = self._store.asimilarity_search_by_vector
        found: list[Document] = self._wait(lambda: search(vector, k=k, hybrid_search_config=None))
        return found

    def unfit(self, batch: Batch, metadatas: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        """Return the rows with metadata or texts that PostgreSQL cannot keep."""
        single = self._inside.metadata_columns  # these have types of their own
        rest = [{k: v for k, v in metadata.items() if k not in single} for metadata in metadatas]
        return super().unfit(batch, rest)

    @property
    def _place_name(self) -> str:
        return f"the table {self._inside.table_name!r}"

    def _rows(self, connection: Any) -> EntryRows:
        from pgvector.sqlalchemy import Vector  # noqa: PLC0415 - needed by langchain-postgres
        from sqlalchemy import JSON, Text, Uuid, column, table, true  # noqa: PLC0415
        from sqlalchemy.dialects.postgresql import JSONB  # noqa: PLC0415

        inside, search = self._inside, self._inside.hybrid_search_config
        of_text = self._kind_of_ids(connection) in TEXTS
        is_jsonb = self._kinds.get(inside.metadata_json_column) == "jsonb"
        types: dict[str, Any] = {
            inside.id_column: Text() if of_text else Uuid(as_uuid=False),
            inside.content_column: Text(),
            inside.embedding_column: Vector(),
            inside.metadata_json_column: JSONB() if is_jsonb else JSON(),
        }
        names = [*types, *inside.metadata_columns]
        words = (search.tsv_column, search.tsv_lang or None) if search is not None else ("", None)
        columns = [column(name, types.get(name)) for name in [*names, words[0]] if name]
        made = table(inside.table_name, *columns, schema=inside.schema_name)
        return EntryRows(made, true(), names, words=words if words[0] else None)

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

    def _check_ids(self, connection: Any, rows: EntryRows, ids: Sequence[str]) -> None:  # noqa: ARG002
        """Refuse ids that the table cannot hold, or would return as other ids."""
        known = set(self._holdable(connection, ids))
        for entry_id in ids:
            if entry_id not in known:
                msg = (
                    f"id {printable(entry_id)!r} is no UUID in lower case with hyphens, and the "
                    f"table {self._inside.table_name!r} takes no other; nothing was written. Make "
                    'it with id_column=Column("langchain_id", "TEXT").'
                )
                raise InvalidBatchError(msg)

    def _holdable(self, connection: Any, ids: Sequence[str]) -> list[str]:
        """Return the ids that the table's column can hold."""
        if self._kind_of_ids(connection) in TEXTS:
            return list(ids)
        return [one for one in ids if _is_uuid(one)]

    def _run(self, work: Callable[[Any], T]) -> T:
        """Run ``work`` in one transaction."""

        async def transaction() -> T:
            async with self._inside.engine.begin() as connection:
                answer: T = await connection.run_sync(work)
                return answer

        return self._wait(transaction)

    def _wait(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop of the connections."""
        self.ready()
        loop: Any = self._engine._loop or CALLERS_LOOP.get()  # noqa: SLF001
        return on_loop(loop, start)


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
