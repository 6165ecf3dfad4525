"""Small writes that wait for each other are carried out as one."""

import threading
from contextlib import ExitStack

import pytest

from ragshield_core.store.joining import MOST, Joiner, Waiting


class Written:
    """Records what is written together; refuses some ids."""

    def __init__(self, refused=()):
        self.calls, self.refused = [], set(refused)

    def write(self, some):
        self.calls.append(list(some))
        if self.refused.intersection(some):
            raise ValueError(", ".join(sorted(self.refused.intersection(some))))
        return [f"{one} is written" for one in some]


def all_of(joiner, waiting):
    """Carry out writes that wait, one after the other; return answers or errors."""
    found = []
    with ExitStack() as callers:
        for one in waiting:
            callers.enter_context(joiner.waiting(one))
        for one in waiting:
            try:
                joiner.carry_out(one)
                found += one.answers
            except ValueError as error:
                found.append(f"error: {error}")
        assert joiner._waiting == []
    return found


def waits(write, name, **options):
    return Waiting(write, name, frozenset(options.pop("ids", [name])), **options)


def test_waiting_writes_are_one_and_each_gets_its_answer():
    written = Written()
    answers = all_of(Joiner(), [waits(written.write, name) for name in "abc"])
    assert answers == ["a is written", "b is written", "c is written"]
    assert written.calls == [["a", "b", "c"]]


def test_each_caller_gets_its_own_error():
    written = Written(refused="b")
    answers = all_of(Joiner(), [waits(written.write, name) for name in "abcd"])
    assert answers == ["a is written", "error: b", "c is written", "d is written"]
    assert written.calls[-1] == ["c", "d"]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "other"},
        {"ids": ["a", "b"]},  # the second write of "a" replaces the first
        {"ids": [str(n) for n in range(MOST)]},
    ],
    ids=list,
)
def test_writes_that_differ_stay_apart(options):
    written = Written()
    some = [
        waits(written.write, "a", kind=None),
        waits(written.write, "b", **options),
        waits(written.write, "c"),
    ]
    all_of(Joiner(), some)
    assert written.calls == [["a", "c"], ["b"]]


def test_writes_of_two_stores_and_of_two_event_loops_stay_apart():
    one, other = Written(), Written()
    loops = [object(), object()]
    some = [waits(one.write, "a", loop=loops[0]), waits(one.write, "b", loop=loops[1])]
    all_of(Joiner(), [*some, waits(other.write, "c", loop=loops[0])])
    assert (one.calls, other.calls) == ([["a"], ["b"]], [["c"]])


def test_a_write_whose_caller_gave_up_is_not_written():
    joiner, written = Joiner(), Written(refused="b")
    gone, mine, later = (waits(written.write, name) for name in ("gone", "b", "c"))
    with pytest.raises(KeyboardInterrupt), joiner.waiting(gone):
        raise KeyboardInterrupt
    # It gives up while a joint write fails, which puts the others back.
    begun, done = threading.Event(), threading.Event()

    def write(some):
        if len(some) > 1:
            begun.set()
            assert done.wait(5)
        return written.write(some)

    mine.write = later.write = write

    def leave():
        with joiner.waiting(later):
            assert begun.wait(5)
        done.set()

    thread = threading.Thread(target=leave)
    with joiner.waiting(mine):
        thread.start()
        while len(joiner._waiting) < 2:
            pass
        with pytest.raises(ValueError, match="b"):
            joiner.carry_out(mine)
    thread.join()
    assert joiner._waiting == []
    assert written.calls == [["b", "c"], ["b"]]
