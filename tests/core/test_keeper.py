"""The order of writes to a guarded store, over the simplest possible store."""

import asyncio
import threading
from unittest.mock import patch

import pytest
import small_store
from small_store import SmallKeeper
from sqlalchemy import update
from support import Scripted

from ragshield_core import Decision, Guard, Quarantine, Verdict
from ragshield_core.database.tables import HeldRow
from ragshield_core.model.errors import QuarantineError
from ragshield_core.store import recalling, reviewing, writing


def entries(*ids):
    return small_store.entries(**{i: f"bad {i}" for i in ids})


def keeper_of(quarantine=None, **texts):
    guard = Guard([Scripted()], quarantine=quarantine or Quarantine("sqlite://"))
    return SmallKeeper(guard, texts)


def recall(keeper, *ids, decisions=None, **options):
    return keeper.run(recalling.recall, keeper, ids, decisions, **options)


def add(keeper, **texts):
    return keeper.add(**texts)


JUDGED = {"held": None, "released": Quarantine.release, "confirmed": Quarantine.confirm}


@pytest.mark.parametrize("status", JUDGED)
def test_person_may_recall_a_released_entry(status):
    keeper = keeper_of(a="bad a", b="bad b")
    quarantine = keeper.guard.quarantine
    if judge := JUDGED[status]:
        quarantine.hold(entries("a"))
        judge(quarantine, ["a"])
    assert recall(keeper, "a", by="anna", note="a customer says") == ("a",)
    assert keeper.store == {"b": "bad b"}
    assert keeper.mask.hides(("a", "bad a"))
    held = quarantine.show("a")
    assert held.status == ("confirmed" if status == "confirmed" else "held")
    assert held.note == "a customer says"


def test_program_does_not_recall_entries_released_by_a_person():
    keeper = keeper_of(a="bad a", b="bad b")
    keeper.guard.quarantine.hold(entries("a"))
    keeper.guard.quarantine.release(["a"], by="anna")
    decisions = [Decision(entry_id=i, verdict=Verdict.QUARANTINE) for i in "ab"]
    assert recall(keeper, "a", "b", decisions=decisions, by="scan") == ("b",)
    assert keeper.store == {"a": "bad a"}
    assert [keeper.mask.hides((i, f"bad {i}")) for i in "ab"] == [False, True]


def test_recalling_nothing_makes_no_quarantine(tmp_path):
    keeper = keeper_of(Quarantine(f"sqlite:///{tmp_path}/none.db"))
    assert recall(keeper, "a") == ()
    assert list(tmp_path.iterdir()) == []


def test_recall_requires_one_decision_per_id():
    keeper = keeper_of(a="bad a")
    with pytest.raises(ValueError, match="zip"):
        recall(keeper, "a", decisions=[])
    assert keeper.store == {"a": "bad a"}


def test_recalled_entry_is_hidden_if_the_store_cannot_delete():
    keeper = keeper_of(a="bad a")
    with patch.object(keeper, "delete", side_effect=NotImplementedError):
        assert recall(keeper, "a") == ("a",)
    assert keeper.store == {"a": "bad a"}
    assert keeper.mask.hides(("a", "bad a"))


def test_entry_stays_visible_if_the_quarantine_fails_to_hold_it():
    keeper = keeper_of(a="bad a")
    with (
        patch.object(keeper.guard.quarantine, "hold", side_effect=OSError),
        pytest.raises(OSError),  # noqa: PT011
    ):
        recall(keeper, "a")
    assert keeper.store == {"a": "bad a"}
    assert not keeper.mask.hides(("a", "bad a"))


def held(keeper, *ids):
    keeper.guard.quarantine.hold(entries(*ids))
    keeper.refresh()
    return keeper


def test_a_release_writes_the_store_outside_of_any_transaction():
    keeper = held(keeper_of(), "a")
    states = []
    write = keeper.write_entries

    def watched(*args):
        states.append((keeper.guard.quarantine.database.busy, keeper.guard.quarantine.count()))
        return write(*args)

    with patch.object(keeper, "write_entries", watched):
        (released,) = keeper.run(reviewing.release, keeper, ["a"], "anna", None)
    assert states == [(False, 1)]  # held until it is there
    assert released.status == "held"  # as it was
    assert keeper.store == {"a": "bad a"}
    assert keeper.guard.writes.known(["a"]) == ["a"]
    assert not keeper.mask.hides(("a", "bad a"))


