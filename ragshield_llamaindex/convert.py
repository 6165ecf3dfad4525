"""Conversion of LlamaIndex nodes to entries and back."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ragshield_core import Batch, Entry, Report
from ragshield_core.model.claims import FLAG_KEY, HIDDEN_KEY, NODE_KEY, STAMP_KEY
from ragshield_core.model.entries import concatenate
from ragshield_core.model.errors import InvalidBatchError, RAGShieldError
from ragshield_core.model.findings import Unjudged, printable
from ragshield_core.quarantine import HeldEntry
from ragshield_core.quarantine.metadata_json import dumps, loads
from ragshield_core.store.guarded import NewRows
from ragshield_core.store.keys import MetadataKeys
from ragshield_core.store.malformed import RawEntries, unusable

logger = logging.getLogger("ragshield")

# Metadata key that SentenceWindowNodeParser sets and MetadataReplacementPostProcessor serves.
WINDOW_KEY = "window"

# Readers set it, and LlamaIndex embeds it with each node: it makes texts of one folder look alike.
PATH_KEY = "file_path"
# Warn from this many nodes on if half have a path at least this share of their text's length.
FEWEST_PATHS, LONG_PATH = 10, 0.25

# Fields of nodes that hold an image.
IMAGES = ("image", "image_path", "image_url", "image_resource")

# Types of metadata that stores keep unchanged.
PLAIN = frozenset({str, int, float, bool, type(None)})

NUMBERS = frozenset({float, int})

# Exceptions that malformed fields, templates and texts cause.
BROUGHT_ABOUT = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class Keyed(BaseModel):
    """A component with settings for the metadata keys of a node's claims."""

    label_key: str = Field(default="label", description="Metadata key of a node's label.")
    lineage_key: str | None = Field(
        default=None,
        description="Metadata key of what a node was cut from; None where readers put it.",
    )

    @property
    def keys(self) -> MetadataKeys:
        """The metadata keys of a revision's claims."""
        return MetadataKeys.of(self.label_key, self.lineage_key)


def text_of(node: BaseNode) -> str:
    """Return the text that detectors judge: the node's own, without metadata."""
    return node.get_content(metadata_mode=MetadataMode.NONE)


def context_of(node: BaseNode) -> str | None:
    """Return the text that models may read beside a node's own; ``None`` for nothing.

    It consists of the metadata, as templates and excluded keys render it for language models
    (``MetadataMode.LLM``), lines that only embedding models read (``MetadataMode.EMBED``), marks of
    hidden content, windows of text that postprocessors put in the node's place, and the
    node behind an ``IndexNode``, which retrievers return in its place.

    Raises
    ------
    InvalidBatchError
        If the node cannot be rendered, or stands for an engine or retriever; names the node.
    """
    text = text_of(node)
    shown, body, marks = _shown(node), text.strip(), node.metadata.get(HIDDEN_KEY)
    # The rendered node, without its text if that stands on lines of its own.
    beside = shown.strip()
    if body:
        before, _, after = shown.rpartition(body)
        apart = before.endswith("\n") and (not after or after.startswith("\n"))
        beside = f"{before}{after}".strip() if apart else shown
        beside = "" if shown.strip() == body else beside
    parts = [beside, _embedded_only(node, shown), *windows_of(node.metadata, text)]
    parts += [marks] if isinstance(marks, str) else []
    if (behind := _behind(node)) is not None:
        parts += [_shown(behind), context_of(behind) or ""]
    return "\n\n".join(part for part in parts if part) or None


def _embedded_only(node: BaseNode, shown: str) -> str:
    """Return the lines that a node has for embedding models, and not for language models."""
    if set(node.excluded_llm_metadata_keys) <= set(node.excluded_embed_metadata_keys):
        return ""
    known = set(shown.splitlines())
    lines = _shown(node, MetadataMode.EMBED).splitlines()
    return "\n".join(line for line in lines if line not in known)


