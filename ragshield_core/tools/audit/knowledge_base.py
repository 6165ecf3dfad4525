"""A whole knowledge base in memory, its vectors once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.files.folder import Coverage
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import SourceError
from ragshield_core.store.adapter import Progress
from ragshield_core.tools.audit.embedding_cache import CachedEmbedder, by_length
from ragshield_core.tools.audit.readers.source import Rows, Source

# Rows of float64 are handled at a time: 25 MB of 384 dimensions.
BLOCK_ROWS = 8_192
# Closer to one, the length is rounding; Batch takes such rows over without a copy.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnowledgeBase:
    """Entries of a source, with vectors brought to unit length in place.

    A million vectors are not kept twice for the sake of their lengths, which only entries that are
    put into quarantine need again.
    """

    batch: Batch
    lengths: NDArray[np.float32]  # (n_entries,): of the vectors as they came
    unread: tuple[str, ...] = ()  # what could not be read and was left out, a sentence each
    embedder: CachedEmbedder | None = None  # that made the vectors of all entries, if one did
    coverage: Coverage | None = None  # of a folder of documents: what became of each file

    def take(self, rows: Sequence[int]) -> Batch:
        """Return entries with vectors of the length they came with."""
        part = self.batch.take(rows)
        return Batch.of(
            ids=part.ids,
            texts=part.texts,
            embeddings=part.embeddings * self.lengths[list(rows), None],
            labels=part.labels,
            lineages=part.lineages,
            metadatas=part.metadatas,
            contexts=part.contexts,
        )


def load(
    source: Source,
    *,
    embedder: Callable[[], CachedEmbedder] | None = None,
    progress: Progress | None = None,
) -> KnowledgeBase:
    """Read a source, and embed what has no vector.

    Parameters
    ----------
    source
        What to read.
    embedder
        Called at most once, only if texts are to be embedded: models are slow to load.
    progress
        Told how far it is.

    Raises
    ------
    SourceError
        If the source cannot be read, is empty, or needs an embedder and none is given.
    InvalidBatchError
        If ids repeat, or vectors are zero or not finite; names the entry.
    """
    tell = progress or (lambda *_: None)
    n = len(source)
    if not n:
        msg = f"{source.path} has no entries, expected at least one."
        raise SourceError(msg)
    columns = _Columns(source, n)
    for rows in source.chunks():
        columns.add(rows)
        tell("reading", len(columns.ids), n)
    if len(columns.ids) != n:
        msg = f"{source.path} changed while it was read; scan a copy that nobody writes to."
        raise SourceError(msg)
    missing = np.flatnonzero(~columns.has_vector)
    model = None
    if missing.size:
        if embedder is None:
            msg = (
                f"{missing.size} of {n} entries of {source.path} have no vector, and there is no "
                "model to embed them with; pass an embedder."
            )
            raise SourceError(msg)
        model = embedder()
        columns.embed(missing, model, tell)
    return replace(
        columns.knowledge_base(),
        unread=tuple(source.unread),
        embedder=model if missing.size == n else None,
        coverage=source.coverage,
    )


class _Columns:
    """What was read so far."""

    def __init__(self, source: Source, n: int) -> None:
        self._path, self._n = source.path, n
        self._columns: dict[str, list[Any]] = {
            name: [] for name in ("ids", "texts", "labels", "lineages", "contexts", "metadatas")
        }
        self.ids, self.texts = self._columns["ids"], self._columns["texts"]
        self.has_vector = np.zeros(n, dtype=np.bool_)
        self._matrix: NDArray[np.float32] | None = None

    def add(self, rows: Rows) -> None:
        start = len(self.ids)
        for name, column in self._columns.items():
            column.extend(getattr(rows, name))
        if rows.vectors is not None and len(self.ids) <= self._n:
            self._put(start + rows.vectors.rows, rows.vectors.matrix)

    def embed(self, missing: NDArray[np.intp], embedder: CachedEmbedder, tell: Progress) -> None:
        done = 0
        tell("embedding", done, missing.size)
        missing = missing[by_length([self.texts[row] for row in missing.tolist()])]
        for vectors in embedder.chunks([self.texts[row] for row in missing.tolist()]):
            self._put(missing[done : done + len(vectors)], vectors)
            done += len(vectors)
            tell("embedding", done, missing.size)

    def knowledge_base(self) -> KnowledgeBase:
        matrix = self._matrix
        assert matrix is not None  # noqa: S101 - every row has been read or embedded
        lengths = to_unit_length(matrix)
        # Sources that know no contexts or metadata leave these columns empty.
        columns: dict[str, Any] = {name: c or None for name, c in self._columns.items()}
        return KnowledgeBase(batch=Batch.of(embeddings=matrix, **columns), lengths=lengths)

    def _put(self, rows: NDArray[np.intp], vectors: NDArray[np.float32]) -> None:
        if self._matrix is None:
            self._matrix = np.zeros((self._n, vectors.shape[1]), dtype=np.float32)
        if vectors.shape[1] != self._matrix.shape[1]:
            msg = (
                f"the vector of entry {self.ids[rows[0]]!r} in {self._path} has "
                f"{vectors.shape[1]} dimensions, expected {self._matrix.shape[1]} as in those "
                "before it; embed all entries with the same model (--embedder)."
            )
            raise SourceError(msg)
        self._matrix[rows] = vectors
        self.has_vector[rows] = True


def to_unit_length(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bring rows to unit length in place; return the lengths they had.

    Zero and non-finite rows stay: :class:`Batch` names their entry.
    """
    lengths = np.ones(len(matrix), dtype=np.float32)
    for start in range(0, len(matrix), BLOCK_ROWS):
        block = matrix[start : start + BLOCK_ROWS]
        squares = np.einsum("ij,ij->i", block, block, dtype=np.float64)
        off = np.flatnonzero((np.abs(squares - 1.0) > ROUNDING) & (squares > 0.0))
        off = off[np.isfinite(squares[off])]
        if off.size:
            norms = np.sqrt(squares[off])
            block[off] = block[off] / norms[:, None]
            lengths[start + off] = norms
    return lengths
