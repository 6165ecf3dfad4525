"""LlamaIndex nodes to entries and back."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from numpy.typing import ArrayLike

from ragshield_core import Batch, Report
from ragshield_core.claims import claim_of, lineage_of
from ragshield_core.entries import unfit
from ragshield_core.errors import InvalidBatchError
from ragshield_core.findings import Decision, Unjudged, printable
from ragshield_core.malformed import UNSTORABLE, Columns
from ragshield_core.metadata_json import dumps, loads
from ragshield_core.quarantine import HeldEntry

logger = logging.getLogger("ragshield")

# The one scalar metadata key that a flagged node gains: the detectors that flagged it.
FLAG_KEY = "ragshield_flag"
# Metadata key, in the quarantine only, of all that a node is beside its text and metadata.
NODE_KEY = "_ragshield_node"

# What early versions noted of entries that they held without a vector, as [1.0].
NO_VECTOR = "held without a vector: to be embedded when it is stored"

# Where SentenceWindowNodeParser puts what MetadataReplacementPostProcessor serves.
WINDOW_KEY = "window"

NO_ENTRIES = Batch.of(ids=[], texts=[], embeddings=[])


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataKeys:
    """Where a node's metadata says what is claimed about it.

    A ``lineage`` of ``None`` is found where readers put it, see
    :func:`ragshield_core.claims.lineage_of`.
    """

    label: str
    lineage: str | None = None

    def label_of(self, node: BaseNode) -> str | None:
        """Return the label.

        Raises
        ------
        InvalidBatchError
            If it is neither a string, a number nor a boolean; names the node.
        """
        return claim_of(self.label, node.node_id, node.metadata.get(self.label))

    def lineage_of(self, node: BaseNode) -> str | None:
        """Return what the node was cut from: as its metadata says, else its source document.

        Raises
        ------
        InvalidBatchError
            If metadata says something that is no scalar; names the node.
        """
        claimed, _ = lineage_of(node.metadata, node.node_id, self.lineage)
        return claimed if claimed is not None else node.ref_doc_id


def text_of(node: BaseNode) -> str:
    """Return the text that is judged: what was written, without metadata."""
    return node.get_content(metadata_mode=MetadataMode.NONE)


def context_of(node: BaseNode) -> str | None:
    """Return what a language model may read of a node beside its text; ``None`` for nothing.

    That is its metadata, as templates and excluded keys have it (``MetadataMode.LLM``), windows of
    text around it, which postprocessors put in its place, and the node that an ``IndexNode`` stands
    for, which retrievers return in its place.

    Raises
    ------
    InvalidBatchError
        If it cannot be rendered, or is an object that answers by itself; names the node.
    """
    text = text_of(node)
    parts = [_beside(node, text), *windows_of(node.metadata, text)]
    if isinstance(node, IndexNode) and node.obj is not None:
        behind = node.obj.node if isinstance(node.obj, NodeWithScore) else node.obj
        if not isinstance(behind, BaseNode):
            msg = (
                f"node {node.node_id!r} stands for an object of type {type(behind).__name__}, "
                "whose answers the guard cannot judge nor the quarantine keep, expected a node; "
                "pass it among the retriever's objects, and put a GuardedRetriever around that."
            )
            raise InvalidBatchError(msg)
        parts += [_shown(behind), context_of(behind) or ""]
    return "\n\n".join(part for part in parts if part) or None


def windows_of(metadata: Mapping[str, Any], text: str) -> list[str]:
    """Return metadata that holds a text with more around it, or says that it is a window."""
    return [
        value
        for key, value in metadata.items()
        if isinstance(value, str)
        and value != text
        and (key == WINDOW_KEY or (text.strip() and text.strip() in value))
    ]


def _shown(node: BaseNode) -> str:
    """Return a node as it stands in a prompt.

    Raises
    ------
    InvalidBatchError
        If it cannot be rendered; names the node.
    """
    try:
        return node.get_content(metadata_mode=MetadataMode.LLM)
    except Exception as error:  # noqa: BLE001 - whatever a hostile template brings about
        # Not from the error: its message may quote the template.
        msg = (
            f"node {node.node_id!r} cannot be put into a prompt ({type(error).__name__}), expected "
            "templates of metadata_str and content, key and value; repair text_template or "
            "metadata_template."
        )
        raise InvalidBatchError(msg) from None


def _beside(node: BaseNode, text: str) -> str:
    """Return a node as it stands in a prompt, without its text where that stands apart."""
    shown, body = _shown(node), text.strip()
    if not body or shown.strip() == body:
        return shown.strip() if not body else ""
    before, _, after = shown.rpartition(body)
    apart = before.endswith("\n") and (not after or after.startswith("\n"))
    return f"{before}{after}".strip() if apart else shown


def to_batch(
    nodes: Sequence[BaseNode], keys: MetadataKeys, vectors: ArrayLike | None = None
) -> Batch:
    """Return nodes as a batch that can be turned back into them.

    Parameters
    ----------
    nodes
        May be changed afterwards: the batch shares nothing with them.
    keys
        Where metadata says what belongs to a revision.
    vectors
        One per node; ``None`` takes the nodes' own.

    Raises
    ------
    InvalidBatchError
        If a node has no vector or cannot be judged; names it.
    """
    if vectors is None:
        bare = next((node for node in nodes if node.embedding is None), None)
        if bare is not None:
            msg = (
                f"node {bare.node_id!r} has no embedding, expected a vector; embed nodes before "
                "they are stored, or put the embedding model in front of the guard."
            )
            raise InvalidBatchError(msg)
        vectors = [node.get_embedding() for node in nodes]
    return Batch.of(
        ids=[node.node_id for node in nodes],
        texts=[text_of(node) for node in nodes],
        embeddings=vectors,
        labels=[keys.label_of(node) for node in nodes],
        lineages=[keys.lineage_of(node) for node in nodes],
        contexts=[context_of(node) for node in nodes],
        metadatas=[_packed(node) for node in nodes],
    )


def columns_of(
    nodes: Sequence[BaseNode], keys: MetadataKeys, *, with_vectors: bool = True
) -> Columns:
    """Return nodes as columns, with what cannot be read or kept of them.

    Raises
    ------
    InvalidBatchError
        If no node has a vector, or one cannot be put into a prompt or stands for an object that
        answers by itself: mistakes of whoever calls, not of single nodes.
    """
    if with_vectors and nodes and all(node.embedding is None for node in nodes):
        to_batch(nodes, keys)  # raises
    reasons: dict[int, list[str]] = {}

    def read(row: int, of: Callable[[BaseNode], str | None]) -> str | None:
        try:
            claim = of(nodes[row])
        except InvalidBatchError as error:
            reasons.setdefault(row, []).append(str(error))
            return None
        if claim is not None and unfit(claim):
            reasons.setdefault(row, []).append(f"a label or lineage {UNSTORABLE}")
            return None
        return claim

    rows = range(len(nodes))
    labels = [read(row, keys.label_of) for row in rows]
    lineages = [read(row, keys.lineage_of) for row in rows]
    metadatas, contexts = [], []
    for row, node in enumerate(nodes):
        try:
            metadata, context = _packed(node), context_of(node)
        except InvalidBatchError as error:
            left = _cut_down(node)
            context = context_of(left)  # raises where no value of metadata is at fault
            metadata = _packed(left)
            reasons.setdefault(row, []).append(str(error))
        metadatas.append(metadata)
        contexts.append(context)
    return Columns(
        ids=[node.node_id for node in nodes],
        texts=[text_of(node) for node in nodes],
        vectors=[node.embedding for node in nodes] if with_vectors else None,
        labels=labels,
        lineages=lineages,
        contexts=contexts,
        metadatas=metadatas,
        reasons={row: "; ".join(dict.fromkeys(found)) for row, found in reasons.items()},
    )


def as_stored(nodes: Sequence[BaseNode], keys: MetadataKeys) -> Batch:
    """Return nodes that are, or go, in the store as a batch, without claims that are none."""
    columns = columns_of(nodes, keys)
    return Batch.of(
        ids=columns.ids,
        texts=columns.texts,
        embeddings=[node.get_embedding() for node in nodes],
        labels=columns.labels,
        lineages=columns.lineages,
        contexts=columns.contexts,
        metadatas=columns.metadatas,
    )


def to_node(held: HeldEntry) -> BaseNode:
    """Return the node that was held, with its vector if it was held with one."""
    metadata = dict(held.entry.metadata)
    packed = metadata.pop(NODE_KEY, None)
    described = {"type": "TextNode", "content": {"id_": held.id}} if packed is None else packed
    node = metadata_dict_to_node(
        {"_node_content": json.dumps(described["content"]), "_node_type": described["type"]},
        text=held.entry.text,
    )
    node.metadata = metadata
    node.embedding = held.vector.tolist() if has_vector(held) else None
    return node


def has_vector(held: HeldEntry) -> bool:
    """Return whether an entry was held with a vector; early versions wrote [1.0] for none."""
    early = held.vector.size == 1 and NO_VECTOR in (held.note or "")
    return held.vector.size > 0 and not early


def source_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the id of the source document of an entry that :func:`to_batch` made."""
    packed = metadata.get(NODE_KEY)
    if packed is None:
        return None
    source = packed["content"].get("relationships", {}).get(NodeRelationship.SOURCE.value)
    return None if source is None else str(source["node_id"])


