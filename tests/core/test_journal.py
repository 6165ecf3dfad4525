"""What processes share: a journal that is gapless whoever writes, snapshots that are whole."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from journal_writer import LEASE, Shared, Worker
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from ragshield_core import Batch
from ragshield_core.database.tables import TableBase
from ragshield_core.learning.events import Change, Event
from ragshield_core.model.errors import (
    OvertakenError,
    PrunedError,
    QuarantineError,
    StateError,
    TakenOverError,
)
from ragshield_core.sharing import (
    Journal,
    Snapshots,
    new_writer,
    rows,
    snapshots,
)
from ragshield_core.sharing.rows import from_bytes, now, to_bytes

WRITER = str(Path(__file__).parents[1] / "journal_writer.py")
ON_POSTGRES = pytest.param("on_postgres", marks=pytest.mark.slow)
CIRCULAR: list = []
CIRCULAR.append(CIRCULAR)
HARD = {
    "texts": ["before\0after", "broken \ud83d half", "family 👨‍👩‍👧‍👦", "\x1b[31m", ""],
    "numbers": [0.1, -0.0, 2**70, True, None],
    "nested": {"deep": [{"a": [[]]}], "": {}},
}
ARRAYS = {
    "vectors": np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32),
    "counts": np.arange(3),
    "flags": np.array([True, False, True]),
    "names": np.array(["doc", "", "längeres \U0001f600"]),
    "raw": np.array([b"\x00\xff", b"ab"]),
    "none": np.empty((0, 4), np.float32),
    "one": np.array(1.5),
}


@pytest.fixture(params=["on_file", ON_POSTGRES])
def url(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def shared(url):
    """An empty database with the tables."""
    opened = Shared(url)
    yield opened
    opened.engine.dispose()


@pytest.fixture
def journal():
    return Journal("ours", lease=LEASE)


def append(shared, journal, *given, writer="w", expected=None, pending=False):
    """Append events in a transaction of their own."""
    return shared.write(
        lambda s: journal.append(
            s, given, writer=writer, expected=expected, pending=[pending] * len(given)
        )
    )


def learned(number=0):
    return Event(change=Change.LEARNED, ids=(str(number),))


def forgotten(number=0):
    return Event(change=Change.FORGOTTEN, ids=(str(number),))


def batch(*texts, **columns):
    ids = [f"e{n}" for n in range(len(texts))]
    return Batch.of(
        ids=ids, texts=texts, embeddings=[[1.0, n] for n in range(len(texts))], **columns
    )


def sql(shared, statement, **values):
    """Change the database behind the journal's back."""
    assert shared.write(lambda s: s.execute(text(statement), values).rowcount) > 0


def age(shared, writer, seconds=LEASE + 1):
    """Make a writer's last sign of life older."""
    table = "ragshield_journal_writers"
    sql(
        shared,
        f"UPDATE {table} SET heartbeat = heartbeat - :s WHERE writer = :w",  # noqa: S608
        s=seconds,
        w=writer,
    )


def pending(shared, journal):
    return [(each.position, each.writer) for each in shared.read(journal.pending)]


def abandoned(shared, journal):
    found = shared.read(journal.pending)
    return [(each.position, each.writer) for each in found if not each.alive]


def numbers(records):
    return [int(*record.event.ids) for record in records]


def same_arrays(one, other):
    assert list(one) == list(other)
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
        assert array.tobytes() == other[name].tobytes()


# Events


