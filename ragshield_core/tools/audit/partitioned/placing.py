"""Which partition an entry belongs to: two passes over the input, and a shuffle through files.

Each entry has a *number*: entries of one partition are numbered in a row, partition by partition.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import judged_scores
from ragshield_core.detectors.groups.graph import NO_LINEAGE
from ragshield_core.entries import Batch, together
from ragshield_core.errors import InvalidBatchError, SourceError
from ragshield_core.neighbors.rows import load_faiss
from ragshield_core.screening import checked, crash
from ragshield_core.text.copies import word_hashes
from ragshield_core.tools.audit.knowledge_base import to_unit_length
from ragshield_core.tools.audit.partitioned.files import as_bytes, joined, stretch
from ragshield_core.tools.audit.partitioned.plan import LOOKED_INTO, PIECE_ROWS, Piece, Plan
from ragshield_core.tools.audit.partitioned.rows import RAGGED, ROWS, Partitions, Shard, shards_of
from ragshield_core.tools.audit.readers.parquet import Parquet
from ragshield_core.tools.audit.readers.source import Columns, Rows

# Entries of the sample per centre, and rounds of k-means on them: a rough cut is good enough, since
# entries look into several partitions.
SAMPLE_PER_CENTRE, CENTRE_ROUNDS = 40, 5
# A partition that would be larger than this many usual ones is divided, so often at most: copies
# of one text cannot be.
LARGEST, SPLITS = 2, 8
# Length beyond which a row is no unit vector: zero, or not finite.
UNIT = 1e-3
# Hashes of ids that are compared at once: 400 MB.
IDS_AT_ONCE = 50_000_000


class Slice(NamedTuple):
    """Entries of a piece as they were read, in columns."""

    ids: list[str]
    words: list[NDArray[np.uint32]]
    lineages: list[int]
    vectors: NDArray[np.float32]
    scores: list[NDArray[np.float64]]  # of each detector that judges by the text


def sample(plan: Plan, number: int) -> None:
    """Draw entries of a piece, as many as fall to it."""
    piece = plan.pieces[number]
    share = SAMPLE_PER_CENTRE * plan.n_partitions / plan.n_rows
    wanted = min(piece.n_rows, math.ceil(share * piece.n_rows))
    rng = np.random.default_rng([plan.seed, number])
    chosen = np.sort(rng.choice(piece.n_rows, wanted, replace=False))
    found, start = [], 0
    only = Columns(
        id=plan.columns.id, text="", label="", lineage="", embedding=plan.columns.embedding
    )
    with suppress(SourceError):  # what is wrong with an entry is said when it is placed
        for chunk in _chunks(piece, only):
            inside = chosen[(chosen >= start) & (chosen < start + len(chunk))] - start
            found.append(_vectors(chunk, piece)[inside])
            start += len(chunk)
    vectors = np.concatenate(found) if found else np.empty((0, 0), dtype=np.float32)
    with np.errstate(invalid="ignore"):
        usable = np.abs(np.linalg.norm(vectors, axis=1) - 1.0) < UNIT
    plan.files.write(f"sample/{number}", {"vectors": vectors[usable]})


def train(plan: Plan) -> None:
    """Find the centres of the partitions from what was sampled; on the driver."""
    parts = [plan.files.read(f"sample/{i}")["vectors"] for i in range(len(plan.pieces))]
    if not any(map(len, parts)):
        wanted = " or ".join(map(repr, plan.columns.names("embedding")))
        msg = (
            f"{plan.pieces[0].path} has no vectors under {wanted}, expected one for each entry; "
            "name their column with --embedding-column, or audit without an engine."
        )
        raise SourceError(msg)
    vectors = np.concatenate([part for part in parts if len(part)])
    centres = _centres(vectors, min(plan.n_partitions, len(vectors)), plan.seed)
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
    plan.files.write("centres", {"centres": centres})


def place(plan: Plan, number: int) -> None:
    """Read a piece, and sort its entries by the partitions that they belong to."""
    piece = plan.pieces[number]
    centres = np.array(plan.files.read("centres")["centres"])
    n = len(centres)
    arrays: dict[str, NDArray[Any]] = {}
    failed: dict[int, str] = {}
    start = n_slices = 0
    total = np.zeros(centres.shape[1], dtype=np.float64)
    for part in _slices(plan, piece, failed):
        total += part.vectors.sum(axis=0, dtype=np.float64)
        nearest = _nearest_centres(part.vectors, centres, min(LOOKED_INTO, n))
        order = np.argsort(nearest[:, 0], kind="stable")
        first, others = nearest[order, 0], nearest[order, 1:]
        guests = np.argsort(others.ravel(), kind="stable")
        words, word_ends = joined([part.words[row] for row in order.tolist()], np.uint32)
        ids = [as_bytes(part.ids[row]) for row in order.tolist()]
        names, name_ends = joined(ids, np.uint8)
        columns = {
            "vectors": part.vectors[order],
            "words": words,
            "word_ends": word_ends,
            "ids": names,
            "id_ends": name_ends,
            "id_hash": np.array([id_hash(part.ids[row]) for row in order], dtype=np.uint64),
            "lineage": np.array(part.lineages, dtype=np.int64)[order],
            "piece": np.full(len(order), number, dtype=np.int32),
            "row": start + order,
            "others": others.astype(np.int32),
            "starts": np.searchsorted(first, np.arange(n + 1)),
            "guests": (guests // max(1, others.shape[1])).astype(np.int32),
            "guest_starts": np.searchsorted(others.ravel()[guests], np.arange(n + 1)),
        } | {f"score.{i}": scores[order] for i, scores in enumerate(part.scores)}
        arrays |= {f"{n_slices}.{name}": array for name, array in columns.items()}
        start += len(order)
        n_slices += 1
    arrays |= {f"failed.{i}": as_bytes(reason) for i, reason in failed.items()}
    arrays["n_slices"] = np.array(n_slices)
    arrays["total"] = total
    plan.files.write(f"placed/{number}", arrays)


def lay_out(plan: Plan) -> None:
    """Give the entries their numbers, now that all partitions are counted; on the driver."""
    slices, counts, guests, totals = [], [], [], []
    failed: dict[str, NDArray[Any]] = {}
    for number in range(len(plan.pieces)):
        arrays = plan.files.read(f"placed/{number}")
        for part in range(int(arrays["n_slices"])):
            slices.append((number, part))
            counts.append(np.diff(arrays[f"{part}.starts"]))
            guests.append(np.diff(arrays[f"{part}.guest_starts"]))
        failed |= {name: array for name, array in arrays.items() if name.startswith("failed.")}
        totals.append(arrays["total"])
    sizes = np.stack(counts)
    plan.files.write(
        "layout",
        {
            "slices": np.array(slices),
            "before": np.cumsum(sizes, axis=0) - sizes,
            "starts": np.concatenate([[0], np.cumsum(sizes.sum(axis=0))]),
            "shards": shards_of(sizes.sum(axis=0)),
            "n_guests": np.sum(guests, axis=0),
            "mean": np.sum(totals, axis=0) / max(1, sizes.sum()),
            **failed,
        },
    )


def gather(plan: Plan, number: int) -> None:
    """Bring the entries of a shard together, and the numbers of the guests of its partitions."""
    layout, shard = plan.files.read("layout"), Partitions(plan).shards[number]
    placed = [_placed(plan, *one) for one in layout["slices"].tolist()]
    spans = [
        (arrays, *arrays["starts"][partition : partition + 2].tolist())
        for partition in shard.partitions
        for arrays in placed
    ]
    scores = [f"score.{i}" for i in range(len(plan.by_text))]
    columns = {
        name: np.concatenate([arrays[name][first:last] for arrays, first, last in spans])
        for name in ("vectors", "id_hash", "lineage", "piece", "row", "others", *scores)
    }
    for name, ends in RAGGED.items():
        parts = [
            (arrays, np.s_[first:last], stretch(arrays[ends], first, last))
            for arrays, first, last in spans
        ]
        lengths = [np.diff(arrays[ends][rows], prepend=flat.start) for arrays, rows, flat in parts]
        columns[name] = np.concatenate([arrays[name][flat] for arrays, _, flat in parts])
        columns[ends] = np.cumsum(np.concatenate(lengths))
    plan.files.write(f"{ROWS}/{number}", columns | _guests(layout, shard, placed))


def _placed(plan: Plan, piece: int, part: int) -> dict[str, NDArray[Any]]:
    """Return a slice of a piece as it was placed."""
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): array
        for name, array in plan.files.read(f"placed/{piece}").items()
        if name.startswith(prefix)
    }


def _guests(
    layout: dict[str, NDArray[Any]], shard: Shard, placed: list[dict[str, NDArray[Any]]]
) -> dict[str, NDArray[np.int64]]:
    """Return the numbers of those that look into each partition of a shard."""
    hosts, numbers = [], []
    for place_of, arrays in enumerate(placed):
        bounds = arrays["guest_starts"][shard.partitions[0] : shard.partitions[-1] + 2]
        hosts.append(np.repeat(np.arange(len(shard.partitions)), np.diff(bounds)))
        position = arrays["guests"][bounds[0] : bounds[-1]]
        home = np.searchsorted(arrays["starts"], position, side="right") - 1
        offset = layout["starts"][home] + layout["before"][place_of][home]
        numbers.append(offset + position - arrays["starts"][home])
    host, guests = np.concatenate(hosts), np.concatenate(numbers)
    ends = np.cumsum(np.bincount(host, minlength=len(shard.partitions)))
    return {"guests": guests[np.lexsort((guests, host))], "guest_ends": ends}


def id_shares(plan: Plan) -> int:
    """Return by how many tasks the ids are compared."""
    return math.ceil(plan.n_rows / IDS_AT_ONCE)


def compare_ids(plan: Plan, share: int) -> None:
    """Make sure that no id repeats, among a share of all, by their hashes.

    Raises
    ------
    InvalidBatchError
        If one does; names it.
    """
    partitions = Partitions(plan)
    shares = np.uint64(id_shares(plan))
    hashes, numbers = [], []
    for partition in partitions.filled:
        column = partitions.rows(partition)["id_hash"]
        mine = np.flatnonzero(column % shares == share)
        hashes.append(column[mine])
        numbers.append(mine + partitions.starts[partition])
    values, owners = np.concatenate(hashes), np.concatenate(numbers)
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order][1:] == values[order][:-1])
    for place_of in again.tolist():  # hardly any, unless ids repeat
        one, other = partitions.ids(owners[order[place_of : place_of + 2]])
        if one == other:
            msg = f"the id {one!r} repeats, expected one entry per id; merge or rename them."
            raise InvalidBatchError(msg)
    plan.files.write(f"ids/{share}", {})


def read_rows(plan: Plan, number: int, rows: Sequence[int]) -> Batch:
    """Return some entries of a piece with their texts, in ascending order of the rows."""
    piece = plan.pieces[number]
    wanted = np.array(sorted(rows))
    batches, start = [], 0
    for chunk in _chunks(piece, plan.columns):
        inside = wanted[(wanted >= start) & (wanted < start + len(chunk))] - start
        if inside.size:
            batches.append(_batch(chunk, piece).take(inside))
        start += len(chunk)
    return together(batches)


def batches_of(plan: Plan, number: int) -> Iterator[Batch]:
    """Yield the entries of a piece in their order, a chunk at a time."""
    piece = plan.pieces[number]
    for chunk in _chunks(piece, plan.columns):
        yield _batch(chunk, piece)


def lineage_code(lineage: str | None) -> int:
    """Return the code of a lineage, the same on all machines."""
    if lineage is None:
        return NO_LINEAGE
    return id_hash(lineage) >> 1


def id_hash(text: str) -> int:
    """Return 64 bits of an id, or another text, by which it is found."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _chunks(piece: Piece, columns: Columns) -> Iterator[Rows]:
    """Yield the rows of a piece."""
    return Parquet(piece.path, columns, groups=piece.groups).chunks()


