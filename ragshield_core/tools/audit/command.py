"""``ragshield scan`` and ``fit``: audit a knowledge base on disk, or fit a guard on it."""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import CalibrationError, RAGShieldError, SourceError
from ragshield_core.model.printing import printable
from ragshield_core.tools.defaults import PARTITION_ROWS
from ragshield_core.tools.options import Reports, Tenant, check_folder_of, takes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from rich.progress import TaskID

    from ragshield_core.model.entries import Batch
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.store.keeper import Progress
    from ragshield_core.tools.alerts import Checked
    from ragshield_core.tools.audit.embedding_cache import CachedEmbedder
    from ragshield_core.tools.audit.knowledge_base import KnowledgeBase
    from ragshield_core.tools.audit.readers.source import ColumnNames, Source
    from ragshield_core.tools.audit.report import ScanReport

# A package with a model registers a function here. It takes no parameters and returns the model:
# a function from a list of texts to one vector each.
ENTRY_POINT_GROUP = "ragshield.embedders"
BY = "ragshield scan"

NOTHING_FOUND, FOUND, ERROR, NOT_ENOUGH, INTERRUPTED = 0, 1, 2, 3, 130

console = Console()
errors = Console(stderr=True)

COLUMN = "Its name, if not a usual one."


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Options for the files and columns of a source, and the seed."""

    include: Annotated[
        list[str] | None,
        typer.Option(help='Only files of a folder that match, such as "*.md"; repeatable.'),
    ] = None
    exclude: Annotated[
        list[str] | None,
        typer.Option(help='No files that match, such as "drafts/*"; repeatable.'),
    ] = None
    seed: Annotated[int, typer.Option(help="Of random choices.")] = 0
    id_column: Annotated[str | None, typer.Option(help=COLUMN)] = None
    text_column: Annotated[str | None, typer.Option(help=COLUMN)] = None
    label_column: Annotated[str | None, typer.Option(help=COLUMN)] = None
    lineage_column: Annotated[
        str | None, typer.Option(help='Names the document a chunk was cut from; "" for none.')
    ] = None
    embedding_column: Annotated[str | None, typer.Option(help=COLUMN)] = None

    @property
    def columns(self) -> ColumnNames:
        """The names of the columns."""
        from ragshield_core.tools.audit.readers.source import USUAL, ColumnNames

        return ColumnNames(**{role: getattr(self, f"{role}_column") for role in USUAL})

    def source(self, data: Path, *, metadata: bool = False) -> Source:
        """Return the source for a file or folder, without excluded files."""
        from ragshield_core.tools.audit.readers.kinds import open_source

        include, exclude = self.include or (), self.exclude or ()
        return open_source(data, self.columns, metadata=metadata, include=include, exclude=exclude)


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(ColumnOptions):
    """The same, and options for reading a knowledge base into memory."""

    embedder: Annotated[
        str, typer.Option(help="Model for entries that have no vector, and for attacks.")
    ] = "minilm"
    work_dir: Annotated[
        Path | None,
        typer.Option(
            help="Keeps vectors of texts, so that work can go on; with --engine, all machines must "
            "see it. Default: NAME.ragshield here."
        ),
    ] = None

    def knowledge_base(
        self, data: Path, tell: Progress, *, metadata: bool = False
    ) -> KnowledgeBase:
        """Load a knowledge base into memory, with metadata on request."""
        from ragshield_core.tools.audit.knowledge_base import load

        source, folder = self.source(data, metadata=metadata), self.folder(data)
        return load(source, embedder=lambda: cached_embedder(self.embedder, folder), progress=tell)

    def folder(self, data: Path) -> Path:
        """Return the work folder: in the current folder, as the data's own may be read-only."""
        return self.work_dir or Path(f"{data.name}.ragshield")


