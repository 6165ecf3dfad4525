"""The id table: slots, labels, ids in a saved state, and revisions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragshield_core.neighbors.slots import Columns, Labels, packed, unpacked
from ragshield_core.screening.knowledge import Revisions

# Ids as they come: empty characters, other scripts, halves of surrogate pairs.
NAMES = st.text(st.characters(), max_size=5) | st.sampled_from(["a", "b", "\ud800", "\udc00é"])


@given(st.lists(NAMES))
def test_packed_ids_come_back(ids):
    assert unpacked(packed(ids)) == ids


def test_revisions_keep_labels_and_fingerprints_through_their_state():
    known = Revisions()
    names = [f"e{number}" for number in range(40)]
    prints = [f"{number:032x}" for number in range(1, 41)]
    known.know(names, ["x", None, "y", "x"] * 10, prints)
    # Another revision, and a new entry.
    known.know(["e1", "new"], ["z", None], ["0" * 32, "ab" * 16])
    known.drop(names[10:35])  # enough to renumber the others
    left = [*names[:10], *names[35:], "new"]
    assert list(known) == left
    assert known.among(["new", "e10", "e9", "new"]) == ["new", "e9"]
    assert known.labels_of(["e0", "e1", "e2", "new"]) == ["x", "z", "y", None]
    assert known.prints_of(["e1", "e35", "new"]) == ["0" * 32, prints[35], "ab" * 16]
    values, arrays = known.state()
    again = Revisions()
    again.restore(values, arrays)
    assert list(again) == left
    assert again.labels_of(left) == known.labels_of(left)
    assert again.prints_of(left) == known.prints_of(left)
    again.know(["e0"], [None], [prints[0]])
    assert known.labels_of(["e0"]) == ["x"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a.update({"known.labels": a["known.labels"][1:]}),
        lambda a: a.update({"known.labels": a["known.labels"] + 1}),
        lambda a: a.update({"known.prints": a["known.prints"][:, :8]}),
        lambda a: a.update({"known.ids": a["known.ids"][1:]}),
    ],
)
def test_revisions_that_do_not_fit_together_are_refused(damage):
    known = Revisions()
    known.know(["a", "b"], ["x", None], ["00" * 15 + "01"] * 2)
    values, arrays = known.state()
    damage(arrays)
    with pytest.raises(ValueError, match=r"expected|labels|bytes"):
        Revisions().restore(values, arrays)


FEW = [f"e{number}" for number in range(12)]
LABELS = st.sampled_from([None, "x", "y", "z"])


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pppdr"), st.dictionaries(st.sampled_from(FEW), LABELS, max_size=6)
        )
    )
)
@pytest.mark.slow
def test_labels_match_a_dict_after_any_changes(steps):
    labels, known = Labels(beside=np.float32(0)), {}
    for step, entries in steps:
        if step == "p":
            rows = labels.put(list(entries), list(entries.values()))
            labels.columns["beside"][rows] = [FEW.index(name) for name in entries]
            known |= entries
        elif step == "d":
            labels.drop(list(entries))
            for name in entries:
                known.pop(name, None)
        else:
            labels = Labels(beside=np.float32(0))
            known.clear()
        assert labels.ids == list(known)
        assert len(labels) == len(known)
        names = [*labels.names, None]
        assert [names[code] for code in labels.codes_of(FEW)] == [known.get(i) for i in FEW]
        values = list(known.values())
        assert labels.counts.tolist() == [values.count(name) for name in labels.names]
        # Columns kept beside labels move with them.
        beside = labels.columns["beside"][labels.slots_of(list(known))]
        assert beside.tolist() == [FEW.index(name) for name in known]


@pytest.mark.parametrize(
    ("ids", "codes", "message"),
    [
        (["a", "a"], [0, 0], "'a' is duplicated"),
        (["a", "b"], [0], "not as many labels as ids"),
        (["a", "b"], [0, 1], "out of range"),
        (["a", "b"], [0, -2], "out of range"),
    ],
)
def test_inconsistent_ids_and_codes_are_refused(ids, codes, message):
    with pytest.raises(ValueError, match=message):
        Labels().take(ids, np.array(codes, dtype=np.int32), ["x"])


@given(st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 9))), max_size=12))
def test_columns_keep_rows_in_their_order_and_copies_go_their_own_way(steps):
    columns, expected, told = Columns(number=np.int64(-1), name=None), [], 0
    for come, gone in steps:
        columns.grow(len(columns) + come)
        for row in range(len(columns) - come, len(columns)):
            assert columns["number"][row] == -1
            columns["number"][row], columns["name"][row] = told, f"entry {told}"
            expected.append(told)
            told += 1
        before, was = columns.copy(), list(expected)
        rows = [row for row in range(len(columns)) if row not in gone]
        columns.keep(np.array(rows, dtype=np.int64))
        expected = [expected[row] for row in rows]
        assert columns["number"].tolist() == expected
        assert columns["name"].tolist() == [f"entry {number}" for number in expected]
        assert before["number"].tolist() == was


@pytest.mark.parametrize(("n_gone", "shared"), [(1, True), (12, True), (13, False)])
def test_few_oldest_rows_leave_without_a_copy_of_the_others(n_gone, shared):
    columns = Columns(number=np.int64(0))
    columns.grow(100)
    columns["number"][:] = range(100)
    others = columns["number"][n_gone:]
    columns.keep(np.arange(n_gone, 100))
    assert np.shares_memory(columns["number"], others) is shared  # else their room is given back
    columns.grow(110)
    assert columns["number"].tolist() == [*range(n_gone, 100), *[0] * (10 + n_gone)]
    assert others.tolist() == list(range(n_gone, 100))
