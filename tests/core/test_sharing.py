"""Guards opened on one database act as one guard in any number of processes."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from unittest import mock

import numpy as np
import pytest
from sqlalchemy import event
from support import Scripted, clones_of, group, knowledge_base, passages, scored, topical
from test_replay import Writer, assert_same, labelled

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.calibration.recalibration import Recalibration
from ragshield_core.database.connecting import WRITES
from ragshield_core.detectors import (
    CliqueDetector,
    DisfluencyDetector,
    LabelCentroidDetector,
    LeadingQuestionDetector,
    MetaClaimDetector,
    TriggerPhraseDetector,
)
from ragshield_core.detectors.gibberish import detector as disfluency
from ragshield_core.detectors.groups import detector as groups
from ragshield_core.detectors.groups.graph import SimilarityGraph
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.model.entries import concatenate
from ragshield_core.model.errors import InvalidBatchError, OvertakenError, StateError
from ragshield_core.neighbors import index
from ragshield_core.neighbors.search import InvertedLists
from ragshield_core.sharing import shared_writes as sharing
from ragshield_core.sharing import turns
from ragshield_core.sharing.journal import MEASURES, SAVES, Journal
from ragshield_core.sharing.snapshots import Snapshots
from ragshield_core.sharing.standing import status_of

RATE = 0.05


def opened(url, n=2, detectors=CliqueDetector, **options):
    """Return guards as n processes would open them."""
    return [Guard.open(url, detectors=[detectors()], **options) for _ in range(n)]


def written(guard, batch):
    """Write a batch as an adapter does, but for the store."""
    report = guard.hold(guard.screen(batch))
    guard.admit(report)
    return report


# What one knows, the others know


def test_worker_sees_changes_of_others_at_its_next_screening(url):
    one, other = opened(url)
    known = passages(30, 1)
    one.fit(known)
    other.screen(passages(1, 2, "new"))
    assert other.writes.known(known.ids) == list(known.ids)
    other.forget(known.take([0, 1]))
    one.screen(passages(1, 2, "new"))
    assert one.writes.known(known.ids) == list(known.ids[2:])


@pytest.mark.parametrize(
    "detector",
    [CliqueDetector, LeadingQuestionDetector, MetaClaimDetector, TriggerPhraseDetector],
)
@pytest.mark.slow
def test_only_the_process_that_learns_a_text_reads_it(detector, url, monkeypatch):
    one, other = opened(url, detectors=detector)
    one.fit(passages(300, 1))
    other.screen(passages(1, 2, "new"))
    asking = Batch.of(ids=["a"], texts=["Why, say older pages? No."], embeddings=np.ones((1, 32)))
    one.learn(asking)
    (remembered,) = detector.traits.reads
    remembered.forget()
    monkeypatch.setattr(remembered, "_short", mock.Mock(side_effect=AssertionError))
    other.writes.catch_up()
    assert other.writes.known(["a"]) == ["a"]
    for mine, others in zip(*(d.state() for g in (one, other) for d in g.detectors), strict=True):
        np.testing.assert_equal(mine, others)


def without(damage, event):
    """Return an event whose prepared arrays are missing or damaged."""
    if damage == "missing":
        return replace(event, prepared={})
    if damage == "renamed":
        named = {
            name: {key.replace("s", "z"): column for key, column in arrays.items()}
            for name, arrays in event.prepared.items()
        }
        return replace(event, prepared=named)
    cut = {
        name: {key: column[:-1] for key, column in arrays.items()}
        for name, arrays in event.prepared.items()
    }
    return replace(event, prepared=cut)


@pytest.mark.parametrize("damage", ["missing", "cut", "renamed"])
@pytest.mark.slow
def test_only_the_process_that_learns_entries_judges_them(damage, url, tmp_path):
    one, other, third = (Guard.open(url, fpr=RATE) for _ in range(3))
    one.fit(labelled(passages(300, 1), 1)).calibrate()
    third.writes.catch_up()
    one.learn(passages(80, 2, "new"))
    with mock.patch.object(SimilarityGraph, "nearest", side_effect=AssertionError):
        other.writes.catch_up()
    known = concatenate([passages(40, 3, "more"), group(5, 3)])
    for rows in np.array_split(np.random.default_rng(5).permutation(len(known)), 4):
        written(one, known.take(rows))
    one.writes.settled()  # thresholds are taken in the background
    other.writes.catch_up()
    apply = GuardState.apply
    with mock.patch.object(
        GuardState, "apply", lambda state, event: apply(state, without(damage, event))
    ):
        third.writes.catch_up()
    assert_same(one, other, tmp_path)
    assert_same(one, third, tmp_path)


@pytest.mark.slow
def test_a_thread_that_gives_up_its_turn_does_not_take_that_of_the_next_thread(url, monkeypatch):
    """Thresholds that are outdated are given up in a thread of their own while others write."""
    first, second = opened(url, 2)
    leave, taken = turns.Turns._leave, []

    def leave_late(these):
        time.sleep(10 * turns.PAUSE)  # the next thread would have its turn by now
        leave(these)

    monkeypatch.setattr(turns.Turns, "_leave", leave_late)
    turn = first.writes.take_turn()
    next_thread = threading.Thread(target=lambda: taken.append(first.writes.take_turn()))
    next_thread.start()
    first.writes.give_up_turn(turn)
    next_thread.join(30)
    assert queued(second) == [first.writes.writer]
    first.writes.together(lambda: first.learn(passages(1, 1, "next")), turn=taken[0])
    second.writes.catch_up()
    assert second.n_known == 1


@pytest.mark.slow
def test_a_write_without_a_turn_leaves_that_of_a_thread_that_queued_meanwhile(url):
    first, second = opened(url, 2)
    database, taken = first.quarantine.database, []
    write, waiting = database.write_rows, []

    def write_late(work):
        if not waiting:  # the other thread queues between the decision to write and the write
            waiting.append(threading.Thread(target=lambda: taken.append(first.writes.take_turn())))
            waiting[0].start()
            while queued(second) != [first.writes.writer]:
                time.sleep(turns.PAUSE)
        return write(work)

    with mock.patch.object(database, "write_rows", write_late):
        first.learn(passages(1, 1, "without"))
    waiting[0].join(30)
    assert queued(second) == [first.writes.writer]
    first.writes.together(lambda: first.learn(passages(1, 1, "with")), turn=taken[0])
    second.writes.catch_up()
    assert second.n_known == 2


@pytest.mark.slow
def test_nobody_leaves_the_queue_for_a_thread_that_has_a_turn(url):
    first, _ = opened(url, 2)
    turn = first.writes.take_turn()
    first.writes._turns.leave_queue()
    assert queued(first) == [first.writes.writer]
    first.writes.together(lambda: first.learn(passages(1, 1, "next")), turn=turn)
    first.writes._turns.leave_queue()
    assert queued(first) == []


@pytest.mark.slow
def test_a_writer_far_from_its_turn_leaves_the_journal_to_those_before_it(url, monkeypatch):
    monkeypatch.setattr(turns, "NEXT", 1)
    first, second, third = opened(url, 3)
    turn, read = first.writes.take_turn(), {}

    def wait_and_learn(guard, name):
        mine = guard.writes.take_turn()
        time.sleep(5 * turns.PAUSE)
        read[name] = [each.writes.position for each in (second, third)]
        guard.writes.together(lambda: guard.learn(passages(1, 1, name)), turn=mine)

    waiting = []
    for guard, name in ((second, "second"), (third, "third")):
        waiting.append(threading.Thread(target=wait_and_learn, args=(guard, name)))
        waiting[-1].start()
        while len(queued(first)) < 1 + len(waiting):
            time.sleep(turns.PAUSE)
    start = third.writes.position
    first.writes.together(lambda: first.learn(passages(1, 1, "first")), turn=turn)
    for thread in waiting:
        thread.join(30)
    assert read == {"second": [start + 1, start], "third": [start + 2, start + 2]}


@pytest.mark.slow
@pytest.mark.parametrize("queues", [False, True])
def test_thresholds_do_not_wait_for_the_writers_in_the_queue(url, queues):
    """Every writer before them lets more entries in by outdated thresholds."""
    one, other, third = opened(url, 3, fpr=RATE)
    one.fit(passages(300, 1)).calibrate()
    waiting, order = [], []

    def write(guard, name):
        mine = guard.writes.take_turn()
        order.append((name, guard.status().calibrated_at))
        guard.writes.together(lambda: guard.learn(passages(1, len(name), name)), turn=mine)

    with slow_thresholds() as begun:
        one.learn(passages(60, 2, "new"))
        assert begun.wait(30)
        turn = other.writes.take_turn()
        for guard, name in [(third, "third"), *[(one, "one")] * queues]:
            waiting.append(threading.Thread(target=write, args=(guard, name)))
            waiting[-1].start()
            while len(queued(other)) < 1 + len(waiting):
                time.sleep(turns.PAUSE)
    until = time.monotonic() + 30
    while queued(other)[1] != one.writes.writer and time.monotonic() < until:
        time.sleep(turns.PAUSE)
    other.writes.give_up_turn(turn)
    for thread in waiting:
        thread.join(30)
    one.writes.settled()
    if queues:  # a thread of the process that has thresholds goes before them
        assert [name for name, _ in order] == ["one", "third"]
    else:
        assert order == [("third", 360)]
    assert one.status().calibrated_at == 360


def queued(guard):
    """Return the writers that wait for their turn, and the one that has it."""
    with guard.quarantine.database.read() as session:
        return Journal().queue(session, 9)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.slow
def test_group_trickling_over_workers_is_found_as_by_one(workers, url):
    alone = Guard([CliqueDetector()], policy=Policy(), quarantine=Quarantine("sqlite://"))
    shared = opened(url, workers)
    for one in (alone, shared[0]):
        one.fit(passages(300, 1)).calibrate(fpr=RATE)
    bad = group(5, 3)
    found = []
    for guards in ([alone] * workers, shared):
        verdicts, recalled = [], set()
        for number in range(len(bad)):
            report = written(guards[number % workers], bad.take([number]))
            verdicts += [decision.verdict for decision in report.decisions]
            recalled |= {decision.entry_id for decision in report.retroactive}
        found.append((verdicts, recalled))
    assert found[0] == found[1]
    assert "quarantine" in found[0][0]


def test_release_by_one_worker_counts_for_the_other(url):
    one, other = opened(url, detectors=Scripted)
    report = written(one, scored([5]))
    assert [decision.entry_id for decision in report.quarantined] == ["s0"]
    other.quarantine.release(["s0"], by="anna")
    other.writes.forget_held(["s0"])
    assert written(one, scored([5])).admitted.all()


def test_callbacks_run_only_in_the_process_that_learns(url):
    one, other = opened(url)
    told = []
    one.writes.on_learned.append(lambda batch: told.append(("one", batch.ids)))
    other.writes.on_learned.append(lambda batch: told.append(("other", batch.ids)))
    one.learn(passages(1, 1))
    other.writes.catch_up()
    assert other.writes.known(["kb-0"]) == ["kb-0"]
    assert told == [("one", ("kb-0",))]


@pytest.mark.slow
def test_due_recalibration_runs_once(url):
    one, other = opened(url, fpr=RATE)
    with mock.patch.object(
        GuardState, "apply", autospec=True, side_effect=GuardState.apply
    ) as applied:
        for number in range(10):
            (one, other)[number % 2].learn(passages(20, number, f"p{number}"))
        one.writes.catch_up()
    events = [call.args[1].change for call in applied.call_args_list]
    assert one.calibrated
    assert other.calibrated
    assert events.count("recalibrated") == 1
    assert one.calibration.thresholds == other.calibration.thresholds


@pytest.mark.slow
def test_one_process_takes_thresholds_and_the_others_load_them(url, tmp_path, monkeypatch):
    one, other = opened(url, fpr=RATE)
    one.fit(passages(300, 1)).calibrate()
    other.writes.catch_up()
    before = one.calibration.thresholds
    scores = mock.patch.object(
        CliqueDetector, "held_out_scores", autospec=True, side_effect=CliqueDetector.held_out_scores
    )
    with scores as scored_sample:
        one.learn(passages(80, 2, "new"))
        one.writes.settled()
        monkeypatch.setattr(CliqueDetector, "refresh", mock.Mock(side_effect=AssertionError))
        other.writes.catch_up()
    assert scored_sample.call_count == 1
    assert_same(one, other, tmp_path)
    assert one.calibration.thresholds != before
    assert other.calibration.thresholds == one.calibration.thresholds
    assert other.status().calibrated_at == one.status().calibrated_at == 380


@pytest.mark.slow
@pytest.mark.parametrize(
    ("detector", "measures"),
    [
        (CliqueDetector, "outliers"),
        (LeadingQuestionDetector, "outliers"),
        (DisfluencyDetector, "refresh"),
    ],
)
def test_one_process_measures_for_all_in_a_recalibration(
    url, tmp_path, detector, measures, monkeypatch
):
    monkeypatch.setattr(disfluency, "MIN_TOKENS", 1_000)
    one, other = opened(url, detectors=detector, fpr=RATE)
    one.adopt(passages(300, 1), at_most=0.2)
    other.writes.catch_up()
    called = getattr(detector, measures)
    with mock.patch.object(detector, measures, autospec=True, side_effect=called) as asked:
        one.learn(passages(80, 2, "new"))
        one.writes.settled()
        assert (before := asked.call_count) > 0
        other.writes.catch_up()
        assert asked.call_count == before
    assert other.status().calibrated_at == 380
    assert_same(one, other, tmp_path)


def test_no_write_makes_the_lists_for_searches_and_all_processes_get_the_same(
    url, tmp_path, monkeypatch
):
    monkeypatch.setattr(index, "EXACT_UP_TO", 320)
    one, other = opened(url, detectors=CliqueDetector, fpr=RATE)
    one.adopt(passages(300, 1), at_most=0.2)
    other.writes.catch_up()
    trained, threads = InvertedLists.trained, []

    def making(*given):
        threads.append(threading.current_thread().name)
        return trained(*given)

    monkeypatch.setattr(InvertedLists, "trained", making)
    for n_made, n_known in ((1, 380), (2, 900)):  # first ones, and once they have doubled
        for number in range(len(one.writes.known_ids()), n_known, 20):
            one.learn(passages(20, number, f"new{number}-"))
            one.writes.settled()
        other.writes.catch_up()
        assert threads == ["ragshield-thresholds"] * n_made
        for guard in (one, other):
            graph = guard.detectors[0]._known.graph
            assert len(graph.index.lists.numbers_of(graph.present)) == n_known
    assert_same(one, other, tmp_path)


def test_events_of_held_entries_follow_those_of_learned_ones(url):
    one, other = opened(url, detectors=Scripted)
    report = one.screen(scored([5, 0]))

    def hold_and_admit():
        one.hold(report)
        one.admit(report)

    one.writes.together(hold_and_admit)
    apply = mock.patch.object(GuardState, "apply", autospec=True, side_effect=GuardState.apply)
    with apply as applied:
        other.writes.catch_up()
    changes = [call.args[1].change for call in applied.call_args_list]
    assert changes[-1] == "held"
    assert "learned" in changes


@contextmanager
def slow_thresholds():
    """Have thresholds that are taken in the background wait until the caller lets them go on."""
    begun, go_on = threading.Event(), threading.Event()
    measured = Recalibration.measured

    def waiting(self, confirmed):
        found = measured(self, confirmed)
        begun.set()
        assert go_on.wait(30)
        return found

    with mock.patch.object(Recalibration, "measured", waiting):
        yield begun
        go_on.set()


@pytest.mark.slow
def test_old_thresholds_hold_while_new_ones_are_computed(url, tmp_path):
    one, other = opened(url, fpr=RATE)
    one.fit(passages(300, 1)).calibrate()
    before = one.calibration.thresholds
    with slow_thresholds() as begun:
        one.learn(passages(80, 2, "new"))
        assert begun.wait(30)
        for number, writer in enumerate((one, other, one)):
            report = writer.screen(passages(5, 3 + number, f"during{number}-"))
            assert report.calibrated_at == 300
            writer.admit(writer.hold(report))
    one.writes.settled()
    other.writes.catch_up()
    late = Guard.open(url)
    assert one.calibration.thresholds != before
    assert one.status().calibrated_at == 380 < one.n_known  # measured then
    with one.quarantine.database.read() as session:
        assert status_of(session, url, "default").calibrated_at == 380
    assert one.status().calibrated_on is not None
    for guard in (other, late):
        assert guard.calibration.thresholds == one.calibration.thresholds
        assert_same(one, guard, tmp_path)


@pytest.mark.slow
def test_usual_values_of_a_copy_leave_what_changed_meanwhile(url, tmp_path):
    one, other = opened(url, fpr=RATE)
    known = passages(400, 1)
    one.fit(known).calibrate()
    with (
        mock.patch.object(groups, "measure", wraps=groups.measure) as measured,
        slow_thresholds() as begun,
    ):
        one.learn(passages(90, 2, "new"))
        assert begun.wait(30)
        other.learn(clones_of(known[7], 3, "copy"))
        other.forget(known.take([3, 5]))
        assert measured.call_count == 1
    one.writes.settled()
    other.writes.catch_up()
    assert one.status().calibrated_at == 490
    assert measured.call_count == 1
    assert_same(one, other, tmp_path)
    for guard in (one, other):
        known_to = next(d for d in guard.detectors if d.name == "clique")._known
        graph = known_to.graph
        # Resemblance within a document is translated anew, the rest must be what it is.
        for channel in ("cross", "same"):
            now = known_to.tightness(graph.part(graph.present))[channel]
            np.testing.assert_array_equal(known_to.notes[channel][graph.present], now)
        changed = graph.index.slots_of(["copy-0", known.ids[7]])
        assert not known_to.notes["measured"][changed].any()
        assert known_to.notes["measured"].any()


@pytest.mark.slow
def test_outliers_that_a_copy_found_count_nowhere(url):
    one, other = (Guard.open(url, fpr=RATE) for _ in range(2))  # with all detectors
    known = passages(400, 1)
    one.adopt(known, at_most=0.2)
    odd, references = {known.ids[7], known.ids[90]}, []
    refresh = TriggerPhraseDetector.refresh

    def referring(self, reference):
        references.append(set(reference.ids))
        return refresh(self, reference)

    with (
        mock.patch.object(
            CliqueDetector, "outliers", lambda _, batch: np.array([i in odd for i in batch.ids])
        ),
        mock.patch.object(TriggerPhraseDetector, "refresh", referring),
    ):
        with slow_thresholds() as begun:
            one.learn(passages(90, 2, "new"))
            assert begun.wait(30)
            other.forget(known.take([3, 7]))
        one.writes.settled()
        other.writes.catch_up()
    copy, *live = references
    assert copy.isdisjoint(odd)
    assert len(live) == 2  # both processes
    for reference in live:
        assert reference == copy - {known.ids[3]}


@pytest.mark.slow
def test_newer_calibration_outlasts_a_slow_background_one(url):
    one, other = opened(url, fpr=RATE)
    one.fit(passages(300, 1)).calibrate()
    with slow_thresholds() as begun:
        one.learn(passages(80, 2, "new"))
        assert begun.wait(30)
        other.fit(passages(320, 7, "again")).calibrate()
        thresholds = other.calibration.thresholds
    one.writes.settled()
    assert one.calibration.thresholds == thresholds
    assert one.status().calibrated_at == 320


@pytest.mark.slow
def test_thresholds_of_a_process_that_crashed_are_taken_by_another(url):
    one, other = opened(url, fpr=RATE)
    one.fit(passages(300, 1)).calibrate()
    claim = partial(Journal(lease=30).claim, task=MEASURES, writer="dead")
    assert one.quarantine.database.write(claim)
    one.learn(passages(80, 2, "new"))
    other.learn(passages(1, 3, "more"))
    for guard in (one, other):
        if (thread := guard.writes._measuring) is not None:
            thread.join()
    assert one.status().calibrated_at == 300
    silence = "UPDATE ragshield_journal_writers SET heartbeat = 0"
    one.quarantine.database.write(lambda s: s.connection().exec_driver_sql(silence))
    other.writes.settled()
    assert other.status().calibrated_at == 381
    one.writes.catch_up()
    assert one.calibration.thresholds == other.calibration.thresholds


@pytest.mark.slow
def test_thresholds_that_cannot_be_taken_stay_for_all(url, caplog):
    one, other = opened(url, fpr=RATE)
    one.fit(passages(300, 1)).calibrate()
    before = one.calibration.thresholds
    broken = mock.patch.object(CliqueDetector, "held_out_scores", side_effect=OSError("broken"))
    with broken, caplog.at_level("WARNING", "ragshield"):
        one.learn(passages(80, 2, "new"))
        one.writes.settled()
    assert "thresholds stay as they were" in caplog.text
    other.writes.catch_up()
    for guard in (one, other):
        assert guard.calibration.thresholds == before
        assert guard.status().calibrated_at == 380


@pytest.mark.slow
def test_thresholds_can_be_taken_in_the_foreground(url):
    (one,) = opened(url, 1, fpr=RATE)
    one.fit(passages(300, 1)).calibrate()
    one.writes.in_background = False
    one.learn(passages(80, 2, "new"))
    assert one.status().calibrated_at == 380


def test_failed_learning_stops_no_other_worker(url):
    one, other = opened(url)
    one.learn(passages(5, 1))
    with pytest.raises(InvalidBatchError, match="dimensions"):
        other.learn(topical("billing", 3))
    one.learn(passages(5, 2, "more"))
    other.writes.catch_up()
    assert len(other.writes.known(passages(5, 2, "more").ids)) == 5


@pytest.mark.parametrize("start", ["nothing", "fitted"])
@pytest.mark.slow
def test_workers_agree_after_any_sequence_of_events(start, url, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 200)
    one, other = (Guard.open(url, fpr=RATE) for _ in range(2))
    known = []
    if start == "fitted":
        known = [labelled(passages(300, 1), 1)]
        one.fit(known[0]).calibrate()
    writer = Writer(one, known, seed=5)
    for _ in range(100):
        writer.guard = (one, other)[writer.rng.integers(2)]
        writer.guard.writes.catch_up()
        writer.step()
    for guard in (one, other):  # thresholds may still be taken in the background
        guard.writes.settled()
    one.writes.catch_up()
    other.writes.catch_up()
    late = Guard.open(url)
    assert one.calibrated
    assert_same(one, other, tmp_path)
    assert_same(one, late, tmp_path)


# As a whole


@pytest.mark.slow
def test_refit_replaces_the_state_of_all_workers(url, tmp_path):
    one, other = opened(url)
    one.learn(passages(10, 1))
    other.adopt(passages(300, 2, "other"), at_most=0.2)
    assert one.writes.catch_up() > 0
    assert one.writes.known(["kb-0"]) == []
    assert one.calibrated
    assert_same(one, other, tmp_path)


def test_a_guard_that_is_fitted_again_and_again_keeps_only_the_last_snapshots(url):
    (one,) = opened(url, 1)
    for number in range(4):
        one.fit(passages(60, number))
    with one.quarantine.database.read() as session:
        counted = "SELECT count(DISTINCT snapshot) FROM ragshield_snapshot_chunks"
        assert session.connection().exec_driver_sql(counted).scalar() == 2
        left = session.connection().exec_driver_sql("SELECT count(*) FROM ragshield_journal")
        assert left.scalar() <= 2


def test_a_sweep_that_fails_fails_no_write_and_is_made_up_for(url, caplog):
    (one,) = opened(url, 1)
    with mock.patch.object(Snapshots, "sweep", side_effect=OSError("disk full")):
        for number in range(3):
            one.fit(passages(60, number))
    assert "old snapshots and events are not all deleted yet (OSError)" in caplog.text
    one.fit(passages(60, 9))
    with one.quarantine.database.read() as session:
        counted = "SELECT count(DISTINCT snapshot) FROM ragshield_snapshot_chunks"
        assert session.connection().exec_driver_sql(counted).scalar() == 2


def test_failed_fit_changes_nothing_and_blocks_nobody(url):
    one, other = opened(url, detectors=lambda: LabelCentroidDetector(min_entries=2))
    one.fit(knowledge_base())
    bad = replace(knowledge_base(), embeddings=np.empty((60, 0), np.float32))
    bad = replace(bad, vectors=bad.embeddings)
    with pytest.raises(InvalidBatchError, match="no vector"):
        other.fit(bad)
    assert len(other.writes.known(knowledge_base().ids)) == 60
    one.learn(topical("billing", 1, prefix="new"))
    other.writes.catch_up()
    assert other.writes.known(["new-billing-0"]) == ["new-billing-0"]


@pytest.mark.slow
def test_snapshots_shorten_the_journal_and_restore_lagging_workers(url, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 20)
    one, asleep = opened(url, lease=0.2)
    for number in range(30):
        one.learn(passages(6, number, f"p{number}"))
        one.writes.settled()
        threading.Event().wait(0.01)  # until the one that sleeps counts as gone
    with one.quarantine.database.read() as session:
        left = session.connection().exec_driver_sql("SELECT count(*) FROM ragshield_journal")
        assert left.scalar() < 25
    assert asleep.writes.catch_up() == 30
    assert asleep.writes.known(["p29-0"]) == ["p29-0"]
    assert_same(one, asleep, tmp_path)


def test_a_snapshot_is_of_its_position_although_writers_go_on(url, monkeypatch):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 120)
    (one,) = opened(url, 1, detectors=TriggerPhraseDetector)
    write_pieces, begun, go_on = Snapshots.write_pieces, threading.Event(), threading.Event()

    def slowly_written(*args):
        begun.set()
        assert go_on.wait(10)
        return write_pieces(*args)

    monkeypatch.setattr(Snapshots, "write_pieces", slowly_written)
    one.learn(passages(120, 1))
    assert begun.wait(10)
    position = one.writes.position
    arrays = {name: array.copy() for name, array in one.state.to_parts()[1].items()}
    one.forget(passages(120, 1).take(range(10)))
    go_on.set()
    one.writes.settled()
    whole = one.writes.latest()
    assert whole.position == position < one.writes.position
    for name, array in arrays.items():
        np.testing.assert_array_equal(whole.arrays[name], array)


@pytest.mark.slow
def test_one_process_writes_a_snapshot_for_all(url, monkeypatch):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 120)
    guards = opened(url, 3, detectors=TriggerPhraseDetector)
    write_pieces, begun, go_on = Snapshots.write_pieces, [], threading.Event()

    def slowly_written(*args):
        begun.append(args)
        assert go_on.wait(10)
        return write_pieces(*args)

    monkeypatch.setattr(Snapshots, "write_pieces", slowly_written)
    for number in range(6):
        guards[number % 3].learn(passages(60, number, f"p{number}"))
    while not begun:
        threading.Event().wait(0.01)
    guards[0].learn(passages(60, 7, "more"))
    next(guard for guard in guards if guard.writes._saving is None).close()
    go_on.set()
    for guard in guards:
        guard.writes.settled()
    assert len(begun) == 1


@pytest.mark.slow
def test_a_snapshot_of_a_process_that_crashed_is_written_by_another(url, monkeypatch):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 120)
    one, other = opened(url, detectors=TriggerPhraseDetector)
    assert one.quarantine.database.write(partial(Journal().claim, task=SAVES, writer="dead"))
    before = one.writes.latest().position
    for number, guard in enumerate((one, other)):
        guard.learn(passages(100, number, f"p{number}"))
        guard.writes.settled()
    assert one.writes.latest().position == before
    silence = "UPDATE ragshield_journal_writers SET heartbeat = 0"
    one.quarantine.database.write(lambda s: s.connection().exec_driver_sql(silence))
    one.learn(passages(1, 3, "more"))
    one.writes.settled()
    assert one.writes.latest().position == one.writes.position


@pytest.mark.slow
def test_closed_guard_leaves_nothing_to_replay(url, monkeypatch):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 10)
    replayed = []
    for closing in (False, True):
        (one,) = opened(url, 1)
        one.learn(passages(600, 1, f"many{closing}"))
        one.writes.settled()
        for number in range(15):
            one.learn(passages(1, number, f"{closing}{number}"))
        if closing:
            one.close()
        with mock.patch.object(
            GuardState, "apply", autospec=True, side_effect=GuardState.apply
        ) as applied:
            (late,) = opened(url, 1)
        assert late.writes.known([f"{closing}14-0"])
        replayed.append(applied.call_count)
    assert replayed == [15, 0]


def test_many_rows_trigger_a_snapshot_sooner_than_one(url, monkeypatch):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 30)
    snapshots = []
    for rows in (1, 12):  # of twelve entries together
        (one,) = opened(url, 1)
        for number in range(rows):
            one.learn(passages(12 // rows, number, f"{rows}-{number}"))
            one.writes.settled()
        with one.quarantine.database.read() as session:
            latest = "SELECT max(position) FROM ragshield_snapshots"
            snapshots.append(session.connection().exec_driver_sql(latest).scalar())
        one.close()
    first, second = snapshots
    assert first < second


def test_a_damaged_snapshot_is_passed_over_for_the_one_before(url, monkeypatch, caplog):
    monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 20)
    (one,) = opened(url, 1)
    for number in range(3):
        one.learn(passages(20, number, f"p{number}"))
        one.writes.settled()
    latest = "SELECT id FROM ragshield_snapshots ORDER BY position DESC LIMIT 1"
    damage = f"UPDATE ragshield_snapshot_chunks SET data = x'00' WHERE snapshot = ({latest})"  # noqa: S608
    one.quarantine.database.write(lambda s: s.connection().exec_driver_sql(damage))
    (late,) = opened(url, 1)
    assert late.writes.known(["p2-19"]) == ["p2-19"]
    assert "a snapshot cannot be read" in caplog.text


# Opening


def test_opened_guard_keeps_its_stored_detectors(url):
    opened(url, 1)
    assert [d.name for d in Guard.open(url).detectors] == ["clique"]
    with pytest.raises(StateError, match=r"has the detectors clique, .*given \(scripted\)"):
        Guard.open(url, detectors=[Scripted()])
    with pytest.raises(StateError, match="other options"):
        Guard.open(url, detectors=[CliqueDetector(trusted_lineages=["a"])])


def test_status_tells_how_far_behind_a_guard_is(url):
    one, other = opened(url)
    one.learn(passages(1, 1))
    one.learn(passages(1, 2, "more"))
    assert (one.status().position, one.status().behind) == (3, 0)
    assert (other.status().position, other.status().behind) == (1, 2)
    assert "this process is 2 behind" in str(other.status())
    other.screen(passages(1, 3, "new"))
    assert other.status().behind == 0
    alone = Guard([CliqueDetector()], quarantine=Quarantine("sqlite://"))
    assert alone.status().position is None
    assert "journal" not in str(alone.status())


@pytest.mark.slow
def test_a_guard_that_was_opened_is_saved_and_loaded_as_any_other(url, tmp_path):
    (one,) = opened(url, 1)
    one.fit(passages(300, 1)).calibrate(fpr=RATE)
    one.save(tmp_path / "saved")
    loaded = Guard.load(tmp_path / "saved", quarantine=Quarantine("sqlite://"))
    assert not loaded.writes.shared
    assert_same(one, loaded, tmp_path)


def test_writer_that_lost_its_turn_writes_nothing(url):
    one, other = opened(url)
    turn = one.writes.take_turn()
    silence = "UPDATE ragshield_journal_writers SET heartbeat = 0"
    one.quarantine.database.write(lambda s: s.connection().exec_driver_sql(silence))
    other.learn(passages(1, 2, "more"))
    with pytest.raises(OvertakenError, match=r"lost its turn .* write it again"):
        one.writes.together(lambda: one.learn(passages(1, 1)), turn=turn)
    with pytest.raises(OvertakenError, match="turn to write is over"):
        one.writes.together(lambda: one.learn(passages(1, 1)), turn=turn)
    assert one.writes.known(["kb-0"]) == []
    one.writes.together(lambda: one.learn(passages(1, 1)))
    assert one.writes.known(["kb-0", "more-0"]) == ["kb-0", "more-0"]
    assert other.writes.catch_up() == 1


def test_a_plain_write_passes_a_thread_that_others_overtook(url):
    one, other = opened(url)
    turn = one.writes.take_turn(queue=False)
    other.learn(passages(1, 1, "other"))
    one.learn(passages(1, 2, "plain"))
    with pytest.raises(OvertakenError, match="turn to write is over"):
        one.writes.together(lambda: one.learn(passages(1, 3, "mine")), turn=turn)
    one.writes.give_up_turn(turn)  # it is already lost
    assert one.writes.known(["other-0", "plain-0", "mine-0"]) == ["other-0", "plain-0"]


def test_a_refused_plain_write_leaves_the_turn_that_a_thread_takes_meanwhile(url):
    (one,) = opened(url, 1)
    database, taken = one.quarantine.database, []
    write = database.write_rows

    def refused(work):
        if not taken:
            taken.append(one.writes.take_turn(queue=False))
            raise OvertakenError
        return write(work)

    with mock.patch.object(database, "write_rows", refused):
        one.learn(passages(1, 1, "plain"))
    one.writes.together(lambda: one.learn(passages(1, 2, "mine")), turn=taken[0])
    assert one.n_known == 2


def test_a_thread_that_waited_without_a_turn_leaves_the_queue_as_it_writes(url):
    one, other = opened(url)
    one.writes.give_up_turn(one.writes.take_turn())
    one.quarantine.database.write(lambda s: Journal().take_turn(s, one.writes.writer))
    one.learn(passages(1, 1))
    assert queued(other) == []


def test_a_thread_that_does_not_queue_leaves_the_place_of_one_that_does(url):
    one, other = opened(url)
    one.quarantine.database.write(lambda s: Journal().take_turn(s, one.writes.writer))
    one.writes.in_turn(lambda: passages(1, 1), one.learn)
    assert queued(other) == [one.writes.writer]
    with pytest.raises(ZeroDivisionError):
        one.writes.in_turn(lambda: 1 // 0, one.learn)
    assert queued(other) == [one.writes.writer]
    one.writes._turns.leave_queue()
    assert queued(other) == []


def test_threads_take_turns_but_plain_writes_do_not_wait(url):
    one, other = opened(url)
    turn, second = one.writes.take_turn(), []

    def wait_and_learn():
        mine = one.writes.take_turn()
        second.append(one.writes.known(["first-0"]))
        one.writes.together(lambda: one.learn(passages(1, 3, "second")), turn=mine)

    waiting = threading.Thread(target=wait_and_learn)
    waiting.start()
    one.learn(passages(1, 1, "beside"))
    one.writes.together(lambda: one.learn(passages(1, 2, "also")))
    assert not second
    one.writes.together(lambda: one.learn(passages(1, 2, "first")), turn=turn)
    one.writes.give_up_turn(turn)  # it is already used up
    waiting.join(30)
    assert second == [["first-0"]]
    other.learn(passages(1, 4, "other"))
    assert other.n_known == 5


class Hearing:
    """Hears what notifiers do."""

    def __init__(self):
        self.reports = []

    def screened(self, report, quarantine):
        waiting = 0 if quarantine.database.writing else quarantine.count()
        self.reports.append((report.quarantined[0].entry_id, waiting))

    def asked(self, questions, quarantine):
        pass

    def tell(self, notice):
        pass


@contextmanager
def failing_commits(guard, *errors):
    """Have the next commits of writes fail."""
    left = list(errors)

    def fail(connection):
        if connection.get_execution_options().get(WRITES) and left:
            raise left.pop(0)

    with guard.quarantine.database.engine() as engine:
        event.listen(engine, "commit", fail)
    try:
        yield
    finally:
        event.remove(engine, "commit", fail)
    assert not left


def test_held_entry_is_notified_once_and_only_when_durable(url):
    (one,) = opened(url, 1, detectors=Scripted)
    hearing = Hearing()
    one.notify(hearing)
    report = one.screen(scored([5]))
    one.writes.together(lambda: one.hold(report))
    assert hearing.reports == [("s0", 1)]
    later = one.screen(scored([5], prefix="t"))
    with failing_commits(one, OSError("no space left")), pytest.raises(OSError, match="no space"):
        one.writes.together(lambda: one.hold(later))
    assert (len(hearing.reports), one.quarantine.count()) == (1, 1)
    one.writes.together(lambda: one.hold(later))
    assert hearing.reports[1:] == [("t0", 2)]


# Processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.slow
def test_a_forked_worker_takes_part_as_another_one(url):
    one, other = opened(url)
    one.learn(passages(2, 1))
    child = os.fork()
    if not child:
        status = 1
        try:
            one.learn(passages(2, 2, "child"))
            other.screen(passages(1, 3, "new"))
            status = len(other.writes.known(["kb-0", "child-1"])) - 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    one.learn(passages(2, 4, "parent"))
    other.writes.catch_up()
    assert len(other.writes.known(["kb-0", "child-0", "parent-0"])) == 3
    with one.quarantine.database.read() as session:
        writers = "SELECT count(DISTINCT writer) FROM ragshield_journal WHERE kind = 'learned'"
        assert session.connection().exec_driver_sql(writers).scalar() == 2


WORKER = """
import json, sys
sys.path.insert(0, sys.argv[3])
from support import passages
from ragshield_core import Guard
from ragshield_core.detectors import CliqueDetector

