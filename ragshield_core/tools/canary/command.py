"""The commands ``ragshield canary``: baselines, checks, traceback and reports, also in CI."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.errors import CanaryError
from ragshield_core.findings import printable
from ragshield_core.quarantine import DEFAULT_URL, Quarantine
from ragshield_core.settings.objects import modules_here, named_object
from ragshield_core.tools.audit.command import (
    FOUND,
    NOTHING_FOUND,
    cached_embedder,
    check_parent,
    no_crash_looks_like_a_finding,
)
from ragshield_core.tools.audit.knowledge_base import load
from ragshield_core.tools.audit.readers.kinds import open_source
from ragshield_core.tools.audit.readers.source import Columns
from ragshield_core.tools.canary.drift import DriftReport
from ragshield_core.tools.canary.html_page import html_report
from ragshield_core.tools.canary.matrix import MatrixRetriever
from ragshield_core.tools.canary.monitor import CanaryMonitor
from ragshield_core.tools.canary.rank_figures import Rule
from ragshield_core.tools.canary.shown import SHOWN_ID
from ragshield_core.tools.canary.storage import CanaryStore
from ragshield_core.tools.canary.suite import CanarySuite
from ragshield_core.tools.canary.traceback import Traceback

# From this share of newcomers on, it takes several of them at the head of a canary to stand out.
MUCH_GROWTH = 0.1

canary_app = typer.Typer(no_args_is_help=True, help="Watch what known questions retrieve.")
console = Console()

Suite = Annotated[Path, typer.Argument(help="YAML or JSONL file of canary queries.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Knowledge base: JSONL(.gz), parquet or npz file, or a folder of FAISS."),
]
RetrieverName = Annotated[
    str | None,
    typer.Option("--retriever", help="Instead of --data: module:object, or a factory of one."),
]
AnswererName = Annotated[
    str | None, typer.Option("--answerer", help="module:object, or a factory of one.")
]
EmbedderName = Annotated[
    str | None,
    typer.Option(
        "--embedder", help="A model's name, or module:object; default: minilm for --data."
    ),
]
Places = Annotated[int, typer.Option("--k", min=1, help="Places that are compared.")]
RuleName = Annotated[str, typer.Option("--rule", help="ragshield, or notebook.")]
Database = Annotated[
    str, typer.Option("--database", envvar="RAGSHIELD_DATABASE", help="SQLAlchemy URL.")
]
Namespace = Annotated[str, typer.Option(help="Of the tenant.")]
WorkDir = Annotated[
    Path | None, typer.Option(help="Keeps vectors of --data; default: NAME.ragshield here.")
]
Version = Annotated[
    int | None, typer.Option("--baseline", help="Its version; default: the latest.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the result there.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write a page with plots there.")]


@canary_app.command()
def baseline(  # noqa: PLR0913 - options of a command line
    suite: Suite,
    *,
    data: Data = None,
    retriever: RetrieverName = None,
    answerer: AnswererName = None,
    embedder: EmbedderName = None,
    k: Places = 6,
    rule: RuleName = "ragshield",
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    work_dir: WorkDir = None,
) -> None:
    """Record what the canaries give now, while the knowledge base is believed to be clean."""
    with no_crash_looks_like_a_finding(), modules_here():
        monitor = _monitor(
            suite, data, retriever, answerer, embedder, k, rule, (database, namespace), work_dir
        )
        version = monitor.record_baseline()
        console.print(
            Text(
                f"baseline {version} of suite {monitor.suite.name!r}: {len(monitor.suite)} canaries"
            )
        )


@canary_app.command()
def check(  # noqa: PLR0913 - options of a command line
    suite: Suite,
    *,
    data: Data = None,
    retriever: RetrieverName = None,
    answerer: AnswererName = None,
    embedder: EmbedderName = None,
    k: Places = 6,
    rule: RuleName = "ragshield",
    version: Version = None,
    limit: Annotated[int, typer.Option(min=0, help="Flagged canaries to show.")] = 10,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    work_dir: WorkDir = None,
) -> None:
    """Ask the canaries again and compare with a baseline.

    Exit code 0: no drift; 1: canaries are flagged, or retrieve what is in quarantine; 2: an error.
    """
    with no_crash_looks_like_a_finding(), modules_here():
        for path in (json_file, html_file):
            check_parent(path)
        monitor = _monitor(
            suite, data, retriever, answerer, embedder, k, rule, (database, namespace), work_dir
        )
        report = monitor.check(baseline=version, keep=False)
        _check_compared(report)  # or it would stand in the history as a check that found nothing
        monitor.store.save_check(report)
        _write(json_file, report.to_json())
        trace = monitor.traceback(report) if report.flagged else None
        if html_file is not None:
            _write(html_file, html_report(report, monitor.history(), trace))
        _show(report, limit)
        if trace is not None:
            console.print(trace)
        code = FOUND if report.flagged or report.still_served else NOTHING_FOUND
    raise typer.Exit(code)


@canary_app.command()
def trace(  # noqa: PLR0913 - options of a command line
    suite: Suite,
    *,
    data: Data = None,
    retriever: RetrieverName = None,
    answerer: AnswererName = None,
    embedder: EmbedderName = None,
    k: Places = 6,
    rule: RuleName = "ragshield",
    query: Annotated[str | None, typer.Option(help="A question that was answered wrong.")] = None,
    answer: Annotated[str | None, typer.Option(help="The wrong answer.")] = None,
    depth: Annotated[int, typer.Option(min=1, help="Retrieved entries to look at.")] = 50,
    since: Annotated[
        dt.datetime | None,
        typer.Option(help="UTC. When the answer was right: older entries are not to blame."),
    ] = None,
    version: Version = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Entries to show, worst first.")] = None,
    hold: Annotated[
        bool, typer.Option("--quarantine", help="Put suspects into quarantine. Never by default.")
    ] = False,
    json_file: JsonFile = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    work_dir: WorkDir = None,
) -> None:
    """Say which entries are to blame for drift or, with --query and --answer, for one bad answer.

    Exit code 0: no suspects; 1: suspects; 2: an error.
    """
    with no_crash_looks_like_a_finding(), modules_here():
        check_parent(json_file)
        if (query is None) != (answer is None):
            msg = "--query and --answer belong together, expected both or neither."
            raise CanaryError(msg)
        monitor = _monitor(
            suite, data, retriever, answerer, embedder, k, rule, (database, namespace), work_dir
        )
        if query is None or answer is None:
            drift = monitor.check(baseline=version, keep=False)
            _check_compared(drift)
            found = monitor.traceback(drift)
        else:
            found = monitor.trace_answer(query, answer, depth=depth, since=since)
        _write(json_file, json.dumps(found.to_dict()))
        console.print(found.table(limit))
        if hold and found.suspects:
            _hold(monitor, found, in_a_file=data is not None)
        code = FOUND if found.suspects else NOTHING_FOUND
    raise typer.Exit(code)


@canary_app.command()
def report(
    suite: Annotated[str, typer.Argument(help="Name of a suite, or its file.")],
    *,
    html_file: HtmlFile = None,
    json_file: JsonFile = None,
    limit: Annotated[int, typer.Option(min=1, help="Checks in the plot over time.")] = 100,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
) -> None:
    """Show the latest check and those before it, from the database."""
    with no_crash_looks_like_a_finding():
        for path in (json_file, html_file):
            check_parent(path)
        file = Path(suite)
        name = CanarySuite.load(file).name if file.suffix and file.is_file() else suite
        quarantine = Quarantine(database, namespace=namespace)
        if not quarantine.exists():
            msg = f"{quarantine!r} does not exist: suite {name!r} was never checked there."
            raise CanaryError(msg)
        store = CanaryStore(quarantine)
        history = store.checks(name, limit)
        if not history:
            msg = f"suite {name!r} was never checked; run `ragshield canary check`."
            raise CanaryError(msg)
        if html_file is not None:
            _write(html_file, html_report(history[-1], history))
        _write(json_file, json.dumps([check.to_dict() for check in history]))
        for number, at, fingerprint, k in store.versions(name):
            model = f"embedder {fingerprint}" if fingerprint else "no embedder"
            console.print(Text(f"baseline {number}: {at:%Y-%m-%d %H:%M} UTC, k = {k}, {model}"))
        _show(history[-1], 10)


def _monitor(  # noqa: PLR0913, PLR0917 - options of a command line
    suite: Path,
    data: Path | None,
    retriever: str | None,
    answerer: str | None,
    embedder: str | None,
    k: int,
    rule: str,
    where: tuple[str, str],
    work_dir: Path | None,
) -> CanaryMonitor:
    if (data is None) == (retriever is None):
        msg = "expected either --data with a knowledge base or --retriever with module:object."
        raise CanaryError(msg)
    rules: dict[str, Rule] = {"ragshield": "ragshield", "notebook": "notebook"}
    if rule not in rules:
        msg = f"--rule is {rule!r}, expected one of {sorted(rules)}."
        raise CanaryError(msg)
    canaries = CanarySuite.load(suite)
    source: Any
    model: Any = None
    if embedder is not None and ":" in embedder:
        model = named_object(embedder)
    elif embedder is not None or data is not None:
        name = suite.name if data is None else data.name
        folder = Path(f"{name}.ragshield") if work_dir is None else work_dir
        cached = cached_embedder(embedder or "minilm", folder)

        def model(texts: Sequence[str]) -> Any:
            return np.vstack(list(cached.chunks(texts)))

    if data is None:
        assert retriever is not None  # noqa: S101 - one of the two is given
        source = named_object(retriever)
    else:
        reader = open_source(data, Columns(), metadata=True)
        kept = cached if embedder is None or ":" not in embedder else None
        source = MatrixRetriever(load(reader, embedder=(lambda: kept) if kept else None).batch)
    return CanaryMonitor(
        canaries,
        source,
        answerer=None if answerer is None else named_object(answerer),
        embedder=model,
        k=k,
        rule=rules[rule],
        quarantine=Quarantine(where[0], namespace=where[1]),
    )


def _hold(monitor: CanaryMonitor, found: Traceback, *, in_a_file: bool) -> None:
    gone = monitor.quarantine(found.suspects)
    line = f"{len(gone)} entries are in quarantine; `ragshield quarantine list` shows them."
    if in_a_file:
        line += " The file is as it was: remove them there; checks name them until then."
    console.print(Text(line))


def _check_compared(report: DriftReport) -> None:
    """Refuse what must not pass as clean: a check that looked at nothing."""
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
    calm = [drift for drift in shown.canaries if not drift.flagged]
    unknown = sum(drift.jaccard is None for drift in shown.canaries)
    worst = shown.flagged[:limit]
    for part in shown.tables(worst):
        console.print(part)
    hidden = len(shown.flagged) - len(worst)
    if hidden:
        console.print(Text(f"and {hidden} more flagged: --limit, --json or --html"))
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


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.write_text(text, encoding="utf-8")