def test_events_come_back_in_order_and_whole(shared, journal):
    assert shared.read(journal.head) == 0
    assert shared.read(lambda s: journal.since(s, 0)) == ()
    entries = batch(*HARD["texts"], metadatas=[HARD["nested"]] * 5)
    first = append(shared, journal, Event(change=Change.LEARNED, entries=entries), writer="a")
    rest = append(shared, journal, forgotten(), learned(7), writer="b", expected=1)
    assert (list(first), list(rest)) == ([1], [2, 3])
    one, two, three = shared.read(lambda s: journal.since(s, 0))
    assert [(r.position, r.writer, r.event.change) for r in (one, two, three)] == [
        (1, "a", "learned"),
        (2, "b", "forgotten"),
        (3, "b", "learned"),
    ]
    assert (one.event.entries.texts, one.event.entries.metadatas) == (
        entries.texts,
        entries.metadatas,
    )
    np.testing.assert_array_equal(one.event.entries.vectors, entries.vectors)
    assert one.at <= two.at
    assert shared.read(journal.head) == 3
    assert [r.position for r in shared.read(lambda s: journal.since(s, 1, limit=1))] == [2]
    assert shared.read(lambda s: journal.since(s, 3)) == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMED_ARRAYS = st.dictionaries(
    st.text(max_size=8),
    st.one_of(
        *(
            npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
            for dtype in ("<f4", ">f8", "<f2", "<i8", "|u1", "?", "<U5", "|S3", "<M8[s]")
        )
    ),
    max_size=3,
)


@given(values=st.dictionaries(st.text(), JSON, max_size=3), arrays=NAMED_ARRAYS)
def test_any_values_and_arrays_come_back_to_the_bit(values, arrays):
    content = rows.to_json(values, "values")
    assert content.isascii()
    assert "\0" not in content
    assert json.loads(content) == values
    same_arrays(arrays, from_bytes(to_bytes(arrays)))


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        ({"a": [{1: 2}]}, TypeError, "a key is of type int"),
        ({"a": {1, 2}}, TypeError, "type set"),
        ({"a": np.float32(1)}, TypeError, "type float32"),
        ({"a": CIRCULAR}, ValueError, "contain themselves"),
    ],
)
def test_values_that_json_has_not_are_refused(values, error, said):
    with pytest.raises(error, match=said):
        rows.to_json(values, "the values")


def test_an_event_that_is_too_large_is_refused_and_nothing_is_written(
    on_file, journal, monkeypatch
):
    monkeypatch.setattr(rows, "MOST_BYTES", 10_000)
    shared = Shared(on_file)
    for texts in (["x" * 20_000], ["x"] * 1_000):
        large = Event(change=Change.LEARNED, entries=batch(*texts))
        with pytest.raises(ValueError, match="several events"):
            append(shared, journal, learned(), large)
    assert shared.read(journal.head) == 0


@pytest.mark.parametrize(
    "change",
    [
        "content = '[9]'",
        "arrays = substr(arrays, 1, 100)",
        "kind = 'trusted'",
        "writer = 'somebody'",
        "digest = 'x'",
        "position = 9",
        "namespace = 'theirs'",
    ],
)
def test_a_changed_or_missing_event_is_named(shared, journal, change):
    append(
        shared,
        journal,
        *(Event(change=Change.LEARNED, ids=(str(i),), entries=batch("t")) for i in range(3)),
    )
    sql(
        shared,
        f"UPDATE ragshield_journal SET {change} WHERE position = 2",  # noqa: S608 - of the test
    )
    with pytest.raises(StateError, match=r"event 2 of the journal.*'ours'"):
        shared.read(lambda s: journal.since(s, 0))
    assert numbers(shared.read(lambda s: journal.since(s, 2, limit=1))) == [2]


def test_events_that_swap_places_are_noticed(shared, journal):
    append(shared, journal, *map(learned, range(2)))
    for here, there in ((1, 7), (2, 1), (7, 2)):
        change = f"UPDATE ragshield_journal SET position = {there} WHERE position = {here}"  # noqa: S608
        sql(shared, change)
    with pytest.raises(StateError, match="event 1 of"):
        shared.read(lambda s: journal.since(s, 0))


