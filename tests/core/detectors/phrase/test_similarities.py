"""Similarities to a sample are the same however it came about."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragshield_core.detectors.phrase.similarities import Similarities

DIM = 12


def unit(n, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, DIM)) * rng.choice([0.01, 1.0], size=DIM)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class Sample:
    """Entries with a key, a vector and a document each."""

    def __init__(self):
        self.keys, self.rows, self.documents = [], [], []
        self.n_seen = 0

    def add(self, vectors, documents):
        for vector, document in zip(vectors, documents, strict=True):
            self.keys.append((self.n_seen * 7919 + 3) % 10007)  # in no order
            self.rows.append(vector.astype(np.float16))
            self.documents.append(document)
            self.n_seen += 1

    def drop(self, gone):
        for column in (self.keys, self.rows, self.documents):
            column[:] = [each for row, each in enumerate(column) if row not in gone]

    def followed(self, similarities):
        documents = np.array(self.documents)
        vectors = np.array(self.rows, dtype=np.float16).reshape(-1, DIM)
        similarities.follow(
            np.array(self.keys, dtype=np.uint64),
            vectors,
            lambda rows: (documents[rows][:, None] == documents) & (documents[rows] > 0)[:, None],
        )
        return similarities


def everything(similarities, asked, n):
    nowhere = np.zeros((len(asked), n), dtype=np.bool_)
    nearest = similarities.nearest(asked, nowhere) if n else ()
    spread = similarities.spread_of(np.arange(n)) if n else ()
    return [similarities.near, *nearest, *spread]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 30)), st.booleans()), max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_a_sample_that_changed_is_as_one_made_at_once(steps, seed):
    rng, sample, followed = np.random.default_rng(seed), Sample(), Similarities(DIM)
    asked = unit(5, seed)
    for number, (n, gone, looked) in enumerate(steps):
        sample.drop(gone)
        vectors = unit(n, seed + number)
        if n > 2:
            vectors[1] = vectors[0]  # a copy
        sample.add(vectors, rng.integers(0, 4, size=n))
        if looked:
            sample.followed(followed)
    whole, size = sample.followed(Similarities(DIM)), len(sample.keys)
    mine = everything(sample.followed(followed), asked, size)
    for one, other in zip(mine, everything(whole, asked, size), strict=True):
        np.testing.assert_array_equal(one, other)


def test_similarities_are_cosines_to_all_but_entries_of_the_same_document():
    sample, vectors = Sample(), unit(50, 1)
    documents = np.repeat(np.arange(25), 2)  # 0 for none
    sample.add(vectors, documents)
    similarities = sample.followed(Similarities(DIM))
    alike = vectors @ vectors.T
    others = alike.copy()
    others[(documents[:, None] == documents) & (documents > 0)] = -np.inf
    np.fill_diagonal(others, -np.inf)
    assert similarities.near == pytest.approx(others.max(axis=1), abs=1e-3)
    mean, spread = similarities.spread_of(np.array([7, 3, 7]))
    assert mean == pytest.approx(alike.mean(axis=1)[[7, 3, 7]], abs=1e-3)
    assert spread == pytest.approx(alike.std(axis=1)[[7, 3, 7]], abs=1e-3)
    but = np.zeros((50, 50), dtype=np.bool_)
    np.fill_diagonal(but, val=True)
    nearest, near = similarities.nearest(vectors, but)
    np.fill_diagonal(alike, -np.inf)
    assert near == pytest.approx(alike.max(axis=1), abs=1e-3)
    assert alike[np.arange(50), nearest] == pytest.approx(near, abs=1e-3)


def test_one_vector_has_no_near_one():
    sample = Sample()
    assert sample.followed(Similarities(DIM)).near.shape == (0,)
    sample.add(unit(1, 1), [0])
    assert sample.followed(Similarities(DIM)).near.tolist() == [-np.inf]


def test_vectors_asked_one_by_one_have_the_same_answers():
    sample = Sample()
    sample.add(unit(300, 2), [0] * 300)
    similarities, asked = sample.followed(Similarities(DIM)), unit(40, 3)
    together = similarities.nearest(asked, np.zeros((40, 300), dtype=np.bool_))
    one = [similarities.nearest(each[None], np.zeros((1, 300), dtype=np.bool_)) for each in asked]
    for number, column in enumerate(together):
        np.testing.assert_array_equal(column, np.concatenate([each[number] for each in one]))


def test_a_copy_goes_its_own_way():
    sample = Sample()
    sample.add(unit(20, 2), [0] * 20)
    similarities = sample.followed(Similarities(DIM))
    before = everything(similarities, unit(3, 1), 20)
    other = copy.copy(similarities)
    sample.drop({1, 5})
    sample.add(unit(9, 4), [0] * 9)
    sample.followed(other)
    for one, same in zip(before, everything(similarities, unit(3, 1), 20), strict=True):
        np.testing.assert_array_equal(one, same)
