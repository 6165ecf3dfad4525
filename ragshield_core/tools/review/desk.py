"""Decisions of reviewers: in force at once for all who read or write the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ragshield_core.database import chunks
from ragshield_core.database.tables import ANY_STORE, HeldRow, LogRow
from ragshield_core.model.errors import QuarantineError, RAGShieldError
from ragshield_core.model.findings import Decision, Verdict, printable
from ragshield_core.quarantine import HeldEntry, LogRecord, Quarantine, Status
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.entries import SHOWN_ID
from ragshield_core.quarantine.evidence import last_lines_of
from ragshield_core.quarantine.log import record_of
from ragshield_core.quarantine.rows import check_one_store, revisions, seen_by
from ragshield_core.tools.review.cases import Case, Cases, Place

if TYPE_CHECKING:
    from ragshield_core.store.guarded import Guarded

# Entries that are decided upon in one transaction: a case may have a million, and whoever waits for
# a request, or for a write of theirs, shall not wait for long.
AT_ONCE = 200


class Action(StrEnum):
    """A decision about held entries, or about decided ones, to let them wait again.

    As the log calls it.
    """

    RELEASE = "release"
    CONFIRM = "confirm"
    KEEP = "keep"
    REOPEN = "reopen"
    UNDO = "undo"  # reopen what one decision of the same person has decided

    @property
    def of(self) -> tuple[Status, ...]:
        """Statuses of the entries that it applies to."""
        if self is Action.REOPEN:
            return Status.RELEASED, Status.CONFIRMED
        return (Status.HELD,)


class ConflictError(Exception):
    """Somebody else has decided meanwhile, and nothing was done; ``entries`` are as they are."""

    def __init__(self, entries: Sequence[HeldEntry], missing: int) -> None:
        super().__init__("somebody else has decided meanwhile")
        self.entries, self.missing = tuple(entries), missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a decision, so far: what is left is carried out by :meth:`Desk.go_on`.

    Attributes
    ----------
    action
        What was decided.
    n_done
        Entries that it holds for now.
    n_proposed
        Entries of which a second person has to agree first.
    lines
        The first and the last line of the log that tell of it, to take it back; or, of
        :attr:`Action.UNDO`, those of the decision that is taken back.
    case
        Number of the case that is decided of as a whole; ``None`` for none.
    n_members, total, last
        Of the case when it was decided: entries, those among them that it is of, and the number of
        the one that came last. What comes later is not of it: nobody has seen that. Of
        :attr:`Action.UNDO`, ``total`` and ``last`` are of lines of the log.
    at
        Number of the last entry, or line, that was dealt with.
    """

    action: Action
    n_done: int = 0
    n_proposed: int = 0
    lines: tuple[int, int] = (0, 0)
    case: int | None = None
    n_members: int = 0
    total: int = 0
    last: int = 0
    at: int = 0

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.at >= self.last


# Actions in the log: a proposal to release, and that entries stay held.
WOULD_RELEASE, KEEP = "would release", "keep"


