"""Held entries that are written again or released: elsewhere, without a vector, or found good."""

import threading
from unittest.mock import patch

import faiss
import numpy as np
import pytest
from langchain_core.documents import Document
from support import DIM, CountingEmbeddings, Scripted, group, guard_of, passages, slowly, vector_of

from ragshield_core import Batch, Guard, PoisonedEntryError, Policy
from ragshield_core.detectors import CliqueDetector
from ragshield_langchain import GuardedVectorStore, PoisonGuard
from ragshield_langchain.inner import access_to
from ragshield_langchain.inner.faiss import FaissInner

BAD = Document(id="bad", page_content="billing score=3", metadata={"source": "a.txt"})
GOOD = Document(id="good", page_content="billing", metadata={"source": "b.txt"})


class Lenient(Scripted):
    """Thinks better of everything from some time on."""

    lenient = False

    def score(self, batch):
        return np.full(len(batch), -1.0) if self.lenient else super().score(batch)


class WithoutModel(CountingEmbeddings):
    """Is never to be asked."""

    def embed_documents(self, texts):
        raise AssertionError(texts)


@pytest.fixture(params=["memory", *slowly("faiss")])
def inner(request, make_store):
    return make_store(request.param, CountingEmbeddings(), DIM)


def test_a_superseded_revision_that_is_admitted_later_stays_visible_after_a_restart(inner):
    first = Document(id="page", page_content="billing score=3")
    second = Document(id="page", page_content="shipping score=3")
    detector = Lenient()
    store = GuardedVectorStore(inner, guard=guard_of(detector))
    for revision in (first, second):
        store.add_documents([revision])
    assert store.quarantine.count("superseded") == 1
    detector.lenient = True
    store.add_documents([first])
    assert store.get_by_ids(["page"]) == [first]
    again = GuardedVectorStore(
        inner, guard=Guard([Lenient()], policy=Policy(), quarantine=store.quarantine)
    )
    assert again.get_by_ids(["page"]) == [first]
    counts = [store.quarantine.count(status) for status in ("readmitted", "superseded", "held")]
    assert counts == [1, 0, 1]
    assert store.quarantine.log.lines()[-1].action == "readmit"
    detector.lenient = False
    store.add_documents([first])  # held again
    assert again.quarantine.count("readmitted") == 0


# Released in the quarantine itself


@pytest.mark.parametrize("planted", [False, True], ids=["held only", "still in the store"])
def test_entry_released_elsewhere_is_visible_once_written_again(make_store, planted):
    inner = make_store("memory", CountingEmbeddings(), DIM)
    store = GuardedVectorStore(inner, guard=guard_of())
    store.add_documents([BAD, GOOD])
    if planted:
        inner.add_documents([BAD])
    store.quarantine.release(["bad"], by="anna")
    assert store.get_by_ids(["bad"]) == []  # nobody has told the store, and it was not written
    store.add_documents([BAD])
    assert store.get_by_ids(["bad"]) == [BAD]
    assert {d.id for d in store.similarity_search("billing", k=4)} == {"bad", "good"}
    store.add_documents([BAD.model_copy(update={"page_content": "billing score=4"})])
    assert store.get_by_ids(["bad"]) == [BAD]  # another revision is hidden as before


@pytest.mark.slow
def test_a_group_released_elsewhere_stays_when_the_rest_of_it_comes(make_store):
    known, poison = passages(300, seed=0), group(6, seed=1)
    guard = guard_of(CliqueDetector()).fit(known)
    store = GuardedVectorStore(make_store("memory", CountingEmbeddings(), known.dim), guard=guard)

    def write(rows):
        part = poison.take(rows)
        pairs = list(zip(part.texts, part.vectors.tolist(), strict=True))
        store.add_embeddings(pairs, [{"source": i} for i in part.ids], list(part.ids))

    write([0, 1, 2, 3, 4])
    first = list(poison.ids[:5])
    assert store.quarantine.held_ids(first) == set(first)
    store.quarantine.release(first, by="anna")
    write([0, 1, 2, 3, 4])
    assert guard.writes.known(first) == first
    (clique,) = guard.detectors
    assert clique.n_local == store.guard.n_known  # not known and held as well
    write([5])
    assert store.last_report.retroactive == ()
    assert {d.id for d in store.get_by_ids(first)} == set(first)


