"""Milvus and LanceDB: hostile ids are ids, metadata is exact, and what the stores lack is told."""

import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
from llama_index.core.schema import MediaResource, Node, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from llama_support import about, guard_of, guarded_over, id_of, ids_of, known, node
from support import DIM, vector_of

from ragshield_core.model.errors import QuarantineError
from ragshield_llamaindex import GuardedVectorStore
from ragshield_llamaindex.index import access_behind
from ragshield_llamaindex.inner import access_to

pytestmark = pytest.mark.slow


@pytest.fixture(params=["milvus", "lancedb"])
def kind(request):
    return request.param


@pytest.fixture
def store(kind, make_store):
    return GuardedVectorStore(make_store(kind), guard=guard_of())


def under(entry_id, document=None, text="billing", **metadata):
    made = TextNode(
        id_=entry_id, text=text, metadata=metadata, embedding=vector_of("billing").tolist()
    )
    if document is not None:
        made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
    return made


def only(key, value, operator=FilterOperator.EQ):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def ask(k=9, **options):
    return VectorStoreQuery(vector_of("billing").tolist(), similarity_top_k=k, **options)


def stored(store):
    return sorted(access_behind(store).ids())


# Hostile ids

HOSTILE = [
    *('x") or true or id in ("good', 'x"] or id in ["good', 'x" or true --', '"', '""'),
    *("x') or true or id in ('good", "x'] or id in ['good", "x' or 1 = 1 --", "'", "''", "' or '"),
    *("\\", 'x\\" or true --', "x\\' or true --", "\\'", "x\\'] or id in ['good", "`", "a`b"),
    *(
        "id",
        "doc_id",
        "text",
        "metadata",
        "true",
        "*",
        "%",
        "_",
        "x' or id like '%",
        "None",
        "null",
    ),
    *("line\nbreak", "tab\t\r", "\u2028", "é\U0001f600", "{id}", "%s $1 ?", "/* */ --"),
]


def test_a_hostile_id_neither_reads_nor_deletes_another(store, kind):
    store.add([under("good", "d"), under("other", "e")])
    for hostile in HOSTILE:
        assert ids_of(store.get_nodes([hostile])) == [], hostile
        store.delete_nodes([hostile])  # before it is there
        store.add([under(hostile, "f")])
        assert ids_of(store.get_nodes([hostile])) == [hostile], hostile
        if kind == "milvus":  # LanceDB does not search among ids
            assert store.query(ask(node_ids=[hostile])).ids == [hostile], hostile
        store.recall([hostile])
        assert store.query(ask()).ids == ["good", "other"], hostile
        store.release([hostile])
        assert stored(store) == sorted(["good", "other", hostile]), hostile
        store.delete_nodes([hostile])
        assert stored(store) == ["good", "other"], hostile
    assert store.quarantine.count() == 0


def test_a_hostile_name_of_a_document_neither_reads_nor_deletes_another(store, kind):
    store.add([under("good", "d"), under("bare")])
    for name in HOSTILE:
        store.delete(name)
        store.add([under("h", name, about=name)])
        for key in ("ref_doc_id", "about") if name != "None" else ("about",):
            assert ids_of(store.get_nodes(filters=only(key, name))) == ["h"], name
            assert store.query(ask(filters=only(key, name))).ids == ["h"], name
            if name.isprintable():  # Milvus knows not all escapes of Python's lists
                among = only(key, [name, "x"], FilterOperator.IN)
                assert ids_of(store.get_nodes(filters=among)) == ["h"], name
        nested = MetadataFilters(filters=[only("about", name)], condition=FilterCondition.AND)
        if kind == "milvus":
            assert ids_of(store.get_nodes(filters=nested)) == ["h"], name
            found = ["bare", "h"] if name == "None" else ["h"]
            assert store.query(ask(doc_ids=[name])).ids == found, name
        like = store.get_nodes(filters=only("about", name, FilterOperator.TEXT_MATCH))
        assert set(ids_of(like)) <= {"h"}, name
        store.delete(name, milvus_partition_name=None)
        assert stored(store) == ["bare", "good"], name
        store.add([under("h", name, about=name)])
        store.delete_nodes(filters=only("about", name))
        assert stored(store) == ["bare", "good"], name


def test_nodes_to_delete_are_both_among_the_ids_and_match_the_filters(store):
    store.add([under("a", page=1), under("b", page=2), under("c", page=2)])
    store.delete_nodes(["a", "b"], only("page", 2))
    assert stored(store) == ["a", "c"]
    assert ids_of(store.get_nodes(["a", "c"], only("page", 2))) == ["c"]
    assert sorted(ids_of(store.get_nodes())) == ["a", "c"]
    assert sorted(ids_of(store.get_nodes(filters=MetadataFilters(filters=[])))) == ["a", "c"]


# Metadata

FLAT = {"page": 3, "share": 0.5, "title": "a'b\"c\\", "draft": True, "none": None, "big": 2**62}
TAKEN = {"id": "x", "text": "y", "embedding": "z", "doc_id": "d", "_node_type": "t", "_seq": 1}


