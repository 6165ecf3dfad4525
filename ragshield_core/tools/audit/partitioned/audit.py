"""The audit of a knowledge base that is in no single memory: the driver of its tasks.

The driver knows counts, centres and findings; see
:mod:`ragshield_core.tools.audit.partitioned.steps`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Evidence, Scope, learns
from ragshield_core.detectors.base.pieces import Progress
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.tools.audit.judging import Judge, found_by, unjudged, unknown_ids
from ragshield_core.tools.audit.partitioned import grouping, placing, searching
from ragshield_core.tools.audit.partitioned.engines import Engine
from ragshield_core.tools.audit.partitioned.files import as_text, read_evidence
from ragshield_core.tools.audit.partitioned.parts import Parts
from ragshield_core.tools.audit.partitioned.rows import Partitions, grouped
from ragshield_core.tools.audit.partitioned.steps import Steps
from ragshield_core.tools.audit.report import ScanReport


def audit(
    parts: Parts,
    detectors: Sequence[Detector],
    policy: Policy,
    clean_ids: Iterable[str] | None,
    *,
    engine: str | Engine | None,
    seed: int,
    progress: Progress,
) -> ScanReport:
    """Audit by partitions; their files are removed once it is done.

    Parameters
    ----------
    parts
        The knowledge base.
    detectors
        Of which those take part that judge an entry by itself and learn nothing, and the first
        :class:`~ragshield_core.detectors.CliqueDetector` by its default rule.
    policy, clean_ids, engine, seed, progress
        As of :func:`ragshield_core.tools.audit.scan`.

    Raises
    ------
    SourceError
        If the input cannot be read, or the folder holds another audit.
    InvalidBatchError
        If an id repeats, a vector is wrong, or a trusted entry is not there.
    """
    by_text, groups, skipped = _sorted_out(detectors)
    config = None if groups is None else groups.config()
    with parts.work(config, by_text, engine=engine, seed=seed, progress=progress) as steps:
        steps.place()
        plan, partitions = steps.plan, steps.partitions
        if groups is not None and plan.n_rows < groups.min_entries:
            reason = (
                f"the knowledge base has {plan.n_rows} entries, {groups.min_entries} are needed"
            )
            skipped.append(Skipped(detector=groups.name, reason=reason))
            groups = None
        if groups is not None:
            _find_groups(steps)
        failed = {
            by_text[int(name.partition(".")[2])].name: as_text(reason)
            for name, reason in plan.files.read("layout").items()
            if name.startswith("failed.")
        }
        skipped += [Skipped(detector=name, reason=reason) for name, reason in failed.items()]
        clean = None if clean_ids is None else tuple(dict.fromkeys(clean_ids))
        trusted = None if clean is None else _numbers_of(clean, partitions)
        # What was explained in the work folder is that of the same findings.
        explain = partial(_explained, steps, json.dumps([policy.quarantine_at, clean]))
        judges = [
            Judge(
                detector=one,
                scores=partitions.column(f"score.{which}"),
                explain=partial(explain, one, which),
            )
            for which, one in enumerate(by_text)
            if one.name not in failed
        ]
        if groups is not None:
            scores, why = partitions.column("scores", "scored"), partial(explain, groups, None)
            judges.append(Judge(detector=groups, scores=scores, explain=why))
        reason = "it could judge none of the entries"
        silent = [one.name for one in judges if not one.judged]
        skipped += [Skipped(detector=name, reason=reason) for name in silent]
        judges = [one for one in judges if one.name not in silent]
        found = found_by(judges, policy, trusted, partitions.ids)
        numbers = np.array(sorted(found.findings), dtype=np.int64)
        ids = partitions.ids(numbers)
        shares = {} if groups is None else searching.share_found(plan)
        return ScanReport(
            batch=Batch.of(ids=ids, texts=[""] * len(ids), embeddings=None),
            remarkable={
                row: policy.decide(ids[row], found.findings[number])
                for row, number in enumerate(numbers.tolist())
            },
            scores={one.name: one.scores[numbers] for one in judges if one.name in found.judged},
            skipped=(*skipped, *found.skipped),
            timings=steps.timings,
            fpr=policy.quarantine_at,
            thresholds=found.thresholds,
            n_clean=0 if trusted is None else len(trusted),
            failed=tuple(failed),
            by_rule=found.by_rule,
            n_audited=plan.n_rows,
            n_unjudged=unjudged(judges, plan.n_rows),
            has_texts=any(len(partitions.rows(p)["words"]) for p in partitions.filled),
            judged=found.judged,
            high=found.high,
            n_partitions=partitions.n,
            neighbors_found=shares,
            missed=searching.missed(partitions.n, shares),
        )


def _find_groups(steps: Steps) -> None:
    steps.find_neighbors()
    steps.measure_tightness()
    steps.each_partition("contrasting", grouping.contrast, "contrast")
    steps.each_partition("tying", grouping.tie, "tied")
    steps.once("what is usual", grouping.usual, "usual")
    steps.each_partition("scoring", grouping.score, "scored")


def _explained(
    steps: Steps, key: str, detector: Detector, which: int | None, numbers: NDArray[np.int64]
) -> Sequence[Evidence]:
    """Return why entries were found: by the groups, or by the text detector of that number."""
    partitions = steps.partitions
    if which is None:
        step: Callable[..., None] = grouping.explain
        places = np.searchsorted(partitions.starts, numbers, side="right") - 1
        rows = numbers - partitions.starts[places]
    else:  # by their texts, which are in the input only
        step = partial(placing.explain_texts, which)
        places, rows = (partitions.gather(numbers, name) for name in ("piece", "row"))
    digest = hashlib.blake2b(f"{key}{detector.name}".encode(), digest_size=8).hexdigest()
    order = np.lexsort((rows, places))
    tasks = [
        (place, part.tolist(), f"explained/{digest}.{place}")
        for place, part in grouped(places[order], rows[order])
    ]
    steps.each(f"explaining: {detector.name}", step, tasks, "{2}")
    told = [one for *_, name in tasks for one in read_evidence(steps.plan.files, name)]
    return [told[place] for place in np.argsort(order).tolist()]


def _numbers_of(ids: Sequence[str], partitions: Partitions) -> NDArray[np.int64]:
    """Return the numbers of trusted entries, ascending."""
    hashes = np.array([placing.id_hash(one) for one in ids], dtype=np.uint64)
    near = np.flatnonzero(np.isin(partitions.column("id_hash"), hashes))
    found, sought = partitions.ids(near), set(ids)
    unknown = sorted(sought.difference(found))
    if unknown:
        raise unknown_ids(unknown, len(sought))
    return near[[one in sought for one in found]]


def _sorted_out(
    detectors: Sequence[Detector],
) -> tuple[list[Detector], CliqueDetector | None, list[Skipped]]:
    """Return detectors by how they take part, and those that do not."""
    by_text: list[Detector] = []
    groups: CliqueDetector | None = None
    skipped = []
    for one in detectors:
        if type(one) is CliqueDetector and one.rule == "groups" and groups is None:
            groups = one
        elif not learns(one) and one.traits.scope is Scope.ENTRY and one.traits.unsaved is None:
            by_text.append(one)
        else:
            reason = (
                "compares with the whole knowledge base, and does so in one memory only; audit "
                "without an engine for it"
            )
            skipped.append(Skipped(detector=one.name, reason=reason))
    return by_text, groups, skipped
