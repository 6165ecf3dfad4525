"""Entries to judge: one :class:`Entry` of a knowledge base, a columnar :class:`Batch` of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.claims import named_source
from ragshield_core.model.errors import InvalidBatchError

# An embedder that promises unit vectors is off by about 1e-7 in float32; vectors that passed
# through float16 are off by about 1e-3 and are renormalised.
UNIT_TOLERANCE = 1e-5
# Columns of a batch, except its vectors.
COLUMNS = ("ids", "texts", "labels", "lineages", "metadatas", "contexts", "sources")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One entry of a knowledge base: a text chunk, its vector and the claims about it."""

    id: str
    text: str
    embedding: NDArray[np.float32]  # (dim,), unit length
    label: str | None = None
    lineage: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    context: str | None = None  # further text that a model reads with the text
    source: str | None = None  # origin of its document

    @property
    def fingerprint(self) -> str:
        """Identify this revision: a hash of the text, its context, the label and the lineage.

        It leaves out the vector and all metadata that no model reads: neither a new time stamp nor
        another build of the embedding model makes a new revision.
        """
        return _fingerprint(self.text, self.label, self.lineage, self.context)

    @property
    def text_fingerprint(self) -> str:
        """Identify the revision without its context: a condemned text is condemned in any."""
        return _fingerprint(self.text, self.label, self.lineage, None)


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Batch:
    """Entries in columns; row ``i`` of every column belongs to the same entry.

    Build one with :meth:`Batch.of`, which converts; the constructor itself only checks.

    Parameters
    ----------
    ids
        Unique, non-empty.
    texts
        One per id; may be empty strings.
    embeddings
        Shape (n_entries, dim), float32, rows of unit length; detectors read these.
    labels, lineages
        One per id, ``None`` where there is none. A lineage names the document that a chunk was
        cut from; it is a claim of the entry's uploader.
    metadatas
        One mapping per id.
    contexts
        Per id, the title and other metadata that a framework puts into the prompt beside the text,
        without the text itself; ``None`` if it puts nothing there. Detectors of instructions and
        hidden text judge it like the text. It is part of the revision: fill it in for every batch
        of the same entries, or for none.
    sources
        Per id, the origin of its document: a site, folder, bucket, feed, connector or uploader;
        ``None`` for the one source without a name. A claim like a lineage, but not part of the
        revision.
    vectors
        Shape (n_entries, dim), float32: the vectors that the embedder returned, of any length.
        Stores keep these. The same array as ``embeddings`` if those were of unit length already.

    Raises
    ------
    InvalidBatchError
        A :class:`ValueError`; the message names the entry, the expected value and the way out.

    Examples
    --------
    >>> batch = Batch.of(ids=["a", "b"], texts=["one", "two"], embeddings=[[3.0, 4.0], [0.0, 1.0]])
    >>> len(batch), batch.embeddings[0].tolist()
    (2, [0.6000000238418579, 0.800000011920929])
    >>> batch.take([1]).ids
    ('b',)
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    embeddings: NDArray[np.float32]
    labels: tuple[str | None, ...]
    lineages: tuple[str | None, ...]
    metadatas: tuple[Mapping[str, Any], ...]
    vectors: NDArray[np.float32]
    contexts: tuple[str | None, ...]
    sources: tuple[str | None, ...]

    def __post_init__(self) -> None:
        _check_ids(self.ids)
        n = len(self.ids)
        for name in COLUMNS:
            if len(getattr(self, name)) != n:
                msg = (
                    f"{name} has {len(getattr(self, name))} items for {n} ids, expected {n}; "
                    "pass one per entry."
                )
                raise InvalidBatchError(msg)
        _check_types(self.ids, "texts", self.texts, (str,), "a str")
        for name in ("labels", "lineages", "contexts", "sources"):
            column = getattr(self, name)
            _check_types(self.ids, name, column, (str, type(None)), "a str or None")
        for name in ("ids", "labels", "lineages", "sources"):
            _check_storable(self.ids, name, getattr(self, name))
        _check_types(self.ids, "metadatas", self.metadatas, (Mapping,), "a mapping")
        _check_matrix(self.ids, "vectors", self.vectors)
        _check_matrix(self.ids, "embeddings", self.embeddings)
        if not self.dim:
            return
        if self.vectors is not self.embeddings:
            _check_directions(self.ids, "vectors", row_norms(self.vectors))
        norms = row_norms(self.embeddings)
        _check_directions(self.ids, "embeddings", norms)
        if (bad := np.abs(norms - 1.0) > UNIT_TOLERANCE).any():
            row = int(bad.argmax())
            msg = (
                f"embeddings[{row}] (entry {self.ids[row]!r}) has L2 norm {norms[row]:.3f}, "
                "expected 1.000; build the batch with Batch.of, which normalises."
            )
            raise InvalidBatchError(msg)

    @classmethod
    def of(
        cls,
        *,
        ids: Sequence[str],
        texts: Sequence[str],
        embeddings: ArrayLike | None,
        labels: Sequence[str | None] | None = None,
        lineages: Sequence[str | None] | None = None,
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        contexts: Sequence[str | None] | None = None,
        sources: Sequence[str | None] | None = None,
    ) -> Self:
        """Build a batch from ordinary sequences.

        Parameters
        ----------
        ids, texts, labels, lineages, metadatas, contexts
            As the columns of the class; ``None`` for a missing column.
        sources
            As the column of the class; ``None`` takes the source from the metadata or from the
            lineage; see :func:`ragshield_core.model.claims.named_source`.
        embeddings
            Shape (n_entries, dim), any float type, any length but zero. Rows are brought to unit
            length for the detectors; ``vectors`` keeps the originals. With ``None``, dim is 0 and
            detectors that need vectors are skipped.

        Raises
        ------
        InvalidBatchError
            If an id is missing or repeated, a column has another length, or a vector has another
            dimension, is not finite, or is zero.
        """
        n = len(ids)
        documents = (None,) * n if lineages is None else tuple(lineages)
        kept = tuple({} for _ in range(n)) if metadatas is None else tuple(metadatas)
        given = np.empty((n, 0), dtype=np.float32) if embeddings is None else embeddings
        vectors = _as_matrix(tuple(ids), given)
        return cls(
            ids=tuple(ids),
            texts=tuple(texts),
            embeddings=_unit_rows(tuple(ids), vectors),
            labels=(None,) * n if labels is None else tuple(labels),
            lineages=documents,
            metadatas=kept,
            vectors=vectors,
            contexts=(None,) * n if contexts is None else tuple(contexts),
            sources=_sources_of(kept, documents) if sources is None else tuple(sources),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> Entry:
        return Entry(
            id=self.ids[row],
            text=self.texts[row],
            embedding=self.embeddings[row],
            label=self.labels[row],
            lineage=self.lineages[row],
            metadata=self.metadatas[row],
            context=self.contexts[row],
            source=self.sources[row],
        )

    def __iter__(self) -> Iterator[Entry]:
        return (self[row] for row in range(len(self)))

    def fingerprints(self) -> list[str]:
        """Return the fingerprints of all entries, see :attr:`Entry.fingerprint`."""
        columns = (self.texts, self.labels, self.lineages, self.contexts)
        return list(map(_fingerprint, *columns))

    @property
    def dim(self) -> int:
        """Length of a vector; 0 without vectors or in an empty batch of unknown dimension."""
        return int(self.embeddings.shape[1])

    def take(self, rows: Sequence[int] | NDArray[Any]) -> Self:
        """Return the given rows, in the given order.

        Parameters
        ----------
        rows
            Row numbers, or a boolean mask of shape (n_entries,).
        """
        selection = np.asarray(rows)
        if selection.dtype == np.bool_:
            if selection.shape != (len(self),):
                msg = f"mask has shape {selection.shape}, expected ({len(self)},): one per entry."
                raise InvalidBatchError(msg)
            selection = np.flatnonzero(selection)
        index = selection.astype(np.intp, copy=False)
        chosen = index.tolist()
        # The rows were checked already; only ids can repeat.
        taken = object.__new__(type(self))
        for name in COLUMNS:
            column = tuple(map(getattr(self, name).__getitem__, chosen))
            object.__setattr__(taken, name, column)
        embeddings = self.embeddings[index]
        same = self.vectors is self.embeddings
        object.__setattr__(taken, "embeddings", embeddings)
        object.__setattr__(taken, "vectors", embeddings if same else self.vectors[index])
        _check_ids(taken.ids)
        return taken


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Join one or more batches into one, leaving out the empty ones.

    Vectors keep every bit. If some batch has no vectors, the result has none.
    """
    batches = [batch for batch in batches if len(batch)] or list(batches[:1])
    if len(batches) == 1:
        return batches[0]
    embeddings = np.empty((sum(map(len, batches)), 0), dtype=np.float32)
    vectors = embeddings
    if all(batch.dim for batch in batches):
        embeddings = vectors = np.concatenate([batch.embeddings for batch in batches])
        if any(batch.vectors is not batch.embeddings for batch in batches):
            vectors = np.concatenate([batch.vectors for batch in batches])
    return Batch(
        **{name: tuple(chain.from_iterable(getattr(b, name) for b in batches)) for name in COLUMNS},
        embeddings=embeddings,
        vectors=vectors,
    )


