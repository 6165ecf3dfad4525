"""The adapter of a LangChain store: reads and writes documents for the write protocol."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from numpy.typing import ArrayLike

from ragshield_core import Batch, Guard, Report
from ragshield_core.model.entries import NO_ENTRIES, Entry, concatenate
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import Decision
from ragshield_core.quarantine import HeldEntry
from ragshield_core.quarantine.entries import batch_of
from ragshield_core.store import writing
from ragshield_core.store.inner import StoredEntries
from ragshield_core.store.joining import part_of
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.keys import MetadataKeys
from ragshield_core.store.malformed import RawEntries, Vectors, embedding, no_release, sift
from ragshield_core.store.updates import NewVersion
from ragshield_langchain.convert import (
    claimed,
    columns_of,
    copied,
    stored_metadatas,
    without_nothing,
)
from ragshield_langchain.inner import InnerStore
from ragshield_langchain.mask import PARENT_KEY, Mask

logger = logging.getLogger("ragshield")  # ids and counts, never text

Given = tuple[
    Sequence[Any], Sequence[Any], Sequence[Any], Vectors
]  # ids, texts, metadatas, vectors


class DocumentKeeper(Keeper[Document]):
    """Keeps a store of documents and a guard in step.

    Stores are written by synchronous methods. If the caller is on an event loop, these run in a
    thread; stores whose connections live on the loop return to it.
    """

    mask: Mask
    access: InnerStore

    def __init__(
        self,
        guard: Guard,
        access: InnerStore,
        keys: MetadataKeys,
    ) -> None:
        super().__init__(guard, Mask(keys))
        self.access = access
        self.keys = keys

    # The store

    def ready(self) -> None:
        """Check that the store can be written from here."""
        self.access.ready()

    def stored(self, ids: Sequence[str]) -> StoredEntries[Document]:
        """Return the stored documents under the ids."""
        documents, vectors = self.access.read(list(dict.fromkeys(ids)))
        return StoredEntries(self.as_stored(documents, vectors), documents)

    def ids(self) -> list[str]:
        """Return the ids of all stored documents."""
        return self.access.ids()

    def as_stored(self, documents: Sequence[Document], vectors: ArrayLike) -> Batch:
        """Return stored documents as entries, without unusable claims."""
        if not documents:
            return NO_ENTRIES
        metadatas = [document.metadata for document in documents]
        ids = [str(document.id) for document in documents]
        return Batch.of(
            ids=ids,
            texts=[document.page_content for document in documents],
            embeddings=vectors,
            metadatas=[copied(metadata) for metadata in metadatas],
            **claimed(metadatas, ids, self.keys),
        )

    def write_entries(
        self,
        batch: Batch,
        how: Sequence[Decision] | None,
        older: Sequence[Document],  # noqa: ARG002 - stores replace the document of an id
    ) -> None:
        """Store documents in place of older ones."""
        with self.access.writing():
            self.access.write(batch, stored_metadatas(batch, how or ()))

    def delete_entries(self, ids: Sequence[str], options: None = None) -> None:  # noqa: ARG002
        """Delete documents."""
        with self.access.writing():
            self.access.delete(ids)

    def nearest(self, vector: list[float], k: int) -> Sequence[Document]:
        """Return the documents nearest to a vector."""
        return self.access.near(vector, k)

    def entries_of(self, held: Sequence[HeldEntry], embed: Embeddings | None) -> Batch:
        """Return held documents with vectors."""
        some = []
        for part in ([h for h in held if h.vector.size], [h for h in held if not h.vector.size]):
            if part:
                batch = batch_of(part)
                some.append(batch if batch.dim else self._embedded(batch, embed))
                self.guard.judge.check_dim(some[-1])
        batch = concatenate(some) if some else NO_ENTRIES
        for row, reason in self.access.unfit(batch, batch.metadatas).items():
            raise QuarantineError(no_release(batch.ids[row], "stored", reason))
        return batch

    def _embedded(self, batch: Batch, embed: Embeddings | None) -> Batch:
        """Return entries with vectors, by the store's model if no other is given."""
        model = model_of(self.access.inner) if embed is None else embed
        with embedding(batch.ids, batch.texts):
            vectors = model.embed_documents(list(batch.texts))
        return replace(RawEntries.of(batch), vectors=vectors).batch()

    # Documents

    def same_as_held(self, stored: Entry, held: Entry) -> bool:
        """Return whether a stored document equals the held one, metadata included."""
        same = stored.fingerprint == held.fingerprint
        return same and without_nothing(stored.metadata) == without_nothing(held.metadata)

    def on_held(self, entries: Batch) -> None:
        """Warn that a docstore may have the text as well, and may serve it."""
        if not self.mask.parent_keys and any(PARENT_KEY in entry.metadata for entry in entries):
            logger.warning(
                "held entries name a whole document (%r): a ParentDocumentRetriever over this "
                "store returns it with the held text; pass parent_key=%r to the store, or put a "
                "GuardedRetriever around the retriever",
                *(PARENT_KEY, PARENT_KEY),
            )

    def updated_document(self, entry: Entry) -> str | None:
        """Return the lineage, which stays the same in each version."""
        return entry.lineage

    def add_columns(
        self,
        columns: Given,
        replacing: Sequence[str],
        versions: Sequence[NewVersion] = (),
    ) -> tuple[Report, Mapping[int, str]]:
        """Screen ids, texts, metadatas, vectors; hold the suspicious, store and learn the others.

        Returns the report, and reasons by row for entries that can be neither stored nor held.
        """
        sifted = sift(columns_of(*columns, self.keys), self.guard)
        sifted = sifted.without(self.access.unfit(sifted.batch, sifted.batch.metadatas))
        sifted.check(self.guard)
        if sifted.refused and not len(sifted.batch):
            return Report(batch=NO_ENTRIES), sifted.refused
        report = writing.add(
            self, sifted, lambda found: found.flagged, replacing=replacing, versions=versions
        )
        return report, sifted.refused

    def add_joined(self, some: Sequence[Given]) -> list[tuple[Report, Mapping[int, str]]]:
        """Carry out several writes as one; return report and reasons for each."""
        if len(some) == 1:
            return [self.add_columns(some[0], ())]
        ids, texts, metadatas, vectors = (list(chain(*one)) for one in zip(*some, strict=True))
        report, refused = self.add_columns((ids, texts, metadatas, vectors), ())
        answers: list[tuple[Report, Mapping[int, str]]] = []
        start = 0
        for names, *_ in some:
            rows = range(start, start + len(names))
            mine = {row - start: refused[row] for row in rows if row in refused}
            answers.append((part_of(report, frozenset(names)), mine))
            start = rows.stop
        return answers


def model_of(store: VectorStore) -> Embeddings:
    """Return the embedding model of a store; refuse a store without one."""
    model = store.embeddings
    if model is None:
        msg = (
            f"{type(store).__name__} has no embedding model to embed texts with; use "
            "add_embeddings with vectors of your own."
        )
        raise ValueError(msg)
    return model