def test_an_end_that_is_gone_is_noticed(shared, journal):
    append(shared, journal, *map(learned, range(3)))
    sql(shared, "DELETE FROM ragshield_journal WHERE position = 3")
    with pytest.raises(StateError, match=r"event 3 of the journal .* is missing"):
        shared.read(lambda s: journal.since(s, 2))


def test_a_process_that_is_ahead_of_the_database_is_told(shared, journal):
    append(shared, journal, learned())
    with pytest.raises(StateError, match=r"at position 1, and this process at 5.*older"):
        shared.read(lambda s: journal.since(s, 5))


# Appending


def test_who_was_overtaken_writes_nothing(shared, journal):
    append(shared, journal, learned(1))

    def work(session):
        with pytest.raises(OvertakenError, match="at position 1, expected 0"):
            journal.append(session, [learned(2)], writer="late", expected=0, pending=[True])

    shared.write(work)  # and commits
    assert numbers(shared.read(lambda s: journal.since(s, 0))) == [1]
    assert shared.read(journal.pending) == ()


def test_an_event_goes_with_its_transaction(shared, journal):
    append(shared, journal, learned(1))
    before = shared.read(journal.head)

    def work(session):
        journal.append(session, [learned(2)], writer="w", pending=[True])
        message = "the quarantine failed"
        raise QuarantineError(message)

    with pytest.raises(QuarantineError):
        shared.write(work)
    assert shared.read(journal.head) == before
    assert shared.read(journal.pending) == ()
    assert append(shared, journal, learned(3), expected=1) == range(2, 3)


def test_namespaces_do_not_see_each_other(shared, journal):
    theirs = Journal("theirs", lease=LEASE)
    append(shared, journal, learned(1), learned(2), pending=True)
    assert shared.write(lambda s: journal.take_turn(s, "w"))
    assert append(shared, theirs, learned(3), expected=0, pending=True) == range(1, 2)
    assert numbers(shared.read(lambda s: theirs.since(s, 0))) == [3]
    assert pending(shared, theirs) == [(1, "w")]
    shared.write(lambda s: theirs.close_pending(s, [1], writer="w"))
    assert len(shared.read(journal.pending)) == 2
    assert shared.read(theirs.turn) is None
    ours = Snapshots("ours").write(shared.write, 2, {}, {})
    assert shared.read(Snapshots("theirs").latest) is None
    with pytest.raises(PrunedError):
        shared.read(lambda s: Snapshots("theirs").read(s, ours))


# Pending events and their recovery


def test_pending_events_are_closed_once_by_their_writer(shared, journal):
    append(shared, journal, learned(1), learned(2), learned(3), pending=True)
    assert [p.position for p in shared.read(journal.pending)] == [1, 2, 3]
    shared.write(lambda s: journal.close_pending(s, [1, 2], writer="w"))
    assert pending(shared, journal) == [(3, "w")]
    for positions, writer in (([2, 3], "w"), ([3], "x"), ([4], "w")):
        with pytest.raises(TakenOverError, match=r"not pending for"):
            shared.write(lambda s, p=positions, w=writer: journal.close_pending(s, p, writer=w))
    assert pending(shared, journal) == [(3, "w")]
    undone = forgotten(-3)
    assert shared.write(lambda s: journal.close_pending(s, [3], [undone], writer="w")) == range(
        4, 5
    )
    assert shared.read(journal.pending) == ()
    assert numbers(shared.read(lambda s: journal.since(s, 0))) == [1, 2, 3, -3]
    with pytest.raises(TakenOverError):
        shared.write(lambda s: journal.close_pending(s, [3], [undone], writer="w"))
    assert shared.read(journal.head) == 4


