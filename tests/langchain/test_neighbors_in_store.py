"""Neighbours found by real inner stores."""

import asyncio

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from packaging.version import Version
from support import PASSAGE_DIM, group, passages, slowly

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.errors import NeighborsError
from ragshield_core.store import postgres_vectors
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to

KINDS = ["qdrant", *slowly("postgres", "pgvectorstore", "newer postgres", "newer pgvectorstore")]
KNOWN = passages(240, 1)
BAD = group(6, 3)
MODEL = DeterministicFakeEmbedding(size=PASSAGE_DIM)


def new_guard(url="sqlite://"):
    return Guard([CliqueDetector()], quarantine=Quarantine(url))


def add(store, batch):
    metadatas = [{"source": lineage} for lineage in batch.lineages]
    pairs = zip(batch.texts, batch.vectors.tolist(), strict=True)
    return store.add_embeddings(pairs, metadatas, list(batch.ids))


def fill(inner, batch=KNOWN):
    access_to(inner).write(batch, [{"source": lineage} for lineage in batch.lineages])
    return inner


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def adopted(inner, **settings):
    return GuardedVectorStore.adopt(
        inner, guard=new_guard(), progress=False, neighbors="store", **settings
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_finds_the_nearest_by_cosine(kind, make_store):
    table = access_to(fill(make_store(kind, MODEL, PASSAGE_DIM))).table
    queries = BAD.embeddings
    found = table.search(queries, 10)
    cosines = queries @ KNOWN.embeddings.T
    for query, rows in enumerate(found.rows):
        best = np.argsort(-cosines[query])[:10]
        assert {found.ids[row] for row in rows} == {KNOWN.ids[row] for row in best}
    row_of = {entry_id: row for row, entry_id in enumerate(KNOWN.ids)}
    expected = KNOWN.embeddings[[row_of[i] for i in found.ids]]
    np.testing.assert_allclose(unit(found.vectors), expected, atol=1e-6)
    assert len(set(found.ids)) == len(found.ids)


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_gives_vectors_by_id(kind, make_store):
    table = access_to(fill(make_store(kind, MODEL, PASSAGE_DIM))).table
    wanted = [KNOWN.ids[5], "nobody", KNOWN.ids[0]]
    ids, vectors = table.vectors(wanted)
    assert sorted(ids) == sorted([KNOWN.ids[0], KNOWN.ids[5]])
    expected = KNOWN.embeddings[[KNOWN.ids.index(i) for i in ids]]
    np.testing.assert_allclose(unit(vectors), expected, atol=1e-6)
    assert table.vectors(["nobody"])[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("newer", ["", "newer "])
def test_other_collections_of_a_table_are_not_seen_and_do_not_crowd_out(
    newer, make_store, request, monkeypatch
):
    from langchain_postgres import PGVector  # noqa: PLC0415
    from sqlalchemy import NullPool, create_engine, text  # noqa: PLC0415

    # So that the index is used, small as the table is.
    options = {"poolclass": NullPool, "connect_args": {"options": "-c enable_seqscan=off"}}
    url = request.getfixturevalue(f"{newer.strip()}_postgres_url".strip("_"))
    mine = PGVector(MODEL, connection=url, collection_name="mine", engine_args=options)
    fill(mine, KNOWN.take(range(30)))
    near = BAD.embeddings[:1] + np.random.default_rng(0).normal(0, 1e-3, (300, PASSAGE_DIM))
    others = passages(300, 5, "other")
    fill(make_store(f"{newer}postgres", MODEL, PASSAGE_DIM), type(others).of(
        ids=others.ids, texts=others.texts, embeddings=near, lineages=others.lineages))  # fmt: skip
    engine = create_engine(url)
    index = (
        "CREATE INDEX stored_neighbors ON langchain_pg_embedding USING hnsw "
        f"((embedding::vector({PASSAGE_DIM})) vector_cosine_ops)"
    )
    with engine.begin() as connection:
        connection.execute(text(index))
        version = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        goes_on = Version(connection.scalar(text(version))) >= Version("0.8")
    monkeypatch.setattr(postgres_vectors, "FEW", 0)  # as if there were many rows
    compared, joined = [], postgres_vectors._joined
    monkeypatch.setattr(
        postgres_vectors, "_joined", lambda *parts: compared.append(parts) or joined(*parts)
    )
    try:
        found = access_to(mine).table.search(BAD.embeddings[:1], 12)
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP INDEX stored_neighbors"))
        engine.dispose()
        mine.delete_collection()
    best = np.argsort(-(KNOWN.embeddings[:30] @ BAD.embeddings[0]))[:12]
    assert {found.ids[row] for row in found.rows[0]} == {KNOWN.ids[row] for row in best}
    # If pgvector goes on searching, it finds entries past the filter; else all are compared.
    assert len(compared) == (0 if goes_on else 1)
    assert goes_on or not newer


@pytest.mark.slow
def test_few_rows_behind_an_index_that_others_share_are_all_compared(
    make_store, newer_postgres_url, monkeypatch
):
    from langchain_postgres import PGVector  # noqa: PLC0415
    from sqlalchemy import NullPool, create_engine, text  # noqa: PLC0415

    # So that the index is used for all that it can be used for, small as the table is.
    forced = "-c enable_seqscan=off -c enable_sort=off"
    options = {"poolclass": NullPool, "connect_args": {"options": forced}}
    url = newer_postgres_url
    mine = PGVector(MODEL, connection=url, collection_name="few", engine_args=options)
    rng = np.random.default_rng(0)
    few, many, queries = (
        unit(rng.standard_normal((n, PASSAGE_DIM))).astype(np.float32) for n in (100, 2_000, 50)
    )
    for store, prefix, rows in (
        (mine, "few", few),
        (make_store("newer postgres", MODEL, PASSAGE_DIM), "many", many),
    ):
        ids = [f"{prefix}-{row}" for row in range(len(rows))]
        access_to(store).write(
            type(KNOWN).of(ids=ids, texts=ids, embeddings=rows), [{} for _ in ids]
        )
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE INDEX few_and_many ON langchain_pg_embedding USING hnsw "
                f"((embedding::vector({PASSAGE_DIM})) vector_cosine_ops) "
                "WITH (m = 2, ef_construction = 4)"  # misses much, as if there were a million rows
            )
        )
    best = np.argsort(-(queries @ few.T))[:, :16]

    def recall(table):
        table.ef_search = 16
        found = table.search(queries, 16)
        names = [{found.ids[row] for row in rows if row >= 0} for rows in found.rows]
        right = [{f"few-{row}" for row in rows} for rows in best.tolist()]
        return np.mean([len(a & b) / 16 for a, b in zip(names, right, strict=True)])

    try:
        exact = recall(access_to(mine).table)
        monkeypatch.setattr(postgres_vectors, "FEW", 0)
        by_index = recall(access_to(mine).table)
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP INDEX few_and_many"))
        engine.dispose()
        mine.delete_collection()
    assert exact == 1.0
    assert by_index < 0.9  # the share that the index finds if it goes on searching


