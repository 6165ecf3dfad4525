"""Access to the nodes of each kind of store that can be guarded, by id and with vectors."""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import NoneType
from typing import Any, ClassVar

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from ragshield_core.model.entries import Batch
from ragshield_core.model.entries import unfit as unstorable
from ragshield_core.model.findings import printable
from ragshield_core.neighbors.stored import VectorTable
from ragshield_core.store import inner, postgres_vectors, qdrant_vectors
from ragshield_core.store.inner import CALLERS_LOOP, chunks, on_loop
from ragshield_core.store.one_store import folder_of_chroma, name_of
from ragshield_llamaindex.convert import check_fields, metadata_as_stored, node_of, text_of

# Ids per statement, and points per page.
CHUNK = 500
# Integers of databases have 64 bits.
LARGEST = 2**63
# Prefixes that Chroma forbids for keys.
RESERVED = ("#", "$", "chroma:")
# Attributes in which stores keep the name of their collection or table.
NAMED_BY = ("collection_name", "table_name", "index_name")


class InnerStore(inner.StoreAccess[BaseNode]):
    """Access to the nodes of one kind of store, by their ids.

    Only some stores implement LlamaIndex's ``get_nodes``, and fewer return vectors from it.

    Attributes
    ----------
    text_in_node
        Whether the store returns texts in the node as written, rather than beside it.
    replaces
        Whether ``write`` replaces stored nodes with the same ids in one step: a crash leaves one
        revision or the other.
    ids_alone
        Whether the store can list all ids without the nodes, which is cheap.
    """

    text_in_node: ClassVar[bool] = False
    replaces: ClassVar[bool] = False
    ids_alone: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Identifier of the store, the same in every process; empty if there is none."""
        found = (getattr(self._store, key, None) for key in NAMED_BY)
        return name_of(self._store, next((one for one in found if isinstance(one, str)), ""))

    @abstractmethod
    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors; missing ones are ignored."""

    @abstractmethod
    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes that were cut from a document."""

    def write(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        """Store nodes; ``kwargs`` are those of the store's ``add``."""
        self.call("add", list(nodes), **kwargs)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes; missing ones are ignored."""
        self.call("delete_nodes", node_ids=list(ids))

    def near(self, vector: Sequence[float], k: int) -> list[BaseNode]:
        """Return the k nodes nearest to a vector, with or without their vectors."""
        query = VectorStoreQuery(query_embedding=list(vector), similarity_top_k=k)
        return list(self.call("query", query).nodes or ())

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store and return its result."""
        return getattr(self._store, name)(*args, **kwargs)

    def unfit(self, nodes: Sequence[BaseNode]) -> dict[int, str]:
        """Return the rows of nodes that this store cannot keep, each with the reason.

        They are held before the write. The reason names keys and types, never values.
        """
        flat = bool(getattr(self._store, "flat_metadata", False))
        reasons = {row: self._unfit(node, flat=flat) for row, node in enumerate(nodes)}
        return {row: reason for row, reason in reasons.items() if reason is not None}

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        kind = type(self._store).__name__
        try:
            check_fields(node)
            metadata = metadata_as_stored(node.metadata)
        except Exception as error:  # noqa: BLE001 - its message quotes values
            return (
                f"metadata or relationships hold a value that {kind} cannot keep "
                f"({type(error).__name__})."
            )
        for key, value in metadata.items() if flat else ():
            plain = isinstance(key, str) and isinstance(value, str | int | float | NoneType)
            if not plain or not self.takes(key, value):
                named = printable(repr(key), 60)
                return (
                    f"metadata[{named}] is of type {type(value).__name__}, or of a name or value, "
                    f"that {kind} cannot keep, expected a str, a finite number below 2**63 or None."
                )
        values = [*metadata, *metadata.values()] if flat else []
        if any(map(self.unreadable, [text_of(node), *(v for v in values if isinstance(v, str))])):
            return f"its text or metadata holds a character that {kind} cannot keep."
        try:
            self._read_back(node)
        except Exception as error:  # noqa: BLE001 - its message quotes values
            return (
                f"LlamaIndex could not write it to {kind} and read it back "
                f"({type(error).__name__})."
            )
        return None

    def _read_back(self, node: BaseNode) -> None:
        """Raise if LlamaIndex cannot rebuild the node from its serialised form."""
        left_out = {"embedding"} if self.text_in_node else {"embedding", "text_resource"}
        content = node.model_dump(mode="json", exclude=left_out, warnings=False)
        written = json.dumps(content, ensure_ascii=False)
        if getattr(self._store, "stores_text", True):
            written.encode()  # valid Unicode
        made = {"_node_content": written, "_node_type": node.class_name()}
        metadata_dict_to_node(made, None if self.text_in_node else text_of(node))

    def takes(self, key: str, value: str | float | None) -> bool:  # noqa: ARG002 - as below
        """Return whether the store can keep a plain value under a metadata key."""
        return not isinstance(value, int) or -LARGEST <= value < LARGEST

    def unreadable(self, text: str) -> bool:  # noqa: ARG002 - most stores keep any text
        """Return whether the text has a character that the store cannot keep."""
        return False


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
                nodes.append(_node(metadata, text, vector))
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