def replacing(batch: Batch, before: Mapping[str, Sequence[BaseNode]]) -> Batch:
    """Return a batch of which each entry says what its document replaces.

    Parameters
    ----------
    batch
        As :func:`to_batch` made it.
    before
        Nodes of the version before, by the id of their document.
    """
    if not before:
        return batch
    ids = set(batch.ids)
    left = {
        document: [node.node_id for node in nodes if node.node_id not in ids]
        for document, nodes in before.items()
    }
    marked = [
        {**metadata, NODE_KEY: {**metadata[NODE_KEY], "replaces": left[source]}}
        if (source := source_of(metadata)) in left
        else metadata
        for metadata in batch.metadatas
    ]
    return replace(batch, metadatas=tuple(marked))


def replaced_by(held: HeldEntry) -> list[str]:
    """Return the ids of nodes that stay only until a held one, and all of its document, is in."""
    return list(held.entry.metadata.get(NODE_KEY, {}).get("replaces", ()))


def embedded(node: BaseNode, vector: Sequence[float]) -> BaseNode:
    """Return a copy of a node with a vector."""
    copy = node.model_copy()
    copy.embedding = list(vector)
    return copy


def flagged(nodes: Sequence[BaseNode], decisions: Sequence[Decision]) -> list[BaseNode]:
    """Return nodes, the flagged ones as copies whose metadata says so, unseen by models."""
    names = {
        decision.entry_id: ",".join(sorted({finding.detector for finding in decision.findings}))
        for decision in decisions
    }
    return [
        _annotated(node, names[node.node_id]) if node.node_id in names else node for node in nodes
    ]


