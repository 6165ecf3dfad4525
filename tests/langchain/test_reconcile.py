"""What is written past a guarded store, or lost, is warned of at opening and can be mended."""

import warnings

import pytest
from langchain_core.documents import Document
from store_kinds import KINDS
from support import DIM, CountingEmbeddings, Scripted, the_one, vector_of

from ragshield_core import Batch, Guard
from ragshield_langchain import GuardedVectorStore, StoreDiffersWarning
from ragshield_langchain.inner import access_to


def opened(url):
    return Guard.open(url, detectors=[Scripted()])


def add(store, **documents):
    store.add_documents([Document(id=i, page_content=t) for i, t in documents.items()])


def quiet(make):
    """Return what ``make`` returns; a warning of ours is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", StoreDiffersWarning)
        return make()


@pytest.mark.parametrize("kind", KINDS)
def test_what_differs_is_warned_of_at_opening_and_mended(kind, make_store, url):
    inner = make_store(kind, CountingEmbeddings(), DIM)
    first = quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))
    add(first, a="billing a", b="billing b", c="billing c")
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))
    past = {"p": "billing p", "bad\x1b[2J": "billing score=5"}
    if kind == "qdrant":  # whose points have UUIDs, which a guarded store sees to
        vectors = [vector_of(text) for text in past.values()]
        batch = Batch.of(ids=list(past), texts=list(past.values()), embeddings=vectors)
        access_to(first.inner).write(batch, [{}, {}])
        access_to(first.inner).delete(["c"])
    else:
        inner.add_texts(list(past.values()), ids=list(past))
        inner.delete(["c"])
    with pytest.warns(StoreDiffersWarning, match=r"holds 2 .*lacks 1 .*\('c'\)") as seen:
        store = GuardedVectorStore(inner, guard=opened(url))
    warned = the_one(seen, StoreDiffersWarning)
    assert warned.filename == __file__
    assert "\x1b" not in str(warned.message)
    found = store.reconcile(adopt=True, forget=True)
    assert sorted(found.unguarded) == ["bad\x1b[2J", "p"]
    assert (found.adopted, found.held, found.forgotten) == (("p",), ("bad\x1b[2J",), ("c",))
    assert set(access_to(first.inner).ids()) == {"a", "b", "p"}
    assert first.reconcile().agrees
    assert quiet(lambda: GuardedVectorStore(inner, guard=opened(url))).guard.writes.known_ids() == {
        *("a", "b", "p")
    }
    store.release(found.held, by="anna")
    assert first.reconcile().agrees


def test_the_comparison_can_be_switched_off_and_others_are_not_bothered(make_store, url):
    inner = make_store("memory", CountingEmbeddings(), DIM)
    add(GuardedVectorStore(inner, guard=opened(url)), a="billing a")
    inner.add_texts(["billing p"], ids=["p"])
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url), check=False))
    quiet(lambda: GuardedVectorStore.adopt(inner, guard=opened(url), progress=False))
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))  # adopted, so that it is known