# Held without a vector


def held_without_vectors(quarantine, *documents):
    step = PoisonGuard(Guard([Scripted()], quarantine=quarantine))
    assert step.transform_documents(documents) == []


@pytest.mark.parametrize("way", ["release", "arelease"])
async def test_entry_held_without_a_vector_is_embedded_at_release(inner, way):
    store = GuardedVectorStore(inner, guard=guard_of())
    other = BAD.model_copy(update={"id": "other", "page_content": "shipping score=4"})
    held_without_vectors(store.quarantine, BAD)
    store.add_documents([other])
    released = getattr(store, way)(["bad", "other"])
    released = await released if way == "arelease" else released
    assert [item.id for item in released] == ["bad", "other"]
    assert store.get_by_ids(["bad", "other"]) == [BAD, other]
    _, vectors = access_to(store.inner).read(["bad", "other"])
    expected = [vector_of(d.page_content) for d in (BAD, other)]
    np.testing.assert_allclose(vectors, expected, rtol=1e-6)
    assert store.guard.writes.known(["bad", "other"]) == ["bad", "other"]
    assert store.embeddings.texts.count(other.page_content) == 1  # it had its vector


@pytest.mark.parametrize("fault", ["no model", "the model fails"])
def test_without_a_model_nothing_is_released_and_nothing_written(inner, fault):
    store = GuardedVectorStore(inner, guard=guard_of())
    store.add_documents([BAD.model_copy(update={"id": "other"})])  # with its vector
    held_without_vectors(store.quarantine, BAD)
    gone = {"new": None} if fault == "no model" else {"new": WithoutModel()}
    words, kind = (
        ("no embedding model", ValueError) if fault == "no model" else ("", AssertionError)
    )
    with (
        patch.object(type(inner), "embeddings", gone["new"]),
        pytest.raises(kind, match=words or None),
    ):
        store.release(["other", "bad"])
    assert store.quarantine.held_ids(["other", "bad"]) == {"other", "bad"}
    assert access_to(store.inner).read(["other", "bad"]).documents == []
    assert store.guard.writes.known(["other", "bad"]) == []


# Found admissible while it is held


def test_held_entry_stays_held_until_a_reviewer_decides(inner):
    detector = Lenient()
    store = GuardedVectorStore(inner, guard=guard_of(detector))
    store.add_documents([BAD])
    detector.lenient = True
    store.add_documents([GOOD, BAD])
    assert [d.id for d in store.get_by_ids(["good", "bad"])] == ["good"]
    assert access_to(store.inner).read(["bad"]).documents == []
    assert store.quarantine.held_ids(["bad"]) == {"bad"}
    (decision,) = store.last_report.quarantined
    assert "held by ragshield since" in decision.note
    assert "no reviewer has released it" in decision.note
    store.release(["bad"])
    assert store.get_by_ids(["bad"]) == [BAD]
    store.add_documents([BAD])
    assert store.last_report.quarantined == ()


def test_storing_another_revision_reports_the_held_one(inner, caplog):
    store = GuardedVectorStore(inner, guard=guard_of())
    fixed = BAD.model_copy(update={"page_content": "billing fixed"})
    store.add_documents([BAD])
    store.add_documents([fixed])
    assert store.get_by_ids(["bad"]) == [fixed]
    (decision,) = store.last_report.decisions
    assert "releasing that one would replace this one" in decision.note
    assert "other revisions are held" in caplog.text
    assert store.quarantine.held_ids(["bad"]) == {"bad"}


