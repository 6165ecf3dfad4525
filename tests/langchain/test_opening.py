"""Opening a store warns of an unfitted guard, a shared quarantine and differences."""

import warnings

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from store_kinds import KINDS
from support import DIM, CountingEmbeddings, Scripted, guard_of, the_one, vector_of

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import InstructionDetector
from ragshield_core.model.errors import QuarantineError, StateError
from ragshield_langchain import (
    GuardedVectorStore,
    SharedQuarantineWarning,
    StoreDiffersWarning,
    UnfittedGuardWarning,
)
from ragshield_langchain.inner import access_to

TEXTS = [f"billing {n}" for n in range(5)]


@pytest.mark.parametrize("kind", KINDS)
def test_unfitted_guard_over_a_filled_store_warns(kind, make_store):
    inner = make_store(kind, CountingEmbeddings(), DIM)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        first = GuardedVectorStore(inner, guard=guard_of())  # a new one
        first.add_texts(TEXTS)
    with pytest.warns(UnfittedGuardWarning, match=r"holds 5 entries.*adopt.*Guard\.load") as seen:
        GuardedVectorStore(inner, guard=guard_of())
    assert the_one(seen, UnfittedGuardWarning).filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        GuardedVectorStore(inner, guard=first.guard)
        GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
        GuardedVectorStore(inner, guard=guard_of(InstructionDetector()))  # compares with nothing


