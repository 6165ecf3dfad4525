"""Knowledge bases as they lie on disk: JSON Lines, parquet and npz; folders have their own modules.

A :class:`Source` knows its length and yields its rows in chunks, so that a large file is never in
memory twice. All that it yields is hostile; nothing here executes or unpickles it.
"""

from __future__ import annotations

import gzip
import json
import math
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import RAGShieldError

# 8,192 vectors of 384 dimensions are 12.6 MB: little beside the whole, and few calls per million.
CHUNK_ROWS = 8_192
# A vector as a list of Python floats takes eight times the room: 1,024 of them as much as above.
JSON_ROWS = 1_024


class SourceError(RAGShieldError, ValueError):
    """A knowledge base on disk that cannot be read; the message names the file and the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Names of the columns; ``None`` looks for the usual ones, ``""`` reads none.

    Where several of the usual names are there, the first counts; a lineage of each chunk's own
    says more than the file or site that it came from.
    """

    id: str | None = None  # "id", "ids"
    text: str | None = None  # "text", "texts"
    label: str | None = None  # "label", "labels"
    lineage: str | None = None  # "lineage", "lineages", "source", "sources"
    embedding: str | None = None  # "embedding", "embeddings", "vector", "vectors"

    def names(self, role: str) -> tuple[str, ...]:
        """Return the names under which a column is looked for."""
        given: str | None = getattr(self, role)
        return USUAL[role] if given is None else (given,) if given else ()


USUAL: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "ids"),
    "text": ("text", "texts"),
    "label": ("label", "labels"),
    "lineage": ("lineage", "lineages", "source", "sources"),
    "embedding": ("embedding", "embeddings", "vector", "vectors"),
}


class Vectors(NamedTuple):
    """Vectors of some of the rows of a chunk."""

    rows: NDArray[np.intp]  # (n_vectors,): where in the chunk
    matrix: NDArray[np.float32]  # (n_vectors, dim)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """A chunk of a knowledge base, in columns of equal length."""

    ids: list[str]
    texts: list[str]
    labels: list[str | None]
    lineages: list[str | None]
    contexts: list[str | None] = field(default_factory=list)  # empty where none are known
    metadatas: list[Mapping[str, Any]] = field(default_factory=list)  # empty unless asked for
    vectors: Vectors | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Source(ABC):
    """A knowledge base on disk.

    Parameters
    ----------
    path
        The file or folder.
    columns
        What its columns are called.
    metadata
        Whether to read the other columns as well: needed if entries are to be put into quarantine,
        from where they can be restored.
    """

    def __init__(
        self, path: Path, columns: Columns | None = None, *, metadata: bool = False
    ) -> None:
        self.path = path
        self.columns = Columns() if columns is None else columns
        self.metadata = metadata

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of entries."""

    @abstractmethod
    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order, at most :data:`CHUNK_ROWS` at a time.

        Raises
        ------
        SourceError
            If a row cannot be read; names it.
        """


class JsonLines(Source):
    """One JSON object per line, gzip-compressed if the name ends in ``.gz``."""

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        with reading(self.path), self._open() as file:
            return sum(1 for line in file if line.strip())

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; blank lines are passed over."""
        reader = _RecordReader(self)
        with reading(self.path), self._open() as file:
            records: list[tuple[str, Mapping[str, Any]]] = []
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                records.append((f"line {number}", self._parse(line, number)))
                if len(records) == JSON_ROWS:
                    yield reader.rows(records)
                    records = []
            if records:
                yield reader.rows(records)
        reader.check_columns()

    def _open(self) -> IO[bytes] | gzip.GzipFile:
        if self.path.suffix == ".gz":
            return gzip.open(self.path, "rb")
        return self.path.open("rb")

    def _parse(self, line: bytes, number: int) -> Mapping[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            # The parser's own message would quote hostile text.
            msg = f"{self.path}, line {number}: not valid JSON ({type(error).__name__}), expected "
            raise SourceError(msg + "one JSON object per line.") from None
        if not isinstance(value, dict):
            msg = f"{self.path}, line {number}: a JSON {type(value).__name__}, expected an object "
            raise SourceError(msg + 'such as {"id": "1", "text": "..."}.')
        return value


class Parquet(Source):
    """A parquet file; needs pyarrow, the extra ``parquet``."""

    def __len__(self) -> int:
        return int(self._file().metadata.num_rows)

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; a column of vectors of one length is read without lists."""
        reader = _RecordReader(self)
        with reading(self.path):
            file = self._file()
            names = list(file.schema_arrow.names)
            roles = {role: _first_of(self.columns.names(role), names) for role in USUAL}
            wanted = names if self.metadata else [name for name in roles.values() if name]
            number = 0
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, columns=wanted):
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


