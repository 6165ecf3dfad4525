"""``ragshield quarantine``: a reviewer's commands for held entries and their cases."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.model.errors import ConfigurationError, QuarantineError, RAGShieldError
from ragshield_core.model.printing import printable
from ragshield_core.quarantine.status import Status
from ragshield_core.settings.objects import modules_here
from ragshield_core.tools.options import (
    AsListing,
    By,
    Into,
    Listing,
    Note,
    Reports,
    StoreOptions,
    Tenant,
    live_store,
    takes,
)
from ragshield_core.tools.review.choices import Action, CaseOrder

if TYPE_CHECKING:
    from ragshield_core.quarantine import HeldEntry, Quarantine
    from ragshield_core.tools.review.cases import Case

LIMIT = 50
# Characters of an id that stay on one line for copying: the length of a UUID.
WHOLE_ID = 36
# Characters of a text in a table.
BEGINNING = 160
INTERRUPTED = 130
MINUTE = "%Y-%m-%d %H:%M"
DATES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]

quarantine_app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Look at held entries and judge them."
)
console = Console()


class Which(StrEnum):
    """Cases to show."""

    WAITING = "waiting"  # with waiting entries
    DECIDED = "decided"  # without waiting entries
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Paged:
    """The options that choose rows of a list."""

    limit: Annotated[int, typer.Option(min=0, help="Rows to show.")] = LIMIT
    offset: Annotated[int, typer.Option(min=0, help="Rows to skip.")] = 0


@dataclass(frozen=True, kw_only=True)
class Narrowed:
    """The options that filter lists."""

    detector: Annotated[str | None, typer.Option(help="Only entries with a finding of it.")] = None
    source: Annotated[str | None, typer.Option(help="Only what claims this lineage.")] = None
    search: Annotated[
        str | None,
        typer.Option(
            help="Only entries that contain this, in their id or the beginning of their text."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The options of a decision: its entries, its reviewer and its reason."""

    ids: Annotated[list[str] | None, typer.Argument(help="Ids of entries; or --case.")] = None
    case: Annotated[int | None, typer.Option(help="The whole case of that number.")] = None
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before a whole case is decided.")
    ] = False
    by: By = "cli"
    note: Note = None


@quarantine_app.command("list")
@takes(StoreOptions, Narrowed, Paged)
def list_held(
    place: StoreOptions,
    narrowed: Narrowed,
    paged: Paged,
    *,
    status: Annotated[Status, typer.Option(help="Only those.")] = Status.HELD,
    since: Annotated[
        dt.datetime | None,
        typer.Option(formats=DATES, metavar="DATE", help="Only entries held since then, UTC."),
    ] = None,
    case: Annotated[int | None, typer.Option(help="Only entries of that case.")] = None,
    form: AsListing = Listing.TABLE,
) -> None:
    """Show held entries, oldest first; `show` prints one entry in full."""
    from ragshield_core.quarantine import Narrowing
    from ragshield_core.tools.review.cases import Cases

    quarantine = place.opened()
    number = None if case is None else Cases(quarantine).show(case).number
    narrowing = Narrowing(**asdict(narrowed), since=since, case=number)
    found = quarantine.list(status, narrowing=narrowing, limit=paged.limit, offset=paged.offset)
    cases = Cases(quarantine).numbers_of(found)
    if form is Listing.JSON:
        print_json([summary_of(held) | {"case": cases.get(held.number)} for held in found])
        return
    columns = ("entry", "case", "why")
    rows = [(held.id, str(cases.get(held.number, "")), _why_and_since(held)) for held in found]
    count = quarantine.count(status, narrowing=narrowing)
    _print_table(f"{count} entries {status}", columns, rows, paged.offset, count)