def _behind(node: BaseNode) -> BaseNode | None:
    """Return the node that an ``IndexNode`` stands for; ``None`` for other nodes.

    Raises
    ------
    InvalidBatchError
        If it stands for another object, such as an engine; names the node.
    """
    if not isinstance(node, IndexNode) or node.obj is None:
        return None
    behind = node.obj.node if isinstance(node.obj, NodeWithScore) else node.obj
    if isinstance(behind, BaseNode):
        return behind
    msg = (
        f"node {printable(node.node_id)!r} stands for an object of type {type(behind).__name__}, "
        "whose answers the guard cannot judge nor the quarantine keep, expected a node; pass it "
        "among the retriever's objects, and put a GuardedRetriever around that."
    )
    raise InvalidBatchError(msg)


def nodes_of_rows(rows: NewRows) -> list[BaseNode]:
    """Return a node for each row of a table, with its vector if the rows have vectors."""
    given = rows.embeddings
    vectors = [None] * len(rows.ids) if given is None else np.asarray(given).tolist()
    return [
        TextNode(id_=i, text=text, metadata=dict(metadata), embedding=vector)
        for i, text, metadata, vector in zip(*rows[:3], vectors, strict=True)
    ]


def windows_of(metadata: Mapping[str, Any], text: str) -> list[str]:
    """Return metadata values that contain the text and more, or are marked as a window."""
    return [metadata[key] for key in window_keys(metadata, text)]


def window_keys(metadata: Mapping[str, Any], text: str) -> list[str]:
    """Return the keys of such metadata values; an empty list for malformed metadata."""
    if not isinstance(metadata, Mapping):
        return []
    return [
        key
        for key, value in metadata.items()
        if isinstance(value, str)
        and value != text
        and (key == WINDOW_KEY or (text.strip() and text.strip() in value))
    ]


def _shown(node: BaseNode, mode: MetadataMode = MetadataMode.LLM) -> str:
    """Return a node as rendered in a prompt, or for an embedding model.

    Raises
    ------
    InvalidBatchError
        If it cannot be rendered; names the node.
    """
    try:
        return node.get_content(metadata_mode=mode)
    except Exception as error:  # noqa: BLE001 - a hostile template may raise anything
        # No chaining: the error's message may quote the template.
        msg = (
            f"node {node.node_id!r} cannot be put into a prompt ({type(error).__name__}), expected "
            "templates of metadata_str and content, key and value; repair text_template or "
            "metadata_template."
        )
        raise InvalidBatchError(msg) from None


def columns_of(
    nodes: Sequence[BaseNode], keys: MetadataKeys, *, with_vectors: bool = True
) -> RawEntries:
    """Return nodes as columns, with the reasons why some cannot be read or kept.

    Raises
    ------
    InvalidBatchError
        If an item is not a node, or no node has a vector: mistakes of the caller, not of single
        nodes.
    """
    rows = _rows(nodes, keys)
    if with_vectors and nodes and all(node.embedding is None for node in nodes):
        msg = (
            f"node {printable(nodes[0].node_id)!r} has no embedding, expected a vector; embed "
            "nodes before they are stored, or put the embedding model in front of the guard."
        )
        raise InvalidBatchError(msg)
    return RawEntries(
        vectors=[node.embedding for node in nodes] if with_vectors else None,
        reasons={n: row.reason for n, row in enumerate(rows) if row.reason is not None},
        refused={n: row.refused for n, row in enumerate(rows) if row.refused is not None},
        **_by_column(rows),
    )


def to_batch(nodes: Sequence[BaseNode], keys: MetadataKeys) -> Batch:
    """Return nodes with vectors as a batch that can be converted back to nodes.

    The batch shares no objects with the nodes and omits unusable claims.
    """
    vectors = [node.get_embedding() for node in nodes]
    return Batch.of(embeddings=vectors, **_by_column(_rows(nodes, keys)))


