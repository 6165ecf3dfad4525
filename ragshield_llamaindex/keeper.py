"""The one way in: screen, hold durably, write, learn, for a store or an index alike.

Each operation is written once, as a generator that yields what is to be done with the store; one
driver does that with the store's synchronous methods, another with its asynchronous ones.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from llama_index.core.schema import BaseNode

from ragshield_core import Batch, Guard, Quarantine, Report
from ragshield_core.adoption import learn_store
from ragshield_core.findings import Decision, Verdict
from ragshield_core.held import keep_held
from ragshield_core.quarantine import HeldEntry
from ragshield_core.scan import ScanReport, scan
from ragshield_llamaindex.convert import (
    NO_ENTRIES,
    MetadataKeys,
    flagged,
    relinked,
    source_of,
    to_batch,
    to_node,
)
from ragshield_llamaindex.events import dispatcher, report_detection
from ragshield_llamaindex.family import relatives_of, with_family
from ragshield_llamaindex.inner import InnerStore
from ragshield_llamaindex.mask import Mask

T = TypeVar("T")

logger = logging.getLogger("ragshield")

# How far away the windows are that may hold a sentence, and the parents of parents.
HOPS = 5
# Nodes that are read at a time when a store is adopted.
PART = 1000
# Seconds between two looks at whether another write is over.
PAUSE = 0.005


class Step(NamedTuple):
    """Something to be done with the store, or, with no name, a piece of work of our own."""

    name: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] | None = None
    work: Callable[[], Any] | None = None


Steps = Generator[Step, Any, T]


class Keeper:
    """Keeps a store and a guard in step.

    Parameters
    ----------
    guard, access, keys
        The guard, the nodes of the store, and where metadata says what belongs to a revision.
    """

    def __init__(self, guard: Guard, access: InnerStore, keys: MetadataKeys) -> None:
        self.guard = guard
        self.access = access
        self.keys = keys
        self.mask = Mask(keys)
        self.mask.load(guard.quarantine)
        self.last_report = Report(batch=NO_ENTRIES)
        # One write at a time: a batch is judged by what the one before it left behind. No RLock:
        # an asynchronous write may end in another thread than the one it began in.
        self._lock = threading.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    # Drivers

    def run(self, steps: Steps[T]) -> T:
        """Do an operation with the store's synchronous methods."""
        with self._lock:
            return _drive(steps, self._do)

    async def arun(self, steps: Steps[T]) -> T:
        """Do an operation with the store's asynchronous methods; our own work runs in a thread.

        Once begun it is finished, even if the caller is cancelled: between the deletion of an older
        revision and the write of the new one, neither is there.
        """
        # Polled, since waiting threads could take all those that the write needs itself.
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE)
        task = asyncio.ensure_future(self._adrive(steps))
        self._running.add(task)  # the event loop keeps weak references only
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._lock.release()

    async def _adrive(self, steps: Steps[T]) -> T:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer, error = None, None
            try:
                answer = await self._ado(step)
            except Exception as raised:  # noqa: BLE001 - handed to the operation
                error = raised

    def _do(self, step: Step) -> Any:
        if step.work is not None:
            return step.work()
        return getattr(self.access, step.name)(*step.arguments, **(step.options or {}))

    async def _ado(self, step: Step) -> Any:
        if step.work is not None:
            return await asyncio.to_thread(step.work)
        method = getattr(self.access, f"a{step.name}")
        return await method(*step.arguments, **(step.options or {}))

    # Operations

    def add(
        self, nodes: Sequence[BaseNode], options: dict[str, Any] | None = None
    ) -> Steps[Report]:
        """Screen nodes that have vectors; hold the suspicious ones, and store and learn the rest.

        Of a node that is held, an older revision stays. Relationships pass over what was held.
        """
        batch = yield _work(lambda: to_batch(nodes, self.keys))
        report: Report = yield _work(lambda: self._judge(batch))
        self.last_report = report
        if report.retroactive:
            yield from self.recall([d.entry_id for d in report.retroactive], report.retroactive)
        kept = [node for node, good in zip(nodes, report.kept, strict=True) if good]
        if kept:
            held = [node for node, good in zip(nodes, report.kept, strict=True) if not good]
            stored = flagged(relinked(kept, held), report.flagged)
            admitted = batch if report.kept.all() else batch.take(report.kept)
            yield from self._put(admitted, stored, options)
            yield _work(lambda: self._uncover(admitted))
        yield _work(lambda: report_detection(report, stage="ingestion"))
        return report

    def release(
        self, ids: Sequence[str], by: str, note: str | None
    ) -> Steps[tuple[HeldEntry, ...]]:
        """Put held nodes into the store, with the vectors they were held with."""
        quarantine = self.guard.quarantine
        # What is not held is refused before anything is written.
        held = [quarantine.show(entry_id) for entry_id in dict.fromkeys(ids)]
        if quarantine.held_ids(ids) != set(ids):
            quarantine.release(ids)  # raises, and names it
        nodes = [to_node(one) for one in held]
        batch = to_batch(nodes, self.keys)
        there = yield Step("read", (list(batch.ids),))
        same = {entry.id: entry.fingerprint for entry in to_batch_of(there, self.keys)}
        new = [entry.id for entry in batch if same.get(entry.id) != entry.fingerprint]
        # First the store: what fails here is still held. Then the quarantine, then the guard.
        if new:
            rows = [batch.ids.index(entry_id) for entry_id in new]
            yield from self._put(batch.take(rows), [nodes[row] for row in rows])
        hidden = batch.take([row for row, i in enumerate(batch.ids) if i not in set(new)])
        done = yield _work(lambda: quarantine.release(ids, by=by, note=note))
        self.guard.forget(hidden)
        self.guard.learn(hidden)
        self.guard.unhold(batch.ids)
        self.guard.trust(batch.ids)
        self.mask.discard(batch.ids)
        return done  # type: ignore[no-any-return]

    def recall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        by: str = "ragshield",
        note: str | None = None,
    ) -> Steps[tuple[str, ...]]:
        """Move nodes from the store into quarantine; return the ids of those that left.

        Without decisions, one per id, a person decides, whatever people have released before. What
        serves the text of one of them, a parent or a window, leaves with it.
        """
        nodes = yield Step("read", (list(dict.fromkeys(ids)),))
        entries, reasons = yield from self._and_family(nodes, decisions or ())
        return (yield from self._away(entries, reasons if decisions else None, by, note))

    def update(
        self, ref_doc_id: str, nodes: Sequence[BaseNode], options: dict[str, Any] | None = None
    ) -> Steps[bool]:
        """Replace a document by a new version, unless a part of that is held; then nothing changes.

        Returns whether it was replaced.
        """
        batch = yield _work(lambda: to_batch(nodes, self.keys))
        report = yield _work(lambda: self._judge(batch))
        self.last_report = report
        if report.retroactive:
            yield from self.recall([d.entry_id for d in report.retroactive], report.retroactive)
        yield _work(lambda: report_detection(report, stage="ingestion"))
        if not report.kept.all():
            return False
        # First the new version: what fails here leaves the one before.
        if len(batch):
            stored = flagged(nodes, report.flagged)
            yield from self._put(batch, stored, options, update=True)
            yield _work(lambda: self._uncover(batch))
        yield from self.delete_document(ref_doc_id, spare=batch.ids)
        return True

    def admit(
        self, report: Report, nodes: Sequence[BaseNode], replaced: Sequence[str]
    ) -> Steps[None]:
        """Store nodes that were judged elsewhere, in place of older versions of documents.

        Parameters
        ----------
        report
            What was judged; its held entries are hidden here as well.
        nodes
            Those that go in, with vectors.
        replaced
            Documents whose older versions go.
        """
        self.last_report = report
        self.mask.add(report.batch.take(~report.kept))
        if report.retroactive:
            yield from self.recall([d.entry_id for d in report.retroactive], report.retroactive)
        batch = yield _work(lambda: to_batch(nodes, self.keys))
        # First the new versions: what fails here leaves those before.
        if len(batch):
            yield from self._put(batch, nodes, update=bool(replaced))
            yield _work(lambda: self._uncover(batch))
        for ref_doc_id in replaced:
            yield from self.delete_document(ref_doc_id, spare=batch.ids)

    def delete_nodes(
        self, ids: Sequence[str], options: dict[str, Any] | None = None
    ) -> Steps[None]:
        """Delete nodes from the store and from quarantine; confirmed poison stays there."""
        older = yield from self._stored(ids)
        if ids:
            yield Step("delete", (list(ids),), options)
        yield _work(lambda: self._gone(older, ids))

    def delete_document(
        self,
        ref_doc_id: str,
        options: dict[str, Any] | None = None,
        *,
        spare: Sequence[str] = (),
    ) -> Steps[list[str]]:
        """Delete the nodes of a document from the store and from quarantine.

        Nodes to ``spare`` stay in both: they are of its new version.
        """
        spared = set(spare)
        stored = yield Step("document", (ref_doc_id,))
        ids = [entry_id for entry_id in stored if entry_id not in spared]
        held = yield _work(lambda: self._held_of(ref_doc_id))
        older = yield from self._stored(ids)
        if ids:
            yield Step("delete", (ids,), options)
        judged = [entry_id for entry_id in (*ids, *held) if entry_id not in spared]
        yield _work(lambda: self._gone(older, judged))
        return ids

    def clear(self, ids: Sequence[str], clear: Step) -> Steps[None]:
        """Empty the store, which held these ids, and forget them; what is held stays held."""
        older = yield from self._stored(ids)
        yield clear
        yield _work(lambda: self.guard.forget(older))

    def adopt(self, trusted: Iterable[str] | None) -> None:
        """Fit and calibrate the guard on what the store holds."""
        with self._lock:
            learn_store(self.guard, self._everything(), trusted)

    def scan(
        self, fpr: float, clean_ids: Iterable[str] | None, seed: int, *, quarantine: bool
    ) -> ScanReport:
        """Audit all that the store holds, each node judged against the others."""
        with self._lock:
            batch = self._everything()
        fresh = [type(detector)(**detector.config()) for detector in self.guard.detectors]
        report = scan(batch, fresh, fpr=fpr, clean_ids=clean_ids, seed=seed)
        return self.run(self._take_out(report)) if quarantine and report.found else report

    # Parts

    def _take_out(self, report: ScanReport) -> Steps[ScanReport]:
        """Hold findings, durably, and delete them; what is another revision by now stays."""
        because = {decision.entry_id: decision for decision in report.found}
        judged = {entry.id: entry.fingerprint for entry in report.batch if entry.id in because}
        nodes = yield Step("read", (list(because),))
        present = to_batch_of(nodes, self.keys)
        unchanged = present.take(
            np.array([entry.fingerprint == judged[entry.id] for entry in present], dtype=np.bool_)
        )
        leaving = [node for node in nodes if node.node_id in set(unchanged.ids)]
        entries, decisions = yield from self._and_family(leaving, report.found)
        gone = yield from self._away(entries, decisions, "scan")
        staying = {i: "released by a person before" for i in unchanged.ids if i not in gone}
        changed = because.keys() - set(unchanged.ids)
        return report.overruled(
            staying | dict.fromkeys(changed, "changed or deleted while it was audited")
        )

    def _away(
        self, entries: Batch, decisions: Sequence[Decision] | None, by: str, note: str | None = None
    ) -> Steps[tuple[str, ...]]:
        """Move entries from the store into quarantine; return the ids of those that left."""
        left: list[str] = []
        recall = partial(self.mask.recall, self.guard, entries, decisions, left.extend)
        gone = yield _work(lambda: recall(by=by, note=note))
        if left:
            with suppress(NotImplementedError):  # where it cannot be deleted, it is hidden
                yield Step("delete", (left,))
        return gone  # type: ignore[no-any-return]

    def _judge(self, batch: Batch) -> Report:
        report = self.guard.hold(with_family(self.guard.screen(batch)))
        report = keep_held(report, self.guard)
        if not report.kept.all():
            self.mask.add(batch.take(~report.kept))
        return report

    def _put(
        self,
        batch: Batch,
        nodes: Sequence[BaseNode],
        options: dict[str, Any] | None = None,
        *,
        update: bool = False,
    ) -> Steps[None]:
        """Write nodes in place of older revisions, and learn them in their place.

        In an ``update`` those are looked for that the guard has not learned, too.
        """
        if update:
            older = yield Step("read", (list(batch.ids),))
        else:
            older = yield from self._nodes(batch.ids)
        if older:
            yield Step("delete", ([node.node_id for node in older],))
        try:
            yield Step("write", (list(nodes),), options)
        except Exception:
            if older:  # as it was before
                yield Step("write", (older,), options)
            raise
        before = to_batch_of(older, self.keys)
        yield _work(lambda: self.guard.forget(before))
        yield _work(lambda: self.guard.learn(batch))

    def _uncover(self, admitted: Batch) -> None:
        """Show what was held, and released or purged elsewhere, now that it is written again."""
        back = self.mask.remove(admitted)
        if back:
            held = self.guard.quarantine.held_ids(back)  # of some, another revision
            self.guard.unhold([entry_id for entry_id in back if entry_id not in held])
            entries = admitted.take([admitted.ids.index(entry_id) for entry_id in back])
            self.guard.trust(list(self.guard.quarantine.released_among(entries)))
            self.guard.quarantine.readmit(entries)

    def _and_family(
        self, nodes: Sequence[BaseNode], decisions: Sequence[Decision]
    ) -> Steps[tuple[Batch, Sequence[Decision]]]:
        """Return nodes that are to leave with those that serve their text, each with a decision."""
        seen, found = {node.node_id for node in nodes}, list(nodes)
        leaving, new = set(seen), list(nodes)
        for _ in range(HOPS):
            wanted = [i for i in dict.fromkeys(relatives_of(new)) if i not in seen]
            if not wanted:
                break
            new = yield Step("read", (wanted,))
            seen.update(wanted)
            found += new
        batch = to_batch_of(found, self.keys)
        because = {decision.entry_id: decision for decision in decisions}
        plain = (
            because.get(i, Decision(entry_id=i, verdict=Verdict.QUARANTINE)) for i in batch.ids
        )
        held = {
            row: replace(decision, verdict=Verdict.QUARANTINE)
            for row, decision in enumerate(plain)
            if decision.entry_id in leaving
        }
        report = with_family(Report(batch=batch, remarkable=held))
        return batch.take(~report.kept), report.quarantined

    def _stored(self, ids: Sequence[str]) -> Steps[Batch]:
        """Return what the guard has learned and the store holds under the ids."""
        nodes = yield from self._nodes(ids)
        return to_batch_of(nodes, self.keys)

    def _nodes(self, ids: Sequence[str]) -> Steps[list[BaseNode]]:
        known = self.guard.known(ids)
        if not known:
            return []
        nodes = yield Step("read", (known,))
        return list(nodes)

    def _gone(self, older: Batch, ids: Sequence[str]) -> None:
        self.guard.forget(older)
        self.guard.unhold(ids)
        if self.guard.quarantine._exists():  # noqa: SLF001 - asking otherwise would make the file
            self.guard.quarantine.purge(ids, note="deleted through the store", evidence=False)
        self.mask.discard(ids)

    def _held_of(self, ref_doc_id: str) -> list[str]:
        quarantine = self.guard.quarantine
        if not quarantine._exists():  # noqa: SLF001 - asking otherwise would make the file
            return []
        return list(
            dict.fromkeys(
                held.id
                for held in quarantine.list(None)
                if source_of(held.entry.metadata) == ref_doc_id
            )
        )

    def _everything(self) -> Batch:
        ids = self.access.ids()
        nodes: list[BaseNode] = []
        for start in range(0, len(ids), PART):
            nodes += self.mask.visible(self.access.read(ids[start : start + PART]))
        return to_batch(nodes, self.keys) if nodes else NO_ENTRIES


