"""The audit of a knowledge base that is in no single memory: the driver of its tasks.

The driver knows counts, centres and findings; see
:mod:`ragshield_core.tools.audit.partitioned.steps`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Evidence, Scope
from ragshield_core.detectors.base.pieces import Progress
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.entries import Batch
from ragshield_core.findings import Finding, Skipped
from ragshield_core.policy import Policy
from ragshield_core.screening import findings_of
from ragshield_core.tools.audit.partitioned import grouping, placing, searching
from ragshield_core.tools.audit.partitioned.engines import Engine
from ragshield_core.tools.audit.partitioned.explaining import explain_texts, read_explained
from ragshield_core.tools.audit.partitioned.files import Files, as_text, work_folder
from ragshield_core.tools.audit.partitioned.parts import Parts
from ragshield_core.tools.audit.partitioned.plan import Plan, partitions_of, pieces_of, settle
from ragshield_core.tools.audit.partitioned.report import PartitionedReport
from ragshield_core.tools.audit.partitioned.rows import Partitions
from ragshield_core.tools.audit.partitioned.steps import Steps
from ragshield_core.tools.audit.thresholds import (
    Audited,
    by_rule,
    calibration_of,
    judged_too_few,
    thresholds_of,
    unknown_ids,
    with_clean_scores,
)


class _Judge(NamedTuple):
    """A detector that takes part, and where its scores are."""

    detector: Detector
    kind: str  # of the files
    column: str

    @property
    def by_groups(self) -> bool:
        return self.kind == "scored"

    def scores(self, partitions: Partitions, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return those of entries, in ascending order of their numbers."""
        return np.asarray(partitions.gather(numbers, self.column, self.kind))

    def above(self, partitions: Partitions, threshold: float) -> NDArray[np.int64]:
        """Return the numbers of all entries that score higher; none where they have no score."""
        found = (
            np.flatnonzero(partitions.rows(p, self.kind)[self.column] > threshold)
            + partitions.starts[p]
            for p in partitions.filled
        )
        return np.concatenate(list(found))


