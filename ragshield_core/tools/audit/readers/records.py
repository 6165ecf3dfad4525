"""Files of records: JSON Lines and parquet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.source import (
    CHUNK_ROWS,
    USUAL,
    Columns,
    Rows,
    Source,
    Vectors,
    as_id,
    as_scalar,
    reading,
    vectors_of,
)

# A vector as a list of Python floats takes eight times the room: 1,024 of them as much as a chunk.
JSON_ROWS = 1_024


class RecordReader:
    """Turns records, one mapping per row, into columns; remembers which columns it has met."""

    def __init__(self, source: Source) -> None:
        self._path = source.path
        self._metadata = source.metadata
        self._names = {role: source.columns.names(role) for role in USUAL}
        self._given = {role: getattr(source.columns, role) for role in USUAL}
        self._met: set[str] = set()
        self._seen: tuple[str, ...] = ()

    def rows(
        self,
        records: Sequence[tuple[str, Mapping[str, Any]]],
        matrix: NDArray[np.float32] | None = None,
    ) -> Rows:
        """Return a chunk; ``matrix`` are vectors that were read already, one per record."""
        self._seen = self._seen or tuple(map(str, records[0][1]))
        places = [f"{self._path}, {place}" for place, _ in records]
        plain = [record for _, record in records]
        columns = {role: [self._value(role, record) for record in plain] for role in USUAL}
        ids = []
        for value, record, place in zip(columns["id"], plain, places, strict=True):
            if value is None:
                msg = (
                    f"{place}: no id, expected one under {self._named('id')}; it has "
                    f"{sorted(map(str, record))[:8]}. Name the column with --id-column."
                )
                raise SourceError(msg)
            ids.append(as_id(value, place))
        if matrix is not None:
            self._met.add("embedding")
            vectors: Vectors | None = Vectors(np.arange(len(ids)), matrix)
        else:
            vectors = vectors_of(columns["embedding"], places)
        has_vector = set() if vectors is None else set(vectors.rows.tolist())
        texts = []
        for row, text in enumerate(columns["text"]):
            if text is None and row not in has_vector:
                msg = (
                    f"{places[row]}: neither a text under {self._named('text')} nor a vector under "
                    f"{self._named('embedding')}, expected one of them; name the column with "
                    "--text-column or --embedding-column."
                )
                raise SourceError(msg)
            if text is not None and not isinstance(text, str):
                msg = f"{places[row]}: text is of type {type(text).__name__}, expected a str."
                raise SourceError(msg)
            texts.append(text or "")
        dropped = {*self._names["id"], *self._names["text"], *self._names["embedding"]}
        return Rows(
            ids=ids,
            texts=texts,
            labels=list(map(partial(as_scalar, "label"), columns["label"], places)),
            lineages=list(map(partial(as_scalar, "lineage"), columns["lineage"], places)),
            metadatas=[{k: v for k, v in record.items() if k not in dropped} for record in plain]
            if self._metadata
            else [],
            vectors=vectors,
        )

    def check_columns(self) -> None:
        """Refuse a column that was asked for by name and is in no row."""
        for role, name in self._given.items():
            if name and self._seen and role not in self._met:
                msg = (
                    f"{self._path} has no {role} column {name!r}, expected one of "
                    f"{list(self._seen)[:20]}."
                )
                raise SourceError(msg)

    def _value(self, role: str, record: Mapping[str, Any]) -> Any:
        for name in self._names[role]:
            if name in record:
                self._met.add(role)
                if record[name] is not None:
                    return record[name]
        return None

    def _named(self, role: str) -> str:
        return " or ".join(map(repr, self._names[role])) or "no name"


class JsonLines(Source):
    """One JSON object per line, gzip-compressed if the name ends in ``.gz``."""

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        with reading(self.path), _opened(self.path) as file:
            return sum(1 for line in file if line.strip())

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; blank lines are ignored."""
        reader = RecordReader(self)
        lines = objects(self.path)
        while records := [(f"line {number}", row) for number, row in islice(lines, JSON_ROWS)]:
            yield reader.rows(records)
        reader.check_columns()


def objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a file, with the numbers of their lines; blank lines are ignored.

    Raises
    ------
    SourceError
        If the file cannot be read, or a line is no object; names the line.
    """
    with reading(path), _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _parsed(line, f"{path}, line {number}")


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _parsed(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        # The parser's own message would quote hostile text.
        msg = (
            f"{place}: not valid JSON ({type(error).__name__}), expected one JSON object per line."
        )
        raise SourceError(msg) from None
    if not isinstance(value, dict):
        msg = f"{place}: a JSON {type(value).__name__}, expected an object "
        raise SourceError(msg + 'such as {"id": "1", "text": "..."}.')
    return value


class Parquet(Source):
    """A parquet file; needs pyarrow, the extra ``parquet``.

    Parameters
    ----------
    path, columns, metadata
        As of :class:`Source`.
    groups
        Numbers of the row groups that are read; ``None`` for all.
    """

    def __init__(
        self,
        path: Path,
        columns: Columns | None = None,
        *,
        metadata: bool = False,
        groups: range | None = None,
    ) -> None:
        super().__init__(path, columns, metadata=metadata)
        self._groups = groups

    def __len__(self) -> int:
        sizes = self.group_sizes()
        return sum(sizes if self._groups is None else (sizes[group] for group in self._groups))

    def group_sizes(self) -> list[int]:
        """Return the number of rows in each row group of the file."""
        metadata = self._file().metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; a column of vectors of one length is read without lists."""
        reader = RecordReader(self)
        with reading(self.path):
            file = self._file()
            names = list(file.schema_arrow.names)
            roles = {role: _first_of(self.columns.names(role), names) for role in USUAL}
            wanted = names if self.metadata else [name for name in roles.values() if name]
            groups = None if self._groups is None else list(self._groups)
            number = sum(self.group_sizes()[: groups[0]]) if groups else 0
            batches = file.iter_batches(batch_size=CHUNK_ROWS, row_groups=groups, columns=wanted)
            for batch in batches:
                matrix = _plain_matrix(batch, roles["embedding"])
                if matrix is not None:
                    batch = batch.drop_columns([roles["embedding"]])  # noqa: PLW2901
                records = [
                    (f"row {number + row}", record) for row, record in enumerate(batch.to_pylist())
                ]
                number += len(records)
                if records:
                    yield reader.rows(records, matrix)
        reader.check_columns()

    def _file(self) -> Any:
        try:
            import pyarrow.parquet  # noqa: PLC0415 - an extra
        except ImportError as error:
            msg = f"reading {self.path} needs pyarrow; pip install 'ragshield[parquet]'."
            raise SourceError(msg) from error
        with reading(self.path):
            return pyarrow.parquet.ParquetFile(self.path)


def _plain_matrix(batch: Any, name: str | None) -> NDArray[np.float32] | None:
    """Return a column of float lists of one length without making Python objects of it."""
    if name is None or not batch.num_rows:
        return None
    column = batch.column(name)
    if column.null_count or not hasattr(column, "flatten"):
        return None
    flat = column.flatten()
    if "float" not in str(flat.type) and str(flat.type) != "double":
        return None
    dim, rest = divmod(len(flat), batch.num_rows)
    if rest or not dim or flat.null_count:
        return None
    if hasattr(column, "value_lengths"):  # lists of a fixed size have none
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != dim).any():
            return None
    matrix: NDArray[np.float32] = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return matrix.reshape(batch.num_rows, dim)


def _first_of(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first wanted name that is there."""
    return next((name for name in wanted if name in names), None)
