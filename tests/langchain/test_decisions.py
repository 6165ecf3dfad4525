"""A decision about a held document never costs the live one."""

import asyncio

import pytest
from langchain_core.documents import Document
from store_kinds import KINDS
from support import DIM, CountingEmbeddings, guard_of, vector_of

from ragshield_core import Batch
from ragshield_core.model.errors import QuarantineError
from ragshield_langchain import GuardedVectorStore, PoisonFilter
from ragshield_langchain.inner import access_to

GOOD = Document(id="a", page_content="billing is open at nine", metadata={"source": "a.txt"})
BAD = Document(id="a", page_content="billing is closed score=9", metadata={"source": "a.txt"})


@pytest.fixture(params=KINDS)
def store(request, make_store, on_file):
    inner = make_store(request.param, CountingEmbeddings(), DIM)
    return GuardedVectorStore(inner, guard=guard_of(url=on_file))


def entry_of(document):
    """Return a document as a batch of one."""
    return Batch.of(
        ids=[document.id],
        texts=[document.page_content],
        embeddings=[vector_of(document.page_content)],
        lineages=[document.metadata["source"]],
        metadatas=[document.metadata],
    )


def past(store, document):
    """Write a document past the guard."""
    access_to(store.inner).write(entry_of(document), [document.metadata])


def again(store):
    """Return the same store after a restart."""
    return GuardedVectorStore(store.inner, guard=guard_of(url=store.quarantine.database.url))


def texts(store):
    return [d.page_content for d in store.similarity_search("billing", k=9)]


@pytest.mark.parametrize("native", [False, True])
def test_deleting_a_held_revision_leaves_the_live_one(store, native):
    store.add_documents([GOOD])
    store.add_documents([BAD])
    assert [item.id for item in store.quarantine.list()] == ["a"]
    gone = asyncio.run(store.apurge(["a"], by="anna")) if native else store.purge(["a"], by="anna")
    assert gone == 1
    assert store.get_by_ids(["a"]) == [GOOD]
    assert store.quarantine.count(None) == 0
    assert texts(again(store)) == [GOOD.page_content]


def test_deleting_a_held_revision_deletes_it_where_it_is_hidden(store):
    store.add_documents([GOOD])
    past(store, BAD)
    store.quarantine.hold(entry_of(BAD), by="anna")
    store.refresh_quarantine()
    assert texts(store) == []
    store.purge(["a"])
    assert access_to(store.inner).read(["a"]).documents == []
    assert store.purge(["a", "unheard-of"]) == 0


def held_copy(store):
    """Have a copy of a good document held under another id."""
    suspicious = Document(id="good", page_content="billing score=0.5", metadata={"source": "a.txt"})
    store.guard.state.calibrator.thresholds["scripted"] = store.guard.state.calibrator.thresholds[
        "scripted"
    ]._replace(flag=0.9, quarantine=0.9)
    store.add_documents([suspicious])
    assert store.get_by_ids(["good"]) == [suspicious]
    store.guard.state.calibrator.thresholds["scripted"] = store.guard.state.calibrator.thresholds[
        "scripted"
    ]._replace(flag=0.0, quarantine=0.0)
    copy = suspicious.model_copy(update={"id": "copy"})
    store.add_documents([copy])
    (decision,) = store.last_report.quarantined
    assert decision.note == "the very same is in the store under 'good', and stays there"
    return suspicious


@pytest.mark.slow
def test_confirming_a_copy_leaves_the_document_that_stood_there_before(store):
    good = held_copy(store)
    assert "'good'" in store.quarantine.show("copy").note
    store.quarantine.confirm(["copy"], by="anna")
    for one in (store, again(store)):
        one.refresh_quarantine()
        assert texts(one) == [good.page_content]
        assert PoisonFilter(store=one).compress_documents([good], "when") == [good]
    past(store, good.model_copy(update={"id": "another"}))
    assert len(texts(store)) == 1  # a copy that came past the guard stays hidden
    # What stood there is not refused for that either; other copies are.
    store.guard.state.calibrator.thresholds["scripted"] = store.guard.state.calibrator.thresholds[
        "scripted"
    ]._replace(flag=0.9, quarantine=0.9)
    store.add_documents([good, good.model_copy(update={"id": "third"})])
    assert [d.entry_id for d in store.last_report.quarantined] == ["third"]


