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
from ragshield_core.store.keeper import Progress
from ragshield_core.tools.audit.embedding_cache import CachedEmbedder
from ragshield_core.tools.audit.readers.source import Source


class KnowledgeBase(NamedTuple):
    """Entries of a source."""

    batch: Batch
    embedder: CachedEmbedder | None = None  # if it made the vectors of all entries
    coverage: Coverage | None = None  # outcome of each file in a folder of documents


def load(
    source: Source,
    *,
    embedder: Callable[[], CachedEmbedder] | None = None,
    check: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> KnowledgeBase:
    """Read a source, and embed the entries that have no vector.

    Parameters
    ----------
    source
        The knowledge base on disk.
    embedder
        Called at most once, and only to embed texts: models are slow to load.
    check
        Called with the number of entries before any is embedded; may raise.
    progress
        Called with the step, the number done and the total.

    Raises
    ------
    SourceError
        If the source cannot be read, is empty, or needs an embedder and none is given.
    InvalidBatchError
        If ids repeat, or vectors are zero or not finite; names the entry.
    """
    tell = progress or (lambda *_: None)
    columns: dict[str, list[Any]] = {
        name: [] for name in ("ids", "texts", "labels", "lineages", "contexts", "metadatas")
    }
    ids, texts = columns["ids"], columns["texts"]
    found: list[tuple[NDArray[np.intp], NDArray[np.float32]]] = []
    for rows in source.chunks():
        if rows.vectors is not None:
            found.append((len(ids) + rows.vectors.rows, rows.vectors.matrix))
        for name, column in columns.items():
            column.extend(getattr(rows, name))
        tell("reading", len(ids), len(ids))
    n = len(ids)
    if not n:
        msg = f"{source.path} has no entries, expected at least one."
        raise SourceError(msg)
    if check is not None:
        check(n)
    missing = np.ones(n, dtype=np.bool_)
    for at, _ in found:
        missing[at] = False
    left, model = np.flatnonzero(missing), None
    if left.size:
        if embedder is None:
            msg = (
                f"{left.size} of {n} entries of {source.path} have no vector, and there is no "
                "model to embed them with; pass an embedder."
            )
            raise SourceError(msg)
        model, done = embedder(), 0
        tell("embedding", done, left.size)
        for vectors in model.chunks([texts[row] for row in left.tolist()]):
            found.append((left[done : done + len(vectors)], vectors))
            done += len(vectors)
            tell("embedding", done, left.size)
    # Sources without contexts or metadata leave these columns empty.
    given: dict[str, Any] = {name: column or None for name, column in columns.items()}
    batch = Batch.of(embeddings=_matrix(found, ids, source.path), **given)
    return KnowledgeBase(batch, model if left.size == n else None, source.coverage)


def _matrix(
    found: list[tuple[NDArray[np.intp], NDArray[np.float32]]], ids: Sequence[str], path: Path
) -> NDArray[np.float32]:
    """Return the vectors of all entries, and empty the list of their parts."""
    dim = found[0][1].shape[1]
    for rows, vectors in found:
        if vectors.shape[1] != dim:
            msg = (
                f"the vector of entry {ids[rows[0]]!r} in {path} has {vectors.shape[1]} "
                f"dimensions, expected {dim} as in those before it; embed all entries with the "
                "same model (--embedder)."
            )
            raise SourceError(msg)
    matrix = np.zeros((len(ids), dim), dtype=np.float32)
    while found:  # each part is freed once copied: memory is for one copy
        rows, vectors = found.pop()
        matrix[rows] = vectors
    return matrix
