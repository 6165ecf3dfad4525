import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from types import SimpleNamespace

import numpy as np
import pytest
from fake_table import DIM, names, rows_of, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from support import through_files
from threadpoolctl import threadpool_info, threadpool_limits

from ragshield_core import state
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.neighbors import index as index_module
from ragshield_core.neighbors import search, threads
from ragshield_core.neighbors.index import NeighborIndex, all_neighbors

TIE = 1e-5


def clustered(n, seed=0, dim=DIM, n_clusters=40):
    rng = np.random.default_rng(seed)
    centers = unit(rng.normal(size=(n_clusters, dim)))
    noise = rng.normal(size=(n, dim)) / np.sqrt(dim)
    return unit(centers[rng.integers(n_clusters, size=n)] + 0.7 * noise)


def index_of(rows, **options):
    index = NeighborIndex(rows.shape[1], **options)
    index.add(names(len(rows)), rows)
    return index


def assert_nearest(found, queries, rows, slots, k):
    """Compare with brute force; entries that are equally near may stand in for each other."""
    truth = queries.astype(np.float64) @ rows.astype(np.float64).T
    n = min(k, len(rows))
    best = -np.sort(-truth, axis=1)[:, :n]
    assert found.slots.shape == found.similarities.shape == (len(queries), k)
    assert found.slots.dtype == np.int64
    assert found.similarities.dtype == np.float32
    np.testing.assert_allclose(found.similarities[:, :n], best, atol=TIE)
    assert (found.slots[:, n:] == -1).all()
    assert np.isneginf(found.similarities[:, n:]).all()
    row_of = {slot: row for row, slot in enumerate(slots)}
    for query, hits in enumerate(found.slots[:, :n].tolist()):
        assert len(set(hits)) == n
        np.testing.assert_allclose(
            truth[query, [row_of[hit] for hit in hits]], best[query], atol=TIE
        )


@pytest.fixture(params=["exact", "lists"])
def kind(request):
    return {"exact_up_to": 10**6 if request.param == "exact" else 0}


@pytest.fixture
def small_chunks(monkeypatch):
    for module, name, value in [
        (index_module, "QUERY_ROWS", 32),
        (search, "CHUNK_ROWS", 32),
        (search, "QUERIES", 8),
        (search, "COMPARED", 7),
    ]:
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 60),
    k=st.integers(1, 70),
    clones=st.integers(0, 20),
    seed=st.integers(0, 1000),
    limit=st.sampled_from([0, 10, 1000]),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "compact"]), st.integers(1, 15)), max_size=8
    ),
)
@pytest.mark.slow
def test_index_matches_brute_force_after_any_changes(n, k, clones, seed, limit, steps):
    rng = np.random.default_rng(seed)
    pool = rows_of(300, seed, dim=5)
    pool[:clones] = pool[0]
    index = NeighborIndex(5, exact_up_to=limit)
    present, handed_out, n_added = {}, set(), 0

    def add(size):
        nonlocal n_added
        start, n_added = n_added, n_added + size
        ids = names(size, f"s{start}-")
        rows = pool[start : start + size]
        slots = index.add(ids, rows).tolist()
        assert not handed_out & set(slots)
        handed_out.update(slots)
        present.update(zip(ids, zip(slots, rows, strict=True), strict=True))

    add(n)
    for step, size in steps:
        if step == "add":
            add(size)
        elif step == "compact":
            before = index.compact().tolist()
            assert before == sorted(slot for slot, _ in present.values())
            number = {slot: new for new, slot in enumerate(before)}
            present = {i: (number[slot], row) for i, (slot, row) in present.items()}
            handed_out = set(range(len(present)))
        else:
            gone = rng.permutation(list(present))[:size].tolist()
            assert index.remove(gone).tolist() == [present.pop(entry_id)[0] for entry_id in gone]
            assert not any(entry_id in index for entry_id in gone)
    rows = np.array([row for _, row in present.values()], dtype=np.float32).reshape(-1, 5)
    slots = [slot for slot, _ in present.values()]
    queries = np.concatenate([rows[:10], rows_of(5, seed + 1, dim=5)])
    assert len(index) == len(present)
    assert index.capacity == len(handed_out)
    assert index.ids_of(slots) == list(present)
    assert index.slots_of(present).tolist() == slots
    np.testing.assert_array_equal(index.vectors(slots), rows)
    if index.exact:
        assert_nearest(index.search(queries, k), queries, rows, slots, k)
    else:  # approximate, but complete, and without removed entries
        found = index.search(queries, k).slots
        assert set(found[found >= 0].tolist()) <= set(slots)
        assert ((found >= 0).sum(axis=1) == min(k, len(rows))).all()


