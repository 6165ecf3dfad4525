"""LangChain's indexing API over a guarded store records exactly the stored documents."""

import asyncio
import itertools
import uuid
from dataclasses import replace
from unittest.mock import patch

import pytest
from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.vectorstores import InMemoryVectorStore
from sqlalchemy.pool import NullPool
from store_kinds import KINDS
from support import DIM, CountingEmbeddings, Scripted, group, guard_of, join, passages, slowly

from ragshield_core import PoisonedEntryError
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.errors import MalformedEntriesError
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.indexing import (
    aguarded_index,
    guarded_index,
)

REPLACING = ["incremental", *slowly("full", "scoped_full")]
CLEANUPS = [None, *REPLACING]
SOURCE = {"source_id_key": "source", "key_encoder": "blake2b"}


def doc(text, source="a.txt", **metadata):
    return Document(page_content=text, metadata={"source": source} | metadata)


V1 = [doc("billing one"), doc("billing two"), doc("shipping other", "b.txt")]
# Of the second version of a.txt one chunk is poisoned; b.txt has a harmless one.
V2 = [doc("billing one"), doc("billing two score=9"), doc("shipping new", "b.txt")]
GOOD, BAD, FIXED = "billing two", "billing two score=9", "billing two fixed"


def guarded(guard=None, embedding=None, **policy):
    guard = guard or guard_of(Scripted(), **policy)
    return GuardedVectorStore(InMemoryVectorStore(embedding or CountingEmbeddings()), guard=guard)


class World:
    """A guarded store and a record manager, synchronous or not."""

    def __init__(self, url=None, *, native=False, store=None):
        self.native = native
        self.store = store or guarded()
        if url is None:
            self.records = InMemoryRecordManager("test")
        else:
            from langchain_classic.indexes import SQLRecordManager  # noqa: PLC0415

            self.records = SQLRecordManager(
                "test", db_url=url, async_mode=native, engine_kwargs={"poolclass": NullPool}
            )
        self.either(self.records.create_schema, self.records.acreate_schema)

    def either(self, sync, asynchronous, *args, **kwargs):
        if self.native:
            return asyncio.run(asynchronous(*args, **kwargs))
        return sync(*args, **kwargs)

    def run(self, documents, **options):
        options = SOURCE | options
        done = self.either(
            guarded_index, aguarded_index, documents, self.records, self.store, **options
        )
        return {key: value for key, value in done.items() if key.startswith("num_") and value}

    def naive(self, documents, **options):
        """Index as LangChain does, past the guard."""
        return self.plain(documents, over=self.store.inner, **options)

    def plain(self, documents, over=None, **options):
        """Index as LangChain does, into the guarded store."""
        options = SOURCE | options
        over = over or self.store
        done = self.either(index, aindex, documents, self.records, over, **options)
        return {key: value for key, value in done.items() if value}

    def keys(self):
        return set(self.either(self.records.list_keys, self.records.alist_keys))

    @property
    def live(self):
        return {row["text"] for row in self.store.inner.store.values()}

    @property
    def recorded(self):
        """Return the texts of recorded documents, or the key of each that the store lacks."""
        rows = self.store.inner.store
        return {rows[key]["text"] if key in rows else key for key in self.keys()}

    @property
    def held(self):
        return {item.entry.text: item.id for item in self.store.quarantine.list()}

    @property
    def state(self):
        assert self.recorded == self.live
        return self.live, set(self.held)


# Either kind of record manager, either way to call.
@pytest.fixture(params=["memory", *slowly("sql async")])
def world(request, tmp_path):
    kind, _, native = request.param.partition(" ")
    if kind == "memory":
        return World(native=bool(native))
    scheme = "sqlite+aiosqlite" if native else "sqlite"
    return World(f"{scheme}:///{tmp_path}/records.db", native=bool(native))


# What LangChain's own way would do