@pytest.mark.slow
def test_all_rows_are_compared_until_there_are_many_and_again_much_later(make_store, monkeypatch):
    monkeypatch.setattr(postgres_vectors, "FEW", 100)
    monkeypatch.setattr(postgres_vectors, "RECOUNT", 3)
    read, found, count = [], postgres_vectors._found, postgres_vectors._count

    def seen(*given, at_most=None):
        answer = found(*given, at_most=at_most)
        read.append(None if at_most is None else answer[1])
        return answer

    monkeypatch.setattr(postgres_vectors, "_found", seen)
    monkeypatch.setattr(
        postgres_vectors, "_count", lambda *asked: read.append("counted") or count(*asked)
    )
    inner = make_store("postgres", MODEL, PASSAGE_DIM)
    table = access_to(fill(inner, KNOWN.take(range(90)))).table
    for _ in range(3):
        table.search(BAD.embeddings, 4)
    assert read == [90, 90, 90]  # in one statement each
    fill(inner, KNOWN.take(range(90, 240)))
    for _ in range(5):
        assert (table.search(BAD.embeddings, 4).rows >= 0).all()
    assert read[3:] == [101, None, None, None, None, 101, None]


@pytest.mark.slow
@pytest.mark.parametrize("ids", ["TEXT", "UUID"])
def test_ids_of_a_table_may_be_uuids(ids, make_store):
    import uuid  # noqa: PLC0415

    names = [str(uuid.UUID(int=number)) for number in range(240)]
    known = type(KNOWN).of(ids=names, texts=KNOWN.texts, embeddings=KNOWN.embeddings)
    table = access_to(fill(make_store("pgvectorstore", MODEL, PASSAGE_DIM, ids=ids), known)).table
    assert table.vectors([names[3], "no-uuid"])[0] == [names[3]]
    assert set(table.search(BAD.embeddings, 4).ids) <= set(names)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_decisions_are_those_of_vectors_in_memory(kind, make_store):
    inner = make_store(kind, MODEL, PASSAGE_DIM)
    store = adopted(fill(inner))
    memory = GuardedVectorStore.adopt(
        fill(make_store("memory", MODEL, PASSAGE_DIM)), guard=new_guard(), progress=False
    )
    detector = store.guard.detectors[0]
    assert (store.guard.state.where, memory.guard.state.where) == ("store", "memory")
    assert detector.n_local == 0
    for batch in (passages(30, 9, "m"), BAD, group(4, 8, "late")):
        for one in (store, memory):
            add(one, batch)
        found = [[d.verdict for d in one.last_report.decisions] for one in (store, memory)]
        assert found[0] == found[1]
    assert {d.verdict for d in memory.last_report.decisions} == {"quarantine"}
    store.guard.state.let_go()
    assert detector.n_local == store.quarantine.count() > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_reopened_guard_decides_alike_with_neighbors_in_the_store(kind, make_store, tmp_path):
    inner, url = fill(make_store(kind, MODEL, PASSAGE_DIM)), f"sqlite:///{tmp_path}/guard.db"
    first = GuardedVectorStore.adopt(
        inner,
        guard=Guard.open(url, detectors=[CliqueDetector()]),
        progress=False,
        neighbors="store",
    )
    add(first, passages(20, 30, "new"))
    second = Guard.open(url)
    assert second.state.where == "store"
    with pytest.raises(NeighborsError, match=r"not at hand.*GuardedVectorStore\(store, guard"):
        second.screen(BAD)
    second = GuardedVectorStore(inner, guard=second)
    second.guard.state.let_go()
    assert second.guard.detectors[0].n_local == second.quarantine.count()
    expected, report = first.guard.screen(BAD), second.guard.screen(BAD)
    np.testing.assert_allclose(report.scores["clique"], expected.scores["clique"], atol=1e-4)
    assert len(report.quarantined) == len(expected.quarantined) == len(BAD)
    for one in (first, second):
        one.guard.close()


