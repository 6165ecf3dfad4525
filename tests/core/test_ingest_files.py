"""``ragshield guard ingest``: each row of parquet files is written once, by any engine."""

import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_parts import INJECTED, made, small_cluster, written
from typer.testing import CliRunner

from ragshield_core.cli import app
from ragshield_core.model.errors import ConfigurationError, OvertakenError, SourceError
from ragshield_core.tools.audit import Parts
from ragshield_core.tools.guard.ingest import Ingested, ingest, opened

# A store that notes each row in a file of its own process, and fails at a row that it is told.
NOTED = """
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ragshield_core import Batch, Report

FAILS_AT = {fails_at!r}


class Noting:
    guard = SimpleNamespace(close=lambda: None, n_known=1)

    def add_rows(self, ids, texts, metadatas, embeddings):
        if FAILS_AT in ids:
            raise ConnectionError("the store is away")
        with Path("noted", str(os.getpid())).open("a") as file:
            for i, text, metadata, vector in zip(ids, texts, metadatas, embeddings, strict=True):
                print(i, text, metadata["lineage"], round(float(vector[0]), 3), sep="|", file=file)
            print(len(ids), file=file)
        return Report(batch=Batch.of(ids=ids, texts=texts, embeddings=embeddings), remarkable={{}})


def store():
    Path("noted").mkdir(exist_ok=True)
    return Noting()


other = store
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder with parquet files and a module ``noting``, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    written(made(), tmp_path / "parts")
    noting(tmp_path)
    return tmp_path


def noting(folder, fails_at=None):
    """Write the module, and forget an earlier one."""
    sys.modules.pop("noting", None)
    opened.cache_clear()
    (folder / "noting.py").write_text(textwrap.dedent(NOTED.format(fails_at=fails_at)))


def noted(folder):
    """Return the noted rows, and the sizes of the writes."""
    lines = [line for file in (folder / "noted").iterdir() for line in file.read_text().split("\n")]
    rows = [line.split("|") for line in lines if "|" in line]
    return rows, [int(line) for line in lines if line.isdecimal()]


def test_each_row_is_written_once_with_its_vector_and_metadata(place):
    steps = []
    done = ingest(
        Parts(path=place / "parts"),
        "noting:store",
        batch_rows=100,
        progress=lambda *step: steps.append(step),
    )
    rows, sizes = noted(place)
    batch = made()
    assert done == Ingested(len(batch), len(batch), 0)
    assert [row[0] for row in rows] == list(batch.ids)
    assert [row[1] for row in rows] == list(batch.texts)
    assert [row[2] for row in rows] == list(batch.lineages)
    np.testing.assert_allclose([float(row[3]) for row in rows], batch.embeddings[:, 0], atol=1e-3)
    assert max(sizes) == 100
    assert steps[-1] == ("writing", 3, 3)


def test_an_interrupted_run_goes_on_behind_the_last_write(place):
    ids = list(made().ids)
    noting(place, fails_at=ids[450])
    with pytest.raises(ConnectionError):
        ingest(Parts(path=place / "parts"), "noting:store", batch_rows=50)
    before = [row[0] for row in noted(place)[0]]
    assert before == ids[: len(before)]
    assert 400 < len(before) < 450
    noting(place)
    done = ingest(Parts(path=place / "parts"), "noting:store", batch_rows=50)
    assert done.n_written == len(ids) - len(before)
    assert [row[0] for row in noted(place)[0]] == ids  # none twice
    assert ingest(Parts(path=place / "parts"), "noting:store").n_written == 0


@pytest.mark.parametrize("mark", ["", "{", '{"rows": 3}', "[]", '{"of": 1, "rows": "x"}'])
def test_a_damaged_mark_means_that_nothing_is_written(place, mark):
    ingest(Parts(path=place / "parts"), "noting:store")
    for file in (place / "parts.ragshield").iterdir():
        file.write_text(mark)
    assert ingest(Parts(path=place / "parts"), "noting:store").n_written == len(made())


def test_a_file_that_was_written_anew_is_ingested_again(place):
    ingest(Parts(path=place / "parts"), "noting:store")
    written(made().take(range(480)), place / "parts", files=1)
    assert ingest(Parts(path=place / "parts"), "noting:store").n_written == 480


def test_another_store_gets_all_rows_and_a_lost_one_is_noticed(place):
    ingest(Parts(path=place / "parts"), "noting:store")
    done = ingest(Parts(path=place / "parts"), "noting:other")
    assert done.n_written == len(made())
    (place / "noting.py").write_text((place / "noting.py").read_text().replace("=1)", "=False)"))
    sys.modules.pop("noting")
    opened.cache_clear()
    with pytest.raises(SourceError, match="another store, or was lost; remove"):
        ingest(Parts(path=place / "parts"), "noting:store")


def test_a_write_that_lost_its_turn_is_repeated(place, monkeypatch):
    store, lost = opened("noting:store", str(place)), [OvertakenError("silent for too long")]
    really = store.add_rows

    def add_rows(*columns):
        if lost:
            raise lost.pop()
        return really(*columns)

    monkeypatch.setattr(store, "add_rows", add_rows)
    ingest(Parts(path=place / "parts"), "noting:store")
    assert [row[0] for row in noted(place)[0]] == list(made().ids)


@pytest.mark.slow
def test_ray_writes_each_row_once_in_several_processes(place):
    with small_cluster():
        done = ingest(Parts(path=place / "parts"), "noting:store", engine="ray", batch_rows=20)
    rows, _ = noted(place)
    assert done.n_written == len(made())
    assert sorted(row[0] for row in rows) == sorted(made().ids)
    assert len(list((place / "noted").iterdir())) > 1


def test_rows_of_which_only_some_have_a_vector_are_refused(place):
    table = pa.table({"id": ["a", "b"], "text": ["one", "two"], "embedding": [[1.0, 0.0], None]})
    pq.write_table(table, place / "half.parquet")
    with pytest.raises(SourceError, match="only some of its rows have a vector"):
        ingest(Parts(path=place / "half.parquet"), "noting:store")
    assert noted(place) == ([], [])


def test_something_else_than_a_guarded_store_is_refused(place):
    with pytest.raises(ConfigurationError, match="expected a guarded store"):
        ingest(Parts(path=place / "parts"), "noting:FAILS_AT")


# A real store behind the command.
GUARDED = """
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import InstructionDetector
from ragshield_langchain import GuardedVectorStore

guarded = GuardedVectorStore(
    InMemoryVectorStore(DeterministicFakeEmbedding(size=24)),
    guard=Guard([InstructionDetector()], quarantine=Quarantine("sqlite://")),
)
"""


def test_the_command_holds_poison_and_says_how_much(place):
    (place / "guarded_app.py").write_text(GUARDED)
    call = ["guard", "ingest", "parts", "--into", "guarded_app:guarded"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.output
    assert "960 of 960 rows were written, 1 are held." in result.stdout
    store = sys.modules["guarded_app"].guarded
    (held,) = store.quarantine.list()
    assert held.entry.text == INJECTED
    assert len(store.inner.store) == 959
    again = CliRunner().invoke(app, call)
    assert "0 of 960 rows were written, 0 are held; 960 were there before." in again.stdout


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["guard", "ingest", "none.parquet", "--into", "noting:store"], "error:"),
        (["guard", "ingest", "parts", "--into", "nowhere:store"], "cannot be imported"),
        (["guard", "ingest", "parts", "--into", "noting:store", "--id-column", "key"], "no id"),
    ],
)
def test_the_command_says_what_is_wrong(place, call, said):  # noqa: ARG001
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")
