"""Nodes that serve the text of other nodes: parents, and windows of text around a sentence.

Auto-merging and recursive retrieval return a whole parent in place of its children, and a
postprocessor replaces a sentence by its window. Text held in one node must not come out of another:
parents are held as well, and windows stay but lose the sentence. A sentence is judged together with
its own window, since an attack may spread over several sentences.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode, IndexNode, NodeRelationship, RelatedNodeInfo
from llama_index.core.storage.docstore.types import BaseDocumentStore

from ragshield_core import Batch, Guard, Quarantine, Report
from ragshield_core.model.claims import NODE_KEY
from ragshield_core.model.findings import Decision, Verdict, printable
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.store.updates import is_part
from ragshield_core.text.lexicon import WORD
from ragshield_llamaindex.convert import (
    context_of,
    node_of,
    source_of,
    text_of,
    window_keys,
    windows_of,
    with_metadata,
)

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Note on a sentence that is suspicious together with its neighbours.
TOGETHER = "suspicious together with the sentences around it"
# Sentences to look for in a window, to each side: parsers are rarely configured for more.
REACH = 10
# Two sentences have the same topic if they share SAME words, and SAME_SHARE of the first one's
# words; words are compared by their first STEM letters.
SAME, SAME_SHARE, STEM = 2, 1 / 3, 4


# Parents


def with_family(report: Report, guard: Guard) -> Report:
    """Return a report that also holds the parents of held nodes, and cuts windows.

    Nodes of the same document lose the text of held ones from their windows.

    Parameters
    ----------
    report
        On a batch of :func:`~ragshield_llamaindex.convert.to_batch`, before any node is held.
    guard
        Judges the rest of cut windows.
    """
    return with_parents(with_windows_cut(report, guard))


def with_parents(report: Report) -> Report:
    """Return a report that also holds the nodes of which held ones are a part.

    These are its parents among the screened nodes (the node from which it was cut, the node behind
    an ``IndexNode``), and their parents in turn. A parent that was not screened cannot be held: the
    decision and the log say so.
    """
    batch = report.batch
    row_of = {entry_id: row for row, entry_id in enumerate(batch.ids)}
    remarks: dict[int, str] = {}
    away: dict[int, str] = {}
    for row in _held_for_their_text(report):
        for parent_id in _parents(row, report, row_of):
            if (parent := row_of.get(parent_id)) is None:
                away[row] = parent_id
            else:
                remarks.setdefault(parent, _remark("is part of it", batch.ids[row]))
    report = _held_as_well(report, remarks)
    changed = {}
    for row, parent_id in away.items():
        remark = (
            f"its parent {printable(parent_id, 60)} was not screened with it, and holds its text: "
            "retrievers that return parents serve it, unless a GuardedRetriever is around them"
        )
        notes = (report.decisions[row].note, remark)
        changed[row] = replace(report.decisions[row], note="; ".join(filter(None, notes)))
    if away:
        logger.warning(
            "%d held nodes have parents that were not screened with them and hold their text; "
            "screen all nodes of a hierarchy together before the document store gets them, or put "
            "a GuardedRetriever around the retriever that returns parents",
            len(away),
        )
    return replace(report, remarkable={**report.remarkable, **changed})


def with_windows_held(report: Report) -> Report:
    """Return a report that also holds the nodes whose windows contain the text of held ones.

    For stored nodes that bypassed the guard: they are judged as they are.
    """
    batch, windows, remarks = report.batch, _windows(report), dict[int, str]()
    for row in _held_for_their_text(report):
        text, source = batch.texts[row].strip(), source_of(batch.metadatas[row])
        for other, window in windows.get(source, ()) if text and source else ():
            if text in window:
                remarks.setdefault(other, _remark("stands in its window", batch.ids[row]))
    return _held_as_well(report, remarks)


def _held_for_their_text(report: Report) -> list[int]:
    """Return the rows of nodes that are held for more than their metadata."""
    decided = report.remarkable.items()
    held = [row for row, one in decided if one.verdict is Verdict.QUARANTINE]
    return [row for row in held if held_for_its_text(report.remarkable[row])]


def _held_as_well(report: Report, remarks: Mapping[int, str]) -> Report:
    """Return a report that also holds these rows, each with its remark."""
    held = {
        row: replace(report.decisions[row], verdict=Verdict.QUARANTINE, note=remark)
        for row, remark in remarks.items()
        if report.decisions[row].verdict is not Verdict.QUARANTINE
    }
    return replace(report, remarkable={**report.remarkable, **held})


def parents_of(nodes: Sequence[BaseNode]) -> list[str]:
    """Return the ids of the nodes that retrievers return in place of these."""
    ids = []
    for node in nodes:
        parent = node.relationships.get(NodeRelationship.PARENT)
        if isinstance(parent, RelatedNodeInfo):
            ids.append(parent.node_id)
        if isinstance(node, IndexNode):
            ids.append(node.index_id)
    return ids


def descendants_of(node: BaseNode, docstore: BaseDocumentStore | None) -> set[str]:
    """Return the ids of the known nodes that were cut from a node, directly or indirectly."""
    found: set[str] = set()
    waiting = [node]
    while waiting:
        children = waiting.pop().relationships.get(NodeRelationship.CHILD)
        ids = [child.node_id for child in children] if isinstance(children, list) else []
        new = [child for child in ids if child not in found]
        found.update(new)
        if docstore is not None:
            known = (docstore.get_document(child, raise_error=False) for child in new)
            waiting += [child for child in known if child is not None]
    return found


def _remark(how: str, entry_id: str) -> str:
    return f"held with {printable(entry_id, 60)}, which {how}"


def _windows(report: Report) -> dict[str, list[tuple[int, str]]]:
    """Return pairs of row and window text by document."""
    found: dict[str, list[tuple[int, str]]] = {}
    batch = report.batch
    for row, (metadata, text) in enumerate(zip(batch.metadatas, batch.texts, strict=True)):
        source = source_of(metadata)
        if source is not None:
            found.setdefault(source, []).extend((row, one) for one in windows_of(metadata, text))
    return found


def _parents(row: int, report: Report, row_of: Mapping[str, int]) -> Iterator[str]:
    """Yield the ids of a node's parents and ``IndexNode`` target, up to the first unscreened node.

    A relation that only the child states is a claim, by which an attacker could have any node held:
    a screened parent has to list the child, or contain its text.
    """
    batch = report.batch
    seen, waiting = {batch.ids[row]}, [row]
    while waiting:
        child = waiting.pop()
        for above in _above(batch.metadatas[child]):
            if above in seen:
                continue
            seen.add(above)
            parent = row_of.get(above)
            if parent is not None:
                listed = _related(batch.metadatas[parent], NodeRelationship.CHILD)
                text = batch.texts[child].strip()
                if batch.ids[child] not in listed and not (text and text in batch.texts[parent]):
                    continue
                waiting.append(parent)
            yield above


def _above(metadata: Mapping[str, Any]) -> list[str]:
    """Return the ids of the nodes that retrievers return in place of a node."""
    stands_for = (metadata.get(NODE_KEY) or {"content": {}})["content"].get("index_id")
    parents = _related(metadata, NodeRelationship.PARENT)
    return parents if stands_for is None else [*parents, str(stands_for)]


def _related(metadata: Mapping[str, Any], kind: NodeRelationship) -> list[str]:
    """Return the ids of the nodes to which an entry of ``to_batch`` has this relation."""
    packed = metadata.get(NODE_KEY) or {"content": {}}
    related = packed["content"].get("relationships", {}).get(kind.value) or []
    return [str(one["node_id"]) for one in (related if isinstance(related, list) else [related])]


# Windows


def held_for_its_text(held: Decision | HeldEntry) -> bool:
    """Return whether an entry is held for more than its metadata, which no other node serves."""
    beside = [finding.beside and finding.span is None for finding in held.findings]
    return not (beside and all(beside)) or (held.note or "").startswith(TOGETHER)


def with_windows_cut(report: Report, guard: Guard) -> Report:
    """Return a report whose admitted entries have no held sentence in their windows.

    An entry held for its window alone is admitted if the cut window is no longer suspicious.

    Parameters
    ----------
    report
        On a batch of :func:`~ragshield_llamaindex.convert.to_batch`, before any entry is held.
    guard
        Judges the rest of cut windows, and knows the entries that reviewers have released.
    """
    if report.admitted.all():
        return report
    batch = report.batch
    documents: dict[str, list[int]] = {}
    for row, (metadata, text) in enumerate(zip(batch.metadatas, batch.texts, strict=True)):
        source = source_of(metadata)
        if source is not None and window_keys(metadata, text):
            documents.setdefault(source, []).append(row)
    documents = {one: rows for one, rows in documents.items() if not report.admitted[rows].all()}
    if not documents:
        return report
    released = _released(report, guard)
    remarkable = dict(report.remarkable)
    metadatas, contexts = list(batch.metadatas), list(batch.contexts)
    for rows in documents.values():
        changed, kept, cut = _Document(report, rows, released, guard).judged()
        remarkable |= {row: one for row, one in changed.items() if one is not None}
        for row in [row for row, one in changed.items() if one is None]:
            del remarkable[row]
        for row, metadata, context in zip(kept, cut.metadatas, cut.contexts, strict=True):
            metadatas[row], contexts[row] = metadata, context
    batch = replace(batch, metadatas=tuple(metadatas), contexts=tuple(contexts))
    return replace(report, batch=batch, remarkable=remarkable)


class _Document:
    """Sentences of one document, in their order."""

    def __init__(
        self, report: Report, rows: Sequence[int], released: Collection[str], guard: Guard
    ) -> None:
        self._batch, self._rows, self._guard = report.batch, rows, guard
        self._decisions = {row: report.decisions[row] for row in rows}
        self._released = {row for row in rows if report.batch.ids[row] in released}
        self._held = [r for r in rows if not report.admitted[r] and r not in self._released]
        self._gone = {row for row in self._held if held_for_its_text(self._decisions[row])}

    def judged(self) -> tuple[dict[int, Decision | None], list[int], Batch]:
        """Return changed decisions (None: no remark), the admitted rows, and these rows cut."""
        # The window contains the sentence as well: evidence for both names the more suspicious.
        by_text = set(self._loud(self._held, lambda batch: _beside(batch, [None] * len(batch))))
        beside = {row for row in self._held if row not in self._gone | by_text}
        # Entries that are suspicious without a window are so for other metadata.
        alone = set(self._loud(sorted(beside), lambda batch: _cut(batch, None)))
        beside -= alone
        loud = set(self._loud(sorted(beside), self._to_judge)) if self._released else beside
        core = self._core(sorted(by_text | loud), by_text) - self._released
        self._gone |= by_text | core
        still = self._loud(sorted(loud - self._gone), self._to_judge)
        freed = (beside - self._gone).difference(still)
        changed: dict[int, Decision | None] = dict.fromkeys(freed)
        for row in core - by_text:
            decision = self._decisions[row]
            changed[row] = replace(decision, verdict=Verdict.QUARANTINE, note=TOGETHER)
        out = core.union(self._held) - freed
        kept = [row for row in self._rows if row not in out]
        return changed, kept, self._cut(self._take(kept), self._gone)

    def _core(self, suspects: Sequence[int], by_text: Collection[int]) -> set[int]:
        """Return the sentences that make windows suspicious: those in all windows of a run.

        Each leads into the next sentence, and into nearby ones on the same topic, as a question
        leads into its answer.
        """
        among, core, common, last = set(suspects), set(by_text), set[int](), -1
        if len(among) == len(self._rows):
            return among  # a short document, or an attack from start to end
        for place, row in enumerate(self._rows):
            if row not in among:
                continue
            inside = self._inside(place) & among
            in_run = common & inside if place == last + 1 else set[int]()
            if not in_run:
                core |= common
            common, last = in_run or inside, place
        core |= common
        places = [place for place, row in enumerate(self._rows) if row in core]
        alone = {place: among if self._rows[place] in by_text else () for place in places}
        return core.union(*(self._led_by(place, next_ones) for place, next_ones in alone.items()))

    def _led_by(self, place: int, next_ones: Collection[int]) -> Iterator[int]:
        """Yield the sentences that continue one and have it in their windows."""
        text = self._batch.texts[self._rows[place]].strip()
        said = _stems(text)
        for n, row in enumerate(self._rows[place + 1 : place + 1 + REACH]):
            again = len(said & _stems(self._batch.texts[row]))
            same = again >= max(SAME, len(said) * SAME_SHARE)
            around = any(text in window for window in _windows_around(self._batch, row))
            if around and (same or (n == 0 and row in next_ones)):
                yield row

    def _inside(self, place: int) -> set[int]:
        """Return the sentences in a sentence's window, itself included."""
        row = self._rows[place]
        windows = list(_windows_around(self._batch, row))
        near = self._rows[max(0, place - REACH) : place + REACH + 1]
        texts = ((other, self._batch.texts[other].strip()) for other in near)
        return {row} | {other for other, text in texts if text and any(text in w for w in windows)}

    def _loud(self, rows: Sequence[int], change: Callable[[Batch], Batch]) -> list[int]:
        """Return the rows that are suspicious after this change of their contexts."""
        if not rows:
            return []
        quiet = self._guard.judge.finds_nothing(change(self._take(rows)))
        return [row for row, nothing in zip(rows, quiet.tolist(), strict=True) if not nothing]

    def _take(self, rows: Sequence[int]) -> Batch:
        return self._batch.take(rows)

    def _to_judge(self, batch: Batch) -> Batch:
        """Return entries whose windows omit held sentences and those that reviewers released."""
        return self._cut(batch, self._gone | self._released)

    def _cut(self, batch: Batch, rows: Iterable[int]) -> Batch:
        return _cut(batch, [self._batch.texts[row] for row in rows])