@pytest.mark.parametrize("cleanup", CLEANUPS)
def test_plain_index_over_a_guarded_store_is_refused_before_anything_is_lost(world, cleanup):
    world.run(V1, cleanup=cleanup)
    before = world.state
    with pytest.raises(TypeError, match=r"index.*guarded_index\(docs_source"):
        world.plain(V2, cleanup=cleanup)
    assert world.state == before


def test_source_may_write_to_another_guarded_store_during_indexing(world):
    other = guarded()

    def crawled():
        for document in V1:
            other.add_documents([document], ids=["latest"])
            other.delete(["latest"])
            yield document

    assert world.naive(crawled()) == {"num_added": 3}
    assert world.run(crawled()) == {"num_skipped": 3}


# The guarded way


@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.slow
def test_a_rejected_update_is_not_recorded_and_leaves_the_good_version(world, cleanup):
    assert world.run(V1, cleanup=cleanup) == {"num_added": 3}
    counts = {"num_added": 1, "num_skipped": 1, "num_quarantined": 1}
    cleaned = {"num_deleted": 1, "num_rejected_updates": 1} if cleanup else {}
    assert world.run(V2, cleanup=cleanup) == counts | cleaned
    good = {"billing one", GOOD, "shipping new"} | (set() if cleanup else {"shipping other"})
    assert world.state == (good, {BAD})
    # Screened again at the next run, as long as it comes; the id is the one LangChain gives it.
    again = {"num_skipped": 2, "num_quarantined": 1} | (
        {"num_rejected_updates": 1} if cleanup else {}
    )
    assert world.run(V2, cleanup=cleanup) == again
    assert world.state == (good, {BAD})
    unguarded = World()
    unguarded.store = InMemoryVectorStore(CountingEmbeddings())
    index(V2, unguarded.records, unguarded.store, **SOURCE)
    ids = {row["text"]: key for key, row in unguarded.store.store.items()}
    assert world.held == {BAD: ids[BAD]}


@pytest.mark.parametrize("cleanup", ["incremental", "full", "scoped_full"])
@pytest.mark.slow
def test_a_fixed_version_replaces_the_good_one(world, cleanup):
    world.run(V1, cleanup=cleanup)
    world.run(V2, cleanup=cleanup)
    fixed = [V2[0], doc(FIXED), V2[2]]
    assert world.run(fixed, cleanup=cleanup) == {
        "num_added": 1,
        "num_skipped": 2,
        "num_deleted": 1,
    }
    assert world.state == ({"billing one", FIXED, "shipping new"}, set())
    assert world.store.quarantine.count("superseded") == 1  # kept, and nobody has to decide


@pytest.mark.parametrize("cleanup", REPLACING)
@pytest.mark.parametrize("through", ["the store", "the quarantine"])
def test_released_document_is_recorded_and_replaces_the_old_version(world, cleanup, through):
    world.run(V1, cleanup=cleanup)
    world.run(V2, cleanup=cleanup)
    by = {"the store": world.store, "the quarantine": world.store.quarantine}
    by[through].release([world.held[BAD]])
    done = {"num_skipped": 3, "num_deleted": 1}
    if through == "the store":  # at once; the next run has to record it only
        assert world.live == {"billing one", BAD, "shipping new"}
    if through == "the quarantine":  # which writes nothing
        done = {"num_added": 1, "num_skipped": 2, "num_deleted": 1}
    assert world.run(V2, cleanup=cleanup) == done
    assert world.state == ({"billing one", BAD, "shipping new"}, set())
    assert world.run(V2, cleanup=cleanup) == {"num_skipped": 3}


@pytest.mark.parametrize("cleanup", REPLACING)
def test_released_document_is_deleted_once_its_source_changes(world, cleanup):
    world.run(V1, cleanup=cleanup)
    world.run(V2, cleanup=cleanup)
    world.store.release([world.held[BAD]])
    fixed = [V2[0], doc(FIXED), V2[2]]
    assert world.run(fixed, cleanup=cleanup) == {
        "num_added": 1,
        "num_skipped": 2,
        "num_deleted": 2,  # the version before as well
    }
    assert world.state == ({"billing one", FIXED, "shipping new"}, set())