def test_transformer_keeps_a_held_document_held():
    detector = Lenient()
    step = PoisonGuard(guard_of(detector))
    step.transform_documents([BAD])
    detector.lenient = True
    assert step.transform_documents([BAD, GOOD]) == [GOOD]
    step.release(["bad"])
    assert step.transform_documents([BAD, GOOD]) == [BAD, GOOD]


# Reports where several write at once


@pytest.mark.slow
def test_every_writer_gets_the_report_of_its_own_write(inner):
    store = GuardedVectorStore(inner, guard=guard_of())
    wrong = []

    def write(name):
        for number in range(20):
            ids = [f"{name}-{number}-{row}" for row in range(3)]
            told = []
            store.add_texts(["billing", "score=2", "refunds"], ids=ids, on_report=told.append)
            if [report.batch.ids for report in told] != [tuple(ids)]:
                wrong.append(ids)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Reading vectors back from FAISS


class CountedDict(dict):
    """Counts how often somebody goes through all of it."""

    walks = 0

    def items(self):
        type(self).walks += 1
        return super().items()


def test_reading_vectors_back_does_not_go_through_the_whole_index(make_store):
    inner = make_store("faiss", CountingEmbeddings(), DIM)
    texts = [f"billing {i}" for i in range(50)]
    inner.add_texts(texts, ids=[f"e{i}" for i in range(50)])
    inner.index_to_docstore_id = CountedDict(inner.index_to_docstore_id)
    access = FaissInner(inner)
    CountedDict.walks = 0
    for i in range(10):
        _, vectors = access.read([f"e{i}", f"e{i + 20}", "missing"])
        np.testing.assert_array_equal(vectors, [vector_of(texts[i]), vector_of(texts[i + 20])])
    assert CountedDict.walks == 1
    batch = Batch.of(ids=["new"], texts=["billing new"], embeddings=[vector_of("billing new")])
    access.write(batch, [{}])
    np.testing.assert_array_equal(access.read(["new"]).vectors, [vector_of("billing new")])
    assert CountedDict.walks == 1


@pytest.mark.parametrize("past", [False, True], ids=["through", "past the guard"])
def test_vectors_belong_to_their_documents_after_deletions_and_replacements(make_store, past):
    inner = make_store("faiss", CountingEmbeddings(), DIM, index=faiss.IndexFlatL2(DIM))
    store = GuardedVectorStore(inner, guard=guard_of())
    rng = np.random.default_rng(0)
    live = {}
    for step in range(60):
        new = {f"e{rng.integers(40)}": f"billing {step} {n}" for n in range(3)}
        gone = [f"e{i}" for i in rng.integers(40, size=2)]
        if past:
            if older := [i for i in new if i in live]:
                inner.delete(older)
            inner.add_texts(list(new.values()), ids=list(new))
        else:
            store.add_texts(list(new.values()), ids=list(new))
        live |= new
        there = [i for i in dict.fromkeys(gone) if i in live]
        if past and there:
            inner.delete(there)
        elif there:
            store.delete(there)
        for entry_id in there:
            del live[entry_id]
        wanted = [f"e{i}" for i in rng.permutation(40)[:10]]
        documents, vectors = access_to(store.inner).read(wanted)
        assert [d.id for d in documents] == [i for i in wanted if i in live]
        expected = [vector_of(live[d.id]) for d in documents]
        np.testing.assert_array_equal(vectors, np.array(expected).reshape(-1, DIM))


def test_strict_policy_raises_for_entries_held_by_reviewers(inner):
    guard = guard_of(on_detect="raise")
    store = GuardedVectorStore(inner, guard=guard)
    guard.quarantine.hold(
        Batch.of(ids=["good"], texts=["billing"], embeddings=[vector_of("x")], lineages=["b.txt"]),
        by="anna",
    )
    with pytest.raises(PoisonedEntryError):
        store.add_documents([GOOD])
    assert access_to(store.inner).read(["good"]).documents == []
