"""Proven origin in a guarded store: nothing of a lower tier replaces, recalls or imitates."""

import json
import re
import uuid
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager
from langchain_core.vectorstores import InMemoryVectorStore
from store_kinds import KINDS
from support import DIM, CountingEmbeddings, group, guard_of, join, passages
from typer.testing import CliRunner

from ragshield_core import (
    Batch,
    Decision,
    Finding,
    PoisonedEntryError,
    RetrievalGuard,
    Verdict,
)
from ragshield_core.cli import app
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.claims import FLAG_KEY, ORIGIN_KEY, STAMP_KEY
from ragshield_core.model.errors import ConfigurationError, SourceError
from ragshield_core.origin import OriginKey, Origins, Tier, Voucher
from ragshield_langchain import (
    GuardedRetriever,
    GuardedVectorStore,
    OriginStamper,
    PoisonFilter,
    PoisonGuard,
    guarded_index,
)
from ragshield_langchain.convert import context_of, stored_metadatas

WIKI = OriginKey("wiki", secret=b"a secret of the wiki")
MAIL = OriginKey("mail", secret=b"a secret of the mail")
ORIGINS = Origins(
    {
        "wiki": Voucher(tier="trusted", secrets=(b"a secret of the wiki",)),
        "mail": Voucher(tier="known", secrets=(b"a secret of the mail",)),
    }
)
PAGE = Document(id="refunds", page_content="Refunds take five days.", metadata={"page": "refunds"})
FALSE = Document(id="refunds", page_content="Refunds take two years.", metadata={"page": "refunds"})
FEES = Document(id="fees", page_content="There are no fees.")
NEWS = Document(id="news", page_content="The shop has moved.")


def stamped(document, key=WIKI, **how):
    return OriginStamper(key, **how).transform_documents([document])[0]


def store_of(**policy):
    guard = guard_of(**policy)
    guard.origins = ORIGINS
    return GuardedVectorStore(InMemoryVectorStore(CountingEmbeddings()), guard=guard)


@pytest.fixture
def store():
    made = store_of()
    made.add_documents([stamped(PAGE)])
    return made


def text_of(store):
    return [one.page_content for one in store.get_by_ids(["refunds"])]


def decision(store):
    return store.last_report.decisions[0]


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (FALSE, "its own tier is unknown (no stamp)"),
        (stamped(FALSE, MAIL), "its own tier is known (stamped by 'mail'"),
        (FALSE.model_copy(update={"metadata": stamped(PAGE).metadata}), "for another text"),
        (stamped(FALSE, OriginKey("wiki", secret=b"a guess of somebody")), "did not make it"),
        (stamped(FALSE, derived_from=[]), "its own tier is unknown (stamped by 'wiki'"),
    ],
)
def test_a_page_is_not_replaced_by_a_lower_tier(store, new, why):
    store.add_documents([new])
    assert text_of(store) == [PAGE.page_content]
    assert decision(store).verdict is Verdict.QUARANTINE
    assert why in decision(store).note
    held = store.quarantine.show("refunds")
    assert (held.entry.text, held.findings) == (FALSE.page_content, ())


def least(tier, guard=None):
    """Return a guard that admits a tier at least."""
    guard = guard_of() if guard is None else guard
    vouchers = {"wiki": Voucher(tier="trusted", secrets=(b"a secret of the wiki",))}
    vouchers |= {"mail": Voucher(tier="known", secrets=(b"a secret of the mail",))}
    guard.origins = Origins(vouchers, least_tier=tier)
    return guard


@pytest.mark.parametrize(
    ("tier", "stored"),
    [
        ("unknown", {"refunds", "fees", "news"}),
        ("known", {"refunds", "news"}),
        ("trusted", {"refunds"}),
    ],
)
def test_a_guard_can_demand_a_tier_of_all_new_entries(tier, stored):
    inner = InMemoryVectorStore(CountingEmbeddings())
    store = GuardedVectorStore(inner, guard=least(tier))
    store.add_documents([stamped(PAGE), FEES, stamped(NEWS, MAIL)])
    assert set(inner.store) == stored
    held = store.quarantine.list()
    assert {one.id for one in held} == {"refunds", "fees", "news"} - stored
    assert all(f"the guard admits {tier} at least" in one.note for one in held)
    store.release([one.id for one in held], by="anna")
    store.add_documents([FEES, stamped(NEWS, MAIL)])  # unchanged since a person has released them
    assert set(inner.store) == {"refunds", "fees", "news"}


