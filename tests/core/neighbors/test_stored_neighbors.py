"""Neighbours in a store: the same answers as from memory, and errors that name the store."""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest
from fake_table import DIM, FakeTable, names, rows_of, unit
from hypothesis import given, settings
from hypothesis import strategies as st
from support import clones_of, group, guard_of, join, loaded, passages, saved, through_files

from ragshield_core import Guard, state
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
from ragshield_core.model.errors import InvalidBatchError, NeighborsError
from ragshield_core.neighbors import stored
from ragshield_core.neighbors.index import NeighborIndex
from ragshield_core.neighbors.stored import StoredIndex

KNOWN = passages(600, 1)


def pair(n, seed=0):
    """Return an index in memory and one of the same entries in the store."""
    rows = rows_of(n, seed)
    ids = names(n)
    memory = NeighborIndex(DIM)
    memory.add(ids, rows)
    table = FakeTable(zip(ids, rows, strict=True))
    index = StoredIndex(DIM, table)
    index.add(ids, rows)
    return memory, index, table


def assert_same(found, expected):
    np.testing.assert_allclose(found.similarities, expected.similarities, atol=1e-6)
    np.testing.assert_array_equal(found.slots, expected.slots)


# The index


def test_stored_vectors_leave_memory_and_are_found_remotely():
    memory, index, table = pair(50)
    assert index.n_local == 50
    assert index.let_go() == 50
    assert index.n_local == 0
    queries = rows_of(5, seed=1)
    table.asked.clear()
    assert_same(index.search(queries, 6), memory.search(queries, 6))
    assert table.asked == ["search"]  # one round trip


