"""State shared by processes: a journal without gaps, snapshots that are complete."""

import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from journal_writer import LEASE, Shared, Worker
from sqlalchemy import select, text

from ragshield_core import Batch
from ragshield_core.learning.events import Change, Event
from ragshield_core.model.errors import (
    OvertakenError,
    PrunedError,
    StateError,
    TakenOverError,
)
from ragshield_core.sharing import journal as journals
from ragshield_core.sharing import rows
from ragshield_core.sharing.journal import Journal, new_writer
from ragshield_core.sharing.rows import from_bytes, now, to_bytes
from ragshield_core.sharing.snapshots import SWEPT, Snapshots

WRITER = str(Path(__file__).parents[1] / "journal_writer.py")
ON_POSTGRES = pytest.param("on_postgres", marks=pytest.mark.slow)
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
    np.testing.assert_array_equal(one.event.entries.embeddings, entries.embeddings)
    assert one.at <= two.at
    assert shared.read(journal.head) == 3
    assert [r.position for r in shared.read(lambda s: journal.since(s, 1, limit=1))] == [2]
    assert shared.read(lambda s: journal.since(s, 3)) == ()


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


@given(arrays=NAMED_ARRAYS)
@pytest.mark.slow
def test_any_arrays_come_back_to_the_bit(arrays):
    same_arrays(arrays, from_bytes(to_bytes(arrays)))


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


def test_process_ahead_of_the_database_gets_an_error(shared, journal):
    append(shared, journal, learned())
    with pytest.raises(StateError, match=r"at position 1, and this process at 5.*older"):
        shared.read(lambda s: journal.since(s, 5))


# Appending


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


def test_abandoned_events_are_taken_over_by_a_single_writer(shared, journal):
    append(shared, journal, learned(1), writer="late", pending=True)
    append(shared, journal, learned(2), writer="alive", pending=True)
    age(shared, "late")
    (record,) = shared.write(lambda s: journal.take_over(s, writer="helper"))
    assert (record.position, record.writer, record.event.ids) == (1, "late", ("1",))
    assert shared.write(lambda s: journal.take_over(s, writer="other")) == []
    with pytest.raises(TakenOverError, match="no sign of life for 600 s"):
        shared.write(lambda s: journal.close_pending(s, [1], writer="late"))
    assert pending(shared, journal) == [(1, "helper"), (2, "alive")]
    age(shared, "helper")  # crashes as well
    assert len(shared.write(lambda s: journal.take_over(s, writer="other"))) == 1
    shared.write(lambda s: journal.close_pending(s, [1], writer="other"))
    assert pending(shared, journal) == [(2, "alive")]


# Turns


def refused(shared, journal, writer):
    """Return the writer whose turn blocks another writer."""
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


def test_a_hurried_writer_goes_next_and_overtakes_no_writer_in_its_turn(shared, journal):
    def queue(writer, **how):
        shared.write(lambda s: journal.take_turn(s, writer, **how))
        return "".join(shared.read(lambda s: journal.queue(s, 9)))

    assert queue("d", hurry=True) == "d"  # nobody is waiting
    assert queue("d", hurry=True) == "d"
    assert queue("c") == "dc"
    assert queue("z") == "dcz"
    assert queue("y", hurry=True) == "dycz"
    assert queue("z", hurry=True) == "dyzc"  # it was waiting; y and z are equal
    shared.write(lambda s: journal.give_up_turn(s, "d"))
    assert queue("b", hurry=True) == "yzbc"
    for waiting in "bcz":
        shared.write(lambda s, w=waiting: journal.give_up_turn(s, w))
    for holder, hurried in pairwise("yxwvut"):  # each after the writer that queued last
        assert queue(hurried, hurry=True) == holder + hurried
        shared.write(lambda s, w=holder: journal.give_up_turn(s, w))
    assert queue("a") == "ta"  # though its name comes first


def test_silent_writer_loses_its_turn_once_another_writes(shared, journal):
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


def test_turn_survives_a_failed_write_and_blocks_no_recovery(shared, journal):
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


def snapshot(shared, position, values=None, arrays=None, of="ours", chunk=1 << 20):
    """Write a snapshot, and delete what it makes superfluous; return the latest."""
    kept = Snapshots(of, chunk=chunk)
    pieces = kept.write_pieces(shared.write, json.dumps(values or {}), arrays or {})
    for gone in shared.write(lambda s: kept.finish(s, pieces, position)):
        swept(shared, lambda s, gone=gone: kept.sweep(s, gone))
    return shared.read(kept.latest)


