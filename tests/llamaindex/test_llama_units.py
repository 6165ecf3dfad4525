"""Small parts: stable ids, and nodes kept in quarantine."""

import datetime as dt

from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import NodeRelationship, TextNode
from llama_support import (
    KEYS,
    guard_of,
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


def test_stable_ids_keep_ids_that_were_given():
    given = [node("a", document="d"), TextNode(text="b")]
    assert StableIds()(given) is given


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
