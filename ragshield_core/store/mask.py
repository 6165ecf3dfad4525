"""Mask of held revisions and confirmed poison, which reads of a live store leave out."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import InvalidBatchError, QuarantineError
from ragshield_core.quarantine import LET_IN, Print, Quarantine, Status

Item = TypeVar("Item")

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Number of copies of confirmed entries that a search allows for.
PAGE = 1000
NO_VECTOR = np.empty(0, dtype=np.float32)
NONE_HELD: frozenset[str] = frozenset()
# Statuses of revisions that reads may return.
NOT_HIDDEN = frozenset((*LET_IN, Status.REPLACED))

# Seconds until an unreachable database is tried again while reads go on without it.
LOOK_EVERY = 1.0


class Claims(NamedTuple):
    """Text and claims of a revision: all that it consists of, beside its id."""

    text: str
    label: str | None
    lineage: str | None
    context: str | None = None


class Mask(ABC, Generic[Item]):
    """Knows which revisions are held.

    A held revision is hidden under its own id. A revision that was confirmed as poisoned is hidden
    under every id except those under which it was admitted before. Another revision under the same
    id, such as the older one of a rejected update, stays visible.

    A subclass reads the id and the claims of its kind of document. Many threads may read while
    others write.
    """

    def __init__(self) -> None:
        self._held: dict[str, frozenset[str]] = {}  # id -> fingerprints of its held revisions
        self._confirmed: frozenset[str] = frozenset()
        self._confirmed_of: dict[str, frozenset[str]] = {}  # id -> its confirmed ones
        self._let_in: dict[str, frozenset[str]] = {}  # id -> admitted fingerprints
        self._wholes: dict[str, frozenset[str]] = {}  # id -> documents with its held revisions
        self._all_wholes: frozenset[str] = frozenset()  # the union, which every search reads
        self._position = 0  # in the quarantine's log, which was read up to here
        self._watched: Quarantine | None = None
        self._version: tuple[int, ...] = ()  # of its database, at the latest check
        self._fails_open: Callable[[], bool] = lambda: False
        self._blind, self._look_at = False, 0.0  # database is unreachable; time of next try
        self._changing = threading.Lock()  # entries added while a quarantine is read must stay

    def __bool__(self) -> bool:
        return bool(self._held or self._confirmed)

    @abstractmethod
    def id_of(self, item: Item) -> str:
        """Return the id of a document."""

    @abstractmethod
    def claims_of(self, item: Item) -> Claims:
        """Return a document's text and claims; InvalidBatchError if it cannot be an entry."""

    def wholes_of(self, entry: Entry) -> frozenset[str]:  # noqa: ARG002 - for subclasses
        """Return the documents that contain an entry and are served in its place elsewhere.

        Only metadata counts: a quarantine is read without texts and vectors.
        """
        return frozenset()

    def load(self, quarantine: Quarantine) -> None:
        """Load the revisions of a quarantine; a missing SQLite file is not created."""
        with self._changing:
            position, prints = 0, tuple[Print, ...]()
            if quarantine.exists():
                position = quarantine.log.end()
                prints = quarantine.prints(metadata=self._knows_wholes)
            self._take(prints)
            self._position = position

    def refresh(self, quarantine: Quarantine) -> None:
        """Load the changes of a quarantine since the last call."""
        with self._changing:
            if not quarantine.exists():
                return
            position, changed = quarantine.log.changed_since(self._position)
            if changed:
                known = quarantine.prints(ids=list(changed), metadata=self._knows_wholes)
                self._take(known, instead_of=changed)
            self._position = position

    def watch(self, quarantine: Quarantine, fails_open: Callable[[], bool] = lambda: False) -> None:
        """Let :meth:`catch_up` follow the entries that other processes hold and release there.

        ``fails_open`` returns whether reads go on by the last known state if the quarantine cannot
        be read.
        """
        self._watched, self._fails_open = quarantine, fails_open

    def catch_up(self) -> None:
        """Load the changes of the watched quarantine; called before every read of a store.

        If its database is unreachable, reads are refused unless the policy fails open: they could
        return entries that were held or confirmed elsewhere meanwhile.
        """
        if self._watched is None or (self._blind and time.monotonic() < self._look_at):
            return
        try:
            version = self._watched.database.version()
            if version != self._version:
                self.refresh(self._watched)
                self._version = version
        except QuarantineError as error:
            self._cannot_look(error)
        else:
            if self._blind:
                self._blind = False
                logger.warning("reads see the current held entries again")

    def _cannot_look(self, error: QuarantineError) -> None:
        """Go on by the last known state, or refuse reads."""
        if not self._fails_open():
            msg = (
                f"reads are refused, since the held entries are unknown: {error} With "
                "Policy(fail_open=True), reads use the last known ones."
            )
            raise QuarantineError(msg) from error.__cause__
        if not self._blind:
            logger.warning("reads use the last known held entries (fail_open): %s", error)
        self._blind, self._look_at = True, time.monotonic() + LOOK_EVERY

    @property
    def _knows_wholes(self) -> bool:
        """Whether metadata has to be read: most kinds of documents are not parts of others."""
        return type(self).wholes_of is not Mask.wholes_of

    def _take(self, prints: Iterable[Print], instead_of: Collection[str] | None = None) -> None:
        """Replace the known revisions, or only those under some ids."""
        held: dict[str, frozenset[str]] = {}
        wholes: dict[str, frozenset[str]] = {}
        let_in: dict[str, frozenset[str]] = {}
        confirmed: dict[str, frozenset[str]] = {}
        for item in prints:
            i, revision = item.id, frozenset((item.fingerprint,))
            if item.status in LET_IN:
                let_in[i] = let_in.get(i, NONE_HELD) | revision
            if item.status in NOT_HIDDEN:
                continue
            held[i] = held[i] | revision if i in held else revision
            if item.metadata_text is not None and (parts := self.wholes_of(_bare(item))):
                wholes[i] = wholes[i] | parts if i in wholes else parts
            if item.status is Status.CONFIRMED:
                confirmed[i] = confirmed.get(i, NONE_HELD) | revision
        # Reads go on meanwhile: the revisions of one id are replaced at once.
        if instead_of is None:
            self._held, self._wholes, self._let_in = held, wholes, let_in
            self._confirmed_of = confirmed
        else:
            known = (self._let_in, let_in), (self._held, held), (self._wholes, wholes)
            for of_before, of_now in (*known, (self._confirmed_of, confirmed)):
                for i in instead_of:
                    if i in of_now:
                        of_before[i] = of_now[i]
                    else:
                        of_before.pop(i, None)
        self._gather_wholes()
        self._confirmed = frozenset(chain.from_iterable(self._confirmed_of.values()))

    def add(self, entries: Batch) -> None:
        """Hide revisions from now on."""
        with self._changing:
            for entry in entries:
                self._held[entry.id] = self._held.get(entry.id, NONE_HELD) | {entry.fingerprint}
                if wholes := self.wholes_of(entry):
                    self._wholes[entry.id] = self._wholes.get(entry.id, frozenset()) | wholes
                    self._all_wholes |= wholes

    def discard(self, ids: Sequence[str]) -> None:
        """Stop hiding revisions under these ids, except confirmed ones."""
        with self._changing:
            for entry_id in ids:
                self._held.pop(entry_id, None)
                self._wholes.pop(entry_id, None)
            self._gather_wholes()

    def remove(self, entries: Batch) -> list[str]:
        """Stop hiding revisions that were admitted; return the ids that were hidden."""
        shown = []
        with self._changing:
            for row, entry_id in enumerate(entries.ids):
                held = self._held.get(entry_id, NONE_HELD)
                if not held and not self._confirmed:
                    continue
                prints = {entries[row].fingerprint, entries[row].text_fingerprint}
                if prints & held:
                    shown.append(entry_id)
                    if rest := held - prints:
                        self._held[entry_id] = rest
                    else:
                        del self._held[entry_id]
                        self._wholes.pop(entry_id, None)
                if self._confirmed & prints:
                    self._confirmed -= prints
                    of = self._confirmed_of.items()
                    self._confirmed_of = {i: rest for i, known in of if (rest := known - prints)}
            self._gather_wholes()
        return shown

    def knows(self, entry_id: str) -> bool:
        """Return whether a revision is held under an id."""
        return entry_id in self._held

    def hides(self, item: Item) -> bool:
        """Return whether a document is a held revision."""
        entry_id = self.id_of(item)
        if not self._confirmed and entry_id not in self._held:
            return False
        return self._covers(entry_id, self.prints_of(item))

    def covers(self, entry: Entry) -> bool:
        """Return whether an entry of the store is a held revision."""
        if not self._confirmed and entry.id not in self._held:
            return False
        return self._covers(entry.id, frozenset((entry.fingerprint, entry.text_fingerprint)))

    def _covers(self, entry_id: str, prints: frozenset[str]) -> bool:
        if not prints.isdisjoint(self._held.get(entry_id, NONE_HELD)):
            return True
        let_in = self._let_in.get(entry_id, NONE_HELD)
        return not prints.isdisjoint(self._confirmed) and prints.isdisjoint(let_in)

    def prints_of(self, item: Item) -> frozenset[str]:
        """Return a document's fingerprints: with its context and without.

        A document that cannot be an entry has none, and was never held.
        """
        try:
            text, label, lineage, context = self.claims_of(item)
        except InvalidBatchError:
            return NONE_HELD
        entry = Entry(  # the id is no part of a fingerprint
            id="",
            text=text,
            embedding=NO_VECTOR,
            label=label,
            lineage=lineage,
            context=context,
        )
        return frozenset((entry.fingerprint, entry.text_fingerprint))

    @property
    def wholes(self) -> frozenset[str]:
        """The documents that have a held part."""
        return self._all_wholes

    def _gather_wholes(self) -> None:
        self._all_wholes = frozenset().union(*self._wholes.values())

    def most(self, k: int) -> int:
        """Return how many results should contain k visible ones, if the store has so many."""
        # An unknown number of confirmed revisions may be stored under other ids.
        return k + len(self._held) + (PAGE if self._confirmed else 0)


