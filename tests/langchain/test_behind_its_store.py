"""A guard that knows less than its store asks the store which entries it holds."""

import numpy as np
import pytest
from langchain_core.documents import Document
from support import DIM, CountingEmbeddings, Scripted, group, join, passages, prose, slowly

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to


def text(n):
    """Return words that no other text has."""
    return " ".join(f"{chr(97 + n)}{word}" for word in prose(np.random.default_rng(n)).split())


@pytest.fixture(params=["memory", *slowly("faiss", "chroma")])
def inner(request, make_store):
    return make_store(request.param, CountingEmbeddings(), DIM)


def worker(inner, url):
    """Return the store as another process has it: with a guard and a mask of its own."""
    return GuardedVectorStore(inner, guard=Guard.default(quarantine=Quarantine(url)))


def live(inner, *ids):
    store = GuardedVectorStore(inner, guard=Guard([Scripted()], quarantine=Quarantine("sqlite://")))
    return {d.id: d.page_content for d in store.get_by_ids(ids)}


def add(store, **documents):
    store.add_documents([Document(id=i, page_content=t) for i, t in documents.items()])


@pytest.mark.slow
def test_two_workers_write_update_and_delete_in_one_store(inner, on_file):
    first, second = worker(inner, on_file), worker(inner, on_file)
    add(first, a=text(1), b=text(2), c=text(3))
    add(second, a=text(4), d=text(5))
    add(first, a=text(6), d=text(7))
    add(second, a=text(8), c=text(9))
    assert live(inner, *"abcd") == {"a": text(8), "b": text(2), "c": text(9), "d": text(7)}
    first.delete(["c"])
    second.delete(["c", "d"])
    assert second.recall(["a"]) == ("a",)
    assert live(inner, *"abcd") == {"b": text(2)}
    assert first.recall(["a", "b"]) == ("b",)
    first.release(["a", "b"])
    assert live(inner, *"abcd") == {"a": text(8), "b": text(2)}
    add(second, a=text(10), b=text(11), c=text(12))
    assert live(inner, *"abcd") == {"a": text(10), "b": text(11), "c": text(12)}


# Metadata values that the quarantine cannot keep


class Odd:
    """No type that can be kept without pickling it."""


@pytest.mark.parametrize("value", [Odd(), np.arange(3), {"deep": [Odd()]}], ids=type)
def test_entry_with_unserializable_metadata_is_held_without_it(make_store, quarantine, value):
    inner = make_store("memory", CountingEmbeddings(), DIM)
    store = GuardedVectorStore(inner, guard=Guard([Scripted()], quarantine=quarantine))
    good = Document(id="good", page_content="billing")
    odd = Document(id="odd", page_content="shipping", metadata={"page": value})
    odd.metadata["seen"] = 1
    assert store.add_documents([good, odd]) == ["good", "odd"]
    assert set(inner.store) == {"good"}
    held = store.quarantine.show("odd")
    assert held.entry.text == "shipping"
    assert held.entry.metadata == {"seen": 1}
    assert "metadata['page']" in held.note


@pytest.mark.slow
def test_stored_entry_with_unserializable_metadata_can_still_be_recalled(make_store, on_file):
    """Its group completes: it is held without its odd metadata, and hidden with it."""
    known, bad = passages(300, 1), group(3, 3)
    store = GuardedVectorStore(
        make_store("memory", CountingEmbeddings(), DIM),
        guard=Guard([CliqueDetector()], quarantine=Quarantine(on_file)),
    )
    store.guard.fit(join(known)).calibrate(fpr=0.01)
    rows = [{"source": lineage} for lineage in bad.lineages]
    # As an earlier version let it in.
    first = bad.take([0])
    odd = {**rows[0], "page": np.arange(3)}
    access_to(store.inner).write(first, [odd])
    store.guard.learn(first)
    pairs = list(zip(bad.texts, bad.vectors.tolist(), strict=True))
    store.add_embeddings(pairs[1:], rows[1:], list(bad.ids[1:]))
    assert store.last_report.retroactive[0].entry_id == bad.ids[0]
    assert store.quarantine.held_ids(bad.ids) == set(bad.ids)
    assert store.quarantine.show(bad.ids[0]).entry.metadata == rows[0]
    assert store.get_by_ids(bad.ids) == []
    store.release(bad.ids)
    (back, *_) = store.get_by_ids(bad.ids)
    assert back.metadata is not rows[0]
    np.testing.assert_array_equal(back.metadata["page"], np.arange(3))
