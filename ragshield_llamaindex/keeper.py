"""Writes of a store or an index: the core's order, and what documents of nodes add to it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilters

from ragshield_core import Batch, Guard, Report
from ragshield_core.learning.events import Change
from ragshield_core.learning.recorder import Intent
from ragshield_core.model.arguments import kind_of
from ragshield_core.model.entries import Entry
from ragshield_core.model.errors import (
    InvalidBatchError,
    MalformedEntriesError,
    QuarantineError,
    UnfittedGuardWarning,
)
from ragshield_core.model.findings import Decision, Verdict, printable
from ragshield_core.neighbors.table import Where
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.store.keeper import PART, Keeper, Progress, Standing
from ragshield_core.store.malformed import Sifted, sift
from ragshield_core.store.one_store import claim
from ragshield_core.store.reconciling import warn_if_different
from ragshield_core.store.steps import Steps, asked, own
from ragshield_core.store.stored_vectors import use_table
from ragshield_core.store.updates import NewVersion, held_whole, is_part, rejected, waits
from ragshield_llamaindex.convert import (
    NO_ENTRIES,
    MetadataKeys,
    as_stored,
    columns_of,
    flagged,
    in_stages,
    node_of,
    noting_images,
    relinked,
    source_of,
    to_batch,
    to_node,
    with_plain_vectors,
)
from ragshield_llamaindex.events import report_detection
from ragshield_llamaindex.family import relatives_of, with_family
from ragshield_llamaindex.held_nodes import Embed, nodes_of, replaced_of, with_vectors
from ragshield_llamaindex.inner import InnerStore
from ragshield_llamaindex.mask import Mask

logger = logging.getLogger("ragshield")

# How far away the windows are that may hold a sentence, and the parents of parents.
HOPS = 5
# Whose stores find neighbours.
ABLE = "PGVectorStore or QdrantVectorStore (one with a synchronous client)"
# How what holds nodes already is taken over.
ADOPT = {
    "store": "GuardedVectorStore.adopt(store, guard=guard)",
    "index": "ragshield_llamaindex.adopt(index, guard=guard)",
}


class How(NamedTuple):
    """What is written, and with which arguments of the store's ``add``."""

    nodes: Sequence[BaseNode]
    options: dict[str, Any] | None = None


@dataclass(slots=True)
class Foreseen:
    """What a pipeline is going to store, as processes that share what they know were told."""

    report: Report | None = None
    intent: Intent | None = None


