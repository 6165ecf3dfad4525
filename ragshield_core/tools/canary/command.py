"""The commands ``ragshield canary``: baselines, checks, traceback and reports, also in CI."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import CanaryError
from ragshield_core.model.printing import printable
from ragshield_core.settings.objects import modules_here, named_object
from ragshield_core.tools.audit.command import (
    FOUND,
    NOTHING_FOUND,
    cached_embedder,
    errors,
    no_crash_looks_like_a_finding,
)
from ragshield_core.tools.options import Reports, Tenant, takes

if TYPE_CHECKING:
    from ragshield_core.tools.audit.embedding_cache import CachedEmbedder
    from ragshield_core.tools.canary.drift import DriftReport
    from ragshield_core.tools.canary.monitor import CanaryMonitor
    from ragshield_core.tools.canary.traceback import Traceback

# From this growth on, a canary stands out only with several newcomers at its head.
MUCH_GROWTH = 0.1

canary_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Watch what known questions retrieve."
)
console = Console()

Suite = Annotated[Path, typer.Argument(help="YAML or JSONL file of canary queries.")]
Version = Annotated[
    int | None, typer.Option("--baseline", help="Its version; default: the latest.")
]


@dataclass(frozen=True, kw_only=True)
class Watched(Tenant):
    """The options that choose the knowledge base, the models and the places of canaries."""

    data: Annotated[
        Path | None,
        typer.Option(help="Knowledge base: JSONL(.gz) or parquet file, or a folder of FAISS."),
    ] = None
    retriever: Annotated[
        str | None, typer.Option(help="Instead of --data: module:object, or a factory of one.")
    ] = None
    answerer: Annotated[str | None, typer.Option(help="module:object, or a factory of one.")] = None
    embedder: Annotated[
        str | None,
        typer.Option(help="A model's name, or module:object; default: minilm for --data."),
    ] = None
    k: Annotated[int, typer.Option("--k", min=1, help="Places that are compared.")] = 6
    work_dir: Annotated[
        Path | None, typer.Option(help="Keeps vectors of --data; default: NAME.ragshield here.")
    ] = None

    def monitor(self, suite: Path, contradictions: str | None = None) -> CanaryMonitor:
        """Return the monitor of a suite over the knowledge base, with a checker if one is named."""
        import numpy as np

        from ragshield_core.tools.audit.knowledge_base import load
        from ragshield_core.tools.audit.readers.kinds import open_source
        from ragshield_core.tools.audit.readers.source import ColumnNames
        from ragshield_core.tools.canary.monitor import CanaryMonitor
        from ragshield_core.tools.canary.suite import CanarySuite

        if (self.data is None) == (self.retriever is None):
            msg = "expected either --data with a knowledge base or --retriever with module:object."
            raise CanaryError(msg)
        canaries = CanarySuite.load(suite)
        model: Any = None
        cached: CachedEmbedder | None = None
        if self.embedder is not None and ":" in self.embedder:
            model = named_object(self.embedder)
        elif self.embedder is not None or self.data is not None:
            name = suite.name if self.data is None else self.data.name
            folder = self.work_dir or Path(f"{name}.ragshield")
            cached = kept = cached_embedder(self.embedder or "minilm", folder)

            def model(texts: Sequence[str]) -> Any:
                return np.vstack(list(kept.chunks(texts)))

        source: Any
        if self.data is None:
            source = named_object(str(self.retriever))
        else:
            reader = open_source(self.data, ColumnNames(), metadata=True)
            source = load(reader, embedder=(lambda: cached) if cached else None).batch
        return CanaryMonitor(
            canaries,
            source,
            answerer=None if self.answerer is None else named_object(self.answerer),
            embedder=model,
            k=self.k,
            contradictions=None if contradictions is None else named_object(contradictions),
            quarantine=self.quarantine(),
        )


@canary_app.command()
@takes(Watched)
def baseline(watched: Watched, suite: Suite) -> None:
    """Record the canaries' results as a baseline, while you believe the knowledge base clean."""
    with no_crash_looks_like_a_finding(), modules_here():
        monitor = watched.monitor(suite)
        version = monitor.record_baseline()
        console.print(
            Text(
                f"baseline {version} of suite {monitor.suite.name!r}: {len(monitor.suite)} canaries"
            )
        )


