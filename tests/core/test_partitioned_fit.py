"""Guards that are fitted by partitions: the same as in one memory, whoever runs the tasks."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_table import FakeTable
from parquet_parts import N, Watching, made, small_cluster, written
from support import Scripted
from typer.testing import CliRunner

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.calibration import calibrator
from ragshield_core.cli import app
from ragshield_core.detectors import CanaryDisplacementDetector, CliqueDetector
from ragshield_core.detectors.base import learns
from ragshield_core.detectors.base.abilities import learn_piece, pieces_learned
from ragshield_core.detectors.base.pieces import Pieces
from ragshield_core.detectors.phrase.counts import MAX_CELLS, MIN_CELLS, Background, Grams
from ragshield_core.detectors.registry import BUILT_IN
from ragshield_core.model.errors import InvalidBatchError, SourceError
from ragshield_core.tools.audit import Parts, scan


def labelled(batch):
    """Return entries with two labels, which go with their topics, but for a few."""
    labels = ["ham" if row % 24 < 12 else "spam" for row in range(len(batch))]
    labels[::97] = ["spam"] * len(labels[::97])
    return replace(batch, labels=tuple(labels))


def guard_of(detectors=None, **options):
    if detectors is None:
        return Guard.default(quarantine=Quarantine("sqlite://"), **options)
    return Guard(detectors, quarantine=Quarantine("sqlite://"), **options)


def fitted(folder, *, rows=400, engine="local", work_dir=None, guard=None, **options):
    parts = Parts(path=folder, partition_rows=rows, work_dir=work_dir)
    return (guard or guard_of()).fit(parts, engine=engine, **options)


def newcomers(batch):
    """Return entries beside known ones, with a group and a copy among them."""
    rng = np.random.default_rng(7)
    vectors = batch.embeddings[:40] + 0.2 * rng.normal(size=(40, batch.dim))
    middle = batch.embeddings[0] + batch.embeddings[7]  # on two topics, far from both
    vectors[:5] = middle + 0.01 * rng.normal(size=(5, batch.dim))
    texts = [" ".join(f"w{w}" for w in rng.integers(0, 400, 14)) for _ in range(40)]
    texts[9] = batch.texts[9]
    return Batch.of(
        ids=[f"new{i}" for i in range(40)],
        texts=texts,
        embeddings=vectors.astype(np.float32),
        labels=batch.labels[:40],
        lineages=[f"new page {i}" for i in range(40)],
    )


def judged(guard, batch):
    """Return scores by detector, and what is held."""
    report = guard.screen(newcomers(batch))
    return report.scores, report.quarantined


def of_the_group(held):
    """Return whether most of the group among the newcomers are held as one."""
    group = {f"new{i}" for i in range(5)}
    found = [d for d in held for f in d.findings if f.detector == "clique"]
    return len(group & {decision.entry_id for decision in found}) >= 3


def assert_same(one, other, batch, within=1e-4):
    assert one.calibration.thresholds == pytest.approx(other.calibration.thresholds, abs=within)
    for name, scores in one.state.calibrator.calibration.scores.items():
        theirs = other.state.calibrator.calibration.scores[name]
        np.testing.assert_allclose(scores, theirs, atol=within, err_msg=name)
    (mine, held), (theirs, held_there) = judged(one, batch), judged(other, batch)
    assert held == held_there
    assert mine.keys() == theirs.keys()
    for name, scores in mine.items():
        np.testing.assert_allclose(scores, theirs[name], atol=within, err_msg=name)


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this file."""
    with small_cluster():
        yield


@pytest.fixture(scope="module")
def batch():
    return labelled(made())


