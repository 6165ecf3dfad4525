"""Guarded stores for the crash tests, opened as users do, with access to their raw contents."""

from __future__ import annotations

import shutil
import uuid
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from crash_plan import DIM
from numpy.typing import NDArray

from ragshield_core import Batch, Guard
from ragshield_core.store.keeper import Keeper

LATEST = "latest"


def save(folder: Path, write: Callable[[Path], object]) -> None:
    """Save a store into a new folder, then make that folder the latest one atomically."""
    new = folder / uuid.uuid4().hex
    write(new)
    (folder / "next").write_text(new.name)
    (folder / "next").replace(folder / LATEST)
    for old in folder.iterdir():
        if old.is_dir() and old != new:
            shutil.rmtree(old)


def latest(folder: Path) -> Path | None:
    """Return the folder of the last save, if there is one."""
    name = folder / LATEST
    return folder / name.read_text() if name.exists() else None


class Store(ABC):
    """A guarded store.

    Parameters
    ----------
    guard
        Guard opened on a database.
    folder
        Folder of the store, if it is in files.
    server
        URL of a PostgreSQL database.
    """

    in_memory: ClassVar[bool] = False  # True: changes live in memory until saved

    def __init__(self, guard: Guard, folder: Path, server: str) -> None:
        folder.mkdir(exist_ok=True)
        self.guard, self.folder, self.server = guard, folder, server
        self.guarded = self._open()

    @property
    def keeper(self) -> Keeper[Any]:
        """The keeper, which writes the store."""
        return self.guarded._keeper  # type: ignore[no-any-return]  # noqa: SLF001

    @property
    def access(self) -> Any:
        """Access to the bare store below the guard."""
        return self.keeper.access  # type: ignore[attr-defined]

    @abstractmethod
    def _open(self) -> Any:
        """Return the guarded store."""

    @abstractmethod
    def fill(self, entries: Batch) -> None:
        """Write entries that the guard has learned, bypassing it."""

    @abstractmethod
    def add(self, entries: Batch) -> None:
        """Write entries, or new revisions."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete entries."""

    @abstractmethod
    def raw(self) -> Counter[tuple[str, str]]:
        """Return the ids with texts in the store, bypassing the guard."""

    @abstractmethod
    def seen(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> set[tuple[str, str]]:
        """Return ids with texts from reads of the guarded store, by ids and by searches."""

    def save(self) -> None:  # noqa: B027 - most stores are in files or on a server
        """Save the store, if it is in memory."""


class _OfDocuments(Store):
    @abstractmethod
    def _inner(self) -> Any:
        """Return the bare store."""

    def _open(self) -> Any:
        from ragshield_langchain import GuardedVectorStore  # noqa: PLC0415

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that a new guard knows nothing
            return GuardedVectorStore(self._inner(), guard=self.guard, lineage_key="source")

    def fill(self, entries: Batch) -> None:
        """Write entries below the guard."""
        self.access.write(entries, [{"source": lineage} for lineage in entries.lineages])

    def add(self, entries: Batch) -> None:
        """Write entries."""
        self.guarded.add_embeddings(
            texts=list(entries.texts),
            embeddings=entries.vectors.tolist(),
            metadatas=[{"source": lineage} for lineage in entries.lineages],
            ids=list(entries.ids),
        )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete entries."""
        self.guarded.delete(list(ids))

    def seen(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> set[tuple[str, str]]:
        """Read by ids, and search."""
        found = self.guarded.get_by_ids(list(ids))
        for vector in vectors:
            found += self.guarded.similarity_search_by_vector(vector.tolist(), k=4)
        return {(str(document.id), document.page_content) for document in found}


class FaissFolder(_OfDocuments):
    """LangChain's FAISS, saved into a folder after each call."""

    in_memory = True

    def _inner(self) -> Any:
        import faiss  # noqa: PLC0415
        from langchain_community.docstore.in_memory import InMemoryDocstore  # noqa: PLC0415
        from langchain_community.vectorstores import FAISS  # noqa: PLC0415
        from langchain_core.embeddings import DeterministicFakeEmbedding  # noqa: PLC0415

        model = DeterministicFakeEmbedding(size=DIM)
        if (folder := latest(self.folder)) is not None:
            return FAISS.load_local(str(folder), model, allow_dangerous_deserialization=True)
        return FAISS(model, faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})

    def raw(self) -> Counter[tuple[str, str]]:
        """Return the ids with texts in the store."""
        inner = self.guarded.inner
        ids = list(inner.index_to_docstore_id.values())
        assert inner.index.ntotal == len(ids)  # noqa: S101 - else vectors belong to other texts
        return Counter((i, inner.docstore.search(i).page_content) for i in ids)

    def save(self) -> None:
        """Save the store."""
        save(self.folder, lambda new: self.guarded.inner.save_local(str(new)))


class ChromaFolder(_OfDocuments):
    """LangChain's Chroma in a folder."""

    def _inner(self) -> Any:
        from langchain_chroma import Chroma  # noqa: PLC0415

        return Chroma("crashes", persist_directory=str(self.folder))

    def raw(self) -> Counter[tuple[str, str]]:
        """Return the ids with texts in the store."""
        found = self.guarded.inner.get()
        return Counter(zip(found["ids"], found["documents"], strict=True))


