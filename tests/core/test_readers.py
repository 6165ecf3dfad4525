"""Knowledge bases on disk: reading, refusing bad files, and never executing their content."""

import datetime as dt
import gzip
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections import OrderedDict

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from support import DIM, CountingEmbeddings, vector_of

from ragshield_core.model.errors import InvalidBatchError, SourceError
from ragshield_core.tools.audit.embedding_cache import (
    CHUNK_TEXTS,
    CachedEmbedder,
)
from ragshield_core.tools.audit.knowledge_base import load
from ragshield_core.tools.audit.readers import records
from ragshield_core.tools.audit.readers.kinds import open_source, read_ids
from ragshield_core.tools.audit.readers.source import ColumnNames

ROWS = [
    {"id": "a", "text": "billing one", "label": "billing", "source": "doc1", "page": 3},
    {"id": "b", "text": "shipping two", "label": None, "source": "doc2", "page": 4},
    {"id": 7, "text": "größer 漢 🦊", "label": 2, "source": None, "page": 5},
]
VECTORS = np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]], dtype=np.float32)


def as_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")
    return path


def as_gzip(path, rows):
    path = path.with_name(path.name + ".gz")
    path.write_bytes(gzip.compress(as_jsonl(path.with_suffix(""), rows).read_bytes()))
    return path


def as_parquet(path, rows):

    path = path.with_suffix(".parquet")
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    columns["id"] = [str(value) for value in columns["id"]]
    if "label" in columns:
        columns["label"] = [None if v is None else str(v) for v in columns["label"]]
    pq.write_table(pa.table(columns), path)
    return path


def with_vectors(rows=ROWS):
    return [row | {"embedding": v.tolist()} for row, v in zip(rows, VECTORS, strict=True)]


def counting(folder, embeddings=None):
    embeddings = embeddings or CountingEmbeddings()
    return lambda: CachedEmbedder(embeddings.embed_documents, "fake", folder)


@pytest.mark.parametrize("write", [as_jsonl, as_gzip, as_parquet])
def test_records_are_read_with_their_vectors_labels_and_lineages(write, tmp_path):
    path = write(tmp_path / "kb.jsonl", with_vectors())
    source = open_source(path, metadata=True)
    knowledge = load(source)
    batch = knowledge.batch
    assert batch.ids == ("a", "b", "7")
    assert batch.texts == tuple(row["text"] for row in ROWS)
    assert batch.labels == ("billing", None, "2")
    assert batch.lineages == ("doc1", "doc2", None)
    assert batch.metadatas[0] == {"label": "billing", "source": "doc1", "page": 3}
    np.testing.assert_allclose(batch.embeddings, [[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(knowledge.batch.take([1, 0]).vectors, VECTORS[[1, 0]], rtol=1e-6)
    assert load(open_source(path)).batch.metadatas == ({}, {}, {})  # unless it is asked for


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_columns_can_have_other_names_or_be_left_out(write, tmp_path):
    rows = [
        {"id": "x", "key": row["id"], "body": row["text"], "v": v.tolist(), "source": "site"}
        for row, v in zip(ROWS, VECTORS, strict=True)
    ]
    for row in rows:
        row["key"] = str(row["key"])
    path = write(tmp_path / "kb.jsonl", rows)
    columns = ColumnNames(id="key", text="body", embedding="v", lineage="")
    batch = load(open_source(path, columns)).batch
    assert batch.ids == ("a", "b", "7")
    assert batch.texts[0] == "billing one"
    assert batch.lineages == (None, None, None)


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_a_column_asked_for_by_name_must_be_there(write, tmp_path):
    path = write(tmp_path / "kb.jsonl", with_vectors())
    with pytest.raises(SourceError, match=r"no lineage column 'titel', expected one of \["):
        load(open_source(path, ColumnNames(lineage="titel")))


def test_parquet_with_vectors_of_a_fixed_size_and_gaps(tmp_path):

    fixed = pa.array([[3.0, 4.0], [0.0, 2.0]], type=pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"id": ["a", "b"], "vector": fixed}), tmp_path / "fixed.parquet")
    assert load(open_source(tmp_path / "fixed.parquet")).batch.vectors[0].tolist() == [3.0, 4.0]
    gaps = pa.table({"id": ["a", "b"], "text": ["one", "two"], "vector": [[3.0, 4.0], None]})
    pq.write_table(gaps, tmp_path / "gaps.parquet")
    (rows,) = open_source(tmp_path / "gaps.parquet").chunks()
    assert rows.vectors.rows.tolist() == [0]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "kb.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SourceError, match=r"ragshield\[parquet\]"):
        load(open_source(tmp_path / "kb.parquet"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "a", "text": "x"}', "{evil"], "line 2: not valid JSON"),
        (["[" * 100_000], "line 1: not valid JSON"),
        (["[1]"], "line 1: a JSON list, expected an object"),
        (['{"text": "x"}'], "line 1: no id, expected one under 'id' or 'ids'"),
        (['{"id": true, "text": "x"}'], "line 1: the id is of type bool"),
        (['{"id": "a"}'], "line 1: neither a text .* nor a vector"),
        (['{"id": "a", "text": 3}'], "line 1: text is of type int"),
        (['{"id": "a", "text": "x", "label": []}'], "line 1: label is of type list"),
        (['{"id": "a", "embedding": ["x"]}'], "line 1: the embedding is not a list of numbers"),
        (['{"id": "a", "embedding": [1]}', '{"id": "b", "embedding": [1, 2]}'], "line 2: .* has 2"),
    ],
)
def test_a_bad_line_is_named(lines, message, tmp_path):
    (tmp_path / "kb.jsonl").write_text("\n".join(lines))
    with pytest.raises(SourceError, match=message) as raised:
        load(open_source(tmp_path / "kb.jsonl"))
    assert "evil" not in str(raised.value)


