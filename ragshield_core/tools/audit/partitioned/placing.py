"""Partitioning of entries: two passes over the input, and a shuffle through files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence, judged_scores
from ragshield_core.detectors.groups.graph import NO_LINEAGE
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import InvalidBatchError, SourceError
from ragshield_core.model.ragged import divided, joined
from ragshield_core.neighbors.search import load_faiss
from ragshield_core.screening.screening import checked, crash, explained
from ragshield_core.text.copies import content_words
from ragshield_core.tools.audit.partitioned.plan import (
    LOOKED_INTO,
    PIECE_ROWS,
    RAGGED,
    Numbers,
    Plan,
)
from ragshield_core.tools.audit.readers.records import parquet
from ragshield_core.tools.audit.readers.source import ColumnNames, Rows, Source

# Entries of the sample per centre, and rounds of k-means on them: rough centres suffice, since each
# entry is compared with several partitions.
SAMPLE_PER_CENTRE, CENTRE_ROUNDS = 40, 5
# A partition larger than this many times the usual size is divided, with this many rounds at most:
# copies of one text cannot be divided.
LARGEST, SPLITS = 2, 8
# Lengths of vectors closer to one than this differ by rounding only.
ROUNDING = 1e-6


def sample(plan: Plan, number: int) -> tuple[int, NDArray[np.float32]]:
    """Draw a piece's share of the sample; return its vectors, of unit length."""
    n = plan.pieces[number].n_rows
    share = SAMPLE_PER_CENTRE * math.ceil(plan.n_rows / plan.partition_rows) / plan.n_rows
    rng = np.random.default_rng([plan.seed, number])
    chosen = np.sort(rng.choice(n, min(n, math.ceil(share * n)), replace=False))
    found, start = [], 0
    only = ColumnNames(plan.columns.id, "", "", "", plan.columns.embedding)
    with suppress(SourceError):  # errors of an entry are raised when it is placed
        for chunk, matrix in _chunks(plan, number, only):
            inside = chosen[(chosen >= start) & (chosen < start + len(chunk))] - start
            found.append(matrix[inside])
            start += len(chunk)
    vectors = np.concatenate(found) if found else np.empty((0, 0), dtype=np.float32)
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    usable = np.isfinite(norms) & (norms > 0.0)
    off = np.abs(norms - 1.0) > ROUNDING
    vectors[off & usable] /= norms[off & usable, None]
    return number, vectors[usable]