def test_the_nearest_are_found_where_everything_around_the_query_was_removed():
    rows = np.concatenate([clustered(800), unit(rows_of(1, seed=5) + 0.01 * rows_of(150, seed=6))])
    index = index_of(rows, exact_up_to=100)
    index.remove(names(950)[800:])
    found = index.search(rows[800:], 4)
    truth = index_of(rows[:800]).search(rows[800:], 4)
    assert not index.exact
    assert ((found.slots >= 0) & (found.slots < 800)).all()
    assert (found.similarities >= truth.similarities[:, -1:] - 1e-6).mean() >= 0.95


def test_index_switches_at_its_limit_and_back_below_half():
    rows = rows_of(101)
    index = NeighborIndex(DIM, exact_up_to=100)
    index.add(names(100), rows[:100])
    assert index.exact
    index.add(["last"], rows[100:])
    assert index.exact  # one entry does not wait for it
    index.sort()
    assert not index.exact
    index.remove(names(50))
    assert not index.exact
    index.remove(["last"])
    assert index.exact
    assert_nearest(index.search(rows, 3), rows, rows[50:100], range(50, 100), 3)


def test_empty_and_tiny_indexes(kind):
    index = NeighborIndex(DIM, **kind)
    queries = rows_of(2)
    nothing = index.search(queries, 3)
    assert nothing.slots.tolist() == [[-1] * 3] * 2
    assert np.isneginf(nothing.similarities).all()
    assert (len(index), index.capacity) == (0, 0)
    assert index.add([], queries[:0]).tolist() == []
    assert index.remove([]).tolist() == []
    assert index.vectors([]).shape == (0, DIM)
    assert index.ids_of([]) == []
    assert index.slots_of(["x"]).tolist() == [-1]
    index.add(["only"], queries[:1])
    assert index.search(queries, 2).slots.tolist() == [[0, -1]] * 2
    assert index.search(queries[:0], 2).slots.shape == (0, 2)
    restored = NeighborIndex.restored(*through_files(*index.state()))
    assert restored.search(queries, 2).slots.tolist() == [[0, -1]] * 2
    index.remove(["only"])
    assert index.search(queries, 1).slots.tolist() == [[-1], [-1]]
    assert NeighborIndex.restored(*through_files(*index.state())).capacity == 1


