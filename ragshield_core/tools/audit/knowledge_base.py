"""A whole knowledge base in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.files.folder import Coverage
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import SourceError
from ragshield_core.store.adapter import Progress
from ragshield_core.tools.audit.embedding_cache import CachedEmbedder
from ragshield_core.tools.audit.readers.source import Source


class KnowledgeBase(NamedTuple):
    """Entries of a source."""

    batch: Batch
    unread: tuple[str, ...] = ()  # what could not be read and was left out, a sentence each
    embedder: CachedEmbedder | None = None  # that made the vectors of all entries, if one did
    coverage: Coverage | None = None  # of a folder of documents: what became of each file


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
    columns: dict[str, list[Any]] = {
        name: [] for name in ("ids", "texts", "labels", "lineages", "contexts", "metadatas")
    }
    ids, texts = columns["ids"], columns["texts"]
    found = _Vectors(source.path, ids, n)
    for rows in source.chunks():
        start = len(ids)
        for name, column in columns.items():
            column.extend(getattr(rows, name))
        if rows.vectors is not None and len(ids) <= n:
            found.put(start + rows.vectors.rows, rows.vectors.matrix)
        tell("reading", len(ids), n)
    if len(ids) != n:
        msg = f"{source.path} changed while it was read; scan a copy that nobody writes to."
        raise SourceError(msg)
    left, model, done = np.flatnonzero(found.missing), None, 0
    if left.size:
        if embedder is None:
            msg = (
                f"{left.size} of {n} entries of {source.path} have no vector, and there is no "
                "model to embed them with; pass an embedder."
            )
            raise SourceError(msg)
        model = embedder()
        tell("embedding", done, left.size)
        for vectors in model.chunks([texts[row] for row in left.tolist()]):
            found.put(left[done : done + len(vectors)], vectors)
            done += len(vectors)
            tell("embedding", done, left.size)
    # Sources that know no contexts or metadata leave these columns empty.
    given: dict[str, Any] = {name: column or None for name, column in columns.items()}
    batch = Batch.of(embeddings=found.matrix, **given)
    whole = model if left.size == n else None
    return KnowledgeBase(batch, tuple(source.unread), whole, source.coverage)


class _Vectors:
    """The vectors of n entries, in one array from the first on."""

    def __init__(self, path: Path, ids: Sequence[str], n: int) -> None:
        self._path, self._ids = path, ids
        self.matrix: NDArray[np.float32] | None = None
        self.missing = np.ones(n, dtype=np.bool_)

    def put(self, rows: NDArray[np.intp], vectors: NDArray[np.float32]) -> None:
        if self.matrix is None:
            self.matrix = np.zeros((len(self.missing), vectors.shape[1]), dtype=np.float32)
        if vectors.shape[1] != self.matrix.shape[1]:
            msg = (
                f"the vector of entry {self._ids[rows[0]]!r} in {self._path} has "
                f"{vectors.shape[1]} dimensions, expected {self.matrix.shape[1]} as in those "
                "before it; embed all entries with the same model (--embedder)."
            )
            raise SourceError(msg)
        self.matrix[rows] = vectors
        self.missing[rows] = False
