"""The audit of a knowledge base that is in no single memory: the driver of its tasks.

The driver knows counts, centres and findings; see
:mod:`ragshield_core.tools.audit.partitioned.steps`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Evidence, Scope
from ragshield_core.detectors.base.pieces import Progress
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.tools.audit.judging import Judge, found_by, unknown_ids
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
        key = json.dumps([policy.quarantine_at, clean])
        judges: list[_Judge] = [_ByText(steps, one, key, i) for i, one in enumerate(by_text)]
        judges += [] if groups is None else [_ByGroups(steps, groups, key)]
        judges, by_none = _counted(judges, failed, partitions)
        silent = [one.name for one in judges if not one.judged]
        reason = "it could judge none of the entries"
        skipped += [Skipped(detector=name, reason=reason) for name in silent]
        judges = [one for one in judges if one.judged]
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
            scores={one.name: one.scores(numbers) for one in judges if one.name in found.judged},
            skipped=(*skipped, *found.skipped),
            timings=steps.timings,
            fpr=policy.quarantine_at,
            thresholds=found.thresholds,
            n_clean=0 if trusted is None else len(trusted),
            failed=tuple(failed),
            by_rule=found.by_rule,
            n_audited=plan.n_rows,
            n_unjudged=by_none,
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


class _Judge(Judge):
    """A detector that takes part; its scores are in a column of the files of a kind."""

    kind: str
    column: str

    def __init__(self, steps: Steps, detector: Detector, key: str) -> None:
        self.detector, self._steps, self._key = detector, steps, key
        self._partitions = steps.partitions

    def of_partition(self, partition: int) -> NDArray[np.float64]:
        return self._partitions.rows(partition, self.kind)[self.column]

    def scores(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(self._partitions.gather(numbers, self.column, self.kind))

    def above(self, threshold: float) -> NDArray[np.int64]:
        found = (
            np.flatnonzero(self.of_partition(p) > threshold) + self._partitions.starts[p]
            for p in self._partitions.filled
        )
        return np.concatenate(list(found))

    def _explained(
        self,
        step: Callable[..., None],
        places: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> Sequence[Evidence]:
        """Return why entries were found, of which each place has some rows; in their order."""
        key = hashlib.blake2b(f"{self._key}{self.name}".encode(), digest_size=8).hexdigest()
        order = np.lexsort((rows, places))
        tasks = [
            (place, part.tolist(), f"explained/{key}.{place}")
            for place, part in grouped(places[order], rows[order])
        ]
        self._steps.each(f"explaining: {self.name}", step, tasks, "{2}")
        files = self._steps.plan.files
        told = [one for *_, name in tasks for one in read_evidence(files, name)]
        return [told[place] for place in np.argsort(order).tolist()]


class _ByText(_Judge):
    kind = "rows"

    def __init__(self, steps: Steps, detector: Detector, key: str, which: int) -> None:
        super().__init__(steps, detector, key)
        self._which, self.column = which, f"score.{which}"

    def why(self, numbers: NDArray[np.int64]) -> Sequence[Evidence]:
        # By their texts, which are in the input only.
        piece, row = (self._partitions.gather(numbers, name) for name in ("piece", "row"))
        return self._explained(partial(placing.explain_texts, self._which), piece, row)


class _ByGroups(_Judge):
    kind, column = "scored", "scores"

    def why(self, numbers: NDArray[np.int64]) -> Sequence[Evidence]:
        home = np.searchsorted(self._partitions.starts, numbers, side="right") - 1
        return self._explained(grouping.explain, home, numbers - self._partitions.starts[home])


def _numbers_of(ids: Sequence[str], partitions: Partitions) -> NDArray[np.int64]:
    """Return the numbers of trusted entries, ascending."""
    hashes = np.array([placing.id_hash(one) for one in ids], dtype=np.uint64)
    near = np.concatenate(
        [
            np.flatnonzero(np.isin(partitions.rows(p)["id_hash"], hashes)) + partitions.starts[p]
            for p in partitions.filled
        ]
    )
    found, sought = partitions.ids(near), set(ids)
    unknown = sorted(sought.difference(found))
    if unknown:
        raise unknown_ids(unknown, len(sought))
    return near[[one in sought for one in found]]


def _counted(
    judges: Sequence[_Judge], failed: Container[str], partitions: Partitions
) -> tuple[list[_Judge], int]:
    """Count the opinions of those that did not fail, and the entries about which nobody has one."""
    judges = [judge for judge in judges if judge.name not in failed]
    by_none = 0
    for judge in judges:
        judge.judged = 0
    for partition in partitions.filled:
        nobody = np.ones(len(partitions.own(partition)), dtype=np.bool_)
        for judge in judges:
            opinion = ~np.isnan(judge.of_partition(partition))
            judge.judged += int(np.count_nonzero(opinion))
            nobody &= ~opinion
        by_none += int(np.count_nonzero(nobody))
    return judges, by_none


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
        elif not one.learns and one.scope is Scope.ENTRY and one.unsaved is None:
            by_text.append(one)
        else:
            reason = (
                "compares with the whole knowledge base, and does so in one memory only; audit "
                "without an engine for it"
            )
            skipped.append(Skipped(detector=one.name, reason=reason))
    return by_text, groups, skipped
