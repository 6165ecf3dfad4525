"""The steps that audits and fits by partitions have in common, and how each is run.

Each step writes a file per task; what is there is not done again, which is how work goes on that
was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
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
        self.plan, self._engine, self.tell = plan, engine, progress
        self.timings: dict[str, float] = {}

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
        left = [task for task in tasks if name.format(*task) not in self.plan.files]
        done = len(tasks) - len(left)
        self.tell(what, done, len(tasks))
        for more in self._engine.run(partial(function, self.plan), left):
            done += more
            self.tell(what, done, len(tasks))
        step = what.partition(":")[0]
        self.timings[step] = self.timings.get(step, 0.0) + time.perf_counter() - begin

    def each_partition(self, what: str, function: Callable[..., None], folder: str) -> None:
        """Run a step once for each partition that has entries."""
        self.each(what, function, [(p,) for p in self.partitions.filled], f"{folder}/{{}}")

    def once(self, what: str, function: Callable[[Plan], None], name: str) -> None:
        """Run a step that is one task."""
        self.each(what, function, [()], name)

    @cached_property
    def partitions(self) -> Partitions:
        """All of them, once entries were placed."""
        return Partitions(self.plan)

    def place(self) -> None:
        """Bring the entries of each partition together, and make sure that no id repeats."""
        pieces = [(i,) for i in range(len(self.plan.pieces))]
        if "layout" not in self.plan.files:
            self.each("sampling", placing.sample, pieces, "sample/{}")
            self.once("dividing", placing.train, "centres")
            self.each("placing", placing.place, pieces, "placed/{}")
            self.once("numbering", placing.lay_out, "layout")
        self.each_partition("gathering", placing.gather, "rows")
        self.plan.files.remove("placed")
        self.once("comparing ids", placing.compare_ids, "ids")

    def find_neighbors(self) -> None:
        """Find the nearest of each entry, and on a sample how many of them are missed."""
        self.each_partition("searching", searching.search, "lists")
        self.once("drawing", searching.probes, "probes")
        self.each_partition("probing", searching.probe, "probed")

    def measure_tightness(self) -> None:
        """Measure how tight groups are, which takes the vectors of their members."""
        self.once("families", grouping.families, "families")
        self.each_partition("measuring", grouping.tighten, "tight")
        if self.plan.files.read("families")["usual"]:
            self.once("kin", grouping.kin, "kin")
        self.each_partition("measuring again", grouping.tighten_any, "tight_any")