class PartitionedAudit:
    """One audit by partitions.

    Parameters
    ----------
    parts
        The knowledge base.
    detectors
        Of which those take part that judge an entry by itself and learn nothing, and the first
        :class:`~ragshield_core.detectors.CliqueDetector` by its default rule.
    engine
        Runs the tasks.
    fpr, clean_ids, seed, progress
        As of :func:`ragshield_core.tools.audit.scan`.
    """

    def __init__(
        self,
        parts: Parts,
        detectors: Sequence[Detector],
        *,
        engine: Engine,
        fpr: float,
        clean_ids: Iterable[str] | None,
        seed: int,
        progress: Progress,
    ) -> None:
        self._parts, self._engine, self._tell = parts, engine, progress
        self._policy, self._fpr, self._seed = Policy().accepting(fpr), fpr, seed
        self._clean = None if clean_ids is None else tuple(dict.fromkeys(clean_ids))
        self._by_text, self._groups, self._skipped = _sorted_out(detectors)

    def run(self) -> PartitionedReport:
        """Audit; the files are removed once it is done.

        Raises
        ------
        SourceError
            If the input cannot be read, or the folder holds another audit.
        InvalidBatchError
            If an id repeats, a vector is wrong, or a trusted entry is not there.
        """
        pieces = pieces_of(self._parts)
        with work_folder(self._parts.work_dir) as folder, self._engine:
            n_rows = sum(piece.n_rows for piece in pieces)
            self._plan = Plan(
                files=Files(folder),
                pieces=tuple(pieces),
                columns=self._parts.columns,
                n_partitions=partitions_of(n_rows, self._parts.partition_rows),
                partition_rows=self._parts.partition_rows,
                by_text=tuple((type(one), one.config()) for one in self._by_text),
                groups=None if self._groups is None else self._groups.config(),
                seed=self._seed,
            )
            settle(self._plan)
            self._steps = Steps(self._plan, self._engine, self._tell)
            self._steps.place()
            self._leave_out_groups_of_few()
            if self._groups is not None:
                self._find_groups()
            return self._report()

    # Steps

    def _leave_out_groups_of_few(self) -> None:
        groups, n = self._groups, self._plan.n_rows
        if groups is not None and n < groups.min_entries:
            self._groups = None
            reason = f"the knowledge base has {n} entries, {groups.min_entries} are needed"
            self._skipped.append(Skipped(detector=groups.name, reason=reason))

    def _find_groups(self) -> None:
        steps, partitions = self._steps, [(p,) for p in Partitions(self._plan).filled]
        steps.find_neighbors()
        steps.measure_tightness()
        steps.each("contrasting", grouping.contrast, partitions, "contrast/{}")
        steps.each("tying", grouping.tie, partitions, "tied/{}")
        columns = grouping.usual_tasks()
        steps.each("what is usual: parts", grouping.usual, columns, "usual/{}.{}")
        groups = grouping.size_tasks()
        steps.each("what is usual: sizes", grouping.sizes, groups, "sizes/{}.{}")
        steps.each("scoring", grouping.score, partitions, "scored/{}")

    # What was found

    def _judges(self) -> list[_Judge]:
        judges = [
            _Judge(detector, "rows", f"score.{i}") for i, detector in enumerate(self._by_text)
        ]
        if self._groups is not None:
            judges.append(_Judge(self._groups, "scored", "scores"))
        return judges

    def _report(self) -> PartitionedReport:
        plan, partitions, skipped = self._plan, Partitions(self._plan), self._skipped
        failed = {
            self._by_text[int(name.partition(".")[2])].name: as_text(reason)
            for name, reason in plan.files.read("layout").items()
            if name.startswith("failed.")
        }
        skipped += [Skipped(detector=name, reason=reason) for name, reason in failed.items()]
        trusted = self._trusted(partitions)
        judges, counts, by_none = self._counted(partitions, failed)
        # All that thresholds ask of scores is what trusted entries have.
        audited = [Audited(j.detector, j.scores(partitions, trusted), 0.0) for j in judges]
        known = None if self._clean is None else np.arange(len(trusted))
        if known is not None:
            audited, unjudged = with_clean_scores(audited, known)
            skipped += unjudged
        calibration = None if known is None else calibration_of(audited, known)
        thresholds = thresholds_of(audited, self._policy, calibration)
        skipped += [judged_too_few(i, known) for i in audited if i.name not in thresholds]
        audited = [item for item in audited if item.name in thresholds]
        judges = [judge for judge in judges if judge.detector.name in thresholds]
        above = {
            judge.detector.name: judge.above(partitions, thresholds[judge.detector.name])
            for judge in judges
        }
        suspicious = {name: np.setdiff1d(numbers, trusted) for name, numbers in above.items()}
        found = np.unique(np.concatenate([np.empty(0, np.int64), *suspicious.values()]))
        ids, findings = partitions.ids(found), dict[int, list[Finding]]()
        for judge in judges:
            name, numbers = judge.detector.name, suspicious[judge.detector.name]
            rows = np.searchsorted(found, numbers).tolist()
            told = findings_of(
                judge.detector,
                [ids[row] for row in rows],
                judge.scores(partitions, numbers),
                thresholds[name],
                self._explained(partitions, judge, numbers),
                None if calibration is None else calibration.calibrations.get(name),
            )
            for row, finding in zip(rows, told, strict=True):
                findings.setdefault(row, []).append(finding)
        return PartitionedReport(
            batch=Batch.of(ids=ids, texts=[""] * len(ids), embeddings=None),
            remarkable={r: self._policy.decide(ids[r], findings[r]) for r in sorted(findings)},
            scores={judge.detector.name: judge.scores(partitions, found) for judge in judges},
            skipped=tuple(skipped),
            timings=self._steps.timings,
            fpr=self._fpr,
            thresholds=thresholds,
            n_clean=len(trusted),
            failed=tuple(failed),
            by_rule=by_rule(audited, calibration),
            entries=plan.n_rows,
            judged_by_none=by_none,
            judged=counts,
            high={
                judge.detector.name: np.sort(judge.scores(partitions, above[judge.detector.name]))
                for judge in judges
            },
            texts=any(len(partitions.rows(p)["words"]) for p in partitions.filled),
            n_partitions=partitions.n,
            neighbors_found={} if self._groups is None else searching.share_found(plan),
        )

    def _trusted(self, partitions: Partitions) -> NDArray[np.int64]:
        """Return the numbers of trusted entries, ascending."""
        wanted = self._clean or ()
        hashes = np.array([placing.id_hash(one) for one in wanted], dtype=np.uint64)
        near = [
            np.flatnonzero(np.isin(partitions.rows(p)["id_hash"], hashes)) + partitions.starts[p]
            for p in partitions.filled
            if wanted
        ]
        numbers = np.concatenate([np.empty(0, dtype=np.int64), *near])
        ids, sought = partitions.ids(numbers), set(wanted)
        unknown = sorted(sought.difference(ids))
        if unknown:
            raise unknown_ids(unknown, len(sought))
        return numbers[[one in sought for one in ids]]

    def _counted(
        self, partitions: Partitions, failed: Container[str]
    ) -> tuple[list[_Judge], dict[str, int], int]:
        """Return who had opinions, about how many entries, and about how many nobody had one."""
        judges = [judge for judge in self._judges() if judge.detector.name not in failed]
        counts = dict.fromkeys((judge.detector.name for judge in judges), 0)
        by_none = 0
        for partition in partitions.filled:
            nobody = np.ones(len(partitions.own(partition)), dtype=np.bool_)
            for judge in judges:
                opinion = ~np.isnan(partitions.rows(partition, judge.kind)[judge.column])
                counts[judge.detector.name] += int(np.count_nonzero(opinion))
                nobody &= ~opinion
            by_none += int(np.count_nonzero(nobody))
        silent = [judge.detector.name for judge in judges if not counts[judge.detector.name]]
        reason = "it could judge none of the entries"
        self._skipped += [Skipped(detector=name, reason=reason) for name in silent]
        return [judge for judge in judges if judge.detector.name not in silent], counts, by_none

    def _explained(
        self, partitions: Partitions, judge: _Judge, numbers: NDArray[np.int64]
    ) -> list[Evidence]:
        """Return why entries were found, in the order of their numbers."""
        asked = json.dumps([self._fpr, self._clean, judge.detector.name])
        key = hashlib.blake2b(asked.encode(), digest_size=8).hexdigest()
        home = np.searchsorted(partitions.starts, numbers, side="right") - 1
        rows = numbers - partitions.starts[home]
        if not judge.by_groups:  # by their texts, which are in the input only
            home, rows = partitions.gather(numbers, "piece"), partitions.gather(numbers, "row")
        order = np.lexsort((rows, home))
        places, first = np.unique(home[order], return_index=True)
        parts = np.split(rows[order], first[1:]) if len(places) else []
        tasks = [
            (place, part.tolist(), f"explained/{key}.{place}")
            for place, part in zip(places.tolist(), parts, strict=True)
        ]
        step: Callable[..., None] = grouping.explain
        if not judge.by_groups:
            step = partial(explain_texts, self._by_text.index(judge.detector))
        self._steps.each(f"explaining: {judge.detector.name}", step, tasks, "{2}")
        told = [one for *_, name in tasks for one in read_explained(self._plan, name)]
        sorted_back = np.argsort(order)
        return [told[place] for place in sorted_back.tolist()]


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
