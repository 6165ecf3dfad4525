"""The one order in which a guarded store is written: screen, hold durably, write, learn.

What an adapter knows of its store, it gives as a few steps; the operations are the same for all.
Where processes share what their guards know, they learn of a write before the store is written: who
judges at the same instant judges again, and what a process could not end, another settles by what
the store says.
What can fail comes first where nothing is lost by it: entries are held before others are written,
written before they are released, and held before they are deleted. No transaction of the
quarantine is open while the store is asked for anything.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from ragshield_core.guard import Guard
from ragshield_core.hooks import answered, tools
from ragshield_core.learning.recorder import Intent
from ragshield_core.model.entries import Batch, Entry, together
from ragshield_core.model.errors import PoisonedEntryError, QuarantineError, RAGShieldError
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.quarantine import HeldEntry, Quarantine, Status
from ragshield_core.store.adoption import learn_store
from ragshield_core.store.held import keep_replaced, replacement, stays_held
from ragshield_core.store.judging import undisturbed
from ragshield_core.store.malformed import Sifted, keepable
from ragshield_core.store.mask import Mask
from ragshield_core.store.steps import Step, Steps, Turns, own
from ragshield_core.store.updates import (
    NewVersion,
    came_in,
    forget,
    held_whole,
    is_part,
    note_waiting,
    rejected,
    remark,
    settled,
    to_release,
    to_write,
    unfinished,
)

if TYPE_CHECKING:
    from ragshield_core.tools.audit import ScanReport

Item = TypeVar("Item")
T = TypeVar("T")
# Told what is being done, how many are done, and of how many; 0 of 0 where nobody knows.
Progress = Callable[[str, int, int], object]

logger = logging.getLogger("ragshield")  # ids and counts, never text

NOTHING = Batch.of(ids=[], texts=[], embeddings=[])

# How many copies of a held entry are looked for in the store.
COPIES = 16
# Entries that are read at a time when a store is adopted or audited.
PART = 1000


class Standing(NamedTuple, Generic[Item]):
    """What a store holds under some ids, whoever wrote it.

    ``entries`` are with vectors and without claims that are none; of ``items``, as the store has
    them, there may be more: some stores keep several revisions under one id, or give no vectors.
    """

    entries: Batch
    items: Sequence[Item]


class Keeper(ABC, Generic[Item]):
    """Keeps a store and a guard in step.

    Operations are generators of steps, see :mod:`ragshield_core.store.steps`.

    Parameters
    ----------
    guard
        Of this store.
    mask
        What reads of the store leave out.
    """

    def __init__(self, guard: Guard, mask: Mask[Item]) -> None:
        self.guard = guard
        self.mask = mask
        self.mask.load(guard.quarantine)
        if guard.writes.shared:
            self.mask.watch(guard.quarantine, lambda: guard.policy.fail_open)
        self.last_report = Report(batch=NOTHING)
        self._turns = Turns()

    def run(self, steps: Steps[T]) -> T:
        """Do an operation by the store's synchronous methods, once no other is being done."""
        return self._turns.run(self._recovered(steps))

    def run_recovery(self) -> int:
        """Do :meth:`recover` and nothing else."""
        return self._turns.run(self.recover())

    async def arun(self, steps: Steps[T]) -> T:
        """Do an operation by the store's asynchronous methods."""
        return await self._turns.arun(self._recovered(steps))

    def step(self, steps: Steps[Any]) -> Step:
        """Return an operation as one step of another, which does not keep others out between."""
        return Step(partial(self.run, steps), partial(self.arun, steps))

    # What an adapter knows of its store

    @abstractmethod
    def stored(self, ids: Sequence[str]) -> Steps[Standing[Item]]:
        """Return what the store holds under the ids; missing ones are ignored."""

    @abstractmethod
    def _write(self, batch: Batch, how: Any, older: Sequence[Item]) -> Steps[None]:
        """Store entries in place of what stands under their ids; all of them or none.

        Parameters
        ----------
        batch
            At least one entry.
        how
            What the adapter has prepared for it; ``None`` for entries as they were held.
        older
            What stands there.
        """

    @abstractmethod
    def _delete(self, ids: Sequence[str], options: Any = None) -> Steps[None]:
        """Delete what the store holds under the ids; ``NotImplementedError`` if it cannot."""

    @abstractmethod
    def _near(self, vector: list[float], k: int) -> Steps[Sequence[Item]]:
        """Return what is nearest to a vector; nothing where the store cannot be asked."""

    @abstractmethod
    def _entries_of(self, held: Sequence[HeldEntry], embed: Any) -> Batch:
        """Return held entries with vectors, ready to be stored.

        Raises
        ------
        RagshieldError
            If one has none and there is nothing to embed it with, or the store cannot keep it.
        """

    @abstractmethod
    def everything(self, part: int = PART, tell: Progress = lambda *_: None) -> Batch:
        """Return all that reads of the guarded store can return, fetched part by part."""

    # What only some adapters have

    def ids(self) -> Steps[list[str]]:
        """Return the ids of all that the store holds, without reading it if that is possible.

        Raises
        ------
        NotImplementedError
            If it cannot name them; says what to do.
        """
        msg = f"{type(self).__name__} does not say which ids its store holds."
        raise NotImplementedError(msg)
        yield  # a generator that has nothing to ask

    def _judged(self, report: Report) -> Report:
        """Return what was decided on new entries, with what follows from it for others."""
        return report

    def _on_held(self, entries: Batch) -> None:
        """Take note of entries that are held now."""

    def _same(self, stored: Entry, held: Entry) -> bool:
        """Return whether the store has a held entry as it is to be released."""
        return stored.fingerprint == held.fingerprint

    def _updated(self, entry: Entry) -> str | None:  # noqa: ARG002 - for those who know
        """Return the document whose new version an entry is a part of, if its id is known."""
        return None

    def _document_of(self, entry: Entry) -> str | None:  # noqa: ARG002 - for those who know
        """Return the document whose parts are replaced together."""
        return None

    def _parts_of(self, entries: Batch) -> Steps[list[str]]:  # noqa: ARG002 - as above
        """Return the ids of all parts of the documents of entries that the store holds."""
        return []
        yield  # a generator that has nothing to ask

    def _held_under(self, ids: Sequence[str]) -> list[str]:
        """Return ids with those of documents replaced by the ids of their held parts."""
        return list(dict.fromkeys(ids))

    def _replaced_under(self, ids: Sequence[str]) -> list[HeldEntry]:
        """Return the entries that were replaced last under ids.

        Raises
        ------
        QuarantineError
            If there are none; names the id.
        """
        return [self.guard.quarantine.show(i, Status.REPLACED) for i in dict.fromkeys(ids)]

    def _leaving(
        self, standing: Standing[Item], because: Mapping[str, Decision] | None
    ) -> Steps[tuple[Batch, Sequence[Decision] | None]]:
        """Return entries that are to leave, with what has to leave with them, and why each does."""
        entries = standing.entries
        return entries, None if because is None else [because[i] for i in entries.ids]
        yield  # a generator that has nothing to ask

    # Operations

    def add(
        self,
        sifted: Sifted,
        how: Callable[[Report], Any],
        *,
        replacing: Sequence[str] = (),
        versions: Sequence[NewVersion] = (),
        delete: bool = False,
    ) -> Steps[Report]:
        """Screen entries; hold the suspicious ones, and store and learn the others.

        A new version of a document is stored whole or not at all, see
        :mod:`ragshield_core.store.updates`.

        Parameters
        ----------
        sifted
            The entries, the malformed ones told from the others.
        how
            Returns, for a report, what :meth:`_write` needs to write what is admitted.
        replacing
            As of :meth:`ragshield_core.Guard.screen`.
        versions
            New versions of documents, as far as their names and ids do not say so.
        delete
            Whether the older parts of versions that come in are deleted.
        """
        versions = yield from self._versions(sifted.batch, replacing, versions)
        report, intent = yield from self._decided(
            sifted, replacing, sifted.admitted, versions=versions
        )
        self.last_report = report
        writing = to_write(report, versions)
        waiting = rejected(report, versions)
        coming = [version for version in versions if version not in waiting]
        older = _older(coming) if delete else []
        leaving = NOTHING
        try:
            yield from self._taken_out(report.batch.take(~report.admitted))
            yield from self.recall_found(report.retroactive)
            admitted = sifted.admitted(writing)
            if older:
                leaving = (yield from self.stored(older)).entries
            if len(admitted):
                notes = yield from self.put(admitted, how(writing), leaving, intent)
                report = report.noted(notes)
        except Exception:
            yield own(unfinished, waiting, self.guard.quarantine)
            yield from self._given_up(intent)
            raise
        if len(admitted):
            yield own(self.uncover, admitted, report)
        yield from self._replaced(coming, older, leaving)
        return (yield from self._with_overdue(report))

    def _replaced(
        self, versions: Sequence[NewVersion], older: Sequence[str], leaving: Batch
    ) -> Steps[None]:
        """End updates whose new versions are in the store."""
        if older:
            known = _chosen(leaving, (yield own(self.guard.writes.known, leaving.ids)))
            yield from self._leave(known, self._delete(older))
        if versions:
            yield own(self.guard.writes.together, partial(self._superseded, versions))

    def _superseded(self, versions: Sequence[NewVersion]) -> None:
        """Have held parts of earlier versions wait no more; they are no evidence against later."""
        self.guard.writes.forget_held(came_in(versions, self.guard.quarantine))

    def hold_back(self, versions: Sequence[NewVersion]) -> Steps[list[str]]:
        """Take stored parts of new versions out again, since another part of theirs is held.

        Returns the ids of those that left; they wait in quarantine, and are no suspects.
        """
        of = {i: version for version in versions for i in version.ids}
        standing = (yield from self.stored(list(of))).entries
        visible = [row for row, one in enumerate(standing) if not self.mask.covers(one)]
        leaving = keepable(standing.take(visible)).entries
        because = [
            Decision(entry_id=i, verdict=Verdict.QUARANTINE, note=remark(of[i].document))
            for i in leaving.ids
        ]

        def hold() -> Batch:
            quarantine = self.guard.quarantine
            quarantine.hold(leaving, because)
            for version in versions:
                note_waiting(version, sorted(version.ids), quarantine)
            return leaving

        if len(leaving):
            yield own(self.guard.writes.together, hold)
            self.mask.add(leaving)
            yield from self._leave(leaving, self._deleted_or_hidden(leaving.ids))
        return list(leaving.ids)

    def take_in(self, there: Batch) -> Steps[Report]:
        """Screen entries that came into the store past the guard, as if they came now.

        What is admitted is learned where it stands. What is held leaves the store, unless the
        quarantine cannot keep all of its metadata: that is only hidden.
        """
        whole, cut = keepable(there)
        sifted = Sifted.of(whole)
        report, intent = yield from self._decided(sifted, (), sifted.admitted, standing=True)
        self.last_report = report
        admitted = sifted.admitted(report)
        try:
            yield from self.recall_found(report.retroactive)
            held = [one.entry_id for one in report.quarantined if one.entry_id not in cut]
            items = (yield from self.stored(held)).items
            yield from self._deleted_or_hidden(
                [self.mask.id_of(item) for item in items if self.mask.hides(item)]
            )
            standing = {e.id: e.fingerprint for e in (yield from self.stored(admitted.ids)).entries}
        except Exception:
            yield from self._given_up(intent)
            raise
        if any(standing.get(entry.id) != entry.fingerprint for entry in admitted):
            yield from self._given_up(intent)  # others wrote meanwhile: what stands now counts
            return report
        if intent is None:
            intent = yield own(self.guard.writes.intend, admitted)
        yield own(self.guard.writes.finish, intent)
        yield own(self.uncover, admitted, report)
        return (yield from self._with_overdue(report))

    def forget_lost(self, ids: Sequence[str]) -> Steps[list[str]]:
        """Have the guard forget those of its entries that the store lacks; return their ids."""
        guard = self.guard

        def attempt() -> Steps[list[str]]:
            yield own(guard.writes.catch_up)
            at, moving = guard.writes.position, (yield own(guard.writes.moving))
            items = (yield from self.stored(ids)).items
            kept = {*moving, *(self.mask.id_of(i) for i in items if not self.mask.hides(i))}
            known: list[str] = yield own(guard.writes.known, ids)
            gone = [entry_id for entry_id in known if entry_id not in kept]
            if gone:
                yield own(guard.writes.together, partial(guard.writes.forget_lost, gone), at=at)
            return gone

        return (yield from undisturbed(guard, attempt))

    def delete(self, ids: Sequence[str], options: Any = None) -> Steps[None]:
        """Delete entries from the store and from quarantine; confirmed poison stays there."""
        older = yield from self._learned(ids)
        if ids:
            yield from self._leave(older, self._delete(ids, options))
        yield own(self._gone, ids)

    def release(
        self, ids: Sequence[str], by: str, note: str | None, embed: Any = None
    ) -> Steps[tuple[HeldEntry, ...]]:
        """Put held entries into the store, with the vectors they were held with, if any.

        Those that were released elsewhere are put there too, unless they are there. Of a new
        version of a document nothing comes in before all of it can: then its other parts come with
        it, and the version before leaves.
        """
        quarantine = self.guard.quarantine
        ids = yield own(self._held_under, ids)
        asked: list[HeldEntry] = yield own(self._shown, ids)
        held, decided, versions = yield own(to_release, asked, quarantine)
        parts = frozenset[str]().union(*(version.ids for version in versions))
        names = list(dict.fromkeys([one.id for one in held]))
        standing = keepable((yield from self.stored(names)).entries).entries  # as they were held
        there = {entry.id: entry for entry in standing}
        new = {h.id for h in held if h.id not in there or not self._same(there[h.id], h.entry)}
        late = {one.id for one in held if one.status is Status.RELEASED and one.id in new}
        settled = [h.id for h in held if h.status is not Status.HELD and h.id not in late | parts]
        settled += [one.id for one in decided if one.status is not Status.HELD]
        if settled:
            quarantine.release(settled)  # raises, and names one
        wanted = set(ids)
        waiting = [h.id for h in (*held, *decided) if h.status is Status.HELD and h.id in wanted]
        # Nobody has looked at these: they were no suspects, and are no more trusted than others.
        following = [h.id for h in held if h.status is Status.HELD and h.id not in wanted]
        batch: Batch = yield own(self._entries_of, held, embed)
        # First the store: what fails here is still held. Then the quarantine, then the guard.
        hidden = batch.take([row for row, i in enumerate(batch.ids) if i not in new])
        coming = batch.take([row for row, i in enumerate(batch.ids) if i in new])
        older = (yield from self.stored(_older(versions))).entries if versions else NOTHING
        if len(coming):
            yield from self.put(coming, None, older)

        def let_in() -> tuple[HeldEntry, ...]:
            done = quarantine.release(waiting, by=by, note=note) if waiting else ()
            quarantine.supersede(following, by=by, note="its version was released")
            quarantine.readmit(_chosen(batch, following), by=by)
            self._let_in(batch, hidden, trusted=[i for i in batch.ids if i not in following])
            return done

        try:
            done = yield own(self.guard.writes.together, let_in)
        except QuarantineError:
            yield from self._take_back(coming)
            raise
        self.mask.discard(batch.ids)
        if len(older):
            known = _chosen(older, (yield own(self.guard.writes.known, older.ids)))
            yield from self._leave(known, self._delete(older.ids))
        if versions:
            yield own(self.guard.writes.together, partial(forget, versions, quarantine))
        return (*done, *(one for one in held if one.id in late))

    def restore(
        self, ids: Sequence[str], by: str, note: str | None
    ) -> Steps[tuple[HeldEntry, ...]]:
        """Put back entries that texts of another lineage have replaced; recall what replaced them.

        That is what is live under their ids, and what is of another lineage in their documents.
        """
        latest: list[HeldEntry] = yield own(self._replaced_under, ids)
        quarantine = self.guard.quarantine
        replaced = yield own(quarantine.vouched, [one.id for one in latest], Status.REPLACED)
        batch: Batch = yield own(self._entries_of, replaced, None)
        parts = yield from self._parts_of(batch)
        live = (yield from self.stored(list(dict.fromkeys((*batch.ids, *parts))))).entries
        prints = {entry.id: entry.fingerprint for entry in batch}
        lineages = {entry.lineage for entry in batch}
        others = [
            entry.id
            for entry in live
            if (
                prints[entry.id] != entry.fingerprint
                if entry.id in prints
                else entry.lineage not in lineages
            )
        ]
        yield from self.recall(others, None, by, note)
        yield from self.put(batch, None)

        def let_in() -> tuple[HeldEntry, ...]:
            done = quarantine.release(batch.ids, by=by, note=note, of=Status.REPLACED)
            self.guard.writes.forget_held(batch.ids)
            self.guard.trust(batch.ids)
            return done

        done: tuple[HeldEntry, ...] = yield own(self.guard.writes.together, let_in)
        self.mask.remove(batch)
        return done

    def recall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        by: str = "ragshield",
        note: str | None = None,
    ) -> Steps[tuple[str, ...]]:
        """Move entries from the store into quarantine; return the ids of those that left.

        Without decisions, one per id, a person decides, whatever people have released before, and
        whatever rules excuse.
        """
        because = None if decisions is None else dict(zip(ids, decisions, strict=True))
        standing = yield from self.stored(list(dict.fromkeys(ids)))
        entries, reasons = yield from self._leaving(standing, because)
        if reasons is not None:
            entries, reasons, _ = yield own(self.guard.accused, entries, reasons)
        return (yield from self._away(entries, reasons, by, note))

    def recall_found(self, decisions: Sequence[Decision]) -> Steps[tuple[str, ...]]:
        """Do as :meth:`recall` does with what detectors found, if anything."""
        if not decisions:
            return ()
        return (yield from self.recall([d.entry_id for d in decisions], decisions))

    def purge(self, ids: Sequence[str], by: str, note: str | None) -> Steps[int]:
        """Delete held entries for good, from the store as well where they are only hidden there."""
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return 0
        wanted = yield own(self._held_under, ids)
        there = (yield from self.stored(wanted)).items
        hidden = [self.mask.id_of(item) for item in there if self.mask.hides(item)]
        if hidden:
            yield from self._delete(hidden)

        def purge() -> int:
            deleted = quarantine.purge(wanted, by=by, note=note, held_only=True)
            self.guard.writes.forget_held(wanted)
            return deleted

        deleted: int = yield own(self.guard.writes.together, purge)
        self.mask.discard(wanted)
        return deleted

    def take_out(self, report: ScanReport, *, remove: bool = True) -> Steps[ScanReport]:
        """Hold what an audit found, durably, and delete it.

        What a person has released before stays in the store, and so does what a rule excuses, and
        what is no longer the revision that was judged: the report returned says so.

        Parameters
        ----------
        report
            An audit of the store.
        remove
            Whether findings are deleted, or only hidden.
        """
        because = {decision.entry_id: decision for decision in report.found}
        judged = {entry.id: entry.fingerprint for entry in report.batch if entry.id in because}
        standing = yield from self.stored(list(because))
        same = np.array([e.fingerprint == judged[e.id] for e in standing.entries], dtype=np.bool_)
        unchanged = standing.entries.take(same)
        names = set(unchanged.ids)
        items = [item for item in standing.items if self.mask.id_of(item) in names]
        entries, reasons = yield from self._leaving(Standing(unchanged, items), because)
        excused: dict[str, str] = {}
        if reasons is not None:
            entries, reasons, excused = yield own(self.guard.accused, entries, reasons)
        gone = yield from self._away(entries, reasons, "scan", remove=remove)
        staying = {
            i: excused.get(i, "released by a person before") for i in unchanged.ids if i not in gone
        }
        changed = because.keys() - names
        return report.overruled(
            staying | dict.fromkeys(changed, "changed or deleted while it was audited")
        )

    def adopt(
        self,
        trusted: Iterable[str] | None,
        part: int = PART,
        tell: Progress = lambda *_: None,
    ) -> None:
        """Fit and calibrate the guard on what the store holds."""
        with self._turns.alone():
            batch = self.everything(part, tell)
            tell("learning", 0, 0)
            learn_store(self.guard, batch, trusted)

    def scan(self, fpr: float, clean_ids: Iterable[str] | None, seed: int) -> ScanReport:
        """Audit all that the store holds, each entry judged against the others."""
        with self._turns.alone():
            batch = self.everything()
        fresh = [type(detector)(**detector.config()) for detector in self.guard.detectors]
        options = {"fpr": fpr, "clean_ids": clean_ids, "seed": seed}
        found = tools().scan(batch=batch, detectors=fresh, options=options)
        report: ScanReport = answered(found, "scan")
        return report

    def refresh(self) -> None:
        """Ask the quarantine what is held."""
        self.mask.load(self.guard.quarantine)

    # Parts of operations

    def _with_overdue(self, report: Report) -> Steps[Report]:
        """Recall what came before a first calibration, in this very batch perhaps."""
        if overdue := (yield own(self.guard.overdue)):
            yield from self.recall_found(overdue)
            report = replace(report, retroactive=(*report.retroactive, *overdue))
        self.last_report = report
        return report

    def judge(self, sifted: Sifted, replacing: Sequence[str] = ()) -> Steps[Report]:
        """Screen entries and hold, durably, what is suspicious, malformed or held already."""
        return (yield from self._decided(sifted, replacing, lambda _: NOTHING))[0]

    def _decided(
        self,
        sifted: Sifted,
        replacing: Sequence[str],
        entering: Callable[[Report], Batch],
        *,
        standing: bool = False,
        versions: Sequence[NewVersion] = (),
    ) -> Steps[tuple[Report, Intent | None]]:
        """Judge entries, and say which are going to be stored, as one with what is held.

        Processes that share a guard judge one after the other.

        Parameters
        ----------
        sifted, replacing
            As of :meth:`add`.
        entering
            Returns, for a report, what is going to be stored.
        standing
            Whether the store has all of it already, so that what is held has to leave it.
        versions
            New versions of documents among the entries.
        """
        replacing = list(dict.fromkeys([*replacing, *_older(versions)]))

        def attempt() -> Steps[tuple[Report, Intent | None]]:
            among = sifted
            if not standing:
                again = yield own(settled, sifted.batch, versions, self.guard.quarantine)
                among = sifted.but(again)
            report: Report = yield own(partial(self.guard.screen, among.whole, replacing=replacing))
            at = report.position
            report = yield own(among.beside, report, self._judged)
            report = yield from self.of_copies(report)
            older = NOTHING
            if self.guard.writes.shared:
                older = keepable((yield from self.stored(among.batch.ids)).entries).entries
            decide = partial(self._decide, report, among, entering, older, at)
            return (yield own(decide, versions, standing=standing))  # type: ignore[no-any-return]

        return (yield from undisturbed(self.guard, attempt))

    def _decide(
        self,
        report: Report,
        sifted: Sifted,
        entering: Callable[[Report], Batch],
        older: Batch,
        at: int | None,
        versions: Sequence[NewVersion],
        *,
        standing: bool,
    ) -> tuple[Report, Intent | None]:
        def work() -> tuple[Report, Intent | None]:
            held = self._hold(report, sifted, versions)
            coming = entering(to_write(held, versions))
            leaving = older if standing else self._left_for(coming, older)
            if not self.guard.writes.shared or not (len(coming) or len(leaving)):
                return held, None
            return held, self.guard.writes.intend(coming, leaving)

        held, intent = self.guard.writes.together(work, at=at)
        return self.guard.with_spent(held) if self.guard.writes.shared else held, intent

    def _hold(self, report: Report, sifted: Sifted, versions: Sequence[NewVersion] = ()) -> Report:
        updated = frozenset[str]().union(*(version.ids for version in versions))
        report = stays_held(self.guard.hold(report), self.guard, updated)
        report = sifted.hold(report, self.guard)
        if sifted.settled and self.guard.policy.on_detect == "raise":
            raise PoisonedEntryError(report)
        report = held_whole(report, versions, self.guard.quarantine)
        if not report.admitted.all():
            held = report.batch.take(~report.admitted)
            self.guard.writes.afterwards(partial(self._hide, held))
        return report

    def _hide(self, held: Batch) -> None:
        self.mask.add(held)
        self._on_held(held)

    def _versions(
        self, batch: Batch, replacing: Sequence[str], given: Sequence[NewVersion]
    ) -> Steps[tuple[NewVersion, ...]]:
        """Return the new versions of documents among entries, with the parts that stay as they are.

        A document comes in a new version where the id of an entry is known, or where it replaces
        stored ones.
        """
        known: list[str] = yield own(self.guard.writes.known, batch.ids)
        wanted = list(dict.fromkeys([*known, *replacing]))
        if not wanted:
            return tuple(given)
        found = (yield from self.stored(wanted)).entries
        visible = [entry for entry in found if not self.mask.covers(entry)]
        prints = {entry.id: entry.fingerprint for entry in visible}
        kept = {entry.id for entry in batch if prints.get(entry.id) == entry.fingerprint}
        named = frozenset[str]().union(*(version.ids for version in given))
        parts: dict[str, set[str]] = {}
        for entry in batch:
            document = None if entry.id in named else self._updated(entry)
            if document is not None:
                parts.setdefault(document, set()).add(entry.id)
        coming = frozenset(batch.ids)
        older: dict[str, set[str]] = {}
        for entry in visible:
            document = self._updated(entry)
            if document is not None and entry.id not in coming:
                older.setdefault(document, set()).add(entry.id)
        versions = [
            NewVersion(document, frozenset(ids), frozenset(older.get(document, ())))
            for document, ids in parts.items()
            if document in older or not ids.isdisjoint(prints)
        ]
        other = frozenset(prints).intersection(batch.ids) - kept  # get another text
        return tuple(
            v._replace(kept=v.kept | kept & v.ids, older=v.older | other & v.ids)
            for v in (*given, *versions)
        )

    def of_copies(self, report: Report) -> Steps[Report]:
        """Say of what is to be held where the very same stands in the store under another id.

        Whoever confirms the copy does not mean that one, and the quarantine remembers it.
        """
        if not report.quarantined or self.guard.policy.on_detect == "raise":
            return report
        held = report.batch.take(~report.admitted)
        notes: dict[str, str] = {}
        standing: dict[str, None] = {}
        for entry, vector in zip(held, held.vectors, strict=True):
            if not vector.size:
                continue
            near = yield from self._near(vector.tolist(), COPIES)
            others = [(self.mask.id_of(item), item) for item in near if not self.mask.hides(item)]
            copies = [
                name
                for name, item in others
                if name != entry.id and entry.fingerprint in self.mask.prints_of(item)
            ]
            if copies:
                standing |= dict.fromkeys(copies)
                named = ", ".join(repr(printable(entry_id)) for entry_id in copies)
                notes[entry.id] = f"the very same is in the store under {named}, and stays there"
        if standing:
            found = (yield from self.stored(list(standing))).entries
            yield own(self.guard.quarantine.keep_stored, keepable(found).entries, Status.READMITTED)
        return report.noted(notes)

    def put(
        self, batch: Batch, how: Any, leaving: Batch = NOTHING, intent: Intent | None = None
    ) -> Steps[dict[str, str]]:
        """Write entries in place of older revisions, and learn them in their place.

        The store is asked for those: others may write to it as well, of whom the guard knows
        nothing.

        Parameters
        ----------
        batch, how
            As of :meth:`_write`.
        leaving
            What else the entries take the place of: the older version of a document.
        intent
            With which this was said before.

        Returns
        -------
        dict[str, str]
            A remark, by id, on each that takes the place of a text of another lineage.
        """
        older = yield from self.stored(batch.ids)
        replaced = {entry.id: entry for entry in (*leaving, *older.entries)}
        visible = [entry.id for entry in replaced.values() if not self.mask.covers(entry)]
        places = [_chosen(leaving, visible, but=older.entries.ids), _chosen(older.entries, visible)]
        notes: dict[str, str] = yield own(self.keep_replaced, places, batch)
        if intent is None:
            leaving = yield own(self._left_for, batch, self._as_told(older.entries))
            intent = yield own(self.guard.writes.intend, batch, leaving)
        yield from self._carried_out(intent, self._write(batch, how, older.items))
        return notes

    def _left_for(self, coming: Batch, older: Batch) -> Batch:
        """Return what leaves for entries that come: what stands there, and what is lost.

        A store in memory may be that of a while ago, after a crash: what the guard knows and the
        store lacks is, as a rule, what comes once more.
        """
        older = _chosen(older, coming.ids)
        lost = _chosen(coming, self.guard.writes.known(coming.ids), but=older.ids)
        return together([batch for batch in (older, lost) if len(batch)] or [older])

    def _taken_out(self, held: Batch) -> Steps[None]:
        """Take out of the store what is held now, and is there: it looked admissible before."""
        if not len(held):
            return
        known: list[str] = yield own(self.guard.writes.known, held.ids)
        # What somebody else intends may be on its way into the store, which is read after it.
        moving: frozenset[str] = (yield own(self.guard.writes.moving)) if known else frozenset()
        standing = (yield from self.stored(held.ids)).entries
        lost = _chosen(held, known, but=moving.union(standing.ids))
        if len(lost):
            yield own(self.guard.forget, lost)
        same = standing.take([row for row, e in enumerate(standing) if self.mask.covers(e)])
        if len(same):
            yield from self._leave(same, self._deleted_or_hidden(same.ids))

    def _leave(self, leaving: Batch, steps: Steps[None]) -> Steps[None]:
        """Delete entries from the store by some steps, and forget them."""
        intent: Intent = yield own(self.guard.writes.intend, None, self._as_told(leaving))
        yield from self._carried_out(intent, steps)

    def _as_told(self, entries: Batch) -> Batch:
        """Return entries of the store as other processes are told of them."""
        return keepable(entries).entries if self.guard.writes.shared else entries

    # What was intended, and what comes of it

    def _carried_out(self, intent: Intent, steps: Steps[None]) -> Steps[None]:
        """Write the store by some steps, as it was intended."""
        try:
            yield from steps
        except Exception:
            yield from self._given_up(intent)
            raise
        yield own(self.guard.writes.finish, intent)

    def _given_up(self, intent: Intent | None) -> Steps[None]:
        """Settle what could not be done, as far as the store says what came of it."""
        if intent is None or not self.guard.writes.shared:
            return
        yield own(self.guard.writes.failed, intent)
        try:
            yield from self.recover()
        except Exception as error:  # noqa: BLE001 - what could not be done is what is raised
            logger.warning("a failed write is not settled yet (%s)", type(error).__name__)

    def _recovered(self, steps: Steps[T]) -> Steps[T]:
        """Do an operation once that is settled which others have left."""
        if self.guard.writes.shared:
            yield from self.recover()
        try:
            answer = yield from steps
        except RAGShieldError:
            raise
        except Exception as error:
            # The store's, or its embedding model's: it keeps their type.
            error.add_note(
                "RAGShield: the store inside or its embedding model failed, and this operation on "
                f"it came to no end ({self.guard.quarantine!r}). What was judged suspicious is "
                "held; repeat the operation once they answer: what has the same ids is not there "
                "twice then."
            )
            raise
        if due := self.guard.writes.due_for_screening():
            try:
                yield from self.rescreen(due[:PART])
            except Exception as error:  # noqa: BLE001 - the operation itself is done
                kind = type(error).__name__
                logger.warning("what was let in unscreened could not be screened yet (%s)", kind)
        return answer

    def rescreen(self, ids: Sequence[str] | None = None) -> Steps[int]:
        """Screen what was let in although detectors failed on it; recall what is suspicious.

        Operations do so by themselves once the detectors work again, a thousand entries at a time.

        Parameters
        ----------
        ids
            Of them; ``None`` for all.

        Returns
        -------
        int
            How many are screened now.
        """
        ids = list(self.guard.unscreened()) if ids is None else ids
        n_screened = 0
        for start in range(0, len(ids), PART):
            some = ids[start : start + PART]
            found = keepable((yield from self.stored(some)).entries).entries
            report: Report = yield own(self.guard.screen, found)
            suspicious = [one for one in report.quarantined if one.findings]
            yield from self.recall_found([*suspicious, *report.retroactive])
            again = {item.entry_id for item in report.unjudged if item.failed}
            screened = [i for i in some if i not in again]
            yield own(self.guard.writes.screened_again, screened, sorted(again))
            n_screened += len(screened)
            logger.info("%d entries that were let in unscreened are screened now", len(screened))
        return n_screened

    def recover(self) -> Steps[int]:
        """Settle what processes have begun that are gone; return how many events that were.

        Where processes share what their guards know. The store is asked what came of it. Every
        operation begins with it.
        """
        lost: Intent | None = yield own(self.guard.writes.abandoned)
        if lost is None:
            return 0
        try:
            batches = [event.entries for event in lost.events if event.entries is not None]
            ids = list(dict.fromkeys(entry_id for batch in batches for entry_id in batch.ids))
            yield own(self.refresh)
            standing = yield from self.stored(ids)
            if recalled := [self.mask.id_of(i) for i in standing.items if self.mask.hides(i)]:
                with suppress(NotImplementedError):  # where it cannot be deleted, it is hidden
                    yield from self._delete(recalled)
            entries = keepable(standing.entries).entries
            visible = [row for row, one in enumerate(entries) if not self.mask.covers(one)]
            yield own(self.guard.writes.settle, lost, entries.take(visible))
        except Exception:
            yield own(self.guard.writes.failed, lost)
            raise
        logger.warning("%d events that a process had left were settled", len(lost.positions))
        return len(lost.positions)

    def keep_replaced(self, older: Sequence[Batch], newer: Batch) -> dict[str, str]:
        """Keep live texts that others of another lineage take the place of: perhaps intruders.

        A text stands for one under the same id, and for all of its document. A document whose
        texts stay as they are was moved.

        Returns
        -------
        dict[str, str]
            A remark on each of the newer ones, by id.
        """
        notes: dict[str, str] = {}
        kept: dict[str, str] = {}
        for olds, news in self._counterparts(older, newer):
            lineages = {new.lineage for new in news}
            lost = [old for old in olds if old.lineage not in lineages]
            if news and lost and {old.text for old in olds} != {new.text for new in news}:
                kept |= {old.id: replacement(news[0].lineage, old.lineage) for old in lost}
                notes |= {new.id: replacement(new.lineage, lost[0].lineage) for new in news}
        if kept:
            quarantine = self.guard.quarantine
            for some in older:
                keep_replaced(quarantine, keepable(_chosen(some, kept)).entries, kept)
            quarantine.readmit(_chosen(newer, notes))  # perhaps what had stood there before
        return notes

    def _counterparts(
        self, older: Sequence[Batch], newer: Batch
    ) -> Iterator[tuple[list[Entry], list[Entry]]]:
        """Yield what stood together, as one document or under one id, and what is there now."""
        groups: dict[tuple[str | None, str], list[Entry]] = {}
        for old in (entry for batch in older for entry in batch):
            document = self._document_of(old)
            groups.setdefault((document, old.id if document is None else ""), []).append(old)
        by_id = {new.id: new for new in newer} if groups else {}
        by_document: dict[str, list[Entry]] = {}
        for new in by_id.values():
            if (document := self._document_of(new)) is not None:
                by_document.setdefault(document, []).append(new)
        for (document, _), olds in groups.items():
            of_document = [] if document is None else by_document.get(document, [])
            same_ids = [by_id[old.id] for old in olds if old.id in by_id]
            yield olds, list({new.id: new for new in (*same_ids, *of_document)}.values())

    def uncover(self, admitted: Batch, report: Report) -> None:
        """Show what was held, and released or purged elsewhere, now that it is written again.

        What was recalled since it was admitted, as a canary may have it, stays hidden.
        """
        back = set(self.mask.remove(admitted))
        back |= {decision.entry_id for decision in report.remarkable.values() if decision.note}
        entries = _chosen(admitted, back) if back else NOTHING
        quarantine = self.guard.quarantine

        def show() -> None:
            held, recalled = quarantine.held_ids(entries.ids), set[str]()
            if held:  # parts of a version that waited, what was recalled, or other revisions
                same = _same_as_held(_chosen(entries, held), quarantine)
                parts = [one.id for one in quarantine.list(ids=same) if is_part(one)]
                recalled = set(same).difference(parts)
                held -= set(quarantine.supersede(parts, note="it came in with a later version"))
            shown = _chosen(entries, entries.ids, recalled)
            self.guard.writes.forget_held([i for i in entries.ids if i not in held])
            self.guard.trust(list(quarantine.released_among(shown)))
            quarantine.readmit(shown)
            self.mask.add(_chosen(entries, recalled))

        if len(entries):
            self.guard.writes.together(show)

    def _shown(self, ids: Sequence[str]) -> list[HeldEntry]:
        """Return the latest revision of each of the ids, as it was held.

        Raises
        ------
        QuarantineError
            If one is not held, or not as it was.
        """
        quarantine = self.guard.quarantine
        there = {one.id for one in quarantine.prints(ids=ids)}
        for entry_id in ids:
            if entry_id not in there:
                quarantine.show(entry_id, Status.HELD)  # raises, and says what was expected
        return list(quarantine.vouched(ids))

    def _let_in(self, released: Batch, hidden: Batch, trusted: Sequence[str]) -> None:
        """Have the guard know what a person has let in; what was hidden only is learned now."""
        self.guard.forget(hidden)
        self.guard.learn(hidden)
        self.guard.writes.forget_held(released.ids)
        self.guard.trust(trusted)

    def _take_back(self, written: Batch) -> Steps[None]:
        """Take out what was written to be released, and judged otherwise by somebody meanwhile."""
        quarantine = self.guard.quarantine
        released = yield own(quarantine.released_among, written)
        held = yield own(quarantine.held_ids, written.ids)  # hidden, and still to be decided
        gone = _chosen(written, set(written.ids) - set(released) - held)
        if len(gone):
            self.mask.add(gone)
            with suppress(NotImplementedError):  # where it cannot be deleted, it is hidden
                yield from self._delete(gone.ids)
            yield own(self.guard.forget, gone)

    def _away(
        self,
        entries: Batch,
        decisions: Sequence[Decision] | None,
        by: str,
        note: str | None = None,
        *,
        remove: bool = True,
    ) -> Steps[tuple[str, ...]]:
        """Move entries from the store into quarantine; return the ids of those that left.

        Of what came past the guard, the quarantine keeps what metadata it can; it is hidden then,
        not deleted, so that nothing of it gets lost.
        """
        if not len(entries):
            return ()
        whole, cut = keepable(entries)
        if cut:
            logger.warning(
                "the quarantine cannot keep all metadata of %d entries, such as %r",
                *(len(cut), printable(min(cut))),
            )
        if decisions is None:
            decisions = yield own(self._said_by_a_person, whole, by, note)

        def hold() -> tuple[Batch, Intent]:
            released = self.guard.quarantine.hold(whole, decisions, by=by)
            gone = _chosen(whole, whole.ids, but=released)
            return gone, self.guard.writes.intend_recall(gone, decisions or ())

        gone, intent = yield own(self.guard.writes.together, hold)
        if not len(gone):
            return ()
        self.mask.add(gone)
        leaving = [entry_id for entry_id in gone.ids if entry_id not in cut] if remove else []
        yield from self._carried_out(intent, self._deleted_or_hidden(leaving))
        return gone.ids  # type: ignore[no-any-return]

    def _deleted_or_hidden(self, ids: Sequence[str]) -> Steps[None]:
        if ids:
            with suppress(NotImplementedError):  # where it cannot be deleted, it is hidden
                yield from self._delete(ids)

    def _said_by_a_person(self, entries: Batch, by: str, note: str | None) -> list[Decision]:
        """Hold what others have released before: who decides now stands above them."""
        quarantine = self.guard.quarantine
        quarantine.hold(_chosen(entries, quarantine.released_among(entries)), by=by)
        return [Decision(entry_id=i, verdict=Verdict.QUARANTINE, note=note) for i in entries.ids]

    def _learned(self, ids: Sequence[str]) -> Steps[Batch]:
        """Return what the guard has learned and the store holds under the ids."""
        known: list[str] = yield own(self.guard.writes.known, ids)
        return (yield from self.stored(known)).entries if known else NOTHING

    def _gone(self, ids: Sequence[str]) -> None:
        """Forget what was held of entries that were deleted."""

        def purge() -> None:
            self.guard.writes.forget_held(ids)
            if self.guard.quarantine.exists():
                note = "deleted through the store"
                self.guard.quarantine.purge(ids, note=note, evidence=False)

        self.guard.writes.together(purge)
        self.mask.discard(ids)


def _older(versions: Iterable[NewVersion]) -> list[str]:
    """Return the ids of what leaves when versions come in."""
    return sorted(frozenset[str]().union(*(v.older - v.ids for v in versions)))


def _same_as_held(entries: Batch, quarantine: Quarantine) -> list[str]:
    """Return the ids of entries that are held as they are."""
    prints = {entry.id: entry.fingerprint for entry in entries}
    held = quarantine.prints(ids=entries.ids)
    return [
        one.id for one in held if one.status is Status.HELD and one.fingerprint == prints[one.id]
    ]


def _chosen(batch: Batch, ids: Iterable[str], but: Iterable[str] = ()) -> Batch:
    wanted = set(ids) - set(but)
    return batch.take([row for row, entry_id in enumerate(batch.ids) if entry_id in wanted])