url, name = sys.argv[1:3]
print("ready", flush=True)
sys.stdin.readline()
guard = Guard.open(url, detectors=[CliqueDetector()])
for number in range(10):
    guard.learn(passages(3, number, f"{name}-{number}-"))
    guard.screen(passages(3, 99, "probe"))
print("done", flush=True)
sys.stdin.readline()
guard.writes.catch_up()
print(json.dumps(sorted(guard.state.knowledge.known)))
"""


@pytest.mark.slow
def test_processes_that_open_an_empty_database_at_once_have_one_journal(any_url, tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    here = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, any_url, str(n), here], text=True, **pipes)
        for n in range(4)
    ]
    for word in ("ready", "done"):
        for worker in workers:
            assert worker.stdout.readline() == f"{word}\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
    known = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    assert len(known[0]) == 4 * 10 * 3
    assert known == [known[0]] * 4
    one, other = opened(any_url)
    assert sorted(one.state.knowledge.known) == known[0]
    assert_same(one, other, tmp_path)


def test_the_log_of_an_opened_guard_is_anchored_and_verifies(tmp_path):
    heads = []
    url = f"sqlite:///{tmp_path / 'guard.db'}"
    guard = Guard.open(url, detectors=[Scripted()], anchor=heads.append)
    batch = Batch.of(ids=["a", "b"], texts=["score=5", "fine"], embeddings=np.eye(2))
    guard.admit(guard.hold(guard.screen(batch)))
    assert len(heads) == 1
    assert guard.quarantine.log.head() == heads[-1]
    guard.quarantine.release(["a"])
    assert len(heads) == 2
    guard.quarantine.log.verify(heads[0])
    guard.quarantine.log.verify(heads[1])
    guard.close()


def test_a_database_without_its_snapshots_is_named(on_file):
    with Guard.open(on_file, detectors=[Scripted()]):
        pass
    connection = sqlite3.connect(on_file.removeprefix("sqlite:///"))
    with contextlib.closing(connection), connection:
        connection.execute("DELETE FROM ragshield_snapshots")
    with pytest.raises(StateError, match="and none of its snapshots"):
        Guard.open(on_file, detectors=[Scripted()])
