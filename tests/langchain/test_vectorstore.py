"""The guarded store around FAISS and InMemoryVectorStore: writes, reads and decisions."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import faiss
import numpy as np
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import ParrotFakeChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from support import DIM, TOPICS, CountingEmbeddings, Scripted, knowledge_base, slowly, vector_of

from ragshield_core import Batch, Guard, PoisonedEntryError, Policy, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.model.errors import (
    InvalidBatchError,
    MalformedEntriesError,
    MalformedEntriesWarning,
    QuarantineError,
)
from ragshield_langchain import GuardedVectorStore

KINDS = {"memory": InMemoryVectorStore, "faiss": FAISS}


def empty(cls, embedding):
    if cls is FAISS:
        return FAISS(embedding, faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})
    return cls(embedding)


def guard_of(*detectors, **policy):
    detectors = detectors or [LabelCentroidDetector(min_entries=3)]
    return Guard(detectors, policy=Policy(**policy), quarantine=Quarantine("sqlite://"))


def docs(topic, n, *, prefix="kb", label=None, **metadata):
    """Return n documents about a topic, labelled with it or with a wrong ``label``."""
    return [
        Document(
            id=f"{prefix}-{topic}-{i}",
            page_content=f"{topic} {prefix} {i}",
            metadata={"label": label or topic} | metadata,
        )
        for i in range(n)
    ]


KNOWN = [document for topic in TOPICS for document in docs(topic, 6)]
GOOD = docs("billing", 2, prefix="new")
BAD = docs("shipping", 2, prefix="bad", label="billing")
MIXED = [GOOD[0], BAD[0], BAD[1], GOOD[1]]
PROBE = knowledge_base(2, prefix="probe")


@pytest.fixture(params=["memory", *slowly("faiss")])
def cls(request):
    return KINDS[request.param]


@pytest.fixture
def embedding():
    return CountingEmbeddings()


@pytest.fixture
def store(cls, embedding):
    """Return a guarded store that holds ``KNOWN``."""
    guarded = GuardedVectorStore(empty(cls, embedding), guard=guard_of())
    guarded.add_documents(KNOWN)
    embedding.calls.clear()
    return guarded


def live(inner):
    """Return the inner store's entries, read without RAGShield: id -> text, metadata, vector."""
    if isinstance(inner, InMemoryVectorStore):
        return {
            key: (row["text"], row["metadata"], np.float32(row["vector"]).tolist())
            for key, row in inner.store.items()
        }
    mapping, documents = inner.index_to_docstore_id, inner.docstore._dict
    assert sorted(mapping) == list(range(inner.index.ntotal)), "the index is out of step"
    assert sorted(mapping.values()) == sorted(documents), "the docstore is out of step"
    return {
        key: (
            documents[key].page_content,
            documents[key].metadata,
            inner.index.reconstruct(i).tolist(),
        )
        for i, key in mapping.items()
    }


def ids_of(documents):
    return [document.id for document in documents]


def assert_in_step(store):
    """Check that the guard knows what is live, no more and no less, and judges by it."""
    rows = live(store.inner)
    assert store.guard.writes.known_ids() == set(rows)
    if not rows:
        return
    fresh = guard_of().fit(
        Batch.of(
            ids=list(rows),
            texts=[text for text, _, _ in rows.values()],
            embeddings=[vector for _, _, vector in rows.values()],
            labels=[metadata.get("label") for _, metadata, _ in rows.values()],
        )
    )
    ours, expected = (guard.screen(PROBE).scores for guard in (store.guard, fresh))
    np.testing.assert_allclose(ours["label_centroid"], expected["label_centroid"], atol=1e-4)


# Writing


def test_flipped_entries_stay_out_and_ids_stay_aligned(store):
    assert store.add_documents(MIXED) == ids_of(MIXED)
    assert set(live(store.inner)) == {*ids_of(KNOWN), *ids_of(GOOD)}
    assert [held.id for held in store.quarantine.list()] == ids_of(BAD)
    assert [str(d.verdict) for d in store.last_report.decisions] == [
        *("admit", "quarantine", "quarantine", "admit")
    ]
    assert_in_step(store)


