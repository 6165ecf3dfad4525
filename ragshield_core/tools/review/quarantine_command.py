"""``ragshield quarantine``: held entries and their cases, looked at and decided upon."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from sqlalchemy import select

from ragshield_core.errors import ConfigurationError, QuarantineError, RAGShieldError
from ragshield_core.findings import finding_to_dict, printable
from ragshield_core.quarantine import (
    DEFAULT_URL,
    HeldEntry,
    Narrowing,
    Quarantine,
    Status,
    metadata_json,
)
from ragshield_core.quarantine.digests import KEY_VARIABLE, NEW_KEY_VARIABLE
from ragshield_core.quarantine.tables import HeldRow
from ragshield_core.settings.objects import modules_here, named_object
from ragshield_core.tools.review.cases import Case, Cases, Order
from ragshield_core.tools.review.desk import AT_ONCE, Action, Desk

LIMIT = 50
# Characters of an id that stay on one line, to be copied: those of a UUID.
WHOLE_ID = 36
# Of a text, as it begins in a table.
BEGINNING = 160
# Seconds between two signs of how far a whole case is decided of.
BETWEEN = 0.5
INTERRUPTED = 130
DATES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]

quarantine_app = typer.Typer(no_args_is_help=True, help="Look at held entries and judge them.")
console = Console()


class Looked(NamedTuple):
    """A case as somebody has looked at it."""

    case: Case
    last: int  # number of the entry that was its last one then


class Which(StrEnum):
    """Cases to show."""

    WAITING = "waiting"  # with entries that wait
    DECIDED = "decided"  # without
    ALL = "all"


def _there(context: typer.Context) -> Quarantine | None:
    """Return the quarantine that a command being typed is about, if it is there."""
    said = context.params
    url = said.get("database") or os.environ.get("RAGSHIELD_DATABASE") or DEFAULT_URL
    quarantine = Quarantine(url, namespace=said.get("namespace") or "default")
    return quarantine if quarantine.exists() else None


def _completed(names: Callable[[Quarantine], Sequence[str]]) -> Any:
    """Return a completion of names for the shell; without a database, it offers none."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        try:
            quarantine = _there(context)
            found = () if quarantine is None else names(quarantine)
        except RAGShieldError:
            return []
        return [name for name in found if name.startswith(incomplete) and name.isprintable()]

    return complete


def _namespaces(quarantine: Quarantine) -> Sequence[str]:
    """Return the namespaces of the database in which anything is or was held."""
    query = select(HeldRow.namespace).distinct().order_by(HeldRow.namespace)
    with quarantine.database.read() as session:
        return session.scalars(query).all()