def test_vectors_of_another_dimension_in_a_later_chunk_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "JSON_ROWS", 1)
    rows = [{"id": "a", "embedding": [1.0]}, {"id": "b", "embedding": [1.0, 2.0]}]
    with pytest.raises(SourceError, match=r"entry 'b' in .* has 2 dimensions, expected 1"):
        load(open_source(as_jsonl(tmp_path / "kb.jsonl", rows)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "embedding": [1.0]}, {"id": "a", "embedding": [1.0]}], "'a' is duplicated"),
        ([{"id": "a", "embedding": [0.0]}], "'a'.* is the zero vector"),
        ([{"id": "a", "embedding": [1.0, float("nan")]}], "'a'.* holds NaN"),
    ],
)
def test_entries_that_cannot_be_judged_are_named(rows, message, tmp_path):
    with pytest.raises(InvalidBatchError, match=message):
        load(open_source(as_jsonl(tmp_path / "kb.jsonl", rows)))


@pytest.mark.parametrize("name", ["kb.jsonl.gz", "kb.parquet"])
def test_a_damaged_file_is_a_clear_error(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"\x1f\x8bnot what its name says")
    with pytest.raises(SourceError, match=f"{name} cannot be read"):
        load(open_source(path))
    write = as_gzip if name.endswith("gz") else as_parquet
    data = write(tmp_path / "whole.jsonl", with_vectors()).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match="cannot be read"):
        load(open_source(path))