def test_vectors_of_the_last_search_cost_no_second_round_trip():
    memory, index, table = pair(50)
    index.let_go()
    found = index.search(rows_of(5, seed=1), 6).slots.ravel()
    table.asked.clear()
    np.testing.assert_array_equal(index.vectors(found), memory.vectors(found))
    assert not table.asked
    others = np.setdiff1d(np.arange(50), found)
    np.testing.assert_array_equal(index.vectors(others), memory.vectors(others))
    assert table.asked == ["vectors"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aarlwc"), st.integers(0, 30)), max_size=40))
@pytest.mark.slow
def test_stored_index_matches_the_index_in_memory(steps):
    rows = rows_of(31, seed=3)
    memory, table = NeighborIndex(DIM), FakeTable()
    index = StoredIndex(DIM, table)
    for step, number in steps:
        name = f"e{number}" if number % 3 else f"e{number}\0held\0x"
        vector = rows[number : number + 1]
        if step == "a" and name not in memory:
            np.testing.assert_array_equal(index.add([name], vector), memory.add([name], vector))
        elif step == "r" and name in memory:
            np.testing.assert_array_equal(index.remove([name]), memory.remove([name]))
        elif step == "w" and "\0" not in name:  # written: known here or not
            table.rows[name] = vector[0] * 3.0
        elif step == "l":
            index.let_go()
        elif step == "c":
            np.testing.assert_array_equal(index.compact(), memory.compact())
        assert len(index) == len(memory)
        assert index.capacity == memory.capacity
        assert index.sparse == memory.sparse
        if len(memory):
            k = min(5, len(memory))
            assert_same(index.search(rows[:4], k), memory.search(rows[:4], k))
            slots = memory.slots_of(memory.ids)
            assert index.ids_of(slots) == memory.ids
            np.testing.assert_allclose(index.vectors(slots), memory.vectors(slots), atol=1e-6)


def test_vector_of_another_stored_revision_stays_in_memory():
    memory, index, table = pair(20)
    table.rows["e3"] = -table.rows["e3"]
    assert index.let_go() == 19
    assert_same(index.search(rows_of(5, seed=1), 4), memory.search(rows_of(5, seed=1), 4))
    table.rows["e3"] = -table.rows["e3"]
    assert index.let_go() == 1


def test_half_precision_vectors_count_as_equal():
    _, index, table = pair(20)
    table.rows = {i: row.astype(np.float16) for i, row in table.rows.items()}
    assert index.let_go() == 20


def test_unknown_stored_entries_are_skipped_without_losing_neighbors():
    memory, index, table = pair(40)
    index.let_go()
    query = rows_of(1, seed=5)
    others = unit(query + 0.001 * rows_of(300, seed=6))  # all of them nearer than any known one
    table.rows |= dict(zip(names(300, "new"), others, strict=True))
    assert_same(index.search(query, 5), memory.search(query, 5))


def test_entries_missing_from_the_store_are_logged_without_vectors(caplog):
    _, index, table = pair(10)
    index.let_go()
    del table.rows["e4"]
    with caplog.at_level(logging.WARNING):
        vectors = index.vectors([4, 5])
    assert not vectors[0].any()
    assert vectors[1].any()
    assert "1 entries that are known are not in the store 'Fake docs' any more" in caplog.text


@pytest.mark.parametrize("ask", ["search", "vectors"])
def test_a_store_that_does_not_answer_is_an_error_that_names_it(ask):
    _, index, table = pair(10)
    index.let_go()
    table.down = True
    call = {"search": lambda: index.search(rows_of(2), 3), "vectors": lambda: index.vectors([1])}
    with pytest.raises(NeighborsError, match=r"'Fake docs' did not answer.*OSError") as caught:
        call[ask]()
    assert "text of an entry" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_vectors_are_kept_as_long_as_the_store_does_not_answer(caplog):
    memory, index, table = pair(10)
    table.down = True
    assert index.let_go() == 0
    assert "vectors are kept in memory for now" in caplog.text
    assert index.n_local == len(memory)
    table.down = False
    assert_same(index.search(rows_of(2), 3), memory.search(rows_of(2), 3))


def test_waiting_vectors_leave_memory_as_others_arrive(monkeypatch):
    monkeypatch.setattr(stored, "LET_GO_AFTER", 10)
    rows, table = rows_of(60), FakeTable()
    index = StoredIndex(DIM, table)
    index._ask_at = 10
    for number in range(60):
        table.rows[f"e{number}"] = rows[number]
        index.add([f"e{number}"], rows[number : number + 1])
    assert index.n_local <= 11


@pytest.mark.slow
def test_threads_may_ask_for_vectors_beside_each_other(monkeypatch):
    monkeypatch.setattr(stored, "REMEMBERED", 40)
    monkeypatch.setattr(stored, "AT_ONCE", 7)
    rows = rows_of(400)
    _, index, _ = pair(400)
    index.let_go()
    rng = np.random.default_rng(0)
    asked = [rng.permutation(400)[:60] for _ in range(300)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for slots, found in zip(asked, pool.map(index.vectors, asked), strict=True):
                np.testing.assert_allclose(found, rows[slots], atol=1e-6)
    finally:
        sys.setswitchinterval(usual)


def test_state_has_no_vectors_but_those_kept_here():
    _, index, table = pair(30)
    index.let_go()
    index.add(["h\0held\0x"], rows_of(1, seed=8))
    index.remove(["e5"])
    values, arrays = index.state()
    assert arrays["local.vectors"].shape == (1, DIM)
    again = StoredIndex.restored(*through_files(values, arrays))
    assert again.store == "Fake docs"
    with pytest.raises(NeighborsError, match="'Fake docs', which is not at hand: wrap that store"):
        again.search(rows_of(1), 1)
    again.connect(table)
    assert_same(again.search(rows_of(6, 2), 5), index.search(rows_of(6, 2), 5))
    assert again.capacity == index.capacity


@pytest.mark.parametrize(
    "damage",
    [
        lambda v, _: v.pop("local"),
        lambda _, a: a.update(id_lengths=a["id_lengths"][1:]),
        lambda _, a: a.update(slots=a["slots"] + 100),
        lambda v, _: v.update(dim=DIM + 1),
    ],
)
def test_a_damaged_state_is_refused(damage):
    _, index, _ = pair(5)
    index.remove(["e0", "e1", "e2", "e3"])
    values, arrays = index.state()
    damage(values, arrays)
    with pytest.raises(state._DAMAGE):
        StoredIndex.restored(values, arrays)


def test_moving_to_a_store_and_back_keeps_answers():
    memory, _, table = pair(40)
    memory.remove(["e3", "e4"])
    index = StoredIndex.of(memory, table)
    assert index.let_go() == 38
    back = index.into_memory()
    expected = NeighborIndex(DIM)
    expected.add(names(40), rows_of(40))
    expected.remove(["e3", "e4"])
    assert back.capacity == 40
    assert_same(back.search(rows_of(5, 7), 6), expected.search(rows_of(5, 7), 6))
    del table.rows["e7"]
    with pytest.raises(NeighborsError, match=r"1 known entries.*'e7'.*reconcile"):
        StoredIndex.restored(*index.state(), table).into_memory()


def test_vectors_of_another_length_are_refused():
    _, index, table = pair(3)
    index.let_go()
    table.rows = {i: row[:-1] for i, row in table.rows.items()}
    with pytest.raises(InvalidBatchError, match="expected rows of 16"):
        index.vectors([0])


# A guard


def beside(table, where="store", known=KNOWN, detectors=None):
    """Return a guard that finds neighbours in a table, or in memory without one."""
    guard = guard_of(*(detectors or [CliqueDetector()]))
    if table is not None:
        table.put(known)
        guard.state.use_table(table, where)
    return guard.fit(known).calibrate()


def decisions(report):
    return [(d.entry_id, d.verdict) for d in report.decisions]


NEW = join(group(4, 50), group(6, 3), passages(60, 9, "m"), clones_of(KNOWN[5], 4))


@pytest.mark.slow
def test_decisions_match_those_with_vectors_in_memory():
    memory, table = beside(None), FakeTable()
    guard = beside(table)
    assert guard.state.where == "store"
    assert guard.detectors[0].n_local == 0
    for new in (NEW, group(5, 70, "late"), passages(40, 12, "n")):
        expected, report = memory.screen(new), guard.screen(new)
        assert decisions(report) == decisions(expected)
        assert any(d.verdict == "quarantine" for d in report.decisions) or new is not NEW
        np.testing.assert_allclose(report.scores["clique"], expected.scores["clique"], atol=1e-4)
        for one, found in ((memory, expected), (guard, report)):
            one.hold(found)
            if one is guard:
                table.put(new.take(found.admitted))
            one.admit(found)
        memory.calibration.refresh()
        guard.calibration.refresh()
    assert guard.calibration.thresholds == pytest.approx(memory.calibration.thresholds, abs=1e-4)
    assert guard.detectors[0].n_local == guard.quarantine.count()


@pytest.mark.slow
def test_unreachable_store_counts_as_a_failing_detector():
    table = FakeTable()
    guard = beside(table)
    table.down, table.asked = True, []
    report = guard.screen(NEW)
    (reason,) = {item.reason for d in report.decisions for item in d.unjudged}
    assert "'Fake docs' did not answer" in reason
    assert table.asked == ["search"]  # parts of the batch are not tried
    assert "'Fake docs'" in guard.status().failing["clique"]
    assert not any(d.verdict == "admit" and not d.unjudged for d in report.decisions)
    table.down = False
    assert decisions(guard.screen(NEW)) == decisions(beside(None).screen(NEW))


@pytest.mark.slow
def test_learning_can_be_retried_after_the_store_was_unreachable():
    table = FakeTable()
    guard, memory = beside(table), beside(None)
    new = passages(20, 30, "new")
    table.down = True
    with pytest.raises(NeighborsError, match="'Fake docs'"):
        guard.learn(new)
    table.down = False
    table.put(new)
    guard.learn(new)
    memory.learn(new)
    assert decisions(guard.screen(NEW)) == decisions(memory.screen(NEW))


@pytest.mark.slow
def test_a_saved_guard_has_no_vectors_and_needs_its_store(tmp_path):
    table = FakeTable()
    guard = beside(table)
    sizes = [sum(map(len, saved(one, tmp_path / str(n)).values()))
             for n, one in enumerate((beside(None), guard))]  # fmt: skip
    assert sizes[0] - sizes[1] > 0.8 * KNOWN.embeddings.nbytes
    again = loaded(tmp_path / "1")
    assert again.state.where == "store"
    assert "'Fake docs', which is not at hand" in again.status().neighbors
    for call in (lambda: again.screen(NEW), lambda: again.learn(NEW), again.calibration.refresh):
        with pytest.raises(NeighborsError, match=r"'Fake docs'.*GuardedVectorStore\(store, guard"):
            call()
    again.state.use_table(table)
    assert decisions(again.screen(NEW)) == decisions(guard.screen(NEW))
    assert "store 'Fake docs'; 0 vectors in memory" in again.status().neighbors


@pytest.mark.parametrize(
    ("detectors", "where", "said"),
    [
        ([LabelCentroidDetector()], "store", r"none of the detectors \(label_centroid\)"),
        ([CliqueDetector()], "disk", "neighbors is 'disk', expected"),
    ],
)
def test_invalid_vector_placement_is_refused(detectors, where, said):
    with pytest.raises(ValueError, match=said):
        guard_of(*detectors).state.use_table(FakeTable(), where)


def test_lost_entries_are_forgotten():
    table = FakeTable()
    known = replace(KNOWN, labels=("ham", "spam") * 300)
    guard = beside(table, known=known, detectors=[CliqueDetector(), LabelCentroidDetector()])
    del table.rows[KNOWN.ids[7]]
    guard.writes.forget_lost([KNOWN.ids[7]])
    assert not guard.writes.known([KNOWN.ids[7]])
    assert KNOWN.ids[7] not in guard.detectors[0]._known.graph.index


# Several workers


@pytest.fixture
def opened(url):
    """Return a way to open one guard again and again, and close all of them in the end."""
    with ExitStack() as guards:

        def again(table=None, where=None, **options):
            guard = guards.enter_context(closing(Guard.open(url, **options)))
            if table is not None:
                guard.state.use_table(table, where)
            return guard

        yield again


@pytest.fixture
def shared(opened):
    """Return the first worker, whose guard is fitted with neighbours in a store, and the store."""
    table = FakeTable()
    table.put(KNOWN)
    first = opened(table, "store", detectors=[CliqueDetector()])
    return first.fit(KNOWN).calibrate(), table


def learn_more(guard, table):
    new = passages(30, 40, "new")
    table.put(new)
    guard.learn(new)


@pytest.mark.slow
def test_workers_that_share_a_guard_find_neighbours_in_one_store(shared, opened):
    first, table = shared
    learn_more(first, table)
    second = opened()
    assert second.state.where == "store"
    with pytest.raises(NeighborsError, match="not at hand"):
        second.screen(NEW)
    assert second.n_known == len(KNOWN)  # later entries wait for the store
    second.state.use_table(table)
    assert decisions(second.screen(NEW)) == decisions(first.screen(NEW))
    assert second.n_known == len(KNOWN) + 30


@pytest.mark.slow
def test_entries_of_other_workers_wait_until_the_store_answers(shared, opened):
    first, table = shared
    second = opened(table)
    learn_more(first, table)
    table.down = True
    with pytest.raises(NeighborsError, match="did not answer"):
        second.screen(NEW)
    table.down = False
    assert decisions(second.screen(NEW)) == decisions(first.screen(NEW))
    assert second.n_known == first.n_known


@pytest.mark.slow
def test_in_memory_worker_loads_state_of_a_store_worker(shared, opened):
    lean, table = shared
    whole = opened(table, "memory")
    assert whole.state.where == "memory"
    lean.calibration.refresh()  # the others load it anew
    assert decisions(whole.screen(NEW)) == decisions(lean.screen(NEW))
    assert whole.state.where == "memory"
