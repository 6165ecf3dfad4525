"""The audit of a knowledge base that is in no single memory: the driver of its tasks.

The driver knows counts, centres and findings; all else is in files that tasks write and read.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Evidence, Scope, learns
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.detectors.groups.usual import MIN_FAMILY_ENTRIES
from ragshield_core.model.findings import Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.store.adapter import Progress
from ragshield_core.tools.audit.judging import Judge, report_of, unknown_ids
from ragshield_core.tools.audit.partitioned import grouping, placing
from ragshield_core.tools.audit.partitioned.engines import Engine, engine_of
from ragshield_core.tools.audit.partitioned.files import Files
from ragshield_core.tools.audit.partitioned.plan import Parts, Plan
from ragshield_core.tools.audit.partitioned.rows import Partitions, grouped
from ragshield_core.tools.audit.report import ScanReport


def audit(
    parts: Parts,
    detectors: Sequence[Detector],
    policy: Policy,
    clean: Sequence[str] | None,
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
    policy, clean, engine, seed, progress
        As of :func:`ragshield_core.tools.audit.scan`.

    Raises
    ------
    SourceError
        If the input cannot be read.
    InvalidBatchError
        If an id repeats, a vector is wrong, or a trusted entry is not there.
    """
    by_text, groups, skipped = _sorted_out(detectors)
    pieces = parts.pieces()
    if parts.work_dir is not None:
        parts.work_dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="partitions-", dir=parts.work_dir) as folder,
        engine_of(engine) as runner,
    ):
        plan = Plan(
            files=Files(Path(folder).absolute()),
            pieces=pieces,
            columns=parts.columns,
            partition_rows=parts.partition_rows,
            by_text=tuple((type(one), one.config()) for one in by_text),
            groups=None if groups is None else groups.config(),
            seed=seed,
        )
        steps = _Steps(plan, runner, progress)
        failed = {by_text[which].name: why for which, why in _place(steps).items()}
        skipped += [Skipped(detector=name, reason=reason) for name, reason in failed.items()]
        partitions, n = Partitions(steps.plan), plan.n_rows
        if groups is not None and n < groups.min_entries:
            reason = f"the knowledge base has {n} entries, {groups.min_entries} are needed"
            skipped.append(Skipped(detector=groups.name, reason=reason))
            groups = None
        judges = [
            Judge(
                detector=one,
                scores=partitions.column(f"score.{which}"),
                explain=partial(_explained, steps, partitions, one, which),
            )
            for which, one in enumerate(by_text)
            if one.name not in failed
        ]
        shares: dict[int, float] = {}
        if groups is not None:
            shares = _find_groups(steps, partitions)
            scores = partitions.column("scores", "scored")
            why = partial(_explained, steps, partitions, groups, None)
            judges.append(Judge(detector=groups, scores=scores, explain=why))
        reason = "it could judge none of the entries"
        silent = [one.name for one in judges if not one.judged]
        skipped += [Skipped(detector=name, reason=reason) for name in silent]
        return report_of(
            [one for one in judges if one.name not in silent],
            policy,
            None if clean is None else _numbers_of(clean, partitions),
            partitions.ids,
            batch=None,
            skipped=skipped,
            failed=tuple(failed),
            timings=steps.timings,
            n_audited=n,
            has_texts=any(len(partitions.rows(p)["words"]) for p in partitions.filled),
            n_partitions=partitions.n,
            neighbors_found=shares,
            missed=grouping.missed(partitions.n, shares),
        )


class _Steps:
    """Runs steps, each a task for every part; ``timings`` has the seconds that each took."""

    def __init__(self, plan: Plan, engine: Engine, progress: Progress) -> None:
        self.plan, self._engine, self._tell = plan, engine, progress
        self.timings: dict[str, float] = {}

    def run(
        self, what: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Run the tasks of a step; return their results in any order.

        Parameters
        ----------
        what
            The step, as people are told.
        function
            Takes the plan, and what is in a task.
        tasks
            Arguments.
        """
        begin, results = time.perf_counter(), []
        self._tell(what, 0, len(tasks))
        for result in self._engine.run(partial(function, self.plan), tasks):
            results.append(result)
            self._tell(what, len(results), len(tasks))
        step = what.partition(":")[0]
        self.timings[step] = self.timings.get(step, 0.0) + time.perf_counter() - begin
        return results

    def learn(self, **found: Any) -> None:
        """Tell all later tasks what was found."""
        self.plan = replace(self.plan, **found)


def _place(steps: _Steps) -> dict[int, str]:
    """Bring the entries of each partition together; return why text detectors crashed."""
    plan = steps.plan
    pieces = [(number,) for number in range(len(plan.pieces))]
    sampled = dict(steps.run("sampling", placing.sample, pieces))
    steps.learn(centres=placing.centres_of(plan, [sampled[number] for (number,) in pieces]))
    placed = sorted(steps.run("placing", placing.place, pieces), key=lambda one: one.number)
    steps.learn(layout=placing.layout_of(placed))
    partitions = Partitions(steps.plan)
    steps.run("gathering", placing.gather, [(partition,) for partition in partitions.filled])
    plan.files.remove("placed")
    placing.compare_ids(partitions)
    return {which: why for one in placed for which, why in one.failed.items()}


def _find_groups(steps: _Steps, partitions: Partitions) -> dict[int, float]:
    """Find the neighbours of all entries, and score their groups; return the share found."""
    each = [(partition,) for partition in partitions.filled]
    n_kin = sum(steps.run("searching", grouping.search, each))
    drawn = grouping.drawn(steps.plan)
    nearest = steps.run("probing", grouping.probe, [(p, drawn) for (p,) in each])
    steps.learn(families=n_kin >= MIN_FAMILY_ENTRIES)
    steps.run("measuring", grouping.tighten, [(p, "tight") for (p,) in each])
    if steps.plan.families:
        steps.learn(kin=grouping.kin_of(partitions))
    steps.run("measuring again", grouping.tighten, [(p, "tight_any") for (p,) in each])
    steps.run("contrasting", grouping.contrast, each)
    steps.run("tying", grouping.tie, each)
    steps.learn(usual=grouping.usual_of(partitions))
    steps.run("scoring", grouping.score, each)
    return grouping.share_found(partitions, drawn, nearest)


def _explained(
    steps: _Steps,
    partitions: Partitions,
    detector: Detector,
    which: int | None,
    numbers: NDArray[np.int64],
) -> Sequence[Evidence]:
    """Return why entries were found: by the groups, or by the text detector of that number."""
    if which is None:
        step: Callable[..., Any] = grouping.explain
        places = np.searchsorted(partitions.starts, numbers, side="right") - 1
        rows = numbers - partitions.starts[places]
    else:  # by their texts, which are in the input only
        step = partial(placing.explain_texts, which)
        places, rows = (partitions.gather(numbers, name) for name in ("piece", "row"))
    order = np.lexsort((rows, places))
    tasks = grouped(places[order], rows[order])
    told = dict(steps.run(f"explaining: {detector.name}", step, tasks))
    in_order = [one for place, _ in tasks for one in told[place]]
    return [in_order[place] for place in np.argsort(order).tolist()]


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
