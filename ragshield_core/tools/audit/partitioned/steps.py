"""The steps that audits and fits by partitions have in common, and how each is run.

Each step writes a file per task; what is there is not done again, which is how work goes on that
was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ragshield_core.detectors.base.pieces import Progress
from ragshield_core.tools.audit.partitioned import grouping, placing, searching
from ragshield_core.tools.audit.partitioned.engines import Engine
from ragshield_core.tools.audit.partitioned.plan import Plan
from ragshield_core.tools.audit.partitioned.rows import Partitions


class Steps:
    """Runs steps, and remembers how long they took.

    Parameters
    ----------
    plan
        What every task is given.
    engine
        Runs the tasks.
    progress
        Told what is being done, how many tasks are done, and of how many.

    Attributes
    ----------
    timings
        Seconds, by step.
    """

    def __init__(self, plan: Plan, engine: Engine, progress: Progress) -> None:
        self._plan, self._engine, self._tell = plan, engine, progress
        self.timings: dict[str, float] = {}

    def once(self, name: str, function: Callable[[Plan], None]) -> None:
        """Do on the driver what is quick, unless it was done."""
        if name not in self._plan.files:
            function(self._plan)

    def each(
        self,
        what: str,
        function: Callable[..., None],
        tasks: Sequence[tuple[Any, ...]],
        name: str,
    ) -> None:
        """Run the tasks of a step whose files are not there yet.

        Parameters
        ----------
        what
            The step, as people are told.
        function
            Takes the plan, and what is in a task.
        tasks
            Arguments.
        name
            Of the file that a task writes, with a place for each argument.
        """
        begin = time.perf_counter()
        left = [task for task in tasks if name.format(*task) not in self._plan.files]
        done = len(tasks) - len(left)
        self._tell(what, done, len(tasks))
        for more in self._engine.run(partial(function, self._plan), left):
            done += more
            self._tell(what, done, len(tasks))
        step = what.partition(":")[0]
        self.timings[step] = self.timings.get(step, 0.0) + time.perf_counter() - begin

    def place(self) -> None:
        """Bring the entries of each partition together, and make sure that no id repeats."""
        plan, numbers = self._plan, [(i,) for i in range(len(self._plan.pieces))]
        if "layout" not in plan.files:
            self.each("sampling", placing.sample, numbers, "sample/{}")
            self.once("centres", placing.train)
            self.each("placing", placing.place, numbers, "placed/{}")
            self.once("layout", placing.lay_out)
        shards = [(shard.number,) for shard in Partitions(plan).shards]
        self.each("gathering", placing.gather, shards, "rows/{}")
        plan.files.remove("placed")
        shares = [(share,) for share in range(placing.id_shares(plan))]
        self.each("comparing ids", placing.compare_ids, shares, "ids/{}")

    def find_neighbors(self) -> None:
        """Find the nearest of each entry, and on a sample how many of them are missed."""
        plan, partitions = self._plan, Partitions(self._plan)
        filled, shards = [(p,) for p in partitions.filled], [(s.number,) for s in partitions.shards]
        blocks = searching.blocks_of(plan)
        self.each("searching", searching.search, blocks, "found/{}.{}")
        self.each("merging", searching.merge, shards, "lists/{}")
        self.once("probes", searching.probes)
        self.each("probing", searching.probe, filled, "probed/{}")

    def measure_tightness(self) -> None:
        """Measure how tight groups are, which takes the vectors of their members."""
        plan, partitions = self._plan, [(p,) for p in Partitions(self._plan).filled]
        self.once("families", grouping.families)
        self.each("measuring", grouping.tighten, partitions, "tight/{}")
        if plan.files.read("families")["usual"]:
            self.once("kin", grouping.kin)
        self.each("measuring again", grouping.tighten_any, partitions, "tight_any/{}")