def test_missing_empty_or_unknown_file_is_refused(tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        open_source(tmp_path / "kb.jsonl")
    (tmp_path / "kb.doc").touch()
    with pytest.raises(SourceError, match=r"expected a name ending in \.jsonl"):
        open_source(tmp_path / "kb.doc")
    (tmp_path / "kb.jsonl").touch()
    with pytest.raises(SourceError, match="has no entries"):
        load(open_source(tmp_path / "kb.jsonl"))


def test_ids_are_read_one_per_line(tmp_path):
    (tmp_path / "ids.txt").write_bytes("a b\r\n\nc\u2028d\n".encode())
    assert read_ids(tmp_path / "ids.txt") == ["a b", "c\u2028d"]


@pytest.mark.slow
def test_vectors_are_in_memory_once(tmp_path):
    n, dim = 20_000, 384
    vectors = np.random.default_rng(0).normal(size=(n, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim)
    pq.write_table(pa.table({"id": range(n), "embedding": column}), tmp_path / "kb.parquet")
    size = vectors.nbytes
    del vectors, column
    tracemalloc.start()
    knowledge = load(open_source(tmp_path / "kb.parquet"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert knowledge.batch.vectors is knowledge.batch.embeddings
    assert peak < 2.5 * size  # 12.6 MB of it are one chunk in float64


# Embedding, and going on after an interruption


def texts_of(n):
    return [{"id": str(i), "text": f"billing {i}"} for i in range(n)]


def test_only_entries_without_a_vector_are_embedded(tmp_path):
    def never():
        raise AssertionError

    rows = texts_of(3)
    source = open_source(as_jsonl(tmp_path / "kb.jsonl", rows))
    with pytest.raises(SourceError, match="3 of 3 entries"):
        load(source)  # without a model
    rows[1]["embedding"] = [1.0] * DIM
    as_jsonl(tmp_path / "kb.jsonl", rows)
    embeddings = CountingEmbeddings()
    knowledge = load(source, embedder=counting(tmp_path / "work", embeddings))
    assert embeddings.texts == ["billing 0", "billing 2"]
    batch = knowledge.batch
    np.testing.assert_allclose(batch.vectors[2], vector_of("billing 2"), rtol=1e-5)
    assert batch.vectors[1].tolist() == [1.0] * DIM
    load(open_source(as_jsonl(tmp_path / "kb.jsonl", with_vectors())), embedder=never)


class Interrupted(CountingEmbeddings):
    def embed_documents(self, texts):
        if len(self.calls) == 2:
            raise KeyboardInterrupt
        return super().embed_documents(texts)


def test_after_an_interruption_no_chunk_is_embedded_twice(tmp_path):
    n = 4 * CHUNK_TEXTS + 10
    source = open_source(as_jsonl(tmp_path / "kb.jsonl", texts_of(n)))
    first, second, third = Interrupted(), CountingEmbeddings(), CountingEmbeddings()
    with pytest.raises(KeyboardInterrupt):
        load(source, embedder=counting(tmp_path / "work", first))
    told = []
    resumed = load(
        source, embedder=counting(tmp_path / "work", second), progress=lambda *a: told.append(a)
    )
    assert len(first.texts) == 2 * CHUNK_TEXTS
    assert first.texts + second.texts == [f"billing {i}" for i in range(n)]
    assert ("embedding", CHUNK_TEXTS, n) in told
    assert told[-1] == ("embedding", n, n)
    whole = load(source, embedder=counting(tmp_path / "elsewhere", third))
    np.testing.assert_array_equal(resumed.batch.embeddings, whole.batch.embeddings)


def test_texts_of_like_length_are_embedded_together(tmp_path):
    n = 2 * CHUNK_TEXTS
    texts = [f"ferry {i} " + "late " * (60 if i % 2 else 1) for i in range(n)]
    rows = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
    model = CountingEmbeddings()
    source = open_source(as_jsonl(tmp_path / "kb.jsonl", rows))
    found = load(source, embedder=counting(tmp_path / "work", model)).batch
    short, long = model.calls
    assert max(map(len, short)) < min(map(len, long))
    assert list(found.texts) == texts
    expected = np.array(CountingEmbeddings().embed_documents(texts), dtype=np.float32)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found.embeddings, expected, rtol=1e-6)


def lengthy(n):
    """Return texts of any length, as those of a knowledge base are."""
    rng = np.random.default_rng(0)
    return [f"{i} " + "late " * size for i, size in enumerate(rng.integers(200, size=n).tolist())]


def load_texts(texts, folder, model):
    rows = [{"id": str(i), "text": text} for i, text in enumerate(texts)]
    source = open_source(as_jsonl(folder / "kb.jsonl", rows))
    return load(source, embedder=counting(folder / "work", model)).batch


@pytest.mark.parametrize(
    "change",
    [
        lambda texts: [*texts, "one more"],
        lambda texts: ["one more", *texts],
        lambda texts: [*texts[:100], texts[100] + " and later" * 90, *texts[101:]],
        lambda texts: texts[:100] + texts[101:],
        lambda texts: texts[::-1],
    ],
    ids=["more", "before", "longer", "less", "order"],
)
@pytest.mark.slow
def test_a_change_of_one_text_costs_one_embedding(change, tmp_path):
    texts = lengthy(300)
    load_texts(texts, tmp_path, CountingEmbeddings())
    model = CountingEmbeddings()
    changed = change(texts)
    found = load_texts(changed, tmp_path, model)
    assert model.texts == [text for text in changed if text not in set(texts)]
    (tmp_path / "elsewhere").mkdir()
    anew = load_texts(changed, tmp_path / "elsewhere", CountingEmbeddings())
    np.testing.assert_array_equal(found.embeddings, anew.embeddings)


def test_new_vector_folder_is_ignored_by_git(tmp_path):
    model = CountingEmbeddings()
    for folder in (tmp_path / "docs.ragshield", tmp_path):
        list(CachedEmbedder(model.embed_documents, "one", folder).chunks(["a"]))
    assert (tmp_path / "docs.ragshield" / ".gitignore").read_text() == "*\n"
    assert not (tmp_path / ".gitignore").exists()  # somebody else's folder


def test_a_text_is_embedded_once_by_each_model(tmp_path):
    model = CountingEmbeddings()

    def vectors(texts, name="one"):
        embedder = CachedEmbedder(model.embed_documents, name, tmp_path)
        return np.vstack(list(embedder.chunks(texts)))

    found = vectors(["a", "b", "a"] * CHUNK_TEXTS)
    assert model.texts == ["a", "b"]
    assert np.array_equal(found[0], found[2])
    assert not np.array_equal(found[0], found[1])
    np.testing.assert_array_equal(vectors(["b", "a"]), found[[1, 0]])
    assert len(model.calls) == 1
    vectors(["a", "b"], "two")
    vectors(["ab", ""])
    assert len(model.calls) == 3


def test_vectors_that_are_wrong_and_a_damaged_database_are_refused(tmp_path):
    embedder = CachedEmbedder(lambda _texts: [[1.0]], "fake", tmp_path)
    with pytest.raises(InvalidBatchError, match=r"shape \(1, 1\) for 2 texts"):
        list(embedder.chunks(["a", "b"]))
    list(CachedEmbedder(lambda _: [[1.0, 0.0]], "fake", tmp_path).chunks(["a"]))
    with pytest.raises(InvalidBatchError, match=r"another length .* delete that file"):
        list(embedder.chunks(["a", "b"]))
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"no database at all, not in the least" * 100)
    with pytest.raises(SourceError, match=r"cannot be used .* delete it"):
        list(embedder.chunks(["a"]))


# FAISS folders and their pickle


def faiss_folder(path, n=5, **metadata):
    store = FAISS(CountingEmbeddings(), faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})
    store.add_texts(
        [f"billing {i}" for i in range(n)],
        metadatas=[{"source": f"doc{i}", "label": "billing"} | metadata for i in range(n)],
        ids=[f"id{i}" for i in range(n)],
    )
    store.delete(["id1"])
    store.save_local(str(path))
    return path


@pytest.mark.parametrize("name", ["", "index.faiss"])
def test_a_folder_of_langchains_faiss_is_read(name, tmp_path):
    seen = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    folder = faiss_folder(tmp_path / "kb", seen=seen)
    knowledge = load(open_source(folder / name, metadata=True))
    batch = knowledge.batch
    assert batch.ids == ("id0", "id2", "id3", "id4")
    assert batch.texts == tuple(f"billing {i}" for i in (0, 2, 3, 4))
    assert set(batch.labels) == {"billing"}
    assert batch.metadatas[0]["seen"] == seen
    expected = [vector_of(text) for text in batch.texts]
    np.testing.assert_allclose(knowledge.batch.take(range(4)).vectors, expected, rtol=1e-5)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_that_can_hold_it_is_read(protocol, tmp_path):
    folder = faiss_folder(tmp_path / "kb")
    with (folder / "index.pkl").open("rb") as file:
        content = pickle.load(file)  # noqa: S301 - our own
    (folder / "index.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    assert len(load(open_source(folder)).batch) == 4


class Payload:
    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


def malicious(marker):
    """Yield pickles that try to make ``marker``, by name."""
    command = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w')"
    document = Document(page_content="x", metadata={"source": Payload(os.system, command)})
    yield "system", pickle.dumps(Payload(os.system, command))
    yield "eval", pickle.dumps(Payload(eval, code))
    yield "in metadata", pickle.dumps((InMemoryDocstore({"id0": document}), {0: "id0"}))
    yield "popen", pickle.dumps(Payload(subprocess.Popen, ["touch", str(marker)]))
    yield "protocol 0", f"cos\nsystem\n(S'{command}'\ntR.".encode()
    yield "inst", f"(S'{command}'\nios\nsystem\n.".encode()
    yield (
        "through a known module",
        b"\x80\x04\x8c\x1dlangchain_core.documents.base\x8c\x1dDocument.__init__.__globals__\x93.",
    )
    yield "getattr", b"\x80\x02cbuiltins\ngetattr\n."
    yield "other class", pickle.dumps(OrderedDict(a=1))
    yield "extension code", b"\x80\x02\x82\x01."
    yield "persistent id", b"\x80\x02U\x01aQ."
    # A stand-in class itself on the stack, to be given a state.
    yield "state on a class", b"\x80\x02clangchain_core.documents.base\nDocument\n}b."
    yield (
        "state over a method",
        (b"\x80\x02clangchain_core.documents.base\nDocument\n)\x81N}U\x0c__setstate__Nsb\x86b."),
    )
    yield "called with arguments", b"\x80\x02clangchain_core.documents.base\nDocument\n(K\x01tR."


PICKLES = {name: number for number, (name, _) in enumerate(malicious("x"))}


@pytest.mark.parametrize("number", PICKLES.values(), ids=PICKLES)
def test_a_malicious_pickle_is_refused_and_executes_nothing(number, tmp_path):
    marker = tmp_path / "executed"
    folder = faiss_folder(tmp_path / "kb")
    content = list(malicious(marker))[number][1]
    (folder / "index.pkl").write_bytes(content)
    with pytest.raises(SourceError, match="is not a docstore"):
        load(open_source(folder))
    assert not marker.exists()


def test_the_payloads_above_are_real(tmp_path):
    marker = tmp_path / "executed"
    payloads = dict(malicious(marker))
    for name in ("system", "eval", "in metadata", "protocol 0", "inst"):
        pickle.loads(payloads[name])  # noqa: S301 - that it runs is the point
        assert marker.exists(), name
        marker.unlink()


def test_a_refused_class_is_named_with_a_way_out(tmp_path):
    folder = faiss_folder(tmp_path / "kb", price=np.float32(1.5))
    with pytest.raises(SourceError, match=r"names numpy\.\S+, .*export the store as JSON Lines"):
        load(open_source(folder))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        pickle.dumps(1),
        pickle.dumps(({}, {})),
        pickle.dumps((InMemoryDocstore({}), {0: "id0"})),
        pickle.dumps((InMemoryDocstore({"id0": "no document"}), {0: "id0"})),
        pickle.dumps((InMemoryDocstore({}), {5: "id0"})),
        pickle.dumps((InMemoryDocstore({}), [1])),
    ],
)
def test_a_malformed_docstore_is_refused(content, tmp_path):
    folder = faiss_folder(tmp_path / "kb")
    (folder / "index.pkl").write_bytes(content)
    with pytest.raises(SourceError, match=r"is not a docstore|cannot be read"):
        load(open_source(folder))


