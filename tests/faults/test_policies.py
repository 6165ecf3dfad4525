"""If a detector fails, entries it did not judge are held, or let in and screened later."""

import asyncio
import re
import threading
from unittest import mock

import pytest
from small_store import HOSTILE, Moody, SmallKeeper, entries
from support import Scripted, group, passages
from test_database_away import ADAPTERS

from ragshield_core import Guard, Policy, Quarantine, RetrievalGuard
from ragshield_core.detectors import CliqueDetector, Scope, Traits
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.writes import TRIES
from ragshield_core.sharing import shared_writes as sharing
from ragshield_core.store import recalling, reviewing, writing
from ragshield_core.time_budget import MOST_LATE

OPEN = Policy(fail_open=True)


@pytest.fixture(autouse=True)
def mood():
    """Return a function that says how detectors feel from now on."""
    hung = []

    def set_mood(mood, among=""):
        Moody.mood, Moody.among = mood, among
        if isinstance(mood, threading.Event):
            hung.append(mood)

    Moody.mood, Moody.asked, Moody.among = None, 0, ""
    yield set_mood
    Moody.mood = None
    for event in hung:
        event.set()


def built(policy=None, detectors=None):
    detectors = [Moody(), Scripted()] if detectors is None else detectors
    return Guard(detectors, policy=policy, quarantine=Quarantine("sqlite://"))


def opened(tmp_path, policy=OPEN):
    # Detectors passed to `open` are rebuilt when a call is abandoned.
    return Guard.open(f"sqlite:///{tmp_path}/guard.db", detectors=[Moody()], policy=policy)


@pytest.fixture(params=["built", "opened"])
def guard(request, tmp_path):
    """Return a guard that fails open."""
    return built(OPEN) if request.param == "built" else opened(tmp_path)


def test_entry_is_held_with_a_note_if_a_detector_fails(mood, caplog):
    keeper = SmallKeeper(built(), {})
    mood("raises")
    report = keeper.add(a=f"fine {HOSTILE}")
    assert report.unscreened == ()
    held = keeper.guard.quarantine.show("a")
    assert held.findings == ()  # no evidence of poison
    assert held.note.endswith("not judged: moody failed on it")
    assert "RuntimeError" in held.note
    assert (keeper.store, keeper.guard.writes.known(["a"])) == ({}, [])
    assert "RuntimeError" in keeper.guard.status().failing["moody"]
    mood(None)
    keeper.run(reviewing.release, keeper, ["a"], "anna", None)
    assert keeper.seen() == {"a"}
    assert HOSTILE not in caplog.text


def test_fail_open_lets_in_unscreened_entries_and_records_an_event(mood, guard, caplog):
    keeper = SmallKeeper(guard, {})
    mood("raises")
    with mock.patch.object(
        GuardState, "apply", autospec=True, side_effect=GuardState.apply
    ) as applied:
        report = keeper.add(a=f"fine {HOSTILE}", b="score=5")
    events = [call.args[1] for call in applied.call_args_list]
    held = {"b"} if len(guard.detectors) > 1 else set()
    assert keeper.seen() == {"a", "b"} - held
    assert set(report.unscreened) == keeper.seen() == set(guard.writes.unscreened())
    assert guard.status().unscreened == len(report.unscreened)
    assert "let in although a detector failed" in report.summary()
    (event,) = [event for event in events if event.change == "unscreened"]
    assert set(event.failed) == keeper.seen()
    assert "RuntimeError" in event.failed["a"]["moody"]
    assert HOSTILE not in str(event.to_parts()) + caplog.text
    assert "screened later" in caplog.text