def test_state_survives_json_and_npz(kind):
    rows = clustered(600)
    rows[100:140] = rows[100]
    index = index_of(rows, **kind)
    index.remove(names(600)[90:110])
    restored = NeighborIndex.restored(*through_files(*index.state()))
    assert (restored.exact, restored.capacity, len(restored)) == (index.exact, 600, 580)
    before = index.search(rows[:50], 8)
    for each in (index, restored):
        after = each.search(rows[:50], 8)
        np.testing.assert_allclose(before.similarities, after.similarities, atol=TIE)
        assert each.add(["again"], rows[:1]).tolist() == [600]
        assert "again" in each.ids_of(each.search(rows[:1], 2).slots[0])
        each.remove(["again", "e0"])
        assert "e0" not in each


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.values.pop("dim"),
        lambda s: s.values.update(dim=str(DIM)),
        lambda s: s.values.update(dim=DIM + 1),
        lambda s: s.values.update(capacity=59),
        lambda s: s.values.update(capacity=10**15),
        lambda s: s.arrays.update(ids=s.arrays["ids"][1:]),
        lambda s: s.arrays["ids"].__setitem__(0, 0xFF),
        lambda s: s.arrays["ids"].__setitem__(3, ord("0")),  # "e1" becomes "e0"
        lambda s: s.arrays["id_lengths"].__setitem__(0, -1),
        lambda s: s.arrays.pop("vectors"),
        lambda s: s.arrays.update(vectors=s.arrays["vectors"][1:]),
        lambda s: s.arrays.update(vectors=np.where(s.arrays["vectors"] > 0.9, np.nan, 0.0)),
        lambda s: s.arrays["slots"].__setitem__(0, 1),
        lambda s: s.arrays["lists"].__setitem__(0, 60),
        lambda s: s.arrays.update(lists=s.arrays["lists"][1:]),
        lambda s: s.arrays.update(centroids=s.arrays["centroids"][:, 1:]),
        lambda s: s.arrays["centroids"].__setitem__((0, 0), np.nan),
        lambda s: s.values.update(reach=float("nan")),
        lambda s: s.arrays.update(sizes_then=s.arrays["sizes_then"][1:]),
        lambda s: s.arrays.update(sizes_then=s.arrays["sizes_then"].astype(float)),
    ],
)
def test_a_damaged_state_is_refused(change):
    values, arrays = index_of(rows_of(60), exact_up_to=10).state()
    change(SimpleNamespace(values=values, arrays=arrays))
    with pytest.raises(state._DAMAGE):
        NeighborIndex.restored(values, arrays)


def held_out_recall(index, queries, k=16):
    truth = -np.sort(-(queries @ index.vectors(index.present).T), axis=1)[:, k - 1 : k]
    return (index.search(queries, k).similarities >= truth - 1e-6).mean()


@pytest.mark.parametrize("noise", [0.3, 0.7, 3.0])
@pytest.mark.slow
def test_outside_queries_reach_the_promised_recall(noise):
    rng = np.random.default_rng(1)
    centers = unit(rng.normal(size=(60, 32)))
    rows = unit(
        centers[rng.integers(60, size=6000)] + noise * rng.normal(size=(6000, 32)) / np.sqrt(32)
    )
    index = index_of(rows[300:], exact_up_to=0)
    assert held_out_recall(index, rows[:300]) >= 0.98


@pytest.mark.slow
def test_lists_follow_an_index_that_grows_topic_by_topic():
    rng = np.random.default_rng(2)
    topics = unit(rng.normal(size=(30, 32)))
    index = NeighborIndex(32, exact_up_to=500)
    batches = []
    for number, topic in enumerate(topics):
        rows = unit(topic + rng.normal(size=(400, 32)) / np.sqrt(32))
        batches.append(rows[:10])
        index.add(names(390, f"t{number}-"), rows[10:])
    assert held_out_recall(index, np.concatenate(batches)) >= 0.98


@pytest.mark.slow
def test_incoming_copies_do_not_retrain_the_lists_every_time(monkeypatch):
    sorted_ = []
    trained = search.InvertedLists.trained
    monkeypatch.setattr(
        search.InvertedLists, "trained", lambda *given: [sorted_.append(1), trained(*given)][1]
    )
    rows = rows_of(2000)
    index = index_of(rows, exact_up_to=100)
    for number in range(60):
        index.add(names(100, f"copy{number}-"), np.repeat(rows[:1], 100, axis=0))
    assert len(sorted_) <= 5
    found = index.search(rows[1:2], 3)
    np.testing.assert_allclose(found.similarities[0, 0], 1.0, atol=1e-6)


def test_few_new_entries_leave_the_lists_to_later_until_these_are_overdue():
    rows = rows_of(1_000)
    index = NeighborIndex(DIM, exact_up_to=100)
    for start in range(0, 200, 10):
        index.add(names(10, f"s{start}-"), rows[start : start + 10])
    assert index.exact
    index.add(["overdue"], rows[200:201])
    assert not index.exact
    then = index._n_sorted
    for start in range(300, 780, 10):  # nearly four times as many
        index.add(names(10, f"s{start}-"), rows[start : start + 10])
    assert index._n_sorted == then
    restored = NeighborIndex.restored(*through_files(*index.state()))
    for each in (index, restored):  # a restored one knows how long its lists were
        each.sort()
        assert each._n_sorted == len(each) > 3 * then
    index.add(names(1_000, "many"), rows[:1_000])  # these do not wait
    assert index._n_sorted == len(index)


