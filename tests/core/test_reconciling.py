"""Differences between a store and its guard are found, reported and repaired."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest.mock import patch

import pytest
from shared_store import FolderKeeper, add
from support import Scripted, guard_of, meanwhile, passages, scored

from ragshield_core import Batch, Guard, PoisonedEntryError
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
from ragshield_core.model.errors import StoreDiffersWarning
from ragshield_core.store import recalling, reviewing, writing
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.reconciling import NAMED, reconciled, warn_if_different

PAST = scored([-0.9, 5.0], "past")  # the first is good, the second is poison


@pytest.fixture
def workers(url, tmp_path):
    """Return two keepers of one store with three entries, as two processes have them."""
    guards = [Guard.open(url, detectors=[Scripted()]) for _ in range(2)]
    keepers = [FolderKeeper(guard, tmp_path / "store") for guard in guards]
    add(keepers[0], scored([-0.9, -0.8, -0.7], "kb"))
    guards[1].writes.catch_up()
    return keepers


def compared(keeper, **mend):
    return keeper.run(reconciled, keeper, **mend)


def warned(keeper):
    """Return the warning when the store is opened, or None."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_if_different(keeper, "folder", stacklevel=2)
    said = [str(one.message) for one in seen if one.category is StoreDiffersWarning]
    assert len(said) <= 1
    return said[0] if said else None


def differing(keeper):
    """Write past the guard, change an entry and lose another."""
    keeper.store.write(PAST)
    keeper.store.write(scored([-0.3], "kb"))
    keeper.store.delete(["kb2"])


# Differences


def test_a_store_and_a_guard_that_agree_are_left_alone(workers):
    found = compared(workers[0], adopt=True, forget=True)
    assert found.agrees
    assert (found.n_stored, found.n_known) == (3, 3)
    assert warned(workers[0]) is None
    assert str(found) == "3 entries in the store, 3 known to the guard: they agree"


def test_all_differences_are_reported_without_any_change(workers):
    differing(workers[0])
    for keeper in workers:
        before = keeper.store.ids(), keeper.guard.status().position
        found = compared(keeper)
        assert not found.agrees
        assert found.unguarded == ("past0", "past1")
        assert found.changed == ("kb0",)
        assert found.missing == ("kb2",)
        assert (found.adopted, found.held, found.forgotten) == ((), (), ())
        assert (keeper.store.ids(), keeper.guard.status().position) == before


def test_opening_says_how_many_differ_and_what_to_do(workers, caplog):
    differing(workers[0])
    said = warned(workers[1])
    assert "holds 2 that the guard does not know ('past0', 'past1')" in said
    assert "lacks 1 that the guard knows ('kb2')" in said
    assert "reconcile(adopt=True)" in said
    assert "2 entries are not known, 1 are missing" in caplog.text


def test_opening_names_a_few_ids_escaped(workers):
    some = [f"{n}\x1b[2J\u202e" for n in range(NAMED + 3)]
    with patch.object(workers[0], "ids", lambda: ["kb0", "kb1", "kb2", *some]):
        said = warned(workers[0])
    assert f"holds {NAMED + 3} " in said
    assert said.count("\\u{1b}") == NAMED
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_store_that_cannot_list_ids_is_opened_without_a_warning(workers):
    differing(workers[0])
    with patch.object(FolderKeeper, "ids", Keeper.ids):
        assert warned(workers[0]) is None
        with pytest.raises(NotImplementedError, match="does not say which ids its store holds"):
            compared(workers[0])


def test_store_failure_at_opening_is_logged_without_its_message(workers, caplog):
    with patch.object(workers[0].store, "ids", side_effect=OSError("secret")):
        assert warned(workers[0]) is None
    assert "could not be compared (OSError)" in caplog.text
    assert "secret" not in caplog.text


def test_unopened_and_empty_guards_give_no_warning(url, tmp_path):
    alone = FolderKeeper(guard_of(Scripted()), tmp_path / "a")
    add(alone, scored([-0.9], "kb"))
    new = FolderKeeper(Guard.open(url, detectors=[Scripted()]), tmp_path / "b")
    for keeper in (alone, new):
        keeper.store.write(PAST)
        assert warned(keeper) is None
        assert compared(keeper).unguarded == ("past0", "past1")


