"""Files of records: JSON Lines and parquet."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.source import (
    CHUNK_ROWS,
    USUAL,
    Rows,
    Source,
    Vectors,
    as_id,
    as_scalar,
    reading,
    vectors_of,
)

# Vectors as lists of Python floats take eight times the memory: 1,024 take as much as a chunk.
JSON_ROWS = 1_024

Matrix = NDArray[np.float32]
Numbered = list[tuple[str, Mapping[str, Any]]]  # records, and the place of each


def json_lines(source: Source) -> Iterator[Rows]:
    """Yield the objects of a file, one a line, gzip-compressed if its name ends in ``.gz``."""
    lines = ((f"line {number}", row) for number, row in objects(source.path))
    parts = iter(lambda: list(islice(lines, JSON_ROWS)), [])
    return _rows(source, ((part, None) for part in parts))


def objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a file, with the numbers of their lines; blank lines are ignored."""
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path), opened(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                # The parser's own message would quote hostile text.
                msg = f"{place}: not valid JSON ({type(error).__name__}), expected one JSON object "
                raise SourceError(msg + "per line.") from None
            if not isinstance(value, dict):
                msg = f"{place}: a JSON {type(value).__name__}, expected an object "
                raise SourceError(msg + 'such as {"id": "1", "text": "..."}.')
            yield number, value


def parquet(source: Source, groups: range | None = None) -> Iterator[Rows]:
    """Yield the rows of a parquet file, or of some of its row groups; needs the extra ``parquet``.

    A column of vectors of one length is read without Python lists.
    """

    def parts() -> Iterator[tuple[Numbered, Matrix | None]]:
        names = list(file.schema_arrow.names)
        roles = {
            role: next((name for name in source.columns.names(role) if name in names), None)
            for role in USUAL
        }
        wanted = names if source.metadata else [name for name in roles.values() if name]
        number = sum(group_sizes(source.path)[: groups[0]]) if groups else 0
        chosen = None if groups is None else list(groups)
        for batch in file.iter_batches(batch_size=CHUNK_ROWS, row_groups=chosen, columns=wanted):
            matrix = _plain_matrix(batch, roles["embedding"])
            rest = batch if matrix is None else batch.drop_columns([roles["embedding"]])
            numbered = [(f"row {at}", row) for at, row in enumerate(rest.to_pylist(), number)]
            number += len(numbered)
            if numbered:
                yield numbered, matrix

    with reading(source.path):
        file = _parquet_file(source.path)
        yield from _rows(source, parts())


def group_sizes(path: Path) -> list[int]:
    """Return the number of rows in each row group of a parquet file."""
    metadata = _parquet_file(path).metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _parquet_file(path: Path) -> Any:
    try:
        import pyarrow.parquet  # noqa: PLC0415 - an extra
    except ImportError as error:
        msg = f"reading {path} needs pyarrow; pip install 'ragshield[parquet]'."
        raise SourceError(msg) from error
    with reading(path):
        return pyarrow.parquet.ParquetFile(path)


def _plain_matrix(batch: Any, name: str | None) -> Matrix | None:
    """Return a column of float lists of one length as a matrix, without Python objects."""
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
    matrix: Matrix = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return matrix.reshape(batch.num_rows, dim)


def _rows(source: Source, parts: Iterable[tuple[Numbered, Matrix | None]]) -> Iterator[Rows]:
    """Yield records in columns; a part's vectors may have been read already.

    A column that the caller named must be in some row.
    """
    columns, seen, met = source.columns, dict[str, None](), set[str]()
    names = {role: columns.names(role) for role in USUAL}
    called = {role: " or ".join(map(repr, names[role])) or "no name" for role in USUAL}
    dropped = {*names["id"], *names["text"], *names["embedding"]}
    for part, matrix in parts:
        places = [f"{source.path}, {place}" for place, _ in part]
        records = [record for _, record in part]
        seen = seen or dict.fromkeys(map(str, records[0]))
        met.update(*records, names["embedding"] if matrix is not None else ())
        values = {role: [columns.value(role, record) for record in records] for role in USUAL}
        ids = []
        for value, record, place in zip(values["id"], records, places, strict=True):
            if value is None:
                msg = (
                    f"{place}: no id, expected one under {called['id']}; it has "
                    f"{sorted(map(str, record))[:8]}. Name the column with --id-column."
                )
                raise SourceError(msg)
            ids.append(as_id(value, place))
        if matrix is not None:
            vectors: Vectors | None = Vectors(np.arange(len(ids)), matrix)
        else:
            vectors = vectors_of(values["embedding"], places)
        has_vector = set() if vectors is None else set(vectors.rows.tolist())
        for row, text in enumerate(values["text"]):
            if text is None and row not in has_vector:
                msg = (
                    f"{places[row]}: neither a text under {called['text']} nor a vector under "
                    f"{called['embedding']}, expected one of them; name the column with "
                    "--text-column or --embedding-column."
                )
                raise SourceError(msg)
            if text is not None and not isinstance(text, str):
                msg = f"{places[row]}: text is of type {type(text).__name__}, expected a str."
                raise SourceError(msg)
        claims = {
            role: [as_scalar(role, *each) for each in zip(values[role], places, strict=True)]
            for role in ("label", "lineage")
        }
        others = ({k: v for k, v in record.items() if k not in dropped} for record in records)
        yield Rows(
            ids=ids,
            texts=[text or "" for text in values["text"]],
            labels=claims["label"],
            lineages=claims["lineage"],
            metadatas=list(others) if source.metadata else [],
            vectors=vectors,
        )
    for role in USUAL:
        name = getattr(columns, role)
        if name and seen and name not in met:
            msg = f"{source.path} has no {role} column {name!r}, expected one of {list(seen)[:20]}."
            raise SourceError(msg)