@pytest.mark.parametrize("removed", [0, 3, 40])
def test_lists_that_a_copy_has_made_are_taken_over(removed):
    rows = clustered(1_500)
    index = NeighborIndex(DIM, exact_up_to=700)
    for start in range(0, 1_000, 50):
        index.add(names(50, f"s{start}-"), rows[start : start + 50])
    copy = NeighborIndex.restored(*through_files(*index.state()))
    assert not copy.exact
    index.add(names(90, "later"), rows[1_000:1_090])
    index.remove([f"s100-{n}" for n in range(removed)])
    assert index.exact
    truth = index.search(rows[1_090:], 5)
    index.take_lists(*index.lists_from(copy))
    assert not index.exact
    found = index.search(rows[1_090:], 5)
    assert (found.similarities >= truth.similarities[:, -1:] - TIE).mean() >= 0.98
    later = index.search(rows[1_000:1_090], 1)
    assert index.ids_of(later.slots[:, 0]) == names(90, "later")
    assert index.lists_from(copy) == ({}, {})  # it has them


def test_lists_of_a_copy_are_left_if_entries_were_renumbered_since():
    index = index_of(rows_of(60), exact_up_to=100)
    index.exact_up_to = 20
    copy = NeighborIndex.restored(*through_files(*index.state()))
    index.remove(names(60)[:5])
    assert index.lists_from(copy)[0]
    index.compact()
    assert index.lists_from(copy) == ({}, {})


def test_lent_vectors_stay_as_they_are():
    rows = rows_of(400)
    index = index_of(rows[:300])
    index.add(["room"], rows[300:301])  # from now on there is room for more
    index.remove(["room"])
    vectors = index.state()[1]["vectors"]
    index.add(names(20, "new"), rows[301:321])
    index.remove(names(10))
    index.add(["again"], rows[:1])
    index.remove(names(20)[10:])
    np.testing.assert_array_equal(vectors[:300], rows[:300])
    assert np.isnan(vectors[300:]).all()  # nothing is left of a removed entry
    with pytest.raises(ValueError, match="read-only"):
        vectors[0] = 0.0
    np.testing.assert_array_equal(index.vectors(index.slots_of(["again"])), rows[:1])


def test_few_remaining_entries_are_all_found():
    rows = clustered(3000)
    index = index_of(rows, exact_up_to=20)
    index.remove(names(3000)[30:])
    assert not index.exact
    assert len(index.lists.centroids) < 10  # sorted again
    assert_nearest(index.search(rows[:50], 40), rows[:50], rows[:30], range(30), 40)


def blas_threads():
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]


@pytest.mark.slow
def test_in_threads_limits_blas_and_restores_it_afterwards():
    with threadpool_limits(limits=3, user_api="blas"):
        usual = blas_threads()
        inside, threads_ = [], set()
        all_there = threading.Barrier(3)

        def note(item):
            inside.append(max(blas_threads()))
            if threading.get_ident() not in threads_:
                threads_.add(threading.get_ident())
                all_there.wait(timeout=60)  # lets the others begin
            return item

        assert threads.in_threads(note, range(40)) == list(range(40))
        assert set(inside) == {1}
        assert len(threads_) == 3
        assert threads.in_threads(str, range(2)) == ["0", "1"]
        assert blas_threads() == usual
        with pytest.raises(ZeroDivisionError):
            threads.in_threads(lambda item: 1 // item, range(40))
        assert blas_threads() == usual


def test_threads_have_the_context_of_the_caller():
    who = ContextVar("who", default="nobody")
    who.set("caller")
    with threadpool_limits(limits=2, user_api="blas"):
        assert set(threads.in_threads(lambda _: who.get(), range(40))) == {"caller"}


@pytest.mark.slow
def test_concurrent_searches_agree_and_restore_blas_threads():
    rows = clustered(3000)
    index = index_of(rows, exact_up_to=0)
    truth = index.search(rows[:200], 5)
    with threadpool_limits(limits=2, user_api="blas"):
        usual = blas_threads()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: index.search(rows[:200], 5), range(12)))
        assert blas_threads() == usual
    for each in found:
        np.testing.assert_array_equal(each.slots, truth.slots)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("clones", [0, 900])
