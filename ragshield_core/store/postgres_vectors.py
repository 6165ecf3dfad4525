"""Vector search by pgvector in the PostgreSQL tables of either framework's stores."""

# ruff: noqa: S608 - statements contain only quoted names of the store's table
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.stored import FoundEntries, VectorTable

T = TypeVar("T")

# Least number of candidates that HNSW keeps: with it, about one in a hundred of the 16 nearest
# neighbours is missed (benchmarks/results/stored_neighbors.md).
EF_SEARCH, MOST_EF = 100, 1_000
# From this version on, an index goes on searching if a filter left too few rows. It may return the
# later rows in any order: a strict order of distance would drop rows that are found too late, a
# twentieth of the neighbours in a collection of one in a hundred rows.
ITERATIVE = (0, 8)
# Up to so many rows, all are compared: this is faster than an index shared with other stores.
FEW = 1_000
# If there are more, rows are counted again after so many searches: most may have been deleted.
RECOUNT = 1_000
# Bytes before each vector that pgvector sends: the dimension and a reserved number, two bytes each.
HEAD = 4


class VectorColumns(NamedTuple):
    """Table and columns of vectors, with names quoted for SQL.

    The key is unique, ids need not be: of the rows under one id, the row with the greatest key is
    the entry.
    """

    table: str
    key_column: str
    id_column: str
    vector_column: str
    condition: str  # for the rows of this store, in a table named ``e``; ``TRUE`` for all
    values: dict[str, Any]  # values of the parameters in the condition


class ColumnTypes(NamedTuple):
    """The types of ids and vectors, and whether the type of vectors fixes their length."""

    ids: str
    kind: str
    sized: bool


