"""The evidence of groups, gathered by partitions; what is usual is taken from all of them.

An entry's evidence depends on its neighbours' own, which may be in another partition: so every
partition takes the first step before any takes the second (:func:`tighten`, :func:`contrast`,
:func:`tie`, :func:`score`), and each step writes what the next one looks up. Numbers that describe
the whole knowledge base are taken from the columns of all partitions (:func:`usual`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    SHARED_PARTS,
    SIZES,
    Channel,
    GroupEvidence,
    Kin,
    Raw,
)
from ragshield_core.detectors.groups.graph import Lists
from ragshield_core.detectors.groups.surprisal import Reference, Surprisal
from ragshield_core.detectors.groups.usual import (
    COPIES,
    MIN_FAMILY_ENTRIES,
    NO_EDGES,
    Judgement,
    Tied,
    Usual,
)
from ragshield_core.screening.screening import explained
from ragshield_core.tools.audit.partitioned.files import write_evidence
from ragshield_core.tools.audit.partitioned.placing import lineage_code
from ragshield_core.tools.audit.partitioned.plan import Plan
from ragshield_core.tools.audit.partitioned.rows import LISTS, Partitions, Window

# Evidence that is measured; agreement needs to know old from new, which an audit cannot.
MEASURED = SHARED_PARTS


def families(plan: Plan) -> None:
    """Tell whether lineages of more than one entry are usual; one task."""
    partitions = Partitions(plan)
    kin = np.count_nonzero(partitions.column("kin", LISTS))
    plan.files.write("families", {"usual": np.array(kin >= MIN_FAMILY_ENTRIES)})


def tighten(plan: Plan, partition: int) -> None:
    """Measure how tight the groups of a partition's entries are, within and between lineages."""
    _tighten(plan, partition, ("cross", "same"), "tight")


def tighten_any(plan: Plan, partition: int) -> None:
    """Measure the same of groups in both; asks what resemblance within a lineage is worth."""
    _tighten(plan, partition, ("any",), "tight_any")


def kin(plan: Plan) -> None:
    """Learn what resemblance within a lineage is worth; one task, 8 bytes an entry."""
    partitions = Partitions(plan)
    same, cross = (partitions.column(f"{c}.nearest", "tight") for c in ("same", "cross"))
    plan.files.write("kin", {"kin": Kin(same, cross).state()})


def contrast(plan: Plan, partition: int) -> None:
    """Hold the groups of a partition's entries against those around their surroundings."""
    partitions = Partitions(plan)
    own = partitions.own(partition)
    window = _window(partitions, own)
    arrays: dict[str, NDArray[Any]] = {}
    for channel in CHANNELS:
        around = {"tight": _behind(len(own), _tight(partitions, window.others, channel))}
        raw = _evidence(plan, window, channel, around, _tight(partitions, own, channel)).raw
        arrays |= {f"{channel}.near": raw.near, f"{channel}.far": raw.far}
    plan.files.write(f"contrast/{partition}", arrays)


def tie(plan: Plan, partition: int) -> None:
    """Let entries count only as far as another of their group does."""
    partitions = Partitions(plan)
    _, evidence = _all_evidence(plan, partitions, partitions.own(partition))
    lists = partitions.rows(partition, LISTS)
    tied = Tied.of(evidence, np.s_[:], {kind: lists[kind] for kind in COPIES})
    columns = {
        f"{channel}.{name}": getattr(raw, name)
        for channel, raw in tied.groups.items()
        for name in MEASURED
    }
    plan.files.write(f"tied/{partition}", {**columns, "crowd": tied.crowd, **tied.lineages})


def usual(plan: Plan) -> None:
    """Measure what is usual in the whole; one task, one channel at a time."""
    partitions = Partitions(plan)

    def column(name: str) -> NDArray[Any]:
        return partitions.column(name, "tied")

    found = Usual(
        references={c: Reference.of(_raw(c, column), robust=True) for c in CHANNELS},
        crowds=Surprisal(column("crowd"), robust=True),
        copies={
            kind: Surprisal(column(kind), robust=True, least_scale=copy.scale)
            for kind, copy in COPIES.items()
        },
    )
    plan.files.write("usual", found.state())


def score(plan: Plan, partition: int) -> None:
    """Score the entries of a partition by what is usual in all."""
    columns = _tied(Partitions(plan), partition).columns(_usual(plan))
    plan.files.write(
        f"scored/{partition}",
        {"scores": columns.max(axis=1), "why": columns.argmax(axis=1).astype(np.int8)},
    )


