"""Audits by partitions: the same findings as in memory, on any engine, after any crash."""

import json
import os
import shutil
import sys
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_parts import DIM, INJECTED, N, Stopping, Watching, made, small_cluster, written
from support import Scripted, slowly
from typer.testing import CliRunner

from ragshield_core import Batch
from ragshield_core.cli import app
from ragshield_core.detectors import (
    CliqueDetector,
    HiddenTextDetector,
    InstructionDetector,
    LabelCentroidDetector,
    StatelessDetector,
)
from ragshield_core.model.errors import CalibrationError, InvalidBatchError, SourceError
from ragshield_core.model.findings import finding_to_dict
from ragshield_core.tools.audit import Parts, RayEngine, scan


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this file."""
    with small_cluster():
        yield


def detectors():
    return [CliqueDetector(), HiddenTextDetector(), InstructionDetector()]


def findings(report):
    """Return the comparable part of a report."""
    return [finding_to_dict(finding) for d in report.found for finding in d.findings]


def alike(report):
    """Return findings without their last digits and without the order of equal neighbours."""
    told = [
        finding
        | {"related_ids": sorted(finding["related_ids"]), "score": round(finding["score"], 4)}
        for finding in findings(report)
    ]
    return sorted(told, key=lambda finding: (finding["entry_id"], finding["detector"]))


def audited(folder, *, rows=100, engine="local", work_dir=None, **options):
    parts = Parts(path=folder, partition_rows=rows, work_dir=work_dir)
    return scan(parts, detectors(), engine=engine, fpr=0.02, **options)


@pytest.fixture(scope="module")
def batch():
    return made()


@pytest.fixture(scope="module")
def folder(batch, tmp_path_factory):
    return written(batch, tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def in_memory(batch):
    return scan(batch, detectors(), fpr=0.02)


@pytest.fixture(scope="module")
def partitioned(folder):
    return audited(folder)


# The same as in one memory


@pytest.mark.parametrize(
    ("rows", "n_partitions"), [(N // 6, 6), pytest.param(N, 1, marks=pytest.mark.slow)]
)
def test_few_partitions_match_the_audit_in_memory(folder, in_memory, rows, n_partitions):
    report = audited(folder, rows=rows)
    assert report.n_partitions == n_partitions
    assert {d.entry_id[:3] for d in in_memory.found} >= {"bad", "cop", "e5"}
    assert alike(report) == alike(in_memory)
    assert report.thresholds == in_memory.thresholds
    assert report.found[0].entry_id == in_memory.found[0].entry_id
    assert "partitions" not in report.note
    assert report.neighbors_found == {2: 1.0, 16: 1.0}


@pytest.mark.slow
def test_many_partitions_find_groups_and_report_the_missed_share(partitioned, in_memory):
    assert partitioned.n_partitions >= 10
    there, here = ({d.entry_id for d in report.found} for report in (in_memory, partitioned))
    planted = {i for i in there if i.startswith(("bad", "copy"))}
    assert len(planted) >= 24
    assert planted <= here
    assert len(there ^ here) <= 0.2 * len(there)
    two, sixteen = partitioned.neighbors_found[2], partitioned.neighbors_found[16]
    assert 0.9 < sixteen <= two <= 1.0
    assert f"{two:.1%} of the 2 nearest and {sixteen:.1%} of the 16 nearest" in partitioned.note


@pytest.mark.slow
def test_the_share_of_neighbours_is_that_of_all_entries(tmp_path):
    batch, seen = made().take(range(600)), {}
    folder = written(batch, tmp_path / "in")

    def look(plan):
        numbers = np.concatenate([plan.own(p) for p in plan.filled])
        seen["ids"] = plan.ids(numbers)
        seen["similarities"] = plan.gather(numbers, "similarities")

    report = audited(folder, rows=16, engine=Watching("score", look))
    row_of = {entry_id: row for row, entry_id in enumerate(batch.ids)}
    vectors = batch.embeddings[[row_of[i] for i in seen["ids"]]]
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    for k in (2, 16):
        least = -np.sort(-similar, axis=1)[:, k - 1 : k]
        share = float(np.minimum((seen["similarities"] > least - 2e-6).sum(axis=1), k).mean() / k)
        assert report.neighbors_found[k] == pytest.approx(share, abs=0.015)
    assert share < 0.999


@pytest.mark.slow
def test_indivisible_copies_share_one_partition(tmp_path):
    batch = made().take(range(600))
    flood = np.repeat(batch.embeddings[300:301], 900, axis=0)
    batch = Batch.of(
        ids=[*batch.ids, *(f"flood{i}" for i in range(900))],
        texts=[*batch.texts, *[batch.texts[300]] * 900],
        embeddings=np.concatenate([batch.embeddings, flood]),
        lineages=[*batch.lineages, *(f"site {i}" for i in range(900))],
    )
    report = audited(written(batch, tmp_path / "in"), rows=80)
    crowd = {d.entry_id for d in report.found if d.entry_id.startswith("flood")}
    assert {d.entry_id for d in scan(batch, detectors(), fpr=0.02).found} >= crowd
    assert report.neighbors_found[2] > 0.95


@pytest.mark.slow
def test_thresholds_from_trusted_entries_are_the_same(folder, batch):
    clean = [i for i in batch.ids if i.startswith("e")][200:900]
    whole = scan(batch, detectors(), fpr=0.02, clean_ids=clean)
    report = audited(folder, rows=N, clean_ids=clean)
    assert report.n_clean == 700
    assert report.thresholds == pytest.approx(whole.thresholds)
    assert alike(report) == alike(whole)
    parts, some = Parts(path=folder), [HiddenTextDetector()]
    with pytest.raises(InvalidBatchError, match=r"1 of 2 trusted ids .*'stranger'"):
        scan(parts, some, clean_ids=["stranger", batch.ids[9]])
    with pytest.raises(CalibrationError, match="pass at least"):
        scan(parts, some, clean_ids=clean[:20])


@pytest.mark.slow
def test_report_counts_all_entries_and_holds_only_findings(partitioned, in_memory):
    assert partitioned.n_audited == N
    assert partitioned.summary().startswith(f"{N} entries audited: ")
    assert len(partitioned.batch) == len(partitioned.found) < 0.1 * N
    assert not any(partitioned.batch.texts)
    told = json.loads(partitioned.to_json())
    assert (told["entries"], told["judged"]) == (N, N)
    assert told["findings"][0]["findings"][0].keys() == findings(in_memory)[0].keys()
    assert INJECTED not in partitioned.to_json()


def test_detectors_that_need_all_entries_are_skipped_by_name(folder, tmp_path):
    report = scan(
        Parts(path=folder, partition_rows=N),
        [HiddenTextDetector(), LabelCentroidDetector(), CliqueDetector(rule="cleanbase")],
    )
    assert [s.detector for s in report.skipped] == ["label_centroid", "clique"]
    assert "in one memory only" in report.skipped[0].reason
    assert not report.failed
    few = audited(written(made().take(range(60)), tmp_path / "in"))  # too few for groups
    assert [s.detector for s in few.skipped] == ["clique"]
    assert [d.entry_id for d in few.found] == ["e5"]


class Crashing(Scripted, StatelessDetector):
    """Crashes on one text."""

    def score(self, entries):
        if INJECTED in entries.texts:
            raise RuntimeError(INJECTED)
        return np.zeros(len(entries))

    def config(self):
        return {}


def test_a_detector_that_crashes_on_a_part_has_failed(folder):
    report = scan(Parts(path=folder), [Crashing(), HiddenTextDetector()])
    assert report.failed == (Crashing().name,)
    assert "RuntimeError" in report.skipped[0].reason
    assert INJECTED not in report.skipped[0].reason


# Engines


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ray_finds_the_same_as_one_process(folder, partitioned):
    told = []
    report = audited(folder, engine="ray", progress=lambda *step: told.append(step))
    assert findings(report) == findings(partitioned)
    assert report.neighbors_found == partitioned.neighbors_found
    searched = [done for step, done, _ in told if step == "searching"]
    assert searched == list(range(searched[-1] + 1))
    assert searched[-1] >= report.n_partitions


class Killed(RayEngine):
    """A Ray engine that loses a worker in one step."""

    def __init__(self, step, marker):
        super().__init__()
        self._step, self._marker = step, marker

    def run(self, function, tasks):
        if function.func.__name__ != self._step:
            yield from super().run(function, tasks)
            return

        def died_once(marker, *task):  # in here, since workers cannot import tests
            if not marker.exists():
                marker.touch()
                os._exit(1)
            return function(*task)

        half = len(tasks) // 2
        yield from super().run(function, tasks[:half])
        yield from super().run(partial(died_once, self._marker), tasks[half:])


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("step", ["place", "tie"])
def test_a_killed_worker_changes_nothing(folder, partitioned, tmp_path, step):
    marker = tmp_path / "killed"
    report = audited(folder, engine=Killed(step, marker))
    assert marker.exists()
    assert findings(report) == findings(partitioned)


class Deadly(RayEngine):
    def run(self, function, tasks):  # noqa: ARG002
        return super().run(lambda *_: os._exit(1), tasks)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_task_that_always_kills_its_worker_is_reported(batch, tmp_path):
    folder = written(batch, tmp_path / "in", files=1)
    with pytest.raises(SourceError, match=r"died 4 times.*smaller --partition-rows"):
        audited(folder, engine=Deadly(), work_dir=tmp_path)


@pytest.mark.parametrize("engine", ["local", *slowly("ray")])
@pytest.mark.slow
def test_worker_errors_are_raised_as_source_errors(request, tmp_path, batch, engine):
    if engine == "ray":
        request.getfixturevalue("cluster")
    folder = written(batch, tmp_path / "in")
    again = pa.table({"id": ["x"], "text": ["without a vector"]})
    pq.write_table(again, folder / "part-9.parquet")
    with pytest.raises(SourceError, match=r"entry 'x' of .*part-9.parquet has no vector"):
        audited(folder, engine=engine)


def test_missing_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SourceError, match=r"pip install 'ragshield\[ray\]'"):
        audited(folder, engine="ray")


def test_engine_option_requires_parts(batch):
    with pytest.raises(TypeError, match="expected Parts"):
        scan(batch, detectors(), engine="ray")


# Files


def cut_short(plan):
    next(plan.folder.glob("*/vectors.npy")).write_bytes(b"cut short")


def removed(plan):
    shutil.rmtree(plan.folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut_short, "all machines that take part"), (removed, "storage that all machines")],
)
@pytest.mark.slow
def test_files_that_a_machine_cannot_read_are_an_error(folder, damage, message):
    step = {cut_short: "search", removed: "place"}[damage]
    with pytest.raises(SourceError, match=message):
        audited(folder, engine=Watching(step, damage))


@pytest.mark.slow
def test_work_folder_is_always_emptied(tmp_path):
    folder, work = written(made().take(range(200)), tmp_path / "in"), tmp_path / "work"
    with pytest.raises(KeyboardInterrupt):
        audited(folder, engine=Stopping("tie"), work_dir=work)
    assert audited(folder, work_dir=work).n_audited == 200
    assert not list(work.iterdir())


# Input


@pytest.mark.slow
def test_invalid_entry_is_named(tmp_path, batch):
    folder = written(batch, tmp_path / "in")
    (folder / "part-7.parquet").write_bytes((folder / "part-0.parquet").read_bytes())
    with pytest.raises(InvalidBatchError, match=r"the id '.*' repeats"):
        audited(folder)
    vectors = batch.embeddings.copy()
    vectors[11] = 0.0
    table = pq.read_table(folder / "part-0.parquet")
    values = pa.array(vectors[: len(table)].ravel())
    column = pa.FixedSizeListArray.from_arrays(values, DIM)
    table = table.set_column(table.schema.get_field_index("embedding"), "embedding", column)
    pq.write_table(table, folder / "part-0.parquet")
    with pytest.raises(InvalidBatchError, match=repr(batch.ids[11])):
        audited(folder)


def test_invalid_parquet_input_is_refused(tmp_path):
    with pytest.raises(SourceError, match="no parquet file and no folder of them"):
        audited(tmp_path)
    with pytest.raises(SourceError, match="at least 2"):
        Parts(path=tmp_path, partition_rows=1)
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), tmp_path / "none.parquet")
    with pytest.raises(SourceError, match="no entries"):
        audited(tmp_path)


# Command line


def command(folder, *options):
    return CliRunner().invoke(app, ["scan", str(folder), "--engine", *map(str, options)])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_command_reports_the_same_findings(request, folder, partitioned, tmp_path, engine):
    if engine == "ray":
        request.getfixturevalue("cluster")
    named = [part for one in detectors() for part in ("--detector", one.name)]
    named += ["--work-dir", tmp_path, "--format", "json", "--partition-rows", 100, "--fpr", 0.02]
    result = command(folder, engine, *named)
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    found = [finding for entry in told["findings"] for finding in entry["findings"]]
    assert found == json.loads(json.dumps(findings(partitioned)))


def test_command_refuses_unsupported_options(folder):
    refused = command(folder, "local", "--quarantine")
    assert refused.exit_code == 2
    assert "--include and --exclude need whole entries" in " ".join(refused.output.split())
    assert "expected 'local' or 'ray'" in command(folder, "dask").output
