"""Neighbours and the evidence of groups, by partitions; what is usual is taken from all of them.

An entry's evidence depends on its neighbours' own, which may be in another partition: so every
partition takes the first step before any takes the second (:func:`search`, :func:`tighten`,
:func:`contrast`, :func:`tie`, :func:`score`), and each step writes what the next one looks up.
Numbers that describe the whole knowledge base are taken from the columns of all partitions, by the
driver (:func:`kin_of`, :func:`usual_of`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.detectors.groups.evidence import CHANNELS, SIZES, Channel, GroupEvidence, K, Kin
from ragshield_core.detectors.groups.graph import ROUNDING, Lists
from ragshield_core.detectors.groups.usual import (
    COPIES,
    Judgement,
    Usual,
    new_copies,
    tied_to_groups,
)
from ragshield_core.neighbors.search import Neighbors, load_faiss, none_found
from ragshield_core.screening.screening import explained
from ragshield_core.tools.audit.partitioned.placing import lineage_code
from ragshield_core.tools.audit.partitioned.plan import LOOKED_INTO, Plan
from ragshield_core.tools.audit.partitioned.rows import LISTS, Partitions, Window, window

# The file in which the tightness of each channel's groups is; "any" is measured last.
TIGHT: Mapping[Channel, str] = {"cross": "tight", "same": "tight", "any": "tight_any"}
# Entries whose neighbours are looked for everywhere, to tell what the partitions miss: the share
# that is found is known to 2 percentage points then.
PROBES = 500
# The numbers of neighbours of which it is told how many were found.
TOLD = (2, K)


class _Tied(Mapping[str, NDArray[Any]]):
    """What :func:`tie` wrote of all entries, a column at a time."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._names = list(partitions.rows(partitions.filled[0], "tied"))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._partitions.column(name, "tied")

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def search(plan: Plan, partition: int) -> int:
    """Find the nearest of each entry of a partition, exactly in each that it looks into.

    Texts are compared along the lists that are found so. Returns how many entries have a neighbour
    of their own lineage.
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
    nothing = np.zeros(best.slots.shape, dtype=np.float32)
    graph, overlay, *_ = window(partitions, own, Lists(*best, nothing))
    overlay.lists.copied[:] = graph.copied(overlay.numbers, overlay.lists)
    everything = np.ones(graph.n_slots, dtype=np.bool_)  # an audit cannot tell new from old
    copies = {kind: new_copies(overlay, everything, copy) for kind, copy in COPIES.items()}
    columns = {**best._asdict(), "copied": overlay.lists.copied}
    plan.files.write(f"{LISTS}/{partition}", columns | copies)
    return int(np.count_nonzero(overlay.with_kin()))


def probe(plan: Plan, partition: int, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the cosines of the nearest of some entries in a partition."""
    partitions = Partitions(plan)
    vectors = partitions.gather(numbers, "vectors")
    return _nearest(vectors, numbers, partitions, partition).similarities


def drawn(plan: Plan) -> NDArray[np.int64]:
    """Return the numbers of the entries whose neighbours are looked for everywhere."""
    rng = np.random.default_rng(plan.seed)
    return np.sort(rng.choice(plan.n_rows, min(PROBES, plan.n_rows), replace=False))


def share_found(
    partitions: Partitions, numbers: NDArray[np.int64], nearest: Sequence[NDArray[np.float32]]
) -> dict[int, float]:
    """Return which share of the nearest neighbours was found, by how many of them are meant.

    An entry that is as near as the one that was missed is as good. ``nearest`` are the cosines
    that :func:`probe` found in each partition.
    """
    true = -np.sort(-np.concatenate(nearest, axis=1), axis=1)[:, :K]
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


def tighten(plan: Plan, partition: int, kind: str) -> None:
    """Measure how tight the groups of a partition's entries are, in the channels of a kind."""
    partitions = Partitions(plan)
    seen = window(partitions, partitions.own(partition), vectors=True)
    arrays: dict[str, NDArray[Any]] = {}
    for channel in (one for one in CHANNELS if TIGHT[one] == kind):
        evidence = _evidence(plan, partitions, seen, channel)
        arrays[channel] = evidence.raw.tight
        arrays[f"{channel}.nearest"] = evidence.nearness[:, 0]
    plan.files.write(f"{kind}/{partition}", arrays)


def kin_of(partitions: Partitions) -> Kin:
    """Return what resemblance within a lineage is worth; 8 bytes an entry."""
    same, cross = (partitions.column(f"{c}.nearest", TIGHT[c]) for c in ("same", "cross"))
    return Kin(same, cross)