def test_run_leaves_documents_of_other_writers_alone(world):
    world.run(V1, cleanup="full")
    world.store.add_documents([doc("by hand score=9")], ids=["by hand"])
    other = World(native=world.native, store=world.store)
    other.records = InMemoryRecordManager("other")
    other.run([doc("elsewhere score=9", "z.txt")], cleanup="full")
    world.store.release(list(world.held.values()))
    assert world.run(V1, cleanup="full") == {"num_skipped": 3}
    assert world.live == {d.page_content for d in V1} | {"by hand score=9", "elsewhere score=9"}
    assert other.run([], cleanup="full") == {"num_deleted": 1}
    assert world.live == {d.page_content for d in V1} | {"by hand score=9"}


def test_full_cleanup_without_sources_goes_by_lineage(world):
    old = [doc(f"billing old {i}", f"{i}.txt") for i in range(7)]
    world.run(old, cleanup="full", source_id_key=None)
    done = world.run(
        [doc("billing score=9", "3.txt")],
        cleanup="full",
        source_id_key=None,
        cleanup_batch_size=2,
    )
    assert done == {"num_quarantined": 1, "num_rejected_updates": 1, "num_deleted": 6}
    assert world.state == ({"billing old 3"}, {"billing score=9"})


def test_full_cleanup_copes_with_documents_written_past_the_guard(world):
    world.run(V1, cleanup="full", source_id_key=None)
    for row in world.store.inner.store.values():
        row["metadata"] = {"source": ["no", "scalar"]}
    done = world.run([doc("billing score=9")], cleanup="full", source_id_key=None)
    assert done == {"num_quarantined": 1, "num_deleted": 3}


def test_held_document_without_a_source_stops_full_cleanup(world):
    world.run(V1, cleanup="full", source_id_key=None)
    nameless = Document(page_content="billing score=9")
    done = world.run([nameless], cleanup="full", source_id_key=None)
    assert done == {"num_quarantined": 1, "num_rejected_updates": 3}
    assert world.run([V1[0]], cleanup="full", source_id_key=None)["num_deleted"] == 2


def test_a_source_that_is_gone_is_cleaned_up_and_its_held_documents_stay_held(world):
    world.run(V1, cleanup="full")
    world.run(V2, cleanup="full")
    assert world.run([V2[2]], cleanup="full") == {"num_skipped": 1, "num_deleted": 2}
    assert world.state == ({"shipping new"}, {BAD})


def test_an_id_of_the_users_own_keeps_its_good_revision(world):
    own = {"key_encoder": lambda d: d.metadata["source"], "force_update": True, "cleanup": "full"}
    world.run([doc("billing good")], **own)
    assert world.run([doc("billing score=9")], **own) == {"num_quarantined": 1}
    assert world.state == ({"billing good"}, {"billing score=9"})
    assert world.keys() == {"a.txt"}
    world.store.release(["a.txt"])
    assert world.state == ({"billing score=9"}, set())
    assert world.run([doc("billing better")], **own) == {"num_updated": 1}


def test_document_missing_from_the_store_is_added_again(world):
    world.run(V1)
    world.store.delete([next(iter(world.keys()))])
    assert world.naive(V1) == {"num_skipped": 3}, "what LangChain alone makes of it"
    assert world.run(V1) == {"num_added": 1, "num_skipped": 2}
    assert len(world.live) == 3


@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.slow
def test_guarded_index_matches_plain_index_without_poison(world, cleanup):
    twin = World()
    versions = [
        V1,
        [*V1[:2], V1[0], doc("refunds x", "b.txt")],
        [doc("refunds y", "c.txt")],
        [],
    ]
    for documents in versions:
        for options in ({}, {"force_update": True}):
            expected = twin.naive(documents, cleanup=cleanup, **options)
            assert world.run(documents, cleanup=cleanup, **options) == expected
            assert world.state == twin.state


class Loader(BaseLoader):
    def lazy_load(self):
        yield from V2


