"""Ids that several users have in common, against dicts."""

import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import passages, topical

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector, LabelNeighborDetector
from ragshield_core.neighbors.ids import Numbers
from ragshield_core.neighbors.known import LabelledEntries
from ragshield_core.neighbors.roster import Labels, Roster, slot_tables
from ragshield_core.neighbors.slots import Slots

NAMES = [f"e{number}" for number in range(12)]
LABELS = st.sampled_from([None, "x", "y", "z"])


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from("pppdr"),
            st.dictionaries(st.sampled_from(NAMES), LABELS, max_size=6),
        )
    )
)
def test_each_user_knows_its_own_entries_whatever_others_do(steps):
    roster = Roster()
    users = [Labels(roster) for _ in range(3)]
    expected = [{} for _ in users]
    for number, step, entries in steps:
        user, known = users[number], expected[number]
        if step == "p":
            user.put(list(entries), list(entries.values()))
            known |= entries
        elif step == "d":
            user.drop(list(entries))
            for name in entries:
                known.pop(name, None)
        else:
            user.reset()
            known.clear()
        for one, there in zip(users, expected, strict=True):
            assert sorted(one.ids) == sorted(there)
            assert len(one) == len(there)
            names = [*one.names, None]
            assert [names[code] for code in one.codes_of(NAMES)] == [there.get(i) for i in NAMES]
            labels = list(there.values())
            assert one.counts.tolist() == [labels.count(name) for name in one.names]
        wanted = set().union(*expected)
        assert {i for i, row in zip(NAMES, roster.of(NAMES), strict=True) if row >= 0} == wanted
        assert roster.n_rows <= 2 * max(1, len(wanted))  # those that left leave little behind


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from("aaarcm"),
            st.lists(st.sampled_from(NAMES), max_size=6, unique=True),
        )
    )
)
def test_slots_in_a_roster_are_those_of_tables_of_their_own(steps):
    rosters = Roster(), Roster()
    labels = [Labels(roster) for roster in rosters]
    shared = [Slots(), Slots()]
    for one in shared:
        one.keep_in(partial(slot_tables, rosters[0]))
    alone = [Slots(), Slots()]
    for number, step, ids in steps:
        one, other = shared[number], alone[number]
        if step == "a":
            new = [name for name in ids if name not in other]
            assert one.add(new).tolist() == other.add(new).tolist()
            labels[0].put(ids, [None] * len(ids))
        elif step == "r":
            gone = other.among(ids)
            assert one.remove(gone).tolist() == other.remove(gone).tolist()
            labels[0].drop(ids)
        elif step == "c":
            assert one.compact().tolist() == other.compact().tolist()
        else:
            one.keep_in(partial(slot_tables, rosters[len(ids) % 2]))
        for mine, theirs in zip(shared, alone, strict=True):
            assert (len(mine), mine.capacity) == (len(theirs), theirs.capacity)
            assert mine.present.tolist() == theirs.present.tolist()
            assert mine.ids(mine.present) == theirs.ids(theirs.present)
            assert mine.of(NAMES).tolist() == theirs.of(NAMES).tolist()
    for one in shared:
        one.leave()
    for mine, roster in zip(labels, rosters, strict=True):
        assert [name for name in NAMES if roster.of([name])[0] >= 0] == sorted(
            mine.ids, key=NAMES.index
        )


def test_entries_stand_in_the_order_in_which_the_first_user_met_them():
    roster = Roster()
    one, other = Labels(roster), Labels(roster)
    one.put(["a", "b", "c"], [None] * 3)
    other.put(["c", "d", "a"], [None] * 3)
    assert other.ids == ["a", "c", "d"]
    one.drop(["a"])
    one.put(["a"], [None])
    assert one.ids == ["a", "b", "c"]


def test_what_is_kept_beside_labels_moves_with_them():
    roster = Roster()
    labels, other = Labels(roster, [np.dtype(np.float32)]), Labels(roster)
    other.put(NAMES, [None] * 12)
    rows = labels.put(NAMES[6:], [None] * 6)
    labels.beside[0].values[rows] = np.arange(6)
    other.drop(NAMES)  # enough to renumber the others
    assert roster.n_rows == 6
    assert labels.beside[0].values[labels.rows(NAMES[6:])].tolist() == list(range(6))