def test_an_entry_that_comes_again_with_a_proof_needs_no_reviewer():
    inner = InMemoryVectorStore(CountingEmbeddings())
    store = GuardedVectorStore(inner, guard=least("known"))
    for document in (FEES, FEES, stamped(FEES, derived_from=[])):
        store.add_documents([document])
        assert [one.id for one in store.quarantine.list()] == ["fees"]
    store.add_documents([stamped(FEES, MAIL)])
    assert set(inner.store) == {"fees"}
    assert store.quarantine.count() == 0
    store.quarantine.hold(
        Batch.of(ids=["news"], texts=[NEWS.page_content], embeddings=None), by="bert"
    )
    store.add_documents([stamped(NEWS)])  # a person holds it: a proof changes nothing
    assert set(inner.store) == {"fees"}


def test_a_step_demands_the_tier_too():
    step = PoisonGuard(least("known"))
    passed = step.transform_documents([stamped(PAGE), FEES])
    assert [one.id for one in passed] == ["refunds"]
    (held,) = step.quarantine.list()
    assert (held.id, "known at least" in held.note) == ("fees", True)


def test_entries_past_a_guard_that_demands_a_tier_are_held():
    inner = InMemoryVectorStore(CountingEmbeddings())
    store = GuardedVectorStore(inner, guard=least("known"))
    inner.add_documents([stamped(PAGE), FEES])
    done = store.reconcile(adopt=True)
    assert (done.adopted, done.held) == (("refunds",), ("fees",))


def test_a_batch_is_refused_if_the_policy_raises():
    store = GuardedVectorStore(
        InMemoryVectorStore(CountingEmbeddings()), guard=least("known", guard_of(on_detect="raise"))
    )
    with pytest.raises(PoisonedEntryError, match="fees"):
        store.add_documents([stamped(PAGE), FEES])
    assert store.inner.store == {}


def test_an_earlier_version_does_not_come_back(store):
    old = stamped(FALSE)
    store.add_documents([stamped(PAGE)])
    store.add_documents([old])
    assert text_of(store) == [PAGE.page_content]
    assert "it would replace a later entry" in decision(store).note


def test_the_same_tier_replaces(store):
    store.add_documents([stamped(FALSE)])
    assert text_of(store) == [FALSE.page_content]


def test_a_person_may_let_it_in(store):
    store.add_documents([FALSE])
    store.release(["refunds"])
    assert text_of(store) == [FALSE.page_content]
    store.add_documents([FALSE])  # once released, it stays
    assert decision(store).verdict is Verdict.ADMIT


def test_a_page_that_comes_again_without_its_stamp_keeps_it(store):
    for again in (PAGE, PAGE.model_copy(update={"metadata": {"page": "refunds", STAMP_KEY: "x"}})):
        store.add_documents([again])
        assert decision(store).verdict is Verdict.ADMIT
        assert store.origins(["refunds"])["refunds"].tier is Tier.TRUSTED
        store.add_documents([FALSE])
        assert text_of(store) == [PAGE.page_content]


def test_a_copied_stamp_under_another_id_is_held(store):
    store.add_documents([stamped(PAGE).model_copy(update={"id": "fees"})])
    assert decision(store).verdict is Verdict.QUARANTINE
    assert "under another id" in decision(store).note


def test_a_released_entry_is_not_held_again_for_its_stamp(store):
    copied = stamped(PAGE).model_copy(update={"id": "fees"})
    store.add_documents([copied])
    store.release(["fees"])
    store.add_documents([copied])
    assert decision(store).verdict is Verdict.ADMIT


def test_other_entries_come_in_as_before(store):
    store.add_documents([FEES])
    assert decision(store).verdict is Verdict.ADMIT
    assert str(store.origins()["fees"]) == "unknown"


def test_without_keys_nothing_changes():
    store = GuardedVectorStore(InMemoryVectorStore(CountingEmbeddings()), guard=guard_of())
    store.add_documents([stamped(PAGE)])
    store.add_documents([FALSE])
    assert text_of(store) == [FALSE.page_content]


def test_raising_policies_raise():
    store = store_of(on_detect="raise")
    store.add_documents([stamped(PAGE)])
    with pytest.raises(PoisonedEntryError):
        store.add_documents([FALSE])
    assert text_of(store) == [PAGE.page_content]


def test_an_entry_that_came_past_the_guard_is_not_held_for_its_stamp(store):
    store.inner.add_documents([stamped(FEES)])
    store.reconcile(adopt=True)
    assert len(store.get_by_ids(["fees"])) == 1


# Recall

KNOWN, POISON = passages(300, 1), group(5, 3)


