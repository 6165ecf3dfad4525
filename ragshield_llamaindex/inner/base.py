"""Access to a LlamaIndex store for its guarded store."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from types import NoneType
from typing import Any, ClassVar

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from ragshield_core.model.findings import printable
from ragshield_core.store import inner
from ragshield_core.store.one_store import name_of
from ragshield_core.store.steps import Step, asked
from ragshield_llamaindex.convert import check_fields, metadata_as_stored, text_of

# Ids per statement, and points per page.
CHUNK = 500
# Integers of databases have 64 bits.
LARGEST = 2**63
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

    def asking(self, name: str, *args: Any, **kwargs: Any) -> Step:
        """Return a step that calls a method of the store, or its asynchronous twin."""
        return asked(self._store, name, *args, **kwargs)

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


def node_with(metadata: Any, text: str | None, vector: Any) -> BaseNode:
    """Return the node that a store keeps as metadata, with its text and vector."""
    node = metadata_dict_to_node(metadata, text=text or "")
    node.embedding = np.asarray(vector, dtype=np.float64).tolist()
    return node