def _sources_of(
    metadatas: Sequence[Mapping[str, Any]], documents: Sequence[str | None]
) -> tuple[str | None, ...]:
    """Return the source of each entry; other checks refuse metadata that is not a mapping."""
    claims = zip(metadatas, documents, strict=False)
    named = (named_source(m if isinstance(m, Mapping) else {}, name) for m, name in claims)
    return (*named, *(None,) * (len(documents) - len(metadatas)))


def _fingerprint(text: str, label: str | None, lineage: str | None, context: str | None) -> str:
    pieces = []
    for part in (text, label, lineage) if context is None else (text, label, lineage, context):
        # Each part has its length in front, so that text cannot imitate the border to the label.
        if part is None:
            pieces.append(b"True0:")
        else:
            data = part.encode("utf-8", "surrogatepass")
            pieces += (b"False%d:" % len(data), data)
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def _check_ids(ids: tuple[str, ...]) -> None:
    _check_types(ids, "ids", ids, (str,), "a str")
    if "" in ids:
        msg = f"ids[{ids.index('')}] is empty, expected a non-empty str; give every entry an id."
        raise InvalidBatchError(msg)
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        repeated = next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        msg = (
            f"id {repeated!r} is duplicated in this batch, expected unique ids; "
            "drop the older revision or ingest the two in separate calls."
        )
        raise InvalidBatchError(msg)


