"""Node ids that are the same at every run, so that a person's decision on a node stands."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, RelatedNodeInfo, TransformComponent

# Namespace of the ids made here.
NAMESPACE = uuid.UUID("1f0f3b52-7d0e-4a53-9d6c-0e6b6a2c9a11")
RANDOM = 4  # version of the UUIDs that node parsers assign


class StableIds(TransformComponent):
    """Replace random node ids by ids made from the document and content.

    Node parsers assign random ids, so that the same part of a document has another id at each run:
    an index would store it twice, a quarantine would hold it again and again, and a release would
    be forgotten. Put this after the node parser; the guarded index and pipeline do so themselves.
    Ids that are not random UUIDs, and those of nodes without a source document, stay.

    Examples
    --------
    >>> from llama_index.core import Document
    >>> from llama_index.core.node_parser import SentenceSplitter
    >>> document = Document(id_="a", text="Some text.")
    >>> steps = SentenceSplitter(), StableIds()
    >>> once, again = (steps[1](steps[0]([document])) for _ in range(2))
    >>> once[0].node_id == again[0].node_id
    True
    """

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "StableIds"

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Return nodes; those with a new id are copies."""
        del kwargs
        ids: dict[str, str] = {}
        seen: Counter[tuple[str, str]] = Counter()
        for node in nodes:
            source = node.ref_doc_id
            if source is None or not is_random(node.node_id):
                continue
            content = node.get_content(metadata_mode=MetadataMode.NONE)
            name = f"{len(source)}:{source} {seen[source, content]} {content}"
            seen[source, content] += 1
            ids[node.node_id] = _made_of(name)
        return [_renamed(node, ids) for node in nodes] if ids else nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Return nodes; those with a new id are copies."""
        return self(nodes, **kwargs)


def is_random(node_id: str) -> bool:
    """Return whether an id is a random UUID, as node parsers assign."""
    try:
        parsed = uuid.UUID(node_id)
    except ValueError:
        return False
    return parsed.version == RANDOM


def _made_of(name: str) -> str:
    # uuid5 encodes a text as UTF-8, which fails for lone surrogates.
    return str(uuid.uuid5(NAMESPACE, name.encode("utf-8", "surrogatepass").hex()))


def _renamed(node: BaseNode, ids: Mapping[str, str]) -> BaseNode:
    copy = node.model_copy()
    copy.id_ = ids.get(node.node_id, node.node_id)
    copy.relationships = {
        kind: [_related(info, ids) for info in infos]
        if isinstance(infos, list)
        else _related(infos, ids)
        for kind, infos in node.relationships.items()
    }
    return copy


def _related(info: RelatedNodeInfo, ids: Mapping[str, str]) -> RelatedNodeInfo:
    if info.node_id not in ids:
        return info
    return info.model_copy(update={"node_id": ids[info.node_id]})