async def agenerate():
    for document in V2:
        yield document


def test_loaders_and_generators_are_sources(world):
    sources = [Loader(), (document for document in V2)] + ([agenerate()] if world.native else [])
    for source in sources:
        world.run(V1, cleanup="full")
        counts = world.run(source, cleanup="full", batch_size=2)
        assert counts["num_quarantined"] == counts["num_rejected_updates"] == 1
        assert world.state == ({"billing one", GOOD, "shipping new"}, {BAD})


def test_result_carries_only_quarantined_entries():
    world = World()
    documents = [doc(f"billing {i}") for i in range(5)] + [doc(BAD)]
    done = guarded_index(documents, world.records, world.store, batch_size=3, **SOURCE)
    first, second = done["reports"]
    assert first.summary() == "3 entries: 3 admitted, 0 flagged, 0 quarantined"
    assert second.summary() == "3 entries: 2 admitted, 0 flagged, 1 quarantined"
    assert done["num_added"] == 5
    assert done["quarantined"] == [world.held[BAD]]
    assert len(first.batch) == 0
    assert second.batch.ids == (world.held[BAD],)
    (decision,) = second.quarantined
    assert decision.entry_id == world.held[BAD]
    assert second.scores["scripted"].tolist() == [9]
    assert done["num_quarantined"] == 1


def test_on_detect_raise_stops_before_any_cleanup(world):
    world.run(V1, cleanup="full")
    world.store = GuardedVectorStore(
        world.store.inner,
        guard=guard_of(Scripted(), on_detect="raise"),
    )
    with pytest.raises(PoisonedEntryError):
        world.run(V2, cleanup="full")
    assert world.state == ({d.page_content for d in V1}, set())


# Documents that later ones condemn


class Lookup(Embeddings):
    """Gives the passages of a batch their vectors."""

    def __init__(self, batch):
        self._vectors = dict(zip(batch.texts, batch.vectors.tolist(), strict=True))

    def embed_documents(self, texts):
        return [self._vectors[text] for text in texts]

    def embed_query(self, text):
        return self._vectors[text]


def reworded(batch, texts):
    return replace(batch, texts=tuple(texts))


KNOWN, NEW, POISON = passages(300, 1), passages(6, 90, "new"), group(4, 3)


@pytest.fixture(params=["sync", *slowly("async")])
def crowded(request):
    """Return a world whose guard finds groups."""
    guard = guard_of(CliqueDetector())
    guard.fit(KNOWN).calibrate(fpr=0.01)
    return World(native=request.param == "async", store=guarded(guard, Lookup(join(NEW, POISON))))


def passage(batch, row):
    return doc(batch.texts[row], batch.lineages[row])


@pytest.mark.slow
def test_recalled_document_is_no_longer_recorded(crowded):
    clean = [passage(NEW, row) for row in range(6)]
    first, second, third = bad = [passage(POISON, row) for row in range(3)]
    assert crowded.run([*clean, first]) == {"num_added": 7}
    assert crowded.run([second]) == {"num_quarantined": 1}
    assert crowded.run([third]) == {"num_quarantined": 1, "num_recalled": 1}
    assert crowded.state == ({d.page_content for d in clean}, {d.page_content for d in bad})
    assert crowded.run([*clean, *bad]) == {"num_skipped": 6, "num_quarantined": 3}
    crowded.store.release(list(crowded.held.values()))
    assert crowded.run([*clean, *bad], cleanup="full") == {"num_skipped": 9}


@pytest.mark.parametrize("cleanup", REPLACING)
@pytest.mark.slow
def test_an_update_that_is_taken_back_in_the_same_run_leaves_the_good_version(crowded, cleanup):
    lineage = POISON.lineages[0]
    good = doc(NEW.texts[0], lineage)
    crowded.run([good], cleanup=cleanup)
    # The update comes first, and only the next batch exposes it.
    update = [passage(POISON, 0), passage(NEW, 3), passage(POISON, 1), passage(POISON, 2)]
    assert crowded.run(update, cleanup=cleanup, batch_size=1) == {
        "num_added": 2,
        "num_quarantined": 2,
        "num_recalled": 1,
        "num_rejected_updates": 1,
    }
    assert crowded.state[0] == {NEW.texts[0], NEW.texts[3]}