def test_given_ids_are_used_and_missing_ones_made(store):
    texts = [document.page_content for document in MIXED]
    metadatas = [document.metadata for document in MIXED]
    made = store.add_texts(texts, metadatas)
    assert len(set(made)) == 4
    assert [held.id for held in store.quarantine.list()] == made[1:3]
    assert store.add_texts(texts, metadatas, ids=["a", None, "c", "d"])[::2] == ["a", "c"]
    assert store.inner.get_by_ids(["a"])[0].page_content == texts[0]
    assert store.add_documents(MIXED, ids=["w", "x", "y", "z"]) == ["w", "x", "y", "z"]
    assert store.quarantine.held_ids(["w", "x", "y", "z"]) == {"x", "y"}


def test_a_batch_that_is_rejected_altogether_writes_nothing(store):
    before = live(store.inner)
    assert store.add_documents(BAD) == ids_of(BAD)
    assert live(store.inner) == before
    assert len(store.last_report.quarantined) == 2
    assert_in_step(store)


async def test_empty_input_is_handled(cls, store, embedding):
    before = live(store.inner)
    assert store.add_documents([]) == store.add_texts([]) == store.add_embeddings([]) == []
    assert await store.aadd_documents([]) == await store.aadd_texts([]) == []
    assert store.delete([]) is True
    assert store.last_report.decisions == ()
    assert live(store.inner) == before
    for new in (
        GuardedVectorStore.from_texts([], embedding, inner=empty(cls, embedding), guard=guard_of()),
        GuardedVectorStore.from_documents(
            [], embedding, inner=empty(cls, embedding), guard=guard_of()
        ),
        await GuardedVectorStore.afrom_texts(
            [], embedding, inner=empty(cls, embedding), guard=guard_of()
        ),
    ):
        assert live(new.inner) == {}
        assert new.add_documents(KNOWN) == ids_of(KNOWN)


async def test_generators_are_taken(store):
    assert store.add_documents(document for document in MIXED) == ids_of(MIXED)
    assert await store.aadd_documents(d for d in docs("refunds", 1, prefix="gen")) == [
        "gen-refunds-0"
    ]
    made = store.add_texts(f"billing text {i}" for i in range(3))
    assert len(store.inner.get_by_ids(made)) == 3
    pairs = ((text, vector_of(text).tolist()) for text in ["refunds x", "refunds y"])
    assert len(store.inner.get_by_ids(store.add_embeddings(pairs))) == 2
    assert_in_step(store)


def test_add_embeddings_screens_and_embeds_nothing(store, embedding):
    pairs = [(d.page_content, vector_of(d.page_content).tolist()) for d in MIXED]
    ids = store.add_embeddings(pairs, [d.metadata for d in MIXED], ids_of(MIXED))
    assert ids == ids_of(MIXED)
    assert embedding.calls == []
    assert set(live(store.inner)) == {*ids_of(KNOWN), *ids_of(GOOD)}
    assert store.quarantine.held_ids(ids) == set(ids_of(BAD))
    assert_in_step(store)


@pytest.mark.parametrize("number", [int, np.int64, float, bool], ids=lambda kind: kind.__name__)
def test_labels_may_be_numbers(cls, embedding, number):
    store = GuardedVectorStore(
        empty(cls, embedding), guard=guard_of(), label_key="class", lineage_key="page"
    )
    known = [
        Document(page_content=f"{topic} {i}", metadata={"class": number(code), "page": i})
        for code, topic in enumerate(TOPICS[:2])
        for i in range(4)
    ]
    store.add_documents(known)
    flipped = Document(id="bad", page_content="billing bad", metadata={"class": number(1)})
    store.add_documents([flipped])
    assert store.quarantine.held_ids(["bad"]) == {"bad"}
    assert store.quarantine.show("bad").entry.metadata == {"class": number(1)}