def _by_column(rows: Sequence[_Row]) -> dict[str, list[Any]]:
    names = ("ids", "texts", "labels", "lineages", "contexts", "metadatas")  # as in a row
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def check_nodes(nodes: Sequence[BaseNode], keys: MetadataKeys) -> None:
    """Check that all items are nodes that can be judged and kept unchanged.

    Raises
    ------
    InvalidBatchError
        Names the first that is not, by its id or position.
    """
    rows = _rows(nodes, keys)
    unused = unusable([row.id for row in rows], [row.text for row in rows])
    for place, row in enumerate(rows):
        reason = row.refused or row.reason or unused.get(place)
        if reason is not None:
            msg = f"nodes[{place}]: {reason}"
            raise InvalidBatchError(msg)


@contextmanager
def naming(nodes: Sequence[BaseNode], keys: MetadataKeys) -> Iterator[None]:
    """Name the malformed node that makes an operation of LlamaIndex on all nodes fail, if any.

    Raises
    ------
    InvalidBatchError
        In place of an exception that a malformed field causes, if :func:`check_nodes` refuses a
        node. Other errors, such as a lost connection, are raised unchanged.
    """
    try:
        yield
    except RAGShieldError:
        raise
    except BROUGHT_ABOUT:
        try:
            check_nodes(nodes, keys)
        except InvalidBatchError as refused:
            raise refused from None  # the original message may quote the node
        raise


def check_are_nodes(nodes: Sequence[object]) -> None:
    """Check that all items are nodes; anything else is a mistake of the caller.

    Raises
    ------
    InvalidBatchError
        Names the position of the first that is not.
    """
    for place, node in enumerate(nodes):
        if not isinstance(node, BaseNode):
            msg = (
                f"nodes[{place}] is of type {type(node).__name__}, expected a node of LlamaIndex, "
                "such as TextNode."
            )
            raise InvalidBatchError(msg)


class _Row(NamedTuple):
    """The parts of a node that are judged, and those that are kept."""

    id: Any  # a str; any other type is refused
    text: Any
    label: str | None = None
    lineage: str | None = None
    context: str | None = None
    metadata: Mapping[str, Any] = {}
    reason: str | None = None  # why it can only be held, and only in part
    refused: str | None = None  # why it can be neither stored nor held


def _rows(nodes: Sequence[BaseNode], keys: MetadataKeys) -> list[_Row]:
    check_are_nodes(nodes)
    return [_row(place, node, keys) for place, node in enumerate(nodes)]


def _row(place: int, node: BaseNode, keys: MetadataKeys) -> _Row:
    try:
        return _read(place, node, keys)
    except Exception as error:  # noqa: BLE001 - a malformed field may raise anything
        # No chaining: the error's message may quote the field.
        refused = (
            f"{_named(place, node)} cannot be read ({type(error).__name__}), expected a node whose "
            "fields are of the types that LlamaIndex gives them"
        )
        return _Row(node.id_, "", refused=refused)


def _read(place: int, node: BaseNode, keys: MetadataKeys) -> _Row:
    node_id, text = node.node_id, text_or_none(node)
    if not isinstance(node_id, str) or not isinstance(text, str):
        return _Row(node_id, text)  # none of its fields can be kept
    reasons: list[str] = []
    refused: list[str] = []
    context = None
    try:
        _behind(node)
    except InvalidBatchError as error:
        refused.append(str(error))
    try:
        metadata = _packed(node)
    except InvalidBatchError as error:
        reasons.append(str(error))
        node = _cut_down(place, node)
        metadata = _packed(node)
    label, lineage = keys.claims(node.metadata, node_id, node.ref_doc_id, reasons)
    try:
        context = context_of(node)
    except InvalidBatchError as error:
        refused.append(str(error))
    reason = "; ".join(dict.fromkeys(reasons)) or None
    why = refused[0] if refused else None
    return _Row(node_id, text, label, lineage, context, metadata, reason, why)


def text_or_none(node: BaseNode) -> Any:
    """Return the text of a possibly malformed node, of any type; None if unreadable."""
    try:
        return text_of(node)
    except Exception:  # noqa: BLE001 - a malformed node may raise anything
        return getattr(node, "text", None)


