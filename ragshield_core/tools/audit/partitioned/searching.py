"""The nearest neighbours of every entry, within the partitions that it is nearest to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.evidence import K
from ragshield_core.detectors.groups.graph import ROUNDING, Lists
from ragshield_core.detectors.groups.usual import COPIES, new_copies
from ragshield_core.neighbors.rows import Neighbors, load_faiss, merged, none_found
from ragshield_core.tools.audit.partitioned.plan import LOOKED_INTO, Plan
from ragshield_core.tools.audit.partitioned.rows import LISTS, Partitions, Shard
from ragshield_core.tools.audit.partitioned.window import Window

# Entries whose neighbours are looked for everywhere, to tell what the partitions miss: the share
# that is found is known to 2 percentage points then.
PROBES = 500
# The numbers of neighbours of which it is told how many were found.
TOLD = (2, K)


class Block(NamedTuple):
    """The entries for which one task looks in a partition: of its own first, then of its guests."""

    partition: int
    number: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"found/{self.partition}.{self.number}"


def block_rows(plan: Plan) -> int:
    """Return how many entries a task looks for, and among how many at once, at most.

    As many as look into a usual partition: 123 MB of 384 dimensions.
    """
    return LOOKED_INTO * plan.partition_rows


def blocks_of(plan: Plan) -> list[Block]:
    """Return the blocks of all partitions, one of each unless there are many to look for."""
    partitions = Partitions(plan)
    sizes = partitions.n_searched
    return [
        Block(partition, number)
        for partition in partitions.filled
        for number in range(-(-int(sizes[partition]) // block_rows(plan)))
    ]


def search(plan: Plan, partition: int, number: int) -> None:
    """Find the nearest of each entry of a block among all of a partition, exactly.

    Memory is bounded by the block, whatever the size of the partition.
    """
    partitions, size = Partitions(plan), block_rows(plan)
    own = partitions.own(partition)
    everybody = np.concatenate([own, partitions.guests(partition)])
    numbers = everybody[number * size : (number + 1) * size]
    queries = _vectors(partitions, partition, numbers)
    parts = []
    for start in range(0, len(own), size):
        others = own[start : start + size]
        vectors = _vectors(partitions, partition, others)
        parts.append(_nearest(queries, numbers, vectors, others))
    plan.files.write(Block(partition, number).name, merged(parts, K)._asdict())


def merge(plan: Plan, number: int) -> None:
    """Join what was found of the entries of a shard everywhere, and compare texts along that."""
    partitions = Partitions(plan)
    shard = partitions.shards[number]
    elsewhere = _found_elsewhere(plan, partitions, shard)
    start = partitions.starts[shard.partitions[0]]
    parts = []
    for partition in shard.partitions:
        own = partitions.own(partition)
        if not len(own):
            continue
        here = np.s_[own - start]
        at_home = _found(plan, partition, 0, len(own))
        best = _best([at_home, Neighbors(elsewhere.slots[here], elsewhere.similarities[here])])
        parts.append(_with_copies(partitions, own, best))
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    plan.files.write(f"{LISTS}/{number}", columns)


def _found_elsewhere(plan: Plan, partitions: Partitions, shard: Shard) -> Neighbors:
    """Return what was found of the entries of a shard as guests, all that there is of each."""
    first, last = partitions.starts[[shard.partitions[0], shard.partitions[-1] + 1]].tolist()
    hosts = np.concatenate([partitions.rows(p)["others"] for p in shard.partitions])
    order = np.argsort(hosts, axis=None, kind="stable")
    bounds = np.searchsorted(hosts.ravel()[order], np.arange(partitions.n + 1)).tolist()
    found = none_found(hosts.size, K)
    for host in partitions.filled:
        guests = order[bounds[host] : bounds[host + 1]]
        if len(guests):
            start, stop = np.searchsorted(partitions.guests(host), [first, last]).tolist()
            behind = len(partitions.own(host))
            lists = _found(plan, host, behind + start, behind + stop)
            found.slots[guests], found.similarities[guests] = lists
    shape = (len(hosts), hosts.shape[1] * K)
    return Neighbors(found.slots.reshape(shape), found.similarities.reshape(shape))


def _with_copies(
    partitions: Partitions, own: NDArray[np.int64], best: Neighbors
) -> dict[str, NDArray[Any]]:
    """Return the lists of a partition's entries, and what their texts have of their neighbours'."""
    nothing = np.zeros(best.slots.shape, dtype=np.float32)
    window = Window.around(partitions, own, Lists(*best, nothing), vectors=False)
    graph, overlay = window.graph, window.overlay
    overlay.lists.copied[:] = graph.copied(overlay.numbers, overlay.lists)
    everything = np.ones(graph.n_slots, dtype=np.bool_)  # an audit cannot tell new from old
    copies = {kind: new_copies(overlay, everything, copy) for kind, copy in COPIES.items()}
    kin = overlay.with_kin()
    return {**best._asdict(), "copied": overlay.lists.copied, "kin": kin, **copies}


def probes(plan: Plan) -> None:
    """Draw the entries whose neighbours are looked for everywhere; on the driver."""
    rng = np.random.default_rng(plan.seed)
    numbers = np.sort(rng.choice(plan.n_rows, min(PROBES, plan.n_rows), replace=False))
    vectors = Partitions(plan).vectors(numbers)
    plan.files.write("probes", {"numbers": numbers, "vectors": vectors})


def probe(plan: Plan, partition: int) -> None:
    """Find the nearest of the entries that were drawn in a partition."""
    drawn, partitions = plan.files.read("probes"), Partitions(plan)
    queries, own = np.array(drawn["vectors"]), partitions.own(partition)
    parts = [none_found(len(queries), K)]
    for start in range(0, len(own), block_rows(plan)):
        others = own[start : start + block_rows(plan)]
        vectors = _vectors(partitions, partition, others)
        parts.append(_nearest(queries, drawn["numbers"], vectors, others))
    plan.files.write(f"probed/{partition}", {"similarities": merged(parts, K).similarities})


def share_found(plan: Plan) -> dict[int, float]:
    """Return which share of the nearest neighbours was found, by how many of them are meant.

    An entry that is as near as the one that was missed is as good.
    """
    partitions, numbers = Partitions(plan), plan.files.read("probes")["numbers"]
    true = np.full((len(numbers), K), -np.inf, dtype=np.float32)
    for partition in partitions.filled:
        more = partitions.rows(partition, "probed")["similarities"]
        true = -np.sort(-np.concatenate([true, more], axis=1), axis=1)[:, :K]
    found = partitions.gather(numbers, "similarities", LISTS)
    shares = {}
    for k in TOLD:
        there = np.isfinite(true[:, :k]).sum(axis=1)
        least = true[np.arange(len(true)), np.maximum(there, 1) - 1]
        hit = np.minimum((found > (least - ROUNDING)[:, None]).sum(axis=1), there)
        shares[k] = float(hit.sum() / max(1, there.sum()))
    return shares


def _vectors(
    partitions: Partitions, partition: int, numbers: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return vectors of a partition's own entries and of guests."""
    start, stop = partitions.starts[partition : partition + 2]
    inside = (numbers >= start) & (numbers < stop)
    own = partitions.rows(partition)["vectors"]
    vectors = np.empty((len(numbers), own.shape[1]), dtype=np.float32)
    vectors[inside] = own[numbers[inside] - start]
    vectors[~inside] = partitions.vectors(numbers[~inside])
    return vectors


