"""LangChain documents to entries and back."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

from langchain_core.documents import Document

from ragshield_core import Batch, Entry
from ragshield_core.model.claims import FLAG_KEY, HIDDEN_KEY
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import Decision
from ragshield_core.store.keys import MetadataKeys
from ragshield_core.store.malformed import RawEntries, Vectors

# Least number of words in metadata that say something to a model.
SENTENCE = 3
# Depth to which lists and mappings in metadata are read.
DEPTH = 4

# Characters that names of one's own detectors may have.
_ODD = re.compile(r"[^!-~]+")

IMMUTABLE = frozenset({str, int, float, bool, NoneType})


def context_of(metadata: Mapping[str, Any], prompt: Sequence[str] | None = None) -> str | None:
    """Return the metadata that prompts may print beside a document's text; None if there is none.

    ``prompt`` has the keys that prompts print; ``None`` takes all strings that read like a text.
    """
    if prompt is None and not any(map(_may_be_text, metadata.values())):  # the usual case
        return None
    # Sorted, since databases keep keys in an order of their own.
    keys = sorted(metadata, key=str) if prompt is None else (*prompt, HIDDEN_KEY)
    found = [
        text
        for key in keys
        if key in metadata
        for text in _texts_in(metadata[key], DEPTH)
        if prompt is not None or reads_like_text(text)
    ]
    return "\n\n".join(found) or None


def claimed(
    metadatas: Sequence[Mapping[str, Any]], ids: Sequence[str], keys: MetadataKeys
) -> dict[str, Any]:
    """Return columns of a batch: usable claims of stored or retrieved documents."""
    claims = [keys.claims(m, i) for m, i in zip(metadatas, ids, strict=True)]
    return {
        "labels": [label for label, _ in claims],
        "lineages": [lineage for _, lineage in claims],
        "contexts": [context_of(metadata, keys.prompt) for metadata in metadatas],
    }


def _texts_in(value: Any, depth: int) -> Iterator[str]:
    """Yield the strings in a value, nested ones included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and depth:
        for key in sorted(value, key=str):
            yield from _texts_in(value[key], depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for item in value:
            yield from _texts_in(item, depth - 1)


def _may_be_text(value: Any) -> bool:
    """Return whether a value reads like a text, or may hold one that does."""
    return reads_like_text(value) if type(value) is str else type(value) not in IMMUTABLE


def reads_like_text(value: str) -> bool:
    """Return whether a string could say something, unlike a name, number, date, path or id."""
    return not value.isascii() or len(value.split()) >= SENTENCE


def to_document(entry: Entry) -> Document:
    """Return an entry as a document."""
    return Document(id=entry.id, page_content=entry.text, metadata=copied(entry.metadata))


def copied(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of metadata that shares no mutable value with the original."""
    if IMMUTABLE.issuperset(map(type, metadata.values())):  # nearly always, and much quicker
        return dict(metadata)
    return copy.deepcopy(dict(metadata))


def columns_of(
    ids: Sequence[Any],
    texts: Sequence[Any],
    metadatas: Sequence[Any],
    vectors: Vectors | None,
    keys: MetadataKeys,
) -> RawEntries:
    """Return columns of documents, with reasons for unreadable values; metadata is copied."""
    if len(metadatas) != len(ids):
        msg = f"{len(metadatas)} metadatas for {len(ids)} entries, expected one each."
        raise InvalidBatchError(msg)
    if vectors is not None and len(vectors) != len(ids):
        msg = f"{len(vectors)} vectors for {len(ids)} entries, expected one each."
        raise InvalidBatchError(msg)
    copies, claims, contexts = [], [], []
    reasons: dict[int, str] = {}
    for row, (entry_id, metadata) in enumerate(zip(ids, metadatas, strict=True)):
        why: list[str] = []
        copy = _copied_or_not(metadata, why)
        copies.append(copy)
        claims.append(keys.claims(copy, str(entry_id), reasons=why))
        try:
            contexts.append(context_of(copy, keys.prompt))
        except Exception as error:  # noqa: BLE001 - values of classes of their own may do anything
            contexts.append(None)
            why.append(f"its metadata cannot be read ({type(error).__name__})")
        if why:
            reasons[row] = "; ".join(why)
    return RawEntries(
        ids=ids,
        texts=texts,
        vectors=vectors,
        labels=[label for label, _ in claims],
        lineages=[lineage for _, lineage in claims],
        metadatas=copies,
        contexts=contexts,
        reasons=reasons,
    )


def _copied_or_not(metadata: Any, why: list[str]) -> dict[str, Any]:
    """Return a copy of metadata, as far as it can be copied; ``why`` collects failures."""
    if metadata is None:
        return {}
    try:
        if isinstance(metadata, Mapping):
            return copied(metadata)
    except Exception as error:  # noqa: BLE001 - values of classes of their own may do anything
        why.append(f"metadata cannot be copied ({type(error).__name__})")
        return _shallow(metadata)
    why.append(f"metadata is of type {type(metadata).__name__}, expected a mapping")
    return {}


def _shallow(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return those items that can be copied."""
    kept = {}
    for key in metadata:
        with suppress(Exception):
            kept[key] = copy.deepcopy(metadata[key])
    return kept


def stored_metadatas(batch: Batch, flagged: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return the metadata for the store, with a mark on flagged entries."""
    metadatas = [copied(metadata) for metadata in batch.metadatas]
    for decision in flagged:
        names = ",".join(sorted({finding.detector for finding in decision.findings}))
        # Never like a text: detectors would read it, and see another revision.
        metadatas[batch.ids.index(decision.entry_id)][FLAG_KEY] = _ODD.sub("_", names)
    return metadatas


def without_nothing(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without keys whose value is None: Chroma does not keep these."""
    return {key: value for key, value in metadata.items() if value is not None}