@dataclass(frozen=True, kw_only=True)
class TrustOptions:
    """Options for trusted entries, and for the baseline."""

    clean: Annotated[
        Path | None,
        typer.Option(help="File of trusted ids, one per line: keeps --fpr instead of estimating."),
    ] = None
    trust: Annotated[
        list[str] | None,
        typer.Option(
            help='Trusted as well: entries whose file (lineage) matches, such as "api/*"; '
            "repeatable."
        ),
    ] = None
    trust_revision: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT",
            help="Trusted as well: files of a folder that are as in this commit of its git "
            "repository.",
        ),
    ] = None
    baseline: Annotated[
        Path | None,
        typer.Option(help="Earlier JSON report: only cases that are not in it count."),
    ] = None

    def ids(self, batch: Batch | None, folder: Path) -> list[str] | None:
        """Return the trusted ids; ``None`` if no option names any."""
        from ragshield_core.files.folder import matches
        from ragshield_core.tools.audit.readers.kinds import read_ids
        from ragshield_core.tools.audit.revision import unchanged_since

        if self.clean is None and not self.trust and self.trust_revision is None:
            return None
        found = [] if self.clean is None else read_ids(self.clean)

        def add(option: str, fits: Callable[[str], bool]) -> None:
            pairs = () if batch is None else zip(batch.ids, batch.lineages, strict=True)
            matching = [i for i, lineage in pairs if lineage and fits(lineage)]
            if not matching:
                msg = f"{option} matches no entry; name files as they are."
                raise SourceError(msg)
            found.extend(matching)

        for glob in self.trust or ():
            add(f"--trust {printable(glob, 100)!r}", partial(matches, globs=[glob]))
        if self.trust_revision is not None:
            unchanged = unchanged_since(self.trust_revision, folder)
            add(f"--trust-revision {printable(self.trust_revision, 100)!r}", unchanged.__contains__)
        return found


@takes(ReadingOptions, TrustOptions, Reports, Tenant)
def scan_command(  # noqa: PLR0913 - options of a command line
    reading: ReadingOptions,
    trust: TrustOptions,
    reports: Reports,
    tenant: Tenant,
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of documents, a JSONL(.gz) or parquet file, or a folder of LangChain's "
            "FAISS or LlamaIndex; with --engine also a folder of parquet files."
        ),
    ],
    *,
    fpr: Annotated[
        float,
        typer.Option(help="Accepted share of clean entries among the findings, in (0, 1)."),
    ] = 0.01,
    detector: Annotated[
        list[str] | None,
        typer.Option(
            help="Only that one, of `ragshield detectors list`; repeatable. Default: all."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Cases to show, worst first.")] = 20,
    engine: Annotated[
        str | None,
        typer.Option(
            help="ray, or local: work on a parquet file, or a folder of them, by partitions, "
            "never all in one memory. Default: all in memory."
        ),
    ] = None,
    partition_rows: Annotated[
        int, typer.Option(min=2, help="With --engine: entries of a partition, about.")
    ] = PARTITION_ROWS,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="Hold findings, in --database. Never by default."),
    ] = False,
    contradictions: Annotated[
        bool,
        typer.Option("--contradictions", help="Also show statements that contradict each other."),
    ] = False,
) -> None:
    """Audit a whole knowledge base: every entry judged against the others.

    Exit code 0: nothing found, and enough was judged; 1: findings; 2: an error; 3: nothing found,
    but not enough was judged.
    """
    from ragshield_core.detectors.registry import built_in_detectors, detector_class
    from ragshield_core.tools.audit.audit import scan
    from ragshield_core.tools.audit.output import case_report
    from ragshield_core.tools.audit.partitioned.engines import engine_of
    from ragshield_core.tools.audit.partitioned.plan import Parts
    from ragshield_core.tools.audit.provenance import provenance_of
    from ragshield_core.tools.audit.report import read_baseline, without_known
    from ragshield_core.tools.audit.sarif import to_sarif
    from ragshield_core.tools.case_report import html_page, markdown

    with no_crash_looks_like_a_finding():
        reports.check()
        check_fpr(fpr)
        whole = (
            *(trust.trust, trust.trust_revision, trust.baseline, quarantine, contradictions),
            *(reading.include, reading.exclude),
        )
        if engine is not None and any(whole):
            msg = (
                "--trust, --trust-revision, --baseline, --quarantine, --contradictions, --include "
                "and --exclude need whole entries, which --engine never has in one place; leave "
                "them out, name trusted ids by --clean, and hold what --output findings.json names."
            )
            raise SourceError(msg)
        runner = None if engine is None else engine_of(engine)
        detectors, missing = built_in_detectors()
        if detector:
            detectors, missing = [detector_class(name)() for name in dict.fromkeys(detector)], []
        known = None if trust.baseline is None else read_baseline(trust.baseline)
        store = tenant.quarantine() if quarantine else None
        if store is not None:
            store.count()  # fails now, not an hour later, if it is unreachable
        knowledge = None
        with progress_bar(quiet=reports.quiet) as tell:
            if runner is None:
                metadata = contradictions or store is not None
                knowledge = reading.knowledge_base(data, tell, metadata=metadata)
            report = scan(
                Parts(
                    path=data,
                    columns=reading.columns,
                    work_dir=reading.folder(data),
                    partition_rows=partition_rows,
                )
                if knowledge is None
                else knowledge.batch,
                detectors,
                fpr=fpr,
                clean_ids=trust.ids(None if knowledge is None else knowledge.batch, data),
                seed=reading.seed,
                progress=tell,
                engine=runner,
                embed=None
                if knowledge is None or knowledge.embedder is None
                else knowledge.embedder.embed,
                contradictions=contradictions,
            )
        report = replace(report, skipped=(*missing, *report.skipped))
        if knowledge is not None:
            report = report.covering(knowledge.coverage)
        if known is not None:
            report = without_known(report, known)
        if store is not None and knowledge is not None:
            report = _hold(report, knowledge, store)
        options = asdict(reading) | {"engine": engine}
        names = ("seed", "engine", "embedder", "include", "exclude")
        settings = {name: options[name] for name in names}

        def as_json() -> str:  # with the hashes of entries and files, which take a while
            provenance = provenance_of(data, reading.columns, settings, knowledge)
            return replace(report, provenance=provenance).to_json()

        about = (report, data.as_posix())
        now = dt.datetime.now(dt.UTC)
        reports.give(
            {
                "json": as_json,
                "sarif": partial(to_sarif, *about),
                "html": lambda: html_page(case_report(*about, now)),
                "markdown": lambda: markdown(case_report(*about, now)),
            },
            report.verdict,
            partial(show_report, report, limit),
            console,
        )
    raise typer.Exit(exit_code(report))