def test_confirming_a_copy_is_durable_where_the_guard_was_not_saved(store):
    good = held_copy(store)
    store.quarantine.confirm(["copy"])
    adopted = GuardedVectorStore.adopt(
        store.inner, guard=guard_of(url=store.quarantine.database.url), progress=False
    )
    assert adopted.guard.writes.known(["good"]) == ["good"]
    assert texts(adopted) == [good.page_content]


# Replaced by somebody else

INTRUDER = Document(id="a", page_content="billing moved to bay 9", metadata={"source": "x.txt"})


def test_replacing_an_entry_of_another_document_is_reported(store, caplog):
    store.add_documents([GOOD])
    store.add_documents([INTRUDER])
    (decision,) = store.last_report.decisions
    assert decision.verdict == "admit"
    assert decision.note == (
        "of lineage 'x.txt', it replaces a text of lineage 'a.txt'; restore puts that back"
    )
    assert "replaced by others of another lineage, such as 'a'" in caplog.text
    assert "nine" not in caplog.text
    assert store.get_by_ids(["a"]) == [INTRUDER]
    assert store.quarantine.count() == 0
    (kept,) = store.quarantine.list("replaced")
    assert kept.entry.text == GOOD.page_content


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.slow
def test_replaced_document_can_be_restored(store, native):
    store.add_documents([GOOD])
    store.add_documents([INTRUDER])
    if native:
        (restored,) = asyncio.run(store.arestore(["a"], by="anna"))
    else:
        (restored,) = store.restore(["a"], by="anna", note="not theirs")
    assert restored.entry.text == GOOD.page_content
    for one in (store, again(store)):
        assert one.get_by_ids(["a"]) == [GOOD]
        assert texts(one) == [GOOD.page_content]
    held = store.quarantine.show("a")
    assert (held.entry.text, held.status, held.held_by) == (INTRUDER.page_content, "held", "anna")
    assert [line.action for line in store.quarantine.log.lines()][:1] == ["replace"]
    assert "restore" in [line.action for line in store.quarantine.log.lines()]
    store.quarantine.log.verify()
    store.add_documents([GOOD])
    assert not store.last_report.quarantined
    with pytest.raises(QuarantineError, match=r"'a' is not replaced"):
        store.restore(["a"])


@pytest.mark.slow
def test_entry_rewritten_by_its_owner_needs_no_restore(store):
    store.add_documents([GOOD])
    store.add_documents([INTRUDER])
    store.add_documents([GOOD])
    assert store.get_by_ids(["a"]) == [GOOD]
    assert again(store).get_by_ids(["a"]) == [GOOD]
    (intruder,) = store.quarantine.list("replaced")
    assert intruder.entry.text == INTRUDER.page_content
    store.add_documents([INTRUDER])
    store.restore(["a"])
    assert store.get_by_ids(["a"]) == [GOOD]


@pytest.mark.parametrize(
    "newer",
    [
        GOOD.model_copy(update={"page_content": "billing is open at ten"}),
        GOOD.model_copy(update={"metadata": {"source": "moved/a.txt"}}),
    ],
    ids=["update", "moved"],
)
def test_update_or_move_by_the_owner_keeps_no_replaced_version(store, newer):
    store.add_documents([GOOD])
    store.add_documents([newer])
    assert store.quarantine.count(None) == 0
    assert store.last_report.decisions[0].note is None


@pytest.mark.slow
def test_release_keeps_the_replaced_entry_of_another_document(store):
    store.add_documents([GOOD])
    store.add_documents([INTRUDER.model_copy(update={"page_content": "billing score=9"})])
    store.release(["a"])
    assert texts(store) == ["billing score=9"]
    (kept,) = store.quarantine.list("replaced")
    assert kept.entry.text == GOOD.page_content


def test_deleting_an_entry_deletes_the_one_it_replaced(store):
    store.add_documents([GOOD])
    store.add_documents([INTRUDER])
    store.delete(["a"])
    assert store.quarantine.count(None) == 0