class Kept:
    """What a guarded store and a guarded index have in common: a keeper, and how it is asked."""

    _keeper: Keeper

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self._keeper.guard

    @property
    def quarantine(self) -> Quarantine:
        """Where held nodes are."""
        return self.guard.quarantine

    @property
    def last_report(self) -> Report:
        """What was decided at the latest write."""
        return self._keeper.last_report

    @dispatcher.span
    def release(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Put held nodes back, under their own ids and with their stored vectors.

        Parameters
        ----------
        ids
            Of held nodes; they replace what is live under the same ids.
        by, note
            Who decided, and why; kept in the quarantine's log.

        Raises
        ------
        ragshield_core.errors.QuarantineError
            If one of them is not held; nothing is released then.
        """
        released = self._keeper.run(self._keeper.release(ids, by, note))
        self._record()
        return released

    @dispatcher.span
    async def arelease(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Do as :meth:`release` does, by async methods."""
        released = await self._keeper.arun(self._keeper.release(ids, by, note))
        self._record()
        return released

    @dispatcher.span
    def recall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
        note: str | None = None,
    ) -> tuple[str, ...]:
        """Take nodes out and into quarantine; :meth:`release` puts them back.

        They are held as they are stored, durably before they are deleted; where the store inside
        cannot delete, reads hide them. The guard forgets them, and takes them for suspicious.

        Parameters
        ----------
        ids
            Of stored nodes; those that are not there are passed over.
        decisions
            Why, one per id. What a person has released before then stays; without decisions it
            leaves as well, since a person decides again.
        by, note
            Who decided, and why, where no decisions are given; kept in the quarantine.

        Returns
        -------
        tuple[str, ...]
            The ids that left.

        Raises
        ------
        ragshield_core.errors.InvalidBatchError
            If metadata holds a label or lineage that is no scalar; names the node, and nothing
            left.
        ValueError
            If there are decisions, but not one per id.
        """
        gone = self._keeper.run(self._keeper.recall(ids, decisions, by, note))
        self._record()
        return gone

    @dispatcher.span
    async def arecall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
        note: str | None = None,
    ) -> tuple[str, ...]:
        """Do as :meth:`recall` does, by async methods."""
        gone = await self._keeper.arun(self._keeper.recall(ids, decisions, by, note))
        self._record()
        return gone

    def scan(
        self,
        fpr: float = 0.01,
        clean_ids: Iterable[str] | None = None,
        *,
        quarantine: bool = False,
        seed: int = 0,
    ) -> ScanReport:
        """Audit all that is stored, each node judged against the others.

        The guard's detectors are built anew for it, so that what the guard has learned stays as it
        is. Writes may go on while the audit runs.

        Parameters
        ----------
        fpr, clean_ids, seed
            As of :func:`ragshield_core.scan.scan`.
        quarantine
            Whether findings are held, durably, and deleted; :meth:`release` puts them back. By
            default nothing changes.

        Returns
        -------
        ScanReport
            Findings, worst first. With ``quarantine=True``, those that stayed, because a person has
            released them before or they changed meanwhile, are admitted with a note.
        """
        report = self._keeper.scan(fpr, clean_ids, seed, quarantine=quarantine)
        self._record()
        return report

    def _record(self) -> None:
        """Note what is stored now, where that is not the store's own business."""


def to_batch_of(nodes: Sequence[BaseNode], keys: MetadataKeys) -> Batch:
    """Return stored nodes as a batch; those whose vectors the store does not give are left out."""
    known = [node for node in nodes if node.embedding is not None]
    if len(known) < len(nodes):
        logger.warning(
            "the store gives no vectors of %d nodes, which the guard can therefore not forget",
            len(nodes) - len(known),
        )
    return to_batch(known, keys) if known else NO_ENTRIES


def _work(work: Callable[[], Any]) -> Step:
    return Step("", work=work)


def _drive(steps: Steps[T], do: Callable[[Step], Any]) -> T:
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer, error = None, None
        try:
            answer = do(step)
        except Exception as raised:  # noqa: BLE001 - handed to the operation
            error = raised
