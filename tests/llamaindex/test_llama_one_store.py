"""A guard is of one store; what it holds is held under the store's name, and for no other."""

import warnings

import chromadb
import pytest
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.ingestion import IngestionPipeline
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_support import TopicEmbedding, bad, good, guard_of, ids_of, known, live
from support import the_one

from ragshield_core import Quarantine
from ragshield_core.model.errors import QuarantineError
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStore,
    GuardedVectorStoreIndex,
    PoisonGuard,
    SharedQuarantineWarning,
)
from ragshield_llamaindex.convert import to_batch


@pytest.fixture
def chroma():
    client = chromadb.EphemeralClient()
    made = []

    def make(name):
        made.append(name)
        return ChromaVectorStore(client.get_or_create_collection(name))

    yield make
    for name in set(made):
        client.delete_collection(name)


def index_of(url, **options):
    guard = guard_of(quarantine=Quarantine(url, namespace=options.pop("namespace", "default")))
    return GuardedVectorStoreIndex(known(), guard=guard, embed_model=TopicEmbedding(), **options)


def test_a_guard_in_two_stores_is_refused(chroma, quarantine):
    store = GuardedVectorStore(chroma("one-guard"), guard=guard_of(quarantine=quarantine))
    with pytest.raises(ValueError, match="belongs to another ChromaVectorStore"):
        GuardedVectorStore(chroma("two-guard"), guard=store.guard)
    GuardedVectorStore(store.inner, guard=store.guard)  # of the same store


def test_two_stores_without_a_name_in_one_namespace_are_warned_of(on_file):
    first = index_of(on_file)
    plain = VectorStoreIndex(
        [], storage_context=first.storage_context, embed_model=TopicEmbedding()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        guard = guard_of(quarantine=Quarantine(on_file))
        GuardedVectorStoreIndex.adopt(plain, guard=guard)  # over the same store
        index_of(on_file, namespace="second")
        index_of(on_file, name="news")
    with pytest.warns(SharedQuarantineWarning, match="Give each a name=") as seen:
        index_of(on_file)
    the_one(seen, SharedQuarantineWarning)


def test_two_indexes_of_one_namespace_keep_their_nodes_apart(on_file):
    news, mail = index_of(on_file, name="news"), index_of(on_file, name="mail")
    news.insert_nodes(bad())
    first, second = ids_of(bad())
    with pytest.raises(QuarantineError, match="is not"):
        mail.release([first])
    plain = VectorStoreIndex(known() + bad(), embed_model=TopicEmbedding())  # past the guard
    guard = guard_of(quarantine=Quarantine(on_file))
    again = GuardedVectorStoreIndex.adopt(plain, guard=guard, name="mail")
    found = again.as_retriever(similarity_top_k=20).retrieve("shipping bad 0")
    assert {first, second} <= set(ids_of(found))  # held for the news alone
    assert [held.id for held in news.release([first])] == [first]
    assert news.quarantine.held_ids([first, second]) == {second}
    again.delete_nodes([first, second])
    assert news.quarantine.held_ids([first, second]) == {second}


def test_the_name_is_that_of_class_and_collection_and_outlives_the_process(chroma, on_file):
    def opened():
        guard = guard_of(quarantine=Quarantine(on_file))
        return GuardedVectorStore(chroma("news"), guard=guard)

    def filled():
        store = opened()
        store.guard.fit(to_batch(live(store), store.keys))
        return store

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = opened()
        store.add(known())
        store.add(bad())
        assert {held.store for held in Quarantine(on_file).list()} == {"ChromaVectorStore news"}
        later = filled()
        assert len(later.release(ids_of(bad()))) == 2
        another = GuardedVectorStore(chroma("mail"), guard=guard_of(quarantine=Quarantine(on_file)))
    assert another.quarantine.count(None) == 0


def test_an_index_that_is_loaded_again_finds_what_it_held(on_file, tmp_path):
    index = index_of(on_file)
    index.insert_nodes(bad())
    index.storage_context.persist(tmp_path)
    index.guard.save(tmp_path / "guard")
    (first, second) = ids_of(bad())
    del index
    plain = load_index_from_storage(
        StorageContext.from_defaults(persist_dir=tmp_path), embed_model=TopicEmbedding()
    )
    guard = guard_of(quarantine=Quarantine(on_file))
    guard = type(guard).load(tmp_path / "guard", quarantine=Quarantine(on_file))
    again = GuardedVectorStoreIndex.adopt(plain, guard=guard, fit=False)
    assert [held.id for held in again.release([first])] == [first]
    assert again.quarantine.held_ids([first, second]) == {second}


def test_a_pipeline_holds_under_the_name_of_its_store(chroma, on_file):
    def held_by(pipeline):
        pipeline.run(nodes=known() + good())
        pipeline.run(nodes=bad())
        return {one.store for one in Quarantine(on_file).list()}

    guard = guard_of(quarantine=Quarantine(on_file))
    pipeline = GuardedIngestionPipeline(
        transformations=[TopicEmbedding()], guard=guard, vector_store=chroma("pipe")
    )
    assert held_by(pipeline) == {"ChromaVectorStore pipe"}
    assert pipeline.release(ids_of(bad()))
    Quarantine(on_file).purge(ids_of(bad()))
    # Without a store of its own: whichever asks may release it.
    alone = PoisonGuard(guard_of(quarantine=Quarantine(on_file)), learn=True)
    assert held_by(IngestionPipeline(transformations=[TopicEmbedding(), alone])) == {None}
    store = GuardedVectorStore(chroma("whichever"), guard=guard_of(quarantine=Quarantine(on_file)))
    assert len(store.release(ids_of(bad()))) == 2