def noting_images(report: Report) -> Report:
    """Say of nodes that hold an image and no text that they were admitted without being judged."""
    rows = [
        row
        for row, (text, metadata) in enumerate(
            zip(report.batch.texts, report.batch.metadatas, strict=True)
        )
        if not text.strip() and _pictured(metadata) and report.kept[row]
    ]
    if not rows:
        return report
    logger.warning("%d nodes hold an image and no text: they were not judged", len(rows))
    noted = {}
    for row in rows:
        decision = report.decisions[row]
        reason = "the node holds an image and no text"
        item = Unjudged(detector="all", entry_id=decision.entry_id, reason=reason)
        note = "; ".join(filter(None, (decision.note, "not judged: an image without text")))
        noted[row] = replace(decision, unjudged=(*decision.unjudged, item), note=note)
    return replace(report, remarkable={**report.remarkable, **noted})


def _pictured(metadata: Mapping[str, Any]) -> bool:
    content = metadata.get(NODE_KEY, {}).get("content", {})
    return any(content.get(key) for key in ("image", "image_path", "image_url", "image_resource"))


def relinked(survivors: Sequence[BaseNode], dropped: Sequence[BaseNode]) -> list[BaseNode]:
    """Return survivors whose relationships pass over what was dropped; changed ones are copies.

    The source document stays: it says where a node comes from, not what is stored.
    """
    gone = {node.node_id: node for node in dropped}
    return [_relinked(node, gone) for node in survivors]


