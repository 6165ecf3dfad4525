"""Decisions of reviewers, in force at once for every reader and writer of the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.orm import Session

from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import Decision, Verdict, printable
from ragshield_core.quarantine import HeldEntry, LogRecord, Quarantine, Status
from ragshield_core.quarantine.changes import Changes
from ragshield_core.quarantine.entries import SHOWN_ID
from ragshield_core.quarantine.evidence import last_lines_of
from ragshield_core.quarantine.log import record_of
from ragshield_core.quarantine.rows import check_one_store, revisions
from ragshield_core.tools.review.cases import CaseMember, Cases
from ragshield_core.tools.review.choices import Action
from ragshield_core.tools.review.quarantine_report import heading

if TYPE_CHECKING:
    from ragshield_core.store.guarded import Guarded

# Entries of one transaction of a decision: a case may have a million, and a long transaction would
# block the reviewer's request and other writers.
AT_ONCE = 200
# Actions in the log: a proposal to release entries, and a decision to keep them held.
WOULD_RELEASE, KEEP = "would release", "keep"


DECIDED = {Action.RELEASE: Status.RELEASED, Action.CONFIRM: Status.CONFIRMED}


class ConflictError(Exception):
    """Somebody else decided meanwhile, so nothing was done; ``entries`` have their new status."""

    def __init__(self, entries: Sequence[HeldEntry], missing: int) -> None:
        super().__init__("somebody else has decided meanwhile")
        self.entries, self.missing = tuple(entries), missing


class Decided(NamedTuple):
    """Outcome of a decision about some entries."""

    n_done: int
    n_proposed: int  # these wait for a second person
    lines: tuple[int, int]  # the first and the last line of the log about it


class Desk:
    """Carries out reviewers' decisions on entries of a quarantine's namespace and store.

    Released entries go into the guarded ``store``; without one, the guard admits them when they are
    ingested again. With ``two_persons``, one person proposes a release and another one agrees.
    """

    def __init__(
        self, quarantine: Quarantine, store: Guarded | None = None, *, two_persons: bool = False
    ) -> None:
        self.quarantine, self.store, self.two_persons = quarantine, store, two_persons

    def decide(
        self, action: Action, numbers: Sequence[int], *, by: str, note: str | None
    ) -> Decided:
        """Decide on entries by their numbers.

        Raises
        ------
        ConflictError
            If one of them waits no longer; nothing is done then.
        RAGShieldError
            If the store or the database refuses; the message tells what was done.
        """
        found = Cases(self.quarantine).entries(numbers)
        late = [one for one in found.values() if one.status not in action.of]
        missing = len(set(numbers)) - len(found)
        if late or missing:
            raise ConflictError(late, missing)
        return self._decide(action, list(found.values()), by, note)

    def decide_seen(
        self, action: Action, number: int, last: int, *, by: str, note: str | None
    ) -> Decided | None:
        """Decide on a small case by its title; return ``None`` if it is large or has changed.

        The decision covers entries up to number ``last``, the latest one when the case was shown.
        It confirms only the entries that the title convicts.
        """
        cases = Cases(self.quarantine)
        try:
            case = cases.show(number)
        except QuarantineError:
            return None  # it is gone
        if case.number != number or case.n_waiting > AT_ONCE:
            return None
        head = heading(case, cases.firsts([case]).get(number))
        held = [
            one
            for one in cases.members(number, limit=AT_ONCE)
            if one.number <= last and one.status in action.of
            if action is not Action.CONFIRM or head.convicts(one)
        ]
        return self._decide(action, held, by, note) if held else None

    def decide_case(
        self,
        action: Action,
        number: int,
        *,
        by: str,
        note: str | None,
        last: int | None = None,
        n_seen: int | None = None,
    ) -> Iterator[Decided]:
        """Decide on a whole case; yield an outcome for each batch of up to 200 entries.

        Each batch is decided and logged in one transaction. If the caller stops or crashes, the
        remaining entries are unchanged, and the same decision continues with them.

        ``last`` and ``n_seen`` describe the case that the reviewer saw: its highest number and its
        count of entries. ``None``, the default, takes the case as it is now.

        Raises
        ------
        QuarantineError
            If the case joins another one or another one joins it, or if the database refuses.
        RAGShieldError
            If the store refuses.
        """
        cases = Cases(self.quarantine)
        newest = cases.newest(number)
        last = newest if last is None else min(last, newest)
        at = 0
        while at < last:
            case = cases.show(number)
            n_now = case.n_members - cases.n_later(number, last)
            n_seen = n_now if n_seen is None else n_seen
            if case.number != number or n_now > n_seen:
                change = f"case {number} is a part of case {case.number} by now"
                if case.number == number:
                    change = f"entries of other cases have become a part of case {number}"
                msg = (
                    f"{change}, which nobody has looked at as it is: look at it, and decide of "
                    "the rest."
                )
                raise QuarantineError(msg)
            places = cases.places(number, after=at, until=last, limit=AT_ONCE)
            some = [one for one in places if one.status in action.of]
            if action is Action.REOPEN:  # skip an id under which another revision waits
                held = self.quarantine.held_ids([one.id for one in some])
                some = [one for one in some if one.id not in held]
            if some:
                try:
                    outcome = self._decide(action, some, by, note)
                except QuarantineError:
                    if cases.places(number, after=at, until=last, limit=AT_ONCE) == places:
                        raise
                    continue  # somebody else has just decided on one of them
                yield outcome
            # The last entries of a case may be gone: a short page is the end of the case.
            at = places[-1].number if len(places) == AT_ONCE else last

    def undo(self, lines: tuple[int, int], *, by: str) -> Iterator[Decided]:
        """Take a decision back; yield an outcome for each batch of up to 200 lines of the log.

        ``lines`` are the first and the last line about the decision; an outcome names the lines
        that are done. Only the decisions of ``by`` are undone; later ones of others stand.
        """
        at, last = lines[0] - 1, lines[1]
        while at < last:
            some = self.quarantine.log.lines(since=at, until=last, limit=AT_ONCE)
            actions = {
                (line.entry_id, line.fingerprint): DECIDED[Action(line.action)]
                for line in some
                if line.actor == by and line.action in DECIDED
            }
            mine = Cases(self.quarantine).as_decided(actions, by=by)
            self._reopen(mine, by, "taken back")
            first, at = at + 1, some[-1].seq if len(some) == AT_ONCE else last
            yield Decided(len(mine), 0, (first, at))

    def _reopen(self, held: Sequence[HeldEntry | CaseMember], by: str, note: str | None) -> None:
        """Let decided entries wait again."""
        because: dict[str, Decision] = {}
        for quarantine, some in self.by_store(held):
            for one in quarantine.reopen(some, by=by, note=note):
                because[one.id] = Decision(
                    entry_id=one.id, verdict=Verdict.QUARANTINE, findings=one.findings
                )
        released = [one.id for one in held if one.status is Status.RELEASED]
        if self.store is not None and released:
            # Readers have not seen it since it was reopened; this also deletes it from the store.
            self.store.recall(released, [because[i] for i in released], by=by, note=note)

    def _decide(
        self, action: Action, held: Sequence[HeldEntry | CaseMember], by: str, note: str | None
    ) -> Decided:
        before, alone = self.quarantine.log.end(), list[HeldEntry | CaseMember]()
        if action is Action.REOPEN:
            self._reopen(held, by, note)
        if action is Action.RELEASE and self.two_persons:
            agreed = proposed(self.quarantine, [one.id for one in held])
            ready = {i for i, line in agreed.items() if line.actor != by}
            alone = [one for one in held if one.id not in ready]
            held = [one for one in held if one.id in ready]
            for quarantine, some in self.by_store(alone):
                note_in_log(quarantine, some, WOULD_RELEASE, by=by, why=note)
        for quarantine, some in self.by_store(held):
            if action is Action.KEEP:
                note_in_log(quarantine, some, KEEP, by=by, why=note)
            elif action is Action.CONFIRM:
                quarantine.confirm(some, by=by, note=note)
            elif action is Action.RELEASE:
                target = quarantine if self.store is None else self.store
                target.release(some, by=by, note=note)
        return Decided(len(held), len(alone), (before + 1, self.quarantine.log.end()))

    def by_store(
        self, held: Sequence[HeldEntry | CaseMember]
    ) -> Iterator[tuple[Quarantine, list[str]]]:
        """Yield ids of entries by store, with the quarantine of that store."""
        parts: dict[str | None, list[str]] = {}
        own = self.store is not None or self.quarantine.store is not None
        for one in held:
            parts.setdefault(None if own else one.store, []).append(one.id)
        for name, some in parts.items():
            yield self.quarantine if name is None else self.quarantine.for_store(name), some


def note_in_log(
    quarantine: Quarantine, ids: Sequence[str], action: str, *, by: str, why: str | None = None
) -> None:
    """Write to the log that a reviewer would release held entries, or keeps them held.

    Raises
    ------
    QuarantineError
        If one of the ids is not held; nothing is written then.
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


def proposed(quarantine: Quarantine, ids: Sequence[str]) -> Mapping[str, LogRecord]:
    """Return the open proposal for each held entry that has one, by id.

    A proposal is open if the digests of the log confirm it and no later line is about its entry.
    """
    with quarantine.database.read() as session:
        held = [rows[-1] for rows in revisions(session, quarantine, ids, Status.HELD).values()]
        told = last_lines_of(session, quarantine.log.digests, held)
        return {
            row.entry_id: record_of(told[row.number])
            for row in held
            if row.number in told and told[row.number].action == WOULD_RELEASE
        }