def _check_types(
    ids: Sequence[object],
    column: str,
    values: Sequence[object],
    kinds: tuple[type, ...],
    described: str,
) -> None:
    if set(map(type, values)).issubset(kinds):  # the usual case, without a loop in Python
        return
    for row, value in enumerate(values):
        if not isinstance(value, kinds):
            msg = (
                f"{column}[{row}] (entry {ids[row]!r}) is of type {type(value).__name__}, "
                f"expected {described}."
            )
            raise InvalidBatchError(msg)


def _check_storable(ids: tuple[str, ...], column: str, values: tuple[str | None, ...]) -> None:
    """Refuse text that a database column cannot keep: NUL and halves of surrogate pairs."""
    given = [value for value in values if value is not None]
    if not unfit("".join(given)):
        return
    row = next(row for row, value in enumerate(values) if value is not None and unfit(value))
    msg = (
        f"{column}[{row}] (entry {ids[row]!r}) holds a NUL or a lone surrogate, expected valid "
        "Unicode text; clean it or replace it by a hash."
    )
    raise InvalidBatchError(msg)


def unfit(text: str) -> bool:
    """Return whether databases cannot keep a text in a text column."""
    if text.isascii():
        return "\0" in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return "\0" in text


def _check_matrix(ids: tuple[str, ...], column: str, matrix: NDArray[np.float32]) -> None:
    if matrix.dtype != np.float32 or matrix.ndim != 2 or len(matrix) != len(ids):  # noqa: PLR2004
        msg = (
            f"{column} has shape {matrix.shape} and dtype {matrix.dtype}, expected "
            f"({len(ids)}, dim) and float32; build the batch with Batch.of."
        )
        raise InvalidBatchError(msg)