class QdrantInner(InnerStore):
    """Access to llama-index-vector-stores-qdrant.

    Node ids must be UUIDs, as Qdrant requires; it has no nodes under other ids.
    """

    of = ("llama_index.vector_stores.qdrant.base", "QdrantVectorStore")
    text_in_node = True
    replaces = True

    @property
    def table(self) -> VectorTable | None:
        """The collection's dense vectors; None if the store has only an asynchronous client."""
        if self._store.client is None:
            return None
        return qdrant_vectors.QdrantVectors(
            self.name, self._place, _as_qdrant_writes, lambda point: str(point.id)
        )

    def _place(self) -> qdrant_vectors.NamedVectors | None:
        store = self._store
        if not self._there():
            return None
        # Older collections have unnamed vectors.
        return qdrant_vectors.NamedVectors(
            store.client, store.collection_name, store.dense_vector_name
        )

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        if not _uuids([node.node_id]):
            return "its id is no UUID, which Qdrant asks for; name nodes by UUIDs."
        return super()._unfit(node, flat=flat)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes; does nothing before the first write makes the collection."""
        if self._there():
            super().delete(_uuids(ids))

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        nodes: list[BaseNode] = []
        for part in chunks(_uuids(ids), CHUNK) if self._there() else ():
            points = self._ask("retrieve", part, with_payload=True, with_vectors=True)
            nodes += self._store.parse_to_query_result(points).nodes
        return nodes

    def near(self, vector: Sequence[float], k: int) -> list[BaseNode]:
        """Return the k nodes nearest to a vector."""
        return super().near(vector, k) if self._there() else []

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return self._scroll(None)

    def count(self) -> int:
        """Return how many nodes there are."""
        return int(self._ask("count").count) if self._there() else 0

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        from qdrant_client import models  # noqa: PLC0415 - only where there is such a store

        match = models.MatchValue(value=ref_doc_id)
        return self._scroll(models.Filter(must=[models.FieldCondition(key="doc_id", match=match)]))

    def _scroll(self, condition: Any) -> list[str]:
        found: list[str] = []
        there, offset = self._there(), None
        while there:
            points, offset = self._ask(
                "scroll", scroll_filter=condition, limit=CHUNK, offset=offset, with_payload=False
            )
            found += [str(point.id) for point in points]
            there = offset is not None
        return found

    def _there(self) -> bool:
        """Return whether the collection exists; the store makes it at the first write."""
        return bool(self._ask("collection_exists"))

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client on the collection."""
        store, args = self._store, (self._store.collection_name, *args)
        if store.client is not None:
            return getattr(store.client, method)(*args, **kwargs)
        return _on_callers_loop(getattr(store._aclient, method), *args, **kwargs)  # noqa: SLF001

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store, or its async twin if that is the only kind of client."""
        if self._store.client is not None:
            return super().call(name, *args, **kwargs)
        twin = getattr(self._store, "async_add" if name == "add" else f"a{name}")
        return _on_callers_loop(twin, *args, **kwargs)


def _on_callers_loop(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    loop = CALLERS_LOOP.get()
    if loop is None:
        msg = (
            "a QdrantVectorStore with an asynchronous client only cannot be used by synchronous "
            "methods; use the async ones, such as areconcile, or give it a client."
        )
        raise NotImplementedError(msg)
    return on_loop(loop, partial(method, *args, **kwargs))


class PostgresInner(InnerStore):
    """Access to llama-index-vector-stores-postgres.

    Its filters paste values into SQL text, so the table is queried directly, with parameters.
    """

    of = ("llama_index.vector_stores.postgres.base", "PGVectorStore")

    @property
    def name(self) -> str:
        """The store's class, schema and table."""
        return name_of(self._store, f"{self._store.schema_name}.{self._store.table_name}")

    @property
    def table(self) -> VectorTable | None:
        """The vectors of the table."""
        return postgres_vectors.PostgresVectors(self.name, self._in_transaction, self._place)

    def _in_transaction(self, work: Callable[[Any], Any]) -> Any:
        self._store._initialize()  # noqa: SLF001 - makes the table, as its own methods do
        with self._store._session() as session, session.begin():  # noqa: SLF001
            return work(session)

    def _place(self, session: Any) -> postgres_vectors.VectorColumns:
        quoted = session.get_bind().dialect.identifier_preparer
        return postgres_vectors.VectorColumns(
            table=quoted.format_table(self._table().__table__),
            key_column="id",
            id_column="node_id",  # not always unique: `add` keeps existing rows with the same id
            vector_column="embedding",
            condition="e.node_id IS NOT NULL AND e.embedding IS NOT NULL",
            values={},
        )

    def unreadable(self, text: str) -> bool:
        """Return whether the text has a NUL or a lone surrogate."""
        return unstorable(text)

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        reason = super()._unfit(node, flat=flat)
        if reason is not None:
            return reason
        metadata = node.model_dump(mode="json", include={"metadata"})
        try:
            written = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        except ValueError:
            written = "\0"
        if "\\u0000" in written or unstorable(written):
            return "metadata holds a NUL, a lone surrogate or NaN, which PostgreSQL cannot keep."
        return None

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes with their vectors."""
        table = self._table()
        columns = (table.metadata_, table.text, table.embedding)
        return [
            _node(metadata, text, vector)
            for part in chunks(ids, CHUNK)
            for metadata, text, vector in self._select(columns, table.node_id.in_(part))
        ]

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return [node_id for (node_id,) in self._select((self._table().node_id,))]

    def count(self) -> int:
        """Return how many nodes there are."""
        from sqlalchemy import func  # noqa: PLC0415 - only where there is such a store

        ((n_nodes,),) = self._select((func.count(self._table().node_id),), order=False)
        return int(n_nodes)

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        table = self._table()
        condition = table.metadata_["ref_doc_id"].astext == ref_doc_id
        return [node_id for (node_id,) in self._select((table.node_id,), condition)]

    def _table(self) -> Any:
        return self._store._table_class  # noqa: SLF001 - there is no public way to it

    def _select(self, columns: Sequence[Any], *conditions: Any, order: bool = True) -> list[Any]:
        from sqlalchemy import select  # noqa: PLC0415 - only where there is such a store

        self._store._initialize()  # noqa: SLF001 - makes the table, as its own methods do
        query = select(*columns).where(*conditions)
        query = query.order_by(self._table().id) if order else query
        with self._store._session() as session:  # noqa: SLF001
            return list(session.execute(query))


# Characters that end or escape a literal in the languages of filters.
ENDINGS = frozenset("'\"`\\")


class GenericInner(InnerStore):
    """Access to any other store that keeps texts and has ``get_nodes`` and ``delete_nodes``.

    If the store returns nodes without vectors, the guard cannot forget nodes that are replaced or
    deleted; write a subclass of :class:`InnerStore` that reads the vectors.

    Some stores paste ids into their filters: LanceDB's deletes all nodes for one hostile id. So
    nodes with such ids are held, and the store is never asked about them.
    """

    USED = ("get_nodes", "delete_nodes")
    ids_alone = False

    def _unfit(self, node: BaseNode, *, flat: bool) -> str | None:
        if not ENDINGS.isdisjoint(node.node_id):
            return (
                f"its id holds a quote or backslash, which a {type(self._store).__name__} may take "
                "for the end of an id in its filters; rename it, or pass an InnerStore of your own."
            )
        return super()._unfit(node, flat=flat)

    def read(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes, with their vectors if the store returns them."""
        wanted = _without_endings(ids)
        return list(self._store.get_nodes(node_ids=wanted)) if wanted else []

    def delete(self, ids: Sequence[str]) -> None:
        """Delete nodes; missing ones are ignored."""
        if wanted := _without_endings(ids):
            super().delete(wanted)

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        return [node.node_id for node in self._store.get_nodes(filters=MetadataFilters(filters=[]))]

    def document(self, ref_doc_id: str) -> list[str]:
        """Return the ids of the nodes of a document."""
        only = MetadataFilters(filters=[MetadataFilter(key="ref_doc_id", value=ref_doc_id)])
        found = self._store.get_nodes(filters=only)
        return [node.node_id for node in found if node.ref_doc_id == ref_doc_id]