@pytest.fixture(scope="module")
def folder(batch, tmp_path_factory):
    return written(batch, tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def in_memory(batch):
    return guard_of().fit(batch).calibrate()


# The same as in one memory


@pytest.mark.parametrize(
    ("rows", "engine"),
    [
        (N // 6, "local"),
        pytest.param(N, "local", marks=pytest.mark.slow),
        pytest.param(N // 3, "ray", marks=pytest.mark.slow),
    ],
)
def test_in_few_partitions_it_is_the_guard_in_memory(
    request, folder, batch, in_memory, rows, engine
):
    if engine == "ray":
        request.getfixturevalue("cluster")
    guard = fitted(folder, rows=rows, engine=engine).calibrate()
    assert guard.writes.known_ids() == set(batch.ids)
    assert guard.writes.fingerprints(batch.ids) == in_memory.writes.fingerprints(batch.ids)
    scores, held = judged(in_memory, batch)
    assert of_the_group(held)
    assert "label_model" in scores
    assert_same(guard, in_memory, batch)


@pytest.mark.slow
def test_it_goes_on_like_the_guard_in_memory(folder, batch, in_memory, tmp_path):
    in_memory.save(tmp_path / "memory")
    fitted(folder).calibrate().save(tmp_path / "parts")
    guards = [
        Guard.load(tmp_path / name, quarantine=Quarantine("sqlite://"))
        for name in ("memory", "parts")
    ]
    more = newcomers(batch).take(range(10, 40))
    for guard in guards:
        guard.forget(batch.take(range(100)))
        guard.learn(more)
        guard.calibration.refresh()
    assert_same(*guards, batch)


@pytest.mark.slow
def test_in_many_partitions_groups_are_held_and_what_is_missed_is_logged(folder, batch, caplog):
    caplog.set_level("INFO", logger="ragshield")
    guard = fitted(folder, rows=100).calibrate()
    _, held = judged(guard, batch)
    assert of_the_group(held)
    assert "of the 16 nearest neighbours were found so" in caplog.text


@pytest.mark.slow
def test_processes_that_share_a_guard_have_what_was_fitted(folder, in_memory, tmp_path):
    url = f"sqlite:///{tmp_path / 'guard.db'}"
    guard, other = Guard.open(url), Guard.open(url)
    fitted(folder, guard=guard).calibrate()
    other.writes.catch_up()
    assert other.n_known == N
    assert other.calibration.thresholds == pytest.approx(in_memory.calibration.thresholds, abs=1e-4)
    for one in (guard, other):
        one.close()


@pytest.mark.slow
def test_of_many_entries_some_are_held_out(folder, batch, in_memory, monkeypatch):
    monkeypatch.setattr(calibrator, "MOST_HELD_OUT", 1_200)
    guard = fitted(folder).calibrate(fpr=0.05)
    whole = guard_of().fit(batch).calibrate(fpr=0.05)
    scores, theirs = (one.state.calibrator.calibration.scores for one in (guard, whole))
    assert {len(column) for column in scores.values()} == {1_200}
    assert set(scores["clique"].tolist()) <= set(theirs["clique"].tolist())
    assert guard.state.calibrator.sample.inside.ids == in_memory.state.calibrator.sample.inside.ids
    assert guard.calibration.thresholds["clique"] == pytest.approx(
        whole.calibration.thresholds["clique"], rel=0.2
    )


class CountingTable(FakeTable):
    """Counts the vectors that are fetched."""

    fetched = 0

    def vectors(self, ids):
        self.fetched += len(ids)
        return super().vectors(ids)


@pytest.mark.slow
def test_vectors_stay_in_the_store(folder, batch, in_memory):
    table = CountingTable(dict(zip(batch.ids, batch.vectors, strict=True)))
    guard = guard_of([CliqueDetector()])
    guard.connections.use_table(table, "store")
    fitted(folder, guard=guard)
    assert guard.detectors[0].n_local == 0
    assert table.fetched == N  # to see that they are there
    guard = guard_of()
    guard.connections.use_table(table, "store")
    fitted(folder, guard=guard).calibrate()
    assert (guard.connections.where, guard.detectors[0].n_local) == ("store", 0)
    assert_same(guard, in_memory, batch, within=1e-3)  # what stores return is rounded


@pytest.mark.parametrize("n", [0, 60])
def test_few_entries_wait_for_others(tmp_path, batch, n):
    few = batch.take(range(n or 1))
    guard = guard_of([CliqueDetector()])
    fitted(written(few, tmp_path / "in", files=1), guard=guard)
    whole = guard_of([CliqueDetector()]).fit(few)
    assert guard.status().n_known == len(few)
    for one in (guard, whole):
        one.learn(batch.take(range(100, 300)))
    (mine, _), (theirs, _) = judged(guard, batch), judged(whole, batch)
    np.testing.assert_allclose(mine["clique"], theirs["clique"], atol=1e-4)


def test_without_groups_nothing_is_divided(folder, batch):
    kinds = [kind() for name, kind in BUILT_IN.items() if name in ("meta_claim", "disfluency")]
    watching = Watching()
    guard = fitted(folder, guard=guard_of(kinds), engine=watching).calibrate()
    assert not watching.counts
    assert_same(guard, guard_of([type(d)() for d in kinds]).fit(batch).calibrate(), batch)


class InMemory(Pieces):
    """Entries that are in memory, in pieces."""

    def __init__(self, batch, rows):
        self._batch, self._rows = batch, rows

    def __len__(self):
        return len(self._batch)

    def batches(self, what):  # noqa: ARG002
        for start in range(0, len(self), self._rows):
            yield self._batch.take(range(start, min(start + self._rows, len(self))))

    def groups(self):
        raise NotImplementedError


ALONE = [kind for name, kind in BUILT_IN.items() if name != "clique"]


@pytest.mark.parametrize("kind", ALONE, ids=lambda kind: kind.name)
def test_pieces_are_learned_as_the_whole_is(kind, batch):
    whole, pieces = kind().fit(batch), kind()
    for piece in InMemory(batch, 331).batches(""):
        learn_piece(pieces, piece)
    pieces_learned(pieces, InMemory(batch, 331), batch)
    assert pieces.traits.in_pieces or not learns(pieces)
    (values, arrays), (there, arrays_there) = pieces.state(), whole.state()
    assert values == there
    assert arrays.keys() == arrays_there.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, arrays_there[name], atol=1e-9, err_msg=name)


def test_queries_are_watched_in_pieces_as_in_the_whole(batch):
    def detector():
        return CanaryDisplacementDetector(queries=["a", "b"], vectors=batch.embeddings[[3, 800]])

    whole, pieces = detector().fit(batch), detector()
    for piece in InMemory(batch, 331).batches(""):
        learn_piece(pieces, piece)
    new = newcomers(batch)
    np.testing.assert_allclose(pieces.score(new), whole.score(new), atol=1e-9)


def test_a_folded_table_is_that_of_its_size():
    texts = [" ".join(f"w{i * k % 997}" for k in range(1, 40)) for i in range(1, 200)]
    small, large = Background(MIN_CELLS), Background(MAX_CELLS)
    small.counts[:9] = large.counts[:9] = 65_530  # soon beyond counting
    for start in range(0, len(texts), 20):
        grams = Grams.of(texts[start : start + 20])
        small.add(grams)
        large.add(grams)
    folded = large.folded(MIN_CELLS)
    np.testing.assert_array_equal(folded.counts[9:], small.counts[9:])
    assert (folded.n_entries, folded.n_grams.tolist()) == (small.n_entries, small.n_grams.tolist())
    assert len(large.counts) > len(small.counts)


# What cannot be


def test_detectors_that_need_all_at_once_are_named_before_anything_is_done(folder, tmp_path):
    guard = guard_of([CliqueDetector(rule="cleanbase"), Scripted()])
    with pytest.raises(ValueError, match=r"clique, scripted cannot be fitted piece by piece"):
        fitted(folder, guard=guard, work_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_engine_is_of_parts(batch):
    with pytest.raises(TypeError, match="expected Parts"):
        guard_of().fit(batch, engine="local")


@pytest.mark.parametrize("detectors", [None, [BUILT_IN["meta_claim"]()]])
def test_an_id_that_repeats_and_an_entry_without_a_vector_are_named(tmp_path, batch, detectors):
    folder = written(batch.take(range(300)), tmp_path / "in")
    one = pq.read_table(folder / "part-0.parquet").slice(7, 1)
    pq.write_table(one, folder / "part-9.parquet")
    with pytest.raises(InvalidBatchError, match=r"the id 'e7' repeats"):
        fitted(folder, guard=guard_of(detectors))
    pq.write_table(pa.table({"id": ["x"], "text": ["a"]}), folder / "part-9.parquet")
    with pytest.raises(SourceError, match=r"entry 'x' of .*part-9.parquet has no vector"):
        fitted(folder, guard=guard_of(detectors))


# Going on


@pytest.mark.slow
def test_an_interrupted_fit_goes_on(folder, batch, in_memory, tmp_path):
    first = Watching(stop=("search", 3))
    with pytest.raises(KeyboardInterrupt):
        fitted(folder, engine=first, work_dir=tmp_path)
    second = Watching()
    guard = fitted(folder, engine=second, work_dir=tmp_path).calibrate()
    assert second.counts["search"] == 3
    assert {"place", "gather"}.isdisjoint(second.counts)
    assert_same(guard, in_memory, batch)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_was_found_is_kept_until_it_was_learned(folder, batch, in_memory, tmp_path):
    def stop(what, done, total):  # noqa: ARG001
        if what == "learning" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(folder, work_dir=tmp_path, progress=stop)
    second, told = Watching(), []
    guard = fitted(
        folder, engine=second, work_dir=tmp_path, progress=lambda *step: told.append(step)
    )
    assert not sum(second.counts.values())
    assert ("learning", N, N) in told
    assert_same(guard.calibrate(), in_memory, batch)


def test_a_folder_of_other_work_is_refused_and_a_damaged_file_is_named(folder, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fitted(folder, engine=Watching(stop=("search", 3)), work_dir=tmp_path)
    with pytest.raises(SourceError, match="holds work on other data, or with other settings"):
        fitted(folder, work_dir=tmp_path, rows=300)
    with pytest.raises(SourceError, match="holds work on other data, or with other settings"):
        scan(
            Parts(path=folder, work_dir=tmp_path, partition_rows=400),
            [CliqueDetector(), BUILT_IN["hidden_text"]()],
        )
    broken = next((tmp_path / "partitions" / "lists").iterdir())
    broken.write_bytes(broken.read_bytes()[:-9])
    with pytest.raises(SourceError, match=r"lists.* cannot be read"):
        fitted(folder, work_dir=tmp_path)


# The command


def run(*arguments):
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


@pytest.mark.slow
def test_the_command_fits_and_saves(folder, batch, in_memory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, chosen in (("whole", ["part.parquet"]), ("parts", [folder, "--engine", "local"])):
        pq.write_table(
            pa.concat_tables([pq.read_table(one) for one in sorted(folder.iterdir())]),
            tmp_path / "part.parquet",
        )
        result = run(*chosen, "--save", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert f"fitted and calibrated on {N} entries" in result.output
        guard = Guard.load(tmp_path / name, quarantine=Quarantine("sqlite://"))
        assert_same(guard, in_memory, batch)
    assert not (tmp_path / "ragshield.db").exists()


def test_the_command_saves_what_it_cannot_calibrate(tmp_path, batch, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = written(batch.take(range(60)), tmp_path / "in")
    result = run(folder, "--engine", "local", "--save", tmp_path / "guard", "--fpr", "0.001")
    assert result.exit_code == 2
    assert "not calibrated" in result.output
    guard = Guard.load(tmp_path / "guard", quarantine=Quarantine("sqlite://"))
    assert (guard.n_known, guard.calibrated) == (60, False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--fpr", "2"], "--fpr is 2"),
        (["--address", "auto"], "--engine ray"),
        (["--engine", "dask"], "'local' or 'ray'"),
    ],
)
def test_the_command_says_what_is_wrong(folder, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    result = run(folder, "--save", tmp_path / "guard", *options)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