def swept(shared, sweep):
    """Sweep to the end; return the number of transactions."""
    times = 1
    while shared.write(sweep):
        times += 1
    return times


def found_in(shared, made, of="ours"):
    return shared.read(lambda s: Snapshots(of).read(s, made))


def left(shared):
    query = text("SELECT position FROM ragshield_journal ORDER BY position")
    return list(shared.read(lambda s: s.execute(query).scalars().all()))


def test_only_unneeded_events_are_pruned(shared, journal):
    append(shared, journal, *map(learned, range(1, 11)), writer="a", expected=0)
    append(shared, Journal("theirs"), *map(learned, range(3)))
    shared.write(lambda s: journal.beat(s, "dead"))
    age(shared, "dead")
    for position, rest in ((6, 1), (9, 7), (10, 10)):  # the only snapshot may be damaged
        snapshot(shared, position)
        shared.write(journal.prune)
        swept(shared, journal.sweep)
        assert left(shared) == [*sorted([1, 2, 3, *range(rest, 11)])]
    writers = text("SELECT writer FROM ragshield_journal_writers WHERE namespace = 'ours'")
    assert shared.read(lambda s: s.execute(writers).scalars().all()) == ["a"]
    with pytest.raises(PrunedError, match=r"up to 9 .*latest snapshot"):
        shared.read(lambda s: journal.since(s, 1))
    assert numbers(shared.read(lambda s: journal.since(s, 9))) == [10]


def test_pending_events_are_never_pruned(shared, journal):
    append(shared, journal, learned(1), learned(2))
    append(shared, journal, learned(3), writer="dead", pending=True)
    append(shared, journal, learned(4), expected=3)
    for position in (4, 5):  # an older one may be needed
        snapshot(shared, position)
    age(shared, "dead")
    shared.write(journal.prune)
    swept(shared, journal.sweep)
    assert left(shared) == [3, 4]
    (record,) = shared.write(lambda s: journal.take_over(s, writer="helper"))
    assert record.event.ids == ("3",)
    shared.write(lambda s: journal.close_pending(s, [3], writer="helper"))
    shared.write(journal.prune)
    assert left(shared) == [3, 4]
    swept(shared, journal.sweep)
    assert left(shared) == []
    assert append(shared, journal, learned(5), expected=4) == range(5, 6)


def with_entries(n):
    """Return events of a kilobyte or more each."""
    entries = Batch.of(ids=["e"], texts=["text"], embeddings=np.ones((1, 256)))
    return [Event(change=Change.LEARNED, entries=entries) for _ in range(n)]


@pytest.mark.parametrize(("most", "size"), [(4, 1 << 20), (1_000, 1 << 10)])
def test_a_sweep_deletes_some_events_at_a_time(shared, journal, monkeypatch, most, size):
    monkeypatch.setattr(journals, "MOST_SWEPT", most)
    monkeypatch.setattr(journals, "CHUNK", size)
    assert not shared.write(journal.sweep)
    append(shared, journal, *with_entries(13), expected=0)
    for position in (12, 13):
        snapshot(shared, position)
    assert not shared.write(journal.sweep)  # nothing was pruned
    shared.write(journal.prune)
    assert shared.write(journal.sweep)
    begin = left(shared)[0]
    assert begin == 5 if most == 4 else 1 < begin < 12
    with pytest.raises(PrunedError):
        shared.read(lambda s: journal.since(s, begin - 2))
    assert len(shared.read(lambda s: journal.since(s, begin - 1))) == 14 - begin
    swept(shared, journal.sweep)
    assert left(shared) == [13]


def test_an_event_larger_than_a_sweep_is_deleted_alone(shared, journal, monkeypatch):
    monkeypatch.setattr(journals, "CHUNK", 0)
    append(shared, journal, *with_entries(3), expected=0)
    for position in (2, 3):
        snapshot(shared, position)
    shared.write(journal.prune)
    assert shared.write(journal.sweep)
    assert left(shared) == [2, 3]
    assert swept(shared, journal.sweep) == 1
    assert left(shared) == [3]


