"""The guarded store recalls admitted entries when the rest of their group comes."""

import faiss
import numpy as np
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.vectorstores import InMemoryVectorStore
from support import PASSAGE_DIM, CountingEmbeddings, group, guard_of, join, passages, slowly

from ragshield_core.detectors import CliqueDetector
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to

KINDS = {"memory": InMemoryVectorStore, "faiss": FAISS}
KNOWN = passages(300, 1)
POISON = group(5, 3)
BAD = set(POISON.ids)
CLEAN = [passages(6, 90 + row, f"clean{row}") for row in range(5)]


@pytest.fixture(params=["memory", *slowly("faiss")])
def store(request):
    return store_of(KINDS[request.param])


def store_of(cls, known=KNOWN, guard=None, **policy):
    """Return a guarded store that holds a knowledge base, which its guard is fitted on."""
    embedding = CountingEmbeddings()
    if cls is FAISS:
        inner = FAISS(embedding, faiss.IndexFlatL2(PASSAGE_DIM), InMemoryDocstore(), {})
    else:
        inner = cls(embedding)
    if guard is None:
        guard = guard_of(CliqueDetector(), **policy)
        guard.fit(known).calibrate(fpr=0.01)
    guarded = GuardedVectorStore(inner, guard=guard)
    if len(known):
        access_to(guarded.inner).write(known, [{"source": lineage} for lineage in known.lineages])
    return guarded


def write(store, batch):
    pairs = zip(batch.texts, batch.vectors.tolist(), strict=True)
    assert store.add_embeddings(
        pairs, [{"source": lineage} for lineage in batch.lineages], batch.ids
    ) == list(batch.ids)
    return store.last_report


def trickle(store, poison=POISON):
    """Write one poisoned entry at a time, among clean ones."""
    return [
        write(store, join(CLEAN[row % 5], poison.take([row])).take([0, 6, 1, 2, 3, 4, 5]))
        if row < 5
        else write(store, poison.take([row]))
        for row in range(len(poison))
    ]


def vector_in(store, entry_id):
    return access_to(store.inner).read([entry_id]).vectors[0].tolist()


def live(store):
    return {document.id for document in store.inner.get_by_ids([*BAD, *KNOWN.ids, *CLEAN_IDS])}


CLEAN_IDS = [entry_id for batch in CLEAN for entry_id in batch.ids]


@pytest.mark.slow
def test_poison_that_trickles_in_ends_like_one_batch(store):
    reports = trickle(store)
    assert not live(store) & BAD
    assert set(KNOWN.ids) <= live(store)
    assert len(live(store) & set(CLEAN_IDS)) >= 28
    assert store.quarantine.held_ids(POISON.ids) == BAD
    recalled = [[d.entry_id for d in report.retroactive] for report in reports]
    assert recalled == [[], [], [POISON.ids[0]], [], []]
    at_once = store_of(type(store.inner))
    write(at_once, join(*CLEAN, POISON))
    assert at_once.quarantine.held_ids(POISON.ids) == BAD
    assert not live(at_once) & BAD


@pytest.mark.slow
def test_recalled_entry_keeps_its_text_metadata_and_vector(store):
    write(store, POISON.take([0]))
    assert live(store) & BAD == {POISON.ids[0]}
    write(store, POISON.take([1]))
    assert live(store) & BAD == {POISON.ids[0]}  # one other may have imitated it
    write(store, POISON.take([2]))
    held = store.quarantine.show(POISON.ids[0])
    assert held.entry.text == POISON.texts[0]
    assert held.entry.lineage == POISON.lineages[0]
    assert held.entry.metadata == {"source": POISON.lineages[0]}
    np.testing.assert_allclose(held.entry.embedding, POISON.embeddings[0], atol=1e-6)
    assert {*POISON.ids[1:3]} <= {*held.findings[0].related_ids}


@pytest.mark.slow
def test_released_entries_return_with_their_vectors_and_stay(store):
    trickle(store, POISON.take([0, 1, 2]))
    released = POISON.ids[:2]
    store.release(released, by="alice")
    assert live(store) & BAD == set(released)
    for row in (0, 1):
        assert vector_in(store, POISON.ids[row]) == POISON.vectors[row].tolist()
        (document,) = store.get_by_ids([POISON.ids[row]])
        assert document.page_content == POISON.texts[row]
        assert document.metadata == {"source": POISON.lineages[row]}
    assert store.embeddings.calls == []
    for row in (3, 4):  # the same group goes on
        report = write(store, POISON.take([row]))
        assert report.retroactive == ()
    write(store, POISON.take([0, 1]))  # and so do they themselves
    assert live(store) & BAD == set(released)
    assert store.quarantine.held_ids(POISON.ids) == BAD - set(released)
    assert sorted(store.guard.writes.known(POISON.ids)) == sorted(released)


@pytest.mark.slow
def test_released_entry_stays_when_its_deleted_group_comes_again(store):
    write(store, POISON.take([0, 1]))
    store.release([POISON.ids[0]], by="alice")
    store.delete([POISON.ids[1]])
    write(store, POISON.take([2]))
    write(store, POISON.take([3]))
    assert live(store) & BAD == {POISON.ids[0]}
    assert store.quarantine.held_ids(POISON.ids) == {POISON.ids[2], POISON.ids[3]}


def revision(batch, entry_id):
    """Return the single entry of a batch under another id."""
    (text,), (vector,) = batch.texts, batch.vectors
    return type(batch).of(
        ids=[entry_id], texts=[text], embeddings=[vector], lineages=list(batch.lineages)
    )


@pytest.mark.slow
def test_a_harmless_entry_that_becomes_a_member_is_held_and_its_old_revision_stays(store):
    write(store, CLEAN[0])
    write(store, POISON.take([0]))
    old = CLEAN[0].ids[0]
    report = write(store, revision(POISON.take([1]), old))
    assert report.retroactive == ()
    assert store.get_by_ids([old])[0].page_content == CLEAN[0].texts[0]
    assert store.quarantine.held_ids([old, *POISON.ids]) == {old}
    report = write(store, POISON.take([2]))
    assert [d.entry_id for d in report.retroactive] == [POISON.ids[0]]
    assert store.quarantine.held_ids([old, *POISON.ids]) == {old, POISON.ids[0], POISON.ids[2]}
    assert store.get_by_ids([old])[0].page_content == CLEAN[0].texts[0]


@pytest.mark.slow
def test_a_recall_keeps_vectors_as_they_were_embedded():
    store = store_of(InMemoryVectorStore)
    longer = type(POISON).of(
        ids=POISON.ids,
        texts=POISON.texts,
        embeddings=3.5 * POISON.vectors,
        lineages=POISON.lineages,
    )
    for row in range(3):
        write(store, longer.take([row]))
    store.release([POISON.ids[0]])
    assert vector_in(store, POISON.ids[0]) == longer.vectors[0].tolist()
