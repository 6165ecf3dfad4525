"""Neighbours that the store inside finds, by real stores of LlamaIndex."""

import numpy as np
import pytest
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_support import id_of
from support import PASSAGE_DIM, group, passages, slowly

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.findings import Verdict
from ragshield_llamaindex import GuardedVectorStore, GuardedVectorStoreIndex
from ragshield_llamaindex.inner import access_to

KINDS = ["qdrant", *slowly("postgres", "newer postgres")]


def named(batch):
    """Return a batch under ids that Qdrant takes."""
    return type(batch).of(
        ids=[id_of(one) for one in batch.ids],
        texts=batch.texts,
        embeddings=batch.embeddings,
        lineages=batch.lineages,
    )


KNOWN = named(passages(240, 1))
BAD = named(group(6, 3))


def nodes_of(batch):
    """Return nodes of a document each lineage, whose id is not theirs."""
    return [
        TextNode(
            id_=entry.id,
            text=entry.text,
            embedding=vector.tolist(),
            metadata={"source": entry.lineage},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"of {entry.lineage}")},
        )
        for entry, vector in zip(batch, batch.vectors, strict=True)
    ]


def new_guard(url="sqlite://"):
    return Guard([CliqueDetector()], quarantine=Quarantine(url))


@pytest.fixture
def make(make_store):
    return lambda kind: make_store(kind, PASSAGE_DIM)


def fill(inner, batch=KNOWN):
    inner.add(nodes_of(batch))
    return inner


def adopted(inner, **settings):
    return GuardedVectorStore.adopt(inner, guard=new_guard(), neighbors="store", **settings)


def index_over(inner, **settings):
    bare = VectorStoreIndex.from_vector_store(inner, MockEmbedding(PASSAGE_DIM))
    return GuardedVectorStoreIndex.adopt(bare, guard=new_guard(), **settings)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def verdicts(report):
    return [decision.verdict for decision in report.decisions]


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_finds_the_nearest_by_cosine(kind, make):
    table = access_to(fill(make(kind))).table
    found = table.search(BAD.embeddings, 10)
    cosines = BAD.embeddings @ KNOWN.embeddings.T
    for query, rows in enumerate(found.rows):
        best = np.argsort(-cosines[query])[:10]
        assert {found.ids[row] for row in rows} == {KNOWN.ids[row] for row in best}
    expected = KNOWN.embeddings[[KNOWN.ids.index(one) for one in found.ids]]
    np.testing.assert_allclose(unit(found.vectors), expected, atol=1e-6)
    assert len(set(found.ids)) == len(found.ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_gives_vectors_by_id(kind, make):
    table = access_to(fill(make(kind))).table
    ids, vectors = table.vectors([KNOWN.ids[5], "nobody", KNOWN.ids[0], id_of("nobody")])
    assert sorted(ids) == sorted([KNOWN.ids[0], KNOWN.ids[5]])
    expected = KNOWN.embeddings[[KNOWN.ids.index(one) for one in ids]]
    np.testing.assert_allclose(unit(vectors), expected, atol=1e-6)
    assert table.vectors([id_of("nobody")])[0] == []


@pytest.mark.slow
def test_last_row_of_a_duplicate_node_id_counts(make):
    inner = fill(make("postgres"), KNOWN.take(range(5)))
    twice = type(BAD).of(ids=KNOWN.ids[:1], texts=BAD.texts[:1], embeddings=BAD.embeddings[:1])
    table = access_to(fill(inner, twice)).table  # `add` of this store keeps both
    found = table.search(BAD.embeddings, 6)
    assert sorted(found.ids) == sorted(KNOWN.ids[:5])
    row = found.ids.index(KNOWN.ids[0])
    np.testing.assert_allclose(unit(found.vectors)[row], BAD.embeddings[0], atol=1e-6)
    assert ((found.rows == row).sum(axis=1) == 1).all()
    ids, vectors = table.vectors(KNOWN.ids[:1])
    assert ids == [KNOWN.ids[0]]
    np.testing.assert_allclose(unit(vectors), BAD.embeddings[:1], atol=1e-6)


@pytest.mark.slow
def test_a_uuid_that_qdrant_gives_back_otherwise_stays_a_neighbour(make):
    upper = type(KNOWN).of(
        ids=[one.upper() for one in KNOWN.ids], texts=KNOWN.texts, embeddings=KNOWN.embeddings,
        lineages=KNOWN.lineages,
    )  # fmt: skip
    store = adopted(fill(make("qdrant"), upper))
    assert store.guard.detectors[0].n_local == len(KNOWN)
    same = adopted(fill(make("qdrant")), name="same")
    expected = same.guard.screen(BAD).scores["clique"]
    np.testing.assert_allclose(store.guard.screen(BAD).scores["clique"], expected, atol=1e-5)


@pytest.mark.parametrize("over", ["store", *slowly("index")])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_decisions_are_those_of_vectors_in_memory(kind, over, make):
    if over == "store":
        asked = adopted(fill(make(kind)))
        memory = GuardedVectorStore.adopt(fill(make("chroma")), guard=new_guard())
        write = type(asked).add
    else:
        asked = index_over(fill(make(kind)), neighbors="store")
        memory = index_over(fill(make("chroma")))
        write = type(asked).insert_nodes
    detector = asked.guard.detectors[0]
    assert (asked.guard.state.where, memory.guard.state.where) == ("store", "memory")
    assert (detector.n_local, memory.guard.detectors[0].n_local) == (0, len(KNOWN))
    for batch in (passages(30, 9, "m"), BAD, group(4, 8, "late")):
        for one in (asked, memory):
            write(one, nodes_of(named(batch) if batch is not BAD else BAD))
        assert verdicts(asked.last_report) == verdicts(memory.last_report)
    assert set(verdicts(memory.last_report)) == {Verdict.QUARANTINE}
    asked.guard.state.let_go()
    assert detector.n_local == asked.quarantine.count() > 0


def test_store_without_neighbor_search_is_refused(make):
    message = "cannot be found in {}, expected PGVectorStore or QdrantVectorStore"
    with pytest.raises(TypeError, match=message.format("ChromaVectorStore")):
        GuardedVectorStore(make("chroma"), guard=new_guard(), neighbors="store")
    with pytest.raises(TypeError, match=message.format("SimpleVectorStore")):
        GuardedVectorStoreIndex([], guard=new_guard(), neighbors="store")
    with pytest.raises(ValueError, match="expected 'memory', 'store' or None"):
        GuardedVectorStore(make("chroma"), guard=new_guard(), neighbors="shop")


def test_qdrant_with_an_asynchronous_client_only_is_refused():
    from llama_index.vector_stores.qdrant import QdrantVectorStore  # noqa: PLC0415
    from qdrant_client import AsyncQdrantClient  # noqa: PLC0415

    inner = QdrantVectorStore("docs", aclient=AsyncQdrantClient(":memory:"))
    with pytest.raises(TypeError, match="synchronous client"):
        GuardedVectorStore(inner, guard=new_guard(), neighbors="store")