def exit_code(report: ScanReport) -> int:
    """Return the exit code that tells the outcome of an audit."""
    return FOUND if report.found else NOTHING_FOUND if report.enough else NOT_ENOUGH


def show_report(report: ScanReport, limit: int) -> None:
    """Print the outcome of an audit for people, with the worst ``limit`` cases."""
    from ragshield_core.tools.audit.output import cases_table

    style = "bold red" if report.found else "bold green" if report.enough else "bold yellow"
    console.print(Text(printable(report.verdict, limit=2000), style=style))
    if report.found:
        console.print(cases_table(report, limit))
    if report.contradictions is not None:
        show_contradictions(report.contradictions, console)
    for skipped in report.skipped:
        line = printable(f"skipped {skipped.detector}: {skipped.reason}")
        console.print(Text(line, style="red" if skipped.detector in report.failed else "yellow"))
    for sentence in report.files[: limit + 1]:
        console.print(Text(printable(sentence, limit=2000)))
    for sentence in report.unread:
        console.print(Text(printable(f"not audited: {sentence}", limit=2000), style="red"))
    if not report.has_texts:
        line = "No entry has a text: copies cannot be told from paraphrases."
        console.print(Text(line, style="yellow"))
    console.print(Text(report.note, style="" if report.audited else "red"))


def show_contradictions(checked: Checked, where: Console) -> None:
    """Print alerts about contradictions, with both quotations."""
    from ragshield_core.tools.alerts import HEADING

    for line in (f"{HEADING}:", *checked.lines()):
        where.print(Text(line), soft_wrap=True)


def _hold(report: ScanReport, knowledge: KnowledgeBase, store: Quarantine) -> ScanReport:
    """Put findings into quarantine, except entries that people released or rules excuse."""
    from ragshield_core.model.findings import Verdict
    from ragshield_core.model.policy import Policy
    from ragshield_core.tools.rules import Rules

    batch = knowledge.batch.take(report.found_rows)
    confirmed = store.confirmed_among(batch)  # no rule excuses these, as in a guard
    before = {at: one for at, one in enumerate(report.found) if one.entry_id not in confirmed}
    after = Rules(store).excuse(batch, before, Policy())
    excused = {}
    for at, decision in before.items():
        if after[at] is not decision:
            left = after[at].findings
            # Admitted entries keep their findings, like entries that people have released.
            excused[report.found_rows[at]] = replace(
                after[at],
                findings=left or decision.findings,
                verdict=decision.verdict if left else Verdict.ADMIT,
            )
    n_found = len(report.found)
    report = replace(report, remarkable={**report.remarkable, **excused})
    if n_excused := n_found - len(report.found):
        errors.print(Text(f"{n_excused} entries are excused by rules, and stay where they are."))
    if not report.found:
        return report
    released = store.hold(knowledge.batch.take(report.found_rows), report.found, by=BY)
    report = report.overruled(released)
    errors.print(
        Text(
            f"{len(report.found)} entries are in quarantine; {len(released)} were released by "
            "people before and are left alone. The scanned data is as it was: remove them there."
        )
    )
    return report