class Search:
    """The number of results to ask a store for: k, then more if some of them are hidden.

    ``others`` counts documents that may be hidden beside those under held ids. A ``post_filtered``
    search may return fewer results than asked for although the store has more.
    """

    def __init__(
        self, mask: Mask[Item], k: int, *, others: int = 0, post_filtered: bool = False
    ) -> None:
        self._k, self._post_filtered, self._most = k, post_filtered, mask.most(k) + others
        self.asked = k  # how many to ask for
        self.rows: list[int] = []  # rows of the latest results to show, in the store's order
        self.hidden = 0  # number of hidden results before the last of them

    def enough(self, found: int, visible: Iterable[bool]) -> bool:
        """Take an answer of the store; return whether it has enough visible results.

        ``visible`` says whether each result may be shown; it is read only as far as
        necessary.
        """
        k, shown = self._k, (row for row, seen in enumerate(visible) if seen)
        # More than k if a store returns more than it was asked for.
        self.rows = list(shown if self.asked == k else islice(shown, k))
        there_is_more = found >= self.asked or self._post_filtered
        if len(self.rows) < min(found, k) and there_is_more and self.asked < self._most:
            hidden = found - len(self.rows)
            self.asked = min(max(2 * self.asked, self.asked + hidden), self._most)
            return False
        self.hidden = (
            self.rows[k - 1] + 1 - k if 0 < k <= len(self.rows) else found - len(self.rows)
        )
        return True


def _bare(item: Print) -> Entry:
    """Return an entry with an id and metadata only."""
    return Entry(id=item.id, text="", embedding=NO_VECTOR, metadata=item.metadata)