def test_a_writer_is_given_up_after_its_lease_and_not_before(shared, journal):
    append(shared, journal, learned(1), writer="slow", pending=True)
    append(shared, journal, learned(2), writer="dead", pending=True)
    assert abandoned(shared, journal) == []
    for writer in ("slow", "dead"):
        age(shared, writer, LEASE / 2)
    assert abandoned(shared, journal) == []
    for writer in ("slow", "dead"):
        age(shared, writer, LEASE / 2 + 1)
    shared.write(lambda s: journal.beat(s, "slow"))
    assert abandoned(shared, journal) == [(2, "dead")]
    shared.write(lambda s: journal.retire(s, "slow"))
    assert abandoned(shared, journal) == [(1, "slow"), (2, "dead")]


def test_what_is_abandoned_is_taken_over_by_one_and_closed_by_nobody_else(shared, journal):
    append(shared, journal, learned(1), writer="late", pending=True)
    append(shared, journal, learned(2), writer="alive", pending=True)
    age(shared, "late")
    (record,) = shared.write(lambda s: journal.take_over(s, writer="helper"))
    assert (record.position, record.writer, record.event.ids) == (1, "late", ("1",))
    assert shared.write(lambda s: journal.take_over(s, writer="other")) == ()
    with pytest.raises(TakenOverError, match="no sign of life for 600 s"):
        shared.write(lambda s: journal.close_pending(s, [1], writer="late"))
    assert pending(shared, journal) == [(1, "helper"), (2, "alive")]
    age(shared, "helper")  # crashes as well
    assert len(shared.write(lambda s: journal.take_over(s, writer="other"))) == 1
    shared.write(lambda s: journal.close_pending(s, [1], writer="other"))
    assert pending(shared, journal) == [(2, "alive")]


# Turns


def refused(shared, journal, writer):
    """Return whose turn stands in a writer's way."""
    try:
        append(shared, journal, learned(), writer=writer)
    except OvertakenError as error:
        return str(error).partition("turn of ")[2][0]
    return None


def test_turns_come_in_the_order_of_the_queue(shared, journal):
    assert [shared.write(lambda s, w=w: journal.take_turn(s, w)) for w in "bac"] == [
        True,
        False,
        False,
    ]
    assert not shared.write(lambda s: journal.take_turn(s, "a"))  # again: keeps its place
    assert [refused(shared, journal, w) for w in "acx"] == ["b"] * 3
    assert refused(shared, journal, "b") is None
    assert shared.write(lambda s: journal.take_turn(s, "a"))
    assert not shared.write(lambda s: journal.take_turn(s, "b"))  # behind c
    shared.write(lambda s: journal.give_up_turn(s, "a"))
    assert shared.read(journal.turn) == "c"
    age(shared, "c")  # crashed in its turn
    assert shared.read(journal.turn) == "b"
    assert refused(shared, journal, "x") == "b"
    assert refused(shared, journal, "b") is None
    assert shared.read(journal.turn) is None
    assert refused(shared, journal, "x") is None


def test_who_was_believed_dead_in_its_turn_has_lost_it_even_if_it_wakes_up(shared, journal):
    def append_in_turn(since):
        shared.write(lambda s: journal.lock(s, writer="a", in_turn_since=since))

    assert shared.write(lambda s: journal.take_turn(s, "a"))
    append_in_turn(0)
    age(shared, "a")
    append_in_turn(0)  # nobody has written since
    append(shared, journal, learned(), writer="b")
    shared.write(lambda s: journal.beat(s, "a"))
    assert shared.read(journal.turn) is None
    with pytest.raises(OvertakenError, match=r"a gave no sign of life .* and lost its turn"):
        append_in_turn(0)
    assert shared.write(lambda s: journal.take_turn(s, "a"))
    append_in_turn(1)


def test_a_turn_outlasts_a_write_that_failed_and_holds_up_no_recovery(shared, journal):
    append(shared, journal, learned(1), writer="a", pending=True)
    append(shared, journal, learned(2), writer="b", pending=True)
    assert shared.write(lambda s: journal.take_turn(s, "c"))
    shared.write(lambda s: journal.close_pending(s, [1], writer="a"))
    shared.write(lambda s: journal.close_pending(s, [2], [forgotten()], writer="b"))
    with pytest.raises(OvertakenError, match="expected 2"):
        append(shared, journal, learned(3), writer="c", expected=2)
    assert shared.read(journal.turn) == "c"
    append(shared, journal, learned(3), writer="c", expected=3)
    assert shared.read(journal.turn) is None


