"""What is retrieved: passages, made of whatever retrievers return."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError
from ragshield_core.tools.canary.embedder import Vectors
from ragshield_core.tools.canary.frameworks import by_framework

Revision = tuple[str, str]  # an entry's id, and the hash of its text

# Metadata keys under which programs keep the id of a chunk, and of what it was cut from.
ID_KEYS = ("id", "chunk_id", "_id")
LINEAGE_KEYS = ("source", "lineage", "doc_id", "file_path", "title")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passage:
    """One retrieved entry.

    Attributes
    ----------
    id, text, lineage, metadata
        As in the knowledge base; where a retriever gives no id, a hash of the text stands for it.
    vector
        Shape (dim,), unit length, where the retriever knows it.
    """

    id: str
    text: str
    lineage: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Vectors | None = None
    _revision: str = field(default="", init=False, repr=False)

    @property
    def revision(self) -> str:
        """A hash of the text: an entry that was changed under its old id is new."""
        if not self._revision:  # asked for several times in every check
            object.__setattr__(self, "_revision", _digest(self.text))
        return self._revision

    @classmethod
    def of(
        cls,
        entry_id: Any,
        text: Any,
        metadata: Any = None,
        lineage: Any = None,
        vector: Vectors | None = None,
    ) -> Self:
        """Return a passage of what a program keeps of an entry.

        Parameters
        ----------
        entry_id, lineage
            Default: what the metadata names, see :data:`ID_KEYS` and :data:`LINEAGE_KEYS`.
        text, metadata, vector
            As of a passage.

        Raises
        ------
        CanaryError
            If the text is none.
        """
        if not isinstance(text, str):
            msg = f"a retrieved entry has a text of type {type(text).__name__}, expected a str."
            raise CanaryError(msg)
        known = dict(metadata or {})
        if entry_id is None:
            entry_id = next((known[key] for key in ID_KEYS if known.get(key)), None)
        if lineage is None:
            lineage = next((known[key] for key in LINEAGE_KEYS if known.get(key)), None)
        return cls(
            id=f"text:{_digest(text)}" if entry_id is None else str(entry_id),
            text=text,
            lineage=None if lineage is None else str(lineage),
            metadata=known,
            vector=vector,
        )


def as_passage(item: Any) -> Passage:
    """Return what a retriever found as a passage.

    Raises
    ------
    CanaryError
        If it is nothing that holds a text.
    """
    if isinstance(item, Passage):
        return item
    if isinstance(item, str):
        return Passage.of(None, item)
    if isinstance(item, tuple) and len(item) == 2:  # noqa: PLR2004 - a document and a score, or
        if isinstance(item[0], str) and isinstance(item[1], str):  # an id and a text
            return Passage(id=item[0], text=item[1])
        return as_passage(item[0])
    if isinstance(item, Mapping):
        rest = {key: value for key, value in item.items() if key not in ("id", "text")}
        metadata = item.get("metadata", rest)
        return Passage.of(item.get("id"), item.get("text"), metadata, item.get("lineage"))
    found = by_framework(item, lambda framework: framework.passage(item))
    if found is not None:
        return found
    msg = (
        f"the retriever returned a {type(item).__name__}, expected documents of LangChain, nodes "
        "of LlamaIndex, dicts with 'id' and 'text', pairs of id and text, or texts."
    )
    raise CanaryError(msg)


def batch_of(passages: Sequence[Passage], vectors: Any = None) -> Batch:
    """Return passages as entries, with these vectors."""
    return Batch.of(
        ids=[p.id for p in passages],
        texts=[p.text for p in passages],
        embeddings=vectors,
        lineages=[p.lineage for p in passages],
        metadatas=[p.metadata for p in passages],
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