@canary_app.command()
@takes(Watched, Reports)
def check(
    watched: Watched,
    reports: Reports,
    suite: Suite,
    *,
    version: Version = None,
    limit: Annotated[int, typer.Option(min=0, help="Flagged canaries to show.")] = 10,
    contradictions: Annotated[
        str | None,
        typer.Option(
            help="module:object of a calibrated ContradictionChecker, or a factory of one: what "
            "newcomers at flagged canaries say against other entries."
        ),
    ] = None,
) -> None:
    """Ask the canaries again and compare with a baseline.

    Exit code 0: no drift; 1: canaries are flagged or retrieve held entries; 2: an error.
    """
    from ragshield_core.tools.canary.telling import html_report, to_sarif, told_of_drift, verdict_of
    from ragshield_core.tools.case_report import markdown

    with no_crash_looks_like_a_finding(), modules_here():
        reports.check()
        monitor = watched.monitor(suite, contradictions)
        report = monitor.compare(baseline=version)
        _check_compared(report)  # an empty check must not enter the history as a clean one
        report = monitor.keep(report)
        trace = monitor.traceback(report) if report.flagged else None

        def show() -> None:
            _show(report, limit)
            if trace is not None:
                console.print(trace)

        reports.give(
            {
                "json": report.to_json,
                "html": lambda: html_report(report, monitor.history(), trace),
                "markdown": lambda: markdown(told_of_drift(report, trace)),
                "sarif": lambda: to_sarif(report, trace),
            },
            verdict_of(report),
            show,
            console,
        )
        code = FOUND if report.flagged or report.still_served else NOTHING_FOUND
    raise typer.Exit(code)


@canary_app.command()
@takes(Watched, Reports)
def trace(  # noqa: PLR0913 - options of a command line
    watched: Watched,
    reports: Reports,
    suite: Suite,
    *,
    query: Annotated[str | None, typer.Option(help="A question that was answered wrong.")] = None,
    answer: Annotated[str | None, typer.Option(help="The wrong answer.")] = None,
    depth: Annotated[int, typer.Option(min=1, help="Retrieved entries to look at.")] = 50,
    since: Annotated[
        dt.datetime | None,
        typer.Option(
            metavar="DATE", help="UTC. When the answer was right: older entries are not to blame."
        ),
    ] = None,
    version: Version = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Entries to show, worst first.")] = None,
    hold: Annotated[
        bool, typer.Option("--quarantine", help="Put suspects into quarantine. Never by default.")
    ] = False,
) -> None:
    """Name the entries to blame for drift or, with --query and --answer, for one bad answer.

    Exit code 0: no suspects; 1: suspects; 2: an error.
    """
    from ragshield_core.tools.canary.telling import to_sarif, told_of_suspects
    from ragshield_core.tools.case_report import html_page, markdown

    with no_crash_looks_like_a_finding(), modules_here():
        reports.check()
        if (query is None) != (answer is None):
            msg = "--query and --answer belong together, expected both or neither."
            raise CanaryError(msg)
        monitor = watched.monitor(suite)
        if query is None or answer is None:
            drift = monitor.compare(baseline=version)
            _check_compared(drift)
            found = monitor.traceback(drift)
        else:
            found = monitor.trace_answer(query, answer, depth=depth, since=since)
        now = dt.datetime.now(dt.UTC)
        reports.give(
            {
                "json": lambda: json.dumps(found.to_dict()),
                "html": lambda: html_page(told_of_suspects(found, now)),
                "markdown": lambda: markdown(told_of_suspects(found, now)),
                "sarif": lambda: to_sarif(None, found),
            },
            f"{len(found.suspects)} suspects",
            lambda: console.print(found.table(limit)),
            console,
        )
        if hold and found.suspects:
            _hold(monitor, found, in_a_file=watched.data is not None)
        code = FOUND if found.suspects else NOTHING_FOUND
    raise typer.Exit(code)