def _vectors(chunk: Rows, piece: Piece) -> NDArray[np.float32]:
    """Return the vectors of a chunk, of unit length as far as they can be."""
    vectors = chunk.vectors
    if vectors is None or len(vectors.rows) != len(chunk):
        have = set() if vectors is None else set(vectors.rows.tolist())
        lacking = next(row for row in range(len(chunk)) if row not in have)
        msg = (
            f"entry {chunk.ids[lacking]!r} of {piece.path} has no vector, expected one for each "
            "entry; embed them first, or audit in memory, without an engine."
        )
        raise SourceError(msg)
    matrix = np.array(vectors.matrix, dtype=np.float32)
    to_unit_length(matrix)
    return matrix


def _batch(chunk: Rows, piece: Piece) -> Batch:
    return Batch.of(
        ids=chunk.ids,
        texts=chunk.texts,
        embeddings=_vectors(chunk, piece),
        labels=chunk.labels,
        lineages=chunk.lineages,
    )


def _slices(plan: Plan, piece: Piece, failed: dict[int, str]) -> Iterator[Slice]:
    """Yield the entries of a piece, judged by their texts, so many at a time as fit in memory."""
    detectors = plan.detectors()
    parts: list[Slice] = []
    for chunk in _chunks(piece, plan.columns):
        batch = _batch(chunk, piece)
        scores = []
        for number, detector in enumerate(detectors):
            try:
                judged = judged_scores(detector, batch)
                scores.append(checked(detector.name, judged, len(batch), partial=True))
            except Exception as error:  # noqa: BLE001 - any crash, of any detector
                failed[number] = crash(error)
                scores.append(np.full(len(batch), np.nan))
        parts.append(
            Slice(
                ids=chunk.ids,
                words=[word_hashes(text) for text in chunk.texts],
                lineages=[lineage_code(lineage) for lineage in chunk.lineages],
                vectors=batch.embeddings,
                scores=scores,
            )
        )
        if sum(len(part.ids) for part in parts) >= PIECE_ROWS:
            yield _together(parts)
            parts = []
    if parts:
        yield _together(parts)


def _together(parts: Sequence[Slice]) -> Slice:
    return Slice(
        ids=[i for part in parts for i in part.ids],
        words=[words for part in parts for words in part.words],
        lineages=[lineage for part in parts for lineage in part.lineages],
        vectors=np.concatenate([part.vectors for part in parts]),
        scores=[np.concatenate(c) for c in zip(*(part.scores for part in parts), strict=True)],
    )


def _centres(vectors: NDArray[np.float32], n: int, seed: int) -> NDArray[np.float32]:
    """Return centres of unit length, shape (n, dim)."""
    faiss = load_faiss()

    means = faiss.Kmeans(
        vectors.shape[1],
        n,
        niter=CENTRE_ROUNDS,
        spherical=True,
        seed=seed + 1,  # 0 would be another one every time
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
