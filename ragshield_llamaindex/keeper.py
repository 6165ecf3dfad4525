"""The keeper of a LlamaIndex store or index: nodes, their documents and relatives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import MetadataFilters

from ragshield_core import Batch, Guard, Quarantine, Report
from ragshield_core.model.entries import NO_ENTRIES, Entry
from ragshield_core.model.errors import (
    MalformedEntriesError,
    QuarantineError,
)
from ragshield_core.model.findings import Decision, Verdict
from ragshield_core.neighbors.stored import Where
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.store import writing
from ragshield_core.store.inner import StoredEntries
from ragshield_core.store.joining import Waiting, lengths_of, part_of
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.keys import MetadataKeys, expect_guard
from ragshield_core.store.malformed import embedding, lacks_vector, no_release, sift
from ragshield_core.store.one_store import claim, use_table
from ragshield_core.store.recalling import recall_found
from ragshield_core.store.steps import Step
from ragshield_core.store.updates import NewVersion, held_whole, is_part, waits
from ragshield_llamaindex.convert import (
    check_are_nodes,
    columns_of,
    embedded,
    node_of,
    noting_images,
    passed,
    source_of,
    text_of,
    to_batch,
    to_node,
    version_of,
    warn_of_paths,
    window_keys,
    with_plain_vectors,
    without_path,
)
from ragshield_llamaindex.events import report_detection
from ragshield_llamaindex.family import (
    held_for_its_text,
    parents_of,
    with_family,
    with_parents,
    with_windows_held,
    without_held_sentences,
    without_sentences,
    without_windows,
)
from ragshield_llamaindex.inner import InnerStore
from ragshield_llamaindex.mask import Mask

logger = logging.getLogger("ragshield")

# Largest number of parents above a node.
HOPS = 5
# Stores that find neighbours.
ABLE = "PGVectorStore or QdrantVectorStore (one with a synchronous client)"
# What LlamaIndex tells stores about nodes without a document.
NO_DOCUMENT = "None"
# Name under which the quarantine records the nodes of new documents that are held whole.
HELD_WHOLE = "ragshield: all of a new document"


# Returns nodes with vectors.
Embed = Callable[[Sequence[BaseNode]], Sequence[BaseNode]]


# Nodes to write, and the arguments of the store's ``add``.
How = tuple[Sequence[BaseNode], dict[str, Any] | None]


class NodeKeeper(Keeper[BaseNode]):
    """Keeps a store of nodes and a guard in step.

    Parameters
    ----------
    guard, access
        The guard, and access to the store's nodes.
    label_key, lineage_key
        Metadata keys of the label and the lineage.
    name
        The store's name, as the user gave it.
    neighbors
        Whether the guard finds neighbours in the ``"store"`` or in ``"memory"``; default: as it
        was saved.
    """

    mask: Mask
    access: InnerStore

    def __init__(
        self,
        guard: Guard,
        access: InnerStore,
        label_key: str = "label",
        lineage_key: str | None = None,
        name: str | None = None,
        neighbors: Where | None = None,
    ) -> None:
        expect_guard(guard)
        claim(guard, access.inner, name, access.name, folder=access.folder, stacklevel=4)
        if use_table(guard, access.table, neighbors, store=access.inner, able=ABLE):
            guard.state.let_go()
        self.keys = MetadataKeys.of(label_key, lineage_key)
        super().__init__(guard, Mask(self.keys))
        self.access = access
        # Documents that a plain index deletes just before it adds their new versions.
        self._updated_next: set[str] = set()

    # Operations of the store

    def stored(self, ids: Sequence[str]) -> StoredEntries[BaseNode]:
        """Return the stored nodes with these ids."""
        nodes = self.access.read(list(ids))
        return StoredEntries(to_batch_of(nodes, self.keys), nodes)

    def ids(self) -> list[str]:
        """Return the ids of all stored nodes."""
        return self.access.ids()

    def write_entries(self, batch: Batch, how: How | None, older: Sequence[BaseNode]) -> None:
        """Store nodes in place of older ones; on an error, restore the older ones."""
        if how is None:  # as held
            pairs = zip(batch, batch.vectors, strict=True)
            how = [node_of(entry, vector.tolist()) for entry, vector in pairs], None
        nodes, options = how[0], how[1] or {}
        # Most stores skip an existing id, or keep both nodes.
        if older and not self.access.replaces:
            self.delete_entries(list(dict.fromkeys(node.node_id for node in older)))
        try:
            self._put(nodes, options)
        except Exception:
            # An index writes in parts (``insert_batch_size``): the first may be stored.
            known = {node.node_id for node in older}
            with suppress(Exception):  # the store's own error matters more
                new = [node.node_id for node in nodes if node.node_id not in known]
                self.delete_entries(new)
            if older:
                self._put(older, options)
            raise

    def _put(self, nodes: Sequence[BaseNode], options: dict[str, Any]) -> None:
        self.access.write(list(nodes), **options)

    def delete_entries(self, ids: Sequence[str], options: dict[str, Any] | None = None) -> None:
        """Delete nodes."""
        self.access.delete(list(ids), **(options or {}))

    def nearest(self, vector: list[float], k: int) -> Sequence[BaseNode]:
        """Return the nodes nearest to a vector."""
        return self.access.near(vector, k)

    def entries_of(self, held: Sequence[HeldEntry], embed: BaseEmbedding | Embed | None) -> Batch:
        """Return held nodes with vectors."""
        how = embedding_with(embed) if isinstance(embed, BaseEmbedding) else embed
        nodes = with_vectors([to_node(one) for one in held], how)
        for row, reason in self.access.unfit(nodes).items():
            raise QuarantineError(no_release(nodes[row].node_id, "stored", reason))
        batch = to_batch(nodes, self.keys)
        self.guard.judge.check_dim(batch)
        return batch

    # Documents of nodes, and related nodes that serve their text

    def judge_related(self, report: Report, *, stored: bool) -> Report:
        """Also hold nodes that serve the text of held ones; cut that text out of new windows."""
        if stored:
            return with_parents(with_windows_held(report))
        return with_family(report, self.guard)

    def annotated(self, report: Report) -> Report:
        """Note that nodes with an image and no text were not judged."""
        return noting_images(report)

    def updated_document(self, entry: Entry) -> str | None:
        """Return the node's source document."""
        return source_of(entry.metadata)

    def superseded(self, versions: Sequence[NewVersion]) -> None:
        """Also supersede held nodes of new documents."""
        super().superseded(versions)
        for version in versions:
            held = self._held_of(version.document, Status.HELD)
            gone = [entry_id for entry_id in held if entry_id not in version.ids]
            note = "a later version of its document is in the store"
            self.guard.writes.forget_held(self.guard.quarantine.supersede(gone, note=note))

    def document_of(self, entry: Entry) -> str | None:
        """Return the node's source document."""
        return source_of(entry.metadata)

    def parts_of(self, entries: Batch) -> list[str]:
        """Return the ids of all stored nodes of the same documents."""
        documents = (source_of(metadata) for metadata in entries.metadatas)
        return self.nodes_in(dict.fromkeys(d for d in documents if d is not None))

    def held_under(self, ids: Sequence[str]) -> list[str]:
        """Return the ids of held nodes, given their ids or those of their documents."""
        return nodes_of(self.guard.quarantine, ids)

    def replaced_under(self, ids: Sequence[str]) -> list[HeldEntry]:
        """Return the nodes replaced last, given their ids or those of their documents."""
        return replaced_of(self.guard.quarantine, ids)

    def leaving(
        self, there: StoredEntries[BaseNode], because: Mapping[str, Decision] | None
    ) -> tuple[Batch, Sequence[Decision] | None]:
        """Return the nodes to take out, with their parents."""
        found = list(there.items)
        leaving = {node.node_id for node in found}
        seen, new = set(leaving), found
        for _ in range(HOPS):
            wanted = [i for i in dict.fromkeys(parents_of(new)) if i not in seen]
            if not wanted:
                break
            new = self.access.read(wanted)
            seen.update(wanted)
            found = [*found, *new]
        batch = to_batch_of(found, self.keys)
        plain = {
            row: (because or {}).get(i, Decision(entry_id=i, verdict=Verdict.QUARANTINE))
            for row, i in enumerate(batch.ids)
            if i in leaving
        }
        held = {row: replace(one, verdict=Verdict.QUARANTINE) for row, one in plain.items()}
        report = with_parents(Report(batch=batch, remarkable=held))
        return batch.take(~report.admitted), None if because is None else report.quarantined

    def before_leaving(self, leaving: Batch, because: Sequence[Decision] | None) -> None:
        """Cut sentences that are about to be held out of the windows of their documents.

        A window that is suspicious without them is dropped. Nodes that the guard does not know stay
        as they are until they are reconciled.
        """
        held: dict[str, list[str]] = {}
        reasons = [None] * len(leaving) if because is None else because
        for entry, reason in zip(leaving, reasons, strict=True):
            document = source_of(entry.metadata)
            by_text = reason is None or held_for_its_text(reason)
            if by_text and document and window_keys(entry.metadata, entry.text):
                held.setdefault(document, []).append(entry.text)
        if not held:
            return
        gone = set(leaving.ids)
        known = self.guard.writes.known([i for i in self.nodes_in(held) if i not in gone])
        there = [n for n in self.mask.visible(self.access.read(known)) if n.embedding is not None]
        cut = [new for node, new in without_sentences(there, held) if new is not node]
        if not cut:
            return
        quiet = self.guard.judge.finds_nothing(to_batch(cut, self.keys)).tolist()
        nodes = [n if good else without_windows(n) for n, good in zip(cut, quiet, strict=True)]
        writing.write(self, to_batch(nodes, self.keys), (with_plain_vectors(nodes), None))

    # Operations on nodes and documents

    def add_nodes(
        self,
        nodes: Sequence[BaseNode],
        options: dict[str, Any] | None = None,
        *,
        updated: Mapping[str, Collection[str]] | None = None,
        at_once: bool = False,
    ) -> Report:
        """Screen nodes with vectors; hold the suspicious ones, store and learn the others.

        All nodes of a known document are stored, or none. Relationships skip held nodes.

        Parameters
        ----------
        nodes, options
            Nodes to write, and the arguments of the store's ``add``.
        updated
            Updated documents, with the ids of their new nodes: all their other nodes are deleted
            once the new ones are stored.
        at_once
            Whether to refuse nodes that can be neither stored nor held before any node is stored,
            as for the update of a document; otherwise they are refused once the others are stored.
        """
        ids = {one: [*some] for one, some in (updated or {}).items()}
        check_are_nodes(nodes)
        warn_of_paths(nodes)
        nodes = without_held_sentences(self.guard.quarantine, nodes)
        for document, node_id in _documents(nodes):
            if document in self._updated_next:
                ids.setdefault(document, []).append(node_id)
        sifted = sift(columns_of(nodes, self.keys), self.guard)
        sifted = sifted.without(self.access.unfit([nodes[row] for row in sifted.rows]))
        sifted.check(self.guard)
        if sifted.refused and (at_once or ids):
            raise MalformedEntriesError(sifted.refused, written=False)
        whole = [nodes[row] for row in sifted.rows]

        def how(report: Report) -> How:
            return with_plain_vectors(passed(whole, report)), options

        versions = [
            NewVersion(document, frozenset(some), frozenset(self.nodes_in([document])))
            for document, some in ids.items()
        ]
        report = writing.add(self, sifted, how, versions=versions, delete=True)
        self._updated_next.difference_update(ids)
        report_detection(report, stage="ingestion")
        if sifted.refused:
            raise MalformedEntriesError(sifted.refused, written=len(sifted.batch) > 0)
        return report

    def adding(self, nodes: Sequence[BaseNode], options: dict[str, Any] | None = None) -> Step:
        """Return :meth:`add_nodes` as a step that other writes may join."""
        try:
            lengths = lengths_of(node.embedding for node in nodes)
            kind = lengths, frozenset((options or {}).items())
            ids = frozenset(node.node_id for node in nodes)
        except Exception:  # noqa: BLE001 - the judgement names malformed nodes
            return self.step(self.add_nodes, nodes, options)
        one = Waiting(self._add_joined, (nodes, options), ids, kind)
        return self.joined(one)

    def _add_joined(
        self, some: Sequence[tuple[Sequence[BaseNode], dict[str, Any] | None]]
    ) -> list[Report]:
        """Carry out several writes as one; return a report for each.

        Nothing is written if a node of several writes can be neither stored nor held.
        """
        options = some[0][1]
        if len(some) == 1:
            return [self.add_nodes(some[0][0], options)]
        nodes = [node for nodes, _ in some for node in nodes]
        report = self.add_nodes(nodes, options, at_once=True)
        return [part_of(report, {node.node_id for node in nodes}) for nodes, _ in some]

    def waiting(
        self, documents: Iterable[tuple[str, str]]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the documents whose same version already waits in quarantine.

        The first set has updates whose previous version is served: a version with a confirmed part
        waits forever. The second has new documents with all nodes held, until a person decides on
        one of them.

        Parameters
        ----------
        documents
            Ids and hashes.
        """
        asked, quarantine = dict(documents), self.guard.quarantine
        still: set[str] = set()
        whole: dict[str, bool] = {}
        if not asked or not quarantine.exists():
            return frozenset(), frozenset()
        ids = list(dict.fromkeys(one.id for one in quarantine.prints(documents=list(asked))))
        noted = quarantine.indexes.of(ids) if ids else {}
        parts = waits(quarantine, ids) if ids else []
        all_of = {i for i, names in noted.items() if HELD_WHOLE in names}
        known = sorted({*parts, *all_of})
        for one in quarantine.list(None, ids=known) if known else ():
            source = to_node(one).source_node
            if source is None or asked.get(source.node_id) != source.hash:
                continue
            stands = one.status in (Status.HELD, Status.CONFIRMED)
            if one.id in parts and stands and not is_part(one):
                still.add(source.node_id)
            if one.id in all_of:
                stands = stands and not lacks_vector(one)
                whole[source.node_id] = whole.get(source.node_id, True) and stands
        # After a loss of the store, no previous version is served.
        served = frozenset(one for one in still if self.nodes_in([one]))
        return served, frozenset(one for one, stands in whole.items() if stands)

    def note_whole(self, documents: Collection[str]) -> None:
        """Record that all nodes of these new documents are held."""
        ids = [i for document in documents for i in self._held_of(document, Status.HELD)]
        self.guard.quarantine.indexes.note(ids, HELD_WHOLE)

    def judged_before(self, report: Report, updated: Mapping[str, Collection[str]]) -> Report:
        """Hide the nodes that an earlier step has held from reads of this store.

        Parameters
        ----------
        report
            The report of that step.
        updated
            Documents whose new versions have a held part, with the ids of their nodes, all of which
            wait.
        """
        recall_found(self, report.retroactive, report.batch)
        report = writing.note_copies(self, report)
        versions = []
        for document, ids in updated.items():
            older = self.stored(self.nodes_in([document])).entries
            # Compare texts only: later steps may add to the context.
            prints = {one.id: one.text_fingerprint for one in older}
            kept = {e.id for e in report.batch if prints.get(e.id) == e.text_fingerprint}
            new = frozenset(ids)
            versions.append(NewVersion(document, new, frozenset(older.ids), new & kept))
        quarantine = self.guard.quarantine
        report = self.guard.writes.together(lambda: held_whole(report, versions, quarantine))
        self.mask.add(report.batch.take(~report.admitted))
        return report

    def make_room(self, ref_doc_id: str) -> None:
        """Let the next nodes of a document replace it; until then it stays."""
        self._updated_next.add(ref_doc_id)

    def delete_document(self, ref_doc_id: str, options: dict[str, Any] | None = None) -> list[str]:
        """Delete the nodes of a document from the store and from quarantine."""
        self._updated_next.discard(ref_doc_id)
        ids = self.nodes_in([ref_doc_id])
        held = self._held_of(ref_doc_id)
        older = writing.known_entries(self, ids)
        if ids:
            with self.forgetting(older):
                self.delete_entries(ids, options)
        writing.forget_deleted(self, [*ids, *held])
        return ids

    def delete_nodes(self, ids: Sequence[str] | None, filters: MetadataFilters | None) -> None:
        """Delete nodes; with filters, those that match among the ids, or among all nodes."""
        if filters is not None:
            ids = [node.node_id for node in self.access.call("get_nodes", ids, filters)]
        writing.delete(self, ids or [])

    def clear(self) -> None:
        """Empty the store, and forget its nodes; held nodes stay held."""
        self._updated_next.clear()
        older = writing.known_entries(self, self.ids())

        with self.forgetting(older):
            self.access.call("clear")

    def arrived(self) -> frozenset[tuple[str, str | None]]:
        """Return ids and hashes of documents whose released nodes are missing from the store.

        A reviewer released these nodes without the store: the command line, for one, writes none.
        """
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return frozenset()
        released = quarantine.list(Status.RELEASED)
        present = {node.node_id for node in self.access.read([one.id for one in released])}
        nodes = [to_node(one) for one in released if one.id not in present]
        sources = [node.source_node for node in nodes]
        return frozenset((info.node_id, info.hash) for info in sources if info is not None)

    def nodes_in(self, ref_doc_ids: Iterable[str]) -> list[str]:
        """Return the ids of stored nodes of documents."""
        found = {one: self.access.document(one) for one in ref_doc_ids}
        if NO_DOCUMENT in found:  # stores find other nodes under this name as well
            nodes = self.access.read(found[NO_DOCUMENT])
            found[NO_DOCUMENT] = [n.node_id for n in nodes if n.ref_doc_id == NO_DOCUMENT]
        return [node_id for ids in found.values() for node_id in ids]

    def _held_of(self, ref_doc_id: str, status: Status | None = None) -> list[str]:
        quarantine = self.guard.quarantine
        if not quarantine.exists():
            return []
        parts = quarantine.prints(documents=[ref_doc_id])
        return list(dict.fromkeys(one.id for one in parts if status in (None, one.status)))


def to_batch_of(nodes: Sequence[BaseNode], keys: MetadataKeys) -> Batch:
    """Return stored nodes as a batch, without those that the store returns without a vector."""
    known = [node for node in nodes if node.embedding is not None]
    if len(known) < len(nodes):
        logger.warning(
            "the store gives no vectors of %d nodes, which the guard can therefore not forget",
            len(nodes) - len(known),
        )
    # Some stores keep several revisions under one id; the latest counts.
    latest = {node.node_id: node for node in known}
    return to_batch(list(latest.values()), keys) if latest else NO_ENTRIES


def _documents(nodes: Sequence[BaseNode]) -> Iterator[tuple[str, str]]:
    """Yield the documents and ids of nodes; malformed nodes are skipped."""
    for node in nodes:
        with suppress(Exception):  # the judgement names malformed nodes
            if isinstance(node.ref_doc_id, str):
                yield node.ref_doc_id, node.node_id


# Look-up of held nodes by ids or documents, and their preparation for the store


def nodes_of(quarantine: Quarantine, ids: Sequence[str]) -> list[str]:
    """Return the ids, with document ids replaced by the ids of their held nodes."""
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
    """Return the nodes replaced last, given ids of nodes or documents.

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
    """Return nodes with vectors, embedding those that were held without.

    Raises
    ------
    QuarantineError
        If a node has no vector and cannot be embedded; names it.
    """
    bare = [node for node in nodes if node.embedding is None]
    if not bare:
        return list(nodes)
    with embedding([node.node_id for node in bare], [text_of(node) for node in bare]):
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
    """Return a function that embeds nodes as an index does, without their file paths."""

    def embed(nodes: Sequence[BaseNode]) -> list[BaseNode]:
        texts = [without_path(one).get_content(metadata_mode=MetadataMode.EMBED) for one in nodes]
        vectors = model.get_text_embedding_batch(texts)
        return [embedded(node, vector) for node, vector in zip(nodes, vectors, strict=True)]

    return embed