def test_held_entry_in_the_store_is_not_called_unguarded(workers):
    add(workers[0], scored([5.0], "bad"))
    workers[0].store.write(scored([5.0], "bad"))  # as a store that cannot delete has it
    assert warned(workers[0]) is None
    found = compared(workers[0])
    assert (found.unguarded, found.readable) == ((), ("bad0",))
    assert "store.recall(ids) takes them out" in str(found)
    workers[1].run(recalling.recall, workers[1], found.readable)
    assert "bad0" not in workers[0].store.ids()
    assert workers[0].guard.quarantine.count() == 1


def test_writes_in_progress_are_not_reported_as_differences(workers):
    one, other = workers
    seen = []
    write, delete = one.store.write, one.store.delete

    def looking(work):
        def watched(entries):
            seen.append((warned(other), compared(other)))
            work(entries)

        return watched

    with patch.object(one.store, "write", looking(write)):
        add(one, scored([-0.4, -0.4, -0.4, -0.4], "kb"))
    with patch.object(one.store, "delete", looking(delete)):
        one.run(writing.delete, one, ["kb3"])
    assert [said for said, _ in seen] == [None, None]
    assert all(found.agrees and found.n_moving for _, found in seen)
    assert compared(other).agrees


@pytest.mark.slow
def test_released_entry_missing_from_the_store_is_reported(workers):
    add(workers[0], scored([5.0], "bad"))
    workers[0].run(reviewing.release, workers[0], ["bad0"], "anna", None)
    workers[0].store.delete(["bad0"])  # the index was not saved before a crash
    found = compared(workers[1], forget=True)
    assert (found.released, found.missing, found.forgotten) == (("bad0",), (), ())
    assert "store.release(ids) puts them back" in str(found)
    workers[1].run(reviewing.release, workers[1], list(found.released), "anna", None)
    assert "bad0" in workers[1].store.ids()
    assert compared(workers[0]).agrees


def test_an_entry_that_cannot_be_judged_bears_it_alone(workers):
    differing(workers[0])
    read = workers[0].store.read

    def failing(ids):
        if "past0" in ids:
            msg = "its vector is of zeros"
            raise ValueError(msg)
        return read(ids)

    with patch.object(workers[0].store, "read", failing):
        found = compared(workers[0], adopt=True)
    assert (found.unreadable, found.held) == (("past0",), ("past1",))


def test_hostile_ids_are_shown_escaped(workers):
    workers[0].store.write(Batch.of(ids=["[red]\x1b[2J"], texts=["x"], embeddings=[[1.0, 1.0]]))
    shown = str(compared(workers[0]))
    assert "\x1b" not in shown
    assert "4 entries in the store, 3 known to the guard" in shown


# How it is mended


def test_entries_that_bypassed_the_guard_are_judged_on_adoption(workers, caplog):
    one, other = workers
    differing(one)
    found = compared(one, adopt=True, forget=True)
    assert (found.adopted, found.held, found.forgotten) == (("past0", "kb0"), ("past1",), ("kb2",))
    assert "1 held" in caplog.text
    assert one.store.ids() == ["kb0", "kb1", "past0"]
    for keeper in workers:
        assert compared(keeper, adopt=True, forget=True).agrees
        assert keeper.guard.writes.known_ids() == {"kb0", "kb1", "past0"}
        assert keeper.guard.status().pending == 0
    assert [held.id for held in other.guard.quarantine.list()] == ["past1"]


def test_only_named_entries_are_adopted_or_forgotten(workers):
    differing(workers[0])
    workers[0].store.delete(["kb1"])
    found = compared(workers[0], adopt=["past0", "nowhere"], forget=["kb1", "kb0"])
    assert (found.adopted, found.held, found.forgotten) == (("past0",), (), ("kb1",))
    assert workers[1].store.ids() == ["kb0", "past0", "past1"]
    with pytest.raises(TypeError, match="adopt is str, expected True, False or a list of ids"):
        compared(workers[0], adopt="past1")