@pytest.mark.parametrize("n_labels", [127, 128, 129, 32_769])
def test_labels_may_be_few_or_many(n_labels):
    labels, given = Labels(), [f"label {number}" for number in range(n_labels)]
    labels.put(given, given)  # ids like labels
    labels.put(["none"], [None])
    assert labels.codes.tolist() == [*range(n_labels), -1]
    again = Labels()
    again.take(labels.ids, labels.codes, labels.names)
    assert [again.names[code] for code in again.codes_of(given)] == given
    assert again.counts.tolist() == [1] * n_labels
    again.drop([given[-1]])
    assert again.codes_of([given[-1], "none", given[0]]).tolist() == [-1, -1, 0]


def test_who_moves_to_another_roster_takes_its_entries_along():
    one, other = Labels(), Roster()
    one.put(["a", "b"], ["x", "y"])
    first = Labels(other)
    first.put(["b", "c"], [None, "z"])
    one.move(other)
    assert one.ids == ["b", "a"]
    assert [one.names[code] for code in one.codes_of(["a", "b"])] == ["x", "y"]
    assert one.counts.tolist() == [1, 1]
    first.reset()
    assert other.of(["a", "b", "c"]).min() == -1
    assert (other.of(["a", "b"]) >= 0).all()


@pytest.mark.parametrize(
    ("ids", "codes", "message"),
    [
        (["a", "a"], [0, 0], "stands in it more than once"),
        (["a", "b"], [0], "not as many labels as ids"),
        (["a", "b"], [0, 1], "out of range"),
        (["a", "b"], [0, -2], "out of range"),
    ],
)
def test_what_does_not_fit_together_is_refused(ids, codes, message):
    with pytest.raises(ValueError, match=message):
        Labels().take(ids, np.array(codes, dtype=np.int32), ["x"])


def test_a_guard_keeps_each_id_once_for_what_it_knows_and_all_detectors():
    known = passages(300, 1)
    labelled = type(known).of(
        ids=known.ids,
        texts=known.texts,
        embeddings=known.embeddings,
        labels=["x", "y", None] * 100,
    )
    guard = Guard.default(quarantine=Quarantine("sqlite://")).fit(labelled)
    revisions = guard._knowledge.known
    roster = revisions._labels._roster
    kept = [vars(detector).get("_known") for detector in guard.detectors]
    kept = [one for one in kept if isinstance(one, LabelledEntries)]
    index = guard.detectors[0]._known.graph.index
    users = [revisions._labels, index._slots._ids, *(one._labels for one in kept)]
    assert len(users) == 4
    assert {id(user) for user in roster._users} == {id(user) for user in users}
    assert roster.n_rows == 300
    assert all(one.ids == list(revisions) == list(known.ids) for one in kept)
    for part in (labelled.take(range(299, 99, -1)), labelled):  # in the order of each
        guard.fit(part)
        assert all(one.ids == list(revisions) == list(part.ids) for one in kept)
        assert (len(roster._users), roster.n_rows) == (4, len(part))


def test_what_is_known_is_answered_right_while_rows_are_numbered_anew(monkeypatch):
    guard = Guard([LabelCentroidDetector(), LabelNeighborDetector()])
    stays, comes = topical("billing", 300), topical("billing", 120, prefix="comes")
    guard.learn(comes)
    guard.learn(stays)
    answers = []
    threads = []
    renumber = Labels.renumber

    def asked_meanwhile(labels, before):
        threads.append(threading.Thread(target=lambda: answers.append(guard.known(stays.ids))))
        threads[-1].start()
        threads[-1].join(0.1)  # it waits for who writes, or answers at once
        renumber(labels, before)

    monkeypatch.setattr(Labels, "renumber", asked_meanwhile)
    guard.forget(comes)
    for thread in threads:
        thread.join()
    assert len(answers) >= 2
    assert all(found == list(stays.ids) for found in answers)


def test_slots_are_known_until_those_that_take_their_place_are(monkeypatch):
    slots = Slots()
    slots.add(NAMES)
    slots.remove(NAMES[:6])
    put, seen = Numbers.put, []

    def put_and_look(numbers, ids, new):
        seen.extend([slots.among(NAMES), len(slots), slots.ids(slots.present)])
        put(numbers, ids, new)
        seen.extend([slots.among(NAMES), len(slots), slots.ids(slots.present)])

    monkeypatch.setattr(Numbers, "put", put_and_look)
    slots.compact()
    assert seen == [NAMES[6:], 6, NAMES[6:]] * 2
    assert slots.of(NAMES).tolist() == [-1] * 6 + list(range(6))


def test_an_audit_takes_no_part_in_the_roster_that_ids_are_kept_in():
    roster, detector = Roster(), CliqueDetector()
    detector.share_ids(roster)
    detector.learn(passages(120, seed=0))
    detector.audit(passages(120, seed=1))
    detector.audit(passages(120, seed=2))
    assert not roster._users
