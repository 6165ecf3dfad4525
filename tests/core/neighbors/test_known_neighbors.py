"""The search that detectors share, against brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.neighbors import index
from ragshield_core.neighbors.known import LabelledEntries, NeighborSource

DIM = 6


def entries(n, seed, prefix="e", *, copies=1):
    """Return random entries, in runs of ``copies`` with the same vector."""
    rng = np.random.default_rng(seed)
    vectors = np.repeat(rng.normal(size=(-(-n // copies), DIM)), copies, axis=0)[:n]
    return Batch.of(
        ids=[f"{prefix}{i:03d}" for i in range(n)],
        texts=[""] * n,
        embeddings=vectors,
        labels=[None if code == 3 else "abc"[code] for code in rng.integers(4, size=n)],
    )


def brute_force(known, batch, k):
    """Return ids and cosines by the definition."""
    ids, cosines = [], []
    for entry in batch:
        found = sorted(
            (-np.float32(entry.embedding.astype(float) @ other.embedding.astype(float)), other.id)
            for other in known
            if other.id != entry.id
        )[:k]
        missing = k - len(found)
        ids.append([name for _, name in found] + [None] * missing)
        cosines.append([-value for value, _ in found] + [-np.inf] * missing)
    return ids, cosines


@given(
    n=st.integers(1, 40), seed=st.integers(0, 99), k=st.integers(1, 20), copies=st.integers(1, 3)
)
@pytest.mark.slow
def test_nearest_known_entries_match_brute_force(n, seed, k, copies):
    known = entries(n, seed, copies=copies)
    source = NeighborSource()
    source.learn(known)
    # Some of them new, and new revisions of some that are known.
    revised = entries(5, seed + 1)
    for batch in (entries(8, seed + 2, "new"), revised):
        found = source.known_neighbors(batch, k)
        ids, cosines = brute_force(known, batch, k)
        assert found.ids.tolist() == ids
        np.testing.assert_allclose(found.similarities, np.array(cosines, dtype=np.float32))
        assert found.similarities.dtype == np.float32
    standing = source.standing_neighbors(known.ids, k)
    assert standing.ids.tolist() == brute_force(known, known, k)[0]


@pytest.mark.parametrize("exact_up_to", [25_000, 0])
def test_neighbors_do_not_depend_on_other_entries_asked(exact_up_to, monkeypatch):
    monkeypatch.setattr(index, "EXACT_UP_TO", exact_up_to)
    source = NeighborSource()
    source.learn(entries(500, 1))
    batch = entries(30, 2, "new")
    together = source.known_neighbors(batch, 8)
    for row in range(30):
        alone = source.known_neighbors(batch.take([row]), 8)
        np.testing.assert_array_equal(alone.ids[0], together.ids[row])
        np.testing.assert_array_equal(alone.similarities[0], together.similarities[row])


def test_vectors_come_back_by_id_and_a_revision_replaces_the_old_one():
    source = NeighborSource()
    first, second = entries(5, 1), entries(5, 2)
    source.learn(first)
    source.learn(second.take([2]))
    assert len(source) == 5
    np.testing.assert_array_equal(source.vectors(["e002"])[0], second.embeddings[2])
    np.testing.assert_array_equal(source.vectors(["e001"])[0], first.embeddings[1])
    with pytest.raises(InvalidBatchError, match="'nobody' is not known"):
        source.vectors(["e001", "nobody"])


def test_empty_source_raises_except_for_an_empty_batch():
    source = NeighborSource()
    with pytest.raises(NotFittedError):
        source.known_neighbors(entries(1, 1), 3)
    assert source.known_neighbors(entries(0, 1), 3).ids.shape == (0, 3)


def test_labels_are_counted_as_entries_come_change_and_go():
    known = LabelledEntries()
    batch = entries(40, 1)
    known.learn(batch)
    known.learn(Batch.of(ids=["e000"], texts=[""], embeddings=batch.embeddings[:1], labels=["z"]))
    known.forget(["e001", "never seen"])
    labels = {i: label for i, label in zip(batch.ids, batch.labels, strict=True) if i != "e001"}
    labels["e000"] = "z"
    counts = dict(zip(known.names, known.counts.tolist(), strict=True))
    assert counts == {label: list(labels.values()).count(label) for label in "abcz"}
    codes = known.codes_of(np.array([["e000", "e001"], ["e002", None]]))
    assert codes[0, 0] == known.names.index("z")
    assert codes[0, 1] == codes[1, 1] == -1
    again = LabelledEntries()
    again.restore(*known.state())
    assert again.ids == known.ids == [*batch.ids[2:], "e000"]
    np.testing.assert_array_equal(again.codes, known.codes)
    np.testing.assert_array_equal(again.counts, known.counts)


def test_an_index_is_lent_before_anything_is_learned():
    known, source = LabelledEntries(), NeighborSource()
    known.learn(entries(3, 1))
    with pytest.raises(ValueError, match="3 entries were learned"):
        known.borrow(source)
    known.reset()
    known.borrow(source)
    source.learn(entries(3, 1))
    known.learn(entries(3, 1))
    assert known.source is source
    with pytest.raises(ValueError, match="borrow one before"):
        known.borrow(None)


def test_the_usual_distance_is_that_of_the_last_neighbour():
    known = LabelledEntries()
    batch = entries(60, 1)
    known.learn(batch)
    cosines = [row[4] for row in brute_force(batch, batch, 5)[1]]
    assert known.usual_distance(5) == pytest.approx(1.0 - np.median(cosines))


@pytest.mark.parametrize("exact_up_to", [25_000, 10])
def test_repeated_replacement_leaves_nothing_behind(exact_up_to, monkeypatch):
    monkeypatch.setattr(index, "EXACT_UP_TO", exact_up_to)
    source, known = NeighborSource(), entries(40, 1)
    source.learn(known)
    for number in range(30):
        source.learn(entries(40, number))
    source.learn(known)
    values, _ = source.state()
    assert len(source) == 40
    assert values["index"]["capacity"] < 2 * 40
    found = source.known_neighbors(entries(5, 99, "n"), 3)
    again = NeighborSource()
    again.learn(known)
    assert found.ids.tolist() == again.known_neighbors(entries(5, 99, "n"), 3).ids.tolist()