def test_entry_released_by_a_reviewer_is_adopted(workers):
    quarantine = workers[0].guard.quarantine
    quarantine.hold(PAST.take([1]))
    quarantine.release(["past1"], by="anna")
    workers[0].store.write(PAST)
    assert compared(workers[0], adopt=True).adopted == ("past0", "past1")


def test_raising_policy_learns_no_suspicious_entry(tmp_path):
    guard = guard_of(Scripted(), on_detect="raise")
    keeper = FolderKeeper(guard, tmp_path / "store")
    keeper.store.write(PAST)
    with pytest.raises(PoisonedEntryError):
        compared(keeper, adopt=True)
    assert keeper.store.ids() == ["past0", "past1"]
    assert not guard.writes.known_ids()
    assert compared(keeper, adopt=["past0"]).adopted == ("past0",)


@pytest.mark.slow
def test_workers_reconciling_at_once_do_it_once(workers):
    one, other = workers
    differing(one)
    with meanwhile(one.guard, [lambda: compared(other, adopt=True, forget=True)]):
        compared(one, adopt=True, forget=True)
    for keeper in workers:
        assert compared(keeper).agrees
        assert keeper.guard.writes.known_ids() == {"kb0", "kb1", "past0"}
    assert one.guard.quarantine.count() == 1
    assert one.store.ids() == ["kb0", "kb1", "past0"]


@pytest.mark.parametrize("step", ["before the store is written", "after it was"])
def test_a_crash_in_the_middle_leaves_nothing_half_done(workers, step):
    one, other = workers
    differing(one)
    delete = one.store.delete

    def killed(ids):
        if step == "after it was":
            delete(ids)
        raise KeyboardInterrupt

    with patch.object(one.store, "delete", killed), suppress(KeyboardInterrupt):
        compared(one, adopt=True)
    assert other.guard.status().pending
    one.guard.close()
    assert other.recover()
    assert other.store.ids() == ["kb0", "kb1", "past0"]  # held entries have left
    found = compared(other, adopt=True, forget=True)
    assert (found.unguarded, found.readable) == ((), ())
    assert other.guard.writes.known_ids() == {"kb0", "kb1", "past0"}
    assert compared(other).agrees
    assert other.guard.quarantine.count() == 1


def test_entry_restored_by_another_worker_meanwhile_stays_known(workers):
    one, other = workers
    one.store.delete(["kb2"])
    read, begun = one.store.read, []
    back = scored([-0.9, -0.8, -0.7], "kb").take([2])
    with ThreadPoolExecutor() as threads:

        def reading(ids):
            if list(ids) == ["kb2"] and not begun:
                begun.append(threads.submit(add, other, back))
            return read(ids)

        with patch.object(one.store, "read", reading):
            compared(one, forget=True)
        begun[0].result()
    assert compared(one).agrees
    assert "kb2" in one.guard.writes.known_ids()


@pytest.mark.slow
def test_forgotten_entries_no_longer_count_for_any_detector(tmp_path):
    known = passages(300, 1)
    guards = [guard_of(CliqueDetector(), LabelCentroidDetector(min_entries=1)) for _ in range(2)]
    whole, less = (
        FolderKeeper(guard.fit(known), tmp_path / str(n)) for n, guard in enumerate(guards)
    )
    for keeper in (whole, less):
        keeper.store.write(known)
    less.store.delete(known.ids[:50])
    assert len(compared(less, forget=True).forgotten) == 50
    whole.run(writing.delete, whole, known.ids[:50])
    later = passages(20, 2, "later")
    ours, theirs = (keeper.guard.screen(later) for keeper in (less, whole))
    for name, column in theirs.scores.items():
        assert ours.scores[name] == pytest.approx(column, nan_ok=True)


def test_forgetting_works_without_an_index(tmp_path):
    guard = guard_of(LabelCentroidDetector(min_entries=1))
    keeper = FolderKeeper(guard.fit(passages(10, 1)), tmp_path / "store")
    keeper.store.write(passages(9, 1))
    assert len(compared(keeper, forget=True).forgotten) == 1
    assert len(guard.writes.known_ids()) == 9