@canary_app.command()
@takes(Tenant, Reports)
def report(
    tenant: Tenant,
    reports: Reports,
    suite: Annotated[str, typer.Argument(help="Name of a suite, or its file.")],
    *,
    limit: Annotated[int, typer.Option(min=1, help="Checks to show.")] = 100,
) -> None:
    """Show the latest check and earlier ones, from the database."""
    from ragshield_core.tools.canary.storage import CanaryStore
    from ragshield_core.tools.canary.suite import CanarySuite
    from ragshield_core.tools.canary.telling import html_report, to_sarif, told_of_drift, verdict_of
    from ragshield_core.tools.case_report import markdown

    with no_crash_looks_like_a_finding():
        reports.check()
        file = Path(suite)
        name = CanarySuite.load(file).name if file.suffix and file.is_file() else suite
        quarantine = tenant.quarantine()
        if not quarantine.exists():
            msg = f"{quarantine!r} does not exist: suite {name!r} was never checked there."
            raise CanaryError(msg)
        store = CanaryStore(quarantine)
        history = store.checks(name, limit)
        if not history:
            msg = f"suite {name!r} was never checked; run `ragshield canary check`."
            raise CanaryError(msg)

        def show() -> None:
            for number, at in store.versions(name):
                console.print(f"baseline {number}: {at:%Y-%m-%d %H:%M} UTC")
            _show(history[-1], 10)

        reports.give(
            {
                "json": lambda: json.dumps([check.to_dict() for check in history]),
                "html": lambda: html_report(history[-1], history),
                "markdown": lambda: markdown(told_of_drift(history[-1])),
                "sarif": lambda: to_sarif(history[-1]),
            },
            verdict_of(history[-1]),
            show,
            console,
        )


def _hold(monitor: CanaryMonitor, found: Traceback, *, in_a_file: bool) -> None:
    gone = monitor.quarantine(found.suspects)
    line = f"{len(gone)} entries are in quarantine; `ragshield quarantine list` shows them."
    if in_a_file:
        line += " The file is as it was: remove them there; checks name them until then."
    errors.print(Text(line))


def _check_compared(report: DriftReport) -> None:
    """Refuse a check that compared nothing, since it must not pass as clean."""
    if not any(drift.ids for drift in report.canaries):
        msg = (
            f"nothing is retrieved for any of {len(report.canaries)} canaries; check that the "
            "retriever asks a filled knowledge base."
        )
        raise CanaryError(msg)
    if all(drift.jaccard is None for drift in report.canaries):
        msg = (
            f"none of the {len(report.canaries)} canaries of suite {report.suite!r} is in baseline "
            f"{report.baseline}, so nothing was compared; record a new baseline."
        )
        raise CanaryError(msg)


def _show(shown: DriftReport, limit: int) -> None:
    from ragshield_core.tools.canary.drift import SHOWN_ID

    calm = [drift for drift in shown.canaries if not drift.flagged]
    unknown = sum(drift.jaccard is None for drift in shown.canaries)
    worst = shown.flagged[:limit]
    for part in shown.tables(worst):
        console.print(part)
    hidden = len(shown.flagged) - len(worst)
    if hidden:
        console.print(Text(f"and {hidden} more flagged: --limit, or --output drift.html"))
    highest = max((drift.score for drift in calm), default=0.0)
    console.print(Text(f"{len(calm)} others, anomaly up to {highest:.3f}"))
    if calm and shown.growth > MUCH_GROWTH and all(drift.answer is None for drift in calm):
        console.print(
            Text(
                f"growth alone would give {shown.growth:.0%} of all places to newcomers: so "
                "much may hide a takeover. Pass --answerer to have answers compared, or check "
                "after smaller additions."
            )
        )
    if shown.still_served:
        some = ", ".join(printable(i, SHOWN_ID) for i in shown.still_served[:limit])
        line = f"in quarantine and still retrieved, take them out of the knowledge base: {some}"
        left = len(shown.still_served) - limit
        console.print(Text(line + (f" and {left} more" if left > 0 else ""), style="red"))
    if unknown:
        console.print(Text(f"{unknown} are not in the baseline: recorded, compared with nothing"))