KINDS = (ChromaInner, QdrantInner, PostgresInner)


def access_to(store: BasePydanticVectorStore) -> InnerStore:
    """Return access to a store that keeps texts.

    Raises
    ------
    TypeError
        If the store keeps vectors only, or has no methods to read and delete nodes by id.
    """
    if not store.stores_text:
        msg = (
            f"{type(store).__name__} keeps vectors only (stores_text=False), and an index maps its "
            "ids to nodes by position: leaving a node out would serve its text under the vector of "
            "another. Guard the index: GuardedVectorStoreIndex(nodes, guard=guard, "
            "storage_context=...), or its from_documents(documents, guard=guard)."
        )
        raise TypeError(msg)
    for kind in KINDS:
        if kind.handles(type(store)):
            return kind(store)
    missing = [name for name in GenericInner.USED if _inherits(store, name)]
    if missing:
        msg = (
            f"{type(store).__name__} has no {' and no '.join(missing)}, without which nothing in "
            "it can be replaced or recalled; pass inner_store=, an InnerStore that knows how."
        )
        raise TypeError(msg)
    return GenericInner(store)


def _inherits(store: BasePydanticVectorStore, name: str) -> bool:
    """Return whether a store inherits a method of the base class, which only raises."""
    return getattr(type(store), name) is getattr(BasePydanticVectorStore, name)