@pytest.mark.parametrize("key", ["label", "chapter"])
@pytest.mark.parametrize(
    "value", [{"a": 1}, ["billing"], b"billing", object()], ids=lambda value: type(value).__name__
)
@pytest.mark.slow
def test_hostile_metadata_under_a_key_that_is_read_costs_that_entry(store, key, value):
    store = GuardedVectorStore.adopt(
        store.inner, guard=guard_of(), lineage_key="chapter", progress=False
    )
    culprit = Document(id="culprit", page_content="x", metadata={key: value, "page": 1})
    assert store.add_documents([*GOOD, culprit]) == [*(d.id for d in GOOD), "culprit"]
    assert [d.entry_id for d in store.last_report.quarantined] == ["culprit"]
    assert {d.id for d in store.get_by_ids([*(d.id for d in GOOD), "culprit"])} == {
        d.id for d in GOOD
    }
    held = store.quarantine.show("culprit")
    assert held.entry.text == "x"
    assert held.entry.metadata["page"] == 1
    assert f"'{key}'" in held.note
    assert_in_step(store)
    store.release(["culprit"])
    assert store.get_by_ids(["culprit"])[0].page_content == "x"


def test_batch_of_malformed_documents_is_held_with_a_warning(store):
    odd = [Document(id=f"{n}", page_content="x", metadata={"label": ["x"]}) for n in range(3)]
    with pytest.warns(MalformedEntriesWarning, match=r"none of the 3.*'0': metadata\['label'\]"):
        store.add_documents(odd)
    assert store.quarantine.held_ids(["0", "1", "2"]) == {"0", "1", "2"}
    store.add_documents([*GOOD, *odd])  # once more
    assert store.quarantine.count() == 3
    assert_in_step(store)