def contrast(plan: Plan, partition: int) -> None:
    """Hold the groups of a partition's entries against those around their surroundings."""
    partitions = Partitions(plan)
    seen = window(partitions, partitions.own(partition))
    arrays: dict[str, NDArray[Any]] = {}
    for channel in CHANNELS:
        raw = _evidence(plan, partitions, seen, channel, ("tight",)).raw
        arrays |= {f"{channel}.near": raw.near, f"{channel}.far": raw.far}
    plan.files.write(f"contrast/{partition}", arrays)


def tie(plan: Plan, partition: int) -> None:
    """Let entries count only as far as another of their group does."""
    partitions = Partitions(plan)
    evidence = _all_evidence(plan, partitions, window(partitions, partitions.own(partition)))
    lists = partitions.rows(partition, LISTS)
    tied = tied_to_groups(evidence, np.s_[:], {kind: lists[kind] for kind in COPIES})
    # Agreement needs to know old from new, which an audit cannot.
    measured = {name: column for name, column in tied.items() if not name.endswith(".agreed")}
    plan.files.write(f"tied/{partition}", measured)


def usual_of(partitions: Partitions) -> Usual:
    """Measure what is usual in the whole, one column at a time."""
    return Usual.of(_Tied(partitions), robust=True)


def score(plan: Plan, partition: int) -> None:
    """Score the entries of a partition by what is usual in all."""
    columns = plan.usual.columns(Partitions(plan).rows(partition, "tied"))
    plan.files.write(
        f"scored/{partition}",
        {"scores": columns.max(axis=1), "why": columns.argmax(axis=1).astype(np.int8)},
    )


def explain(plan: Plan, partition: int, rows: NDArray[np.int64]) -> tuple[int, Sequence[Evidence]]:
    """Say why some entries of a partition have the score they have, given their rows, ascending."""
    partitions = Partitions(plan)
    seen = window(partitions, partitions.own(partition)[rows], vectors=True, ids=True)
    scored, lists = (partitions.rows(partition, kind) for kind in ("scored", LISTS))
    judgement = Judgement(
        scores=np.asarray(scored["scores"][rows]),
        why=np.asarray(scored["why"][rows], dtype=np.intp),
        evidence=_all_evidence(plan, partitions, seen),
        lineages={kind: lists[kind][rows] for kind in COPIES},
    )
    detector = CliqueDetector(**(plan.groups or {}))
    detector.take_audit(seen.overlay, judgement, plan.usual)
    batch, places = seen.overlay.batch, list(range(len(rows)))
    return partition, explained(detector.name, detector.explain_audit, batch, places)


def _evidence(
    plan: Plan, partitions: Partitions, seen: Window, channel: Channel, known: Sequence[str] = ()
) -> GroupEvidence:
    """Return the evidence about the entries of a window, as an audit in memory gathers it.

    ``known`` names what was measured before, and is looked up: of the entries their tightness, and
    of those around them all of it.
    """
    kinds: dict[str, tuple[str, str]] = {"tight": (channel, TIGHT[channel])}
    kinds |= {name: (f"{channel}.{name}", "contrast") for name in ("near", "far")}
    # The entries themselves come before those around them, and are not asked for.
    nothing = np.zeros((len(seen.own), len(SIZES)), dtype=np.float32)
    around = {
        name: np.concatenate([nothing, partitions.gather(seen.others, *kinds[name])])
        for name in known
    }
    trusted = (plan.groups or {}).get("trusted_lineages", ())
    return GroupEvidence(
        seen.overlay,
        channel,
        around or None,
        np.array([lineage_code(lineage) for lineage in trusted], dtype=np.int64),
        families=plan.families,
        kin=plan.kin if channel == "any" else None,
        tightness=partitions.gather(seen.own, *kinds["tight"]) if known else None,
    )


def _all_evidence(plan: Plan, partitions: Partitions, seen: Window) -> dict[Channel, GroupEvidence]:
    """Return the evidence of all channels, given all that was measured."""
    known = ("tight", "near", "far")
    return {one: _evidence(plan, partitions, seen, one, known) for one in CHANNELS}


def _nearest(
    queries: NDArray[np.float32], numbers: NDArray[np.int64], partitions: Partitions, host: int
) -> Neighbors:
    """Return the nearest of numbered queries in a partition, but for themselves."""
    faiss = load_faiss()
    vectors = partitions.rows(host)["vectors"]
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