def _node(metadata: Any, text: str | None, vector: Any) -> BaseNode:
    node = metadata_dict_to_node(metadata, text=text or "")
    node.embedding = np.asarray(vector, dtype=np.float64).tolist()
    return node


def _without_endings(ids: Sequence[str]) -> list[str]:
    return [one for one in ids if ENDINGS.isdisjoint(one)]


def _uuids(ids: Sequence[str]) -> list[str]:
    """Return the ids that are UUIDs."""
    found = []
    for one in ids:
        with suppress(ValueError):
            uuid.UUID(one)
            found.append(one)
    return found


def _as_qdrant_writes(ids: Sequence[str]) -> list[str]:
    """Return the ids that are UUIDs in the form that Qdrant returns.

    Qdrant changes an id in capitals, so detectors keep the vector of such a node.
    """
    return [one for one in _uuids(ids) if str(uuid.UUID(one)) == one]


def check_inner_store(access: InnerStore, dim: int = inner.DIM) -> None:
    """Check your own access class on an empty store; call this in its tests.

    Raises
    ------
    AssertionError
        Describes how the store behaves differently.
    """

    def write(batch: Batch) -> None:
        pairs = zip(batch, batch.vectors, strict=True)
        access.write([node_of(entry, vector.tolist()) for entry, vector in pairs])

    def read(ids: Sequence[str]) -> dict[str, Any]:
        nodes = access.read(ids)
        return {one.node_id: (text_of(one), one.metadata, one.get_embedding()) for one in nodes}

    inner.check_inner_store(access, write, read, dim)