def test_metadata_and_fields_of_nodes_are_exact(store, kind):
    deep = {"tags": ["a", {"b": None}], "$meta": {"a": 1}, "a.b": 1, "": 2, "_partition": 3}
    given = under("a", "d", "two\n\0lines")
    given.metadata = FLAT | TAKEN | (deep if kind == "milvus" else {})
    given.excluded_llm_metadata_keys = ["page"]
    given.start_char_idx, given.text_template = 7, "{content} of {metadata_str}"
    store.add([given])
    for back in (
        *store.get_nodes(["a"]),
        *store.query(ask()).nodes,
        *access_behind(store).read("a"),
    ):
        kept = back.model_copy(update={"embedding": given.embedding})
        assert kept.to_dict() == given.to_dict()
    assert access_behind(store).document("d") == ["a"]


def test_keys_that_a_new_revision_lacks_are_found_no_more(store):
    store.add([under("a", page=1, title="old"), under("b", page=1)])
    store.add([under("a", text="billing new", page=2)])
    assert store.query(ask(filters=only("title", "old"))).ids == []
    assert store.query(ask(filters=only("page", 1))).ids == ["b"]
    (back,) = store.get_nodes(["a"])
    assert (back.text, back.metadata) == ("billing new", {"page": 2})
    assert stored(store) == ["a", "b"]


def test_filters_find_keys_that_older_nodes_lack(store):
    for n in range(12):
        store.add([under(f"n{n:02}", **{f"key{n}": "x"}, page=n)])
        for key, found in ((f"key{n}", n), ("key0", 0)):
            assert store.query(ask(filters=only(key, "x"))).ids == [f"n{found:02}"]
    assert len(store.get_nodes(filters=only("page", 1, FilterOperator.GT))) == 10
    pages = only("page", [3, 5], FilterOperator.IN)
    assert sorted(store.query(ask(filters=pages)).ids) == ["n03", "n05"]
    assert len(store.query(ask(k=4)).ids) == 4


UNFIT = {
    f"{kind}: {what}": (kind, text, metadata)
    for kind, what, text, metadata in (
        ("milvus", "a long text", "ü" * 2**15, {}),
        ("milvus", "much metadata", "text", {"k": "x" * 40_000}),
        ("milvus", "a large integer", "text", {"k": {"deep": [2**64]}}),
        ("milvus", "a lone surrogate", "\ud800", {}),
        ("milvus", "a lone surrogate in metadata", "text", {"k": "\ud800"}),
        ("lancedb", "a lone surrogate", "\ud800", {}),
        ("lancedb", "a lone surrogate in metadata", "text", {"k": "\ud800"}),
        ("lancedb", "a large integer", "text", {"k": 2**63}),
        ("lancedb", "a list", "text", {"k": ["a"]}),
        ("lancedb", "a dot", "text", {"a.b": 1}),
        ("lancedb", "another type than before", "text", {"n": "x"}),
        ("lancedb", "a fraction in a column of integers", "text", {"n": 1.5}),
        ("lancedb", "many keys", "text", {f"k{i}": 1 for i in range(201)}),
    )
}


@pytest.mark.parametrize(("kind", "text", "metadata"), UNFIT.values(), ids=UNFIT)
def test_a_node_that_the_store_cannot_keep_is_held_with_the_reason(
    kind, text, metadata, make_store
):
    store = GuardedVectorStore(make_store(kind), guard=guard_of())
    culprit = under("culprit", "d")
    culprit.__dict__["text"] = text  # past pydantic
    culprit.metadata = metadata
    other = Node(id_="other", text_resource=MediaResource(text="t"), embedding=culprit.embedding)
    other.metadata, other.text_resource.__dict__["text"] = metadata, text
    store.add([under("a", n=1), culprit, other, under("b", n=2)])
    assert stored(store) == ["a", "b"]
    assert store.quarantine.held_ids(["culprit", "other"]) == {"culprit", "other"}
    for one in ("culprit", "other"):
        with pytest.raises(QuarantineError, match="nothing was released"):
            store.release([one])


# Searches


def test_held_nodes_are_hidden_where_a_query_asks_for_some_fields(make_store):
    inner = make_store("milvus")
    store = guarded_over(inner, None, about("billing", 3))
    store.recall([id_of("billing kb 0")])
    access_to(inner).write(about("billing", 1))  # past the guard
    for fields in ([], ["label"], ["text"]):
        inner.output_fields = fields
        for query in (ask(), ask(output_fields=["text"])):
            found = store.query(query)
            assert (
                sorted(found.ids)
                == sorted(ids_of(found.nodes))
                == sorted(ids_of(about("billing", 3)[1:]))
            )