def flooded(how, at=None):
    """Return a store after five texts of a group came one by one; the last ones are stamped at."""
    guard = guard_of(CliqueDetector())
    guard.fit(KNOWN).calibrate(fpr=0.01)
    guard.origins = ORIGINS
    inner = InMemoryVectorStore(CountingEmbeddings())
    store = GuardedVectorStore(inner, guard=guard)
    for row, key in enumerate(how):
        text, entry_id = POISON.texts[row], POISON.ids[row]
        metadata = {"source": POISON.lineages[row]}
        if key is not None:
            when = at if row else None
            metadata[STAMP_KEY] = key.stamp(text, metadata, entry_id=entry_id, at=when)
        some = join(passages(6, 90 + row, f"clean{row}"), POISON.take([row]))
        store.add_embeddings(
            zip(some.texts, np.asarray(some.vectors).tolist(), strict=True),
            [*({"source": one} for one in some.lineages[:-1]), metadata],
            some.ids,
        )
    return store


@pytest.mark.parametrize(
    ("how", "stays"),
    [
        ([None] * 5, False),
        ([WIKI, *[None] * 4], True),
        ([WIKI, *[MAIL] * 4], True),
        ([MAIL, *[None] * 4], True),
        ([WIKI] * 5, False),  # as for a stolen key
    ],
)
def test_a_page_is_not_recalled_on_evidence_of_a_lower_tier(how, stays):
    store = flooded(how)
    there = [one.id for one in store.get_by_ids(list(POISON.ids))]
    assert (POISON.ids[0] in there) is stays
    assert not set(POISON.ids[1:]).intersection(there)


def test_a_page_is_not_recalled_on_evidence_of_earlier_stamps():
    store = flooded([WIKI] * 5, datetime.now(UTC) - timedelta(days=9))
    assert [one.id for one in store.get_by_ids(list(POISON.ids))][:1] == [POISON.ids[0]]


# Retrieval


def test_retrieval_shows_origin_and_no_claim_of_it(store):
    liar = Document(
        id="fees", page_content="There are no fees.", metadata={ORIGIN_KEY: "trusted:wiki"}
    )
    store.add_documents([liar])
    found = GuardedRetriever(retriever=store, k=2).invoke("refunds and fees")
    assert {one.id: one.metadata[ORIGIN_KEY] for one in found} == {
        "refunds": "trusted:wiki",
        "fees": "unknown",
    }


@pytest.mark.parametrize(
    ("least", "left"),
    [
        ("unknown", {"refunds", "news", "fees"}),
        ("known", {"refunds", "news"}),
        ("trusted", {"refunds"}),
    ],
)
def test_retrieval_may_require_a_tier(store, least, left):
    store.add_documents([FEES, stamped(NEWS, MAIL)])
    guard = RetrievalGuard(least_tier=least)
    found = GuardedRetriever(retriever=store, k=3, guard=guard).invoke("anything")
    assert {one.id for one in found} == left


def test_a_filter_of_a_bare_store_has_keys_of_its_own():
    documents = [stamped(PAGE), FEES]
    keys = RetrievalGuard(origins=ORIGINS, least_tier="trusted")
    assert [one.id for one in PoisonFilter(guard=keys).compress_documents(documents, "q")] == [
        "refunds"
    ]
    without = PoisonFilter(guard=RetrievalGuard(least_tier="known"))
    assert without.compress_documents(documents, "q") == []


def test_text_under_keys_of_ours_is_judged():
    for key in (STAMP_KEY, ORIGIN_KEY, FLAG_KEY):
        assert "send it" in context_of({key: "please send it to us"})
    assert context_of(stamped(PAGE).metadata) is None


def test_a_flag_reads_like_no_text():
    batch = Batch.of(ids=["a"], texts=["a page"], embeddings=[[1.0]])
    finding = Finding(
        detector="of my own détecteur",
        entry_id="a",
        score=1.0,
        threshold=2.0,
        p_value=None,
        evidence="it is so",
    )
    flagged = Decision(entry_id="a", verdict=Verdict.FLAG, findings=(finding,))
    (metadata,) = stored_metadatas(batch, [flagged])
    assert context_of(metadata) is None


# Entries of one key


def test_a_stolen_key_lists_and_recalls(store):
    store.add_documents([stamped(NEWS, MAIL)])
    letter = store.origins(["news"])["news"]
    digest = Document(id="digest", page_content="Five days, and the shop has moved.")
    store.add_documents([stamped(digest, derived_from=[letter])])
    store.guard.origins = Origins(
        {
            "wiki": Voucher(tier="trusted", secrets=(b"a secret of the wiki",)),
            "mail": Voucher(secrets=(b"a secret of the mail",), revoked=True),
        }
    )
    assert store.vouched_by("mail") == ("news", "digest")
    assert store.origins(["digest"])["digest"].tier is Tier.UNKNOWN
    store.recall(store.vouched_by("mail"))
    assert [one.id for one in store.get_by_ids(["refunds", "news", "digest"])] == ["refunds"]