class NodeKeeper(Keeper[BaseNode]):
    """Keeps a store of nodes and a guard in step.

    Parameters
    ----------
    guard, access
        The guard, and the nodes of the store.
    label_key, lineage_key
        Where metadata says what belongs to a revision.
    name
        Of the store, as the user gave it.
    neighbors
        Where the guard finds neighbours: in the ``"store"``, in ``"memory"``, or, by default, as
        it was saved.
    """

    mask: Mask

    def __init__(
        self,
        guard: Guard,
        access: InnerStore,
        label_key: str = "label",
        lineage_key: str | None = None,
        name: str | None = None,
        neighbors: Where | None = None,
    ) -> None:
        claim(checked(guard), access.inner, name, access.name, stacklevel=4)
        if use_table(guard, access.table, neighbors, store=access.inner, able=ABLE):
            guard.connections.let_go()
        self.access = access
        self.keys = MetadataKeys(label=label_key, lineage=lineage_key)
        super().__init__(guard, Mask(self.keys))
        # Of documents that an index is replacing: what it deleted, until it brings the new version.
        self._withdrawn: dict[str, list[BaseNode]] = {}

    def look(self, what: str, *, check: bool = True) -> None:
        """Warn of a guard that knows nothing of what its store holds, or something else."""
        if self.guard.n_known:
            if check and self.access.ids_alone:
                warn_if_different(self, what, stacklevel=4)
            return
        try:
            holds = self.access.size() > 0
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

    # What the store is asked for

    def stored(self, ids: Sequence[str]) -> Steps[Standing[BaseNode]]:
        """Return the nodes that the store holds under the ids."""
        nodes = yield from self._read(ids)
        return Standing(to_batch_of(nodes, self.keys), nodes)

    def ids(self) -> Steps[list[str]]:
        """Return the ids of all nodes that the store holds."""
        ids: list[str] = yield asked(self.access, "ids")
        return ids

    def _read(self, ids: Sequence[str]) -> Steps[list[BaseNode]]:
        nodes: list[BaseNode] = yield asked(self.access, "read", list(ids))
        return nodes

    def _write(self, batch: Batch, how: How | None, older: Sequence[BaseNode]) -> Steps[None]:
        if how is None:  # as they were held
            pairs = zip(batch, batch.vectors, strict=True)
            how = How([node_of(entry, vector.tolist()) for entry, vector in pairs])
        options = how.options or {}
        # Most stores skip an id that is there, or keep both.
        step: Literal["write", "replace"]
        step = "replace" if older and self.access.replaces else "write"
        if older and step == "write":
            yield from self._delete(list(dict.fromkeys(node.node_id for node in older)))
        try:
            yield from self._put(step, how.nodes, options)
        except Exception:
            if older:  # as it was before
                yield from self._put(step, older, options)
            raise

    def _put(
        self, step: Literal["write", "replace"], nodes: Sequence[BaseNode], options: dict[str, Any]
    ) -> Steps[None]:
        yield asked(self.access, step, list(nodes), **options)

    def _delete(self, ids: Sequence[str], options: dict[str, Any] | None = None) -> Steps[None]:
        yield asked(self.access, "delete", list(ids), **(options or {}))

    def _near(self, vector: list[float], k: int) -> Steps[Sequence[BaseNode]]:
        nodes: Sequence[BaseNode] = yield asked(self.access, "near", vector, k)
        return nodes

    def _document(self, ref_doc_id: str) -> Steps[list[str]]:
        ids: list[str] = yield asked(self.access, "document", ref_doc_id)
        return ids

    def everything(self, part: int = PART, tell: Progress = lambda *_: None) -> Batch:
        """Return all nodes that can be seen, the latest revision under each id."""
        ids = list(dict.fromkeys(self.access.ids()))
        nodes: dict[str, BaseNode] = {}
        for start in range(0, len(ids), part):
            tell("reading", start, len(ids))
            read = self.mask.visible(self.access.read(ids[start : start + part]))
            nodes |= {node.node_id: node for node in read}
        return to_batch(list(nodes.values()), self.keys) if nodes else NO_ENTRIES

    def _entries_of(self, held: Sequence[HeldEntry], embed: Embed | None) -> Batch:
        nodes = with_vectors([to_node(one) for one in held], embed)
        for row, reason in self.access.unfit(nodes).items():
            named = printable(nodes[row].node_id)
            msg = f"node {named!r} cannot be stored, and nothing was released: {reason}"
            raise QuarantineError(msg)
        batch = as_stored(nodes, self.keys)
        self.guard.check_dim(batch)
        return batch

    # What nodes have beside an id and a text: documents, and relatives that serve their text

    def _judged(self, report: Report) -> Report:
        return with_family(report)

    def _hold(self, report: Report, sifted: Sifted, versions: Sequence[NewVersion] = ()) -> Report:
        return noting_images(super()._hold(report, sifted, versions))

    def _updated(self, entry: Entry) -> str | None:
        return source_of(entry.metadata)

    def _superseded(self, versions: Sequence[NewVersion]) -> None:
        """Do so with what was held of new documents as well."""
        super()._superseded(versions)
        for version in versions:
            held = self._held_of(version.document, Status.HELD)
            gone = [entry_id for entry_id in held if entry_id not in version.ids]
            note = "a later version of its document is in the store"
            self.guard.writes.forget_held(self.guard.quarantine.supersede(gone, note=note))

    def _document_of(self, entry: Entry) -> str | None:
        return source_of(entry.metadata)

    def _parts_of(self, entries: Batch) -> Steps[list[str]]:
        documents = (source_of(metadata) for metadata in entries.metadatas)
        return (yield from self.nodes_in(dict.fromkeys(d for d in documents if d is not None)))

    def _held_under(self, ids: Sequence[str]) -> list[str]:
        return nodes_of(self.guard.quarantine, ids)

    def _replaced_under(self, ids: Sequence[str]) -> list[HeldEntry]:
        return replaced_of(self.guard.quarantine, ids)

    def _leaving(
        self, standing: Standing[BaseNode], because: Mapping[str, Decision] | None
    ) -> Steps[tuple[Batch, Sequence[Decision] | None]]:
        """Return nodes that are to leave with those that serve their text."""
        found = list(standing.items)
        leaving = {node.node_id for node in found}
        seen, new = set(leaving), found
        for _ in range(HOPS):
            wanted = [i for i in dict.fromkeys(relatives_of(new)) if i not in seen]
            if not wanted:
                break
            new = yield from self._read(wanted)
            seen.update(wanted)
            found = [*found, *new]
        batch = to_batch_of(found, self.keys)
        plain = {
            row: (because or {}).get(i, Decision(entry_id=i, verdict=Verdict.QUARANTINE))
            for row, i in enumerate(batch.ids)
            if i in leaving
        }
        held = {row: replace(one, verdict=Verdict.QUARANTINE) for row, one in plain.items()}
        report = with_family(Report(batch=batch, remarkable=held))
        return batch.take(~report.admitted), None if because is None else report.quarantined

    # Operations on nodes and documents

    def add_nodes(
        self,
        nodes: Sequence[BaseNode],
        options: dict[str, Any] | None = None,
        *,
        at_once: bool = False,
    ) -> Steps[Report]:
        """Screen nodes that have vectors; hold the suspicious ones, and store and learn the rest.

        Of a document that is known, all nodes go in or none does; of one that was withdrawn, the
        version before comes back if none does. Relationships skip what was held.

        What can be neither stored nor held is named once the others are, or, ``at_once`` and where
        a document is replaced, before anything is.
        """
        documents = self._withdrawn.keys() & set(_documents(nodes))
        before = {one: self._withdrawn.pop(one) for one in documents}
        try:
            sifted = yield own(self._sifted, nodes, at_once=at_once or bool(before))
            fit = [nodes[row] for row in sifted.rows]
            versions = [self._version(one, older, sifted.batch) for one, older in before.items()]
            report = yield from self.add(sifted, partial(_how, fit, options), versions=versions)
            yield own(report_detection, report, stage="ingestion")
        except Exception:  # the new version is not in
            yield from self._put_back([node for older in before.values() for node in older])
            raise
        waiting = {version.document for version in rejected(report, versions)}
        for ref_doc_id, older in before.items():
            if ref_doc_id in waiting:
                yield from self._put_back(older)
                continue
            version = next(one for one in versions if one.document == ref_doc_id)
            former = to_batch_of(self.mask.visible(older), self.keys)
            notes = yield own(self.keep_replaced, [former], _parts(report.batch, version))
            self.last_report = report = report.noted(notes)
        if sifted.refused:
            raise MalformedEntriesError(sifted.refused, written=len(sifted.batch) > 0)
        return report

    def _version(self, ref_doc_id: str, older: Sequence[BaseNode], batch: Batch) -> NewVersion:
        """Return the new version of a document, of which the older nodes were withdrawn."""
        prints = {one.id: one.fingerprint for one in to_batch_of(older, self.keys)}
        parts = [entry for entry in batch if source_of(entry.metadata) == ref_doc_id]
        kept = [one.id for one in parts if prints.get(one.id) == one.fingerprint]
        ids = frozenset(one.id for one in parts)
        return NewVersion(ref_doc_id, ids, frozenset(prints), frozenset(kept))

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

    def update(
        self, ref_doc_id: str, nodes: Sequence[BaseNode], options: dict[str, Any] | None = None
    ) -> Steps[bool]:
        """Replace a document by a new version, unless a part of that is held; then nothing changes.

        Returns whether it was replaced.
        """
        sifted = yield own(self._sifted, nodes, at_once=True)
        older = yield from self._document(ref_doc_id)
        version = NewVersion(ref_doc_id, frozenset(sifted.batch.ids), frozenset(older))
        how = partial(_how, nodes, options)
        report = yield from self.add(sifted, how, versions=[version], delete=True)
        yield own(report_detection, report, stage="ingestion")
        return bool(report.admitted.all())

    def still_held(self, documents: Iterable[tuple[str, str]]) -> Steps[frozenset[str]]:
        """Return the documents whose very version waits while the one before is served.

        One of which a part was confirmed as poisoned waits for good.

        Parameters
        ----------
        documents
            Their ids and hashes.
        """
        found: frozenset[str] = yield own(self._still_held, dict(documents))
        stored: list[str] = []
        for ref_doc_id in found:  # of nothing is the version before served after a loss
            ids = yield from self._document(ref_doc_id)
            stored += [ref_doc_id] if ids else []
        return frozenset(stored)

    def _still_held(self, asked: Mapping[str, str]) -> frozenset[str]:
        quarantine, stands = self.guard.quarantine, (Status.HELD, Status.CONFIRMED)
        if not asked or not quarantine.exists():
            return frozenset()
        parts = quarantine.prints(documents=list(asked))
        known = sorted({one.id for one in parts if one.status in stands})
        waiting = waits(quarantine, known) if known else []
        held = quarantine.list(None, ids=waiting) if waiting else ()
        sources = [(one, to_node(one).source_node) for one in held if one.status in stands]
        return frozenset(
            source.node_id
            for one, source in sources
            if source is not None and asked.get(source.node_id) == source.hash
            if not is_part(one)
        )

    def foresee(self, foreseen: Foreseen, sifted: Sifted, replacing: Collection[str]) -> Report:
        """Judge nodes, and say that those admitted are going to be stored, see :meth:`admit`.

        Not at once: steps behind the guard come first. Who judges meanwhile reckons with them.
        """
        steps = self._foreseen(sifted, list(replacing))
        foreseen.report, foreseen.intent = self.run(steps)
        return foreseen.report

    def _foreseen(
        self, sifted: Sifted, replacing: Sequence[str]
    ) -> Steps[tuple[Report, Intent | None]]:
        versions = yield from self._versions(sifted.batch, replacing, ())
        return (yield from self._decided(sifted, replacing, sifted.admitted, versions=versions))

    def give_up(self, foreseen: Foreseen) -> Steps[None]:
        """Settle what was foreseen and did not come, by what the store says."""
        intent, foreseen.intent = foreseen.intent, None
        yield from self._given_up(intent)

    def admit(
        self,
        reports: Sequence[Report],
        nodes: Sequence[BaseNode],
        replaced: Sequence[str],
        waiting: Sequence[str],
        foreseen: Foreseen,
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
        waiting
            Documents whose older versions stay, since a part of the new one is held.
        foreseen
            What was said of them before, if anything.
        """
        judged = []
        for stage in reports:
            if stage is foreseen.report:
                judged.append(stage)
            else:
                judged.append((yield from self.of_copies(stage)))
                self.mask.add(stage.batch.take(~stage.admitted))
            yield from self.recall_found(stage.retroactive)
        report: Report = in_stages(judged)
        versions = []
        for ref_doc_id in waiting:
            older = yield from self._read((yield from self._document(ref_doc_id)))
            versions.append(self._version(ref_doc_id, older, report.batch))
        hold = partial(self._held_whole, report, versions)
        report = yield own(self.guard.writes.together, hold)
        self.last_report = report
        batch: Batch = yield own(self._batch, nodes)
        # First the new versions: what fails here leaves those before.
        if len(batch):
            leaving = (yield from self.stored((yield from self.nodes_in(replaced)))).entries
            told = foreseen.intent if _says(foreseen.intent, batch) else None
            notes = yield from self.put(batch, How(with_plain_vectors(nodes)), leaving, told)
            if told is not None:
                foreseen.intent = None
            self.last_report = report = report.noted(notes)
            yield own(self.uncover, batch, report)
        yield from self.give_up(foreseen)
        for ref_doc_id in replaced:
            version = NewVersion(ref_doc_id, frozenset(batch.ids))
            left = [i for i in (yield from self._document(ref_doc_id)) if i not in version.ids]
            leaving = (yield from self.stored(left)).entries
            yield from self._replaced([version], left, leaving)
        return report

    def _held_whole(self, report: Report, versions: Sequence[NewVersion]) -> Report:
        """Hold the other nodes of versions of which a step of a pipeline has held some."""
        report = held_whole(report, versions, self.guard.quarantine)
        self.mask.add(report.batch.take(~report.admitted))
        return report

    def withdraw(self, ref_doc_id: str) -> Steps[None]:
        """Delete the nodes of a document, to which its next version belongs: see :meth:`add_nodes`.

        What is held of it stays held until then.

        Raises
        ------
        ValueError
            If the store gives no vectors, without which nodes cannot come back; nothing is deleted.
        """
        ids = yield from self._document(ref_doc_id)
        older = yield from self._read(ids)
        bare = next((node for node in older if node.embedding is None), None)
        if bare is not None:
            msg = (
                f"the store gives no vector of node {bare.node_id!r}, so that it could not come "
                "back if the new version of its document is held; pass an inner_store= that reads "
                "vectors, or call delete_ref_doc and insert."
            )
            raise ValueError(msg)
        if older:
            yield from self._leave(to_batch_of(older, self.keys), self._delete(ids))
            self._withdrawn[ref_doc_id] = older

    def delete_document(
        self, ref_doc_id: str, options: dict[str, Any] | None = None
    ) -> Steps[list[str]]:
        """Delete the nodes of a document from the store and from quarantine."""
        self._withdrawn.pop(ref_doc_id, None)
        ids = yield from self._document(ref_doc_id)
        held = yield own(self._held_of, ref_doc_id)
        older = yield from self._learned(ids)
        if ids:
            yield from self._leave(older, self._delete(ids, options))
        yield own(self._gone, [*ids, *held])
        return ids

    def delete_nodes(
        self, ids: Sequence[str] | None, filters: MetadataFilters | None
    ) -> Steps[None]:
        """Delete nodes, or those of them, or of all, that filters choose."""
        if filters is not None:
            found = yield asked(self.access.inner, "get_nodes", ids, filters)
            ids = [node.node_id for node in found]
        yield from self.delete(ids or [])

    def clear(self) -> Steps[None]:
        """Empty the store, and forget what it held; what is held stays held."""
        self._withdrawn.clear()
        older = yield from self._learned((yield from self.ids()))
        yield from self._leave(older, self._cleared())

    def _cleared(self) -> Steps[None]:
        yield asked(self.access.inner, "clear")

    def arrived(self) -> Steps[frozenset[tuple[str, str | None]]]:
        """Return the documents, with the hashes of their versions, of which nodes are missing here.

        A reviewer has released those nodes elsewhere, as the command line does, which writes no
        store.
        """
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return frozenset()
        released = yield own(quarantine.list, Status.RELEASED)
        there = yield from self._read([one.id for one in released])
        present = {node.node_id for node in there}
        nodes = [to_node(one) for one in released if one.id not in present]
        sources = [node.source_node for node in nodes]
        return frozenset((info.node_id, info.hash) for info in sources if info is not None)

    def nodes_in(self, ref_doc_ids: Iterable[str]) -> Steps[list[str]]:
        """Return the ids of the nodes of documents that the store holds."""
        ids: list[str] = []
        for ref_doc_id in ref_doc_ids:
            ids += yield from self._document(ref_doc_id)
        return ids

    # Parts

    def _put_back(self, nodes: Sequence[BaseNode]) -> Steps[None]:
        """Write nodes that were withdrawn, unless they are there or held by now."""
        nodes = self.mask.visible(nodes)
        there = yield from self._read([node.node_id for node in nodes])
        present = {node.node_id for node in there}
        missing = [node for node in nodes if node.node_id not in present]
        if missing:
            batch = to_batch_of(missing, self.keys)
            intent = yield own(self.guard.writes.intend, self._as_told(batch))
            yield from self._carried_out(intent, self._put("write", missing, {}))

    def _held_of(self, ref_doc_id: str, status: Status | None = None) -> list[str]:
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return []
        parts = quarantine.prints(documents=[ref_doc_id])
        return list(dict.fromkeys(one.id for one in parts if status in (None, one.status)))


def _says(intent: Intent | None, batch: Batch) -> bool:
    """Return whether these very entries, and no others, were said to be stored."""
    coming = (
        [] if intent is None else [e.entries for e in intent.events if e.change is Change.LEARNED]
    )
    said = {entry.id: entry.fingerprint for some in coming if some is not None for entry in some}
    return intent is not None and said == {entry.id: entry.fingerprint for entry in batch}


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
        f"guard is {kind_of(guard)}, expected a ragshield_core.Guard; "
        "Guard.default() has all detectors."
    )
    raise TypeError(msg)


def _how(nodes: Sequence[BaseNode], options: dict[str, Any] | None, report: Report) -> How:
    """Return what is written of nodes after a report: relationships skip what is held."""
    admitted = [node for node, good in zip(nodes, report.admitted, strict=True) if good]
    held = [node for node, good in zip(nodes, report.admitted, strict=True) if not good]
    return How(flagged(with_plain_vectors(relinked(admitted, held)), report.flagged), options)


def _parts(batch: Batch, version: NewVersion) -> Batch:
    return batch.take([row for row, entry_id in enumerate(batch.ids) if entry_id in version.ids])


def _documents(nodes: Sequence[BaseNode]) -> Iterator[str]:
    """Yield the documents of nodes, of which some may turn out to be none."""
    for node in nodes:
        with suppress(Exception):  # such as are named when they are judged
            if isinstance(node.ref_doc_id, str):
                yield node.ref_doc_id