# Room


def snapshot_at(shared, *positions):
    for position in positions:
        Snapshots("ours").write(shared.write, position, {"at": position}, {})


def left(shared):
    query = text("SELECT position FROM ragshield_journal ORDER BY position")
    return list(shared.read(lambda s: s.execute(query).scalars().all()))


def test_only_what_nobody_needs_is_pruned(shared, journal):
    append(shared, journal, *map(learned, range(1, 11)), writer="a", expected=0)
    append(shared, Journal("theirs"), *map(learned, range(3)))
    prune = lambda: shared.write(journal.prune)  # noqa: E731
    assert prune() == 0
    snapshot_at(shared, 9)
    assert prune() == 0  # the only snapshot may be damaged
    shared.write(lambda s: journal.beat(s, "behind", 2))
    shared.write(lambda s: journal.beat(s, "dead", 1))
    age(shared, "dead")
    snapshot_at(shared, 6)
    assert prune() == 2  # a writer needs the rest
    with pytest.raises(PrunedError, match=r"up to 2 .*latest snapshot"):
        shared.read(lambda s: journal.since(s, 1))
    assert numbers(shared.read(lambda s: journal.since(s, 2, limit=1))) == [3]
    shared.write(lambda s: journal.beat(s, "behind", 10))
    assert [shared.write(lambda s: journal.prune(s, limit=3)) for _ in range(3)] == [3, 1, 0]
    snapshot_at(shared, 10)
    assert prune() == 3
    assert left(shared) == [1, 2, 3, 10]  # of theirs, and ours
    with pytest.raises(PrunedError):
        shared.read(lambda s: journal.since(s, 0))


def test_what_is_pending_is_never_pruned(shared, journal):
    append(shared, journal, learned(1), learned(2))
    append(shared, journal, learned(3), writer="dead", pending=True)
    append(shared, journal, learned(4), expected=3)
    snapshot_at(shared, 4, 4)
    for writer in ("w", "dead"):
        age(shared, writer)
    assert shared.write(journal.prune) == 2
    (record,) = shared.write(lambda s: journal.take_over(s, writer="helper"))
    assert record.event.ids == ("3",)
    shared.write(lambda s: journal.close_pending(s, [3], writer="helper"))
    shared.write(lambda s: journal.beat(s, "helper", 4))
    assert shared.write(journal.prune) == 2
    assert shared.read(lambda s: journal.since(s, 4)) == ()
    assert append(shared, journal, learned(5), expected=4) == range(5, 6)


# Snapshots


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_a_snapshot_comes_back_whole(shared, chunk):
    kept = Snapshots("ours", chunk=chunk)
    assert shared.read(kept.latest) is None
    made = kept.write(shared.write, 7, HARD, ARRAYS)
    earlier = kept.write(shared.write, 3, {}, {})
    assert shared.read(kept.latest) == made
    assert shared.read(kept.list) == (made, earlier)
    values, arrays = shared.read(lambda s: kept.read(s, made))
    assert values == HARD
    same_arrays(ARRAYS, arrays)
    arrays["vectors"][0] = 0.0
    assert shared.read(lambda s: kept.read(s, earlier)) == ({}, {})
    query = text("SELECT max(length(data)) FROM ragshield_snapshot_chunks")
    assert shared.read(lambda s: s.execute(query).scalar()) <= chunk


