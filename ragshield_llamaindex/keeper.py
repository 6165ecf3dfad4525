"""The one way in: screen, hold durably, write, learn, for a store or an index alike.

Each operation is written once, as a generator that yields what is to be done with the store; one
driver does that with the store's synchronous methods, another with its asynchronous ones.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode

from ragshield_core import Batch, Guard, Quarantine, Report
from ragshield_core.adapters.adoption import learn_store
from ragshield_core.adapters.held import keep_held, keep_replaced, replacement
from ragshield_core.adapters.malformed import Sifted, sift
from ragshield_core.adapters.one_store import claim
from ragshield_core.entries import Entry
from ragshield_core.errors import (
    InvalidBatchError,
    MalformedEntriesError,
    QuarantineError,
    UnfittedGuardWarning,
)
from ragshield_core.findings import Decision, Verdict, printable
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.scan import ScanReport, scan
from ragshield_llamaindex.convert import (
    NO_ENTRIES,
    MetadataKeys,
    as_stored,
    columns_of,
    embedded,
    flagged,
    in_stages,
    noting_images,
    relinked,
    replaced_by,
    replacing,
    source_of,
    to_batch,
    to_node,
    version_of,
    with_plain_vectors,
)
from ragshield_llamaindex.events import dispatcher, report_detection
from ragshield_llamaindex.family import relatives_of, with_family
from ragshield_llamaindex.inner import InnerStore
from ragshield_llamaindex.mask import Mask

T = TypeVar("T")
# Returns nodes with vectors.
Embed = Callable[[Sequence[BaseNode]], Sequence[BaseNode]]

logger = logging.getLogger("ragshield")

# How far away the windows are that may hold a sentence, and the parents of parents.
HOPS = 5
# How many copies of a held node are looked for in the store.
COPIES = 16
# Nodes that are read at a time when a store is adopted.
PART = 1000
# How what holds nodes already is taken over.
ADOPT = {
    "store": "GuardedVectorStore.adopt(store, guard=guard)",
    "index": "ragshield_llamaindex.adopt(index, guard=guard)",
}
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
    name
        Of the store, as the user gave it.
    """

    def __init__(
        self, guard: Guard, access: InnerStore, keys: MetadataKeys, name: str | None = None
    ) -> None:
        self.guard = checked(guard)
        claim(guard, access.inner, name, access.name, stacklevel=4)
        self.access = access
        self.keys = keys
        self.mask = Mask(keys)
        self.mask.load(guard.quarantine)
        self.last_report = Report(batch=NO_ENTRIES)
        # Of documents that an index is replacing: what it deleted, until it brings the new version.
        self._withdrawn: dict[str, list[BaseNode]] = {}
        # One write at a time: a batch is judged by what the one before it left behind. No RLock:
        # an asynchronous write may end in another thread than the one it began in.
        self._lock = threading.Lock()
        self._running: set[asyncio.Task[Any]] = set()

    def look(self, what: str) -> None:
        """Warn of a guard that knows nothing of what its store holds."""
        if self.guard.status().n_known:
            return
        try:
            holds = self.access.holds()
        except Exception as error:  # noqa: BLE001 - any store's own; the first write will say more
            logger.warning(
                "a guard that knows nothing: whether its store holds nodes could not be asked (%s)",
                type(error).__name__,
            )
            return
        if holds:
            msg = (
                f"this guard knows nothing of the nodes that the {what} holds: what is new is "
                f"compared with nothing. Use Guard.load(folder) where the guard was saved, else "
                f"adopt the {what}: {ADOPT[what]}."
            )
            warnings.warn(msg, UnfittedGuardWarning, stacklevel=3)

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
        self,
        nodes: Sequence[BaseNode],
        options: dict[str, Any] | None = None,
        *,
        at_once: bool = False,
    ) -> Steps[Report]:
        """Screen nodes that have vectors; hold the suspicious ones, and store and learn the rest.

        Of a node that is held, an older revision stays. Relationships pass over what was held. Of
        a document that was withdrawn, the version before comes back as far as the new one is held.

        What can be neither stored nor held is named once the others are, or, ``at_once`` and where
        a document is replaced, before anything is.
        """
        documents = self._withdrawn.keys() & set(_documents(nodes))
        before = {one: self._withdrawn.pop(one) for one in documents}
        try:
            sifted = yield _work(lambda: self._sifted(nodes, at_once=at_once or bool(before)))
            nodes = [nodes[row] for row in sifted.rows]
            report = yield from self._add(nodes, sifted, options, before)
        except Exception:  # the new version is not in
            yield from self._put_back([node for older in before.values() for node in older])
            raise
        notes: dict[str, str] = {}
        for ref_doc_id, older in before.items():
            notes |= yield from self._settle(ref_doc_id, older, report)
        self.last_report = report = report.noted(notes)
        if sifted.refused:
            raise MalformedEntriesError(sifted.refused, written=len(sifted.batch) > 0)
        return report

    def _sifted(self, nodes: Sequence[BaseNode], *, at_once: bool) -> Sifted:
        """Tell malformed nodes from the others; refuse all before anything is written, if so."""
        sifted = sift(columns_of(nodes, self.keys), self.guard)
        left = [nodes[row] for row in sifted.rows]
        sifted = sifted.without(self.access.unfit(left))
        sifted.check(self.guard)
        if at_once and sifted.refused:
            raise MalformedEntriesError(sifted.refused, written=False)
        return sifted

    def _batch(self, nodes: Sequence[BaseNode]) -> Batch:
        """Return nodes that were judged elsewhere as a batch.

        Raises
        ------
        InvalidBatchError
            If the store cannot keep one, which a step behind the guard has changed; names it.
        """
        for row, reason in self.access.unfit(nodes).items():
            msg = f"node {printable(nodes[row].node_id)!r} cannot be stored: {reason}"
            raise InvalidBatchError(msg)
        return as_stored(nodes, self.keys)

    def _add(
        self,
        nodes: Sequence[BaseNode],
        sifted: Sifted,
        options: dict[str, Any] | None,
        before: Mapping[str, Sequence[BaseNode]],
    ) -> Steps[Report]:
        batch = replacing(sifted.batch, before)
        report = yield from self._judge(replace(sifted, batch=batch))
        self.last_report = report
        if report.retroactive:
            yield from self.recall([d.entry_id for d in report.retroactive], report.retroactive)
        kept = [node for node, good in zip(nodes, report.kept, strict=True) if good]
        if kept:
            held = [node for node, good in zip(nodes, report.kept, strict=True) if not good]
            stored = flagged(with_plain_vectors(relinked(kept, held)), report.flagged)
            admitted = batch if report.kept.all() else batch.take(report.kept)
            report = report.noted((yield from self._put(admitted, stored, options)))
            yield _work(lambda: self._uncover(admitted))
        report = yield from self._judged_again(report)
        self.last_report = report
        yield _work(lambda: report_detection(report, stage="ingestion"))
        return report

    def release(
        self, ids: Sequence[str], by: str, note: str | None, embed: Embed | None = None
    ) -> Steps[tuple[HeldEntry, ...]]:
        """Put held nodes into the store, with the vectors they were held with, if any.

        Those that were released elsewhere are put there too, unless they are there. A document of
        which nothing is held any more replaces what stayed of the version before.
        """
        quarantine = self.guard.quarantine
        ids = yield _work(lambda: nodes_of(quarantine, ids))
        held = yield _work(lambda: [quarantine.show(entry_id) for entry_id in ids])
        there = yield Step("read", (list(ids),))
        same = {entry.id: entry.fingerprint for entry in to_batch_of(there, self.keys)}
        missing = [one for one in held if same.get(one.id) != one.entry.fingerprint]
        waiting = [one.id for one in held if one.status is Status.HELD]
        late = {one.id for one in missing if one.status is Status.RELEASED}
        if refused := [one.id for one in held if one.id not in late and one.id not in waiting]:
            quarantine.release(refused)  # raises, and names the first; nothing was written
        nodes = yield _work(lambda: with_vectors([to_node(one) for one in held], embed))
        for row, reason in self.access.unfit(nodes).items():
            named = printable(nodes[row].node_id)
            msg = f"node {named!r} cannot be stored, and nothing was released: {reason}"
            raise QuarantineError(msg)
        batch = as_stored(nodes, self.keys)
        # First the store: what fails here is still held. Then the quarantine, then the guard.
        new = {one.id for one in missing}
        if new:
            rows = [row for row, entry_id in enumerate(batch.ids) if entry_id in new]
            yield from self._put(batch.take(rows), [nodes[row] for row in rows])
        hidden = batch.take([row for row, i in enumerate(batch.ids) if i not in new])
        done = yield _work(lambda: quarantine.release(waiting, by=by, note=note))
        self.guard.forget(hidden)
        self.guard.learn(hidden)
        self.guard.forget_held(batch.ids)
        self.guard.trust(batch.ids)
        self.mask.discard(batch.ids)
        yield from self._complete(held)
        return (*done, *(one for one in held if one.id in late))

    def restore(
        self, ids: Sequence[str], by: str, note: str | None
    ) -> Steps[tuple[HeldEntry, ...]]:
        """Put back nodes that texts of another lineage have replaced; recall what took their place.

        That is what is live under their ids, and what is of another lineage in their documents.
        """
        quarantine = self.guard.quarantine
        replaced = yield _work(lambda: replaced_of(quarantine, ids))
        nodes = [to_node(one) for one in replaced]
        batch = as_stored(nodes, self.keys)
        documents = dict.fromkeys(source for m in batch.metadatas if (source := source_of(m)))
        suspects = list(dict.fromkeys((*batch.ids, *(yield from self.nodes_in(documents)))))
        live = to_batch_of((yield Step("read", (suspects,))), self.keys)
        prints = {entry.id: entry.fingerprint for entry in batch}
        lineages = {entry.lineage for entry in batch}
        others = [
            entry.id
            for entry in live
            if prints.get(entry.id, entry.fingerprint) != entry.fingerprint
            or entry.lineage not in lineages
        ]
        yield from self.recall(others, None, by, note)
        yield from self._put(batch, nodes)
        done = yield _work(lambda: quarantine.restore(batch.ids, by=by, note=note))
        self.guard.forget_held(batch.ids)
        self.guard.trust(batch.ids)
        self.mask.remove(batch)
        return done  # type: ignore[no-any-return]

    def arrived(self) -> Steps[frozenset[tuple[str, str | None]]]:
        """Return the documents, with the hashes of their versions, of which nodes are missing here.

        Somebody has released those nodes elsewhere, by the command line say, which writes no store.
        """
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return frozenset()
        released = yield _work(lambda: quarantine.list(Status.RELEASED))
        there = yield Step("read", ([one.id for one in released],))
        present = {node.node_id for node in there}
        nodes = [to_node(one) for one in released if one.id not in present]
        sources = [node.source_node for node in nodes]
        return frozenset((info.node_id, info.hash) for info in sources if info is not None)

    def nodes_in(self, ref_doc_ids: Iterable[str]) -> Steps[list[str]]:
        """Return the ids of the nodes of documents that the store holds."""
        ids: list[str] = []
        for ref_doc_id in ref_doc_ids:
            ids += yield Step("document", (ref_doc_id,))
        return ids

    def _complete(self, released: Sequence[HeldEntry]) -> Steps[None]:
        """Delete what stayed of older versions of documents of which nothing is held any more."""
        for ref_doc_id in dict.fromkeys(source_of(one.entry.metadata) for one in released):
            older = {i for one in released for i in replaced_by(one)}
            if ref_doc_id is None or not older:
                continue
            if (yield _work(lambda: self._held_of(ref_doc_id, Status.HELD))):  # noqa: B023
                continue
            stored = yield Step("document", (ref_doc_id,))
            ids = [entry_id for entry_id in stored if entry_id in older]
            gone = yield from self._stored(ids)
            if ids:
                there = yield Step(
                    "read", ([entry_id for entry_id in stored if entry_id not in older],)
                )
                yield _work(lambda: self._keep_replaced(gone, to_batch_of(there, self.keys)))  # noqa: B023
                yield Step("delete", (ids,))
                yield _work(lambda: self.guard.forget(gone))  # noqa: B023

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

    def purge(self, ids: Sequence[str], by: str, note: str | None) -> Steps[int]:
        """Delete held nodes for good, from the store as well where they are only hidden there."""
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return 0
        wanted = yield _work(lambda: nodes_of(quarantine, ids))
        there = yield Step("read", (wanted,))
        hidden = [node.node_id for node in there if self.mask.hides(node)]
        if hidden:
            yield Step("delete", (hidden,))
        deleted: int = yield _work(
            lambda: quarantine.purge(wanted, by=by, note=note, held_only=True)
        )
        yield _work(lambda: self.guard.forget_held(wanted))
        self.mask.discard(wanted)
        return deleted

    def _judged_again(self, report: Report) -> Steps[Report]:
        """Recall what came before a first calibration, in this batch perhaps, and say so."""
        overdue = self.guard.overdue()
        if overdue:
            yield from self.recall([d.entry_id for d in overdue], overdue)
        return replace(report, retroactive=(*report.retroactive, *overdue))

    def update(
        self, ref_doc_id: str, nodes: Sequence[BaseNode], options: dict[str, Any] | None = None
    ) -> Steps[bool]:
        """Replace a document by a new version, unless a part of that is held; then nothing changes.

        Returns whether it was replaced.
        """
        sifted = yield _work(lambda: self._sifted(nodes, at_once=True))
        batch = sifted.batch
        older = yield Step("document", (ref_doc_id,))
        report = yield from self._judge(sifted, older)
        self.last_report = report
        if report.retroactive:
            yield from self.recall([d.entry_id for d in report.retroactive], report.retroactive)
        yield _work(lambda: report_detection(report, stage="ingestion"))
        if not report.kept.all():
            return False
        # First the new version: what fails here leaves the one before.
        if len(batch):
            leaving = yield Step("read", (older,))
            stored = flagged(with_plain_vectors(nodes), report.flagged)
            self.last_report = report.noted((yield from self._put(batch, stored, options, leaving)))
            yield _work(lambda: self._uncover(batch))
        yield from self.delete_document(ref_doc_id, spare=batch.ids)
        return True

    def admit(
        self, reports: Sequence[Report], nodes: Sequence[BaseNode], replaced: Sequence[str]
    ) -> Steps[Report]:
        """Store nodes that were judged elsewhere, in place of older versions of documents.

        Returns what was judged as one report, with remarks on what takes the place of texts of
        another lineage, and on copies of what is held.

        Parameters
        ----------
        reports
            What was judged, by one guard after the other; held entries are hidden here as well.
        nodes
            Those that go in, with vectors.
        replaced
            Documents whose older versions go.
        """
        judged = []
        for stage in reports:
            judged.append((yield from self._of_copies(stage)))
            self.mask.add(stage.batch.take(~stage.kept))
            if stage.retroactive:
                yield from self.recall([d.entry_id for d in stage.retroactive], stage.retroactive)
        self.last_report = report = in_stages(judged)
        batch = yield _work(lambda: self._batch(nodes))
        nodes = with_plain_vectors(nodes)
        # First the new versions: what fails here leaves those before.
        if len(batch):
            leaving = yield Step("read", ((yield from self.nodes_in(replaced)),))
            notes = yield from self._put(batch, nodes, leaving=leaving)
            self.last_report = report = report.noted(notes)
            yield _work(lambda: self._uncover(batch))
        for ref_doc_id in replaced:
            yield from self.delete_document(ref_doc_id, spare=batch.ids)
        return report

    def withdraw(self, ref_doc_id: str) -> Steps[None]:
        """Delete the nodes of a document, to which its next version belongs: see :meth:`add`.

        What is held of it stays held until then.

        Raises
        ------
        ValueError
            If the store gives no vectors, without which nodes cannot come back; nothing is deleted.
        """
        ids = yield Step("document", (ref_doc_id,))
        older = yield Step("read", (ids,))
        bare = next((node for node in older if node.embedding is None), None)
        if bare is not None:
            msg = (
                f"the store gives no vector of node {bare.node_id!r}, so that it could not come "
                "back if the new version of its document is held; pass an inner_store= that reads "
                "vectors, or call delete_ref_doc and insert."
            )
            raise ValueError(msg)
        if older:
            yield Step("delete", (ids,))
            self._withdrawn[ref_doc_id] = older
            yield _work(lambda: self.guard.forget(to_batch_of(older, self.keys)))

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
        spare: Sequence[str] | None = None,
    ) -> Steps[list[str]]:
        """Delete the nodes of a document from the store and from quarantine.

        Nodes to ``spare`` stay in both: they are of its new version. Where there is one, what it
        replaces of another lineage stays in quarantine.
        """
        self._withdrawn.pop(ref_doc_id, None)
        spared = set(spare or ())
        stored = yield Step("document", (ref_doc_id,))
        ids = [entry_id for entry_id in stored if entry_id not in spared]
        held = yield _work(lambda: self._held_of(ref_doc_id))
        older = yield from self._stored(ids)
        if ids:
            yield Step("delete", (ids,), options)
        judged = [entry_id for entry_id in (*ids, *held) if entry_id not in spared]
        yield _work(lambda: self._gone(older, judged, held_only=spare is not None))
        return ids

    def clear(self, ids: Sequence[str], clear: Step) -> Steps[None]:
        """Empty the store, which held these ids, and forget them; what is held stays held."""
        self._withdrawn.clear()
        older = yield from self._stored(ids)
        yield clear
        yield _work(lambda: self.guard.forget(older))

    def adopt(self, trusted: Iterable[str] | None) -> None:
        """Fit and calibrate the guard on what the store holds."""
        with self._lock:
            learn_store(self.guard, self._everything(), trusted)

    def scan(self, fpr: float, clean_ids: Iterable[str] | None, seed: int) -> ScanReport:
        """Audit all that the store holds, each node judged against the others."""
        with self._lock:
            batch = self._everything()
        fresh = [type(detector)(**detector.config()) for detector in self.guard.detectors]
        return scan(batch, fresh, fpr=fpr, clean_ids=clean_ids, seed=seed)

    # Parts

    def take_out(self, report: ScanReport) -> Steps[ScanReport]:
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

    def _judge(self, sifted: Sifted, replacing: Sequence[str] = ()) -> Steps[Report]:
        screen = partial(self.guard.screen, sifted.whole, replacing=replacing)
        report: Report = yield _work(lambda: with_family(screen()))
        if self.guard.policy.on_detect != "raise":
            report = yield from self._of_copies(report)
        return (yield _work(lambda: self._hold(report, sifted)))  # type: ignore[no-any-return]

    def _hold(self, report: Report, sifted: Sifted) -> Report:
        report = keep_held(self.guard.hold(report), self.guard)
        report = noting_images(sifted.hold(report, self.guard))
        if not report.kept.all():
            self.mask.add(report.batch.take(~report.kept))
        return report

    def _of_copies(self, report: Report) -> Steps[Report]:
        """Say of what is to be held where the very same stands in the store under another id.

        Whoever confirms the copy does not mean that one, and the quarantine remembers it.
        """
        held = report.batch.take(~report.kept)
        notes: dict[str, str] = {}
        for entry, vector in zip(held, held.vectors, strict=True):
            if not vector.size:
                continue
            near = yield Step("near", (vector.tolist(), COPIES))
            copies = [
                node.node_id
                for node in self.mask.visible(near)
                if node.node_id != entry.id and entry.fingerprint in self.mask.prints_of(node)
            ]
            if copies:
                standing = to_batch_of((yield Step("read", (copies,))), self.keys)
                yield _work(partial(self.guard.quarantine.stand, standing))
                named = ", ".join(repr(printable(entry_id)) for entry_id in copies)
                notes[entry.id] = f"the very same is in the store under {named}, and stays there"
        return report.noted(notes)

    def _put(
        self,
        batch: Batch,
        nodes: Sequence[BaseNode],
        options: dict[str, Any] | None = None,
        leaving: Sequence[BaseNode] = (),
    ) -> Steps[dict[str, str]]:
        """Write nodes in place of older revisions, and learn them in their place.

        The store is asked for those: others may write to it as well, of whom the guard knows
        nothing, and stores pass over an id that is there, or keep both. Returns remarks, by id, on
        nodes that take the place of texts of another lineage, those of nodes ``leaving`` included:
        they are of documents that are replaced.
        """
        older = yield Step("read", (list(batch.ids),))
        replaced = {node.node_id: node for node in (*leaving, *older)}.values()
        visible = to_batch_of(self.mask.visible(list(replaced)), self.keys)
        notes: dict[str, str] = yield _work(lambda: self._keep_replaced(visible, batch))
        if older:
            yield Step("delete", (list(dict.fromkeys(node.node_id for node in older)),))
        try:
            yield Step("write", (list(nodes),), options)
        except Exception:
            if older:  # as it was before
                yield Step("write", (older,), options)
            raise
        before = to_batch_of(older, self.keys)
        yield _work(lambda: self.guard.forget(before))
        yield _work(lambda: self.guard.learn(batch))
        return notes

    def _keep_replaced(self, older: Batch, newer: Batch) -> dict[str, str]:
        """Keep live texts that others of another lineage take the place of.

        A text stands for one under the same id, and for all of its document. A document whose
        texts stay as they are was moved.

        Returns
        -------
        dict[str, str]
            A remark on each of the newer ones, by id.
        """
        notes: dict[str, str] = {}
        kept: dict[str, str] = {}
        for olds, news in _counterparts(older, newer):
            lineages = {new.lineage for new in news}
            lost = [old for old in olds if old.lineage not in lineages]
            if news and lost and {old.text for old in olds} != {new.text for new in news}:
                kept |= {old.id: replacement(news[0].lineage, old.lineage) for old in lost}
                notes |= {new.id: replacement(new.lineage, lost[0].lineage) for new in news}
        if kept:
            quarantine = self.guard.quarantine
            rows = [row for row, entry_id in enumerate(older.ids) if entry_id in kept]
            keep_replaced(quarantine, older.take(rows), kept)
            # Perhaps by what had stood there before.
            rows = [row for row, entry_id in enumerate(newer.ids) if entry_id in notes]
            quarantine.readmit(newer.take(rows))
        return notes

    def _uncover(self, admitted: Batch) -> None:
        """Show what was held, and released or purged elsewhere, now that it is written again."""
        back = self.mask.remove(admitted)
        if back:
            held = self.guard.quarantine.held_ids(back)  # of some, another revision
            self.guard.forget_held([entry_id for entry_id in back if entry_id not in held])
            entries = admitted.take([admitted.ids.index(entry_id) for entry_id in back])
            self.guard.trust(list(self.guard.quarantine.released_among(entries)))
            self.guard.quarantine.readmit(entries)

    def _put_back(self, nodes: Sequence[BaseNode]) -> Steps[None]:
        """Write nodes that were withdrawn, unless they are there or held by now."""
        nodes = self.mask.visible(nodes)
        there = yield Step("read", ([node.node_id for node in nodes],))
        present = {node.node_id for node in there}
        missing = [node for node in nodes if node.node_id not in present]
        if missing:
            yield Step("write", (missing,))
            yield _work(lambda: self.guard.learn(to_batch_of(missing, self.keys)))

    def _settle(
        self, ref_doc_id: str, older: Sequence[BaseNode], report: Report
    ) -> Steps[dict[str, str]]:
        """End the update of a document that was withdrawn, as far as its nodes were admitted.

        Of the version before, what no admitted node stands for comes back. Returns remarks, by id,
        on nodes that take the place of texts of another lineage.
        """
        rows = [r for r, m in enumerate(report.batch.metadatas) if source_of(m) == ref_doc_id]
        version = report.batch.take(rows)
        admitted = version.take(report.kept[rows])
        known = {entry.fingerprint for entry in admitted}
        former = to_batch_of(self.mask.visible(older), self.keys)
        lost: set[str] = set()
        if len(admitted) < len(version):
            lost = {e.id for e in former if e.id not in admitted.ids and e.fingerprint not in known}
            yield from self._put_back([node for node in older if node.node_id in lost])
            logger.warning(
                "%d nodes of the new version of document %s are held: %d of the one before stay "
                "until they are released",
                *(len(version) - len(admitted), printable(ref_doc_id), len(lost)),
            )
        # What is held of other versions than this one.
        held = yield _work(lambda: self._held_of(ref_doc_id))
        gone = [entry_id for entry_id in held if entry_id not in version.ids]
        yield _work(lambda: self._gone(NO_ENTRIES, gone, held_only=True))
        left = former.take([row for row, entry_id in enumerate(former.ids) if entry_id not in lost])
        return (yield _work(lambda: self._keep_replaced(left, admitted)))  # type: ignore[no-any-return]

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
        known = self.guard.known(ids)
        nodes = (yield Step("read", (known,))) if known else []
        return to_batch_of(nodes, self.keys)

    def _gone(self, older: Batch, ids: Sequence[str], *, held_only: bool = False) -> None:
        self.guard.forget(older)
        self.guard.forget_held(ids)
        if self.guard.quarantine.exists():
            note = "deleted through the store"
            self.guard.quarantine.purge(ids, note=note, evidence=False, held_only=held_only)
        self.mask.discard(ids)

    def _held_of(self, ref_doc_id: str, status: Status | None = None) -> list[str]:
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return []
        parts = quarantine.prints(documents=[ref_doc_id])
        return list(dict.fromkeys(one.id for one in parts if status in (None, one.status)))

    def _everything(self) -> Batch:
        ids = list(dict.fromkeys(self.access.ids()))
        nodes: dict[str, BaseNode] = {}  # the latest revision under each id
        for start in range(0, len(ids), PART):
            read = self.mask.visible(self.access.read(ids[start : start + PART]))
            nodes |= {node.node_id: node for node in read}
        return to_batch(list(nodes.values()), self.keys) if nodes else NO_ENTRIES


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
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Put held nodes back, under their own ids and with their stored vectors.

        Nodes that were released elsewhere (``ragshield quarantine release`` writes to no store) are
        put back as well. A document of which nothing is held any more replaces what stayed of the
        version before.

        Parameters
        ----------
        ids
            Of held nodes, or of documents: all nodes of theirs that are held. They replace what is
            live under the same ids.
        by, note
            Who decided, and why; kept in the quarantine's log.
        embed_model
            For nodes that were held without a vector, by a step in front of the embedding. An index
            has its own.

        Raises
        ------
        ragshield_core.errors.QuarantineError
            If one of them is not held, needs a vector, or cannot be kept by the store; nothing is
            released then.
        """
        steps = self._keeper.release(ids, by, note, self._embed(embed_model))
        released = self._keeper.run(steps)
        self._record()
        return released

    @dispatcher.span
    async def arelease(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Do as :meth:`release` does, by async methods."""
        steps = self._keeper.release(ids, by, note, self._embed(embed_model))
        released = await self._keeper.arun(steps)
        self._record()
        return released

    @dispatcher.span
    def restore(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Put back nodes that texts of another lineage have replaced.

        Parameters
        ----------
        ids
            Of replaced nodes, see ``quarantine.list("replaced")``, or of documents: all nodes of
            the version that was replaced last. What took their place, under the same ids or as
            parts of another lineage of the same document, goes into quarantine, as by
            :meth:`recall`.
        by, note
            As of :meth:`release`.

        Raises
        ------
        ragshield_core.errors.QuarantineError
            If nothing was replaced under one of the ids; nothing is put back then.
        """
        restored = self._keeper.run(self._keeper.restore(ids, by, note))
        self._note_restored(restored)
        return restored

    @dispatcher.span
    async def arestore(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Do as :meth:`restore` does, by async methods."""
        restored = await self._keeper.arun(self._keeper.restore(ids, by, note))
        self._note_restored(restored)
        return restored

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
            Of stored nodes; those that are not there are ignored.
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

    @dispatcher.span
    def purge(self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None) -> int:
        """Delete held nodes for good; what is live under the same ids stays.

        Parameters
        ----------
        ids
            Of held nodes, or of documents: all nodes of theirs that are held. Others are ignored.
        by, note
            Who decided, and why; kept in the quarantine's log.

        Returns
        -------
        int
            How many revisions were deleted.
        """
        deleted = self._keeper.run(self._keeper.purge(ids, by, note))
        self._record()
        return deleted

    @dispatcher.span
    async def apurge(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> int:
        """Do as :meth:`purge` does, by async methods."""
        deleted = await self._keeper.arun(self._keeper.purge(ids, by, note))
        self._record()
        return deleted

    def refresh_quarantine(self) -> None:
        """Ask the quarantine what is held.

        Only needed where another process, or a reviewer, holds or judges nodes that stay in the
        store inside. What is held here is known at once.
        """
        self._keeper.mask.load(self.quarantine)

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
        report = self._keeper.scan(fpr, clean_ids, seed)
        if quarantine and report.found:
            report = self._keeper.run(self._keeper.take_out(report))
            self._record()
        return report

    async def ascan(
        self,
        fpr: float = 0.01,
        clean_ids: Iterable[str] | None = None,
        *,
        quarantine: bool = False,
        seed: int = 0,
    ) -> ScanReport:
        """Do as :meth:`scan` does, in a thread; findings are deleted by async methods."""
        report = await asyncio.to_thread(self._keeper.scan, fpr, clean_ids, seed)
        if quarantine and report.found:
            report = await self._keeper.arun(self._keeper.take_out(report))
            self._record()
        return report

    @classmethod
    async def aadopt(cls, inner: Any, **options: Any) -> Self:
        """Do as ``adopt`` does, in a thread."""
        return await asyncio.to_thread(partial(cls.adopt, inner, **options))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        # Of counts and kinds only: it ends up in logs.
        guard, kind = self.guard, type(self._keeper.access.inner).__name__
        return (
            f"<{type(self).__name__} over {kind}: {len(guard.detectors)} detectors, "
            f"{guard.status().n_known} entries known, "
            f"{'calibrated' if guard.calibrated else 'not calibrated'}; {self.quarantine!r}>"
        )

    def __str__(self) -> str:
        return repr(self)

    def _embed(self, model: BaseEmbedding | None) -> Embed | None:
        """Return how nodes get vectors, if there is a model."""
        return None if model is None else embedding_with(model)

    def _record(self) -> None:
        """Note what is stored now, where that is not the store's own business."""

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:  # noqa: ARG002 - for an index
        """Note that documents are as they were."""
        self._record()


def nodes_of(quarantine: Quarantine, ids: Sequence[str]) -> list[str]:
    """Return ids with those of documents replaced by the ids of their held nodes."""
    nodes = quarantine.held_ids(ids)
    by_document: dict[str, list[str]] = {}
    others = [entry_id for entry_id in ids if entry_id not in nodes]
    for one in quarantine.list(documents=others) if others else ():
        source = source_of(one.entry.metadata)
        if source is not None:
            by_document.setdefault(source, []).append(one.id)
    wanted = ([i] if i in nodes else by_document.get(i, [i]) for i in ids)
    return list(dict.fromkeys(chain.from_iterable(wanted)))


def replaced_of(quarantine: Quarantine, ids: Sequence[str]) -> list[HeldEntry]:
    """Return the nodes that were replaced last under ids of nodes, or as parts of documents.

    Raises
    ------
    QuarantineError
        If there are none; names the id.
    """
    latest: dict[str, HeldEntry] = {}
    by_document: dict[str, list[HeldEntry]] = {}
    replaced = partial(quarantine.list, Status.REPLACED)
    some = (*replaced(ids=ids), *replaced(documents=ids))
    for one in sorted(some, key=lambda one: one.held_at):
        latest[one.id] = one
        source = source_of(one.entry.metadata)
        if source is not None:
            by_document.setdefault(source, []).append(one)
    found: dict[str, HeldEntry] = {}
    for wanted in ids:
        if wanted in latest:
            found[wanted] = latest[wanted]
        elif wanted in by_document:
            version = version_of(by_document[wanted][-1])
            same = [one for one in by_document[wanted] if version_of(one) == version]
            found |= {one.id: one for one in same}
        else:
            quarantine.show(wanted, Status.REPLACED)  # raises
    return list(found.values())


def with_vectors(nodes: Sequence[BaseNode], embed: Embed | None) -> list[BaseNode]:
    """Return nodes, those that were held without a vector embedded now.

    Raises
    ------
    QuarantineError
        If there is one, and nothing to embed it with; names it.
    """
    bare = [node for node in nodes if node.embedding is None]
    if not bare:
        return list(nodes)
    made = {} if embed is None else {node.node_id: node for node in embed(bare)}
    missing = [node for node in bare if node.node_id not in made]
    missing += [node for node in made.values() if node.embedding is None]
    if missing:
        msg = (
            f"node {missing[0].node_id!r} was held without a vector, and nothing was released; "
            "pass embed_model=, the one that the store is filled with."
        )
        raise QuarantineError(msg)
    return [made.get(node.node_id, node) for node in nodes]


def embedding_with(model: BaseEmbedding) -> Embed:
    """Return a function that embeds nodes as an index does."""

    def embed(nodes: Sequence[BaseNode]) -> list[BaseNode]:
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        vectors = model.get_text_embedding_batch(texts)
        return [embedded(node, vector) for node, vector in zip(nodes, vectors, strict=True)]

    return embed


def to_batch_of(nodes: Sequence[BaseNode], keys: MetadataKeys) -> Batch:
    """Return stored nodes as a batch; those whose vectors the store does not give are left out."""
    known = [node for node in nodes if node.embedding is not None]
    if len(known) < len(nodes):
        logger.warning(
            "the store gives no vectors of %d nodes, which the guard can therefore not forget",
            len(nodes) - len(known),
        )
    # Some stores keep several revisions under one id; the latest counts.
    latest = {node.node_id: node for node in known}
    return as_stored(list(latest.values()), keys) if latest else NO_ENTRIES


def checked(guard: object) -> Guard:
    """Return a guard.

    Raises
    ------
    TypeError
        If it is none.
    """
    if isinstance(guard, Guard):
        return guard
    msg = (
        f"guard is of type {type(guard).__name__}, expected a ragshield_core.Guard; "
        "Guard.default() has all detectors."
    )
    raise TypeError(msg)


def _counterparts(older: Batch, newer: Batch) -> Iterator[tuple[list[Entry], list[Entry]]]:
    """Yield what stood together, as one document or under one id, and what stands there now."""
    groups: dict[tuple[str | None, str], list[Entry]] = {}
    for old in older:
        source = source_of(old.metadata)
        groups.setdefault((source, old.id if source is None else ""), []).append(old)
    by_id = {new.id: new for new in newer} if groups else {}
    by_document: dict[str | None, list[Entry]] = {}
    for new in by_id.values():
        by_document.setdefault(source_of(new.metadata), []).append(new)
    for (source, _), olds in groups.items():
        of_document = [] if source is None else by_document.get(source, [])
        same_ids = [by_id[old.id] for old in olds if old.id in by_id]
        yield olds, list({new.id: new for new in (*same_ids, *of_document)}.values())


def _documents(nodes: Sequence[BaseNode]) -> Iterator[str]:
    """Yield the documents of nodes, of which some may turn out to be none."""
    for node in nodes:
        with suppress(Exception):  # such as are named when they are judged
            if isinstance(node.ref_doc_id, str):
                yield node.ref_doc_id


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
