"""Nodes that serve the text of other nodes: parents, and windows of text around a sentence.

Auto-merging and recursive retrieval return a whole parent in place of its children, and a
postprocessor replaces a sentence by its window. What is held in one node must not come out of
another: parents are held as well, and windows are cut (:mod:`ragshield_llamaindex.windows`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import BaseNode, IndexNode, NodeRelationship, RelatedNodeInfo
from llama_index.core.storage.docstore.types import BaseDocumentStore

from ragshield_core import Guard, Report, Verdict
from ragshield_core.model.claims import NODE_KEY
from ragshield_core.model.findings import Decision, printable
from ragshield_llamaindex.convert import source_of, text_of, windows_of
from ragshield_llamaindex.windows import held_for_its_text, with_windows_cut

logger = logging.getLogger("ragshield")  # ids and counts, never text


def with_family(report: Report, guard: Guard | None = None) -> Report:
    """Return a report in which nodes that would serve the text of a held one are held with it.

    Those are its parents among the screened nodes (what it was cut from, what an ``IndexNode``
    stands for), and theirs in turn. A parent that was not screened cannot be held: the decision and
    the log say so. Nodes of the same document with the text in their windows lose it there; nodes
    that leave a store are held.

    Parameters
    ----------
    report
        On a batch of :func:`~ragshield_llamaindex.convert.to_batch`, before anything is held.
    guard
        Judges what is left of windows; ``None`` for nodes that leave a store.
    """
    if guard is not None:
        report = with_windows_cut(report, guard)
    batch = report.batch
    held = [row for row, decision in report.remarkable.items() if _held_for_its_text(decision)]
    if not held:
        return report
    row_of = {entry_id: row for row, entry_id in enumerate(batch.ids)}
    windows = _windows(report) if guard is None else {}
    remarks: dict[int, str] = {}
    away: dict[int, str] = {}
    for row in held:
        for parent_id in _parents(row, report, row_of):
            if (parent := row_of.get(parent_id)) is None:
                away[row] = parent_id
            else:
                remarks.setdefault(parent, _remark("is part of it", batch.ids[row]))
        text = batch.texts[row].strip()
        source = source_of(batch.metadatas[row])
        for other, window in windows.get(source, ()) if text and source else ():
            if text in window:
                remarks.setdefault(other, _remark("stands in its window", batch.ids[row]))
    changed = {
        row: replace(report.decisions[row], verdict=Verdict.QUARANTINE, note=remark)
        for row, remark in remarks.items()
        if report.decisions[row].verdict is not Verdict.QUARANTINE
    }
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


def relatives_of(nodes: Sequence[BaseNode]) -> list[str]:
    """Return the ids of nodes that may serve the text of some: parents, and sentences beside."""
    ids = []
    for node in nodes:
        kinds = [NodeRelationship.PARENT]
        if windows_of(node.metadata, text_of(node)):
            kinds += [NodeRelationship.PREVIOUS, NodeRelationship.NEXT]
        related = (node.relationships.get(kind) for kind in kinds)
        ids += [one.node_id for one in related if isinstance(one, RelatedNodeInfo)]
        if isinstance(node, IndexNode):
            ids.append(node.index_id)
    return ids


def descendants_of(node: BaseNode, docstore: BaseDocumentStore | None) -> set[str]:
    """Return the ids of the nodes that were cut from a node, and from these, as far as is known."""
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


def _held_for_its_text(decision: Decision) -> bool:
    held = decision.verdict is Verdict.QUARANTINE
    return held and held_for_its_text(decision.findings, decision.note)


def _remark(how: str, entry_id: str) -> str:
    return f"held with {printable(entry_id, 60)}, which {how}"


def _windows(report: Report) -> dict[str, list[tuple[int, str]]]:
    """Return rows with what stands in their windows, by document."""
    found: dict[str, list[tuple[int, str]]] = {}
    batch = report.batch
    for row, (metadata, text) in enumerate(zip(batch.metadatas, batch.texts, strict=True)):
        source = source_of(metadata)
        if source is not None:
            found.setdefault(source, []).extend((row, one) for one in windows_of(metadata, text))
    return found


def _parents(row: int, report: Report, row_of: Mapping[str, int]) -> Iterator[str]:
    """Yield what a node was cut from or stands for, and so on, until one was not screened.

    What only the child says of a screened parent is a claim: who brings it could have any node
    held. The parent has to list the child, or hold its text.
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
    """Return the ids of the related nodes of an entry that ``to_batch`` made."""
    packed = metadata.get(NODE_KEY) or {"content": {}}
    related = packed["content"].get("relationships", {}).get(kind.value) or []
    return [str(one["node_id"]) for one in (related if isinstance(related, list) else [related])]