def _nearest(
    queries: NDArray[np.float32],
    own: NDArray[np.int64],
    vectors: NDArray[np.float32],
    numbers: NDArray[np.int64],
) -> Neighbors:
    """Return the nearest of each query, which has a number of its own, among numbered vectors."""
    faiss = load_faiss()

    fetched = min(K + 1, len(vectors))
    similarities, rows = faiss.knn(queries, vectors, fetched, metric=faiss.METRIC_INNER_PRODUCT)
    slots = numbers[rows]
    itself = slots == np.asarray(own)[:, None]
    slots[itself], similarities[itself] = -1, -np.inf
    padded = none_found(len(queries), K)  # partitions may be small
    return merged([Neighbors(slots, similarities), padded], K)


def _found(plan: Plan, partition: int, start: int, stop: int) -> Neighbors:
    """Return the lists of some of those that were compared in a partition."""
    size = block_rows(plan)
    parts: list[dict[str, Any]] = []
    for number in range(start // size, -(-stop // size)):
        arrays = plan.files.read(Block(partition, number).name)
        inside = np.s_[max(0, start - number * size) : stop - number * size]
        parts.append({name: array[inside] for name, array in arrays.items()})
    if not parts:
        return none_found(0, K)
    return Neighbors(
        np.concatenate([part["slots"] for part in parts]),
        np.concatenate([part["similarities"] for part in parts]),
    )


def _best(parts: list[Neighbors]) -> Neighbors:
    """Return the best of several lists; of equals those with the lowest numbers."""
    slots = np.concatenate([part.slots for part in parts], axis=1)
    similarities = np.concatenate([part.similarities for part in parts], axis=1)
    order = np.lexsort((slots, -similarities), axis=1)[:, :K]
    return Neighbors(
        np.take_along_axis(slots, order, 1), np.take_along_axis(similarities, order, 1)
    )
