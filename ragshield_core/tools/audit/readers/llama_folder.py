"""A folder that LlamaIndex's ``StorageContext.persist`` wrote: JSON, read without LlamaIndex."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ragshield_core.model.claims import NODE_KEY, lineage_of
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.records import JSON_ROWS
from ragshield_core.tools.audit.readers.source import Rows, Source, reading, vectors_of

DOCSTORE = "docstore.json"
VECTORS = "default__vector_store.json"
# LlamaIndex's numbers of relationships.
SOURCE, PARENT = "1", "4"
# Fields of a node that the quarantine stores elsewhere.
ELSEWHERE = frozenset({"text", "text_resource", "embedding", "metadata"})


class _Node(NamedTuple):
    id: str
    text: str
    metadata: Mapping[str, Any]
    data: Mapping[str, Any]
    document: str | None
    parent: str | None


def llama_folder(source: Source) -> Iterator[Rows]:
    """Yield the nodes of ``docstore.json``, with vectors from ``default__vector_store.json``.

    Nodes whose vectors are elsewhere are embedded anew. Documents and parents without vectors are
    left out if their parts have vectors: their text is judged part by part.
    """
    path, columns = source.path / DOCSTORE, source.columns
    vectors = _vectors(source.path / VECTORS)
    nodes = [_node(entry_id, packed, path) for entry_id, packed in _read(path, "docstore/data")]
    if lost := sorted(vectors.keys() - {node.id for node in nodes}):
        msg = (
            f"{source.path / VECTORS} holds the vector of node {lost[0]!r}, which is not in "
            f"{DOCSTORE}, nor are {len(lost) - 1} others; persist the index again."
        )
        raise SourceError(msg)
    whole = {one for node in nodes if node.id in vectors for one in (node.document, node.parent)}
    nodes = [node for node in nodes if node.id in vectors or node.id not in whole]
    if not nodes:
        msg = (
            f"{path} holds no nodes: they are in the index's vector store "
            "(Chroma, Qdrant, ...). In Python, adopt(index).scan() audits them there."
        )
        raise SourceError(msg)

    def lineage(node: _Node, place: str) -> str | None:
        if columns.lineage is not None:
            return columns.claim("lineage", node.metadata, place)
        claimed = lineage_of(node.metadata, node.id)
        return claimed if claimed is not None else node.document

    for start in range(0, len(nodes), JSON_ROWS):
        part = nodes[start : start + JSON_ROWS]
        placed = [(node, f"{path}, node {node.id!r}") for node in part]
        yield Rows(
            ids=[node.id for node in part],
            texts=[node.text for node in part],
            labels=[columns.claim("label", node.metadata, place) for node, place in placed],
            lineages=[lineage(*each) for each in placed],
            contexts=list(map(_context, part)),
            metadatas=list(map(_kept, part)) if source.metadata else [],
            vectors=vectors_of(
                [vectors.get(node.id) for node in part], [place for _, place in placed]
            ),
        )


def _vectors(path: Path) -> Mapping[str, Any]:
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
    return dict(_read(path, "embedding_dict"))


def _read(path: Path, key: str) -> list[tuple[str, Any]]:
    """Return the items of the object under a key of a JSON file."""
    with reading(path):
        try:
            return list(_typed(_typed(json.loads(path.read_bytes())).get(key, {})).items())
        except RecursionError as error:
            raise ValueError from error


def _typed(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        msg = f"expected a JSON object, found {type(value).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - `reading` takes it for a damaged file
    return value


def _node(entry_id: str, packed: Any, path: Path) -> _Node:
    place = f"{path}, node {entry_id!r}"
    try:
        data = _typed(packed).get("__data__", packed)
        data = _typed(json.loads(data) if isinstance(data, str) else data)
        text = data.get("text", _typed(data.get("text_resource") or {}).get("text")) or ""
        metadata = _typed(data.get("metadata") or {})
        related = _typed(data.get("relationships") or {})
        named = (_typed(related.get(kind) or {}).get("node_id") for kind in (SOURCE, PARENT))
        document, parent = (one if isinstance(one, str) else None for one in named)
    except (ValueError, RecursionError):
        msg = f"{place}: it is no node as LlamaIndex writes it."
        raise SourceError(msg) from None
    if not isinstance(text, str):
        msg = f"{place}: the text is of type {type(text).__name__}."
        raise SourceError(msg)
    return _Node(entry_id, text, metadata, data, document, parent)


def _context(node: _Node) -> str | None:
    """Return the metadata that a model reads with the text, in LlamaIndex's usual template."""
    # The node's own template is not used: formats are hostile, too, and can ask for gigabytes.
    unseen = node.data.get("excluded_llm_metadata_keys") or ()
    shown = [f"{key}: {value}" for key, value in node.metadata.items() if key not in unseen]
    return "\n".join(shown).strip() or None


def _kept(node: _Node) -> dict[str, Any]:
    """Return metadata with the fields that rebuild the node, as the adapter keeps them."""
    content = {key: value for key, value in node.data.items() if key not in ELSEWHERE}
    kind = str(node.data.get("class_name", "TextNode"))
    return {**node.metadata, NODE_KEY: {"type": kind, "content": content}}
