"""Neighbours and the evidence of groups, by partitions; usual values come from all of them.

An entry's evidence depends on that of its neighbours, which may be in another partition. So all
partitions finish a step before any starts the next (:func:`search`, :func:`tighten`,
:func:`contrast`, :func:`tie`, :func:`score`), and each step writes the input of the next one. The
driver computes the numbers that describe the whole knowledge base from the columns of all
partitions (:func:`share_found`, :func:`usual_of`).
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.detectors.groups.evidence import CHANNELS, SIZES, Channel, GroupEvidence, K
from ragshield_core.detectors.groups.graph import ROUNDING, Lists
from ragshield_core.detectors.groups.usual import (
    COPIES,
    Judgement,
    Usual,
    lineages_of,
    tied_to_groups,
)
from ragshield_core.neighbors.search import Neighbors, load_faiss, none_found
from ragshield_core.screening.screening import explained
from ragshield_core.tools.audit.partitioned.placing import lineage_code
from ragshield_core.tools.audit.partitioned.plan import Numbers, Plan, Window, window

# Entries whose neighbours are searched in all partitions, to measure recall: this many give it to
# within 2 percentage points.
PROBES = 500
# Each k for which recall@k is reported.
TOLD = (2, K)
# Measures of earlier steps.
MEASURED = ("tight", "near", "far")
TIED = "tied."  # prefix of the columns that `tie` writes


def search(plan: Plan, partition: int) -> int:
    """Find the nearest neighbours of a partition's entries, exactly within the searched partitions.

    Texts are compared with those of the neighbours found. Returns the number of entries that have a
    neighbour of their own lineage.
    """
    own = plan.own(partition)
    vectors, hosts = plan.read(partition, "vectors"), plan.read(partition, "nearest")
    best = none_found(len(own), K)
    for host in np.intersect1d(hosts, plan.filled).tolist():
        looking = np.flatnonzero((hosts == host).any(axis=1))
        found = _nearest(plan, vectors[looking], own[looking], host)
        here = Neighbors(best.slots[looking], best.similarities[looking])
        best.slots[looking], best.similarities[looking] = _best(here, found)
    nothing = np.zeros(best.slots.shape, dtype=np.float32)
    overlay = window(plan, own, Lists(*best, nothing)).overlay
    overlay.lists.copied[:] = overlay.graph.copied(overlay.numbers, overlay.lists)
    # An audit cannot tell new entries from old: all copies count.
    copies = lineages_of(overlay, lambda numbers: np.ones(numbers.shape, dtype=np.bool_))
    plan.write(partition, {**best._asdict(), "copied": overlay.lists.copied, **copies})
    return int(np.count_nonzero(overlay.with_kin()))


def probe(plan: Plan, partition: int, numbers: Numbers) -> NDArray[np.float32]:
    """Return the cosines between some entries and their nearest neighbours in a partition."""
    return _nearest(plan, plan.gather(numbers, "vectors"), numbers, partition).similarities


def drawn(plan: Plan) -> Numbers:
    """Return the numbers of the entries whose neighbours are searched in all partitions."""
    rng = np.random.default_rng(plan.seed)
    return np.sort(rng.choice(plan.n_rows, min(PROBES, plan.n_rows), replace=False))


def share_found(
    plan: Plan, numbers: Numbers, nearest: Sequence[NDArray[np.float32]]
) -> dict[int, float]:
    """Return recall@k of the nearest neighbours, by k.

    An entry as near as a missed neighbour counts as found. ``nearest`` are the cosines that
    :func:`probe` found in each partition.
    """
    true = -np.sort(-np.concatenate(nearest, axis=1), axis=1)[:, :K]
    found = plan.gather(numbers, "similarities")
    shares = {}
    for k in TOLD:
        there = np.isfinite(true[:, :k]).sum(axis=1)
        least = true[np.arange(len(true)), np.maximum(there, 1) - 1]
        hit = np.minimum((found > (least - ROUNDING)[:, None]).sum(axis=1), there)
        shares[k] = float(hit.sum() / max(1, there.sum()))
    return shares


def tighten(plan: Plan, partition: int, channels: Sequence[Channel]) -> None:
    """Measure the tightness of the groups of a partition's entries, in some channels."""
    seen = window(plan, plan.own(partition), vectors=True)
    evidence = _evidence(plan, seen, channels)
    for channel in channels:
        found = evidence[channel]
        nearest = found.nearness[:, 0]
        plan.write(partition, {f"{channel}.tight": found.tight, f"{channel}.nearest": nearest})


def contrast(plan: Plan, partition: int) -> None:
    """Compare the groups of a partition's entries with the groups around their neighbours."""
    seen = window(plan, plan.own(partition))
    for channel, raw in _evidence(plan, seen, CHANNELS, ("tight",)).raw().items():
        plan.write(partition, {f"{channel}.near": raw.near, f"{channel}.far": raw.far})