def _named(place: int, node: BaseNode) -> str:
    entry_id = node.id_
    return f"node {printable(entry_id)!r}" if isinstance(entry_id, str) else f"nodes[{place}]"


def to_node(held: HeldEntry) -> BaseNode:
    """Return a held node, with its vector if it has one."""
    return node_of(held.entry, held.vector.tolist() if held.vector.size else None)


def node_of(entry: Entry, vector: list[float] | None) -> BaseNode:
    """Return the node from which an entry was made, with the given vector."""
    metadata = dict(entry.metadata)
    packed = metadata.pop(NODE_KEY, None)
    described = {"type": "TextNode", "content": {"id_": entry.id}} if packed is None else packed
    node = _made_of(described, entry.text)
    node.metadata = metadata
    node.embedding = vector
    return node


def _made_of(described: Mapping[str, Any], text: str) -> BaseNode:
    content = {"_node_content": json.dumps(described["content"]), "_node_type": described["type"]}
    return metadata_dict_to_node(content, text=text)


def source_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the source document's id of an entry that :func:`to_batch` made."""
    packed = metadata.get(NODE_KEY)
    if packed is None:
        return None
    source = packed["content"].get("relationships", {}).get(NodeRelationship.SOURCE.value)
    return None if source is None else str(source["node_id"])


def version_of(held: HeldEntry) -> tuple[str | None, str | None]:
    """Return the lineage and hash that identify one version of a document."""
    source = to_node(held).source_node
    return held.entry.lineage, None if source is None else source.hash


