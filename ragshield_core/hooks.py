"""Hooks that the kernel calls and tools implement, to extend a guard.

The kernel imports no tool. It finds tools by entry points of the group ``ragshield.tools``, each a
module or object whose functions are marked with :data:`hookimpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pluggy

from ragshield_core.model.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ragshield_core.model.entries import Batch
    from ragshield_core.model.findings import Decision, Report
    from ragshield_core.model.policy import Policy
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.settings import Settings

GROUP = "ragshield.tools"
hookspec, hookimpl = pluggy.HookspecMarker("ragshield"), pluggy.HookimplMarker("ragshield")

Stage = Literal["ingestion", "retrieval"]


class ReportReceiver(Protocol):
    """Receiver of one screening's report."""

    def found(self, report: Report) -> None:
        """Receive the report."""
        ...


class Notified(Protocol):
    """Notifies people when a decision or a review is needed."""

    def screened(self, report: Report, quarantine: Any) -> None:
        """Receive the report of a screening after its entries were held."""
        ...

    def asked(self, questions: Sequence[Any], quarantine: Any) -> None:
        """Receive the open questions about sources."""
        ...


class Hooks:
    """The hooks; a tool may implement any of them."""

    @hookspec
    def excuse(
        self,
        quarantine: Quarantine,
        batch: Batch,
        decisions: Mapping[int, Decision],
        policy: Policy,
    ) -> Mapping[int, Decision]:
        """Return the decisions that rules of people change, by row of the batch."""
        raise NotImplementedError

    @hookspec
    def screening(
        self, stage: Stage, n_entries: int, data_source: str | None
    ) -> AbstractContextManager[ReportReceiver] | None:
        """Return a context manager around a screening, which receives the report."""
        raise NotImplementedError

    @hookspec
    def decided(self, stage: Stage, report: Report) -> None:
        """Receive a report that includes people's earlier decisions."""

    @hookspec(firstresult=True)
    def notifier(self, settings: Settings) -> Notified | None:
        """Return a notifier, if the settings ask for one."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def scan(self, batch: Batch, detectors: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Judge every entry of a knowledge base against the others."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def power(
        self,
        screen: Callable[[Batch], Report],
        sample: Batch,
        embed: Callable[[list[str]], Any],
    ) -> Mapping[str, float] | None:
        """Return the share of planted texts that a guard would hold, by form of attack."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def plant(self, sample: Batch, n_targets: int) -> Sequence[tuple[str, Sequence[str]]]:
        """Return made-up attacks on topics of clean entries: the form and the texts of each."""
        raise NotImplementedError

    @hookspec(firstresult=True)
    def contradictions(
        self,
        batch: Batch,
        clean_rows: NDArray[np.intp] | None,
        neighbors: NDArray[Any] | None,
        model: Any,
    ) -> Any:
        """Return alerts about entries of a knowledge base that contradict others of it."""
        raise NotImplementedError


@cache
def tools() -> Any:
    """Return the hooks of all installed tools; calling a hook calls every implementation."""
    manager = pluggy.PluginManager("ragshield")
    manager.add_hookspecs(Hooks)
    manager.load_setuptools_entrypoints(GROUP)
    return manager.hook


def answered(answer: Any, asked: str) -> Any:
    """Return the answer of a tool, which must not be ``None``.

    Raises
    ------
    ConfigurationError
        If no tool answered; names the request.
    """
    if answer is None:
        msg = (
            f"no tool answers {asked}: none is registered in the entry points {GROUP!r}; install "
            "the package (pip install ragshield, or pip install -e . in a clone) instead of "
            "importing it from a folder."
        )
        raise ConfigurationError(msg)
    return answer


def excused(
    quarantine: Quarantine,
    batch: Batch,
    decisions: Mapping[int, Decision],
    policy: Policy,
) -> Mapping[int, Decision]:
    """Return the decisions after people's rules excused findings; see :meth:`Hooks.excuse`."""
    if not any(decision.findings for decision in decisions.values()):
        return decisions
    changed = tools().excuse(quarantine=quarantine, batch=batch, decisions=decisions, policy=policy)
    return {row: one for found in (decisions, *changed) for row, one in found.items()}


@contextmanager
def screening(
    stage: Stage, n_entries: int, data_source: str | None = None
) -> Iterator[list[ReportReceiver]]:
    """Run a screening in the tools' contexts; give the report to each of the yielded receivers."""
    with ExitStack() as stack:
        contexts = tools().screening(stage=stage, n_entries=n_entries, data_source=data_source)
        yield [stack.enter_context(context) for context in contexts]