def test_unscreened_entries_are_screened_once_the_detector_works(mood, guard):
    keeper = SmallKeeper(guard, {})
    if len(guard.detectors) > 1:  # of the two, the other would hold it
        keeper = SmallKeeper(built(OPEN, [Moody()]), {})
    guard = keeper.guard
    mood("raises")
    keeper.add(a="fine", b="score=5")
    keeper.add(c="fine")
    assert set(guard.writes.unscreened()) == keeper.seen() == {"a", "b", "c"}
    mood(None)
    keeper.add(d="fine")
    assert keeper.seen() == {"a", "c", "d"} == set(keeper.store)
    assert guard.quarantine.show("b").findings[0].detector == "moody"
    assert guard.writes.unscreened() == guard.status().failing == {}
    assert guard.status().unscreened == 0


def test_rescreen_skips_deleted_and_trusted_entries(mood):
    keeper = SmallKeeper(built(OPEN, [Moody()]), {})
    mood("raises")
    keeper.add(a="fine", b="score=5", c="score=6", d="score=7")
    assert keeper.run(recalling.rescreen, keeper) == 0  # it still fails
    keeper.run(writing.delete, keeper, ["c"])
    keeper.guard.trust(["d"])
    mood(None)
    assert keeper.run(recalling.rescreen, keeper) == 2
    assert keeper.seen() == {"a", "d"}
    assert keeper.guard.writes.unscreened() == {}


def test_unscreened_entries_survive_saving_and_loading_the_guard(mood, tmp_path):
    store = {}
    keeper = SmallKeeper(built(OPEN, [Moody()]), store)
    mood("raises")
    keeper.add(a="fine", b="score=5")
    keeper.guard.save(tmp_path / "guard", detectors=[Moody])
    again = Guard.load(tmp_path / "guard", quarantine=keeper.guard.quarantine, detectors=[Moody])
    assert again.writes.unscreened() == keeper.guard.writes.unscreened() != {}
    mood(None)
    later = SmallKeeper(again, store)
    later.add(c="fine")
    assert later.seen() == {"a", "c"}


@pytest.mark.parametrize("in_a_snapshot", [False, True])
@pytest.mark.slow
def test_another_worker_screens_unscreened_entries_for_both(
    mood, tmp_path, in_a_snapshot, monkeypatch
):
    if in_a_snapshot:
        monkeypatch.setattr(sharing, "SNAPSHOT_AT_LEAST", 1)
    store = {}
    first = SmallKeeper(opened(tmp_path), store)
    mood("raises")
    first.add(a="fine", b="score=5")
    second = SmallKeeper(opened(tmp_path), store)
    assert second.guard.writes.unscreened() == first.guard.writes.unscreened() != {}
    mood(None)
    second.add(c="fine")
    assert first.seen() == second.seen() == {"a", "c"}
    first.guard.writes.catch_up()
    assert first.guard.writes.unscreened() == second.guard.writes.unscreened() == {}
    assert first.guard.writes.known(["a", "b", "c"]) == ["a", "c"]


def test_an_entry_on_which_the_detector_always_fails_is_not_tried_for_ever(caplog):
    keeper = SmallKeeper(built(OPEN, [Moody()]), {})
    keeper.add(odd=f"unreadable {HOSTILE}", a="fine")
    assert set(keeper.guard.writes.unscreened()) == {"odd"}
    for number in range(3 * TRIES):
        keeper.add(**{f"more{number}": "fine"})
    before = Moody.asked
    keeper.add(last="fine")
    assert Moody.asked == before + 1  # of the last one only
    assert set(keeper.guard.writes.unscreened()) == {"odd"}
    assert keeper.run(recalling.rescreen, keeper) == 0  # an explicit call tries again
    assert Moody.asked > before + 1
    assert HOSTILE not in caplog.text


def test_the_policy_can_be_changed_for_all_workers(mood, tmp_path):
    closed = Policy()
    first, second = (SmallKeeper(opened(tmp_path, closed), {}) for _ in range(2))
    mood("raises")
    first.add(a="fine")
    first.guard.change_policy(fail_open=True)
    report = second.add(b="fine")
    assert report.unscreened == ("b",)
    assert second.guard.policy.fail_open
    assert second.guard.policy.time_budget == closed.time_budget
    second.guard.change_policy(time_budget=None)
    assert second.guard.policy == Policy(fail_open=True, time_budget=None)