@quarantine_app.command("cases")
@takes(StoreOptions, Narrowed, Paged, Reports)
def list_cases(
    place: StoreOptions,
    narrowed: Narrowed,
    paged: Paged,
    reports: Reports,
    *,
    status: Annotated[Which, typer.Option(help="Only those.")] = Which.WAITING,
    order: Annotated[CaseOrder, typer.Option(help="Which come first.")] = CaseOrder.SEVERITY,
) -> None:
    """Show waiting entries in cases, each of which takes one decision.

    As html or markdown it is a report with texts and reasons.
    """
    from ragshield_core.tools.case_report import html_page, markdown
    from ragshield_core.tools.review.cases import Cases
    from ragshield_core.tools.review.quarantine_report import QuarantineReport

    reports.check()
    quarantine = place.opened()
    found, count, offset = Cases(quarantine).page(
        waiting={Which.WAITING: True, Which.DECIDED: False}.get(status),
        **asdict(narrowed),
        order=order,
        limit=paged.limit,
        offset=paged.offset,
    )
    report = QuarantineReport(quarantine, found, count, dt.datetime.now(dt.UTC))

    def table() -> None:
        firsts = Cases(quarantine).firsts(found)
        columns = ("case", "severity", "what")
        rows = []
        for case in found:
            begins = printable(firsts.get(case.number, ((), ""))[1], BEGINNING)
            source = f", source {case.source}" if case.source else ""
            what = (
                f"{case.n_waiting} of {case.n_members} waiting, found by {_found_by(case)} since "
                f"{case.opened_at:{MINUTE}}{source}: {begins}"
            )
            rows.append((str(case.number), case.severity, what))
        _print_table(f"{count} cases", columns, rows, offset, count)

    reports.give(
        {
            "json": lambda: json.dumps([_case_summary(case) for case in found], indent=2),
            "html": lambda: html_page(report.told()),
            "markdown": lambda: markdown(report.told()),
            "sarif": report.to_sarif,
        },
        report.verdict,
        table,
        console,
    )


@quarantine_app.command()
@takes(StoreOptions)
def show(place: StoreOptions, entry_id: str, *, form: AsListing = Listing.TABLE) -> None:
    """Show one held entry in full; its text may be hostile and is escaped."""
    from rich.table import Table

    from ragshield_core.quarantine import metadata_json
    from ragshield_core.tools.review.cases import Cases

    quarantine = place.opened()
    held = quarantine.show(entry_id)
    case = Cases(quarantine).numbers_of([held]).get(held.number)
    metadata = json.loads(metadata_json.dumps(held.entry.metadata))
    whole = summary_of(held) | {"case": case, "metadata": metadata, "text": held.entry.text}
    if form is Listing.JSON:
        print_json(whole)
        return
    table = Table(show_header=False)
    for name, value in (whole | {"findings": _why(held)}).items():
        shown = "" if value is None else printable(str(value), limit=2000)
        table.add_row(name.replace("_", " "), Text(shown))
    console.print(table)


@quarantine_app.command()
@takes(StoreOptions, Chosen)
def confirm(place: StoreOptions, chosen: Chosen) -> None:
    """Judge held entries poisoned, and keep them as evidence."""
    console.print(f"confirmed {_decide(Action.CONFIRM, chosen, place.opened())} entries")


@quarantine_app.command()
@takes(StoreOptions, Chosen)
def release(place: StoreOptions, chosen: Chosen, *, into: Into = None) -> None:
    """Judge held entries good: from now on the guard admits them when they are ingested again.

    With --into, the command writes them into that store, with the vectors that they were held with.
    It takes the entries from that store's own quarantine.
    """
    if into is None:
        n_released = _decide(Action.RELEASE, chosen, place.opened())
        console.print(f"released {n_released} entries; the guard admits them at the next ingest")
        return
    with modules_here():
        live = live_store(into, "release")
        kept = live.quarantine if hasattr(live, "quarantine") else live.guard.quarantine
        n_released = _decide(Action.RELEASE, chosen, kept, live)
    console.print(f"released {n_released} entries into the store")


@quarantine_app.command()
@takes(StoreOptions, Chosen)
def reopen(place: StoreOptions, chosen: Chosen) -> None:
    """Take decisions back: released or confirmed entries wait again, with their findings.

    Guarded readers of a store no longer see the entries that were released into it.
    """
    n_reopened = _decide(Action.REOPEN, chosen, place.opened())
    console.print(f"reopened {n_reopened} entries; they wait for a decision")


@quarantine_app.command()
@takes(StoreOptions, Chosen)
def purge(place: StoreOptions, chosen: Chosen) -> None:
    """Delete entries from quarantine for good; of a case, also the decided ones."""
    from ragshield_core.tools.review.cases import Cases
    from ragshield_core.tools.review.desk import AT_ONCE, Desk

    quarantine = place.opened()
    whole = _whole(quarantine, chosen, None)
    deleted = 0
    if whole is None:
        deleted = quarantine.purge(chosen.ids or [], by=chosen.by, note=chosen.note)
    else:
        case, last = whole
        at, desk = 0, Desk(quarantine)
        while places := Cases(quarantine).places(case.number, after=at, until=last, limit=AT_ONCE):
            at = places[-1].number
            for kept, some in desk.by_store(places):
                deleted += kept.purge(some, by=chosen.by, note=chosen.note)
    console.print(f"deleted {deleted} revisions")