@pytest.mark.slow
def test_seeded_snapshots_come_back_whatever_their_shape(on_file):
    shared = Shared(on_file)
    rng = np.random.default_rng(5)
    fortran = np.asfortranarray(rng.normal(size=(37, 5)))
    fields = np.array([(1, 2.5), (3, 4.5)], dtype=[("count", "<i4"), ("mean", "<f8")])
    for chunk in (1, 7, 100, 4096):
        arrays = {"fortran": fortran, "every second": fortran[::2, ::-1], "fields": fields}
        for i in range(4):
            dtype = rng.choice(["<f4", "<i8", "?", ">f8"])
            array = rng.integers(0, 9, size=rng.integers(0, 6, size=2)).astype(dtype)
            arrays[f"random {i}"] = array
        kept = Snapshots("ours", chunk=chunk)
        made = kept.write(shared.write, chunk, {"chunk": chunk}, arrays)
        values, found = shared.read(lambda s, k=kept, m=made: k.read(s, m))
        assert values == {"chunk": chunk}
        same_arrays(arrays, found)


def test_a_snapshot_is_not_seen_before_it_is_complete(shared):
    kept = Snapshots("ours", chunk=64)
    older = kept.write(shared.write, 1, {}, {})
    steps = 0

    def crash_after(n):
        def write(work):
            nonlocal steps
            steps += 1
            if steps > n:
                raise KeyboardInterrupt
            return shared.write(work)

        return write

    for n in range(1, 100):
        steps = 0
        try:
            kept.write(crash_after(n), 5, HARD, ARRAYS)
        except KeyboardInterrupt:
            assert shared.read(kept.list) == (older,)
        else:
            break
    assert n > 5
    assert shared.read(kept.latest).position == 5


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        ("UPDATE ragshield_snapshot_chunks SET data = substr(data, 2) WHERE number = 0", "values"),
        ("DELETE FROM ragshield_snapshot_chunks WHERE number = 0", "the values .* missing"),
        ("UPDATE ragshield_snapshot_chunks SET data = substr(data, 9) WHERE number = 2", "'two'"),
        ("DELETE FROM ragshield_snapshot_chunks WHERE number = 2", "'two' .* missing"),
        ("UPDATE ragshield_snapshots SET manifest = '{}'", "the list of parts"),
        ("UPDATE ragshield_snapshots SET position = 6", "the list of parts"),
    ],
)
def test_damage_of_a_snapshot_is_named(shared, tamper, said):
    kept = Snapshots("ours")
    made = kept.write(shared.write, 5, HARD, {"one": np.arange(3), "two": np.arange(4)})
    sql(shared, tamper)
    with pytest.raises(StateError, match=said) as caught:
        shared.read(lambda s: kept.read(s, made))
    assert "the snapshot at position 5 of Snapshots('ours')" in str(caught.value)


def test_the_one_before_a_damaged_snapshot_can_be_read(shared):
    kept = Snapshots("ours")
    older = kept.write(shared.write, 4, {"number": 4}, ARRAYS)
    kept.write(shared.write, 5, {"number": 5}, ARRAYS)
    sql(shared, "UPDATE ragshield_snapshots SET manifest = '{}' WHERE position = 5")
    assert shared.read(lambda s: kept.read(s, kept.list(s)[1]))[0] == {"number": 4}
    assert shared.read(kept.list)[1] == older


def test_only_the_last_snapshots_are_kept(shared):
    kept, theirs = Snapshots("ours", chunk=16), Snapshots("theirs")
    other = theirs.write(shared.write, 1, HARD, {})
    made = [kept.write(shared.write, position, HARD, ARRAYS) for position in (5, 1, 9, 3)]
    assert kept.prune(shared.write) == 2
    assert shared.read(kept.list) == (made[2], made[0])
    with pytest.raises(PrunedError, match="read the latest"):
        shared.read(lambda s: kept.read(s, made[1]))
    for snapshots_of, snapshot in ((kept, made[2]), (theirs, other)):
        assert shared.read(lambda s, o=snapshots_of, m=snapshot: o.read(s, m))[0] == HARD
    query = text("SELECT count(DISTINCT snapshot) FROM ragshield_snapshot_chunks")
    assert shared.read(lambda s: s.execute(query).scalar()) == 3
    assert kept.prune(shared.write) == 0