class Npz(Source):
    """Arrays ``ids`` and ``embeddings``, and if they are there ``texts``, ``labels``, ``lineages``.

    Members are read row by row out of the archive, never as a whole and never pickled.
    """

    def __len__(self) -> int:
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            return self._columns(archive)["id"].n_rows

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order."""
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            columns = self._columns(archive)
            n = columns["id"].n_rows
            for start in range(0, n, CHUNK_ROWS):
                size = min(CHUNK_ROWS, n - start)
                parts = {role: column.next_rows(size) for role, column in columns.items()}
                matrix = parts.pop("embedding", None)
                values = {role: part.tolist() for role, part in parts.items()}
                places = [f"{self.path}, row {start + row}" for row in range(size)]
                nothing: list[Any] = [None] * size
                yield Rows(
                    ids=[_as_id(*pair) for pair in zip(values["id"], places, strict=True)],
                    texts=_strings("text", values.get("text", [""] * size), places),
                    labels=_scalars("label", values.get("label", nothing), places),
                    lineages=_scalars("lineage", values.get("lineage", nothing), places),
                    vectors=None
                    if matrix is None
                    else Vectors(np.arange(size), matrix.astype(np.float32)),
                )

    def _columns(self, archive: zipfile.ZipFile) -> dict[str, _Member]:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        columns = {}
        for role in USUAL:
            name = _first_of(self.columns.names(role), names)
            if name is not None:
                columns[role] = _Member(archive, name, self.path)
            elif getattr(self.columns, role):
                _raise_for_column(self.path, role, getattr(self.columns, role), names)
        if "id" not in columns or not columns.keys() & {"text", "embedding"}:
            msg = (
                f"{self.path} holds the arrays {names}, expected ids and embeddings (or texts, to "
                "be embedded); say what they are called with --id-column and --embedding-column."
            )
            raise SourceError(msg)
        for column in columns.values():
            column.check(2 if column is columns.get("embedding") else 1, columns["id"].n_rows)
        return columns


class _Member:
    """One array of an npz archive, read a few rows at a time."""

    def __init__(self, archive: zipfile.ZipFile, name: str, path: Path) -> None:
        self.name, self.path = name, path
        info = archive.getinfo(f"{name}.npy")
        self._file = archive.open(info)
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0
        if version >= (2, 0):
            read = np.lib.format.read_array_header_2_0
        self.shape, self._fortran, self.dtype = read(self._file)
        self._left = info.file_size - self._file.tell()

    @property
    def n_rows(self) -> int:
        return int(self.shape[0]) if self.shape else 0

    def check(self, n_dims: int, n_rows: int) -> None:
        """Refuse what is not a column of plain values of the right length."""
        where = f"{self.path}: the array {self.name}"
        if self.dtype.hasobject:
            msg = f"{where} holds Python objects, which only unpickling could read; save it as "
            raise SourceError(msg + "strings or numbers: np.asarray(values, dtype=str).")
        if len(self.shape) != n_dims or self.n_rows != n_rows:
            wanted = f"({n_rows}, dim)" if n_dims > 1 else f"({n_rows},)"
            msg = f"{where} has shape {self.shape}, expected {wanted}: one row per id."
            raise SourceError(msg)
        if n_dims > 1 and self.dtype.kind != "f":
            msg = f"{where} is of dtype {self.dtype}, expected floats."
            raise SourceError(msg)
        if self._fortran and n_dims > 1:
            msg = f"{where} lies in columns; save it in rows: np.ascontiguousarray(embeddings)."
            raise SourceError(msg)
        if self._left != math.prod(self.shape) * self.dtype.itemsize:
            msg = f"{where} is cut short or damaged: its size is not that of its shape."
            raise SourceError(msg)

    def next_rows(self, n: int) -> NDArray[Any]:
        shape = (n, *self.shape[1:])
        size = math.prod(shape) * self.dtype.itemsize
        data = self._file.read(size)
        if len(data) != size:
            msg = f"{self.path}: the array {self.name} is cut short."
            raise SourceError(msg)
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)


class _RecordReader:
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
            ids.append(_as_id(value, place))
        if matrix is not None:
            self._met.add("embedding")
            vectors: Vectors | None = Vectors(np.arange(len(ids)), matrix)
        else:
            vectors = vectors_of(columns["embedding"], places)
        has_vector = set() if vectors is None else set(vectors.rows.tolist())
        for row, text in enumerate(columns["text"]):
            if text is None and row not in has_vector:
                msg = (
                    f"{places[row]}: neither a text under {self._named('text')} nor a vector under "
                    f"{self._named('embedding')}, expected one of them; name the column with "
                    "--text-column or --embedding-column."
                )
                raise SourceError(msg)
        dropped = {*self._names["id"], *self._names["text"], *self._names["embedding"]}
        return Rows(
            ids=ids,
            texts=_strings("text", [t if t is not None else "" for t in columns["text"]], places),
            labels=_scalars("label", columns["label"], places),
            lineages=_scalars("lineage", columns["lineage"], places),
            metadatas=[{k: v for k, v in record.items() if k not in dropped} for record in plain]
            if self._metadata
            else [],
            vectors=vectors,
        )

    def check_columns(self) -> None:
        """Refuse a column that was asked for by name and is in no row."""
        for role, name in self._given.items():
            if name and self._seen and role not in self._met:
                _raise_for_column(self._path, role, name, list(self._seen))

    def _value(self, role: str, record: Mapping[str, Any]) -> Any:
        for name in self._names[role]:
            if name in record:
                self._met.add(role)
                if record[name] is not None:
                    return record[name]
        return None

    def _named(self, role: str) -> str:
        return " or ".join(map(repr, self._names[role])) or "no name"


READERS: tuple[tuple[tuple[str, ...], Callable[..., Source]], ...] = (
    ((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), JsonLines),
    ((".parquet", ".pq"), Parquet),
    ((".npz",), Npz),
)


def open_source(path: Path, columns: Columns | None = None, *, metadata: bool = False) -> Source:
    """Return the source for a file, chosen by its ending, or for a folder.

    A folder is one that LangChain's FAISS has saved, or a LlamaIndex index persisted.

    Parameters
    ----------
    path, columns, metadata
        As of :class:`Source`.

    Raises
    ------
    SourceError
        If there is no such file, or it is of no known kind.
    """
    if not path.exists():
        msg = (
            f"{path} does not exist, expected a file, or a folder that FAISS.save_local or a "
            "LlamaIndex StorageContext.persist wrote."
        )
        raise SourceError(msg)
    if (path / "docstore.json").is_file():
        from ragshield_core.scan.llama_folder import LlamaFolder  # noqa: PLC0415 - as below

        return LlamaFolder(path, columns, metadata=metadata)
    if path.is_dir() or path.suffix == ".faiss":
        from ragshield_core.scan.faiss_folder import FaissFolder  # noqa: PLC0415 - it builds on this

        return FaissFolder(path, columns, metadata=metadata)
    for endings, reader in READERS:
        if path.name.lower().endswith(endings):
            return reader(path, columns, metadata=metadata)
    known = ", ".join(ending for endings, _ in READERS for ending in endings)
    msg = (
        f"{path} is of no known kind, expected a name ending in {known}, or a folder that "
        "LangChain's FAISS or a LlamaIndex index was saved in."
    )
    raise SourceError(msg)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes go wrong into a :class:`SourceError`."""
    try:
        yield
    except RAGShieldError:
        raise
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, MemoryError) as error:
        # Messages of parsers may quote hostile text: the kind of error says enough.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else None
        msg = f"{path} cannot be read ({type(error).__name__}{f': {reason}' if reason else ''}); "
        raise SourceError(
            msg + "check that it is complete and of the kind its name says."
        ) from error


