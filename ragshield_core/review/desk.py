"""What people decide of held entries: in force at once for all who read or write the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ragshield_core.entries import Batch
from ragshield_core.errors import QuarantineError
from ragshield_core.findings import Decision, Verdict
from ragshield_core.guard import Guard
from ragshield_core.quarantine import Case, HeldEntry, Quarantine, Status

# Entries that are decided upon in one transaction: a case may have a million.
AT_ONCE = 500


class Action(StrEnum):
    """What can be decided of an entry that waits."""

    RELEASE = "release"
    CONFIRM = "confirm"
    KEEP = "keep"


class LiveStore(Protocol):
    """A guarded store, of either framework, into which entries are released."""

    @property
    def guard(self) -> Guard:
        """Its guard."""
        ...

    @property
    def quarantine(self) -> Quarantine:
        """What is held for it."""
        ...

    def release(self, ids: Sequence[str], *, by: str, note: str | None = None) -> object:
        """Put held entries into the store."""
        ...

    def recall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        *,
        by: str,
        note: str | None = None,
    ) -> object:
        """Take entries out of the store and into quarantine."""
        ...

    def standing(self, ids: Sequence[str]) -> Batch:
        """Return entries as the store has them."""
        ...


class ConflictError(Exception):
    """Somebody else has decided meanwhile, and nothing was done; ``entries`` are as they are."""

    def __init__(self, entries: Sequence[HeldEntry], missing: int) -> None:
        super().__init__("somebody else has decided meanwhile")
        self.entries, self.missing = tuple(entries), missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a decision has done.

    Attributes
    ----------
    action
        What was decided.
    n_done
        Entries that it holds for now.
    n_proposed
        Entries of which a second person has to agree first.
    lines
        The first and the last line of the log that tell of it, for :meth:`Desk.undo`.
    """

    action: Action
    n_done: int
    n_proposed: int = 0
    lines: tuple[int, int] = (0, 0)


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
        self, quarantine: Quarantine, store: LiveStore | None = None, *, two_persons: bool = False
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
        found = self.quarantine.cases.entries(numbers)
        late = [one for one in found.values() if one.status is not Status.HELD]
        missing = len(set(numbers)) - len(found)
        if late or missing:
            raise ConflictError(late, missing)
        return self._decide(action, list(found.values()), by, note)

    def decide_all(self, action: Action, case: Case, *, by: str, note: str | None) -> Outcome:
        """Decide of all entries of a case that wait, some hundred at a time."""
        before, done, proposed = self.quarantine.position(), 0, 0
        while True:
            # Those that were kept, or proposed, wait still.
            offset = 0 if action is not Action.KEEP and not proposed else done + proposed
            held = self.quarantine.cases.members(
                case.number, status=Status.HELD, limit=AT_ONCE, offset=offset
            )
            if not held:
                return Outcome(
                    action=action,
                    n_done=done,
                    n_proposed=proposed,
                    lines=(before + 1, self.quarantine.position()),
                )
            outcome = self._decide(action, held, by, note)
            done, proposed = done + outcome.n_done, proposed + outcome.n_proposed

    def undo(self, lines: tuple[int, int], *, by: str) -> int:
        """Take back what somebody has released or confirmed; return of how many entries.

        What others have decided since stays as they have decided it.

        Parameters
        ----------
        lines
            Of the log, as an :class:`Outcome` has them.
        by
            Who decided, and takes it back.

        Raises
        ------
        QuarantineError
            If nothing of it can be taken back any more.
        """
        latest: dict[str, str] = {}
        for line in self.quarantine.log(since=lines[0] - 1):
            mine = line.seq <= lines[1] and line.actor == by
            if mine and line.action in (Action.RELEASE, Action.CONFIRM):
                latest[line.entry_id] = line.action
            elif line.entry_id in latest and line.action in UNDOING:
                del latest[line.entry_id]
        if not latest:
            msg = "there is nothing to take back: it was taken back, or decided anew, since."
            raise QuarantineError(msg)
        note = "taken back"
        released = [i for i, action in latest.items() if action == Action.RELEASE]
        held = [one for one in self.quarantine.list(None, ids=list(latest)) if one.decided]
        because: dict[str, Decision] = {}
        for quarantine, ids in self._by_store(list(latest), held):
            for one in quarantine.reopen(ids, by=by, note=note):
                because[one.id] = Decision(
                    entry_id=one.id, verdict=Verdict.QUARANTINE, findings=one.findings
                )
        if self.store is not None and released:
            # Hidden from readers since it was reopened; here it leaves the store as well.
            self.store.recall(released, [because[i] for i in released], by=by, note=note)
        return len(latest)

    # Inside

    def _decide(
        self, action: Action, held: Sequence[HeldEntry], by: str, note: str | None
    ) -> Outcome:
        before = self.quarantine.position()
        ids = [one.id for one in held]
        proposed: list[str] = []
        if action is Action.RELEASE and self.two_persons:
            agreed = self.quarantine.proposed(ids)
            proposed = [
                i
                for i in ids
                if i not in agreed or agreed[i].actor == by or agreed[i].action != "would release"
            ]
            ids = [i for i in ids if i not in set(proposed)]
        for quarantine, some in self._by_store(proposed, held):
            quarantine.propose(some, Action.RELEASE, by=by, note=note)
        for quarantine, some in self._by_store(ids, held):
            if action is Action.KEEP:
                quarantine.keep(some, by=by, note=note)
            elif action is Action.CONFIRM:
                quarantine.confirm(some, by=by, note=note)
            elif self.store is not None:
                self.store.release(some, by=by, note=note)
            else:
                quarantine.release(some, by=by, note=note)
        lines = (before + 1, self.quarantine.position())
        return Outcome(action=action, n_done=len(ids), n_proposed=len(proposed), lines=lines)

    def _by_store(
        self, ids: Sequence[str], held: Sequence[HeldEntry] = ()
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


# Lines of the log after which a decision is not that of before any more.
UNDOING = frozenset({"reopen", "hold", "purge", "release", "confirm", "supersede", "readmit"})