def test_time_budget_grows_beyond_a_thousand_entries():
    policy = Policy(time_budget=10)
    assert [policy.time_for(n) for n in (0, 1, 1000, 5000)] == [10, 10, 10, 50]
    assert Policy(time_budget=None).time_for(10) is None


def ended(guard):
    """Wait until calls that were left behind have ended."""
    while guard.judge._budget.late("moody"):
        pass


@pytest.mark.slow
def test_hanging_detector_does_not_block_writes(mood):
    guard = built(Policy(time_budget=0.05), [Moody()])
    keeper = SmallKeeper(guard, {})
    hung = threading.Event()
    mood(hung)
    for entry_id in "abcd":
        report = keeper.add(**{entry_id: "fine"})
        assert "not judged: moody failed on it" in guard.quarantine.show(entry_id).note
        assert "longer than 0.05 s" in report.unjudged[0].reason
        assert [skipped.detector for skipped in report.skipped] == ["moody"]
    report = keeper.add(e="fine")
    assert (Moody.asked, keeper.store) == (MOST_LATE, {})
    assert "earlier calls" in report.skipped[0].reason
    assert "earlier calls" in guard.status().failing["moody"]
    mood(None)
    guard.change_policy(time_budget=None)
    hung.set()
    ended(guard)
    assert keeper.add(f="fine").summary().startswith("1 entries: 1 admitted")
    assert guard.status().failing == {}


@pytest.mark.parametrize("fail_open", [False, True])
@pytest.mark.slow
def test_the_entry_that_takes_too_long_is_named_and_the_detector_goes_on(mood, fail_open):
    guard = built(Policy(time_budget=0.4, fail_open=fail_open), [Moody(), Scripted()])
    keeper = SmallKeeper(guard, {})
    hung = threading.Event()
    mood(hung, among="endless")
    report = keeper.add(a="fine", b="endless", c="score=5", d="fine")
    assert report.skipped == ()
    assert [item.entry_id for item in report.unjudged] == ["b"]
    if not fail_open:
        assert re.search(r"moody: .* longer than 0\.1 s", guard.quarantine.show("b").note)
    assert report.unscreened == (("b",) if fail_open else ())
    assert set(keeper.store) == ({"a", "b", "d"} if fail_open else {"a", "d"})
    assert guard.quarantine.show("c").findings
    later = keeper.add(e="fine", f="score=5")  # the call has not ended
    assert guard.judge._budget.late("moody")
    assert (later.skipped, later.unjudged, set(keeper.store) & {"e", "f"}) == ((), (), {"e"})
    assert guard.status().failing == {}


@pytest.mark.slow
def test_batch_scope_detector_that_times_out_holds_the_whole_batch(mood):
    """A detector that compares the entries of a batch cannot judge one alone: all are held."""

    class Together(Moody):
        traits = Traits(scope=Scope.BATCH)

    guard = built(Policy(time_budget=0.1), [Together()])
    keeper = SmallKeeper(guard, {})
    mood(threading.Event(), among="endless")
    assert keeper.add(a="fine", b="endless").skipped
    assert keeper.store == {}
    assert keeper.add(c="fine").skipped == ()
    assert set(keeper.store) == {"c"}


@pytest.mark.slow
def test_the_passage_that_takes_too_long_is_dropped_and_the_others_are_read(mood):
    guard = RetrievalGuard([Moody()], policy=Policy(time_budget=0.4))
    mood(threading.Event(), among="endless")
    found = entries(a="fine", b="endless", c="score=5", d="fine")
    report = guard.screen("billing", found)
    assert report.batch.take(report.admitted).ids == ("a", "d")
    assert [item.entry_id for item in report.unjudged] == ["b"]


