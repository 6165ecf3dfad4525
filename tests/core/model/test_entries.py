"""Batches: bad entries are refused by name, unusual ones are handled."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError, RAGShieldError

IDS = ["first", "second", "third"]
VECTORS = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]


def build(**changes):
    columns = {"ids": IDS, "texts": ["one", "two", "three"], "embeddings": VECTORS}
    return Batch.of(**(columns | changes))


def vectors(second):
    return [VECTORS[0], second, VECTORS[2]]


BAD_ENTRIES = {
    # the fault of the second entry, and the words of the error
    "another dimension": ({"embeddings": vectors([0.0, 1.0, 0.0])}, "3 dimensions"),
    "no vector": ({"embeddings": vectors(None)}, "expected a vector"),
    "a number for a vector": ({"embeddings": vectors(1.0)}, "expected a vector"),
    "words for a vector": ({"embeddings": vectors(["x", "y"])}, "expected a vector"),
    "a matrix for a vector": ({"embeddings": vectors([[0.0, 1.0]])}, "expected a vector"),
    "NaN": ({"embeddings": vectors([np.nan, 1.0])}, "NaN"),
    "infinity": ({"embeddings": vectors([np.inf, 1.0])}, "infinite"),
    "too large for float32": ({"embeddings": vectors([1e300, 1.0])}, "infinite"),
    "zero vector": ({"embeddings": vectors([0.0, 0.0])}, "zero vector"),
    "vanishes in float32": ({"embeddings": vectors([1e-60, 0.0])}, "zero vector"),
    "text is None": ({"texts": ["one", None, "three"]}, "NoneType"),
    "label is an int": ({"labels": ["a", 1, None]}, "int"),
    "lineage is a list": ({"lineages": [None, ["a"], None]}, "list"),
    "metadata is None": ({"metadatas": [{}, None, {}]}, "NoneType"),
    "NUL in the label": ({"labels": ["a", "b\0c", None]}, "NUL"),
    "lone surrogate in the label": ({"labels": ["a", "\ud800", None]}, "surrogate"),
    "NUL in the lineage": ({"lineages": ["a", "b\0c", None]}, "NUL"),
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("changes", "words"), BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_a_bad_entry_is_refused_by_name(changes, words):
    with pytest.raises(InvalidBatchError, match=words) as refused:
        build(**changes)
    assert "'second'" in str(refused.value)
    assert "'first'" not in str(refused.value)


BAD_IDS = {
    "given twice": (["first", "twice", "twice"], "'twice' is duplicated"),
    "empty": (["first", "", "third"], r"ids\[1\] is empty"),
    "an int": (["first", 7, "third"], r"entry 7\) is of type int"),
    "None": (["first", None, "third"], r"entry None\) is of type NoneType"),
    "bytes": (["first", b"x", "third"], r"entry b'x'\) is of type bytes"),
    "NUL": (["first", "a\0b", "third"], r"entry 'a\\x00b'\) holds a NUL"),
    "lone surrogate": (["first", "\udc80", "third"], r"entry '\\udc80'\) holds .* surrogate"),
}


@pytest.mark.parametrize(("ids", "words"), BAD_IDS.values(), ids=BAD_IDS)
def test_a_bad_id_is_refused(ids, words):
    with pytest.raises(InvalidBatchError, match=words):
        build(ids=ids)


@pytest.mark.parametrize("column", ["texts", "labels", "lineages", "metadatas", "embeddings"])
@pytest.mark.parametrize("n", [0, 2, 4])
def test_a_column_of_another_length_is_refused_with_both_lengths(column, n):
    item = {"metadatas": {}, "embeddings": [1.0, 0.0]}.get(column, "x")
    with pytest.raises(InvalidBatchError, match=rf"{column} has {n} .* 3"):
        build(**{column: [item] * n})


def test_errors_are_value_errors_and_of_ragshield():
    with pytest.raises(ValueError, match="expected") as refused:
        build(texts=[])
    assert isinstance(refused.value, RAGShieldError)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 2.0])
@pytest.mark.parametrize("column", ["embeddings", "vectors"])
def test_constructor_refuses_vectors_that_of_never_makes(column, value):
    good = build()
    wrong = getattr(good, column).copy()
    wrong[1] = (value, 0.0)
    if column == "vectors" and value == 2.0:  # as the embedder gave it: any length but zero
        assert dataclasses.replace(good, vectors=wrong).vectors is wrong
        return
    with pytest.raises(InvalidBatchError, match="second"):
        dataclasses.replace(good, **{column: wrong})


@pytest.mark.parametrize("column", ["embeddings", "vectors"])
def test_the_constructor_refuses_another_float_type(column):
    good = build()
    wrong = getattr(good, column).astype(np.float64)
    with pytest.raises(InvalidBatchError, match=f"{column} .* float64"):
        dataclasses.replace(good, **{column: wrong})


def test_an_empty_text_is_an_entry_like_any_other():
    assert build(texts=["", "two", ""]).texts == ("", "two", "")


def test_an_empty_batch_has_no_rows_and_all_columns():
    batch = Batch.of(ids=[], texts=[], embeddings=[], labels=[])
    assert (len(batch), list(batch), batch.dim, batch.labels) == (0, [], 0, ())
    assert Batch.of(ids=[], texts=[], embeddings=np.empty((0, 7))).dim == 7


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, int, list])
def test_rows_become_unit_float32_from_any_type(kind):
    given_rows = [[3, 4], [0, 2], [1, 0]]
    rows = given_rows if kind is list else np.array(given_rows, dtype=kind)
    batch = build(embeddings=rows)
    assert batch.embeddings.dtype == batch.vectors.dtype == np.float32
    np.testing.assert_allclose(batch.embeddings, [[0.6, 0.8], [0, 1], [1, 0]], rtol=1e-7)
    np.testing.assert_array_equal(batch.vectors, given_rows)


def test_unit_vectors_out_of_float16_are_renormalised():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(3, 64))
    halved = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    batch = build(embeddings=halved)
    assert np.abs(np.linalg.norm(halved.astype(float), axis=1) - 1).max() > 1e-5
    np.testing.assert_allclose(np.linalg.norm(batch.embeddings, axis=1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(batch.vectors, halved.astype(np.float32))


@pytest.mark.parametrize("length", [1e-30, 1e-3, 1e3, 1e30])
def test_vectors_of_any_length_are_kept_as_they_came(length):
    batch = build(embeddings=np.array(VECTORS) * length)
    np.testing.assert_array_equal(batch.vectors, (np.array(VECTORS) * length).astype(np.float32))
    np.testing.assert_allclose(batch.embeddings, VECTORS, atol=1e-6)


def test_unit_vectors_are_not_copied():
    assert (batch := build()).vectors is batch.embeddings


def test_an_entry_is_a_row_of_every_column():
    batch = build(
        labels=["a", None, "b"], lineages=[None, "doc", None], metadatas=[{}, {"k": 1}, {}]
    )
    entry = batch[1]
    assert (entry.id, entry.text, entry.label, entry.lineage) == ("second", "two", None, "doc")
    assert entry.metadata == {"k": 1}
    np.testing.assert_array_equal(entry.embedding, VECTORS[1])
    assert [one.id for one in batch] == IDS


@given(st.data())
@pytest.mark.slow
def test_take_returns_the_rows_in_the_order_asked_for(data):
    n = data.draw(st.integers(0, 8))
    rng = np.random.default_rng(n)
    batch = Batch.of(
        ids=[f"id{i}" for i in range(n)],
        texts=[f"text{i}" for i in range(n)],
        embeddings=rng.normal(size=(n, 3)),
        labels=[f"label{i}" if i % 2 else None for i in range(n)],
        metadatas=[{"row": i} for i in range(n)],
    )
    rows = data.draw(st.lists(st.integers(0, n - 1), unique=True)) if n else []
    part = batch.take(data.draw(st.sampled_from([rows, np.array(rows, dtype=int)])))
    assert part.ids == tuple(batch.ids[row] for row in rows)
    assert part.texts == tuple(batch.texts[row] for row in rows)
    assert part.labels == tuple(batch.labels[row] for row in rows)
    assert [m["row"] for m in part.metadatas] == rows
    np.testing.assert_array_equal(part.embeddings, batch.embeddings[rows].reshape(-1, 3))
    np.testing.assert_array_equal(part.vectors, batch.vectors[rows].reshape(-1, 3))
    mask = np.isin(np.arange(n), rows)
    assert batch.take(mask).ids == batch.take(mask.tolist()).ids == batch.take(sorted(rows)).ids


def test_take_refuses_a_row_twice_and_a_row_that_is_not_there():
    with pytest.raises(InvalidBatchError, match="'second' is duplicated"):
        build().take([1, 1])
    with pytest.raises(IndexError):
        build().take([3])
    for n in (1, 2, 4):  # masks of another length
        with pytest.raises((IndexError, InvalidBatchError)):
            build().take(np.arange(n) == 0)


def test_the_fingerprint_follows_text_label_and_lineage_only():
    def mark(text="t", label="l", lineage="d", **other):
        columns = {"texts": [text], "labels": [label], "lineages": [lineage]} | other
        return Batch.of(**({"ids": ["i"], "embeddings": [[1.0, 0.0]]} | columns))[0].fingerprint

    same = {mark(), mark(metadatas=[{"seen": "today"}]), mark(ids=["j"], embeddings=[[0.0, 5.0]])}
    others = [
        mark(text="T"),
        mark(label=None),
        mark(label=""),
        mark(lineage=None),
        mark(lineage="l", label="d"),
        mark(text="t1:l", label=""),
    ]
    assert len(same) == 1
    assert len({*same, *others}) == 1 + len(others)


def test_fingerprints_of_a_batch_are_those_that_are_saved():
    batch = Batch.of(
        ids=["a", "b", "c"],
        texts=["one", "tw\ud800ö", "one"],
        embeddings=None,
        labels=[None, "x", "x"],
        lineages=["f", None, "f"],
        contexts=[None, "title", None],
    )
    # As they stand in databases: of another digest, all that was decided would be forgotten.
    saved = [
        "27f1285f36f1161b948f3f846cf0f2d8",
        "848f8774d195e501749ccc0799a0fdf1",
        "3e0b826935cac1aa488238ecba1510fc",
    ]
    assert batch.fingerprints() == [entry.fingerprint for entry in batch] == saved
    assert batch[1].text_fingerprint == "fd0cbcf848779c527bc504bacb3ec5c0"