def test_the_command_says_who_vouches(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(
        "from test_origins_in_stores import MAIL, NEWS, PAGE, stamped, store_of\n"
        "guarded = store_of()\n"
        "guarded.add_documents([stamped(PAGE), stamped(NEWS, MAIL)])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(re.sub(r"/[^/]*$", "", __file__))

    def said(*words):
        result = CliRunner().invoke(app, ["origin", *words, "--into", "shop:guarded"])
        assert result.exit_code == 0, result.output
        return result.output

    log = tmp_path / "answers.jsonl"
    asked = [("When?", ["refunds", "fees"]), ("What\x1b[2J?", ["news"]), ("Why?", [])]
    log.write_text("\n".join(json.dumps({"question": q, "documents": d}) for q, d in asked))
    assert "When?  <- refunds\n1 answers" in said("answers", str(log), "refunds", "nowhere")
    for _ in range(2):  # before and after the entries are recalled
        assert "What\\u{1b}[2J?  <- news\n1 answers" in said("answers", str(log), "--key", "mail")
        said("recall", "mail")
    assert "trusted:wiki" in said("show", "refunds", "nowhere")
    assert "1 of the ids are not in the store" in said("show", "refunds", "nowhere")
    assert "refunds" in said("list", "wiki")
    assert "1 entries were moved" in said("recall", "wiki")
    assert "0 entries" in said("list", "wiki")
    alone = CliRunner().invoke(app, ["origin", "list", "mail"])
    assert isinstance(alone.exception, ConfigurationError)
    assert "--into" in str(alone.exception)


@pytest.mark.parametrize(
    ("written", "where"),
    [
        (b'{"question": "a", "documents": ["x"]}\n{"question": "b"}\n', "line 2"),
        (b"[" * 10_000, "line 1"),
        (b'{"question": "\xff", "documents": []}', "line 1"),
        (b'{"question": "' + b"a" * 1_000_000 + b'", "documents": []}', "line 1"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_log_that_cannot_be_read_is_named_with_the_line(written, where, tmp_path):
    log = tmp_path / "answers.jsonl"
    if written is not None:
        log.write_bytes(written)
    result = CliRunner().invoke(app, ["origin", "answers", str(log), "x"])
    assert isinstance(result.exception, SourceError)
    assert where in str(result.exception)


def test_answers_of_nothing_are_not_looked_for(tmp_path):
    result = CliRunner().invoke(app, ["origin", "answers", str(tmp_path / "a.jsonl")])
    assert result.exit_code == 2
    assert "name ids, or a key" in result.output


@pytest.mark.parametrize("cleanup", ["incremental", "full", "scoped_full"])
def test_a_source_is_not_indexed_anew_by_a_lower_tier(cleanup):
    store, records = store_of(), InMemoryRecordManager("n")
    records.create_schema()

    def indexed(*texts, key):
        documents = [Document(page_content=text, metadata={"source": "a.md"}) for text in texts]
        if key is not None:
            documents = [stamped(one, key, bind_ids=False) for one in documents]
        how = {"cleanup": cleanup, "source_id_key": "source", "key_encoder": "sha256"}
        result = guarded_index(documents, records, store, **how)
        stored = store.similarity_search("anything", k=9)
        return result["num_quarantined"], {one.page_content for one in stored}

    assert indexed("one two", "three four", key=WIKI) == (0, {"one two", "three four"})
    assert indexed("one two", "two hundred", key=None)[1] == {"one two", "three four"}
    assert indexed("two hundred", key=MAIL) == (1, {"one two", "three four"})
    assert indexed("one two", "five six", key=WIKI) == (0, {"one two", "five six"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_proof_survives_every_store(kind, make_store):
    guard = guard_of()
    guard.origins = ORIGINS
    store = GuardedVectorStore(make_store(kind, CountingEmbeddings(), DIM), guard=guard)
    entry_id = str(uuid.uuid5(uuid.NAMESPACE_URL, "refunds"))
    metadata = {"page": "refunds", "section": 3, "share": 2.0, "old": False, "by": None}
    page = Document(id=entry_id, page_content=PAGE.page_content, metadata=metadata)
    store.add_documents([stamped(page)])
    assert store.origins()[entry_id].tier is Tier.TRUSTED, store.origins()
    store.add_documents([page.model_copy(update={"page_content": FALSE.page_content})])
    assert store.get_by_ids([entry_id])[0].page_content == PAGE.page_content
    assert store.vouched_by("wiki") == (entry_id,)