def tie(plan: Plan, partition: int) -> None:
    """Limit the evidence on each entry to that on another member of its group."""
    evidence = _evidence(plan, window(plan, plan.own(partition)), CHANNELS, MEASURED)
    tied = tied_to_groups(evidence, np.s_[:], {kind: plan.read(partition, kind) for kind in COPIES})
    # Agreement tells new entries from old, which an audit cannot.
    measured = {TIED + name: found for name, found in tied.items() if not name.endswith(".agreed")}
    plan.write(partition, measured)


class _Tied(UserDict[str, NDArray[Any]]):
    """Columns that :func:`tie` wrote for all entries or for a partition, read one at a time."""

    def __init__(self, plan: Plan, partition: int | None = None) -> None:
        super().__init__()
        some = plan.filled[0] if partition is None else partition
        names = (name for name in plan.names(some) if name.startswith(TIED))
        self.data = dict.fromkeys(name.removeprefix(TIED) for name in names)  # type: ignore[assignment]
        self._plan, self._partition = plan, partition

    def __getitem__(self, name: str) -> NDArray[Any]:
        if self._partition is None:
            return self._plan.column(TIED + name)
        return self._plan.read(self._partition, TIED + name)


def usual_of(plan: Plan) -> Usual:
    """Measure the usual values of the whole knowledge base, one column at a time."""
    return Usual.of(_Tied(plan), robust=True)


def score(plan: Plan, partition: int) -> None:
    """Score the entries of a partition by the usual values of all partitions."""
    columns = plan.usual.columns(_Tied(plan, partition))
    why = columns.argmax(axis=1).astype(np.int8)
    plan.write(partition, {"scores": columns.max(axis=1), "why": why})


def explain(plan: Plan, partition: int, rows: Numbers) -> tuple[int, Sequence[Evidence]]:
    """Return evidence for the scores of some entries of a partition, given ascending rows."""
    seen = window(plan, plan.own(partition)[rows], vectors=True, ids=True)
    judgement = Judgement(
        scores=np.asarray(plan.read(partition, "scores")[rows]),
        why=np.asarray(plan.read(partition, "why")[rows], dtype=np.intp),
        evidence=_evidence(plan, seen, CHANNELS, MEASURED),
        lineages={kind: plan.read(partition, kind)[rows] for kind in COPIES},
    )
    detector = CliqueDetector(**(plan.groups or {}))
    detector.take_audit(seen.overlay, judgement, plan.usual)
    batch, places = seen.overlay.batch, list(range(len(rows)))
    return partition, explained(detector.name, detector.explain_audit, batch, places)


def _evidence(
    plan: Plan, seen: Window, channels: Sequence[Channel], known: Sequence[str] = ()
) -> GroupEvidence:
    """Return the evidence about the entries of a window, as an audit in memory gathers it.

    ``known`` names the measures to look up from earlier steps: for the entries only their
    tightness, for the entries around them all measures.
    """
    # The entries themselves come first, and their values are not read.
    nothing = np.zeros((len(seen.own), len(SIZES)), dtype=np.float32)
    around = {
        name: {
            channel: np.concatenate([nothing, plan.gather(seen.others, f"{channel}.{name}")])
            for channel in channels
        }
        for name in known
    }
    tight = {channel: plan.gather(seen.own, f"{channel}.tight") for channel in channels if known}
    trusted = (plan.groups or {}).get("trusted_lineages", ())
    return GroupEvidence(
        seen.overlay,
        channels,
        around or None,
        np.array([lineage_code(lineage) for lineage in trusted], dtype=np.int64),
        families=plan.families,
        kin=plan.kin if "any" in channels else None,
        tightness=tight or None,
    )


def _nearest(plan: Plan, queries: NDArray[np.float32], numbers: Numbers, host: int) -> Neighbors:
    """Return the nearest neighbours of numbered queries in a partition, without themselves."""
    faiss, vectors = load_faiss(), plan.read(host, "vectors")
    similarities, rows = faiss.knn(
        np.ascontiguousarray(queries),
        vectors,
        min(K + 1, len(vectors)),
        metric=faiss.METRIC_INNER_PRODUCT,
    )
    slots = plan.own(host)[rows]
    itself = slots == numbers[:, None]
    slots[itself], similarities[itself] = -1, -np.inf
    return _best(Neighbors(slots, similarities), none_found(len(queries), K))


def _best(one: Neighbors, other: Neighbors) -> Neighbors:
    """Return the best neighbours of two lists; the lowest numbers win ties."""
    slots = np.concatenate([one.slots, other.slots], axis=1)
    similarities = np.concatenate([one.similarities, other.similarities], axis=1)
    order = np.lexsort((slots, -similarities), axis=1)[:, :K]
    return Neighbors(
        np.take_along_axis(slots, order, 1), np.take_along_axis(similarities, order, 1)
    )
