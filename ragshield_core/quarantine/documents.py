"""Documents: read from the metadata of an entry that is a part of one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

# As the adapters write it: a node of LlamaIndex as ``ragshield_llamaindex.convert`` packs it (its
# relationship 1 is the source), or a part in LangChain's retrievers of whole documents.
PATHS = (
    ("_ragshield_node", "content", "relationships", "1", "node_id"),
    ("doc_id",),
)
# Others are kept by their digest: no database has an index of texts of any length.
LONGEST = 200


def document_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the id of the document that an entry is a part of, as far as it says so.

    Examples
    --------
    >>> document_of({"doc_id": "manual"})
    'manual'
    """
    path = next((path for path in PATHS if path[0] in metadata), ())
    value: Any = metadata
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if path and isinstance(value, str) else None


def document_key(document: str) -> str:
    """Return a document's id as it is kept and looked up."""
    if len(document) <= LONGEST and document.isprintable():
        return document
    return f"sha256:{hashlib.sha256(document.encode('utf-8', 'surrogatepass')).hexdigest()}"
