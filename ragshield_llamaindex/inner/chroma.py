"""llama-index-vector-stores-chroma; that package is an extra and not imported until needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.utils import node_to_metadata_dict

from ragshield_core.model.entries import unfit as unstorable
from ragshield_core.store.inner import chunks
from ragshield_core.store.one_store import folder_of_chroma, name_of
from ragshield_llamaindex.inner.base import CHUNK, LARGEST, InnerStore, node_with

# Prefixes that Chroma forbids for keys.
RESERVED = ("#", "$", "chroma:")


class ChromaInner(InnerStore):
    """Access to llama-index-vector-stores-chroma.

    Its ``add`` skips existing ids, so nodes are written by Chroma's own method.
    """

    of = ("llama_index.vector_stores.chroma.base", "ChromaVectorStore")
    replaces = True

    @property
    def name(self) -> str:
        """The store's class and collection."""
        return name_of(self._store, getattr(self._store.client, "name", None))

    @property
    def folder(self) -> str | None:
        """The folder of a local collection; None for one on a server."""
        return folder_of_chroma(getattr(self._store.client, "_client", None))

    def takes(self, key: str, value: str | float | None) -> bool:
        """Return whether the value is finite and of 64 bits, and the key is a valid name.

        Chroma loses all metadata of an entry with a number that is not finite.
        """
        fits = not isinstance(value, int | float) or -LARGEST <= value < LARGEST
        return fits and bool(key) and not key.startswith(RESERVED)

    def unreadable(self, text: str) -> bool:
        """Return whether the text has a lone surrogate."""
        return unstorable(text.replace("\0", ""))

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        nodes = []
        for part in chunks(ids, CHUNK):
            found = self._store.client.get(
                ids=part, include=["embeddings", "documents", "metadatas"]
            )
            columns = (found["metadatas"], found["documents"], found["embeddings"])
            for metadata, text, vector in zip(*columns, strict=True):
                nodes.append(node_with(metadata, text, vector))
        return nodes

    def write(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Store nodes, replacing those with the same ids.

        A second step deletes metadata keys that the new nodes lack, since Chroma merges metadata.
        """
        del kwargs  # the store's ``add`` takes none
        client, flat = self._store.client, self._store.flat_metadata
        for part in chunks(nodes, CHUNK):
            ids = [node.node_id for node in part]
            there = client.get(ids=ids, include=["metadatas"])
            made = [
                node_to_metadata_dict(node, remove_text=True, flat_metadata=flat) for node in part
            ]
            metadatas = [
                {key: "" if value is None else value for key, value in one.items()} for one in made
            ]
            client.upsert(
                ids=ids,
                documents=[node.get_content(metadata_mode=MetadataMode.NONE) for node in part],
                embeddings=[node.get_embedding() for node in part],
                metadatas=metadatas,
            )
            new = dict(zip(ids, metadatas, strict=True))
            pairs = zip(there["ids"], there["metadatas"], strict=True)
            stale = {i: dict.fromkeys((older or {}).keys() - new[i]) for i, older in pairs}
            if stale := {i: keys for i, keys in stale.items() if keys}:
                client.update(ids=list(stale), metadatas=list(stale.values()))

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return list(self._store.client.get(include=[])["ids"])

    def count(self) -> int:
        """Return how many nodes there are."""
        return int(self._store.client.count())

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        found = self._store.client.get(where={"document_id": ref_doc_id}, include=[])
        return list(found["ids"])
