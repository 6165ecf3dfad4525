"""The nearest neighbours of every entry, within the partitions that it is nearest to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.evidence import K
from ragshield_core.detectors.groups.graph import ROUNDING, Lists
from ragshield_core.detectors.groups.usual import COPIES, new_copies
from ragshield_core.neighbors.rows import Neighbors, load_faiss, none_found
from ragshield_core.tools.audit.partitioned.plan import LOOKED_INTO, Plan
from ragshield_core.tools.audit.partitioned.rows import LISTS, Partitions, Window

# Entries whose neighbours are looked for everywhere, to tell what the partitions miss: the share
# that is found is known to 2 percentage points then.
PROBES = 500
# The numbers of neighbours of which it is told how many were found.
TOLD = (2, K)


def search(plan: Plan, partition: int) -> None:
    """Find the nearest of each entry of a partition, exactly in each that it looks into.

    Texts are compared along the lists that are found so.
    """
    partitions = Partitions(plan)
    own, rows = partitions.own(partition), partitions.rows(partition)
    vectors, hosts = rows["vectors"], rows["nearest"]
    best = none_found(len(own), K)
    for host in np.intersect1d(hosts, partitions.filled).tolist():
        looking = np.flatnonzero((hosts == host).any(axis=1))
        found = _nearest(vectors[looking], own[looking], partitions, host)
        here = Neighbors(best.slots[looking], best.similarities[looking])
        best.slots[looking], best.similarities[looking] = _best(here, found)
    plan.files.write(f"{LISTS}/{partition}", _with_copies(partitions, own, best))


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
    """Draw the entries whose neighbours are looked for everywhere; one task."""
    rng = np.random.default_rng(plan.seed)
    numbers = np.sort(rng.choice(plan.n_rows, min(PROBES, plan.n_rows), replace=False))
    vectors = Partitions(plan).vectors(numbers)
    plan.files.write("probes", {"numbers": numbers, "vectors": vectors})


def probe(plan: Plan, partition: int) -> None:
    """Find the nearest of the entries that were drawn in a partition."""
    drawn = plan.files.read("probes")
    found = _nearest(drawn["vectors"], drawn["numbers"], Partitions(plan), partition)
    plan.files.write(f"probed/{partition}", {"similarities": found.similarities})


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


def missed(n_partitions: int, shares: Mapping[int, float]) -> str:
    """Say what the search misses, in a sentence; nothing where everybody was compared with all."""
    if n_partitions <= LOOKED_INTO or not shares:
        return ""
    found = " and ".join(f"{share:.1%} of the {k} nearest" for k, share in shares.items())
    return (
        f"Each entry was compared with those of {LOOKED_INTO} of {n_partitions} partitions: "
        f"{found} neighbours were found so, by a sample."
    )


def _nearest(
    queries: NDArray[np.float32], numbers: NDArray[np.int64], partitions: Partitions, host: int
) -> Neighbors:
    """Return the nearest of numbered queries in a partition, but for themselves."""
    faiss = load_faiss()
    vectors = partitions.all_vectors(host)
    fetched = min(K + 1, len(vectors))
    similarities, rows = faiss.knn(
        np.ascontiguousarray(queries), vectors, fetched, metric=faiss.METRIC_INNER_PRODUCT
    )
    slots = partitions.own(host)[rows]
    itself = slots == numbers[:, None]
    slots[itself], similarities[itself] = -1, -np.inf
    return _best(Neighbors(slots, similarities), none_found(len(queries), K))


def _best(one: Neighbors, other: Neighbors) -> Neighbors:
    """Return the best of two lists; of equals those with the lowest numbers."""
    slots = np.concatenate([one.slots, other.slots], axis=1)
    similarities = np.concatenate([one.similarities, other.similarities], axis=1)
    order = np.lexsort((slots, -similarities), axis=1)[:, :K]
    return Neighbors(
        np.take_along_axis(slots, order, 1), np.take_along_axis(similarities, order, 1)
    )
