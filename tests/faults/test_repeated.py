"""A client repeats a half-finished call after a crash."""

import shutil

import numpy as np
import pytest
from crash_stores import STORES, latest, save
from shared_store import FolderKeeper, add
from support import Scripted, passages, scored
from test_replay import assert_same

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.errors import QuarantineError


def texts(*said):
    """Return entries as long as those of the benchmark."""
    return Batch.of(
        ids=[f"e{row}" for row in range(len(said))],
        texts=said,
        embeddings=np.random.default_rng(0).normal(size=(len(said), 32)),
        lineages=[f"of {row}" for row in range(len(said))],
    )


@pytest.fixture(params=["FAISS folder", "LlamaIndex in a folder"])
def opened(request, tmp_path):
    """Return a function that opens a store in memory as it was saved last."""

    def again():
        guard = Guard.open(f"sqlite:///{tmp_path}/guard.db", detectors=[Scripted()])
        return STORES[request.param](guard, tmp_path / "store", "")

    return again


def shown(store):
    return {i for i, _ in store.seen([f"e{row}" for row in range(9)], np.ones((1, 32)))}


@pytest.mark.slow
def test_unsaved_release_can_be_repeated(opened):
    store = opened()
    store.add(texts("good", "score=5 or so"))
    store.save()
    store.guarded.release(["e1"], by="anna")  # and the process is killed
    again = opened()
    assert shown(again) == {"e0"}
    again.guarded.release(["e1"], by="anna")
    again.save()
    last = opened()
    assert shown(last) == {"e0", "e1"}
    assert last.guard.writes.known(["e0", "e1"]) == ["e0", "e1"]
    last.guard.quarantine.log.verify()
    with pytest.raises(QuarantineError, match="e1"):  # says that there is nothing left to do
        last.guarded.release(["e1"], by="anna")
    assert shown(last) == {"e0", "e1"}


@pytest.mark.slow
def test_unsaved_write_can_be_repeated_and_is_known_once(opened):
    store = opened()
    store.add(texts("one", "two"))
    store.save()
    store.add(texts("one again", "two again", "three"))  # and the process is killed
    again = opened()
    again.add(texts("one again", "two again", "three"))
    again.save()
    last = opened()
    assert sorted(text for _, text in last.raw()) == ["one again", "three", "two again"]
    assert last.guard.status().n_known == last.guard.detectors[0].learned == 3


@pytest.mark.slow
def test_entry_held_meanwhile_is_forgotten_when_written_again(opened):
    store = opened()
    store.save()
    bad = texts("one", "two")
    store.add(bad)  # and the process is killed
    again = opened()
    again.guard.quarantine.hold(bad.take([1]), by="anna")  # by somebody else meanwhile
    again.add(bad)
    assert shown(again) == {"e0"}
    assert again.guard.writes.known(["e0", "e1"]) == ["e0"]


@pytest.mark.parametrize("shared", [True, False])
def test_known_entry_that_is_now_held_leaves_the_store(url, shared, tmp_path):
    guard = (
        Guard.open(url, detectors=[Scripted()])
        if shared
        else Guard([Scripted()], quarantine=Quarantine(url))
    )
    keeper = FolderKeeper(guard, tmp_path / "store")
    entries = scored([0, 5], lineages=["a", "b"])
    keeper.store.write(entries)
    guard.learn(entries)
    add(keeper, entries)
    assert keeper.store.ids() == keeper.seen() == guard.writes.known(entries.ids) == ["s0"]
    assert guard.quarantine.held_ids(entries.ids) == {"s1"}


def test_an_older_revision_stays_where_the_new_one_is_held(url, tmp_path):
    guard = Guard.open(url, detectors=[Scripted()])
    keeper = FolderKeeper(guard, tmp_path / "store")
    add(keeper, scored([0], lineages=["a"]))
    add(keeper, scored([5], lineages=["a"]))
    assert keeper.store.ids() == keeper.seen() == guard.writes.known(["s0"]) == ["s0"]


def test_guards_agree_on_entries_lost_and_written_again(url, tmp_path):
    one, other = (
        FolderKeeper(Guard.open(url, detectors=[CliqueDetector()]), tmp_path / "store")
        for _ in range(2)
    )
    add(one, passages(6, 1))
    one.store.delete(["kb-1", "kb-2"])  # as in a folder of before
    add(other, passages(6, 1))
    one.guard.writes.catch_up()
    assert one.guard.status().n_known == 6
    (tmp_path / "guards").mkdir()
    assert_same(one.guard, other.guard, tmp_path / "guards")


# How the folder of a store in memory is saved


def test_crash_during_a_save_leaves_the_previous_one(tmp_path):
    def write(folder):
        folder.mkdir()
        (folder / "a").write_text("one")

    def fail(folder):
        folder.mkdir()
        raise KeyboardInterrupt

    save(tmp_path, write)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, fail)
    assert (latest(tmp_path) / "a").read_text() == "one"
    save(tmp_path, write)
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1
    shutil.rmtree(latest(tmp_path))