def test_a_sweep_spares_pieces_of_a_snapshot_that_has_begun_since(shared):
    kept, counted = Snapshots("ours"), text("SELECT count(*) FROM ragshield_snapshot_chunks")
    arrays = {str(number): np.arange(3) for number in range(2 * SWEPT)}  # a row each
    crashed = kept.write_pieces(shared.write, "{}", arrays)
    pieces = kept.write_pieces(shared.write, "{}", ARRAYS)
    (gone,) = shared.write(lambda s: kept.finish(s, pieces, 5))
    begun = kept.write_pieces(shared.write, "{}", arrays)
    assert shared.write(lambda s: kept.sweep(s, gone))
    n_pieces = shared.read(lambda s: s.execute(counted).scalar())
    assert n_pieces == crashed.number - SWEPT + pieces.number + begun.number
    swept(shared, lambda s: kept.sweep(s, gone))
    assert shared.write(lambda s: kept.finish(s, begun, 6)) == ()


# Snapshots


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.slow
def test_a_snapshot_comes_back_whole(shared, chunk):
    assert shared.read(Snapshots("ours").latest) is None
    fortran = np.asfortranarray(np.random.default_rng(5).normal(size=(37, 5)))
    given = ARRAYS | {"fortran": fortran, "every second": fortran[::2, ::-1]}
    made = snapshot(shared, 7, HARD, given, chunk=chunk)
    with pytest.raises(OvertakenError):
        snapshot(shared, 3, chunk=chunk)
    assert shared.read(Snapshots("ours").latest) == made
    values, arrays = found_in(shared, made)
    assert values == HARD
    same_arrays(given, arrays)
    arrays["vectors"][0] = 0.0
    query = text("SELECT max(length(data)) FROM ragshield_snapshot_chunks")
    assert shared.read(lambda s: s.execute(query).scalar()) <= chunk


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
    made = snapshot(shared, 5, HARD, {"one": np.arange(3), "two": np.arange(4)})
    sql(shared, tamper)
    with pytest.raises(StateError, match=said) as caught:
        found_in(shared, made)
    assert "the snapshot at position 5 of Snapshots('ours')" in str(caught.value)


def test_only_the_last_snapshots_are_kept(shared):
    other = snapshot(shared, 1, HARD, of="theirs")
    for position in (1, 3, 5, 9):
        snapshot(shared, position, HARD, ARRAYS, chunk=16)
    kept = shared.read(Snapshots("ours").list)
    assert [one.position for one in kept] == [9, 5]
    assert found_in(shared, other, of="theirs")[0] == found_in(shared, kept[1])[0] == HARD
    query = text("SELECT count(DISTINCT snapshot) FROM ragshield_snapshot_chunks")
    assert shared.read(lambda s: s.execute(query).scalar()) == 3


def test_pieces_without_a_list_are_no_snapshot_and_go_with_the_next(shared):
    kept, counted = Snapshots("ours"), text("SELECT count(*) FROM ragshield_snapshot_chunks")
    other = snapshot(shared, 3, HARD, ARRAYS, of="theirs")
    slow, crashed = (kept.write_pieces(shared.write, "{}", ARRAYS) for _ in range(2))
    assert shared.read(kept.latest) is None
    made = snapshot(shared, 5, HARD, ARRAYS)
    n_pieces = shared.read(lambda s: s.execute(counted).scalar())
    assert n_pieces == slow.number + crashed.number
    with pytest.raises(OvertakenError, match="go on from that one"):
        shared.write(lambda s: kept.finish(s, slow, 6))
    assert shared.read(kept.list) == (made,)
    same_arrays(found_in(shared, made)[1], ARRAYS)
    same_arrays(found_in(shared, other, of="theirs")[1], ARRAYS)


def test_a_snapshot_that_could_only_be_pickled_leaves_nothing(shared):
    bad = {"good": np.arange(3), "bad": np.array([{}], dtype=object)}
    with pytest.raises(TypeError, match="'bad' is of dtype object"):
        snapshot(shared, 1, {}, bad)
    count = text("SELECT count(*) FROM ragshield_snapshots")
    assert shared.read(lambda s: s.execute(count).scalar()) == 0


# Clock


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
    """Start child processes together once all have imported; return their output."""
    for child in children:
        assert heard(child) == "ready"
    for child in children:
        say(child, "go")
    said = [child.communicate(timeout=600) for child in children]
    assert [error for _, error in said if error] == []
    assert {child.returncode for child in children} == {0}
    return [out.strip() for out, _ in said]


@pytest.mark.parametrize(
    ("n_processes", "n_events"), [(3, 15), pytest.param(4, 60, marks=pytest.mark.slow)]
)
def test_concurrent_writers_have_each_seen_all_earlier_events(
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


@pytest.mark.slow
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