class PostgresVectors(VectorTable):
    """Vectors in a table of PostgreSQL.

    Neighbours are found by cosine distance. An index for another operator is not used; without an
    index, the whole table is compared, which is exact and slow. Up to :data:`FEW` rows of a store
    are also compared one by one: an index that it shares with others would find too few of them.

    ``run`` runs work in a transaction of its own. In it, ``place`` returns where the vectors are,
    and ``holdable`` which ids the table can hold. An HNSW index keeps ``ef_search`` candidates: a
    greater number finds more neighbours and takes longer.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Callable[[Any], Any]], Any],
        place: Callable[[Any], VectorColumns],
        holdable: Callable[[Any, Sequence[str]], Sequence[str]] = lambda _, ids: ids,
    ) -> None:
        self._name, self._run, self._place, self._holdable = name, run, place, holdable
        self.ef_search = EF_SEARCH
        self._version: tuple[int, ...] | None = None  # of pgvector
        self._columns: ColumnTypes | None = None
        self._by_index = 0  # searches until rows are counted again

    @property
    def name(self) -> str:
        """Name of the store."""
        return self._name

    def search(self, embeddings: NDArray[np.float32], k: int) -> FoundEntries:
        """Return the nearest rows of each query, in one statement.

        Queries for which the index found too few are compared with all rows.
        """

        def work(session: Any) -> FoundEntries:
            place = self._place(session)
            self._prepare(session, k)
            columns = self._columns_of(session, place)
            if (few := self._of_few(session, place, columns, embeddings, k)) is not None:
                return few
            found = _searched(session, place, columns, embeddings, k)
            short = np.flatnonzero((found.rows < 0).any(axis=1))
            n_found = (found.rows[short] >= 0).sum(axis=1)
            if not short.size or n_found.min() >= _count(session, place, k):
                return found
            self._set(session, "enable_seqscan", "on")
            self._set(session, "enable_indexscan", "off")
            return _joined(found, short, _searched(session, place, columns, embeddings[short], k))

        found: FoundEntries = self._run(work)
        return found

    def vectors(self, ids: Sequence[str]) -> tuple[list[str], NDArray[np.float32]]:
        """Return the ids that the table holds, with their vectors."""
        from sqlalchemy import ARRAY, Text, bindparam, text  # noqa: PLC0415 - slow to import

        def work(session: Any) -> list[Any]:
            place = self._place(session)
            columns = self._columns_of(session, place)
            query = text(
                f"SELECT CAST(e.{place.id_column} AS text), {_sent(place)} "
                f"FROM {place.table} AS e WHERE {place.condition} "
                f"AND e.{place.id_column} = ANY(CAST(:ids AS {columns.ids}[])) "
                f"ORDER BY e.{place.key_column}"
            ).bindparams(bindparam("ids", type_=ARRAY(Text)))
            wanted = list(self._holdable(session, list(ids)))
            return list(session.execute(query, place.values | {"ids": wanted}))

        sent_of = dict(tuple(row) for row in self._run(work))  # the last under each id
        return list(sent_of), _received(list(sent_of.values()))

    def _prepare(self, session: Any, k: int) -> None:
        """Set the search options for this transaction only."""
        from sqlalchemy import text  # noqa: PLC0415

        if self._version is None:
            query = text("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
            numbers = str(session.scalar(query)).split(".")
            self._version = tuple(int(number) for number in numbers if number.isdigit())
        self._set(session, "jit", "off")
        self._set(session, "hnsw.ef_search", str(min(MOST_EF, max(self.ef_search, k))))
        if self._version >= ITERATIVE:
            self._set(session, "hnsw.iterative_scan", "relaxed_order")
            self._set(session, "ivfflat.iterative_scan", "relaxed_order")

    def _of_few(
        self,
        session: Any,
        place: VectorColumns,
        columns: ColumnTypes,
        queries: NDArray[np.float32],
        k: int,
    ) -> FoundEntries | None:
        """Return the nearest of all rows, which are read once; ``None`` if there are many."""
        if self._by_index > 0:  # negative if several threads counted at the same time
            self._by_index -= 1
            return None
        found, n_rows = _found(session, place, columns, queries, k, at_most=FEW + 1)
        if n_rows <= FEW:
            return found
        self._by_index = RECOUNT
        return None

    def _columns_of(self, session: Any, place: VectorColumns) -> ColumnTypes:
        """Return the types of the columns, queried once."""
        from sqlalchemy import text  # noqa: PLC0415

        if self._columns is None:
            query = text(
                f"SELECT format_type(pg_typeof(e.{place.id_column})::oid, NULL) FROM "
                f"(SELECT NULL) AS one LEFT JOIN {place.table} AS e ON FALSE"
            )
            ids = str(session.scalar(query))
            query = text(
                "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = CAST(:table AS regclass) AND quote_ident(attname) = "
                "quote_ident(:column)"
            )
            where = {"table": place.table, "column": place.vector_column.strip('"')}
            kind, _, length = str(session.scalar(query, where)).partition("(")
            self._columns = ColumnTypes(ids, kind, bool(length))
        return self._columns

    @staticmethod
    def _set(session: Any, name: str, value: str) -> None:
        from sqlalchemy import text  # noqa: PLC0415

        session.execute(text(f"SET LOCAL {name} = {value}"))


def _count(session: Any, place: VectorColumns, most: int) -> int:
    """Return the number of rows, counted up to ``most``."""
    from sqlalchemy import text  # noqa: PLC0415

    query = text(
        f"SELECT count(*) FROM (SELECT 1 FROM {place.table} AS e "
        f"WHERE {place.condition} LIMIT :most) AS few"
    )
    return int(session.scalar(query, place.values | {"most": most}))


def _searched(
    session: Any, place: VectorColumns, columns: ColumnTypes, queries: NDArray[np.float32], k: int
) -> FoundEntries:
    """Return the rows that one statement finds, by an index if there is one."""
    return _found(session, place, columns, queries, k)[0]


def _found(
    session: Any,
    place: VectorColumns,
    columns: ColumnTypes,
    queries: NDArray[np.float32],
    k: int,
    *,
    at_most: int | None = None,
) -> tuple[FoundEntries, int]:
    """Return the rows that one statement finds, each vector once, and the number of rows compared.

    If ``at_most`` is given, queries are compared with so many rows, read once for all queries and
    without an index. Otherwise rows are not counted, and the number is 0.
    """
    from sqlalchemy import ARRAY, Text, bindparam, text  # noqa: PLC0415

    dim = queries.shape[1]
    vector = f"e.{place.vector_column}"
    if not columns.sized:  # such a column can have an index on this expression only
        vector = f"CAST({vector} AS {columns.kind}({dim}))"
    all_rows = (
        f"SELECT e.{place.key_column} AS key, {vector} AS vector "
        f"FROM {place.table} AS e WHERE {place.condition}"
    )
    few, source, n_read = "", f"({all_rows})", "0"
    if at_most is not None:
        few = f"few AS MATERIALIZED ({all_rows} LIMIT :at_most), "
        source, n_read = "few", "(SELECT count(*) FROM few)"
    statement = text(
        f"WITH {few}query AS MATERIALIZED ("
        f"  SELECT number, CAST(given AS {columns.kind}({dim})) AS vector"
        "  FROM unnest(:queries) WITH ORDINALITY AS q(given, number)"
        "), hit AS MATERIALIZED ("
        "  SELECT query.number, near.key FROM query CROSS JOIN LATERAL ("
        f"    SELECT one.key FROM {source} AS one ORDER BY one.vector <=> query.vector LIMIT :k"
        "  ) AS near"
        ") "
        f"SELECT CAST(e.{place.id_column} AS text), {_sent(place)}, h.numbers, {n_read} "
        "FROM (SELECT key, array_agg(number) AS numbers FROM hit GROUP BY key) AS h "
        f"JOIN {place.table} AS e ON e.{place.key_column} = h.key WHERE {place.condition} "
        f"ORDER BY e.{place.key_column}"
    ).bindparams(bindparam("queries", type_=ARRAY(Text)))
    written = [f"[{','.join(map(repr, row))}]" for row in queries.tolist()]
    sent_of: dict[str, bytes] = {}
    queries_of: dict[str, set[int]] = {}
    parameters = place.values | {"queries": written, "k": k}
    if at_most is not None:
        parameters["at_most"] = at_most
    n_rows = 0
    for name, sent, numbers, n_rows in session.execute(statement, parameters):  # noqa: B007
        sent_of[name] = sent  # the last under each id
        queries_of.setdefault(name, set()).update(numbers)
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    entry = np.repeat(np.arange(len(sent_of)), [len(some) for some in queries_of.values()])
    query = np.array([number - 1 for some in queries_of.values() for number in some], np.int64)
    order = np.argsort(query, kind="stable")
    entry, query = entry[order], query[order]
    rows[query, np.arange(len(query)) - np.searchsorted(query, query)] = entry
    return FoundEntries(list(sent_of), _received(list(sent_of.values()), dim), rows), n_rows


def _joined(found: FoundEntries, short: NDArray[np.intp], more: FoundEntries) -> FoundEntries:
    """Return the entries found, with better answers to some queries."""
    rows = found.rows.copy()
    rows[short] = np.where(more.rows >= 0, more.rows + len(found.ids), -1)
    number_of = {name: number for number, name in enumerate(found.ids)}
    new = [row for row, name in enumerate(more.ids) if name not in number_of]
    number_of |= {more.ids[row]: len(found.ids) + place for place, row in enumerate(new)}
    # Entries that were found before keep their number.
    numbers = np.array(
        [*range(len(found.ids)), *(number_of[name] for name in more.ids), -1], dtype=np.int64
    )
    return FoundEntries(
        [*found.ids, *(more.ids[row] for row in new)],
        np.concatenate([found.vectors, more.vectors[new]]),
        numbers[rows],
    )


def _sent(place: VectorColumns) -> str:
    """Return SQL for a vector in the bytes of the binary protocol, which any driver returns.

    Half-precision vectors become single precision.
    """
    return f"vector_send(CAST(e.{place.vector_column} AS vector))"


def _received(sent: Sequence[bytes], dim: int = 0) -> NDArray[np.float32]:
    """Return vectors as rows; vectors of other lengths become rows of zeros."""
    if not sent:
        return np.empty((0, dim), dtype=np.float32)
    longest = max(map(len, sent))
    dim = dim or (longest - HEAD) // 4
    rows = np.zeros((len(sent), dim), dtype=np.float32)
    for row, data in enumerate(sent):
        if len(data) == HEAD + 4 * dim:
            rows[row] = np.frombuffer(data, dtype=">f4", offset=HEAD)
    return rows
