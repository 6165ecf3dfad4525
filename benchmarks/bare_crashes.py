"""Losses of unguarded stores when the process that writes them is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from crash_plan import DIM
from crash_stores import latest, save
from crashes import CONTEXT

BARE = ("FAISS folder", "LlamaIndex in a folder", "Chroma", "LlamaIndex on Chroma")
AT_ONCE = 50  # documents per call
LONGEST = 1.5  # most seconds until the kill
OPENED = 60.0  # seconds; a store that takes longer counts as unreadable


class Bare:
    """A store without a guard.

    Parameters
    ----------
    kind
        Kind of the store, one of :data:`BARE`.
    folder
        Folder of the store.
    atomic
        Whether each save goes into a new folder, or always into the same one.
    """

    def __init__(self, kind: str, folder: Path, *, atomic: bool) -> None:
        self.kind, self.folder, self.atomic = kind, folder, atomic
        at: Path | None = folder
        if atomic:
            at = latest(folder)
        elif not any(folder.iterdir()):
            at = None
        self.store: Any = self._faiss(at) if kind == BARE[0] else self._other(at)

    def _faiss(self, at: Path | None) -> Any:
        import faiss  # noqa: PLC0415
        from langchain_community.docstore.in_memory import InMemoryDocstore  # noqa: PLC0415
        from langchain_community.vectorstores import FAISS  # noqa: PLC0415
        from langchain_core.embeddings import DeterministicFakeEmbedding  # noqa: PLC0415

        model = DeterministicFakeEmbedding(size=DIM)
        if at is not None:
            return FAISS.load_local(str(at), model, allow_dangerous_deserialization=True)
        return FAISS(model, faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})

    def _other(self, at: Path | None) -> Any:
        from llama_index.core import (  # noqa: PLC0415
            MockEmbedding,
            StorageContext,
            VectorStoreIndex,
            load_index_from_storage,
        )

        if self.kind == "Chroma":
            from langchain_chroma import Chroma  # noqa: PLC0415
            from langchain_core.embeddings import DeterministicFakeEmbedding  # noqa: PLC0415

            model = DeterministicFakeEmbedding(size=DIM)
            return Chroma("bare", model, persist_directory=str(self.folder))
        if self.kind == "LlamaIndex on Chroma":
            import chromadb  # noqa: PLC0415
            from llama_index.vector_stores.chroma import ChromaVectorStore  # noqa: PLC0415

            client = chromadb.PersistentClient(str(self.folder))
            store = ChromaVectorStore(client.get_or_create_collection("bare"))
            return VectorStoreIndex.from_vector_store(store, MockEmbedding(DIM))
        if at is None:
            return VectorStoreIndex([], embed_model=MockEmbedding(DIM))
        context = StorageContext.from_defaults(persist_dir=str(at))
        return load_index_from_storage(context, embed_model=MockEmbedding(DIM))

    def write(self, ids: list[str], version: int) -> None:
        """Write documents over their older versions, and save."""
        texts = [f"{entry_id} in version {version}" for entry_id in ids]
        if self.kind == "Chroma":
            self.store.add_texts(texts, ids=ids)
        elif self.kind == "FAISS folder":
            if version > 1:
                self.store.delete(ids)
            self.store.add_texts(texts, ids=ids)
        else:
            from llama_index.core import Document  # noqa: PLC0415

            for entry_id, text in zip(ids, texts, strict=True):
                document = Document(id_=entry_id, text=text)
                if version > 1:
                    self.store.update_ref_doc(document)
                else:
                    self.store.insert(document)
        if self.kind not in BARE[:2]:
            return
        into: Callable[[Path], Any] = (
            (lambda new: self.store.save_local(str(new)))
            if self.kind == "FAISS folder"
            else self.store.storage_context.persist
        )
        save(self.folder, into) if self.atomic else into(self.folder)

    def texts(self) -> list[str]:
        """Return the texts in the store."""
        if self.kind == "FAISS folder":
            found = self.store.index_to_docstore_id.values()
            assert self.store.index.ntotal == len(found)  # noqa: S101 - else the store is damaged
            return [self.store.docstore.search(i).page_content for i in found]
        if self.kind == "Chroma":
            return list(self.store.get()["documents"])
        if self.kind == "LlamaIndex on Chroma":
            return list(self.store.vector_store.client.get()["documents"])
        nodes = self.store.index_struct.nodes_dict.values()
        vectors = self.store.vector_store.data.embedding_dict
        assert set(nodes) <= set(vectors)  # noqa: S101 - else the store is damaged
        return [self.store.docstore.get_node(i).get_content() for i in nodes]


def write(kind: str, folder: Path, pipe: Connection, *, atomic: bool) -> None:
    """Write documents, and a second version of them, until killed."""
    bare = Bare(kind, folder, atomic=atomic)
    pipe.send(None)
    for batch in range(10**6):
        for number, version in ((batch, 1), (batch - 1, 2)):
            if number >= 0:
                bare.write(names(number), version)
                pipe.send((number, version))


def read(kind: str, folder: Path, pipe: Connection, *, atomic: bool) -> None:
    """Send the texts of the store, or the error if it cannot be opened."""
    try:
        pipe.send(Bare(kind, folder, atomic=atomic).texts())
    except Exception as error:  # noqa: BLE001 - frameworks raise their own types
        pipe.send(repr(error))


def names(number: int) -> list[str]:
    """Return the ids of a batch."""
    return [f"d{number}-{row}" for row in range(AT_ONCE)]


def killed_in_place(kind: str, kills: int, *, atomic: bool) -> tuple[int, int, int, int]:
    """Kill once in each of some trials; count trials, and unreadable, missing and torn stores."""
    rng = np.random.default_rng(len(kind))
    unreadable = missing = torn = 0
    for _ in range(kills):
        with TemporaryDirectory() as name:
            folder = Path(name)
            done = _killed(kind, folder, LONGEST * rng.random(), atomic=atomic)
            ours, theirs = CONTEXT.Pipe()
            reader = CONTEXT.Process(
                target=read, args=(kind, folder, theirs), kwargs={"atomic": atomic}
            )
            reader.start()
            texts = ours.recv() if ours.poll(OPENED) else "not opened"
            reader.kill()
            reader.join()
        if isinstance(texts, str):
            unreadable += 1
            continue
        there = set(texts)
        last = {entry_id: version for number, version in done for entry_id in names(number)}
        number, version = done[-1] if done else (0, 2)
        # Calls alternate: version 1 of batch b, version 2 of b - 1, version 1 of b + 1.
        open_call = set(names(number - 1 if version == 1 else number + 2))
        lost = {
            i
            for i, v in last.items()
            if not any(f"{i} in version {w}" in there for w in ({v, 2} if i in open_call else {v}))
        }
        missing += bool(lost - open_call)
        torn += bool(lost & open_call)
    return kills, unreadable, missing, torn


def _killed(kind: str, folder: Path, after: float, *, atomic: bool) -> list[tuple[int, int]]:
    """Return the batches and versions that a process acknowledged before it was killed."""
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=write, args=(kind, folder, theirs), kwargs={"atomic": atomic})
    child.start()
    theirs.close()
    ours.recv()
    time.sleep(after)
    child.kill()
    child.join()
    done = []
    try:
        while ours.poll():
            done.append(ours.recv())
    except (EOFError, OSError):
        pass
    return done
