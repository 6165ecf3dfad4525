"""Shared parts of the readers of knowledge bases: columns, rows, and checks of values.

A :class:`Source` yields its rows in chunks, so that a large file is never in memory twice. All its
values are hostile; nothing here executes or unpickles them.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.files.folder import Coverage, shown_name
from ragshield_core.model.errors import RAGShieldError, SourceError

# 8,192 vectors of 384 dimensions are 12.6 MB: little memory, and few calls per million entries.
CHUNK_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Names of the columns; ``None`` looks for the usual ones, ``""`` reads none.

    If several of the usual names exist, the first counts: a chunk's own lineage says more than the
    file or site that it came from.
    """

    id: str | None = None  # "id", "ids"
    text: str | None = None  # "text", "texts"
    label: str | None = None  # "label", "labels"
    lineage: str | None = None  # "lineage", "lineages", "source", "sources"
    embedding: str | None = None  # "embedding", "embeddings", "vector", "vectors"

    def names(self, role: str) -> tuple[str, ...]:
        """Return the possible names of a column."""
        given: str | None = getattr(self, role)
        return USUAL[role] if given is None else (given,) if given else ()

    def value(self, role: str, record: Mapping[str, Any]) -> Any:
        """Return the value of a column in a record, or ``None`` if it has none."""
        return next((record[n] for n in self.names(role) if record.get(n) is not None), None)

    def claim(self, role: str, metadata: Mapping[str, Any], place: str) -> str | None:
        """Return a label or a lineage from metadata."""
        return as_scalar(role, self.value(role, metadata), place)


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

    def part(self, start: int, end: int) -> Rows:
        """Return the rows from ``start`` up to ``end``, which is left out."""
        vectors = self.vectors
        if vectors is not None:
            inside = (vectors.rows >= start) & (vectors.rows < end)
            vectors = Vectors(vectors.rows[inside] - start, vectors.matrix[inside])
        return Rows(
            ids=self.ids[start:end],
            texts=self.texts[start:end],
            labels=self.labels[start:end],
            lineages=self.lineages[start:end],
            contexts=self.contexts[start:end],
            metadatas=self.metadatas[start:end],
            vectors=vectors if vectors is None or len(vectors.rows) else None,
        )


@dataclass(slots=True)
class Source:
    """A knowledge base on disk."""

    path: Path  # the file or folder
    reader: Callable[[Source], Iterator[Rows]]  # yields the rows of a source
    columns: ColumnNames = field(default_factory=ColumnNames)  # names of its columns
    # Whether to read the other columns as well: needed for entries that go into quarantine, to
    # restore them from there
    metadata: bool = False
    # Globs of documents in a folder
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    # Outcome of each file of a folder of documents, once it was read; else `None`
    coverage: Coverage | None = None

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order, at most :data:`CHUNK_ROWS` at a time."""
        return self.reader(self)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into a :class:`SourceError`."""
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


def as_id(value: object, place: str) -> str:
    """Return a value as an id that can be stored, or raise."""
    if isinstance(value, str):
        return shown_name(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    msg = f"{place}: the id is of type {type(value).__name__}, expected a str or an int."
    raise SourceError(msg)


def as_scalar(column: str, value: object, place: str) -> str | None:
    """Return a label or a lineage as a str, None if it is missing; refuse lists and the like."""
    if isinstance(value, str):
        return shown_name(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None  # NaN is a missing value of data frames
    if isinstance(value, bool | int | float):
        return str(value)
    msg = f"{place}: {column} is of type {type(value).__name__}, expected a str, a number or null."
    raise SourceError(msg)


def vectors_of(values: Sequence[Any], places: Sequence[str]) -> Vectors | None:
    """Return the values that are not None as vectors; refuse values other than lists of numbers."""
    rows = [row for row, value in enumerate(values) if value is not None]
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
    return Vectors(np.array(rows), np.stack(arrays)) if rows else None