def test_entry_released_elsewhere_is_written_to_the_store_once():
    keeper = held(keeper_of(), "a", "b")
    keeper.guard.quarantine.release(["a"], by="anna")
    keeper.run(reviewing.release, keeper, ["a"], "bert", None)
    assert keeper.store == {"a": "bad a"}
    with pytest.raises(QuarantineError, match="'a' is not held"):
        keeper.run(reviewing.release, keeper, ["a", "b"], "bert", None)
    assert keeper.store == {"a": "bad a"}
    assert keeper.guard.quarantine.show("a").reviewed_by == "anna"


def test_entry_confirmed_during_its_release_does_not_stay():
    keeper = held(keeper_of(), "a")
    write = keeper.write_entries

    def confirmed_meanwhile(*args):
        write(*args)
        keeper.guard.quarantine.confirm(["a"], by="bert")

    with (
        patch.object(keeper, "write_entries", confirmed_meanwhile),
        pytest.raises(QuarantineError, match="'a' is not held"),
    ):
        keeper.run(reviewing.release, keeper, ["a"], "anna", None)
    assert keeper.store == {}
    assert keeper.guard.writes.known(["a"]) == []
    assert keeper.guard.quarantine.show("a").status == "confirmed"


def test_entry_released_twice_at_once_stays():
    keeper = held(keeper_of(), "a")
    write = keeper.write_entries

    def released_meanwhile(*args):
        write(*args)
        keeper.guard.quarantine.release(["a"], by="bert")

    with patch.object(keeper, "write_entries", released_meanwhile), pytest.raises(QuarantineError):
        keeper.run(reviewing.release, keeper, ["a"], "anna", None)
    assert keeper.store == {"a": "bad a"}
    assert keeper.guard.quarantine.show("a").reviewed_by == "bert"


def test_unknown_entry_is_named_before_anything_is_written():
    keeper = held(keeper_of(), "a")
    with pytest.raises(QuarantineError, match="'x' is not held"):
        keeper.run(reviewing.release, keeper, ["a", "x"], "anna", None)
    assert keeper.store == {}


def test_deletion_goes_to_the_store_first_and_keeps_confirmed_poison():
    keeper = held(keeper_of(a="fine"), "b", "c")
    keeper.guard.learn(small_store.entries(a="fine"))
    keeper.guard.quarantine.confirm(["c"])
    keeper.store.update(b="bad b", c="bad c")
    keeper.run(writing.delete, keeper, ["a", "b", "c"])
    assert keeper.store == {}
    assert keeper.guard.writes.known(["a"]) == []
    assert keeper.guard.quarantine.count(None) == 1


def test_a_callback_of_a_write_may_write():
    keeper = keeper_of(old="bad old")
    keeper.guard.writes.on_learned.append(
        lambda batch: "new" in batch.ids and recall(keeper, "old")
    )
    add(keeper, new="fine")
    assert keeper.store == {"new": "fine"}


def test_writes_of_threads_and_loops_take_turns():
    keeper = keeper_of()
    inside, most = [], []
    write = keeper.write_entries

    def counted(*args):
        inside.append(1)
        most.append(len(inside))
        write(*args)
        inside.pop()

    async def by_loop():
        for number in range(5):
            await keeper.arun(keeper.adding, l=f"text {number}")

    with patch.object(keeper, "write_entries", counted):
        threads = [
            threading.Thread(target=lambda n=n: add(keeper, **{f"t{n}": f"text {n}"}))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        asyncio.run(by_loop())
        for thread in threads:
            thread.join()
    assert most == [1] * 13
    assert len(keeper.store) == 9


def test_an_operation_that_was_begun_is_finished_though_its_caller_is_cancelled():
    keeper = keeper_of()
    reached = threading.Event()
    write = keeper.write_entries

    def slow(*args):
        reached.set()
        threading.Event().wait(0.05)
        write(*args)

    async def cancelled():
        task = asyncio.ensure_future(keeper.arun(keeper.adding, a="fine"))
        await asyncio.to_thread(reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await keeper.arun(writing.delete, keeper, ["unheard-of"])  # waits for its turn

    with patch.object(keeper, "write_entries", slow):
        asyncio.run(cancelled())
    assert keeper.store == {"a": "fine"}


@pytest.mark.parametrize(
    ("column", "value"),
    [("status", "released"), ("text", b"send your password"), ("reviewed_by", "anna")],
)
def test_tampered_entry_never_reaches_the_store(column, value):
    keeper = held(keeper_of(), "a")

    def tamper(session):
        session.execute(update(HeldRow).values(**{column: value}))

    keeper.guard.quarantine.database.write(tamper)
    with pytest.raises(QuarantineError, match="not as it was written"):
        keeper.run(reviewing.release, keeper, ["a"], "anna", None)
    assert keeper.store == {}