def test_what_was_never_completed_is_removed_when_it_is_old_and_its_writer_is_told(
    shared, monkeypatch
):
    kept = Snapshots("ours", chunk=64)

    def write(work):
        nonlocal steps
        steps += 1
        if steps == 3:  # another process, while this one is slow
            removed.append(kept.prune(shared.write))
            if old:
                monkeypatch.setattr(snapshots, "GIVEN_UP", -1.0)
                removed.append(kept.prune(shared.write))
        return shared.write(work)

    steps, removed, old = 0, [], False
    kept.write(write, 5, HARD, ARRAYS)
    steps, old = 0, True
    with pytest.raises(StateError, match="removed while it was written"):
        kept.write(write, 6, HARD, ARRAYS)
    assert removed == [0, 0, 1]
    assert shared.read(kept.latest).position == 5


def test_what_is_taken_out_already_is_not_written_to(shared, monkeypatch):
    monkeypatch.setattr(snapshots, "GIVEN_UP", -1.0)
    kept = Snapshots("ours", chunk=64)
    steps = 0

    def write(work):
        nonlocal steps
        steps += 1
        if steps == 3:  # by a removal that goes on later
            assert len(shared.write(kept._take_out)) == 1
        return shared.write(work)

    with pytest.raises(StateError, match="removed while it was written"):
        kept.write(write, 5, HARD, ARRAYS)
    assert shared.read(kept.latest) is None
    assert kept.prune(shared.write) == 1


def test_a_removal_that_was_cut_short_is_completed(shared):
    kept = Snapshots("ours", chunk=8)
    for position in (1, 2, 3):
        kept.write(shared.write, position, HARD, ARRAYS)
    calls = 0

    def write(work):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return shared.write(work)

    with pytest.raises(KeyboardInterrupt):
        kept.prune(write)
    assert [s.position for s in shared.read(kept.list)] == [3, 2]
    assert kept.prune(shared.write) == 1
    query = text("SELECT count(DISTINCT snapshot) FROM ragshield_snapshot_chunks")
    assert shared.read(lambda s: s.execute(query).scalar()) == 2


def test_a_snapshot_that_could_only_be_pickled_leaves_nothing(shared):
    with pytest.raises(TypeError, match="'bad' is of dtype object"):
        Snapshots("ours").write(
            shared.write, 1, {}, {"good": np.arange(3), "bad": np.array([{}], dtype=object)}
        )
    count = text("SELECT count(*) FROM ragshield_snapshots")
    assert shared.read(lambda s: s.execute(count).scalar()) == 0


# Clock, and locks on a server


def test_the_clock_goes_on_within_a_transaction(shared):
    def work(session):
        first = session.execute(select(now())).scalar()
        while (second := session.execute(select(now())).scalar()) == first:
            pass
        return first, second

    first, second = shared.write(work)
    assert second > first > 1.7e9


def test_names_of_writers_differ_and_fit(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "h\0ö" * 100)
    one, other = new_writer(), new_writer()
    assert one != other
    assert len(one) <= 64
    assert one.isascii()
    assert "\0" not in one


@contextmanager
def impatient(shared):
    """Yield a session that fails rather than wait for a lock."""
    with Session(shared.engine) as session, session.begin():
        session.execute(text("SET LOCAL lock_timeout = '100ms'"))
        yield session


