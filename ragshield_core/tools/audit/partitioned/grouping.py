"""The evidence of groups, gathered by partitions; what is usual is taken from all of them.

An entry's evidence depends on its neighbours' own, which may be in another partition: so every
partition takes the first step before any takes the second (:func:`tighten`, :func:`contrast`,
:func:`tie`, :func:`score`), and each step writes what the next one looks up. Numbers that describe
the whole knowledge base are taken from one column of all partitions at a time (:func:`usual`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    PARTS,
    SHARED_PARTS,
    SIZES,
    Channel,
    GroupEvidence,
    Kin,
    Raw,
    Standing,
)
from ragshield_core.detectors.groups.graph import Lists, Overlay
from ragshield_core.detectors.groups.surprisal import ROBUST_TAIL, Reference, Surprisal, weighted
from ragshield_core.detectors.groups.usual import (
    COPIES,
    MIN_FAMILY_ENTRIES,
    NO_EDGES,
    Judgement,
    Tied,
    Usual,
)
from ragshield_core.screening import explained
from ragshield_core.tools.audit.partitioned.files import write_evidence
from ragshield_core.tools.audit.partitioned.placing import lineage_code
from ragshield_core.tools.audit.partitioned.plan import Plan
from ragshield_core.tools.audit.partitioned.rows import LISTS, Partitions, Window

# Evidence that is measured; agreement needs to know old from new, which an audit cannot.
MEASURED = SHARED_PARTS
COLUMNS = tuple(range(len(SIZES)))


def families(plan: Plan) -> None:
    """Tell whether lineages of more than one entry are usual; on the driver."""
    partitions = Partitions(plan)
    kin = sum(int(np.count_nonzero(partitions.rows(p, LISTS)["kin"])) for p in partitions.filled)
    plan.files.write("families", {"usual": np.array(kin >= MIN_FAMILY_ENTRIES)})


def tighten(plan: Plan, partition: int) -> None:
    """Measure how tight the groups of a partition's entries are, within and between lineages."""
    _tighten(plan, partition, ("cross", "same"), "tight")


def tighten_any(plan: Plan, partition: int) -> None:
    """Measure the same of groups in both; asks what resemblance within a lineage is worth."""
    _tighten(plan, partition, ("any",), "tight_any")


def kin(plan: Plan) -> None:
    """Learn what resemblance within a lineage is worth; on the driver, 8 bytes an entry."""
    partitions = Partitions(plan)
    same, cross = (_column(partitions, "tight", f"{c}.nearest") for c in ("same", "cross"))
    plan.files.write("kin", {"kin": Kin(same, cross).state()})


def contrast(plan: Plan, partition: int) -> None:
    """Hold the groups of a partition's entries against those around their surroundings."""
    partitions = Partitions(plan)
    own = partitions.own(partition)
    window = _window(partitions, own)
    arrays: dict[str, NDArray[Any]] = {}
    for channel in CHANNELS:
        around = Standing(window.graph.n_slots, rounded=True)
        around.put("tight", np.s_[len(own) :], _tight(partitions, window.others, channel))
        raw = _measured(plan, partitions, own, window, channel, around).raw
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


def usual_tasks() -> list[tuple[str, int]]:
    """Return the columns of evidence of which it is measured what is usual."""
    groups = [(f"{c}.{name}", column) for c in CHANNELS for name in MEASURED for column in COLUMNS]
    return [*groups, ("crowd", 0), *((kind, 0) for kind in COPIES)]


def usual(plan: Plan, name: str, column: int) -> None:
    """Measure what is usual in one column of evidence; 16 bytes of memory an entry."""
    values = _column(Partitions(plan), "tied", name, column)
    scale = {"least_scale": COPIES[name].scale} if name in COPIES else {}
    arrays = {"surprisal": Surprisal(values, robust=True, **scale).state()}
    if name.endswith(".tight"):
        arrays["tightness"] = np.quantile(values, ROBUST_TAIL[1])
    plan.files.write(f"usual/{name}.{column}", arrays)


def size_tasks() -> list[tuple[Channel, int]]:
    """Return the channels and group sizes whose evidence is added up."""
    return [(channel, column) for channel in CHANNELS for column in COLUMNS]