def test_entries_let_in_during_a_hang_are_screened_afterwards(mood):
    guard = built(Policy(time_budget=0.05, fail_open=True), [Moody()])
    keeper = SmallKeeper(guard, {})
    hung = threading.Event()
    mood(hung)
    keeper.add(a="score=5")
    assert keeper.seen() == {"a"}
    mood(None)
    guard.change_policy(time_budget=None)
    hung.set()
    ended(guard)
    keeper.add(b="fine")
    assert keeper.seen() == {"b"}


@pytest.mark.slow
def test_guard_replaces_the_detectors_of_an_abandoned_call(mood):
    known, bad = passages(300, 1), group(4, 1)

    def guard(*others):
        detectors = [CliqueDetector(), *others]
        return built(Policy(time_budget=None), detectors).fit(known).calibrate(fpr=0.01)

    slow, same = guard(Moody()), guard()
    slow.learn(bad.take([0, 1]))
    same.learn(bad.take([0, 1]))
    before = slow.detectors
    slow.change_policy(time_budget=0.05)
    mood(threading.Event())
    report = slow.screen(passages(3, 2, prefix="new"))
    assert "moody" in {skipped.detector for skipped in report.skipped}
    assert not set(map(id, before)) & set(map(id, slow.detectors))
    mood(None)
    slow.change_policy(time_budget=None)
    assert slow.status().n_known == same.status().n_known == 302
    both = [one.screen(bad.take([2, 3])) for one in (slow, same)]
    assert both[0].scores["clique"].tolist() == both[1].scores["clique"].tolist()
    named = [{decision.entry_id for decision in one.retroactive} for one in both]
    assert named[0] == named[1]


def opened_by(adapter, guard):
    """Return a guarded store of a framework, a function that writes texts, and one that reads."""
    made = adapter(guard, ADAPTERS[adapter]())
    return made.store, made.add, next(made.reads())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_stores_of_both_frameworks_fail_closed(mood, adapter):
    store, add, live = opened_by(adapter, built(detectors=[Moody()]))
    add(a="billing a")
    mood("raises")
    add(b="billing b")
    assert live() == {"a"}
    assert "moody failed on it" in store.quarantine.show("b").note


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("how", ["by itself", "asked for", "asked for on a loop"])
def test_stores_of_both_frameworks_fail_open_where_they_may(mood, adapter, how):
    store, add, live = opened_by(adapter, built(OPEN, [Moody()]))
    mood("raises")
    add(a="billing a", b="billing score=5")
    assert live() == {"a", "b"} == set(store.guard.writes.unscreened())
    mood(None)
    if how == "by itself":
        add(c="billing c")
    else:
        assert (store.rescreen() if how == "asked for" else asyncio.run(store.arescreen())) == 2
    assert live() == {"a", "c"} - ({"c"} if how != "by itself" else set())
    assert store.quarantine.held_ids(["b"]) == {"b"}
    assert store.guard.writes.unscreened() == {}


class Forgetful(Scripted):
    """Fails to learn, until it works."""

    name = "forgetful"
    works = False

    def learn(self, entries):
        if not self.works:
            raise RuntimeError
        super().learn(entries)


@pytest.mark.parametrize("shared", [False, True])
def test_a_detector_that_fails_to_learn_is_named_and_a_retry_mends_it(shared, tmp_path):
    detectors = [Forgetful("forgetful"), Scripted()]
    guard = built(detectors=detectors)
    if shared:
        guard = Guard.open(f"sqlite:///{tmp_path}/g.db", detectors=detectors)
    keeper = SmallKeeper(guard, {})
    with pytest.raises(RuntimeError) as error:
        keeper.add(a="fine")
    assert "forgetful" in error.value.__notes__[0]
    assert "could not learn 1 entries" in guard.status().failing["forgetful"]
    assert keeper.store == ({} if shared else {"a": "fine"})
    assert guard.writes.known(["a"]) == []
    guard.detectors[0].works = True
    for text in ("b", "a"):
        keeper.add(**{text: "fine"})
        assert guard.status().pending == 0
    assert keeper.seen() == {"a", "b"} == set(guard.writes.known(["a", "b"]))
    assert guard.status().failing == {}
