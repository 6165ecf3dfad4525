"""Labels of known entries, against a dict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragshield_core.neighbors.slots import Labels

NAMES = [f"e{number}" for number in range(12)]
LABELS = st.sampled_from([None, "x", "y", "z"])


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("pppdr"), st.dictionaries(st.sampled_from(NAMES), LABELS, max_size=6)
        )
    )
)
def test_labels_are_those_of_a_dict_whatever_comes_and_goes(steps):
    labels, known = Labels(beside=np.float32(0)), {}
    for step, entries in steps:
        if step == "p":
            rows = labels.put(list(entries), list(entries.values()))
            labels.columns["beside"][rows] = [NAMES.index(name) for name in entries]
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
        assert [names[code] for code in labels.codes_of(NAMES)] == [known.get(i) for i in NAMES]
        values = list(known.values())
        assert labels.counts.tolist() == [values.count(name) for name in labels.names]
        # What is kept beside labels moves with them.
        beside = labels.columns["beside"][labels.slots_of(list(known))]
        assert beside.tolist() == [NAMES.index(name) for name in known]


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


@pytest.mark.parametrize(
    ("ids", "codes", "message"),
    [
        (["a", "a"], [0, 0], "'a' is duplicated"),
        (["a", "b"], [0], "not as many labels as ids"),
        (["a", "b"], [0, 1], "out of range"),
        (["a", "b"], [0, -2], "out of range"),
    ],
)
def test_what_does_not_fit_together_is_refused(ids, codes, message):
    with pytest.raises(ValueError, match=message):
        Labels().take(ids, np.array(codes, dtype=np.int32), ["x"])