@pytest.mark.slow
def test_signs_of_life_wait_for_no_lock(on_postgres, journal):
    shared = Shared(on_postgres)
    append(shared, journal, learned())
    for writer in ("w", "dead"):
        shared.write(lambda s, w=writer: journal.beat(s, w, 0))

    def work(session):
        journal.append(session, [learned()], writer="x")
        with impatient(shared) as other:
            journal.beat(other, "w", 1)
            journal.beat(other, "new", 1)
        with pytest.raises(QuarantineError) as caught, impatient(shared) as other:
            journal.lock(other, writer="w")
        assert caught.value.__cause__.sqlstate == "55P03"  # the lock is not available

    shared.write(work)
    age(shared, "dead")
    with Session(shared.engine) as session, session.begin():
        journal.beat(session, "dead")  # not committed yet
        with impatient(shared) as other:
            journal.prune(other)
    shared.write(lambda s: journal.take_turn(s, "dead"))
    assert shared.read(journal.turn) == "dead"
    shared.engine.dispose()


# Processes


def start(url, namespace, name, *task):
    command = [sys.executable, WRITER, url, namespace, name, *map(str, task)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)


def say(child, word):
    child.stdin.write(f"{word}\n")
    child.stdin.flush()


def heard(child):
    line = child.stdout.readline().strip()
    assert line, child.stderr.read()
    return line


def run_all(children):
    """Let children, which have all imported what they need, go at once; return what they say."""
    for child in children:
        assert heard(child) == "ready"
    for child in children:
        say(child, "go")
    said = [child.communicate(timeout=600) for child in children]
    assert [error for _, error in said if error] == []
    assert {child.returncode for child in children} == {0}
    return [out.strip() for out, _ in said]


@pytest.mark.slow
def test_processes_that_make_the_tables_at_once_all_succeed(url):
    shared = Shared(url)
    run_all([start(url, "ours", name, "prepare", 3) for name in "abcd"])
    for table in TableBase.metadata.tables.keys() - {"ragshield_schema", "ragshield_changes"}:
        count = text(f"SELECT count(*) FROM {table}")  # noqa: S608 - our own
        assert shared.read(lambda s, q=count: s.execute(q).scalar()) == 0
    shared.engine.dispose()


@pytest.mark.parametrize(
    ("n_processes", "n_events"), [(3, 15), pytest.param(4, 60, marks=pytest.mark.slow)]
)
def test_processes_that_write_at_once_have_each_seen_all_before(
    shared, journal, n_processes, n_events
):
    names = [f"w{number}" for number in range(n_processes)]
    children = [start(shared.url, "ours", name, "append", n_events) for name in names]
    run_all(children)
    total = n_processes * n_events
    records = shared.read(lambda s: journal.since(s, 0, limit=2 * total))
    assert [record.position for record in records] == list(range(1, total + 1))
    assert [record.event.accused for record in records] == [
        {"seen": (str(seen),)} for seen in range(total)
    ]
    for name in names:
        assert numbers([r for r in records if r.writer == name]) == list(range(n_events))
    assert shared.read(journal.pending) == ()
    assert shared.read(journal.turn) is None


def test_a_writer_that_is_killed_is_found_and_one_that_is_slow_is_not(shared, journal):
    killed, slow = children = [
        start(shared.url, "ours", name, "stop between") for name in ("killed", "slow")
    ]
    for child in children:
        assert heard(child) == "ready"
        say(child, "go")
        assert heard(child) == "pending"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert abandoned(shared, journal) == []  # it may be slow, for all that is known
    for name in ("killed", "slow"):
        age(shared, name)
    say(slow, "beat")
    assert heard(slow) == "pending"
    assert abandoned(shared, journal) == [(1, "killed")]
    (record,) = shared.write(lambda s: journal.take_over(s, writer="helper"))
    undone = forgotten(-1)
    shared.write(lambda s: journal.close_pending(s, [record.position], [undone], writer="helper"))
    say(slow, "finish")
    assert heard(slow) == "finished"
    assert slow.wait(60) == 0
    slow.communicate()
    assert shared.read(journal.pending) == ()
    worker = Worker(shared, journal, "new")
    worker.catch_up()
    assert worker.known == [("killed", "0"), ("slow", "0"), ("helper", "-1")]