def with_plain_vectors(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Return nodes with vectors as lists of Python numbers, as stores require."""
    return [
        node
        if type(node.embedding) is list and NUMBERS.issuperset(map(type, node.embedding))
        else embedded(node, np.asarray(node.embedding, dtype=np.float64).tolist())
        for node in nodes
    ]


def without_path(node: BaseNode) -> BaseNode:
    """Return a node whose path is not embedded; a changed node is a copy."""
    if not _embeds_path(node):
        return node
    copy = node.model_copy()
    copy.excluded_embed_metadata_keys = [*node.excluded_embed_metadata_keys, PATH_KEY]
    return copy


def warn_of_paths(nodes: Sequence[BaseNode]) -> None:
    """Warn if vectors represent the paths of files more than their content."""
    long = [
        one
        for one in nodes
        if one.embedding is not None
        and _embeds_path(one)
        and len(str(one.metadata[PATH_KEY])) >= LONG_PATH * len(text_or_none(one) or "")
    ]
    if len(nodes) >= FEWEST_PATHS and len(long) >= len(nodes) / 2:
        msg = (
            f"most nodes are embedded together with their {PATH_KEY}, so that all of a folder look "
            "alike: clean ones may be held, and searches find less. Before nodes are embedded, add "
            f'it to those left out: document.excluded_embed_metadata_keys.append("{PATH_KEY}").'
        )
        warnings.warn(msg, UserWarning, stacklevel=3)


def _embeds_path(node: BaseNode) -> bool:
    known = isinstance(node.metadata, dict) and PATH_KEY in node.metadata
    return known and PATH_KEY not in node.excluded_embed_metadata_keys


def embedded(node: BaseNode, vector: Sequence[float]) -> BaseNode:
    """Return a copy of a node with a vector."""
    copy = node.model_copy()
    copy.embedding = list(vector)
    return copy


def in_stages(reports: Sequence[Report]) -> Report:
    """Return one report of guards in a row; each judged the nodes that the previous one admitted.

    If a guard before the last has held entries, the whole report is without vectors.
    """
    *early, last = reports
    held = [(report, np.flatnonzero(~report.admitted)) for report in early]
    parts = [(report, rows) for report, rows in held if len(rows)]
    if not parts:
        return last
    parts.append((last, np.arange(len(last.batch))))
    decisions = [report.remarkable.get(row) for report, rows in parts for row in rows.tolist()]
    batch = concatenate([report.batch.take(rows) for report, rows in parts])
    nothing = np.empty((len(batch), 0), dtype=np.float32)

    def scores_of(name: str) -> NDArray[np.float64]:
        none = np.full(max(len(report.batch) for report, _ in parts), np.nan)
        return np.concatenate([report.scores.get(name, none)[rows] for report, rows in parts])

    return replace(
        last,
        batch=replace(batch, embeddings=nothing, vectors=nothing),
        remarkable={row: one for row, one in enumerate(decisions) if one is not None},
        scores={name: scores_of(name) for report, _ in parts for name in report.scores},
    )


def noting_images(report: Report) -> Report:
    """Note in the report that nodes with an image and no text were admitted unjudged."""
    rows = []
    for row, (text, metadata) in enumerate(
        zip(report.batch.texts, report.batch.metadatas, strict=True)
    ):
        content = metadata.get(NODE_KEY, {}).get("content", {})
        if not text.strip() and any(map(content.get, IMAGES)) and report.admitted[row]:
            rows.append(row)
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


def passed(nodes: Sequence[BaseNode], report: Report) -> list[BaseNode]:
    """Return the nodes that a report admits; changed ones are copies.

    Relationships skip held nodes, windows omit them, and the metadata of flagged nodes names the
    detectors, hidden from models.
    """
    kept = []
    for node, metadata, good in zip(nodes, report.batch.metadatas, report.admitted, strict=True):
        if good:  # with its windows as admitted
            keys = window_keys(node.metadata, text_of(node))
            kept.append(with_metadata(node, {k: metadata[k] for k in keys if k in metadata}))
            stamp = metadata.get(STAMP_KEY)
            if stamp is not None and node.metadata.get(STAMP_KEY) != stamp:  # it keeps its proof
                proven = {k: v for k, v in metadata.items() if k not in (NODE_KEY, STAMP_KEY)}
                kept[-1] = with_unread(with_metadata(kept[-1], proven), {STAMP_KEY: stamp})
    held = [node for node, good in zip(nodes, report.admitted, strict=True) if not good]
    names = {
        decision.entry_id: ",".join(sorted({finding.detector for finding in decision.findings}))
        for decision in report.flagged
    }
    return [
        with_unread(node, {FLAG_KEY: names[node.node_id]}) if node.node_id in names else node
        for node in (relinked(kept, held) if held else kept)
    ]


def with_metadata(node: BaseNode, changed: Mapping[str, Any]) -> BaseNode:
    """Return a node with these metadata values: a copy, if they differ."""
    if all(node.metadata.get(key) == value for key, value in changed.items()):
        return node
    copy = node.model_copy()
    copy.metadata = {**node.metadata, **changed}
    return copy


def relinked(survivors: Sequence[BaseNode], dropped: Sequence[BaseNode]) -> list[BaseNode]:
    """Return survivors with relationships that skip dropped nodes; changed ones are copies.

    The source document stays: it names the node's origin, not a stored node.
    """
    gone = {node.node_id: node for node in dropped}
    made = []
    for node in survivors:
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
        if changes:
            old = node.relationships
            node = node.model_copy()  # noqa: PLW2901 - replaces it
            kept = {kind: related for kind, related in old.items() if kind not in changes}
            node.relationships = kept | {k: related for k, related in changes.items() if related}
        made.append(node)
    return made


def _beyond(
    related: RelatedNodeInfo, kind: NodeRelationship, gone: Mapping[str, BaseNode]
) -> RelatedNodeInfo | None:
    """Return the next remaining node in that direction."""
    seen = set()  # relationships are claims and may form a cycle
    while related.node_id in gone:
        if related.node_id in seen:
            return None
        seen.add(related.node_id)
        further = gone[related.node_id].relationships.get(kind)
        if not isinstance(further, RelatedNodeInfo):
            return None
        related = further
    return related


def with_unread(node: BaseNode, added: Mapping[str, str]) -> BaseNode:
    """Return a copy of a node with further metadata that no model reads."""
    copy = node.model_copy()
    copy.metadata = {**node.metadata, **added}
    for field in ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys"):
        setattr(copy, field, [*(key for key in getattr(node, field) if key not in added), *added])
    return copy


def _packed(node: BaseNode) -> dict[str, Any]:
    """Return a node's metadata with all other fields needed to rebuild the node.

    Values that cannot be kept are found here, on entry: a stored one could not be recalled.

    Raises
    ------
    InvalidBatchError
        If the node cannot be kept or rebuilt; names the node.
    """
    left_out = {"text", "text_resource", "embedding", "metadata"}
    try:
        check_fields(node)
        content = node.model_dump(mode="json", exclude=left_out, warnings=False)
        described = {"type": node.class_name(), "content": content}
        _made_of(described, "")
        metadata = _plain(node.metadata)
    except Exception as error:  # noqa: BLE001 - pydantic's errors quote the values
        where = " as metadata"
        if isinstance(node.metadata, dict):
            odd = [key for key, value in node.metadata.items() if not _keeps(key, value)]
            where = f" in metadata[{_key(odd[0])}]" if odd else ""
        msg = (
            f"node {printable(node.node_id)!r} holds a value{where} that can be kept neither by a "
            f"store nor in quarantine ({type(error).__name__}); use strings, numbers, dates, lists "
            "or dicts."
        )
        raise InvalidBatchError(msg) from None
    return {**metadata, NODE_KEY: described}


def check_fields(node: BaseNode) -> None:
    """Raise if a field that is needed after the judgement has a wrong type."""
    if not isinstance(node.metadata, dict):
        raise TypeError
    if not all(isinstance(key, str) for key in node.metadata):
        raise TypeError  # no store could give the node back
    for kind, related in node.relationships.items():
        many = isinstance(related, list)
        infos = related if many else [related]
        if not isinstance(kind, NodeRelationship) or (many and kind is NodeRelationship.SOURCE):
            raise TypeError
        if not all(isinstance(i, RelatedNodeInfo) and isinstance(i.node_id, str) for i in infos):
            raise TypeError


def _cut_down(place: int, node: BaseNode) -> BaseNode:
    """Return a copy of a node without the parts that cannot be kept.

    The copy lacks some of the metadata; if LlamaIndex could not have made the node, only the text,
    the rest of the metadata and the source document are left.
    """
    given = node.metadata if isinstance(node.metadata, dict) else {}
    kept = {key: value for key, value in given.items() if _keeps(key, value)}
    with suppress(Exception):
        copy = node.model_copy()
        copy.metadata = kept
        _packed(copy)
        return copy
    logger.info("of %s, only text, metadata and source can be kept", _named(place, node))
    made = TextNode(id_=node.node_id, text=text_of(node), embedding=None)
    made.metadata = kept
    with suppress(Exception):  # a malformed source may raise anything
        source = node.source_node
        if source is not None and isinstance(source.node_id, str):
            made.relationships = {NodeRelationship.SOURCE: source}
            _packed(made)
            return made
    made.relationships = {}
    return made


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of metadata that the quarantine can keep."""
    stored = metadata_as_stored(metadata)
    try:
        return loads(dumps(metadata))
    except Exception:  # noqa: BLE001 - stores keep such values as pydantic converts them
        return loads(dumps(stored))


def metadata_as_stored(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as stores keep it: as JSON values.

    Raises
    ------
    ValueError
        If JSON cannot represent it.
    """
    if not PLAIN.issuperset(map(type, metadata.values())):
        node = TextNode(text="")
        node.metadata = dict(metadata)
        metadata = node.model_dump(mode="json", include={"metadata"}, warnings=False)["metadata"]
    json.dumps(metadata)
    return dict(metadata)


def _key(key: object) -> str:
    return printable(repr(key), 50) if isinstance(key, str | int | float) else type(key).__name__


def _keeps(key: object, value: Any) -> bool:
    """Return whether stores and the quarantine can keep a metadata value."""
    if not isinstance(key, str):
        return False
    try:
        _plain({key: value})
    except Exception:  # noqa: BLE001 - values of custom classes may raise anything
        return False
    return True