@quarantine_app.command()
@takes(Tenant)
def log(tenant: Tenant, *, form: AsListing = Listing.TABLE) -> None:
    """Show the audit log, after checking that nobody tampered with it."""
    kept = tenant.opened().log
    kept.verify_lines()
    if form is Listing.JSON:
        print_json([asdict(line) | {"at": line.at.isoformat()} for line in kept.lines()])
        return
    columns = ("line", "entry", "what")
    rows = (
        (
            *(str(line.seq), line.entry_id),
            f"{line.action} by {line.actor}, {line.at:%Y-%m-%d %H:%M:%S}, revision "
            f"{line.fingerprint}" + (f": {line.note}" if line.note else ""),
        )
        for line in kept.lines()
    )
    _print_table("audit log, verified", columns, rows)


@quarantine_app.command()
@takes(Tenant)
def verify(
    tenant: Tenant,
    *,
    head: Annotated[
        bool, typer.Option("--head", help="Print the head of the log only, to keep elsewhere.")
    ] = False,
    anchor: Annotated[
        str | None, typer.Option(help="A head that was printed earlier: nothing before is missing.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Who verifies: the log says so then, and the health page.")
    ] = None,
) -> None:
    """Check that nobody changed the tables; with exit code 1 it names the changed place.

    All namespaces share one log and are checked; entries are named of the given one only.
    Tables that were written with an audit key need it in RAGSHIELD_AUDIT_KEY.
    """
    from ragshield_core.learning.status import UNCOVERED

    kept = tenant.opened().log
    try:
        kept.verify(anchor, by=by)
    except QuarantineError as error:
        shown = Text(f"error: {printable(str(error), limit=2000)}", style="red")
        Console(stderr=True).print(shown)
        raise typer.Exit(1) from None
    if head:
        typer.echo(kept.head())
        return
    typer.echo(f"all tables are whole; the log's head is {kept.head()}")
    if kept.digests.key_name is None:
        console.print(Text(f"audit key: {UNCOVERED}"))


@quarantine_app.command()
@takes(Tenant)
def regroup(tenant: Tenant) -> None:
    """Rebuild the review cases of all namespaces from the findings of held entries.

    Nothing else changes. It is needed only after another program has written to the database.
    """
    from ragshield_core.tools.review.cases import Cases

    console.print(f"{Cases(tenant.opened()).regroup()} cases")


@quarantine_app.command()
@takes(Tenant)
def seal(tenant: Tenant, *, by: By = "cli") -> None:
    """Start to use the key in RAGSHIELD_AUDIT_KEY, after checking the tables without one."""
    kept = tenant.opened().log
    kept.seal(by=by)
    typer.echo(f"sealed; the log's head is {kept.head()}")


@quarantine_app.command()
@takes(Tenant)
def rekey(tenant: Tenant, *, by: By = "cli") -> None:
    """Replace the audit key of all namespaces by the one in RAGSHIELD_NEW_AUDIT_KEY.

    The tables are checked first, with the key in RAGSHIELD_AUDIT_KEY or without one.
    """
    from ragshield_core.quarantine.digests import KEY_VARIABLE, NEW_KEY_VARIABLE

    new = os.environ.get(NEW_KEY_VARIABLE)
    if not new:
        msg = f"there is no new key; set {NEW_KEY_VARIABLE}: openssl rand -hex 32."
        raise ConfigurationError(msg)
    kept = tenant.opened().log
    kept.rekey(new, by=by)
    typer.echo(
        f"the key is another one now, set {KEY_VARIABLE} to it; the log's head is {kept.head()}"
    )


def _decide(action: Action, chosen: Chosen, quarantine: Quarantine, live: Any = None) -> int:
    """Carry a decision out, in a live store if there is one; return the number of entries."""
    from rich.progress import Progress

    from ragshield_core.tools.review.desk import Desk

    whole = _whole(quarantine, chosen, action)
    if whole is None:
        decide = getattr(quarantine if live is None else live, action)
        return len(decide(chosen.ids, by=chosen.by, note=chosen.note))
    case, last = whole
    steps = Desk(quarantine, live).decide_case(
        action, case.number, by=chosen.by, note=chosen.note, last=last, n_seen=case.n_members
    )
    n_done, total = 0, _total(case, action)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(str(action), total=total)
        try:
            for outcome in steps:
                n_done += outcome.n_done
                bar.update(task, completed=n_done)
        except (RAGShieldError, KeyboardInterrupt) as error:
            if n_done:
                rest = "the others are unchanged, and the same command continues with them"
                bar.console.print(f"{action}: {n_done} of {total} entries; {rest}")
            if isinstance(error, KeyboardInterrupt):
                raise typer.Exit(INTERRUPTED) from None
            raise
    return n_done