@takes(ReadingOptions)
def fit_command(
    reading: ReadingOptions,
    data: Annotated[
        Path,
        typer.Argument(help="As of scan: believed to be clean."),
    ],
    *,
    save: Annotated[Path, typer.Option(help="Folder of the guard, see Guard.load.")],
    fpr: Annotated[
        float, typer.Option(help="Accepted share of clean entries that are held, in (0, 1).")
    ] = 0.01,
) -> None:
    """Fit a guard with every built-in detector, calibrate it, and save it.

    Exit code 0: done; 2: an error. A guard that could not be calibrated is saved all the same.
    """
    from ragshield_core.guard import Guard
    from ragshield_core.logs import told
    from ragshield_core.quarantine import Quarantine

    with no_crash_looks_like_a_finding():
        check_folder_of(save)
        check_fpr(fpr)
        guard = Guard.default(fpr, quarantine=Quarantine("sqlite://"), seed=reading.seed)
        with told(errors), progress_bar() as tell:
            guard.fit(reading.knowledge_base(data, tell).batch)
        not_calibrated: CalibrationError | None = None
        try:
            guard.calibrate()
        except CalibrationError as error:
            not_calibrated = error
        guard.save(save)
        what = "fitted on" if not_calibrated is not None else "fitted and calibrated on"
        console.print(Text(printable(f"{what} {guard.n_known} entries; saved in {save}")))
    if not_calibrated is not None:
        why = printable(f"error: not calibrated: {not_calibrated}", limit=2000)
        errors.print(Text(why, style="red"))
        raise typer.Exit(ERROR)


def cached_embedder(name: str, folder: Path) -> CachedEmbedder:
    """Return the embedding model that a package registers under a name."""
    from ragshield_core.tools.audit.embedding_cache import CachedEmbedder

    points = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in points:
        msg = (
            f"entries without a vector need the embedder {name!r}, expected one of "
            f"{sorted(points)}; pip install 'ragshield[langchain,minilm]', or bring vectors."
        )
        raise SourceError(msg)
    try:
        embed: Callable[[list[str]], ArrayLike] = points[name].load()()
    except ImportError as error:
        module = (error.name or "").partition(".")[0] or "a package"
        msg = (
            f"the embedder {name!r} needs {module}, which is not installed; pip install "
            "'ragshield[langchain,minilm]'."
        )
        raise SourceError(msg) from error
    return CachedEmbedder(embed, model=f"{name} = {points[name].value}", folder=folder)


def check_fpr(fpr: float) -> None:
    """Refuse a rate outside (0, 1)."""
    if not 0.0 < fpr < 1.0:
        msg = f"--fpr is {fpr:g}, expected a share in (0, 1), such as 0.01."
        raise SourceError(msg)


@contextmanager
def no_crash_looks_like_a_finding() -> Iterator[None]:
    """Exit with the code for errors on a crash: Python's own would mean findings."""
    try:
        yield
    except RAGShieldError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        errors.print("interrupted; the same command goes on where it stopped")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - any crash; its message may hold hostile text
        frame = traceback.extract_tb(error.__traceback__)[-1]
        _fail(f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error}")


def _fail(message: str) -> NoReturn:
    errors.print(Text(f"error: {printable(message, limit=2000)}", style="red"))
    raise typer.Exit(ERROR) from None


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Progress]:
    """Yield a function that shows progress on standard error: a line per step, with the time left.

    Text behind a colon in a step's name is a detail: it starts no new line.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=quiet,
    ) as bar:

        def tell(what: str, done: int, total: int) -> None:
            step, shown = what.partition(":")[0], printable(what)
            if step not in tasks:
                tasks[step] = bar.add_task(shown, total=total)
            bar.update(tasks[step], description=shown, completed=done, total=total)

        yield tell