def explain(plan: Plan, partition: int, rows: Sequence[int], name: str) -> None:
    """Say why some entries of a partition have the score they have.

    Parameters
    ----------
    rows
        Of the partition, ascending.
    name
        Of the file that is written.
    """
    partitions = Partitions(plan)
    own = partitions.own(partition)[list(rows)]
    window, evidence = _all_evidence(plan, partitions, own, ids=True)
    scored, lists = (partitions.rows(partition, kind) for kind in ("scored", LISTS))
    judgement = Judgement(
        scores=np.asarray(scored["scores"][list(rows)]),
        why=np.asarray(scored["why"][list(rows)], dtype=np.intp),
        evidence=evidence,
        lineages={kind: lists[kind][list(rows)] for kind in COPIES},
        edges=NO_EDGES,
    )
    detector = CliqueDetector(**(plan.groups or {}))
    detector.take_audit(window.overlay, judgement, _usual(plan))
    nothing = window.overlay.batch
    told = explained(detector.name, detector.explain_audit, nothing, list(range(len(own))))
    write_evidence(plan.files, name, told)


def _tighten(plan: Plan, partition: int, channels: Sequence[Channel], kind: str) -> None:
    partitions = Partitions(plan)
    window = _window(partitions, partitions.own(partition), vectors=True)
    arrays: dict[str, NDArray[Any]] = {}
    for channel in channels:
        evidence = _evidence(plan, window, channel)
        arrays[channel] = evidence.raw.tight
        arrays[f"{channel}.nearest"] = evidence.nearness[:, 0]
    plan.files.write(f"{kind}/{partition}", arrays)


def _behind(n: int, evidence: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return evidence of entries that come after n others, whose own is not asked for."""
    return np.concatenate([np.zeros((n, len(SIZES)), dtype=np.float32), evidence])


def _tight(
    partitions: Partitions, numbers: NDArray[np.int64], channel: Channel
) -> NDArray[np.float32]:
    """Return how tight the groups of entries are."""
    return partitions.gather(numbers, channel, "tight_any" if channel == "any" else "tight")


def _window(
    partitions: Partitions, own: NDArray[np.int64], *, vectors: bool = False, ids: bool = False
) -> Window:
    """Return what is seen from some entries."""
    lists = Lists(
        *(partitions.gather(own, name, LISTS) for name in ("slots", "similarities", "copied"))
    )
    return Window.around(partitions, own, lists, vectors=vectors, ids=ids)


def _evidence(
    plan: Plan,
    window: Window,
    channel: Channel,
    around: Mapping[str, NDArray[np.float32]] | None = None,
    tightness: NDArray[np.float32] | None = None,
) -> GroupEvidence:
    """Return the evidence about the entries of a window, as an audit in memory gathers it."""
    trusted = (plan.groups or {}).get("trusted_lineages", ())
    return GroupEvidence(
        window.overlay,
        channel,
        around,
        np.array([lineage_code(lineage) for lineage in trusted], dtype=np.int64),
        families=bool(plan.files.read("families")["usual"]),
        kin=_kin(plan, channel),
        tightness=tightness,
    )


def _all_evidence(
    plan: Plan, partitions: Partitions, own: NDArray[np.int64], *, ids: bool = False
) -> tuple[Window, dict[Channel, GroupEvidence]]:
    """Return the evidence of all channels, given all that was measured."""
    window = _window(partitions, own, vectors=ids, ids=ids)
    evidence = {}
    for channel in CHANNELS:
        around = {"tight": _behind(len(own), _tight(partitions, window.others, channel))}
        for name in ("near", "far"):
            column = partitions.gather(window.others, f"{channel}.{name}", "contrast")
            around[name] = _behind(len(own), column)
        tight = _tight(partitions, own, channel)
        evidence[channel] = _evidence(plan, window, channel, around, tight)
    return window, evidence


def _kin(plan: Plan, channel: Channel) -> Kin | None:
    if channel != "any" or "kin" not in plan.files:
        return None
    return Kin.restored(plan.files.read("kin")["kin"])


def _tied(partitions: Partitions, partition: int) -> Tied:
    """Return what :func:`tie` wrote."""
    arrays = partitions.rows(partition, "tied")
    groups = {channel: _raw(channel, arrays.__getitem__) for channel in CHANNELS}
    return Tied(groups, arrays["crowd"], {kind: arrays[kind] for kind in COPIES})


def _raw(channel: Channel, column: Callable[[str], NDArray[Any]]) -> Raw:
    """Return the evidence of a channel; nothing is said about what is not measured."""
    measured = {name: column(f"{channel}.{name}") for name in MEASURED}
    return Raw(**(Raw.empty(len(measured["tight"]))._asdict() | measured))


def _usual(plan: Plan) -> Usual:
    return Usual.restored(plan.files.read("usual"))
