"""Several workers write to one store, each with a guard that was opened on one database."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from shared_store import FolderKeeper, add
from sqlalchemy import event
from support import Scripted, group, join, meanwhile, passages, scored
from test_replay import assert_same
from test_sharing import failing_commits, queued

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector, InstructionDetector
from ragshield_core.detectors.instruction import matching
from ragshield_core.detectors.instruction.matching import suspicion
from ragshield_core.model.errors import OvertakenError
from ragshield_core.sharing.heartbeat import Heartbeat
from ragshield_core.store import recalling, reviewing, writing

RATE = 0.05
KNOWN = passages(300, 1)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


def workers_of(url, folder, n=2, detector=CliqueDetector, **options):
    guards = [Guard.open(url, detectors=[detector()], **options) for _ in range(n)]
    return [FolderKeeper(guard, folder) for guard in guards]


def calibrated(url, folder, n=2, **options):
    workers = workers_of(url, folder, n, **options)
    workers[0].guard.fit(KNOWN).calibrate(fpr=RATE)
    workers[0].store.write(KNOWN)
    return workers


def alone(folder):
    guard = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
    keeper = FolderKeeper(guard.fit(KNOWN).calibrate(fpr=RATE), folder)
    keeper.store.write(KNOWN)
    return keeper


def silence(worker):
    """Make all others take a worker for crashed, as if it had been stopped for long."""
    end = "UPDATE ragshield_journal_writers SET heartbeat = 0"
    worker.guard.quarantine.database.write(lambda s: s.connection().exec_driver_sql(end))


def test_texts_are_read_before_the_turn_of_their_writer(url, folder):
    (worker,) = workers_of(url, folder, 1, InstructionDetector)
    take, read = worker.guard.writes.take_turn, []
    suspicion.forget()
    with patch.object(matching, "readable", wraps=matching.readable) as readable:

        def take_turn(**options):
            read.append(readable.call_count)
            return take(**options)

        with patch.object(worker.guard.writes, "take_turn", take_turn):
            add(worker, passages(3, 1))
    assert read[0] >= 3
    assert read == [readable.call_count]


def test_one_entry_costs_two_transactions_of_few_statements(tmp_path, folder):
    (worker,) = calibrated(f"sqlite:///{tmp_path / 'guard.db'}", folder, 1)
    add(worker, passages(1, 2))
    statements = []
    with worker.guard.quarantine.database.engine() as engine:

        @event.listens_for(engine, "before_cursor_execute")
        def note(_connection, _cursor, statement, *_):
            statements.append(statement)

    add(worker, passages(1, 3))
    assert statements.count("BEGIN IMMEDIATE") == 2  # the announcement, its end
    assert len(statements) <= 20


def test_one_thread_beats_for_all_writes_and_ends_without_any():
    beats, reasons = [], [type("Reason", (), {})() for _ in range(3)]
    heart = Heartbeat(lambda: beats.append(threading.current_thread()), 0.05)
    for reason in reasons:
        heart.during(reason)
        heart.over(reason)
    heart.during(reasons[0])
    while len(beats) < 2:
        time.sleep(0.01)
    heart.over(reasons[0])
    assert len(set(beats)) == 1
    beats[0].join(timeout=60)
    assert not beats[0].is_alive()
    heart.during(reasons[1])
    while beats[-1] is beats[0]:
        time.sleep(0.01)


# Nobody passes unseen


def assert_held_as_by(single, one, other, tmp_path):
    held = {entry.id for entry in single.guard.quarantine.list()}
    assert len(held) >= 12
    assert {entry.id for entry in one.guard.quarantine.list()} == held
    assert one.store.ids() == single.store.ids()
    for worker in (one, other):
        worker.guard.writes.catch_up()
    assert_same(one.guard, other.guard, tmp_path)


@pytest.mark.slow
def test_simultaneous_group_members_are_found_as_by_one_worker(url, folder, tmp_path):
    one, other = calibrated(url, folder)
    single = alone(tmp_path / "single")
    for seed in range(4):
        bad = group(4, seed)
        for row in (0, 2):
            with meanwhile(one.guard, [lambda row=row, bad=bad: add(other, bad.take([row + 1]))]):
                add(one, bad.take([row]))
            add(single, bad.take([row]))
            add(single, bad.take([row + 1]))
    assert_held_as_by(single, one, other, tmp_path)


def stopped(one, meanwhile):
    """Have others write while a worker is stopped for longer than its lease, once, as it judges."""
    looking, times = writing.note_copies, []

    def silent(keeper, report):
        if keeper is one and not times:
            times.append(report)
            silence(one)
            meanwhile()
        return looking(keeper, report)

    return patch.object(writing, "note_copies", silent)


@pytest.mark.slow
def test_a_worker_that_others_overtook_judges_again(url, folder, tmp_path):
    one, other = calibrated(url, folder)
    single, screen = alone(tmp_path / "single"), one.guard.screen
    for seed in range(4):
        bad, judged = group(4, seed), []
        for row in (0, 2):

            def screened(*args, bad=bad, row=row, judged=judged, **options):
                report = screen(*args, **options)
                judged.append(row)
                if judged.count(row) == 1:
                    add(other, bad.take([row + 1]))
                return report

            one.guard.writes._uncontested = True
            with patch.object(one.guard, "screen", screened):
                add(one, bad.take([row]))
            add(single, bad.take([row + 1]))
            add(single, bad.take([row]))
        assert judged == [0, 0, 2, 2]
    assert_held_as_by(single, one, other, tmp_path)


def test_a_worker_queues_until_nobody_overtakes_it(url, folder):
    one, other = workers_of(url, folder)
    screen, queues = one.guard.screen, []

    def screened(*args, **options):
        queues.append(queued(other.guard))
        return screen(*args, **options)

    with patch.object(one.guard, "screen", screened):
        add(one, passages(1, 1))
        with stopped(one, lambda: add(other, passages(1, 2, "other"))):
            add(one, passages(1, 3, "overtaken"))
        add(other, passages(1, 4, "between"))
        for seed in (5, 6, 7):
            add(one, passages(1, seed, "after"))
    mine = [one.guard.writes.writer]
    assert queues == [[], [], mine, mine, mine, []]


@pytest.mark.slow
def test_a_worker_that_was_stopped_for_longer_than_its_lease_writes_nothing(url, folder):
    one, other = calibrated(url, folder)
    new = passages(3, 51, "mine")
    one.guard.writes._uncontested = False
    lost = pytest.raises(OvertakenError, match=r"lost its turn .* write it again")
    with stopped(one, lambda: add(other, passages(1, 50, "other"))), lost:
        add(one, new)
    assert not set(one.store.ids()) & set(new.ids)
    add(one, new)
    known = one.guard.writes.known_ids() - set(KNOWN.ids)
    assert known == {"other-0", "mine-0", "mine-1", "mine-2"}
    assert one.guard.status().spent.judged == 4  # each once
    add(other, passages(1, 52, "after"))  # nobody has the turn any more
    assert one.guard.status().pending == 0


# Nothing is lost


def test_others_know_of_a_write_before_the_store_is_written(url, folder):
    one, other = workers_of(url, folder)
    known = []
    write = one.store.write

    def watched(entries):
        other.guard.writes.catch_up()
        known.append((other.guard.writes.known(entries.ids), other.guard.status().pending))
        write(entries)

    with patch.object(one.store, "write", watched):
        add(one, passages(2, 1))
    assert known == [(["kb-0", "kb-1"], 1)]
    assert other.guard.status().pending == 0


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.slow
def test_guard_knows_only_the_entries_a_failed_write_stored(url, folder, n, tmp_path):
    one, other = workers_of(url, folder)
    add(one, passages(1, 9))  # an older revision of kb-0
    write = one.store.write

    def failing(entries):
        write(entries.take(range(n)))
        raise OSError

    with patch.object(one.store, "write", failing), pytest.raises(OSError):  # noqa: PT011
        add(one, passages(2, 1))
    assert one.guard.writes.known(["kb-0", "kb-1"]) == ["kb-0", "kb-1"][: max(n, 1)]
    assert one.guard.status().pending == 0
    other.guard.writes.catch_up()
    assert_same(one.guard, other.guard, tmp_path)
    add(one, passages(2, 1))
    assert one.guard.writes.known(["kb-0", "kb-1"]) == ["kb-0", "kb-1"]


def test_entry_stays_known_if_the_store_fails_to_delete_it(url, folder):
    one, other = workers_of(url, folder)
    add(one, passages(2, 1))
    with patch.object(one.store, "delete", side_effect=OSError), pytest.raises(OSError):  # noqa: PT011
        one.run(writing.delete, one, ["kb-0"])
    other.guard.writes.catch_up()
    assert other.guard.writes.known(["kb-0"]) == ["kb-0"]
    one.run(writing.delete, one, ["kb-0"])
    other.guard.writes.catch_up()
    assert other.guard.writes.known(["kb-0"]) == []
    assert one.store.ids() == ["kb-1"]


def test_a_recall_that_failed_is_made_by_the_next_write(url, folder):
    one, other = workers_of(url, folder)
    add(one, passages(2, 1))
    with patch.object(one.store, "delete", side_effect=OSError), pytest.raises(OSError):  # noqa: PT011
        one.run(recalling.recall, one, ["kb-0"], by="anna")
    assert one.store.ids() == ["kb-0", "kb-1"]
    assert other.seen() == ["kb-1"]
    add(one, passages(1, 2, "new"))
    assert one.store.ids() == ["kb-1", "new-0"]
    assert one.guard.status().pending == 0


def test_writer_wrongly_believed_dead_loses_nothing(url, folder, tmp_path):
    one, other = workers_of(url, folder)
    write = one.store.write

    def slow(entries):
        silence(one)
        assert other.recover() == 1
        assert other.guard.writes.known(entries.ids) == []
        write(entries)

    with patch.object(one.store, "write", slow):
        add(one, passages(2, 1))
    other.guard.writes.catch_up()
    assert other.guard.writes.known(["kb-0", "kb-1"]) == ["kb-0", "kb-1"]
    assert other.guard.status().pending == 0
    assert_same(one.guard, other.guard, tmp_path)


def test_update_by_a_writer_believed_dead_is_kept(url, folder, tmp_path):
    one, other = workers_of(url, folder)
    add(one, passages(1, 9))
    write = one.store.write

    def slow(entries):
        silence(one)
        assert other.recover() == 2
        write(entries)

    with patch.object(one.store, "write", slow):
        add(one, passages(1, 1))
    other.guard.writes.catch_up()
    assert_same(one.guard, other.guard, tmp_path)
    single = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
    single.learn(passages(1, 1))
    probe = passages(20, 8, "probe")
    assert other.guard.screen(probe).decisions == single.screen(probe).decisions


@pytest.mark.slow
def test_fit_respects_writes_undone_meanwhile(url, folder, tmp_path):
    one, other = workers_of(url, folder)
    intent = other.guard.writes.intend(passages(2, 1))
    learn = one.guard.detectors[0].fit

    def slow(batch):
        other.guard.writes.failed(intent)
        assert other.recover() == 1
        return learn(batch)

    with patch.object(one.guard.detectors[0], "fit", slow):
        one.guard.fit(KNOWN)
    other.guard.writes.catch_up()
    assert other.guard.writes.known(KNOWN.ids) == list(KNOWN.ids)[2:]  # kb-0 and kb-1 are not there
    assert_same(one.guard, other.guard, tmp_path)


def test_closed_writer_abandons_its_pending_writes_at_once(url, folder):
    one, other = workers_of(url, folder)
    intent = one.guard.writes.intend(passages(2, 1))
    assert other.recover() == 0
    one.guard.close()
    assert other.recover() == len(intent.positions) == 1
    assert other.guard.writes.known(["kb-0"]) == []


# What one decides, the readers of the others see


def test_reviews_by_one_worker_apply_to_readers_of_another(url, folder):
    one, other = workers_of(url, folder, detector=Scripted)
    add(one, join(scored([0, 5], lineages=["a", "b"])))
    assert other.seen() == ["s0"]
    one.run(reviewing.release, one, ["s1"], "anna", None)
    assert other.seen() == ["s0", "s1"]
    one.run(recalling.recall, one, ["s0"], by="anna")
    assert other.seen() == ["s1"]
    one.guard.quarantine.confirm(["s0"], by="anna")
    copy = scored([0], prefix="copy", lineages=["a"])
    other.store.write(copy)  # past all guards
    assert other.seen() == ["s1"]


# Processes


def started(url, folder, *task, lease=30.0):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests / "core"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "LEASE": str(lease)}
    run = [sys.executable, str(tests / "shared_store.py"), url, str(folder), *map(str, task)]
    process = subprocess.Popen(run, text=True, env=environment, **pipes)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_groups_that_come_through_processes_are_found(any_url, folder, workers, tmp_path):
    (one,) = calibrated(any_url, folder, 1)
    single = alone(tmp_path / "single")
    for seed in range(3):
        for row in range(5):
            add(single, group(5, seed).take([row]))
    processes = [started(any_url, folder, "group", n, workers, 3) for n in range(workers)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(timeout=120) for process in processes] == [0] * workers
    one.guard.writes.catch_up()
    held = {entry.id for entry in single.guard.quarantine.list()}
    assert {entry.id for entry in one.guard.quarantine.list()} == held
    assert one.seen() == single.seen()
    assert one.guard.status().pending == 0


def test_entry_that_could_not_be_held_stays_visible(url, folder):
    (one,) = workers_of(url, folder, 1, detector=Scripted)
    batch = scored([-1, 5])
    one.store.write(batch)  # past the guard, long ago
    with (
        failing_commits(one.guard, OSError("no space left")),
        pytest.raises(OSError, match="space"),
    ):
        add(one, batch)
    assert one.seen() == ["s0", "s1"]
    add(one, batch)
    assert one.seen() == ["s0"]
    assert [held.id for held in one.guard.quarantine.list()] == ["s1"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["killed before", "killed half way"])
def test_a_worker_that_is_killed_in_a_write_loses_nothing(any_url, folder, task, tmp_path):
    lease = 1.0
    one, other = workers_of(any_url, folder, lease=lease)
    add(one, passages(3, 1))
    process = started(any_url, folder, task, lease=lease)
    process.communicate("go\n", timeout=60)
    assert process.returncode == -9
    one.guard.writes.catch_up()
    assert one.guard.writes.known(group(2, 77).ids) == list(group(2, 77).ids)
    assert one.guard.status().pending == 1
    while one.guard.status().pending:
        time.sleep(0.1)
        add(other, passages(1, 2, "next"))
    one.guard.writes.catch_up()
    there = [i for i in group(2, 77).ids if i in one.store.ids()]
    assert len(there) == int(task == "killed half way")
    assert one.guard.writes.known(group(2, 77).ids) == there
    assert_same(one.guard, other.guard, tmp_path)
