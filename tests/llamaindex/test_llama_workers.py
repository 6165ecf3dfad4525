"""Workers of one store whose guards share a database act as one."""

import asyncio

import pytest
from llama_index.core.schema import Document, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_support import TopicEmbedding
from support import Scripted, group, held_by_one, meanwhile, passages, slowly

from ragshield_core import Guard
from ragshield_core.detectors import CliqueDetector
from ragshield_llamaindex import (
    GuardedIngestionPipeline,
    GuardedVectorStore,
    GuardedVectorStoreIndex,
    PoisonGuard,
)

IDS = ("a", "b", "c")


@pytest.fixture
def workers(make_store, tmp_path):
    """Return two stores, as two processes have them, around the same one."""
    inner, url = make_store("chroma"), f"sqlite:///{tmp_path}/guard.db"
    return [
        GuardedVectorStore(inner, guard=Guard.open(url, detectors=[Scripted()])) for _ in range(2)
    ]


def known(workers):
    for store in workers:
        store.guard.writes.catch_up()
    first, second = (set(store.guard.writes.known(IDS)) for store in workers)
    assert first == second
    assert workers[0].guard.status().pending == 0
    return first


@pytest.mark.slow
def test_other_worker_sees_updates_and_deletions(tmp_path):
    url = f"sqlite:///{tmp_path}/guard.db"
    guard, other = (Guard.open(url, detectors=[Scripted()]) for _ in range(2))
    index = GuardedVectorStoreIndex([], guard=guard, embed_model=TopicEmbedding())
    index.insert(Document(id_="doc", text="billing one"))
    index.insert(Document(id_="gone", text="billing two"))
    index.update_ref_doc(Document(id_="doc", text="billing three"))
    index.delete_ref_doc("gone")
    index.update_ref_doc(Document(id_="doc", text="billing score=5"))  # is held
    other.writes.catch_up()
    (node,) = index.index_struct.nodes_dict.values()
    assert other.writes.known([node]) == [node]
    assert other.status().n_known == guard.status().n_known == 1
    assert other.status().pending == 0
    assert other.quarantine.count() == 1


# Pipelines


def nodes_of(batch):
    rows = zip(batch.ids, batch.texts, batch.lineages, batch.vectors, strict=True)
    return [
        TextNode(id_=i, text=t, metadata={"source": s}, embedding=v.tolist()) for i, t, s, v in rows
    ]


def fitted(tmp_path):
    url = f"sqlite:///{tmp_path}/guard.db"
    guards = [Guard.open(url, detectors=[CliqueDetector()], fpr=0.05) for _ in range(2)]
    guards[0].fit(passages(300, 1)).calibrate()
    return guards


@pytest.mark.parametrize("run", ["run", *slowly("arun")])
@pytest.mark.slow
def test_concurrent_pipelines_detect_a_group_like_one_pipeline(make_store, tmp_path, run):
    guards, bad = fitted(tmp_path), group(4, 3)
    inner = make_store("chroma")
    one, other = (
        GuardedIngestionPipeline(
            transformations=[], guard=guard, vector_store=inner, disable_cache=True
        )
        for guard in guards
    )

    def store(row):
        if run == "run":
            one.run(nodes=nodes_of(bad.take([row])))
        else:
            asyncio.run(one.arun(nodes=nodes_of(bad.take([row]))))

    for row in (0, 2):
        both = [lambda row=row: other.run(nodes=nodes_of(bad.take([row])))]
        with meanwhile(guards[0], both):
            store(row + 1)
    held = {entry.id for entry in guards[0].quarantine.list()}
    # The first was there when the others came, and is recalled.
    assert held == held_by_one(passages(300, 1), bad, 0.05) | {"bad3-0"} == set(bad.ids)
    stored = {node.node_id for node in one.vector_store.get_nodes(list(bad.ids))}
    for guard in guards:
        guard.writes.catch_up()
        assert set(guard.writes.known(bad.ids)) == stored == set(bad.ids) - held
        assert guard.status().pending == 0


class Failing(TopicEmbedding):
    """A step behind the guard that fails once it is told to."""

    def __call__(self, nodes, **kwargs):  # noqa: ARG002
        msg = "the step failed"
        raise RuntimeError(msg)


@pytest.mark.slow
def test_nodes_a_pipeline_did_not_store_are_not_known(make_store, tmp_path):
    url = f"sqlite:///{tmp_path}/guard.db"
    one, other = (Guard.open(url, detectors=[Scripted()]) for _ in range(2))
    docstore = SimpleDocumentStore()
    options = {"vector_store": make_store("chroma"), "docstore": docstore}
    failing = GuardedIngestionPipeline(
        transformations=[TopicEmbedding(), PoisonGuard(one), Failing()], **options
    )
    with pytest.raises(RuntimeError, match="the step failed"):
        failing.run(documents=[Document(id_="doc", text="billing one")])
    other.writes.catch_up()
    assert one.status().n_known == other.status().n_known == 0
    assert other.status().pending == 0
    pipeline = GuardedIngestionPipeline(
        transformations=[TopicEmbedding(), PoisonGuard(one)],
        vector_store=failing.vector_store,
        docstore=docstore,
    )
    pipeline.run(documents=[Document(id_="doc", text="billing one")])
    pipeline.run(  # part of one document is held: its previous version stays
        documents=[Document(id_="doc", text="billing score=5"), Document(id_="two", text="refunds")]
    )
    assert pipeline.last_result.rejected_updates == ("doc",)
    other.writes.catch_up()
    assert one.status().n_known == other.status().n_known == 2
    assert one.status().pending == 0


@pytest.mark.slow
def test_concurrent_steps_detect_a_group_like_one_step(tmp_path):
    guards, bad = fitted(tmp_path), group(4, 3)
    one, other = (PoisonGuard(guard, learn=True) for guard in guards)
    for row in (0, 2):
        with meanwhile(guards[0], [lambda row=row: other(nodes_of(bad.take([row + 1])))]):
            one(nodes_of(bad.take([row])))
    for guard in guards:
        guard.writes.catch_up()
    held = {entry.id for entry in guards[0].quarantine.list()}
    assert held == held_by_one(passages(300, 1), bad, 0.05) >= {"bad3-1", "bad3-2"}
    assert (
        set(guards[0].writes.known(bad.ids))
        == set(guards[1].writes.known(bad.ids))
        == set(bad.ids) - held
    )