def _as_matrix(ids: tuple[str, ...], embeddings: ArrayLike) -> NDArray[np.float32]:
    try:
        matrix = np.asarray(embeddings, dtype=np.float32)
    except (TypeError, ValueError):
        matrix = None
    if matrix is not None and matrix.size == 0 and not ids:
        return matrix.reshape(0, matrix.shape[1] if matrix.ndim == 2 else 0)  # noqa: PLR2004
    if matrix is not None and matrix.ndim == 2 and len(matrix) == len(ids):  # noqa: PLR2004
        return np.ascontiguousarray(matrix)
    # Find the first row that prevents a matrix, to name it.
    rows = list(embeddings) if isinstance(embeddings, Iterable) else []
    if len(rows) != len(ids):
        msg = (
            f"embeddings has {len(rows)} rows for {len(ids)} ids, expected one vector of floats "
            "per entry."
        )
        raise InvalidBatchError(msg)
    dim = None
    for row, vector in enumerate(rows):
        try:
            shape = np.asarray(vector, dtype=np.float32).shape
        except (TypeError, ValueError):
            shape = None
        if shape is None or len(shape) != 1:
            msg = (
                f"embeddings[{row}] (entry {ids[row]!r}) is of type {type(vector).__name__}, "
                "expected a vector of floats."
            )
            raise InvalidBatchError(msg)
        dim = shape[0] if dim is None else dim
        if shape[0] != dim:
            msg = (
                f"embeddings[{row}] (entry {ids[row]!r}) has {shape[0]} dimensions, expected "
                f"{dim} as in row 0; embed all entries with the same model."
            )
            raise InvalidBatchError(msg)
    raise AssertionError  # pragma: no cover


def _unit_rows(ids: tuple[str, ...], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = row_norms(vectors)
    if not vectors.shape[1]:
        return vectors
    _check_directions(ids, "embeddings", norms)
    if np.all(np.abs(norms - 1.0) <= UNIT_TOLERANCE):
        return vectors
    return (vectors / norms[:, None]).astype(np.float32)


def _check_directions(ids: tuple[str, ...], column: str, norms: NDArray[np.float64]) -> None:
    for bad, what, expected in (
        (~np.isfinite(norms), "holds NaN or infinite values", "finite numbers"),
        (norms == 0.0, "is the zero vector", "a direction"),
    ):
        if bad.any():
            row = int(bad.argmax())
            msg = (
                f"{column}[{row}] (entry {ids[row]!r}) {what}, expected {expected}; check what "
                "the embedding model returned for this text."
            )
            raise InvalidBatchError(msg)


def row_norms(matrix: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the lengths of rows, which bring all vectors to unit length.

    Every reader of vectors divides by these same lengths, to the last bit, because the result of an
    optimiser varies far more than its input.
    """
    squares = np.einsum("ij,ij->i", matrix, matrix)
    if not np.all((squares > 1e-30) & (squares < 1e30)):  # noqa: PLR2004
        # The squares of large float32 values overflow, those of tiny ones vanish.
        squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
    norms: NDArray[np.float64] = np.sqrt(squares, dtype=np.float64)
    return norms


NO_ENTRIES = Batch.of(ids=[], texts=[], embeddings=None)