PAGES = [
    group(2, seed, f"page{seed}-", spread=0.05, lineage=f"{seed}.txt") for seed in (1, 2, 4, 6, 7)
]


@pytest.fixture(params=["sync", *slowly("async")])
def paged(request):
    """Return a world whose guard finds groups, also of two, and what says so itself."""
    guard = guard_of(CliqueDetector(), Scripted())
    guard.fit(KNOWN).calibrate(fpr=0.01)
    bad = reworded(group(4, 90, "told"), [f"told {i} score=9" for i in range(4)])
    return World(
        native=request.param == "async", store=guarded(guard, Lookup(join(*PAGES, POISON, bad)))
    )


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("cleanup", REPLACING)
@pytest.mark.slow
def test_group_cannot_trickle_in_beside_held_documents(paged, cleanup, batch_size):
    options = {"cleanup": cleanup, "batch_size": batch_size}
    of_one = [doc(text, "x.txt") for text in POISON.texts]
    assert paged.run([of_one[0]], **options) == {"num_added": 1}
    # Each time something that is held for sure keeps the earlier pieces in the store.
    for n in (1, 2, 3):
        paged.run([of_one[n], doc(f"told {n} score=9", "x.txt")], **options)
    assert len(paged.live & set(POISON.texts)) < 3
    assert paged.recorded == paged.live


@pytest.mark.slow
def test_document_recalled_elsewhere_is_unrecorded_and_stays_held(crowded):
    clean, first = passage(NEW, 0), passage(POISON, 0)
    crowded.run([clean, first])
    others = [passage(POISON, 1), passage(POISON, 2)]
    crowded.store.add_documents(others)  # past the index
    held = {d.page_content for d in (first, *others)}
    assert set(crowded.held) == held
    key = crowded.held[first.page_content]
    assert key in set(crowded.keys())
    assert crowded.run([first]) == {"num_quarantined": 1}
    assert crowded.state[0] == {clean.page_content}
    crowded.records.update([key])
    assert crowded.run([clean], cleanup="full") == {"num_skipped": 1, "num_deleted": 1}
    assert crowded.state == ({clean.page_content}, held)


@pytest.mark.slow
def test_released_document_stays_recorded_when_its_group_is_held(crowded):
    first = passage(POISON, 0)
    crowded.run([first])
    (key,) = crowded.keys()
    quarantine = crowded.store.quarantine
    quarantine.hold(
        type(POISON).of(
            ids=[key],
            texts=[first.page_content],
            embeddings=POISON.vectors[:1],
            lineages=[first.metadata["source"]],
        ),
        by="alice",
    )
    quarantine.release([key], by="alice")
    others = [passage(POISON, 1), passage(POISON, 2)]
    assert crowded.run(others) == {"num_quarantined": 2}
    assert crowded.state == ({first.page_content}, {POISON.texts[1], POISON.texts[2]})


# Other stores


@pytest.mark.parametrize("kind", KINDS[1:])  # that in memory has tests of its own above
@pytest.mark.slow
def test_every_store_kind_indexes_holds_and_releases(kind, make_store):
    def key(document):
        return str(uuid.uuid5(uuid.NAMESPACE_URL, document.page_content))

    guard = guard_of(Scripted())
    store = GuardedVectorStore(make_store(kind, CountingEmbeddings(), DIM), guard=guard)
    world = World(store=store)
    options = {"cleanup": "full", "key_encoder": key}

    def live():
        documents = store.get_by_ids([key(document) for document in (*V1, *V2)])
        assert {document.id for document in documents} == world.keys()
        return {document.page_content for document in documents}

    world.run(V1, **options)
    assert world.run(V2, **options)["num_quarantined"] == 1
    assert live() == {"billing one", GOOD, "shipping new"}
    store.release([world.held[BAD]])
    assert world.run(V2, **options) == {"num_skipped": 3, "num_deleted": 1}
    assert live() == {"billing one", BAD, "shipping new"}