def _released(report: Report, guard: Guard) -> Collection[str]:
    """Return the ids of suspicious entries that reviewers have released."""
    if not guard.quarantine.exists():
        return ()
    rows = np.flatnonzero(~report.admitted).tolist()
    decisions = [report.remarkable[row] for row in rows]
    return guard.quarantine.released_among(report.batch.take(rows), decisions)


def _stems(text: str) -> set[str]:
    """Return word stems, without short ASCII words; for Chinese and Japanese, the characters."""
    words = WORD.findall(text.lower())
    return {word[:STEM] for word in words if len(word) >= STEM or not word.isascii()}


def _windows_around(batch: Batch, row: int) -> Iterator[str]:
    metadata = batch.metadatas[row]
    return (metadata[key] for key in window_keys(metadata, batch.texts[row]))


def _cut(batch: Batch, texts: Sequence[str] | None) -> Batch:
    """Return entries whose windows omit these texts; None removes the windows."""
    metadatas, contexts = list(batch.metadatas), list(batch.contexts)
    for row, entry in enumerate(batch):
        keys = window_keys(entry.metadata, entry.text)
        given = {key: entry.metadata[key] for key in keys}
        new = {k: entry.text if texts is None else without(w, texts) for k, w in given.items()}
        if new != given:
            metadatas[row] = {**entry.metadata, **new}
            contexts[row] = context_of(node_of(replace(entry, metadata=metadatas[row]), None))
    return replace(_beside(batch, contexts), metadatas=tuple(metadatas))