def test_an_index_out_of_step_damaged_or_missing_is_refused(tmp_path):
    folder = faiss_folder(tmp_path / "kb")
    faiss.write_index(faiss.IndexFlatL2(DIM), str(folder / "index.faiss"))
    with pytest.raises(SourceError, match=r"0 vectors and .* 4 documents"):
        load(open_source(folder))
    (folder / "index.faiss").write_bytes(b"IxF2nothing")
    with pytest.raises(SourceError, match="is not a FAISS index"):
        load(open_source(folder))
    (folder / "index.faiss").unlink()
    with pytest.raises(SourceError, match=r"index\.faiss does not exist"):
        load(open_source(folder))


def test_an_index_that_keeps_no_vectors_is_refused_with_a_way_out(tmp_path):
    folder = faiss_folder(tmp_path / "kb")
    index = faiss.IndexIDMap(faiss.IndexFlatL2(DIM))
    index.add_with_ids(np.ones((4, DIM), dtype=np.float32), np.arange(4))
    faiss.write_index(index, str(folder / "index.faiss"))
    with pytest.raises(SourceError, match=r"IndexIDMap.* export the texts as "):
        load(open_source(folder))


def test_vectors_of_an_inverted_file_come_in_the_order_of_the_documents(tmp_path):
    folder = faiss_folder(tmp_path / "kb", n=300)
    vectors = np.random.default_rng(0).normal(size=(299, DIM)).astype(np.float32)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIM), DIM, 2)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(folder / "index.faiss"))
    found = load(open_source(folder)).batch.vectors
    np.testing.assert_allclose(found, vectors, rtol=1e-5, atol=1e-6)
