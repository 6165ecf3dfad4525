"""A FAISS folder written by a guarded store is complete without the guard as well."""

import warnings

import faiss
import numpy as np
import pytest
from support import DIM, CountingEmbeddings, Scripted, vector_of

from ragshield_core import Guard
from ragshield_langchain import GuardedVectorStore

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from langchain_community.vectorstores import FAISS

TEXTS = {str(n): f"billing {n}" for n in range(9)}


def inverted(*, compressed=False):
    quantizer = faiss.IndexFlatL2(DIM)
    index = (
        faiss.IndexIVFScalarQuantizer(quantizer, DIM, 2, faiss.ScalarQuantizer.QT_fp16)
        if compressed
        else faiss.IndexIVFFlat(quantizer, DIM, 2)
    )
    index.train(np.array([vector_of(f"billing {n}") for n in range(80)]))
    index.nprobe = 2
    return index, quantizer  # which the index does not keep alive


@pytest.fixture(params=["flat", "inverted", "compressed"])
def store(request, make_store, quarantine):
    index, _keep = (
        (None, None)
        if request.param == "flat"
        else inverted(compressed=request.param == "compressed")
    )
    inner = make_store("faiss", CountingEmbeddings(), DIM, index=index)
    store = GuardedVectorStore(inner, guard=Guard([Scripted()], quarantine=quarantine))
    store.add_texts(list(TEXTS.values()), ids=list(TEXTS))
    yield store
    del _keep


def reloaded(store, folder):
    store.inner.save_local(str(folder))
    return FAISS.load_local(str(folder), CountingEmbeddings(), allow_dangerous_deserialization=True)


def found(store):
    """Return the first result of each text, by the text itself, and all results."""
    every = {d.id: d.page_content for d in store.similarity_search("billing", k=99)}
    first = {text: store.similarity_search(text, k=1)[0].page_content for text in every.values()}
    assert all(text == nearest for text, nearest in first.items())
    return every


def without(*ids):
    return {i: text for i, text in TEXTS.items() if i not in ids}


def test_bare_reload_after_a_recall_finds_the_remaining_entries(store, tmp_path):
    assert set(store.recall(["2", "5"])) == {"2", "5"}
    assert found(store) == without("2", "5")
    assert found(reloaded(store, tmp_path)) == without("2", "5")


def test_a_bare_reload_after_updates_releases_and_deletions(store, tmp_path):
    store.recall(["0", "8"])
    store.add_texts(["billing again", "billing more"], ids=["3", "new"])
    store.delete(["4"])
    store.release(["8"])
    now = without("0", "4") | {"3": "billing again", "new": "billing more"}
    assert found(store) == now
    assert found(reloaded(store, tmp_path)) == now
    again = GuardedVectorStore(
        reloaded(store, tmp_path), guard=Guard([Scripted()], quarantine=store.quarantine)
    )
    again.recall(["7"])
    assert found(again) == {i: text for i, text in now.items() if i != "7"}


def test_everything_can_be_recalled(store, tmp_path):
    store.recall(list(TEXTS))
    assert store.similarity_search("billing", k=5) == []
    assert reloaded(store, tmp_path).similarity_search("billing", k=5) == []
    store.release(["1"])
    assert found(store) == {"1": TEXTS["1"]}
