"""Nodes taken out of a guarded store or index by hand."""

from unittest.mock import patch

import pytest
from llama_index.core.vector_stores import VectorStoreQuery
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from llama_support import (
    assert_knows,
    guard_of,
    guarded_over,
    ids_of,
    index_over,
    insert,
    known,
    live,
    shown,
)
from support import slowly, vector_of

from ragshield_core.detectors import HiddenTextDetector, LabelCentroidDetector
from ragshield_llamaindex import GuardedVectorStore, PoisonGuard
from ragshield_llamaindex.convert import to_batch
from ragshield_llamaindex.index import access_behind

FIRST, SECOND = ids_of(known())[:2]


ASYNC = [
    "store chroma",
    "index simple",
    *slowly("store postgres", "store milvus", "store lancedb"),
    *slowly("index faiss", "index chroma", "index postgres", "index milvus", "index lancedb"),
]
# An in-memory Qdrant of two clients is two databases.
FORMS = [*ASYNC, *slowly("store qdrant", "index qdrant")]


@pytest.fixture(params=FORMS)
def guarded(request, make_store, model):
    """Return a guarded store, or a guarded index, that holds ``known()``."""
    form, kind = request.param.split()
    return (guarded_over if form == "store" else index_over)(make_store(kind), model, known())


def test_a_query_that_meets_hidden_nodes_asks_for_more(make_store, monkeypatch):
    store = guarded_over(make_store("chroma"), None, known())
    hidden = ids_of(store.get_nodes([FIRST]))
    store.recall(hidden)
    store.inner.add([one for one in known() if one.node_id in hidden])  # past the guard
    ask, asked = type(store.inner).query, []

    def counted(inner, query, **kwargs):
        asked.append((query.similarity_top_k, query.sparse_top_k, query.hybrid_top_k))
        return ask(inner, query, **kwargs)

    monkeypatch.setattr(type(store.inner), "query", counted)
    query = VectorStoreQuery(
        vector_of(known()[0].text).tolist(), similarity_top_k=3, sparse_top_k=5
    )
    first, second = store.query(query), store.query(query)
    assert asked == [(3, 5, None), (6, 8, None)] * 2
    assert first.ids == second.ids
    assert first.similarities == second.similarities
    assert [one.node_id for one in second.nodes] == second.ids
    assert len(second.ids) == 3
    assert FIRST not in second.ids
    # Of more candidates, other modes choose others.
    query.mode = VectorStoreQueryMode.MMR
    store.query(query)
    assert asked[4] == (3, 5, None)


@pytest.mark.parametrize("guarded", ["store chroma", "index simple"], indirect=True)
def test_entry_stays_hidden_if_the_store_fails_to_delete_it(guarded):
    access = access_behind(guarded)
    with patch.object(access, "delete", side_effect=OSError), pytest.raises(OSError):  # noqa: PT011
        guarded.recall([FIRST])
    assert guarded.quarantine.held_ids([FIRST]) == {FIRST}
    assert FIRST in ids_of(live(guarded))
    assert known()[0].text not in shown(guarded)
    assert guarded.recall([FIRST]) == (FIRST,)
    assert FIRST not in ids_of(live(guarded))
    assert_knows(guarded.guard, live(guarded))


@pytest.mark.parametrize("vector", [True, False])
def test_a_step_of_a_pipeline_passes_on_nothing_that_a_person_holds(vector):
    step = PoisonGuard(guard_of(LabelCentroidDetector(min_entries=3), HiddenTextDetector()))
    nodes = known(vector=vector, document="d")
    step.quarantine.hold(to_batch(known(document="d")[:1], step.keys), by="anna")
    assert ids_of(step(nodes)) == ids_of(nodes[1:])
    assert ids_of(step.release(["d"])) == [FIRST]
    assert ids_of(step(nodes)) == ids_of(nodes)


def test_node_released_elsewhere_is_visible_once_written_again(guarded):
    def seen():
        query = VectorStoreQuery(
            query_embedding=vector_of(known()[0].text).tolist(), similarity_top_k=30
        )
        read = guarded if isinstance(guarded, GuardedVectorStore) else guarded.vector_store
        return len(read.query(query).ids)

    first = [one for one in known() if one.node_id == FIRST]
    before = seen()
    guarded.recall([FIRST])
    guarded.quarantine.release([FIRST], by="ben")
    assert seen() == before - 1
    insert(guarded, first)
    assert FIRST in ids_of(live(guarded))
    assert seen() == before
    assert_knows(guarded.guard, live(guarded))
