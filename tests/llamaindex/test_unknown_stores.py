"""Stores that no access class knows: hostile ids reach none of their filters."""

from typing import Any

import pytest
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult
from llama_support import guard_of, node
from pydantic import Field

from ragshield_llamaindex import GuardedVectorStore


class Pasting(BasePydanticVectorStore):
    """Pastes ids into a condition: an id that ends its literal matches every node."""

    stores_text: bool = True
    kept: dict[str, Any] = Field(default_factory=dict)

    @property
    def client(self):
        return None

    def add(self, nodes, **kwargs):  # noqa: ARG002 - of the interface
        self.kept |= {one.node_id: one for one in nodes}
        return [one.node_id for one in nodes]

    def _matching(self, ids):
        return [i for i in self.kept if i in ids or any(set("'\"`\\") & set(one) for one in ids)]

    def get_nodes(self, node_ids=None, filters=None):
        if node_ids is not None:
            return [self.kept[i] for i in self._matching(node_ids)]
        if filters.filters and "'" not in filters.filters[0].value:
            return [one for one in self.kept.values() if one.ref_doc_id == filters.filters[0].value]
        return list(self.kept.values())

    def delete_nodes(self, node_ids=None, filters=None, **kwargs):  # noqa: ARG002
        for i in self._matching(node_ids):
            del self.kept[i]

    def delete(self, ref_doc_id, **kwargs):
        raise NotImplementedError

    def query(self, query, **kwargs):  # noqa: ARG002
        return VectorStoreQueryResult(nodes=[], ids=[], similarities=[])


def hostile(entry_id, **options):
    made = node("billing hostile", label="billing", **options)
    made.id_ = entry_id
    return made


@pytest.mark.parametrize("entry_id", ['id") or true or id in ("id', "x' or 1 = 1 --", "`", "a\\"])
def test_a_hostile_id_is_held_and_deletes_nothing(entry_id):
    inner = Pasting()
    store = GuardedVectorStore(inner, guard=guard_of())
    good = [node(f"billing good {n}", label="billing") for n in range(3)]
    store.add(good)
    store.add([hostile(entry_id)])
    assert sorted(inner.kept) == sorted(one.node_id for one in good)
    assert "quote or backslash" in store.quarantine.show(entry_id).note
    store.delete_nodes([entry_id])
    store.recall([entry_id])
    assert len(inner.kept) == 3
    assert store.get_nodes([entry_id]) == []
    first = good[0].node_id
    assert [one.node_id for one in store.get_nodes([entry_id, first])] == [first]


def test_a_hostile_name_of_a_document_deletes_no_other():
    inner = Pasting()
    store = GuardedVectorStore(inner, guard=guard_of())
    store.add([node("billing good", label="billing", document="d")])
    store.add([node("billing other", label="billing", document="x' or true")])
    store.delete("x' or true")
    assert [one.ref_doc_id for one in inner.kept.values()] == ["d"]