class PostgresTable(_OfDocuments):
    """LangChain's PGVector."""

    def _inner(self) -> Any:
        from langchain_core.embeddings import DeterministicFakeEmbedding  # noqa: PLC0415
        from langchain_postgres import PGVector  # noqa: PLC0415

        return PGVector(
            DeterministicFakeEmbedding(size=DIM),
            connection=self.server,
            collection_name="crashes",
        )

    def fill(self, entries: Batch) -> None:
        """Write entries below the guard."""
        self.guarded.inner.delete_collection()  # left from an earlier run
        self.guarded.inner.create_collection()
        super().fill(entries)

    def raw(self) -> Counter[tuple[str, str]]:
        """Return the ids with texts in the store."""
        from sqlalchemy import select  # noqa: PLC0415

        inner = self.guarded.inner
        table = inner.EmbeddingStore.__table__
        with inner._make_sync_session() as session:  # noqa: SLF001 - the raw contents
            of_ours = table.c.collection_id == inner.get_collection(session).uuid
            return Counter(
                (row.id, row.document)
                for row in session.execute(select(table.c.id, table.c.document).where(of_ours))
            )


class _OfNodes(Store):
    def _nodes(self, entries: Batch) -> list[Any]:
        from llama_index.core.schema import (  # noqa: PLC0415
            NodeRelationship,
            RelatedNodeInfo,
            TextNode,
        )

        return [
            TextNode(
                id_=entry.id,
                text=entry.text,
                metadata={"file_path": entry.lineage},
                embedding=vector.tolist(),
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=entry.id)},
            )
            for entry, vector in zip(entries, entries.vectors, strict=True)
        ]

    def fill(self, entries: Batch) -> None:
        """Write entries below the guard."""
        from llama_index.core import VectorStoreIndex  # noqa: PLC0415

        index, nodes = self.guarded, self._nodes(entries)
        VectorStoreIndex._add_nodes_to_index(index, index.index_struct, nodes)  # noqa: SLF001
        index.storage_context.index_store.add_index_struct(index.index_struct)

    def add(self, entries: Batch) -> None:
        """Write entries."""
        self.guarded.insert_nodes(self._nodes(entries))

    def delete(self, ids: Sequence[str]) -> None:
        """Delete entries."""
        for entry_id in ids:
            self.guarded.delete_ref_doc(entry_id, delete_from_docstore=True)

    def seen(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> set[tuple[str, str]]:
        """Read by ids, and search."""
        from llama_index.core.schema import QueryBundle  # noqa: PLC0415

        retriever = self.guarded.as_retriever(similarity_top_k=4)
        found = []
        for vector in vectors:
            query = QueryBundle("", embedding=vector.tolist())
            found += [one.node for one in retriever.retrieve(query)]
        shown = {(node.node_id, node.get_content()) for node in found}
        everything = self.keeper.everything()
        wanted = set(ids)
        return shown | {(e.id, e.text) for e in everything if e.id in wanted}


def _model() -> Any:
    from llama_index.core import MockEmbedding  # noqa: PLC0415

    return MockEmbedding(DIM)


class IndexOnChroma(_OfNodes):
    """A LlamaIndex index over Chroma in a folder."""

    def _open(self) -> Any:
        import chromadb  # noqa: PLC0415
        from llama_index.vector_stores.chroma import ChromaVectorStore  # noqa: PLC0415

        from ragshield_llamaindex import GuardedVectorStoreIndex  # noqa: PLC0415

        client = chromadb.PersistentClient(str(self.folder))
        store = ChromaVectorStore(client.get_or_create_collection("crashes"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return GuardedVectorStoreIndex.from_vector_store(
                store, embed_model=_model(), guard=self.guard
            )

    def raw(self) -> Counter[tuple[str, str]]:
        """Return the ids with texts in the store."""
        found = self.access.inner.client.get()
        return Counter(zip(found["ids"], found["documents"], strict=True))


class IndexInFolder(_OfNodes):
    """A LlamaIndex index in memory, persisted into a folder after each call."""

    in_memory = True

    def _open(self) -> Any:
        from llama_index.core import StorageContext, load_index_from_storage  # noqa: PLC0415

        from ragshield_llamaindex import GuardedVectorStoreIndex  # noqa: PLC0415

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if (folder := latest(self.folder)) is None:
                return GuardedVectorStoreIndex([], guard=self.guard, embed_model=_model())
            context = StorageContext.from_defaults(persist_dir=str(folder))
            index = load_index_from_storage(context, embed_model=_model())
            return GuardedVectorStoreIndex.adopt(index, guard=self.guard, fit=False)

    def raw(self) -> Counter[tuple[str, str]]:
        """Return the ids with texts in the store."""
        nodes = self.guarded.index_struct.nodes_dict
        vectors = self.access.inner.data.embedding_dict
        assert set(vectors) == set(nodes)  # noqa: S101 - else vectors belong to other texts
        docstore = self.guarded.docstore
        return Counter((i, docstore.get_node(i).get_content()) for i in nodes.values())

    def save(self) -> None:
        """Save the store."""
        save(self.folder, self.guarded.storage_context.persist)


STORES: dict[str, type[Store]] = {
    "FAISS folder": FaissFolder,
    "Chroma": ChromaFolder,
    "PGVector": PostgresTable,
    "LlamaIndex on Chroma": IndexOnChroma,
    "LlamaIndex in a folder": IndexInFolder,
}
