"""Small parts: stable ids, larger queries, what the quarantine keeps of a node."""

import datetime as dt
from types import SimpleNamespace

from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import NodeRelationship, TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult
from llama_support import (
    KEYS,
    guard_of,
    guarded_over,
    node,
)

from ragshield_llamaindex import StableIds
from ragshield_llamaindex.convert import to_batch, to_node


def test_equal_parts_of_a_document_have_ids_of_their_own_the_same_at_each_run():
    splitter = SentenceSplitter(chunk_size=6, chunk_overlap=0)
    text = "One two three four. One two three four. Five six seven eight."
    once, again = (StableIds()(splitter([Document(id_="d", text=text)])) for _ in range(2))
    assert [one.node_id for one in once] == [one.node_id for one in again]
    assert len({one.node_id for one in once}) == 3
    assert once[0].text == once[1].text
    assert [one.next_node.node_id for one in once[:2]] == [one.node_id for one in once[1:]]
    other = StableIds()(splitter([Document(id_="e", text=text)]))
    assert not {one.node_id for one in once} & {one.node_id for one in other}


def test_names_that_were_given_stay():
    given = [node("a", document="d"), TextNode(text="b")]
    assert StableIds()(given) is given


def test_every_part_of_a_query_that_limits_it_is_widened(make_store):
    asked, store = [], guarded_over(make_store("chroma"), None, [node("a")])

    def answer(query):
        asked.append(query)
        return VectorStoreQueryResult(nodes=[node("a")] * query.similarity_top_k)

    store._mask.add(to_batch([node("a")], KEYS))
    store._inner = SimpleNamespace(query=answer)
    found = store.query(VectorStoreQuery(similarity_top_k=3, sparse_top_k=5))
    assert (found.nodes, found.ids) == ([], None)
    limits = [(one.similarity_top_k, one.sparse_top_k, one.hybrid_top_k) for one in asked]
    assert limits[:3] == [(3, 5, None), (6, 8, None), (12, 14, None)]


def test_a_node_comes_back_from_quarantine_as_it_was():
    given = node(
        "a \ud800 b", "lone", label="x", document="d", seen=dt.date(2026, 1, 2), tags=["u"]
    )
    given.text_template = "{content} / {metadata_str}"
    given.relationships[NodeRelationship.NEXT] = node("c").as_related_node_info()
    guard = guard_of()
    guard.quarantine.hold(to_batch([given], KEYS))
    (held,) = guard.quarantine.list()
    back = to_node(held)
    assert back.to_dict() | {"embedding": None} == given.to_dict() | {"embedding": None}
    assert to_batch([back], KEYS)[0].fingerprint == to_batch([given], KEYS)[0].fingerprint