def read_ids(path: Path) -> list[str]:
    """Return the ids that a file names, one per line; blank lines are passed over.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    with reading(path):
        lines = path.read_text(encoding="utf-8").split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]


def _first_of(wanted: Sequence[str], names: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _raise_for_column(path: Path, role: str, name: str, names: Sequence[str]) -> None:
    msg = f"{path} has no {role} column {name!r}, expected one of {list(names)[:20]}."
    raise SourceError(msg)


def _as_id(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    msg = f"{place}: the id is of type {type(value).__name__}, expected a str or an int."
    raise SourceError(msg)


def _strings(column: str, values: Sequence[object], places: Sequence[str]) -> list[str]:
    texts: list[str] = []
    for value, place in zip(values, places, strict=True):
        if not isinstance(value, str):
            msg = f"{place}: {column} is of type {type(value).__name__}, expected a str."
            raise SourceError(msg)
        texts.append(value)
    return texts


def _scalars(column: str, values: Sequence[object], places: Sequence[str]) -> list[str | None]:
    return [as_scalar(column, *pair) for pair in zip(values, places, strict=True)]


def as_scalar(column: str, value: object, place: str) -> str | None:
    """Return a label or a lineage as a str, or None where there is none.

    Raises
    ------
    SourceError
        If it is neither a string nor a number; names the place.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None  # how data frames say that there is none
    if isinstance(value, bool | int | float):
        return str(value)
    msg = f"{place}: {column} is of type {type(value).__name__}, expected a str, a number or null."
    raise SourceError(msg)


def vectors_of(values: Sequence[Any], places: Sequence[str]) -> Vectors | None:
    """Return those values that are not None as vectors.

    Raises
    ------
    SourceError
        If one is no list of numbers, or of another length; names the place.
    """
    rows = [row for row, value in enumerate(values) if value is not None]
    if not rows:
        return None
    arrays: list[NDArray[np.float32]] = []
    for row in rows:
        try:
            array = np.asarray(values[row], dtype=np.float32)
        except (TypeError, ValueError, OverflowError):
            array = None
        if array is None or array.ndim != 1 or not array.size:
            msg = f"{places[row]}: the embedding is not a list of numbers."
            raise SourceError(msg)
        if arrays and len(array) != len(arrays[0]):
            msg = (
                f"{places[row]}: the embedding has {len(array)} dimensions, expected "
                f"{len(arrays[0])} as in {places[rows[0]]}; embed all rows with the same model."
            )
            raise SourceError(msg)
        arrays.append(array)
    return Vectors(np.array(rows), np.stack(arrays))


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