def centres_of(plan: Plan, parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the centres of the partitions, found from the sample."""
    if not any(map(len, parts)):
        wanted = " or ".join(map(repr, plan.columns.names("embedding")))
        msg = (
            f"{plan.pieces[0].path} has no vectors under {wanted}, expected one for each entry; "
            "name their column with --embedding-column, or audit without an engine."
        )
        raise SourceError(msg)
    vectors = np.concatenate([part for part in parts if len(part)])
    wanted_at_first = math.ceil(plan.n_rows / plan.partition_rows)
    centres = _centres(vectors, min(wanted_at_first, len(vectors)), plan.seed)
    for _ in range(SPLITS):
        nearest = _nearest_centres(vectors, centres, 1)[:, 0]
        sizes = np.bincount(nearest, minlength=len(centres)) * plan.n_rows / len(vectors)
        large = np.flatnonzero(sizes > LARGEST * plan.partition_rows)
        if not large.size or len(centres) == 1:
            break
        divided_ones = [
            _centres(inside, min(math.ceil(sizes[one] / plan.partition_rows), len(inside)), one)
            for one in large.tolist()
            if len(inside := np.unique(vectors[nearest == one], axis=0)) > 1
        ]
        if not divided_ones:
            break
        centres = np.concatenate([np.delete(centres, large, axis=0), *divided_ones])
    return centres


class Placed(NamedTuple):
    """Result of placing a piece."""

    number: int
    counts: NDArray[np.int64]  # (n_slices, n_partitions)
    total: NDArray[np.float64]  # of the vectors
    failed: dict[int, str]  # errors of detectors, by their number


def place(plan: Plan, number: int) -> Placed:
    """Read a piece, and sort its entries by partition."""
    centres = plan.centres
    failed: dict[int, str] = {}
    counts: list[NDArray[np.int64]] = []
    start, total = 0, np.zeros(centres.shape[1], dtype=np.float64)
    for batch in _slices(plan, number):
        nearest = _nearest_centres(batch.embeddings, centres, min(LOOKED_INTO, len(centres)))
        order = np.argsort(nearest[:, 0], kind="stable")
        texts, ids = ([column[row] for row in order] for column in (batch.texts, batch.ids))
        words, word_ends = joined(list(map(content_words, texts)), np.uint32)
        as_bytes = [np.frombuffer(one.encode(), dtype=np.uint8) for one in ids]
        names, name_ends = joined(as_bytes, np.uint8)
        columns = {
            "vectors": batch.embeddings[order],
            "words": words,
            "word_ends": word_ends,
            "ids": names,
            "id_ends": name_ends,
            "id_hash": np.array(list(map(id_hash, ids)), dtype=np.uint64),
            "lineage": np.array([lineage_code(batch.lineages[row]) for row in order]),
            "piece": np.full(len(order), number, dtype=np.int32),
            "row": start + order,
            "nearest": nearest[order].astype(np.int32),
        }
        for which, (kind, config) in enumerate(plan.by_text):
            detector = kind(**config)
            try:
                scores = judged_scores(detector, batch)
                scores = checked(detector.name, scores, len(batch), partial=True)
            except Exception as error:  # noqa: BLE001 - any crash, of any detector
                failed[which], scores = crash(error), np.full(len(batch), np.nan)
            columns[f"score.{which}"] = scores[order]
        plan.write(f"placed/{number}.{len(counts)}", columns)
        counts.append(np.bincount(nearest[:, 0], minlength=len(centres)))
        total += batch.embeddings.sum(axis=0, dtype=np.float64)
        start += len(batch)
    return Placed(number, np.array(counts), total, failed)


def layout_of(placed: Sequence[Placed]) -> dict[str, Any]:
    """Assign numbers to entries from the counts of all partitions; return fields of the plan."""
    counts = np.concatenate([one.counts for one in placed])
    return {
        "slices": [(one.number, part) for one in placed for part in range(len(one.counts))],
        "counts": counts,
        "starts": np.concatenate([[0], np.cumsum(counts.sum(axis=0))]),
        "mean": np.sum([one.total for one in placed], axis=0) / max(1, counts.sum()),
    }


def gather(plan: Plan, partition: int) -> None:
    """Gather the entries of a partition in files of its own."""
    firsts = plan.counts[:, :partition].sum(axis=1).tolist()
    sizes = plan.counts[:, partition].tolist()
    parts = [
        (f"placed/{piece}.{part}", np.arange(first, first + n))
        for (piece, part), first, n in zip(plan.slices, firsts, sizes, strict=True)
        if n
    ]
    for name in plan.names(parts[0][0]):
        if ends := RAGGED.get(name):
            values = [
                value
                for part, rows in parts
                for value in divided(plan.read(part, name), plan.read(part, ends), rows)
            ]
            whole, whole_ends = joined(values, values[0].dtype)
            plan.write(partition, {name: whole, ends: whole_ends})
        elif name not in RAGGED.values():
            found = [plan.read(part, name)[rows[0] : rows[-1] + 1] for part, rows in parts]
            plan.write(partition, {name: np.concatenate(found)})


def compare_ids(plan: Plan) -> None:
    """Refuse repeated ids, found by their hashes; takes 24 bytes an entry."""
    hashes = plan.column("id_hash")
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    for place_of in again.tolist():  # hardly any, unless ids repeat
        one, other = plan.ids(order[place_of : place_of + 2])
        if one == other:
            msg = f"the id {one!r} repeats, expected one entry per id; merge or rename them."
            raise InvalidBatchError(msg)


def explain_texts(
    which: int, plan: Plan, number: int, rows: Numbers
) -> tuple[int, Sequence[Evidence]]:
    """Return a detector's evidence against entries of a piece, given ascending rows."""
    found, start = [], 0
    for batch in _batches(plan, number):
        inside = rows[(rows >= start) & (rows < start + len(batch))] - start
        found.append(batch.take(inside))
        start += len(batch)
    (kind, config), entries = plan.by_text[which], concatenate(found)
    detector = kind(**config)
    return number, explained(detector.name, detector.explain, entries, list(range(len(entries))))


def lineage_code(lineage: str | None) -> int:
    """Return the code of a lineage, the same on all machines."""
    return NO_LINEAGE if lineage is None else id_hash(lineage) >> 1


def id_hash(text: str) -> int:
    """Return a 64-bit hash of an id, or of another text."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def _chunks(
    plan: Plan, number: int, columns: ColumnNames
) -> Iterator[tuple[Rows, NDArray[np.float32]]]:
    """Yield the rows of a piece, a chunk at a time, with their vectors as stored."""
    path, groups, _ = plan.pieces[number]
    for chunk in parquet(Source(path, parquet, columns), groups):
        have = set() if chunk.vectors is None else set(chunk.vectors.rows.tolist())
        if chunk.vectors is None or len(have) < len(chunk):
            lacking = next(row for row in range(len(chunk)) if row not in have)
            msg = (
                f"entry {chunk.ids[lacking]!r} of {path} has no vector, expected one for each "
                "entry; embed them first, or audit in memory, without an engine."
            )
            raise SourceError(msg)
        yield chunk, chunk.vectors.matrix


def _batches(plan: Plan, number: int) -> Iterator[Batch]:
    """Yield the entries of a piece in their order, a chunk at a time."""
    for chunk, matrix in _chunks(plan, number, plan.columns):
        yield Batch.of(
            ids=chunk.ids,
            texts=chunk.texts,
            embeddings=matrix,
            labels=chunk.labels,
            lineages=chunk.lineages,
        )


def _slices(plan: Plan, number: int) -> Iterator[Batch]:
    """Yield the entries of a piece in batches that fit in memory."""
    parts: list[Batch] = []
    for batch in _batches(plan, number):
        parts.append(batch)
        if sum(map(len, parts)) >= PIECE_ROWS:
            yield concatenate(parts)
            parts = []
    if parts:
        yield concatenate(parts)


def _centres(vectors: NDArray[np.float32], n: int, seed: int) -> NDArray[np.float32]:
    """Return centres of unit length, shape (n, dim)."""
    means = load_faiss().Kmeans(
        vectors.shape[1],
        n,
        niter=CENTRE_ROUNDS,
        spherical=True,
        seed=seed + 1,  # with seed 0, runs would differ
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),
    )
    means.train(np.ascontiguousarray(vectors))
    return np.array(means.centroids, dtype=np.float32)


def _nearest_centres(
    vectors: NDArray[np.float32], centres: NDArray[np.float32], wanted: int
) -> NDArray[np.int64]:
    """Return the nearest centres of each vector, shape (n, wanted), the nearest first."""
    faiss = load_faiss()
    found = faiss.knn(vectors, centres, wanted, metric=faiss.METRIC_INNER_PRODUCT)[1]
    return np.asarray(found, dtype=np.int64)