async def test_adopting_in_the_background_warns_of_nothing():
    inner = InMemoryVectorStore(CountingEmbeddings())
    inner.add_texts(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        await GuardedVectorStore.aadopt(inner, guard=guard_of(), progress=False)


# A guard is of one store, and holds under its name

BAD = "alpha score=5"


def bare():
    return InMemoryVectorStore(CountingEmbeddings())


def guarded(url, name, inner=None):
    inner = bare() if inner is None else inner
    return GuardedVectorStore(inner, guard=guard_of(url=url), name=name)


def add(store, **texts):
    store.add_documents([Document(id=i, page_content=text) for i, text in texts.items()])


def test_two_stores_without_a_name_in_one_namespace_are_warned_of(on_file):
    first = GuardedVectorStore(bare(), guard=guard_of(url=on_file))
    with pytest.warns(SharedQuarantineWarning, match="Give each a name=") as seen:
        GuardedVectorStore(bare(), guard=guard_of(url=on_file))
    assert the_one(seen, SharedQuarantineWarning).filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        GuardedVectorStore(
            bare(), guard=guard_of(quarantine=Quarantine(on_file, namespace="second"))
        )
        GuardedVectorStore(first.inner, guard=guard_of(url=on_file))
        guarded(on_file, "news")
        GuardedVectorStore(bare(), guard=guard_of(quarantine=Quarantine(on_file, store="mail")))
        GuardedVectorStore(bare(), guard=guard_of())
        GuardedVectorStore(bare(), guard=guard_of())


def test_two_stores_of_one_namespace_keep_their_entries_apart(on_file):
    news, mail = guarded(on_file, "news"), guarded(on_file, "mail")
    add(news, a=BAD, b="alpha good")
    add(mail, a="alpha another")
    with pytest.raises(QuarantineError, match="'a' is not held"):
        mail.release(["a"])
    add(mail, b=BAD)
    mail.inner.add_documents([Document(id="a", page_content=BAD)])  # past the guard
    again = guarded(on_file, "mail", mail.inner)
    # Held for the news alone, so that reads of the mail show it, and its own one is hidden.
    assert [d.page_content for d in again.get_by_ids(["a", "b"])] == [BAD]
    again.refresh_quarantine()
    assert [d.id for d in again.similarity_search("alpha", k=3)] == ["a"]
    news.release(["a"])
    assert {d.id for d in news.get_by_ids(["a", "b"])} == {"a", "b"}
    assert again.quarantine.held_ids(["a", "b"]) == {"b"}
    again.delete(["a", "b"])
    assert [held.store for held in Quarantine(on_file).list(None)] == ["news"]


@pytest.mark.parametrize(
    ("kind", "named"), [("memory", ""), ("faiss", ""), ("chroma", "Chroma "), ("qdrant", "Qdrant")]
)
@pytest.mark.slow
def test_store_name_is_class_and_collection_and_survives_restarts(kind, named, make_store, on_file):
    inner = make_store(kind, CountingEmbeddings(), DIM)
    first = GuardedVectorStore(inner, guard=guard_of(url=on_file))
    add(first, a=BAD)
    (held,) = Quarantine(on_file).list()
    assert held.store.startswith(named)
    assert bool(held.store) == bool(named)
    later = GuardedVectorStore(inner, guard=guard_of(url=on_file))  # another process
    assert later.quarantine.store == held.store
    assert [one.id for one in later.release(["a"])] == ["a"]


def test_every_way_to_a_store_takes_its_name(on_file):
    made = GuardedVectorStore.from_texts(
        [BAD],
        CountingEmbeddings(),
        guard=guard_of(quarantine=Quarantine(on_file, namespace="1")),
        inner=bare(),
        name="news",
    )
    adopted = GuardedVectorStore.adopt(
        bare(), guard=guard_of(url=on_file), name="news", progress=False
    )
    add(adopted, a=BAD)
    for store in (made, adopted):
        assert [held.store for held in store.quarantine.list()] == ["news"]
        assert "store='news'" in repr(store)


def test_a_guard_in_two_stores_is_refused(quarantine):
    inner = bare()
    store = GuardedVectorStore(inner, guard=guard_of(quarantine=quarantine))
    with pytest.raises(ValueError, match="belongs to another InMemoryVectorStore"):
        GuardedVectorStore(bare(), guard=store.guard)
    GuardedVectorStore(inner, guard=store.guard)  # of the same store


# Tenants of one database

IDS = ["a", "b", "c"]


def tenant(url, namespace, inner=None, **options):
    inner = InMemoryVectorStore(CountingEmbeddings()) if inner is None else inner
    guard = Guard.open(url, namespace, detectors=[Scripted()])
    return GuardedVectorStore(inner, guard=guard, **options)


def live(store):
    return {d.id: d.page_content for d in store.get_by_ids(IDS)}


def found(store):
    return [d.page_content for d in store.similarity_search("billing", k=5)]


@pytest.mark.slow
def test_decisions_of_one_tenant_do_not_affect_another(url):
    mine, theirs = tenant(url, "mine"), tenant(url, "theirs")
    texts = {"a": "billing one", "b": "billing score=5", "c": "billing three"}
    add(mine, **texts)
    add(theirs, **texts)
    before = live(mine), found(mine), mine.quarantine.list(), mine.guard.status()
    theirs.release(["b"], by="anna")
    theirs.recall(["a"], by="anna")
    theirs.quarantine.confirm(["a"], by="anna")
    theirs.delete(["c"])
    after = live(mine), found(mine), mine.quarantine.list(), mine.guard.status()
    assert [*map(str, after)] == [*map(str, before)]
    # The very text that they confirmed as poisoned, under any id, is good here.
    add(mine, c="billing one")
    assert live(mine) == {"a": "billing one", "c": "billing one"}
    add(theirs, c="billing one")
    assert "c" not in live(theirs)
    for act in (mine.release, mine.restore):
        with pytest.raises(QuarantineError):
            act(["a"], by="anna")
    mine.purge(["b"])
    assert theirs.quarantine.show("b").entry.text == "billing score=5"


# One namespace is one store


def chroma(make_store, **options):
    return make_store("chroma", CountingEmbeddings(), DIM, **options)


def test_a_second_store_in_a_namespace_is_refused_with_the_way_out(url, make_store):
    inner, second = chroma(make_store), chroma(make_store)
    first = tenant(url, "docs", inner)
    add(first, a="billing one")
    names = [f"Chroma {one._collection.name}" for one in (inner, second)]
    said = f"is that of the store '{names[0]}'.*'{names[1]}'.*another namespace.*name='{names[0]}'"
    with pytest.raises(StateError, match=said):
        tenant(url, "docs", second)
    with pytest.raises(StateError, match="is that of the store"):
        tenant(url, "docs")  # in memory
    tenant(url, "other docs", second)
    tenant(url, "docs", second, name=names[0])  # which was moved
    assert first.guard.status().n_known == 1


@pytest.mark.slow
def test_reopening_the_same_store_does_not_warn(url, make_store):
    inner = chroma(make_store)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        for _ in range(3):  # workers, or the store opened again
            add(tenant(url, "docs", inner), a="billing one")
        for _ in range(2):  # of no name, made again after a restart
            store = tenant(url, "memory")
            add(store, a="billing one")
            del store
        for _ in range(2):
            tenant(url, "named", name="mine")
        for name in ("a", "b"):  # guards of one process: many stores may share a quarantine
            guard = Guard([Scripted()], quarantine=Quarantine(url, namespace="docs"))
            GuardedVectorStore(inner, guard=guard, name=name)


def test_one_collection_in_two_frameworks_is_warned_of(url, make_store):
    inner = chroma(make_store)
    name = f"ChromaVectorStore {inner._collection.name}"  # as LlamaIndex names it
    tenant(url, "docs", name=name)
    with pytest.warns(SharedQuarantineWarning, match="one collection in two frameworks") as seen:
        tenant(url, "docs", inner)
    assert the_one(seen, SharedQuarantineWarning).filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        tenant(url, "docs", inner, name=name)


# Entries that were written past the guard


def opened(url):
    return Guard.open(url, detectors=[Scripted()])


def quiet(make):
    """Return what ``make`` returns; a warning of ours is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", StoreDiffersWarning)
        return make()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_opening_warns_of_differences_and_reconcile_repairs_them(kind, make_store, url):
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


def test_comparison_is_skipped_when_switched_off_or_adopting(make_store, url):
    inner = make_store("memory", CountingEmbeddings(), DIM)
    add(GuardedVectorStore(inner, guard=opened(url)), a="billing a")
    inner.add_texts(["billing p"], ids=["p"])
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url), check=False))
    quiet(lambda: GuardedVectorStore.adopt(inner, guard=opened(url), progress=False))
    quiet(lambda: GuardedVectorStore(inner, guard=opened(url)))  # adopted, so that it is known
