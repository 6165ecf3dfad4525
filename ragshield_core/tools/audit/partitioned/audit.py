"""The driver of an audit of a knowledge base that does not fit in one memory.

The driver holds counts, centres and findings; tasks write and read all else as files.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ragshield_core.detectors.base import Detector, Evidence, Scope, learns
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.detectors.groups.evidence import Kin
from ragshield_core.detectors.groups.usual import MIN_FAMILY_ENTRIES
from ragshield_core.model.findings import Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.store.keeper import Progress
from ragshield_core.tools.audit.judging import DetectorScores, report_of, unknown_ids
from ragshield_core.tools.audit.partitioned import grouping, placing
from ragshield_core.tools.audit.partitioned.engines import Engine, engine_of
from ragshield_core.tools.audit.partitioned.plan import LOOKED_INTO, Numbers, Parts, Plan, grouped
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
    """Audit by partitions, and remove their files at the end.

    Parameters
    ----------
    parts
        The knowledge base.
    detectors
        Detectors that judge an entry by itself and learn nothing take part, and the first
        :class:`~ragshield_core.detectors.CliqueDetector` with the default rule; others are skipped.
    policy, clean, engine, seed, progress
        As in :func:`ragshield_core.tools.audit.scan`.

    Raises
    ------
    SourceError
        If the input cannot be read.
    InvalidBatchError
        If an id repeats, a vector is invalid, or a trusted entry is missing.
    """
    by_text: list[Detector] = []
    groups: CliqueDetector | None = None
    skipped: dict[str, str] = {}
    for one in detectors:
        if type(one) is CliqueDetector and one.rule == "groups" and groups is None:
            groups = one
        elif not learns(one) and one.traits.scope is Scope.ENTRY and one.traits.unsaved is None:
            by_text.append(one)
        else:
            skipped[one.name] = (
                "compares with the whole knowledge base, and does so in one memory only; audit "
                "without an engine for it"
            )
    pieces = parts.pieces()
    if parts.work_dir is not None:
        parts.work_dir.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="partitions-", dir=parts.work_dir) as folder,
        engine_of(engine) as runner,
    ):
        plan = Plan(
            folder=Path(folder).absolute(),
            pieces=pieces,
            columns=parts.columns,
            partition_rows=parts.partition_rows,
            by_text=tuple((type(one), one.config()) for one in by_text),
            groups=None if groups is None else groups.config(),
            seed=seed,
        )
        driver = _Driver(plan, runner, progress)
        failed = {by_text[which].name: why for which, why in driver.place().items()}
        skipped |= failed
        plan, n = driver.plan, plan.n_rows
        if groups is not None and n < groups.min_entries:
            reason = f"the knowledge base has {n} entries, {groups.min_entries} are needed"
            skipped[groups.name], groups = reason, None
        judges = [
            DetectorScores(
                detector=one,
                scores=plan.column(f"score.{which}"),
                explain=partial(driver.explained, one, which),
            )
            for which, one in enumerate(by_text)
            if one.name not in failed
        ]
        shares: dict[int, float] = {}
        if groups is not None:
            shares = driver.find_groups()
            why = partial(driver.explained, groups, None)
            judges.append(
                DetectorScores(detector=groups, scores=plan.column("scores"), explain=why)
            )
        silent = [one.name for one in judges if not one.judged]
        skipped |= dict.fromkeys(silent, "it could judge none of the entries")
        n_partitions = len(plan.starts) - 1
        return report_of(
            [one for one in judges if one.name not in silent],
            policy,
            None if clean is None else _numbers_of(clean, plan),
            plan.ids,
            batch=None,
            skipped=[Skipped(detector=name, reason=reason) for name, reason in skipped.items()],
            failed=tuple(failed),
            timings=driver.timings,
            n_audited=n,
            has_texts=any(len(plan.read(p, "words")) for p in plan.filled),
            n_partitions=n_partitions,
            neighbors_found=shares,
            missed=_missed(n_partitions, shares),
        )


@dataclass
class _Driver:
    """Runs steps of one task per part; ``timings`` has the seconds of each step."""

    plan: Plan
    engine: Engine
    tell: Progress
    timings: dict[str, float] = field(default_factory=dict)

    def run(
        self, what: str, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Run the tasks of a step, each with the plan; return their results in any order."""
        begin, results = time.perf_counter(), []
        self.tell(what, 0, len(tasks))
        for result in self.engine.run(partial(function, self.plan), tasks):
            results.append(result)
            self.tell(what, len(results), len(tasks))
        step = what.partition(":")[0]
        self.timings[step] = self.timings.get(step, 0.0) + time.perf_counter() - begin
        return results

    def learn(self, **found: Any) -> None:
        """Add results to the plan of all later tasks."""
        self.plan = replace(self.plan, **found)

    def place(self) -> dict[int, str]:
        """Gather the entries of each partition; return the errors of crashed text detectors."""
        pieces = [(number,) for number in range(len(self.plan.pieces))]
        sampled = dict(self.run("sampling", placing.sample, pieces))
        vectors = [sampled[number] for (number,) in pieces]
        self.learn(centres=placing.centres_of(self.plan, vectors))
        placed = sorted(self.run("placing", placing.place, pieces), key=lambda one: one.number)
        self.learn(**placing.layout_of(placed))
        self.run("gathering", placing.gather, [(partition,) for partition in self.plan.filled])
        shutil.rmtree(self.plan.folder / "placed", ignore_errors=True)
        placing.compare_ids(self.plan)
        return {which: why for one in placed for which, why in one.failed.items()}

    def find_groups(self) -> dict[int, float]:
        """Find the neighbours of all entries, and score their groups; return recall@k by k."""
        filled = self.plan.filled
        each = [(partition,) for partition in filled]
        n_kin = sum(self.run("searching", grouping.search, each))
        drawn = grouping.drawn(self.plan)
        nearest = self.run("probing", grouping.probe, [(p, drawn) for p in filled])
        self.learn(families=n_kin >= MIN_FAMILY_ENTRIES)
        self.run("measuring", grouping.tighten, [(p, ("cross", "same")) for p in filled])
        if self.plan.families:  # 8 bytes an entry
            columns = map(self.plan.column, ("same.nearest", "cross.nearest"))
            self.learn(kin=Kin(*columns))
        self.run("measuring again", grouping.tighten, [(p, ("any",)) for p in filled])
        self.run("contrasting", grouping.contrast, each)
        self.run("tying", grouping.tie, each)
        self.learn(usual=grouping.usual_of(self.plan))
        self.run("scoring", grouping.score, each)
        return grouping.share_found(self.plan, drawn, nearest)

    def explained(
        self, detector: Detector, which: int | None, numbers: Numbers
    ) -> Sequence[Evidence]:
        """Return the evidence of groups against entries, or that of text detector ``which``."""
        plan = self.plan
        if which is None:
            step: Callable[..., Any] = grouping.explain
            places = np.searchsorted(plan.starts, numbers, side="right") - 1
            rows = numbers - plan.starts[places]
        else:  # by their texts, which are in the input only
            step = partial(placing.explain_texts, which)
            places, rows = (plan.gather(numbers, name) for name in ("piece", "row"))
        order = np.lexsort((rows, places))
        tasks = grouped(places[order], rows[order])
        told = dict(self.run(f"explaining: {detector.name}", step, tasks))
        in_order = [one for place, _ in tasks for one in told[place]]
        return [in_order[place] for place in np.argsort(order).tolist()]


def _missed(n_partitions: int, shares: Mapping[int, float]) -> str:
    """Return a sentence on the search's recall; empty if each entry was compared with all."""
    if n_partitions <= LOOKED_INTO or not shares:
        return ""
    found = " and ".join(f"{share:.1%} of the {k} nearest" for k, share in shares.items())
    return (
        f"Each entry was compared with those of {LOOKED_INTO} of {n_partitions} partitions: "
        f"{found} neighbours were found so, by a sample."
    )


def _numbers_of(ids: Sequence[str], plan: Plan) -> Numbers:
    """Return the numbers of trusted entries, ascending."""
    hashes = np.array([placing.id_hash(one) for one in ids], dtype=np.uint64)
    near = np.flatnonzero(np.isin(plan.column("id_hash"), hashes))
    found, sought = plan.ids(near), set(ids)
    unknown = sorted(sought.difference(found))
    if unknown:
        raise unknown_ids(unknown, len(sought))
    return near[[one in sought for one in found]]