def _total(case: Case, action: Action | None) -> int:
    """Return the number of entries of a case that a decision covers; ``None`` deletes all."""
    if action is None:
        return case.n_members
    return case.n_released + case.n_confirmed if action is Action.REOPEN else case.n_waiting


def _whole(
    quarantine: Quarantine, chosen: Chosen, action: Action | None
) -> tuple[Case, int] | None:
    """Return the chosen case and its last entry's number; ``None`` if ids are chosen.

    An action of ``None`` deletes the whole case.

    Raises
    ------
    QuarantineError
        If neither or both are chosen, the case has become a part of another one, or nobody agrees.
    """
    from ragshield_core.tools.review.cases import Cases

    number = chosen.case
    if bool(chosen.ids) == (number is not None):
        msg = "nothing was done: name ids of entries, or a whole case by --case, and not both."
        raise QuarantineError(msg)
    if number is None:
        return None
    last = Cases(quarantine).newest(number)
    case = Cases(quarantine).show(number)
    if case.number != number:
        msg = (
            f"nothing was done: case {number} is a part of case {case.number} by now, which has "
            f"{case.n_members} entries; look at it (list --case), and name that."
        )
        raise QuarantineError(msg)
    verb = action or "delete for good"
    question = (
        f"{verb} {_total(case, action)} entries of case {number}, found by {_found_by(case)}?"
    )
    if not chosen.yes and not _agreed(question):
        msg = "nothing was done: nobody has agreed; --yes does."
        raise QuarantineError(msg)
    return case, last


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort:  # no terminal to ask at
        return False


def _print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    offset: int = 0,
    count: int = 0,
) -> None:
    """Print a table that keeps ids whole, and the number of rows after it, out of ``count``."""
    from rich.table import Table

    table = Table(title=title)
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    for place, column in enumerate(columns):
        width = None
        if column == "entry":
            longest = max((row[place].cell_len for row in cells), default=0)
            width = min(max(longest, len(column)), max(WHOLE_ID, console.width // 3))
        table.add_column(column, overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    shown = offset + len(table.rows)
    if count > shown:
        table.caption = f"and {count - shown} more: --limit, or --offset {shown}"
    console.print(table)


def summary_of(held: HeldEntry) -> dict[str, Any]:
    """Return an entry as JSON-ready values, without its text and metadata."""
    from ragshield_core.model.findings import finding_to_dict

    return {
        "entry_id": held.id,
        "status": str(held.status),
        "store": held.store,
        "label": held.entry.label,
        "lineage": held.entry.lineage,
        "revision": held.entry.fingerprint,
        "held_at": held.held_at.isoformat(),
        "held_by": held.held_by,
        "reviewed_at": None if held.reviewed_at is None else held.reviewed_at.isoformat(),
        "reviewed_by": held.reviewed_by,
        "note": held.note,
        "findings": [finding_to_dict(finding) for finding in held.findings],
    }


def print_json(values: list[dict[str, Any]] | Mapping[str, Any]) -> None:
    """Print values for programs."""
    typer.echo(json.dumps(values, indent=2))  # escapes controls and all else outside ASCII


def _store(name: str | None) -> str:
    return "(any)" if name is None else name or "(unnamed)"


def _case_summary(case: Case) -> dict[str, Any]:
    """Return a case as JSON-ready values."""
    times = {"opened_at": case.opened_at.isoformat(), "latest_at": case.latest_at.isoformat()}
    return asdict(case) | times | {"detectors": list(case.detectors)}


def _found_by(case: Case) -> str:
    return printable(", ".join(case.detectors) or "a person", BEGINNING)


def _why_and_since(held: HeldEntry) -> str:
    label = f", label {held.entry.label}" if held.entry.label else ""
    since = f"{held.held_at:{MINUTE}} by {held.held_by}"
    return f"{_why(held)} (held {since}, store {_store(held.store)}{label})"


def _why(held: HeldEntry) -> str:
    reasons = [finding.evidence for finding in held.findings]
    return "; ".join(reasons + ([held.note] if held.note else [])) or "held by hand"