Database = Annotated[
    str,
    typer.Option("--database", envvar="RAGSHIELD_DATABASE", help="SQLAlchemy URL."),
]
Namespace = Annotated[
    str,
    typer.Option(help="Of the tenant.", autocompletion=_completed(_namespaces)),
]
Store = Annotated[str | None, typer.Option(help="Only what is held for the store of that name.")]
IdsOrCase = Annotated[list[str] | None, typer.Argument(help="Ids of entries; or --case.")]
OfCase = Annotated[int | None, typer.Option("--case", help="The whole case of that number.")]
InCase = Annotated[int | None, typer.Option("--case", help="Only what is in that case.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before a whole case is decided.")]
By = Annotated[str, typer.Option(help="Who decides; kept in the log.")]
Note = Annotated[str | None, typer.Option(help="Why; kept in the log.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Limit = Annotated[int, typer.Option(min=0, help="Rows to show.")]
Offset = Annotated[int, typer.Option(min=0, help="Rows to skip.")]
DetectorName = Annotated[
    str | None,
    typer.Option(
        "--detector",
        help="Only what it has found.",
        autocompletion=_completed(lambda one: Cases(one).detectors()),
    ),
]
Source = Annotated[str | None, typer.Option(help="Only what claims to be of that lineage.")]
Search = Annotated[
    str | None, typer.Option(help="Only what this is in: the id, or the beginning of the text.")
]


@quarantine_app.command("list")
def list_held(  # noqa: PLR0913 - options of a command
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    status: Annotated[Status, typer.Option(help="Only those.")] = Status.HELD,
    detector: DetectorName = None,
    source: Source = None,
    since: Annotated[
        dt.datetime | None, typer.Option(formats=DATES, help="Only what was held since, UTC.")
    ] = None,
    case: InCase = None,
    search: Search = None,
    limit: Limit = LIMIT,
    offset: Offset = 0,
    as_json: AsJson = False,
) -> None:
    """Show what is held, oldest first."""
    quarantine = _opened(database, namespace, store)
    number = None if case is None else Cases(quarantine).show(case).number
    narrowing = Narrowing(detector=detector, source=source, since=since, case=number, search=search)
    found = quarantine.list(status, narrowing=narrowing, limit=limit, offset=offset)
    cases = Cases(quarantine).numbers_of(found)
    if as_json:
        _print_json([_summary(held) | {"case": cases.get(held.number)} for held in found])
        return
    count = quarantine.count(status, narrowing=narrowing)
    columns = ("entry", "case", "store", "label", "since", "by", "why")
    table = _table(f"{count} entries {status}", columns)
    for held in found:
        row = (
            *(held.id, str(cases.get(held.number, "")), _store(held.store)),
            *(held.entry.label or "", _minute(held.held_at), held.held_by, _why(held)),
        )
        table.add_row(*(Text(printable(cell)) for cell in row))
    _tell_rest(table, count, offset, len(found))
    console.print(table)


@quarantine_app.command("cases")
def list_cases(  # noqa: PLR0913 - options of a command
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    status: Annotated[Which, typer.Option(help="Only those.")] = Which.WAITING,
    detector: DetectorName = None,
    source: Source = None,
    search: Search = None,
    order: Annotated[Order, typer.Option(help="Which come first.")] = Order.SEVERITY,
    limit: Limit = LIMIT,
    offset: Offset = 0,
    as_json: AsJson = False,
) -> None:
    """Show what waits in cases: entries that are judged together, one decision each."""
    cases = Cases(_opened(database, namespace, store))
    found, count, offset = cases.page(
        waiting={Which.WAITING: True, Which.DECIDED: False}.get(status),
        detector=detector,
        source=source,
        search=search,
        order=order,
        limit=limit,
        offset=offset,
    )
    if as_json:
        _print_json([_case_summary(case) for case in found])
        return
    begins = cases.beginnings([case.number for case in found])
    columns = ("case", "waiting", "of", "one clean in", "found by", "source", "since", "begins")
    table = _table(f"{count} cases", columns)
    for case in found:
        row = (
            *(str(case.number), str(case.n_waiting), str(case.n_members), _one_in(case)),
            *(", ".join(case.detectors) or "a person", case.source or ""),
            *(_minute(case.opened_at), printable(begins.get(case.number, ""), BEGINNING)),
        )
        table.add_row(*(Text(printable(cell)) for cell in row))
    _tell_rest(table, count, offset, len(found))
    console.print(table)


@quarantine_app.command("show-case")
def show_case(
    number: Annotated[int, typer.Argument(help="Of the case.")],
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    limit: Limit = LIMIT,
    offset: Offset = 0,
    as_json: AsJson = False,
) -> None:
    """Show a case and its entries, those that wait first; `show` has the whole of one entry."""
    cases = Cases(_opened(database, namespace, store))
    case = cases.show(number)
    members = cases.members(case.number, limit=limit, offset=offset)
    if as_json:
        _print_json(_case_summary(case) | {"entries": [_summary(held) for held in members]})
        return
    title = (
        f"case {case.number}: {case.n_waiting} waiting, {case.n_confirmed} confirmed, "
        f"{case.n_released} released; one clean entry in {_one_in(case)}"
    )
    table = _table(title, ("entry", "status", "store", "source", "why", "begins"))
    for held in members:
        row = (
            *(held.id, str(held.status), _store(held.store), held.entry.lineage or ""),
            *(_why(held), printable(held.entry.text, BEGINNING)),
        )
        table.add_row(*(Text(printable(cell)) for cell in row))
    _tell_rest(table, case.n_members, offset, len(members))
    console.print(table)


@quarantine_app.command()
def show(
    entry_id: str,
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show all that is kept of one entry; its text is hostile and shown escaped."""
    quarantine = _opened(database, namespace, store)
    held = quarantine.show(entry_id)
    case = Cases(quarantine).numbers_of([held]).get(held.number)
    if as_json:
        metadata = json.loads(metadata_json.dumps(held.entry.metadata))
        _print_json(_summary(held) | {"case": case, "metadata": metadata, "text": held.entry.text})
        return
    table = Table(show_header=False)
    rows = {
        "entry": held.id,
        "status": str(held.status),
        "case": "" if case is None else str(case),
        "store": _store(held.store),
        "label": held.entry.label or "",
        "lineage": held.entry.lineage or "",
        "metadata": repr(dict(held.entry.metadata)),
        "held": f"{held.held_at:%Y-%m-%d %H:%M:%S} UTC by {held.held_by}",
        "reviewed": f"{held.reviewed_at} by {held.reviewed_by}" if held.reviewed_at else "",
        "why": _why(held),
        "text": held.entry.text,
    }
    for name, value in rows.items():
        table.add_row(name, Text(printable(value, limit=2000)))
    console.print(table)


@quarantine_app.command()
def confirm(
    ids: IdsOrCase = None,
    *,
    case: OfCase = None,
    yes: Yes = False,
    by: By = "cli",
    note: Note = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
) -> None:
    """Judge held entries poisoned; they are kept as evidence."""
    quarantine = _opened(database, namespace, store)
    if (whole := _whole(quarantine, ids, case, "confirm", yes=yes)) is None:
        n_confirmed = len(quarantine.confirm(ids or [], by=by, note=note))
    else:
        n_confirmed = _carried_out(Desk(quarantine), Action.CONFIRM, whole, by, note)
    console.print(f"confirmed {n_confirmed} entries")


@quarantine_app.command()
def release(  # noqa: PLR0913 - options of a command
    ids: IdsOrCase = None,
    *,
    case: OfCase = None,
    yes: Yes = False,
    by: By = "cli",
    note: Note = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
    into: Annotated[
        str | None,
        typer.Option(
            help="module:object of your guarded store, or a factory of one: they are back at once."
        ),
    ] = None,
) -> None:
    """Judge held entries good: from now on the guard admits them when they are ingested again.

    With --into, they are put back into that store, with the vectors that they were held with; what
    is held is that of the store then.
    """
    if into is not None:
        with modules_here():
            live = _live(into)
            kept = _quarantine_of(live)
            if (whole := _whole(kept, ids, case, "release", yes=yes)) is None:
                n_released = len(live.release(ids or [], by=by, note=note))
            else:
                n_released = _carried_out(Desk(kept, live), Action.RELEASE, whole, by, note)
            console.print(f"released {n_released} entries into the store")
            return
    quarantine = _opened(database, namespace, store)
    if (whole := _whole(quarantine, ids, case, "release", yes=yes)) is None:
        n_released = len(quarantine.release(ids or [], by=by, note=note))
    else:
        n_released = _carried_out(Desk(quarantine), Action.RELEASE, whole, by, note)
    console.print(f"released {n_released} entries; the guard admits them at the next ingest")


@quarantine_app.command()
def reopen(
    ids: IdsOrCase = None,
    *,
    case: OfCase = None,
    yes: Yes = False,
    by: By = "cli",
    note: Note = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
) -> None:
    """Take decisions back: what was released or confirmed waits again, with its findings.

    What was released into a store is hidden from all who read it through a guard.
    """
    quarantine = _opened(database, namespace, store)
    if (whole := _whole(quarantine, ids, case, "reopen", yes=yes)) is None:
        n_reopened = len(quarantine.reopen(ids or [], by=by, note=note))
    else:
        n_reopened = _carried_out(Desk(quarantine), Action.REOPEN, whole, by, note)
    console.print(f"reopened {n_reopened} entries; they wait for a decision")


@quarantine_app.command()
def purge(
    ids: IdsOrCase = None,
    *,
    case: OfCase = None,
    yes: Yes = False,
    by: By = "cli",
    note: Note = None,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
    store: Store = None,
) -> None:
    """Delete entries from quarantine for good; of a case, the decided ones as well."""
    quarantine = _opened(database, namespace, store)
    if (whole := _whole(quarantine, ids, case, "delete for good", yes=yes)) is None:
        deleted = quarantine.purge(ids or [], by=by, note=note)
    else:
        deleted = 0
        for name, some in _by_store(quarantine, whole).items():
            one = quarantine if name is None else quarantine.for_store(name)
            for start in range(0, len(some), AT_ONCE):
                deleted += one.purge(some[start : start + AT_ONCE], by=by, note=note)
    console.print(f"deleted {deleted} revisions")


@quarantine_app.command()
def log(
    *, database: Database = DEFAULT_URL, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Show who did what, after checking that the log was not tampered with."""
    quarantine = _opened(database, namespace)
    quarantine.log.verify_lines()
    if as_json:
        _print_json([asdict(line) | {"at": line.at.isoformat()} for line in quarantine.log.lines()])
        return
    columns = ("line", "when", "what", "entry", "revision", "who", "note")
    table = _table("audit log, verified", columns)
    for line in quarantine.log.lines():
        row = (
            *(str(line.seq), f"{line.at:%Y-%m-%d %H:%M:%S}", line.action, line.entry_id),
            *(line.fingerprint, line.actor, line.note or ""),
        )
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


@quarantine_app.command()
def verify(
    *,
    database: Database = DEFAULT_URL,
    namespace: Namespace = "default",
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
    """Check that log and entries are as they were written; exit code 1 names what is not.

    Those of all namespaces: they have one log. Of others than the given one, no entry is named.
    With the key of RAGSHIELD_AUDIT_KEY, if they were written with one.
    """
    quarantine = _opened(database, namespace)
    try:
        quarantine.log.verify(anchor, by=by)
    except QuarantineError as error:
        _say_broken(str(error))
        raise typer.Exit(1) from None
    told = quarantine.log.head()
    typer.echo(told if head else f"log and entries are whole; the log's head is {told}")


@quarantine_app.command()
def regroup(*, database: Database = DEFAULT_URL, namespace: Namespace = "default") -> None:
    """Tell anew which held entries are judged together, from what was found of them.

    Of all namespaces. Nothing else is changed; needed only where somebody else has written to the
    database.
    """
    count = Cases(_opened(database, namespace)).regroup()
    console.print(f"{count} cases")


@quarantine_app.command()
def seal(
    *, by: By = "cli", database: Database = DEFAULT_URL, namespace: Namespace = "default"
) -> None:
    """Go on with the new key of RAGSHIELD_AUDIT_KEY, after checking what was written without."""
    quarantine = _opened(database, namespace)
    quarantine.log.seal(by=by)
    typer.echo(f"sealed; the log's head is {quarantine.log.head()}")


@quarantine_app.command()
def rekey(
    *, by: By = "cli", database: Database = DEFAULT_URL, namespace: Namespace = "default"
) -> None:
    """Exchange the audit key, of all namespaces, for that of RAGSHIELD_NEW_AUDIT_KEY.

    What was written is checked with the key of RAGSHIELD_AUDIT_KEY before, or without one.
    """
    new = os.environ.get(NEW_KEY_VARIABLE)
    if not new:
        msg = f"there is no new key; set {NEW_KEY_VARIABLE}: openssl rand -hex 32."
        raise ConfigurationError(msg)
    quarantine = _opened(database, namespace)
    quarantine.log.rekey(new, by=by)
    typer.echo(
        f"the key is another one now, set {KEY_VARIABLE} to it; the log's head is "
        f"{quarantine.log.head()}"
    )


def _live(name: str) -> Any:
    """Return the guarded store or pipeline that ``module:object`` names."""
    found = named_object(name)
    if not hasattr(found, "release") or isinstance(found, Quarantine):
        msg = (
            f"{name!r} is a {type(found).__name__}, expected a guarded store or pipeline, which "
            "can release into it."
        )
        raise ConfigurationError(msg)
    return found


def _quarantine_of(live: Any) -> Quarantine:
    """Return the quarantine of a guarded store, or of a pipeline."""
    kept: Quarantine = live.quarantine if hasattr(live, "quarantine") else live.guard.quarantine
    return kept


def _whole(
    quarantine: Quarantine, ids: Sequence[str] | None, number: int | None, what: str, *, yes: bool
) -> Looked | None:
    """Return the case that is to be decided as a whole, once somebody agrees; none if ids are.

    Raises
    ------
    QuarantineError
        If neither or both are named, the case is a part of another one by now, or nobody agrees.
    """
    if bool(ids) == (number is not None):
        msg = "nothing was done: name ids of entries, or a whole case by --case, and not both."
        raise QuarantineError(msg)
    if number is None:
        return None
    case, last = Cases(quarantine).show(number), Cases(quarantine).newest(number)
    if case.number != number:
        msg = (
            f"nothing was done: case {number} is a part of case {case.number} by now, which has "
            f"{case.n_members} entries; look at it (show-case), and name that."
        )
        raise QuarantineError(msg)
    counts = {
        "delete for good": case.n_members,
        "reopen": case.n_released + case.n_confirmed,
    }
    count = counts.get(what, case.n_waiting)
    found_by = printable(", ".join(case.detectors) or "a person", BEGINNING)
    if not yes and not _agreed(f"{what} {count} entries of case {number}, found by {found_by}?"):
        msg = "nothing was done: nobody has agreed; --yes does."
        raise QuarantineError(msg)
    return Looked(case, last)


def _carried_out(desk: Desk, action: Action, looked: Looked, by: str, note: str | None) -> int:
    """Decide of a whole case, and show how far that is; return of how many entries."""
    whole = desk.begin(action, looked.case, last=looked.last)
    done = 0
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(str(action), total=whole.total)
        try:
            while not whole.finished:
                whole = desk.go_on(whole, by=by, note=note, seconds=BETWEEN)
                done = whole.n_done
                bar.update(task, completed=done)
        except (RAGShieldError, KeyboardInterrupt) as error:
            if done:
                rest = "what is left is as it was, and the same command goes on with it"
                bar.console.print(f"{action}: {done} of {whole.total} entries; {rest}")
            if isinstance(error, KeyboardInterrupt):
                raise typer.Exit(INTERRUPTED) from None
            raise
    return done


def _agreed(question: str) -> bool:
    try:
        return typer.confirm(question)
    except typer.Abort:  # nobody there to ask
        return False


def _by_store(quarantine: Quarantine, looked: Looked) -> dict[str | None, list[str]]:
    """Return the ids of a case's entries, by the store that they are of."""
    ids: dict[str | None, list[str]] = {}
    at = 0
    while places := Cases(quarantine).places(
        looked.case.number, after=at, until=looked.last, limit=AT_ONCE
    ):
        for one in places:
            ids.setdefault(one.store, []).append(one.id)
        at = places[-1].number
    return ids


def _opened(database: str, namespace: str, store: str | None = None) -> Quarantine:
    """Return a quarantine that is there: a mistyped name must not look like an empty one."""
    quarantine = Quarantine(database, namespace=namespace, store=store)
    if not quarantine.exists():
        msg = f"{quarantine!r} does not exist: nothing was ever held there, or --database is wrong."
        raise QuarantineError(msg)
    return quarantine


def _table(title: str, columns: tuple[str, ...]) -> Table:
    """Return a table that keeps ids whole, on a narrow terminal as well."""
    table = Table(title=title)
    for column in columns:
        width = WHOLE_ID if column == "entry" else None
        table.add_column(column, overflow="fold", min_width=width)
    return table


def _summary(held: HeldEntry) -> dict[str, Any]:
    """Return an entry as JSON-ready values, without its text and metadata."""
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


def _print_json(values: list[dict[str, Any]] | Mapping[str, Any]) -> None:
    """Print values; what is not ASCII, control characters among it, is escaped."""
    typer.echo(json.dumps(values, indent=2))


def _store(name: str | None) -> str:
    return "(any)" if name is None else name or "(unnamed)"


def _case_summary(case: Case) -> dict[str, Any]:
    """Return a case as JSON-ready values."""
    times = {"opened_at": case.opened_at.isoformat(), "latest_at": case.latest_at.isoformat()}
    return asdict(case) | times | {"detectors": list(case.detectors)}


def _one_in(case: Case) -> str:
    """Return how many clean entries there are for one that scores as high as the worst."""
    return f"{10.0**case.severity:,.0f}" if case.severity > 0.0 else ""


def _minute(at: dt.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _tell_rest(table: Table, count: int, offset: int, n_shown: int) -> None:
    """Say how many rows there are after those that a table shows."""
    if (more := count - offset - n_shown) > 0:
        table.caption = f"and {more} more: --limit, or --offset {offset + n_shown}"


def _say_broken(message: str) -> None:
    shown = Text(f"error: {printable(message, limit=2000)}", style="red")
    Console(stderr=True).print(shown)


def _why(held: HeldEntry) -> str:
    reasons = [finding.evidence for finding in held.findings]
    return "; ".join(reasons + ([held.note] if held.note else [])) or "held by hand"
