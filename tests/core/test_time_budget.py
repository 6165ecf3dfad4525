"""Calls with a time limit: one thread makes them, and a late one holds up no other."""

import threading
from collections import Counter
from contextvars import ContextVar

import pytest

from ragshield_core import time_budget
from ragshield_core.time_budget import MOST_LATE, OutOfTimeError, TimeBudget

LONG, SHORT = 60.0, 0.05
OWN = "the call's own error"


@pytest.fixture
def never():
    """Return an event whose waiters end with the test."""
    event = threading.Event()
    yield event
    event.set()


def own_thread():
    return threading.current_thread()


def test_one_thread_makes_all_calls_in_their_order():
    budget, made = TimeBudget(), []
    calls = {name: lambda name=name: (made.append(name), own_thread())[1] for name in "abc"}
    threads = {answer.result() for answer in budget.call_each(calls, LONG).values()}
    assert made == ["a", "b", "c"]
    assert len(threads) == 1
    assert threads != {own_thread()}
    assert {a.result() for a in budget.call_each(calls, LONG).values()} == threads  # used again


def test_without_a_limit_calls_are_made_in_the_own_thread():
    found = TimeBudget().call_each({"a": own_thread, "b": own_thread}, None)
    assert {answer.result() for answer in found.values()} == {own_thread()}


@pytest.mark.parametrize("seconds", [LONG, None])
def test_an_error_is_the_answer_of_its_call_alone(seconds):
    def failing():
        raise TimeoutError(OWN)

    found = TimeBudget().call_each({"a": failing, "b": lambda: 2}, seconds)
    assert found["b"].result() == 2
    with pytest.raises(TimeoutError, match=OWN):
        found["a"].result()


def test_a_late_call_holds_up_no_other_and_none_is_made_twice(never):
    budget, made = TimeBudget(), Counter()
    calls = {name: lambda name=name: made.update(name) for name in "abcd"}
    calls["b"] = never.wait
    found = budget.call_each(calls, SHORT)
    assert [*found] == [*"abcd"]
    with pytest.raises(OutOfTimeError, match="it took longer than"):
        found["b"].result()
    assert made == Counter("acd")
    assert (budget.late("b"), budget.times_late) == (1, 1)
    never.set()
    while budget.late("b"):
        pass
    assert budget.call("a", LONG, lambda: made["a"]) == 1
    assert made == Counter("acd")  # what the late thread was to do has been done already


def test_each_call_has_the_whole_limit():
    budget, pause = TimeBudget(), threading.Event()
    found = budget.call_each({name: lambda: pause.wait(0.6) for name in "abcd"}, 2.0)
    assert [answer.result() for answer in found.values()] == [False] * 4
    assert budget.times_late == 0


def test_a_call_that_ends_as_its_time_runs_out_is_not_late(monkeypatch):
    budget, made = TimeBudget(), Counter()
    begun, on, wait = threading.Event(), threading.Event(), time_budget._wait_for

    def first():
        made["a"] += 1
        begun.set()
        on.wait()

    def second():
        made["b"] += 1
        started.set()
        last.wait(SHORT)

    started, last = threading.Event(), threading.Event()
    withdraw = TimeBudget._withdraw

    def withdrawing(waiting):
        on.set()  # the first call ends now, and the second one begins
        started.wait()
        return withdraw(waiting)

    def waiting_for(answer, _seconds):
        begun.wait()
        if on.is_set():
            wait(answer, LONG)

    monkeypatch.setattr(time_budget, "_wait_for", waiting_for)
    monkeypatch.setattr(TimeBudget, "_withdraw", staticmethod(withdrawing))
    calls = {"a": first, "b": second, "c": lambda: made.update("c")}
    found = budget.call_each(calls, LONG)
    assert [answer.exception() for answer in found.values()] == [None] * 3
    assert made == Counter("abc")
    assert budget.times_late == 0


def test_a_name_with_too_many_late_calls_is_refused_and_the_others_are_asked(never):
    budget = TimeBudget()
    for _ in range(MOST_LATE):
        with pytest.raises(OutOfTimeError):
            budget.call("slow", SHORT, never.wait)
    found = budget.call_each({"slow": lambda: 1, "quick": lambda: 2}, LONG)
    assert found["quick"].result() == 2
    with pytest.raises(OutOfTimeError, match=f"not ended {MOST_LATE} earlier calls"):
        found["slow"].result()
    assert [*budget.call_each({"slow": lambda: 1}, LONG)] == ["slow"]


def test_an_interrupted_wait_leaves_its_running_call_late(never, monkeypatch):
    budget, made = TimeBudget(), []

    def interrupted(_answer, _seconds):
        begun.wait()
        raise KeyboardInterrupt

    def slow():
        begun.set()
        never.wait()

    begun = threading.Event()
    monkeypatch.setattr(time_budget, "_wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        budget.call_each({"slow": slow, "next": lambda: made.append(1)}, LONG)
    assert (budget.late("slow"), budget.late("next")) == (1, 0)
    never.set()
    while budget.late("slow"):
        pass
    assert not made


def test_calls_see_the_context_of_the_caller_and_leave_none_behind():
    variable = ContextVar("variable", default="unset")
    variable.set("caller")

    def changed():
        before = variable.get()
        variable.set("call")
        return before

    found = TimeBudget().call_each({"a": changed, "b": changed}, LONG)
    assert [answer.result() for answer in found.values()] == ["caller", "caller"]
    assert variable.get() == "caller"