class Desk:
    """Carries out what reviewers decide.

    Parameters
    ----------
    quarantine
        Its namespace and store are what can be decided upon.
    store
        The guarded store into which entries are released; ``None`` where there is none at hand:
        they are admitted when they are ingested again.
    two_persons
        Whether a release needs a second person: the first one proposes it.
    """

    def __init__(
        self, quarantine: Quarantine, store: Guarded | None = None, *, two_persons: bool = False
    ) -> None:
        self.quarantine, self.store, self.two_persons = quarantine, store, two_persons

    def decide(
        self, action: Action, numbers: Sequence[int], *, by: str, note: str | None
    ) -> Outcome:
        """Decide of entries by their numbers.

        Raises
        ------
        ConflictError
            If one of them waits no longer; nothing is done then.
        RAGShieldError
            If the store or the database refuses; what it says tells what was done.
        """
        found = Cases(self.quarantine).entries(numbers)
        late = [one for one in found.values() if one.status not in action.of]
        missing = len(set(numbers)) - len(found)
        if late or missing:
            raise ConflictError(late, missing)
        return self._decide(action, list(found.values()), by, note)

    def decide_seen(
        self, action: Action, number: int, last: int, *, by: str, note: str | None
    ) -> Outcome | None:
        """Decide of a small case by its title; ``None`` if it is large, or not what was seen.

        Confirmed are only the entries that the title speaks against.

        Parameters
        ----------
        action, number
            What, and of which case.
        last
            Number of the last entry that was here when its title was shown.
        by, note
            Who decides, and why.
        """
        from ragshield_core.tools.review.quarantine_report import heading  # noqa: PLC0415 - of the audit

        cases = Cases(self.quarantine)
        try:
            case = cases.show(number)
        except QuarantineError:
            return None  # it is gone
        if case.number != number or case.n_waiting > AT_ONCE:
            return None
        held = [one for one in cases.members(number, limit=AT_ONCE) if one.number <= last]
        held = [one for one in held if one.status in action.of]
        if action is Action.CONFIRM:
            head = heading(case, cases.firsts([case]).get(number))
            held = [one for one in held if head.convicts(one)]
        return self._decide(action, held, by, note) if held else None

    def begin(self, action: Action, case: Case, *, last: int | None = None) -> Outcome:
        """Return a decision of a whole case, of which nothing is carried out; see :meth:`go_on`.

        Parameters
        ----------
        action, case
            What, and of which, as somebody has looked at it.
        last
            Number of the entry that was its last one then; ``None`` for that of now.
        """
        cases = Cases(self.quarantine)
        case, newest = cases.show(case.number), cases.newest(case.number)
        last = newest if last is None else min(last, newest)
        later = cases.later(case.number, last)
        counts = {
            Status.HELD: case.n_waiting,
            Status.RELEASED: case.n_released,
            Status.CONFIRMED: case.n_confirmed,
        }
        return Outcome(
            action=action,
            case=case.number,
            n_members=case.n_members - sum(later.values()),
            total=sum(counts[status] - later.get(status, 0) for status in action.of),
            last=last,
        )

    @staticmethod
    def undo(lines: tuple[int, int]) -> Outcome:
        """Return how a decision is taken back, of which nothing is carried out; see :meth:`go_on`.

        Later decisions of others stand.

        Parameters
        ----------
        lines
            Of the log, that tell of the decision: the first and the last one.
        """
        first, last = lines
        return Outcome(
            action=Action.UNDO, lines=lines, total=last - first + 1, last=last, at=first - 1
        )

    def go_on(
        self, outcome: Outcome, *, by: str, note: str | None = None, seconds: float | None = None
    ) -> Outcome:
        """Carry a decision on, some hundred entries at a time; return how far it has come.

        Whoever is cut off loses nothing: each some hundred are decided of, and logged, together,
        and what is left is as it was.

        Parameters
        ----------
        outcome
            As it has come so far.
        by, note
            Who decides, and why.
        seconds
            After which it is enough for now; ``None`` for the end.

        Raises
        ------
        QuarantineError
            If the case is not what somebody has looked at any more: a part of another one, or
            others have become a part of it; and if the database refuses. Nothing is done then.
        RAGShieldError
            If the store refuses.
        """
        begun, before = time.monotonic(), outcome
        while not outcome.finished:
            try:
                if outcome.action is Action.UNDO:
                    outcome = self._take_back(outcome, by)
                else:
                    outcome = self._go_on(outcome, by, note)
            except RAGShieldError:
                if outcome is before:
                    raise
                break  # what was done is told first, and the error when somebody goes on
            some = outcome.n_done + outcome.n_proposed > 0
            if seconds is not None and some and time.monotonic() - begun >= seconds:
                break
        return outcome

    def reason(self, outcome: Outcome, *, by: str) -> str | None:
        """Return why a whole case is decided of, as the log has it from the beginning on."""
        first, last = outcome.lines
        lines = self.quarantine.log.lines(since=first - 1, until=last, limit=AT_ONCE)
        actions = (outcome.action, WOULD_RELEASE)
        mine = (line.note for line in lines if line.actor == by and line.action in actions)
        return next(mine, None)

    # Inside

    def _take_back(self, undone: Outcome, by: str) -> Outcome:
        """Let entries of some hundred lines wait again, as far as that decision is the last one."""
        first, last = undone.lines
        lines = self.quarantine.log.lines(since=undone.at, until=last, limit=AT_ONCE)
        ids = [one.entry_id for one in lines if one.actor == by and one.action in DECIDING]
        latest = last_decided(self.quarantine, list(dict.fromkeys(ids)))
        mine = {
            i: told.line.action
            for i, told in latest.items()
            if told.line.actor == by
            and told.line.action in DECIDING
            and first <= told.line.seq <= last
        }
        self._reopen(mine, list(latest.values()), by, "taken back")
        at = lines[-1].seq if len(lines) == AT_ONCE else last
        return replace(undone, at=at, n_done=undone.n_done + len(mine))

    def _go_on(self, whole: Outcome, by: str, note: str | None) -> Outcome:
        """Carry the decision of a case on by one step."""
        cases = Cases(self.quarantine)
        number = self._same_case(cases, whole)

        def following() -> tuple[Place, ...]:
            return cases.places(number, after=whole.at, until=whole.last, limit=AT_ONCE)

        places = following()
        waiting = [one for one in places if one.status in whole.action.of]
        if whole.action is Action.REOPEN:  # not where another revision waits under the id
            held = self.quarantine.held_ids([one.id for one in waiting])
            waiting = [one for one in waiting if one.id not in held]
        # The last entries of a case may be gone: there is nothing behind those that are.
        at = places[-1].number if len(places) == AT_ONCE else whole.last
        if not waiting:
            return replace(whole, at=at)
        try:
            outcome = self._decide(whole.action, waiting, by, note)
        except QuarantineError:
            if following() == places:
                raise
            return whole  # somebody else has decided of one just now; what is left is looked up
        return replace(
            whole,
            at=at,
            n_done=whole.n_done + outcome.n_done,
            n_proposed=whole.n_proposed + outcome.n_proposed,
            lines=(whole.lines[0] or outcome.lines[0], outcome.lines[1]),
        )

    @staticmethod
    def _same_case(cases: Cases, whole: Outcome) -> int:
        """Return the number of a case, unless it has entries that nobody has looked at."""
        assert whole.case is not None  # noqa: S101 - one is decided of
        case = cases.show(whole.case)
        later = sum(cases.later(whole.case, whole.last).values())
        if case.number == whole.case and case.n_members - later <= whole.n_members:
            return case.number
        what = f"case {whole.case} is a part of case {case.number} by now"
        if case.number == whole.case:
            what = f"entries of other cases have become a part of case {whole.case}"
        msg = f"{what}, which nobody has looked at as it is: look at it, and decide of the rest."
        raise QuarantineError(msg)

    def _reopen(
        self,
        ids: Mapping[str, str],
        held: Sequence[HeldEntry | Place | Told],
        by: str,
        note: str | None,
    ) -> None:
        """Let entries wait again, by their ids, each with what was decided of it."""
        if not ids:
            return
        because: dict[str, Decision] = {}
        for quarantine, some in self._by_store(list(ids), held):
            for one in quarantine.reopen(some, by=by, note=note):
                because[one.id] = Decision(
                    entry_id=one.id, verdict=Verdict.QUARANTINE, findings=one.findings
                )
        released = [i for i, action in ids.items() if action == Action.RELEASE]
        if self.store is not None and released:
            # Hidden from readers since it was reopened; here it leaves the store as well.
            self.store.recall(released, [because[i] for i in released], by=by, note=note)

    def _decide(
        self, action: Action, held: Sequence[HeldEntry | Place], by: str, note: str | None
    ) -> Outcome:
        before = self.quarantine.log.end()
        ids = [one.id for one in held]
        if action is Action.REOPEN:
            decided = {Status.RELEASED: Action.RELEASE, Status.CONFIRMED: Action.CONFIRM}
            self._reopen({one.id: decided[one.status] for one in held}, held, by, note)
            return self._outcome(action, before, len(ids))
        alone: list[str] = []
        if action is Action.RELEASE and self.two_persons:
            agreed = proposed(self.quarantine, ids)
            alone = [i for i in ids if i not in agreed or agreed[i].actor == by]
            ids = [i for i in ids if i not in set(alone)]
        for quarantine, some in self._by_store(alone, held):
            note_in_log(quarantine, some, WOULD_RELEASE, by=by, why=note)
        for quarantine, some in self._by_store(ids, held):
            if action is Action.KEEP:
                note_in_log(quarantine, some, KEEP, by=by, why=note)
            elif action is Action.CONFIRM:
                quarantine.confirm(some, by=by, note=note)
            elif self.store is not None:
                self.store.release(some, by=by, note=note)
            else:
                quarantine.release(some, by=by, note=note)
        return self._outcome(action, before, len(ids), len(alone))

    def _outcome(self, action: Action, before: int, n_done: int, n_proposed: int = 0) -> Outcome:
        lines = (before + 1, self.quarantine.log.end())
        return Outcome(action=action, n_done=n_done, n_proposed=n_proposed, lines=lines)

    def _by_store(
        self, ids: Sequence[str], held: Sequence[HeldEntry | Place | Told] = ()
    ) -> list[tuple[Quarantine, list[str]]]:
        """Return ids with the quarantine of the store that each is of."""
        if not ids:
            return []
        if self.store is not None or self.quarantine.store is not None:
            return [(self.quarantine, list(ids))]
        store_of = {one.id: one.store for one in held}
        parts: dict[str | None, list[str]] = {}
        for entry_id in ids:
            parts.setdefault(store_of.get(entry_id), []).append(entry_id)
        return [
            (self.quarantine if name is None else self.quarantine.for_store(name), some)
            for name, some in parts.items()
        ]


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Return decisions of the same kind, one after the other, as one."""
    return replace(
        outcomes[0],
        n_done=sum(one.n_done for one in outcomes),
        n_proposed=sum(one.n_proposed for one in outcomes),
        lines=(outcomes[0].lines[0], outcomes[-1].lines[1]),
    )


# Lines of the log that tell of what can be taken back.
DECIDING = frozenset({"release", "confirm"})
# Lines of the log after which a decision is not that of before any more.
UNDOING = DECIDING | {"reopen", "hold", "purge", "supersede", "readmit"}


def note_in_log(
    quarantine: Quarantine, ids: Sequence[str], action: str, *, by: str, why: str | None = None
) -> None:
    """Note in the log what a reviewer says of held entries, which stay held.

    Parameters
    ----------
    quarantine
        Of the entries.
    ids
        Held entries.
    action
        :data:`WOULD_RELEASE` or :data:`KEEP`.
    by, why
        The reviewer, and the reason.

    Raises
    ------
    QuarantineError
        If one of the ids is not held; nothing is noted then.
    """

    def work(session: Session, changes: Changes) -> None:
        found = revisions(session, quarantine, ids, Status.HELD)
        for entry_id in dict.fromkeys(ids):
            if entry_id not in found:
                shown = printable(entry_id, SHOWN_ID)
                msg = f"entry {shown!r} is not held in {quarantine!r}, and nothing was noted."
                raise QuarantineError(msg)
            check_one_store(quarantine, found[entry_id])
            changes.remark(found[entry_id][-1], action)

    quarantine.log.change(work, by=by, note=why)


def proposed(quarantine: Quarantine, ids: Sequence[str]) -> dict[str, LogRecord]:
    """Return the open proposal for each held entry that has one, by id.

    Only if the log vouches for it, and nothing was decided or noted since.
    """
    with quarantine.database.read() as session:
        held = [rows[-1] for rows in revisions(session, quarantine, ids, Status.HELD).values()]
        told = last_lines_of(session, quarantine.log.digests, held)
        return {
            row.entry_id: record_of(told[row.number])
            for row in held
            if row.number in told and told[row.number].action == WOULD_RELEASE
        }


class Told(NamedTuple):
    """A line of the log about an entry, and the store that the entry is of."""

    id: str
    store: str | None
    line: LogRecord


def last_decided(quarantine: Quarantine, ids: Sequence[str]) -> dict[str, Told]:
    """Return the last line of the log with a decision about each entry.

    Of all its revisions, by the index of revisions: quick, however long the log is. Their texts
    are not read.
    """
    store_of: dict[int, str] = {}
    latest: dict[str, Told] = {}
    with quarantine.database.read() as session:
        query = select(HeldRow.number, HeldRow.store).where(*seen_by(quarantine))
        for some in chunks(ids):
            found = session.execute(query.where(HeldRow.entry_id.in_(some)))
            store_of.update((number, store) for number, store in found)
        for part in chunks(list(store_of)):
            last = select(func.max(LogRow.seq))
            last = last.where(LogRow.held_number.in_(part), LogRow.action.in_(UNDOING))
            lines = select(LogRow).where(
                LogRow.seq.in_(last.group_by(LogRow.held_number).scalar_subquery())
            )
            for line in session.scalars(lines):
                store = store_of[line.held_number or 0]  # one of those numbers
                told = Told(line.entry_id, None if store == ANY_STORE else store, record_of(line))
                before = latest.get(told.id)
                if before is None or before.line.seq < told.line.seq:
                    latest[told.id] = told
    return latest