def test_model_returning_nan_once_leaves_nothing_held(store, monkeypatch):
    broken = [[float("nan")] * DIM] * len(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(store.embeddings, "embed_documents", lambda _: broken)
        with pytest.raises(InvalidBatchError, match="nothing was written or held"):
            store.add_documents(GOOD)
    assert store.quarantine.count() == 0
    store.add_documents(GOOD)
    assert store.last_report.admitted.all()
    assert_in_step(store)


def test_only_the_first_entry_of_a_duplicate_id_is_written(store):
    with pytest.raises(
        MalformedEntriesError, match=r"others were written.*entry 1: id 'twin'"
    ) as e:
        store.add_texts(["billing 1", "billing 2", "billing 3"], ids=["twin", "twin", "other"])
    assert set(e.value.reasons) == {1}
    assert e.value.ids == ["twin", "twin", "other"]
    assert [d.page_content for d in store.get_by_ids(["twin", "other"])] == [
        "billing 1",
        "billing 3",
    ]
    copy = pickle.loads(pickle.dumps(e.value))  # noqa: S301 - our own
    assert (str(copy), copy.reasons, copy.ids) == (str(e.value), e.value.reasons, e.value.ids)


ODD_VECTORS = {
    "NaN": [np.nan] * DIM,
    "infinite": [np.inf] * DIM,
    "too large": [1e300] * DIM,
    "zero": [0.0] * DIM,
    "shorter": [1.0] * 3,
    "no vector": None,
    "no numbers": ["a"] * DIM,
}


@pytest.mark.parametrize("vector", ODD_VECTORS.values(), ids=ODD_VECTORS)
@pytest.mark.slow
def test_a_vector_that_cannot_be_used_costs_its_entry_which_is_embedded_at_release(store, vector):
    texts = ["billing 1", "billing 2", "billing 3"]
    vectors = [vector_of(texts[0]).tolist(), vector, vector_of(texts[2]).tolist()]
    ids = store.add_embeddings(texts=texts, embeddings=vectors, ids=["a", "culprit", "c"])
    assert ids == ["a", "culprit", "c"]
    assert store.last_report.batch.ids == tuple(ids)
    assert store.last_report.admitted.tolist() == [True, False, True]
    assert {d.id for d in store.get_by_ids(ids)} == {"a", "c"}
    assert store.quarantine.show("culprit").vector.size == 0
    assert_in_step(store)
    store.release(["culprit"])
    assert {d.id for d in store.get_by_ids(ids)} == set(ids)
    with pytest.raises(MalformedEntriesError, match=r"'culprit'.*vector.*released by"):
        store.add_embeddings(texts=texts, embeddings=vectors, ids=["a", "culprit", "c"])
    assert {d.id for d in store.get_by_ids(ids)} == set(ids)  # as it was released


@pytest.mark.slow
def test_a_text_that_the_model_refuses_costs_that_text(cls):
    class Strict(CountingEmbeddings):
        def embed_documents(self, texts):
            if any("\ud83d" in text for text in texts):
                msg = "no Unicode"
                raise TypeError(msg)
            return super().embed_documents(texts)

    store = GuardedVectorStore(empty(cls, Strict()), guard=guard_of())
    texts = [f"billing {n}" for n in range(9)] + ["half \ud83d"]
    store.add_texts(texts, ids=[str(n) for n in range(10)])
    assert store.quarantine.held_ids([str(n) for n in range(10)]) == {"9"}
    assert "embedding model refused" in store.quarantine.show("9").note
    with pytest.raises(TypeError, match="no Unicode"):
        store.add_texts(["half \ud83d"])


BAD_CALLS = {
    "an empty id": (lambda s: s.add_texts(["a"], ids=[""]), "entry 0: its id is ''"),
    "an id that is a number": (lambda s: s.add_texts(["a"], ids=[7]), "entry 0: its id is of type"),
    "no text": (lambda s: s.add_texts([None], ids=["culprit"]), "'culprit': its text is of type"),
    "fewer ids": (lambda s: s.add_texts(["a", "b"], ids=["x"]), "1 ids for 2"),
    "fewer metadatas": (lambda s: s.add_texts(["a", "b"], [{}]), "1 metadatas for 2"),
    "another dimension": (
        lambda s: s.add_embeddings([("a", [1.0, 2.0])], ids=["culprit"]),
        f"'culprit'.*2 dimensions.*{DIM}",
    ),
}


@pytest.mark.parametrize(("call", "words"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_input_is_refused_by_name_and_leaves_everything_as_it_was(store, call, words):
    before, report = live(store.inner), store.last_report
    with pytest.raises((InvalidBatchError, QuarantineError), match=words):
        call(store)
    assert live(store.inner) == before
    assert store.quarantine.count(None) == 0
    assert store.last_report is report
    assert_in_step(store)


def test_metadata_is_stored_unchanged_and_not_shared_with_the_caller(store):
    metadata = {"label": "billing", "page": 3, "tags": ["a", {"b": 1}], "source": "x.pdf"}
    original = deepcopy(metadata)
    document = Document(id="one", page_content="billing one", metadata=metadata)
    store.add_documents([document])
    assert document.metadata == original
    assert store.get_by_ids(["one"]) == [document]
    document.metadata["page"] = 4
    document.metadata["new"] = True
    document.metadata["tags"].append("slipped in")
    assert live(store.inner)["one"][1] == original
    assert store.last_report.batch.metadatas[0] == original
    live(store.inner)["one"][1]["edited"] = True
    assert store.last_report.batch.metadatas[0] == original


def test_flagged_documents_gain_exactly_one_key(cls, embedding):
    guard = guard_of(Scripted(), quarantine_at=0.02, flag_at=0.3, confidence=0.5)
    store = GuardedVectorStore(empty(cls, embedding), guard=guard)
    store.add_texts([f"billing score={i / 100}" for i in range(100)])
    guard.fit(store.last_report.batch).calibrate()
    texts = [f"billing new score={score}" for score in (0.1, 0.9, 5.0)]
    fine, flagged, held = store.add_texts(texts, [{"page": 1}] * 3)
    assert [str(d.verdict) for d in store.last_report.decisions] == ["admit", "flag", "quarantine"]
    assert live(store.inner)[fine][1] == {"page": 1}
    assert live(store.inner)[flagged][1] == {"page": 1, "ragshield_flag": "scripted"}
    assert store.quarantine.show(held).entry.metadata == {"page": 1}


async def test_on_detect_raise_writes_nothing(cls, embedding):
    guard = guard_of(on_detect="raise")
    store = GuardedVectorStore(empty(cls, embedding), guard=guard)
    store.add_documents(KNOWN)
    before, report = live(store.inner), store.last_report
    with pytest.raises(PoisonedEntryError, match=BAD[0].id) as raised:
        store.add_documents(MIXED)
    assert [d.entry_id for d in raised.value.report.quarantined] == ids_of(BAD)
    with pytest.raises(PoisonedEntryError):
        await store.aadd_documents(MIXED)
    assert live(store.inner) == before
    assert_in_step(store)
    assert store.quarantine.count(None) == 0
    assert store.last_report is report


# Replacing and deleting


def test_an_upsert_replaces_and_the_centroids_follow(store):
    changed = Document(id="kb-billing-0", page_content="refunds now", metadata={"label": "refunds"})
    store.add_documents([changed, GOOD[0]])
    assert live(store.inner)["kb-billing-0"][:2] == ("refunds now", {"label": "refunds"})
    assert len(live(store.inner)) == len(KNOWN) + 1
    assert_in_step(store)
    for _ in range(3):
        store.add_documents(KNOWN)
    assert len(live(store.inner)) == len(KNOWN) + 1
    assert_in_step(store)


def test_a_quarantined_revision_leaves_the_old_one_live(store):
    before = live(store.inner)
    revised = Document(
        id="kb-billing-0", page_content="shipping ruse", metadata={"label": "billing"}
    )
    assert store.add_documents([revised]) == ["kb-billing-0"]
    assert live(store.inner) == before
    assert store.quarantine.show("kb-billing-0").entry.text == "shipping ruse"
    assert_in_step(store)
    store.release(["kb-billing-0"])
    assert live(store.inner)["kb-billing-0"][0] == "shipping ruse"
    assert len(live(store.inner)) == len(before)
    assert_in_step(store)


@pytest.mark.parametrize("label", ["shipping", "espionage", ["billing"]], ids=str)
@pytest.mark.parametrize("what", ["upsert", "delete"])
def test_live_document_edited_by_its_reader_is_still_forgotten(store, what, label):
    """FAISS hands out the stored documents themselves; whoever annotates a result edits them."""
    (found,) = store.similarity_search("billing kb 0", k=1)
    found.metadata["label"] = label
    if what == "delete":
        store.delete([found.id])
    else:
        store.add_documents(
            [Document(id=found.id, page_content="billing v2", metadata={"label": "billing"})]
        )
    assert_in_step(store)


@pytest.mark.slow
def test_threads_that_write_at_once_leave_guard_and_store_in_step(store):
    batches = [
        [*docs(topic, 2, prefix=f"t{n}"), *docs("billing", 1, prefix=f"x{n}", label="refunds")]
        for n in range(6)
        for topic in TOPICS
    ]
    with ThreadPoolExecutor(6) as pool:
        written = list(pool.map(store.add_documents, batches))
    assert written == [ids_of(batch) for batch in batches]
    assert len(live(store.inner)) == len(KNOWN) + 2 * len(batches)
    assert store.quarantine.count() == 6
    assert_in_step(store)


async def test_delete_forgets_entries_and_ignores_missing_ids(store):
    store.add_documents(MIXED)
    gone = ["kb-billing-0", GOOD[0].id, BAD[0].id, "never there"]
    assert store.delete(gone) is True
    assert set(gone).isdisjoint(live(store.inner))
    assert store.quarantine.held_ids(gone) == set()
    assert store.quarantine.held_ids(ids_of(BAD)) == {BAD[1].id}
    assert_in_step(store)
    assert store.delete(gone) is True
    assert await store.adelete([BAD[1].id, "kb-refunds-1"]) is True
    assert store.quarantine.count(None) == 0
    assert store.get_by_ids(["kb-refunds-1"]) == []
    assert_in_step(store)
    with pytest.raises(QuarantineError, match=BAD[0].id):
        store.release([BAD[0].id])


# Releasing


def test_release_puts_the_entry_back_with_its_own_id_and_vector(store, embedding):
    bad = docs("shipping", 1, prefix="bad", label="billing", page=7, tags=("x", "y"))[0]
    store.add_documents([bad])
    embedding.calls.clear()
    (held,) = store.release([bad.id], by="anna", note="a forwarded bill")
    assert held.id == bad.id
    assert embedding.calls == []
    vector = vector_of(bad.page_content).tolist()
    assert live(store.inner)[bad.id] == (bad.page_content, bad.metadata, vector)
    assert store.quarantine.count() == 0
    assert store.quarantine.log.lines()[-1].actor == "anna"
    assert_in_step(store)
    assert store.similarity_search(bad.page_content, k=1) == [bad]


# Embedding once


async def writes(store, way, documents):
    texts, metadatas = [d.page_content for d in documents], [d.metadata for d in documents]
    if way == "add_documents":
        store.add_documents(documents)
    elif way == "add_texts":
        store.add_texts(texts, metadatas)
    elif way == "aadd_documents":
        await store.aadd_documents(documents)
    else:
        await store.aadd_texts(texts, metadatas)


@pytest.mark.parametrize("way", ["add_documents", "add_texts", "aadd_documents", "aadd_texts"])
@pytest.mark.slow
async def test_each_text_is_embedded_exactly_once_per_write(store, embedding, way):
    await writes(store, way, MIXED)
    assert embedding.calls == [[document.page_content for document in MIXED]]
    assert embedding.native == way.startswith("a" * 2)
    held = [one.id for one in store.quarantine.list()]
    assert len(held) == 2
    store.release(held)
    assert len(embedding.calls) == 1
    assert_in_step(store)


async def make(way, cls, embedding, documents, **options):
    options = {"inner": empty(cls, embedding), "guard": guard_of(), **options}
    texts, metadatas = [d.page_content for d in documents], [d.metadata for d in documents]
    if way == "from_documents":
        return GuardedVectorStore.from_documents(documents, embedding, **options)
    if way == "afrom_documents":
        return await GuardedVectorStore.afrom_documents(documents, embedding, **options)
    options["ids"] = ids_of(documents)
    if way == "from_texts":
        return GuardedVectorStore.from_texts(texts, embedding, metadatas, **options)
    return await GuardedVectorStore.afrom_texts(texts, embedding, metadatas, **options)


@pytest.mark.parametrize("way", ["from_documents", "from_texts", "afrom_documents", "afrom_texts"])
async def test_a_new_store_is_made_embedding_each_text_once(cls, embedding, way):
    guard = guard_of().fit(knowledge_base(5))
    store = await make(way, cls, embedding, MIXED, guard=guard)
    assert isinstance(store, GuardedVectorStore)
    assert type(store.inner) is cls
    assert embedding.calls == [[document.page_content for document in MIXED]]
    assert embedding.native == way.startswith("af")
    assert set(live(store.inner)) == set(ids_of(GOOD))
    assert store.quarantine.held_ids(ids_of(MIXED)) == set(ids_of(BAD))
    assert store.similarity_search(GOOD[0].page_content, k=1) == [GOOD[0]]


@pytest.mark.parametrize("missing", ["inner", "guard"])
async def test_a_new_store_needs_a_store_and_a_guard(cls, embedding, missing):
    for way in ("from_texts", "afrom_documents"):
        with pytest.raises(TypeError, match=f"{missing} is missing"):
            await make(way, cls, embedding, GOOD, **{missing: None})
    assert embedding.calls == []


# Reading


def test_k_is_exact_and_nothing_quarantined_is_found(store):
    store.add_documents([*MIXED, *docs("shipping", 20, prefix="more", label="billing")])
    n = len(KNOWN) + len(GOOD)
    for k in (1, 5, n):
        found = store.similarity_search("shipping bad 0", k=k)
        assert len(found) == k
        assert all(
            document.metadata["label"] == document.page_content.split()[0] for document in found
        )
    assert len(store.similarity_search("shipping bad 0", k=n + 30)) == n


def search_arguments(name):
    if name.endswith("by_vector"):
        return vector_of("billing kb 1").tolist()
    return "billing kb 1"


@pytest.mark.parametrize(
    "name",
    [
        "similarity_search",
        "similarity_search_with_score",
        "similarity_search_by_vector",
        "max_marginal_relevance_search",
        "max_marginal_relevance_search_by_vector",
    ],
)
async def test_searches_are_those_of_the_store_inside(store, name):
    argument = search_arguments(name)
    expected = getattr(store.inner, name)(argument, k=3)
    assert len(expected) == 3
    assert getattr(store, name)(argument, k=3) == expected
    assert getattr(store, name)(argument, 3) == expected
    assert await getattr(store, f"a{name}")(argument, k=3) == expected


async def test_get_by_ids_and_filters_are_those_of_the_store_inside(cls, store):
    store.add_documents(MIXED)
    wanted = [GOOD[0].id, BAD[0].id, "nobody"]
    assert ids_of(store.get_by_ids(wanted)) == [GOOD[0].id]
    assert ids_of(await store.aget_by_ids(wanted)) == [GOOD[0].id]
    chosen = {"label": "refunds"} if cls is FAISS else lambda d: d.metadata["label"] == "refunds"
    found = store.similarity_search("billing kb 0", k=4, filter=chosen)
    assert {document.metadata["label"] for document in found} == {"refunds"}


@pytest.mark.parametrize(
    "options",
    [
        {"search_kwargs": {"k": 2}},
        {"search_type": "mmr", "search_kwargs": {"k": 2, "fetch_k": 5}},
        {
            "search_type": "similarity_score_threshold",
            "search_kwargs": {"k": 2, "score_threshold": 0.0},
        },
    ],
    ids=["similarity", "mmr", "threshold"],
)
@pytest.mark.filterwarnings("ignore:Relevance scores must be between")
async def test_as_retriever_matches_the_inner_store(cls, store, options):
    store.add_documents(MIXED)
    if cls is InMemoryVectorStore and options.get("search_type", "").endswith("threshold"):
        with pytest.raises(NotImplementedError):  # the store inside has no relevance scores
            store.as_retriever(**options).invoke("billing new 0")
        return
    retriever, raw = store.as_retriever(**options), store.inner.as_retriever(**options)
    found = retriever.invoke("billing new 0")
    assert found
    assert found[0] == GOOD[0]
    assert found == raw.invoke("billing new 0") == await retriever.ainvoke("billing new 0")


def answer(store, question):
    """Run an ordinary chain, as it stands in LangChain's tutorials, around a store."""
    prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")
    retriever = store.as_retriever(search_kwargs={"k": 3})
    context = retriever | (lambda found: " | ".join(d.page_content for d in found))
    chain = (
        {"context": context, "question": RunnablePassthrough()}
        | prompt
        | ParrotFakeChatModel()
        | StrOutputParser()
    )
    return chain.invoke(question)


def test_a_chain_works_unchanged_and_never_sees_the_poison(cls, store, embedding):
    raw = empty(cls, embedding)
    raw.add_documents([*KNOWN, *GOOD])
    store.add_documents([*MIXED])
    question = "billing new 0"
    assert answer(store, question) == answer(raw, question)
    assert "Context: billing new 0 |" in answer(store, question)
    assert "bad" not in answer(store, "shipping bad 0").partition("Question")[0]
    raw.add_documents(BAD)
    assert "shipping bad 0" in answer(raw, "shipping bad 0").partition("Question")[0]


# Ways around


def test_unknown_attribute_raises_attribute_error(store):
    with pytest.raises(AttributeError, match="'no_such_thing'") as missing:
        _ = store.no_such_thing
    assert ".inner" not in str(missing.value)
    assert store.embeddings is store.inner.embeddings


def test_a_store_of_an_unknown_kind_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="inner_store="):
        GuardedVectorStore(object(), guard=guard_of())
