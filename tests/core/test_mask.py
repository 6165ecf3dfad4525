"""Hidden entries, and how many results a read requests until enough are visible."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Scripted

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.model.errors import InvalidBatchError, QuarantineError
from ragshield_core.quarantine import Status
from ragshield_core.store.mask import PAGE, Claims, Mask, Search


class Pairs(Mask):
    """A mask for pairs of an id and a text."""

    def id_of(self, item):
        return item[0]

    def claims_of(self, item):
        if item[1] is None:
            raise InvalidBatchError
        return Claims(item[1], None, "doc")


def entries(*ids, text="bad"):
    return Batch.of(
        ids=ids,
        texts=[f"{text} {i}" for i in ids],
        embeddings=[[1.0, 0.0]] * len(ids),
        lineages=["doc"] * len(ids),
    )


def guard_of(quarantine=None):
    return Guard([Scripted()], quarantine=quarantine or Quarantine("sqlite://"))


@pytest.fixture
def mask():
    mask = Pairs()
    mask.add(entries("a", "b"))
    return mask


def test_a_held_revision_is_hidden_under_its_id_only(mask):
    assert mask.hides(("a", "bad a"))
    assert not mask.hides(("a", "good a"))
    assert not mask.hides(("b", "bad a"))
    assert not mask.hides(("a", None))  # it could never have been an entry
    mask.add(entries("a", text="worse"))
    assert mask.hides(("a", "bad a"))
    assert mask.hides(("a", "worse a"))


def test_admitted_entry_is_no_longer_hidden(mask):
    mask.add(entries("a", text="worse"))
    assert mask.remove(entries("a", "c")) == ["a"]
    assert not mask.hides(("a", "bad a"))
    assert mask.hides(("a", "worse a"))
    mask.discard(["a", "b", "unheard-of"])
    assert not mask


@pytest.mark.slow
def test_mask_loads_the_entries_of_a_quarantine(mask):
    quarantine = Quarantine("sqlite://")
    quarantine.hold(entries("held", "released", "confirmed"))
    quarantine.release(["released"])
    quarantine.confirm(["confirmed"])
    mask.load(quarantine)
    assert not mask.hides(("a", "bad a"))
    assert [mask.hides((i, f"bad {i}")) for i in ("held", "released", "confirmed")] == [1, 0, 1]
    # Confirmed poison is hidden under any id, and also when its own was deleted.
    assert mask.hides(("copy", "bad confirmed"))
    assert not mask.hides(("copy", "bad held"))
    mask.discard(["held", "confirmed"])
    assert mask
    assert mask.hides(("copy", "bad confirmed"))
    mask.remove(entries("confirmed"))
    assert not mask


def test_looking_makes_no_quarantine(mask, tmp_path):
    mask.load(Quarantine(f"sqlite:///{tmp_path}/none.db"))
    assert not mask
    assert list(tmp_path.iterdir()) == []


def many(n):
    """Return a mask of n held entries."""
    mask = Pairs()
    mask.add(entries(*(f"h{i}" for i in range(n))))
    return mask


def searched(mask, store, k, **options):
    """Search a store given as a list of visibilities; return rows, requests and hidden count."""
    search, asked = Search(mask, k, **options), []
    while True:
        asked.append(search.asked)
        found = store[: search.asked]
        if search.enough(len(found), found):
            return search.rows, asked, search.hidden


@given(
    stores=st.lists(st.lists(st.booleans(), max_size=60), min_size=1, max_size=8),
    k=st.integers(0, 20),
)
@pytest.mark.slow
def test_search_returns_the_first_k_visible_entries(stores, k):
    mask = many(60)
    for store in stores:
        rows, asked, hidden = searched(mask, store, k)
        expected = [row for row, shown in enumerate(store) if shown][:k]
        assert rows == expected
        assert asked == sorted(set(asked))
        if len(expected) == k > 0:
            assert hidden == expected[-1] + 1 - k
        assert max(asked) <= max(2 * (k + hidden), k)  # never further than doubling takes


def test_a_store_that_returns_more_than_it_was_asked_for_is_left_alone():
    search = Search(many(3), 2)
    assert search.enough(5, [True, False, True, True, True])
    assert search.rows == [0, 2, 3, 4]


def test_short_page_does_not_end_post_filtered_results():
    mask, few = many(30), [False, True]
    assert searched(mask, few, 4)[1] == [4]
    assert searched(mask, few, 4, post_filtered=True)[1] == [4, 8, 16, 32, 34]


def test_search_skips_copies_of_confirmed_poison():
    quarantine, mask = Quarantine("sqlite://"), Pairs()
    quarantine.hold(entries("a"))
    quarantine.confirm(["a"])
    mask.load(quarantine)
    store = [False] * 500 + [True]
    assert searched(mask, store, 1)[0] == [500]
    assert max(searched(mask, [False] * 5000, 1)[1]) == 2 + PAGE


@pytest.mark.slow
def test_entry_held_while_loading_stays_hidden(mask):
    class Slow(Quarantine):
        def prints(self, *args, **kwargs):
            found = super().prints(*args, **kwargs)
            self.hold(entries("late"))
            writers.append(threading.Thread(target=mask.add, args=(entries("late"),)))
            writers[0].start()
            writers[0].join(0.2)
            return found

    writers = []
    quarantine = Slow("sqlite://")
    quarantine.hold(entries("early"))
    mask.load(quarantine)
    writers[0].join()
    assert [mask.hides((i, f"bad {i}")) for i in ("early", "late")] == [True, True]


class Parts(Pairs):
    def wholes_of(self, entry):
        return frozenset(entry.metadata.get("of", ()))


STEPS = ("hold", "hold again", "release", "confirm", "purge", "readmit", "replace", "stand")


@pytest.mark.slow
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=12))
def test_refresh_gives_the_same_mask_as_a_full_load(steps):
    quarantine, refreshed = Quarantine("sqlite://"), Parts()
    for what, number in steps:
        names = f"e{number}"
        text = "later" if what in ("hold again", "readmit") else "early"
        batch = Batch.of(
            ids=[names], texts=[text], embeddings=None, metadatas=[{"of": [f"d{number}"]}]
        )
        try:
            if what.startswith("hold"):
                quarantine.hold(batch)
            elif what == "replace":
                quarantine.keep_stored(batch, Status.REPLACED, ["by another"])
            elif what == "stand":
                quarantine.keep_stored(batch, Status.READMITTED)
            elif what == "readmit":
                quarantine.readmit(batch)
            else:
                getattr(quarantine, what)(batch.ids)
        except QuarantineError:
            continue  # there was nothing to judge
        refreshed.refresh(quarantine)
        loaded = Parts()
        loaded.load(quarantine)
        for name in ("_held", "_confirmed", "_let_in", "_wholes", "_confirmed_of"):
            assert getattr(refreshed, name) == getattr(loaded, name)


def test_nothing_is_read_again_where_nothing_was_changed():
    class Counting(Quarantine):
        read = 0

        def prints(self, **kwargs):
            self.read += 1
            return super().prints(**kwargs)

    mask, quarantine = Pairs(), Counting("sqlite://")
    quarantine.hold(entries("early"))
    for expected in (1, 1, 1):
        mask.refresh(quarantine)
        assert quarantine.read == expected
    quarantine.hold(entries("late"))
    mask.refresh(quarantine)
    assert quarantine.read == 2
    assert mask.hides(("late", "bad late"))
