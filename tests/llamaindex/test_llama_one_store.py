"""A guard belongs to one store, and holds nodes under the name of that store only."""

import warnings

import chromadb
import pytest
from llama_index.core import StorageContext, load_index_from_storage
from llama_index.core.ingestion import IngestionPipeline
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_support import TopicEmbedding, bad, good, guard_of, ids_of, known, live

from ragshield_core import Quarantine
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStore,
    GuardedVectorStoreIndex,
    PoisonGuard,
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


@pytest.mark.slow
def test_store_name_is_class_and_collection_and_survives_restarts(chroma, on_file):
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


def test_reloaded_index_finds_its_held_nodes(on_file, tmp_path):
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


@pytest.mark.slow
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
