"""Status of a guard, for its operators: knowledge, calibration and concerns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ragshield_core.calibration.arrivals import Arrivals, Question, Shift, Spent
from ragshield_core.calibration.clean_sample import first_size
from ragshield_core.model.findings import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

SHOWN_NAME = 80  # characters of names
# A rate counts as overspent only if chance would spend as much with at most this probability.
BY_CHANCE = 1e-4
# A guard that holds a smaller share of planted groups hardly sees attacks like PoisonedRAG. On web
# pages about a few topics it estimates .2 to .4 and sees .5 of the attacks.
SEEN = 0.2
# The warning without an audit key; `ragshield quarantine verify` gives the same.
UNCOVERED = (
    "none: who may write to the database can forge what the guard has learned, cases, canaries and "
    "the log; set RAGSHIELD_AUDIT_KEY and run `ragshield quarantine seal`"
)
MINUTE = "%Y-%m-%d %H:%M UTC"


class Intending(NamedTuple):
    """A process with pending events."""

    writer: str
    n_events: int
    silent_for: float | None  # seconds since its last sign of life; None if it is gone
    alive: bool


class Standing(NamedTuple):
    """Position of a guard among the processes that share its knowledge."""

    position: int  # of the last event that it has read
    behind: int  # number of later events
    writers: tuple[Intending, ...]  # writers of the pending events
    calibrated_on: dt.datetime | None  # if the journal still has the event
    snapshot: tuple[int, dt.datetime] | None  # position and time of the latest
    database: str  # without its password
    namespace: str
    sealed: bool  # whether all rows have digests that only holders of a key can make


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorStanding:
    """State of a detector: whether it takes part, or the reason why not."""

    name: str
    why_not: str | None = None
    spent: Spent

    @property
    def in_force(self) -> bool:
        """Whether it takes part."""
        return self.why_not is None


@dataclass(frozen=True, kw_only=True)
class GuardStatus:
    """Status of a guard."""

    n_known: int  # entries of the knowledge base
    calibrated: bool
    calibrated_at: int | None  # size of the knowledge base at calibration; None if not calibrated
    next_at: int | None  # size at the next calibration; None if none will follow
    n_sample: int  # entries that set the thresholds
    vetted: bool  # a person vouches for these entries
    rate: float  # accepted share of clean entries that are ever held or recalled
    # Held and recalled among judged entries since the first calibration: an upper bound of the
    # false-positive rate, because poison counts as well.
    spent: Spent
    by_detector: Mapping[str, Spent]
    by_source: Mapping[str, Spent]
    shifts: tuple[Shift, ...]  # differences between recent entries and the clean sample as a whole
    questions: tuple[Question, ...] = ()  # sources with far more held entries than accepted
    # Spent on sources that a person has decided on and whose question stays closed.
    decided: Spent = field(default_factory=Spent)
    # By detector, the number of its learned entries that it takes for poison, if any.
    doubted: Mapping[str, int] = field(default_factory=dict)
    # By form of attack, the share of its texts that the guard would hold. The texts were made up
    # about the knowledge base, and screened when it was adopted with an embedding model.
    power: Mapping[str, float] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)  # failures of detectors, this process
    unscreened: int = 0  # known entries that were admitted although a detector failed on them
    borrowed: bool = False  # the calibration is that of another guard
    # Of an opened guard: the position of the last event that it has read, the number of later
    # events and of pending ones, and the writers of the pending ones.
    position: int | None = None
    behind: int = 0
    pending: int = 0
    writers: tuple[Intending, ...] = ()
    calibrated_on: dt.datetime | None = None  # if the journal still has the event
    wanted_rate: float | None = None  # if the adopted store was too small for it
    detectors: tuple[DetectorStanding, ...] = ()
    held: int = 0  # entries in quarantine that wait for a reviewer
    contradictions: int = 0  # open alerts about statements that contradict each other
    database: str | None = None  # of an opened guard, without the password
    namespace: str | None = None
    sealed: bool = False  # its rows have digests that only holders of the audit key can make
    snapshot: tuple[int, dt.datetime] | None = None  # position and time of the latest
    # If only the database was read: the position of the snapshot from which calibration, detectors
    # and shifts come.
    as_of: int | None = None
    # Why the database could not be read, or that it was tampered with. The numbers of held, pending
    # and unread events are unknown then, and nothing is written until the database answers again.
    unreachable: str | None = None
    neighbors: str = "memory"  # where detectors find neighbours, in words

    def concerns(self) -> tuple[str, ...]:
        """Return the problems that need attention; empty if there are none."""
        found = []
        if self.unreachable is not None:
            found.append(f"the database cannot be used, and nothing is written: {self.unreachable}")
        if not self.calibrated:
            found.append("not calibrated: the accepted rate is not in force")
        if self.wanted_rate is not None:
            found.append(
                f"{self.rate:.2%} of clean entries are held, not {self.wanted_rate:.2%}: the "
                f"adopted store was too small; adopt it again at {first_size(self.wanted_rate)} "
                "entries"
            )
        found += [
            f"{one.n_events} events are pending of {printable(one.writer, SHOWN_NAME)}, which is "
            "gone: the next write recovers them, or store.recover()"
            for one in self.writers
            if not one.alive
        ]
        found += [f"{name} fails: {why}" for name, why in self.failing.items()]
        if self.unscreened:
            found.append(
                f"{self.unscreened} entries were let in although a detector failed on them: "
                "store.rescreen() judges them again"
            )
        found += [
            f"{name} takes {n} of the entries that it has learned for poison, which makes it "
            "overlook more of it: scan() says which and why; take them out, and fit or adopt anew"
            for name, n in self.doubted.items()
        ]
        if self.power and max(self.power.values()) < SEEN:
            found.append(
                f"this guard hardly sees attacks with this embedding model: {said(self.power)}; "
                "take a model that tells your texts apart, or adopt more entries"
            )
        found += [str(question) for question in self.questions]
        if (beyond := self._beyond_rate()) is not None:
            found.append(beyond)
        found += [f"shift: {shift}" for shift in self.shifts]
        return tuple(found)

    def _beyond_rate(self) -> str | None:
        """Return a message if more entries are held than accepted.

        Sources with an open question, and those that a person has decided on, are left out.
        """
        from scipy.special import bdtrc  # noqa: PLC0415 - keeps `import ragshield_core` quick

        beside = sum(question.n_held for question in self.questions)
        decided = self.decided.held + self.decided.recalled
        out = max(0, self.spent.held + self.spent.recalled - beside - decided)
        elsewhere = sum(one.n_entries for one in self.questions) + self.decided.judged
        judged = max(out, self.spent.judged - elsewhere)
        if not out or bdtrc(out - 1, judged, self.rate) > BY_CHANCE:
            return None
        return (
            f"{out} of {judged} entries were held or recalled, {out / judged:.2%} where "
            f"{self.rate:.2%} of clean ones are accepted"
            + (f" ({beside} more are asked about)" if beside else "")
            + ": an attack, or entries unlike those that thresholds were taken from"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        values = asdict(self)
        for name in ("by_source", "by_detector"):
            values.pop(name)
        values["calibrated_on"] = _iso(self.calibrated_on)
        if self.snapshot is not None:
            position, made_at = self.snapshot
            values["snapshot"] = {"position": position, "made_at": _iso(made_at)}
        values["spent"]["share"] = self.spent.share
        for one, of in zip(values["detectors"], self.detectors, strict=True):
            one["in_force"], one["spent"]["share"] = of.in_force, of.spent.share
        values["questions"] = [one.to_dict() for one in self.questions]
        values["writers"] = [one._asdict() for one in self.writers]
        values["concerns"] = list(self.concerns())
        return values

    def __str__(self) -> str:
        rows = self._rows()
        rows += [(f"detector {name}", f"{state} ({spent})") for name, state, spent in self._table()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table  # noqa: PLC0415 - needed only to show a status
        from rich.text import Text  # noqa: PLC0415

        table = Table(show_header=False)
        for row in self._rows():
            table.add_row(*map(Text, row))  # not markup: names may be hostile
        yield table
        of_detectors = Table("detector", "in force", "held or recalled")
        for name, state, spent in self._table():
            of_detectors.add_row(*map(Text, (name, state, spent)))
        yield of_detectors

    def _rows(self) -> list[tuple[str, str]]:
        """Return the lines of the status, each with its heading."""
        rows = []
        held = f"{self.held} entries wait for a reviewer"
        if self.unreachable is not None:
            held = "unknown: the database cannot be used"
        if self.namespace is not None:
            where = printable(self.namespace, SHOWN_NAME)
            rows.append(("namespace", f"{where!r} in {printable(str(self.database), 200)}"))
            if not self.sealed and self.unreachable is None:
                rows.append(("audit key", UNCOVERED))
        rows += [
            ("known", f"{self.n_known} entries"),
            ("held", held),
            *(
                [("contradictions", f"{self.contradictions} open: ragshield contradictions list")]
                if self.contradictions
                else []
            ),
            ("neighbours", f"from {printable(self.neighbors, 200)}"),
            ("calibration", self._calibration()),
            (
                "budget",
                f"{_share(self.spent)} held or recalled; {self.rate:.2%} of clean ones accepted",
            ),
        ]
        if self.power:
            rows.append(("sees", said(self.power)))
        if self.position is not None:
            behind = "" if self.as_of is not None else f", this process is {self.behind} behind"
            rows.append(("journal", f"at {self.position + self.behind}{behind}"))
            rows.append(("pending", self._pending()))
        if self.snapshot is not None:
            position, made_at = self.snapshot
            rows.append(("snapshot", f"at {position}, of {made_at:{MINUTE}}"))
        rows += [("look at", printable(one, 500)) for one in self.concerns()]
        if self.as_of is not None and self.as_of != self.position:
            rows.append(("", f"calibration and drift as of {self.as_of}, the latest snapshot"))
        return rows

    def _calibration(self) -> str:
        if not self.calibrated:
            text = "not calibrated"
        elif self.borrowed:
            text = "that of another guard, until this one has enough entries of its own"
        else:
            kind = "vetted" if self.vetted else "unvetted"
            text = f"taken at {self.calibrated_at} entries from {self.n_sample} {kind} ones"
            if self.calibrated_on is not None:
                text += f", on {self.calibrated_on:{MINUTE}}"
        return text if self.next_at is None else f"{text}; next at {self.next_at} entries"

    def _pending(self) -> str:
        said = []
        for one in self.writers if self.pending else ():
            life = "gone"
            if one.silent_for is not None:
                how = "alive" if one.alive else "crashed"
                life = f"{how}, last sign of life {one.silent_for:.0f} s ago"
            said.append(f"{one.n_events} of {printable(one.writer, SHOWN_NAME)} ({life})")
        return "; ".join(said) or "nothing"

    def _table(self) -> list[tuple[str, str, str]]:
        return [
            (
                printable(one.name, SHOWN_NAME),
                "in force"
                if one.in_force
                else f"not in force: {printable(one.why_not or '', 500)}",
                _share(one.spent),
            )
            for one in self.detectors
        ]


def since_calibration(
    arrivals: Arrivals, rate: float, names: Iterable[str], why_not: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the fields of a :class:`GuardStatus` that describe arrivals since the calibration.

    ``why_not`` gives the reason why a detector takes no part, also of detectors left out.
    """
    return {
        "rate": rate,
        "spent": arrivals.of(),
        "by_detector": {name: arrivals.of(name) for name in names},
        "by_source": arrivals.of_sources(arrivals.sources),
        "shifts": tuple(arrivals.shifts()),
        "questions": arrivals.questions(rate),
        "decided": arrivals.decided(rate),
        "detectors": tuple(
            DetectorStanding(name=name, why_not=why, spent=arrivals.of(name))
            for name, why in why_not.items()
        ),
    }


def said(power: Mapping[str, float]) -> str:
    """Return in words the held share of each planted attack."""
    return ", ".join(f"{share:.0%} of {form}" for form, share in power.items())


def _share(spent: Spent) -> str:
    return f"{spent.share:.2%} of {spent.judged}"


def _iso(at: dt.datetime | None) -> str | None:
    return None if at is None else at.isoformat()
