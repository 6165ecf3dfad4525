"""A folder that LlamaIndex's ``StorageContext.persist`` wrote: JSON, read without LlamaIndex."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ragshield_core.model.claims import NODE_KEY, lineage_of
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.records import JSON_ROWS
from ragshield_core.tools.audit.readers.source import (
    Rows,
    Source,
    reading,
    vectors_of,
)

DOCSTORE = "docstore.json"
VECTORS = "default__vector_store.json"
# Of relationships, as LlamaIndex numbers them.
SOURCE, PARENT = "1", "4"
# What a node says of itself that the quarantine keeps elsewhere.
ELSEWHERE = frozenset({"text", "text_resource", "embedding", "metadata"})


class _Node(NamedTuple):
    id: str
    text: str
    metadata: Mapping[str, Any]
    data: Mapping[str, Any]
    document: str | None
    parent: str | None

    @property
    def context(self) -> str | None:
        """What a language model reads beside the text, by LlamaIndex's usual template."""
        # Not by the node's own: formats are hostile, too, and can ask for gigabytes.
        unseen = self.data.get("excluded_llm_metadata_keys") or ()
        shown = [f"{key}: {value}" for key, value in self.metadata.items() if key not in unseen]
        return "\n".join(shown).strip() or None


class LlamaFolder(Source):
    """``docstore.json`` and ``default__vector_store.json`` of a LlamaIndex index.

    Nodes whose vectors are elsewhere are embedded anew. Documents and parents without vectors,
    whose parts have some, are left out: their text is judged part by part.
    """

    def __len__(self) -> int:
        return len(self._nodes)

    def chunks(self) -> Iterator[Rows]:
        """Yield the nodes in the order of the docstore."""
        for start in range(0, len(self._nodes), JSON_ROWS):
            part = self._nodes[start : start + JSON_ROWS]
            places = [f"{self.path / DOCSTORE}, node {node.id!r}" for node in part]
            pairs = list(zip(part, places, strict=True))
            yield Rows(
                ids=[node.id for node in part],
                texts=[node.text for node in part],
                labels=[self.claim("label", node.metadata, place) for node, place in pairs],
                lineages=[self._lineage(*pair) for pair in pairs],
                contexts=[node.context for node in part],
                metadatas=[_kept(node) for node in part] if self.metadata else [],
                vectors=vectors_of([self._embeddings.get(node.id) for node in part], places),
            )

    @cached_property
    def _nodes(self) -> list[_Node]:
        known = self._embeddings
        stored = _read(self.path / DOCSTORE, "docstore/data")
        nodes = [_node(entry_id, packed, self.path) for entry_id, packed in stored.items()]
        whole = {
            one for node in nodes if node.id in known for one in (node.document, node.parent) if one
        }
        kept = [node for node in nodes if node.id in known or node.id not in whole]
        lost = sorted(known.keys() - stored.keys())
        if lost:
            msg = (
                f"{self.path / VECTORS} holds the vector of node {lost[0]!r}, which is not in "
                f"{DOCSTORE}, nor are {len(lost) - 1} others; persist the index again."
            )
            raise SourceError(msg)
        if not kept:
            msg = (
                f"{self.path / DOCSTORE} holds no nodes: they are in the index's vector store "
                "(Chroma, Qdrant, ...). In Python, adopt(index).scan() audits them there."
            )
            raise SourceError(msg)
        return kept

    @cached_property
    def _embeddings(self) -> Mapping[str, Any]:
        path = self.path / VECTORS
        if not path.is_file():
            return {}
        with reading(path), path.open("rb") as file:
            is_json = file.read(1) == b"{"
        if not is_json:
            msg = (
                f"{path} is no JSON, expected what SimpleVectorStore writes; in Python, "
                "adopt(index).scan() audits an index over FaissVectorStore."
            )
            raise SourceError(msg)
        return _read(path, "embedding_dict")

    def _lineage(self, node: _Node, place: str) -> str | None:
        if self.columns.lineage is not None:
            return self.claim("lineage", node.metadata, place)
        claimed, _ = lineage_of(node.metadata, node.id)
        return claimed if claimed is not None else node.document


def _read(path: Path, key: str) -> Mapping[str, Any]:
    """Return the object under a key of a JSON file."""
    with reading(path):
        try:
            return _typed(_typed(json.loads(path.read_bytes())).get(key, {}))
        except RecursionError as error:
            raise ValueError from error


def _typed(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        msg = f"expected a JSON object, found {type(value).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - what `reading` takes for a damaged file
    return value


def _node(entry_id: str, packed: Any, folder: Path) -> _Node:
    place = folder / DOCSTORE
    try:
        data = _typed(packed).get("__data__", packed)
        data = _typed(json.loads(data) if isinstance(data, str) else data)
        resource = data.get("text_resource") or {}
        text = data.get("text", _typed(resource).get("text")) or ""
        metadata = _typed(data.get("metadata") or {})
        related = _typed(data.get("relationships") or {})
        document, parent = (_named(related.get(kind)) for kind in (SOURCE, PARENT))
    except (ValueError, RecursionError):
        msg = f"{place}, node {entry_id!r}: it is no node as LlamaIndex writes it."
        raise SourceError(msg) from None
    if not isinstance(text, str):
        msg = f"{place}, node {entry_id!r}: the text is of type {type(text).__name__}."
        raise SourceError(msg)
    return _Node(entry_id, text, metadata, data, document, parent)


def _named(related: Any) -> str | None:
    if related is None:
        return None
    named = _typed(related).get("node_id")
    return named if isinstance(named, str) else None


def _kept(node: _Node) -> dict[str, Any]:
    """Return metadata with all that it takes to make the node again, as the adapter keeps it."""
    content = {key: value for key, value in node.data.items() if key not in ELSEWHERE}
    kind = str(node.data.get("class_name", "TextNode"))
    return {**node.metadata, NODE_KEY: {"type": kind, "content": content}}