def _beside(batch: Batch, contexts: Sequence[str | None]) -> Batch:
    return replace(batch, contexts=tuple(contexts))


def without(window: str, texts: Iterable[str]) -> str:
    """Return a window without these texts."""
    for text in sorted({text.strip() for text in texts}, key=len, reverse=True):
        if text:
            window = window.replace(text, "")
    return window


def _document_of(node: BaseNode) -> str | None:
    """Return the document of a node; None for one whose relations are malformed."""
    try:
        document: object = node.ref_doc_id
    except (AttributeError, TypeError, ValueError):  # raised by LlamaIndex for malformed relations
        return None
    return document if isinstance(document, str) else None


def without_held_sentences(quarantine: Quarantine, nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Return nodes with windows cut free of the sentences that an earlier write has held.

    Changed nodes are copies. A held node that arrives again stays unchanged, so that it is
    recognised.
    """
    with_windows = (node for node in nodes if _windows_in(node))
    documents = sorted({name for node in with_windows if (name := _document_of(node))})
    held: dict[str, list[str]] = {}
    ids: set[str] = set()
    if documents and quarantine.exists():
        for one in quarantine.list(None, documents=documents):
            source = source_of(one.entry.metadata)
            if one.status not in (Status.HELD, Status.CONFIRMED) or is_part(one):
                continue
            ids.add(one.id)
            if source is not None and held_for_its_text(one):
                held.setdefault(source, []).append(one.entry.text)
    return [
        node if cut is node or node.node_id in ids else cut
        for node, cut in without_sentences(nodes, held)
    ]


def without_sentences(
    nodes: Sequence[BaseNode], sentences: Mapping[str, Collection[str]]
) -> Iterator[tuple[BaseNode, BaseNode]]:
    """Yield each node, and the node with windows cut free of the sentences of its document.

    The second is the same object if there is nothing to cut.
    """
    for node in nodes:
        texts = sentences.get(_document_of(node) or "", ())
        keys = _windows_in(node) if texts else []
        yield node, with_metadata(node, {key: without(node.metadata[key], texts) for key in keys})


def without_windows(node: BaseNode) -> BaseNode:
    """Return a node that has its own text in place of its windows."""
    return with_metadata(node, dict.fromkeys(_windows_in(node), text_of(node)))


def _windows_in(node: BaseNode) -> list[str]:
    """Return the keys of a node's windows; none for malformed nodes, which the judgement names."""
    return [] if _document_of(node) is None else window_keys(node.metadata, text_of(node))