@pytest.mark.slow
def test_a_saved_guard_finds_neighbours_in_its_store_again(make_store, tmp_path):
    inner = fill(make_store("qdrant", MODEL, PASSAGE_DIM))
    store = adopted(inner)
    expected = store.guard.screen(BAD)
    store.guard.save(tmp_path)
    guard = Guard.load(tmp_path, quarantine=Quarantine("sqlite://"))
    with pytest.raises(NeighborsError, match="not at hand"):
        guard.learn(BAD)
    again = GuardedVectorStore(inner, guard=guard)
    np.testing.assert_array_equal(
        again.guard.screen(BAD).scores["clique"], expected.scores["clique"]
    )
    assert "QdrantVectorStore" in again.guard.status().neighbors


@pytest.mark.slow
def test_an_existing_guard_moves_to_the_store_and_back(make_store):
    inner = fill(make_store("qdrant", MODEL, PASSAGE_DIM))
    guard = new_guard()
    GuardedVectorStore.adopt(inner, guard=guard, progress=False)
    assert guard.detectors[0].n_local == len(KNOWN)
    GuardedVectorStore(inner, guard=guard, neighbors="store")
    assert guard.detectors[0].n_local == 0
    GuardedVectorStore(inner, guard=guard, neighbors="memory")
    assert guard.state.where == "memory"


def test_store_without_neighbor_search_is_refused():
    inner = InMemoryVectorStore(MODEL)
    with pytest.raises(TypeError, match="cannot be found in InMemoryVectorStore, expected PGVec"):
        GuardedVectorStore(inner, guard=new_guard(), neighbors="store")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "pgvectorstore"])
def test_async_writes_work_with_neighbors_in_the_store(kind, make_store, postgres_url):
    async def work():
        from langchain_postgres import PGVector  # noqa: PLC0415
        from sqlalchemy import NullPool  # noqa: PLC0415

        if kind == "postgres":
            inner = PGVector(
                MODEL, connection=postgres_url, collection_name="loop", async_mode=True,
                engine_args={"poolclass": NullPool}, pre_delete_collection=True,
            )  # fmt: skip
        else:
            inner = make_store("pgvectorstore", MODEL, PASSAGE_DIM)
        store = GuardedVectorStore(inner, guard=new_guard(), neighbors="store")
        some = KNOWN.take(range(150))
        documents = [Document(id=e.id, page_content=e.text) for e in some]
        await store.aadd_documents(documents)
        await store.aadd_documents([Document(id="late", page_content="of another topic")])
        assert store.guard.state.where == "store"
        assert "late" in store.guard.writes.known(["late"])
        await store.adelete([*some.ids, "late"])

    asyncio.run(work())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_held_entry_counts_as_a_neighbour(kind, make_store):
    store = adopted(fill(make_store(kind, MODEL, PASSAGE_DIM)))
    alone = store.guard.screen(BAD.take([5])).scores["clique"][0]
    add(store, BAD.take(range(5)))
    assert store.quarantine.count() == 5
    assert store.guard.screen(BAD.take([5])).scores["clique"][0] > alone + 1
    assert not access_to(store.inner).table.vectors(list(BAD.ids))[0]
