"""LangChain documents to entries and back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from numpy.typing import ArrayLike

from ragshield_core import Batch
from ragshield_core.errors import InvalidBatchError
from ragshield_core.findings import Decision, Verdict

# The one scalar metadata key that a flagged document gains: the detectors that flagged it.
FLAG_KEY = "ragshield_flag"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataKeys:
    """Where a document's metadata says what is claimed about it."""

    label: str
    lineage: str

    def read(self, key: str, metadatas: Sequence[Mapping[str, Any]], ids: Sequence[str]) -> Any:
        """Return that key of every document as a str, or None where it is not there.

        Raises
        ------
        InvalidBatchError
            If a value is neither a string, a number nor a boolean; names the entry.
        """
        column: list[str | None] = []
        for entry_id, metadata in zip(ids, metadatas, strict=True):
            value = metadata.get(key)
            if value is not None and not isinstance(value, str):
                if not isinstance(value, bool | int | float):
                    msg = (
                        f"metadata[{key!r}] of entry {entry_id!r} is of type "
                        f"{type(value).__name__}, expected a str, a number or nothing; store one "
                        "scalar under that key, or name another key."
                    )
                    raise InvalidBatchError(msg)
                value = str(value)
            column.append(value)
        return column


def complete_ids(documents: Sequence[Document], ids: Sequence[str | None] | None) -> list[str]:
    """Return one id per document: the given one, else the document's own, else a new UUID.

    Raises
    ------
    InvalidBatchError
        If the number of ids does not match.
    """
    if ids is None:
        given: Sequence[str | None] = [document.id for document in documents]
    elif len(ids) != len(documents):
        msg = f"{len(ids)} ids for {len(documents)} documents, expected one each."
        raise InvalidBatchError(msg)
    else:
        given = ids
    return [str(uuid.uuid4()) if one is None else one for one in given]


def to_batch(
    documents: Sequence[Document], ids: Sequence[str], vectors: ArrayLike, keys: MetadataKeys
) -> Batch:
    """Return documents as a batch; metadata is copied, so that later changes stay outside."""
    metadatas = [dict(document.metadata) for document in documents]
    return Batch.of(
        ids=ids,
        texts=[document.page_content for document in documents],
        embeddings=vectors,
        labels=keys.read(keys.label, metadatas, ids),
        lineages=keys.read(keys.lineage, metadatas, ids),
        metadatas=metadatas,
    )


def to_documents(batch: Batch, decisions: Sequence[Decision] | None = None) -> list[Document]:
    """Return entries as documents; flagged ones say so in their metadata."""
    documents = [
        Document(id=entry_id, page_content=text, metadata=dict(metadata))
        for entry_id, text, metadata in zip(batch.ids, batch.texts, batch.metadatas, strict=True)
    ]
    for document, decision in zip(documents, decisions or (), strict=decisions is not None):
        if decision.verdict is Verdict.FLAG:
            names = sorted({finding.detector for finding in decision.findings})
            document.metadata[FLAG_KEY] = ",".join(names)
    return documents