def sizes(plan: Plan, channel: Channel, column: int) -> None:
    """Measure how surprising groups of a size are all in all; 16 bytes of memory an entry."""
    partitions, parts = Partitions(plan), _parts(plan, channel)
    groups = (_tied(partitions, partition).groups[channel] for partition in partitions.filled)
    sums = [weighted(parts, tied, column) for tied in groups]
    plan.files.write(
        f"sizes/{channel}.{column}",
        {"surprisal": Surprisal(np.concatenate(sums), robust=True).state()},
    )


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
        worth = _kin(plan, channel)
        evidence = _evidence(plan, window.overlay, channel, None, kin=worth)
        arrays[channel] = evidence.raw.tight
        arrays[f"{channel}.nearest"] = evidence.nearness[:, 0]
    plan.files.write(f"{kind}/{partition}", arrays)


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
    overlay: Overlay,
    channel: Channel,
    standing: Standing | None,
    *,
    kin: Kin | None,
    tightness: NDArray[np.float32] | None = None,
) -> GroupEvidence:
    """Return the evidence about the entries of an overlay, as an audit in memory gathers it."""
    trusted = (plan.groups or {}).get("trusted_lineages", ())
    return GroupEvidence(
        overlay,
        channel,
        standing,
        np.array([lineage_code(lineage) for lineage in trusted], dtype=np.int64),
        families=bool(plan.files.read("families")["usual"]),
        kin=kin,
        tightness=tightness,
    )


def _measured(
    plan: Plan,
    partitions: Partitions,
    own: NDArray[np.int64],
    window: Window,
    channel: Channel,
    around: Standing,
) -> GroupEvidence:
    """Return evidence whose tightness was measured already."""
    return _evidence(
        plan,
        window.overlay,
        channel,
        around,
        kin=_kin(plan, channel),
        tightness=_tight(partitions, own, channel),
    )


def _all_evidence(
    plan: Plan, partitions: Partitions, own: NDArray[np.int64], *, ids: bool = False
) -> tuple[Window, dict[Channel, GroupEvidence]]:
    """Return the evidence of all channels, given all that was measured."""
    window = _window(partitions, own, vectors=ids, ids=ids)
    evidence = {}
    for channel in CHANNELS:
        around = Standing(window.graph.n_slots, rounded=True, parts=MEASURED)
        here = np.s_[len(own) :]
        around.put("tight", here, _tight(partitions, window.others, channel))
        for name in ("near", "far"):
            column = f"{channel}.{name}"
            around.put(name, here, partitions.gather(window.others, column, "contrast"))
        evidence[channel] = _measured(plan, partitions, own, window, channel, around)
    return window, evidence


def _kin(plan: Plan, channel: Channel) -> Kin | None:
    if channel != "any" or "kin" not in plan.files:
        return None
    return Kin.restored(plan.files.read("kin")["kin"])


def _column(
    partitions: Partitions, kind: str, name: str, column: int | None = None
) -> NDArray[Any]:
    """Return a column of all entries."""
    found = []
    for partition in partitions.filled:
        values = partitions.rows(partition, kind)[name]
        found.append(values if values.ndim == 1 or column is None else values[:, column])
    return np.concatenate(found)


def _tied(partitions: Partitions, partition: int) -> Tied:
    """Return what :func:`tie` wrote."""
    arrays = partitions.rows(partition, "tied")
    nothing = Raw.empty(len(arrays["crowd"]))._asdict()
    groups = {
        channel: Raw(**(nothing | {name: arrays[f"{channel}.{name}"] for name in MEASURED}))
        for channel in CHANNELS
    }
    return Tied(groups, arrays["crowd"], {kind: arrays[kind] for kind in COPIES})


def _parts(plan: Plan, channel: Channel) -> dict[tuple[str, int], Surprisal]:
    """Return what is usual in the parts of the evidence of a channel."""
    none_agree = Surprisal(np.zeros(1), robust=True)
    return {
        (name, column): _restored(plan, f"usual/{channel}.{name}.{column}")
        if name in MEASURED
        else none_agree
        for name in PARTS
        for column in COLUMNS
    }


def _usual(plan: Plan) -> Usual:
    """Return what is usual, put together from all columns."""
    references: dict[Channel, Reference] = {}
    for channel in CHANNELS:
        whole = [_restored(plan, f"sizes/{channel}.{column}") for column in COLUMNS]
        tightness = [
            float(plan.files.read(f"usual/{channel}.tight.{column}")["tightness"])
            for column in COLUMNS
        ]
        references[channel] = Reference(_parts(plan, channel), whole, tightness, ROBUST_TAIL[1])
    return Usual(
        references=references,
        crowds=_restored(plan, "usual/crowd.0"),
        copies={kind: _restored(plan, f"usual/{kind}.0") for kind in COPIES},
    )


def _restored(plan: Plan, name: str) -> Surprisal:
    return Surprisal.restored(plan.files.read(name)["surprisal"])