@pytest.mark.slow
def test_all_neighbors_by_lists_nearly_match_all_pairs(monkeypatch, clones):
    monkeypatch.setattr(index_module, "EXACT_UP_TO", 100)
    rows = clustered(2000)
    rows[:clones] = rows[:1]
    found = all_neighbors(rows, 10)
    products = rows @ rows.T
    np.fill_diagonal(products, -np.inf)
    truth = -np.sort(-products, axis=1)[:, 9:10]
    assert (found.similarities >= truth - 1e-5).mean() >= 0.98
    assert not (found.slots == np.arange(2000)[:, None]).any()
    np.testing.assert_allclose(
        np.take_along_axis(products, found.slots, 1), found.similarities, atol=TIE
    )


def test_errors_name_the_id_and_change_nothing(kind):
    rows = rows_of(5)
    index = index_of(rows[:3], **kind)
    wrong = rows[3:5].copy()
    wrong[1] *= 2
    not_a_number = rows[3:5].copy()
    not_a_number[0, 0] = np.nan
    for ids, given_rows, message in [
        (["new", "e1"], rows[3:5], "'e1' is in this index already"),
        (["new", "new"], rows[3:5], "'new' is duplicated"),
        (["new"], rows[3:5], "2 rows for 1 ids"),
        (["new", "long"], wrong, r"embeddings\[1\] \(entry 'long'\) has L2 norm 2.000"),
        (["odd", "new"], not_a_number, "entry 'odd'"),
        (["new"], rows_of(1, dim=DIM + 1), rf"expected \(n, {DIM}\)"),
        (["new"], rows[3:4].astype(np.float64), "float64"),
    ]:
        with pytest.raises(InvalidBatchError, match=message):
            index.add(ids, given_rows)
    for ids, message in [(["e0", "nobody"], "'nobody'"), (["e0", "e0"], "'e0' is duplicated")]:
        with pytest.raises(InvalidBatchError, match=message):
            index.remove(ids)
    assert (len(index), index.capacity) == (3, 3)
    index.remove(["e1"])
    for slots in ([1], [3], [-1], [0, 99]):
        with pytest.raises(InvalidBatchError, match="holds no entry"):
            index.vectors(slots)
        with pytest.raises(InvalidBatchError, match=f"slot {slots[-1]} holds no entry"):
            index.ids_of(slots)
    with pytest.raises(InvalidBatchError, match="expected"):
        index.search(rows_of(1, dim=3), 1)
    with pytest.raises(InvalidBatchError, match="k is 0"):
        index.search(rows, 0)


@pytest.mark.parametrize("options", [{"dim": 0}, {"dim": 4, "exact_up_to": -1}])
def test_impossible_parameters_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        NeighborIndex(**options)


@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(0, 150), k=st.integers(1, 40), clones=st.integers(0, 60), seed=st.integers(0, 99)
)
@pytest.mark.slow
def test_all_neighbors_are_those_of_brute_force_without_the_row_itself(n, k, clones, seed):
    rows = rows_of(n, seed, dim=4)
    rows[:clones] = rows[:1]
    found = all_neighbors(rows, k)
    for row in range(n):
        others = np.delete(np.arange(n), row)
        one = search.Neighbors(found.slots[[row]], found.similarities[[row]])
        assert_nearest(one, rows[[row]], rows[others], others.tolist(), k)
    assert not (found.slots == np.arange(n)[:, None]).any()


@pytest.mark.slow
def test_importing_the_core_does_not_load_faiss():
    code = "import sys, ragshield_core.neighbors.index; sys.exit('faiss' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