# Runs that are cut short


class Crash(Exception):  # noqa: N818 - as a power cut is none of ours
    pass


def cut_short(world, at):
    """Return patches that raise at the ``at``-th moment before or after a write or a read."""
    moments = itertools.count()

    def tick():
        if next(moments) == at:
            raise Crash

    def wrapped(method):
        def call(*args, **kwargs):
            tick()
            result = method(*args, **kwargs)
            tick()
            return result

        return call

    targets = [(world.records, name) for name in ("update", "delete_keys", "exists", "list_keys")]
    targets += [(world.store, name) for name in ("add_documents", "delete")]
    return [patch.object(on, name, wrapped(getattr(on, name))) for on, name in targets]


@pytest.mark.slow
@pytest.mark.parametrize("cleanup", [None, "incremental", "full", "scoped_full"])
def test_a_run_that_is_cut_short_anywhere_ends_the_same_when_repeated(cleanup):
    def fresh():
        world = World()
        world.run(V1, cleanup=cleanup)
        return world

    options = {"cleanup": cleanup, "batch_size": 2, "cleanup_batch_size": 1}
    expected = fresh()
    expected.run(V2, **options)
    for at in itertools.count():
        world = fresh()
        patches = cut_short(world, at)
        for one in patches:
            one.start()
        try:
            world.run(V2, **options)
        except Crash:
            assert GOOD in world.live
        else:
            break
        finally:
            for one in patches:
                one.stop()
        world.run(V2, **options)
        assert world.state == expected.state, f"cut short at moment {at}"
    assert at > 8


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.slow
def test_malformed_document_is_held_and_its_old_version_stays(native):
    world = World(native=native)
    world.run(V1, cleanup="incremental")
    before = world.live
    odd, other = doc("billing two fixed", label=["x"]), doc("shipping more", "c.txt")
    for _ in range(2):  # alone in its batch
        done = world.run([odd, V1[0], V1[2], other], cleanup="incremental", batch_size=1)
        assert done["num_quarantined"] == 1
        assert world.live == before | {"shipping more"}
    world.store.release([world.held["billing two fixed"]])
    assert "billing two fixed" in world.live
    world.run([odd, V1[0], V1[2], other], cleanup="incremental")
    assert world.live == {"billing one", "billing two fixed", "shipping other", "shipping more"}


@pytest.mark.parametrize("native", [False, True])
def test_document_that_cannot_be_held_is_named_after_indexing(native):
    def encode(document):  # two documents under one id
        return document.metadata.get("key") or str(
            uuid.uuid5(uuid.NAMESPACE_URL, document.page_content)
        )

    world = World(native=native)
    documents = [doc("billing one"), doc("billing\0 two", key="a\0b"), doc("billing three")]
    with pytest.raises(MalformedEntriesError, match="its id"):
        world.run(documents, cleanup="full", key_encoder=encode)
    assert world.live == world.recorded == {"billing one", "billing three"}


@pytest.mark.parametrize("cleanup", REPLACING)
@pytest.mark.slow
def test_poison_in_the_last_batch_rejects_the_whole_update(world, cleanup):
    old = [doc(f"billing old {i}") for i in range(6)]
    new = [doc(f"billing new {i}") for i in range(5)] + [doc("billing score=9")]
    world.run(old, cleanup=cleanup, batch_size=2)
    done = world.run(new, cleanup=cleanup, batch_size=2, cleanup_batch_size=2)
    assert done == {"num_quarantined": 6, "num_rejected_updates": 6}
    assert world.live == {d.page_content for d in old}
    assert world.run(new[:5], cleanup=cleanup, cleanup_batch_size=4)["num_deleted"] == 6
    assert world.state == ({d.page_content for d in new[:5]}, set())