def test_other_modes_of_search_are_the_stores_own(make_store, milvus):
    from llama_index.vector_stores.milvus import MilvusVectorStore  # noqa: PLC0415

    options = {"dim": DIM, "enable_sparse": True, "use_async_client": False}
    words = MilvusVectorStore(milvus, collection_name="words", **options)
    store = guarded_over(words, None, known())
    store.recall([id_of("billing kb 0")])
    for mode in ("mmr", "hybrid"):  # for LlamaIndex's others, Milvus Lite lacks an option
        query = ask(5, query_str="billing kb", mode=VectorStoreQueryMode(mode))
        found = store.query(query)
        assert len(found.ids) == len(set(found.ids)) == 5, mode
        assert id_of("billing kb 0") not in found.ids
        assert found.ids == words.query(replace(query, output_fields=["*"])).ids
    words.client.drop_collection(words.collection_name)

    store = guarded_over(make_store("lancedb"), None, known())
    store.recall([id_of("billing kb 0")])
    for search in ("fts", "hybrid"):
        query = ask(4, query_str="billing kb")
        found = store.query(query, query_type=search)
        assert found.ids == store.inner.query(query, query_type=search).ids
        assert id_of("billing kb 0") not in found.ids
    store.add([node("billing quince", label="billing")])
    query = ask(1, query_str="quince")
    assert store.query(query, query_type="fts").ids == [id_of("billing quince")]
    assert store.inner.table.index_stats("text_idx").num_unindexed_rows == 0


async def test_nothing_is_found_in_an_empty_store_or_where_nothing_matches(store):
    assert store.query(ask()).ids == []
    assert store.get_nodes(["a"]) == []
    assert access_behind(store).near(vector_of("billing").tolist(), 3) == []
    store.delete("d")
    store.delete_nodes(["a"])
    store.clear()
    store.add([under("a", page=1)])
    assert store.query(ask(filters=only("page", 2))).ids == []
    assert (await store.aquery(ask(filters=only("page", 2)))).ids == []
    await store.aclear()
    assert (await store.aquery(ask())).nodes == []
    store.add([under("b")])
    assert store.query(ask()).ids == ["b"]


# Stores made by others


def test_a_milvus_without_dense_vectors_is_refused(make_store):
    inner = make_store("milvus")
    inner.enable_dense = False
    with pytest.raises(TypeError, match="enable_dense"):
        GuardedVectorStore(inner, guard=guard_of())


def test_a_table_of_nodes_without_documents_takes_those_with_documents(make_store):
    inner = make_store("lancedb")
    inner.add([under("a", page=1)])
    assert inner.table.schema.field("doc_id").type == pa.null()
    store = GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
    store.add([under("b", "d")])
    assert access_behind(store).document("d") == ["b"]
    assert stored(store) == ["a", "b"]


def test_filters_know_the_keys_of_all_nodes_of_a_table_that_the_store_has_made(make_store):
    inner = make_store("lancedb")
    inner.add([under("a", page=1)])
    store = GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
    store.add([under("b", title="x")])
    assert store.query(ask(filters=only("title", "x"))).ids == ["b"]


WRITE = """
import sys
from llama_index.core.schema import TextNode
from llama_index.vector_stores.{kind} import {cls}
from ragshield_llamaindex.inner import access_to

access = access_to({make})
print(sorted(access.ids()))
access.write([TextNode(id_="there", text="billing there", embedding={vector})])
"""


def elsewhere(kind, cls, make):
    """Write a node in another process; return the ids that it finds there before."""
    vector = vector_of("billing").tolist()
    script = WRITE.format(kind=kind, cls=cls, make=make, vector=vector)
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    return done.stdout.strip(), done.stderr


def test_a_table_of_lancedb_is_shared_by_processes(tmp_path):
    from llama_index.vector_stores.lancedb import LanceDBVectorStore  # noqa: PLC0415

    make = f"LanceDBVectorStore({str(tmp_path)!r})"
    store = GuardedVectorStore(LanceDBVectorStore(str(tmp_path)), guard=guard_of())
    assert elsewhere("lancedb", "LanceDBVectorStore", make)[0] == "[]"
    store.add([under("here")])  # the table is not made anew
    assert stored(store) == ["here", "there"]
    store.delete_nodes(["there"])
    assert elsewhere("lancedb", "LanceDBVectorStore", make)[0] == "['here']"
    assert sorted(store.query(ask()).ids) == ["here", "there"]
    assert sorted(store.scan().batch.ids) == ["here", "there"]
    again = LanceDBVectorStore(str(tmp_path))
    assert sorted(access_to(again).ids()) == ["here", "there"]


def test_a_file_of_milvus_is_for_one_process_at_a_time(tmp_path):
    from llama_index.vector_stores.milvus import MilvusVectorStore  # noqa: PLC0415

    file = str(tmp_path / "one.db")
    make = f"MilvusVectorStore({file!r}, dim={DIM}, use_async_client=False)"
    inner = MilvusVectorStore(file, dim=DIM, use_async_client=False)
    store = GuardedVectorStore(inner, guard=guard_of())
    store.add([under("here")])
    found, error = elsewhere("milvus", "MilvusVectorStore", make)
    assert found == ""
    assert "lock" in error.lower() or "in use" in error.lower()
    assert stored(store) == ["here"]
    inner.client.close()