def _relinked(node: BaseNode, gone: Mapping[str, BaseNode]) -> BaseNode:
    changes: dict[NodeRelationship, RelatedNodeInfo | list[RelatedNodeInfo] | None] = {}
    for kind, related in node.relationships.items():
        if kind is NodeRelationship.SOURCE:
            continue
        if isinstance(related, list):
            left = [info for info in related if info.node_id not in gone]
            if len(left) < len(related):
                changes[kind] = left or None
        elif related.node_id in gone:
            changes[kind] = _beyond(related, kind, gone)
    if not changes:
        return node
    copy = node.model_copy()
    kept = {kind: related for kind, related in node.relationships.items() if kind not in changes}
    copy.relationships = kept | {k: related for k, related in changes.items() if related}
    return copy


def _beyond(
    related: RelatedNodeInfo, kind: NodeRelationship, gone: Mapping[str, BaseNode]
) -> RelatedNodeInfo | None:
    """Return the next node in that direction that is not gone."""
    seen = set()  # relationships are claims: they may run in a circle
    while related.node_id in gone:
        if related.node_id in seen:
            return None
        seen.add(related.node_id)
        further = gone[related.node_id].relationships.get(kind)
        if not isinstance(further, RelatedNodeInfo):
            return None
        related = further
    return related


def _annotated(node: BaseNode, names: str) -> BaseNode:
    copy = node.model_copy()
    copy.metadata = {**node.metadata, FLAG_KEY: names}
    copy.excluded_llm_metadata_keys = _with_flag(node.excluded_llm_metadata_keys)
    copy.excluded_embed_metadata_keys = _with_flag(node.excluded_embed_metadata_keys)
    return copy


def _with_flag(keys: Sequence[str]) -> list[str]:
    return [*(key for key in keys if key != FLAG_KEY), FLAG_KEY]


def _packed(node: BaseNode) -> dict[str, Any]:
    """Return a node's metadata with all else that it takes to make the node again.

    What cannot be kept is refused here, at the door: once stored, it could not be recalled.
    """
    left_out = {"text", "text_resource", "embedding", "metadata"}
    try:
        _check_keys(node.metadata)
        content = node.model_dump(mode="json", exclude=left_out)
        metadata = _plain(node)
    except Exception as error:  # noqa: BLE001 - pydantic's own quote what they are about
        odd = [k for k, v in node.metadata.items() if not isinstance(k, str) or not _keeps(v)]
        where = "" if not odd else f" in metadata[{_key(odd[0])}]"
        msg = (
            f"node {printable(node.node_id)!r} holds a value{where} that can be kept neither by a "
            f"store nor in quarantine ({type(error).__name__}); use strings, numbers, dates, lists "
            "or dicts."
        )
        raise InvalidBatchError(msg) from None
    return {**metadata, NODE_KEY: {"type": node.class_name(), "content": content}}


def _cut_down(node: BaseNode) -> BaseNode:
    """Return a copy of a node without metadata that cannot be kept."""
    copy = node.model_copy()
    kept = {k: v for k, v in node.metadata.items() if isinstance(k, str) and _keeps(v)}
    copy.metadata = kept
    return copy


def _plain(node: BaseNode) -> dict[str, Any]:
    try:
        return loads(dumps(node.metadata))  # a copy that shares nothing
    except Exception:  # noqa: BLE001 - stores keep what pydantic makes of such values
        made: dict[str, Any] = node.model_dump(mode="json", include={"metadata"})["metadata"]
        return made


def _check_keys(metadata: Mapping[Any, Any]) -> None:
    if not all(isinstance(key, str) for key in metadata):
        raise TypeError  # no store could give the node back


def _key(key: object) -> str:
    return printable(repr(key), 50) if isinstance(key, str | int | float) else type(key).__name__


def _keeps(value: Any) -> bool:
    """Return whether the quarantine can keep a value of metadata."""
    try:
        dumps({"": value})
    except Exception:  # noqa: BLE001 - values of classes of their own may do anything
        return False
    return True
