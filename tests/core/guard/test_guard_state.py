"""A guard on disk: it loads unchanged, and is refused after any tampering."""

import hashlib
import io
import json
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from support import guard_of, join, knowledge_base, loaded, prose, saved, topical

from ragshield_core import state
from ragshield_core.calibration import calibrator
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
from ragshield_core.model.errors import StateError

KNOWN = knowledge_base(20)
NEW = join(
    knowledge_base(4, prefix="new"),
    topical("shipping", 3, label="billing", prefix="bad"),
    topical("billing", 1, label="unknown", prefix="odd"),
)
MANIFEST = "ragshield.json"


def two_levels(**policy):
    detectors = [LabelCentroidDetector(min_entries=3), LabelCentroidDetector(level="batch")]
    return guard_of(*detectors, seed=7, **policy)


def calibrated():
    guard = two_levels(flag_at=0.2, quarantine_at=0.05, fail_open=True)
    return guard.fit(KNOWN).calibrate(knowledge_base(30, prefix="clean"))


def left_out():
    """Return a guard at a higher rate than requested, without a detector that judged too few."""
    detectors = [CliqueDetector(min_entries=50), LabelCentroidDetector(min_entries=3)]
    guard = guard_of(*detectors).fit(told(KNOWN))
    clean = topical("billing", 39, prefix="clean", labels=["billing"] * 5 + [None] * 34)
    return guard.calibrate(told(clean), fpr=0.01, at_most=0.05)


def told(batch):
    """Return entries with texts that say something: others make no groups."""
    rng = np.random.default_rng(len(batch))
    return replace(batch, texts=tuple(prose(rng) for _ in batch.ids))


STATES = {
    "unfitted": two_levels,
    "fitted": lambda: two_levels().fit(KNOWN),
    "held out": lambda: two_levels().fit(KNOWN).calibrate(fpr=0.1),
    "calibrated": calibrated,
    "a detector left out": left_out,
}


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
@pytest.mark.slow
def test_a_loaded_guard_gives_identical_reports_and_goes_on_learning(make, tmp_path):
    guard = make()
    guard.save(tmp_path / "state")
    again = loaded(tmp_path / "state")
    assert (again.policy, again.calibrated) == (guard.policy, guard.calibrated)
    assert again.state.seed == guard.state.seed
    assert [d.config() for d in again.detectors] == [d.config() for d in guard.detectors]
    for _ in range(2):
        ours, theirs = guard.screen(NEW), again.screen(NEW)
        assert theirs.decisions == ours.decisions
        assert theirs.skipped == ours.skipped
        for name in ours.scores:
            np.testing.assert_array_equal(theirs.scores[name], ours.scores[name])
        for one in (guard, again):
            one.forget(KNOWN.take([0]))
            one.admit(one.screen(NEW))
    assert saved(again, tmp_path / "theirs") == saved(guard, tmp_path / "ours")


def test_a_detector_left_out_and_the_rate_taken_survive_the_disk(tmp_path):
    left_out().save(tmp_path)
    again = loaded(tmp_path)
    assert again.policy.quarantine_at == 1 / 40
    assert set(again.calibration.thresholds) == {"clique"}
    assert [s.reason for s in again.screen(NEW).skipped] == [
        "not calibrated: it could judge 5 of the clean entries, too few"
    ]


def test_loaded_guard_can_be_calibrated_on_fitted_entries(tmp_path):
    guard = two_levels().fit(KNOWN)
    guard.save(tmp_path)
    again = loaded(tmp_path).calibrate(fpr=0.1)
    assert again.screen(NEW).decisions == guard.calibrate(fpr=0.1).screen(NEW).decisions


def test_large_fit_is_calibrated_on_a_sample(monkeypatch):
    known, scored = knowledge_base(80), []
    take = calibrator.Calibrator._held_out_scores
    monkeypatch.setattr(
        calibrator.Calibrator,
        "_held_out_scores",
        lambda self, part, again=None: (scored.append(list(part.ids)), take(self, part, again))[1],
    )
    two_levels().fit(known)
    monkeypatch.setattr(calibrator, "MOST_SCORED", 50)
    guard = two_levels().fit(known).calibrate(fpr=0.1)
    whole, drawn = scored
    assert whole == list(known.ids)
    assert drawn == [i for i in known.ids if i in set(drawn)] != list(known.ids[:50])
    assert {len(one) for one in guard.state.calibrator.calibration.scores.values()} == {50}


def test_held_out_scores_are_in_memory_once(tmp_path):
    two_levels().fit(KNOWN).calibrate(fpr=0.1).save(tmp_path)
    read = loaded(tmp_path).state.calibrator
    assert read.held_out
    for name, scores in read.held_out.items():
        assert read.calibration.scores[name] is scores


def test_arrays_of_a_saved_guard_are_read_one_by_one(tmp_path, monkeypatch):
    two_levels().fit(KNOWN).save(tmp_path)
    read, asked = np.lib.npyio.NpzFile.__getitem__, []
    monkeypatch.setattr(
        np.lib.npyio.NpzFile,
        "__getitem__",
        lambda file, key: (asked.append(key), read(file, key))[1],
    )
    with state.opened(tmp_path) as (_, arrays):
        part = state.part_of(state.part_of(arrays, "detector."), "0.")
        assert {"sums", "counts"} <= set(part)
        assert ("sums" in part, "none" in part, len(part) > 1) == (True, False, True)
        assert not asked
        part["sums"]
    assert asked == ["detector.0.sums"]


def test_saving_again_replaces_the_state_and_leaves_no_litter(tmp_path):
    guard = two_levels().fit(KNOWN)
    guard.save(tmp_path)
    first = {path.name for path in tmp_path.iterdir()}
    guard.admit(guard.screen(NEW))
    guard.save(tmp_path)
    second = {path.name for path in tmp_path.iterdir()}
    assert len(first) == len(second) == 2
    assert first & second == {MANIFEST}
    assert loaded(tmp_path).writes.known(NEW.ids) == guard.writes.known(NEW.ids)


def test_a_crash_while_saving_leaves_the_old_state(tmp_path, monkeypatch):
    guard = two_levels().fit(KNOWN)
    guard.save(tmp_path)
    before = loaded(tmp_path).screen(NEW).decisions
    guard.admit(guard.screen(NEW))
    replace, calls = type(tmp_path).replace, []

    def fail_at_the_manifest(path, target):
        calls.append(target.name)
        if target.name == MANIFEST:
            msg = "disk full"
            raise OSError(msg)
        return replace(path, target)

    monkeypatch.setattr(type(tmp_path), "replace", fail_at_the_manifest)
    with pytest.raises(OSError, match="disk full"):
        guard.save(tmp_path)
    monkeypatch.undo()
    assert len(calls) == 2
    assert loaded(tmp_path).screen(NEW).decisions == before


# Tampering


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine")
    calibrated().save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path, pristine):
    for name, data in pristine.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def arrays_of(folder):
    (path,) = folder.glob("*.npz")
    return path


def rewrite(folder, change, *, sign=False):
    """Edit the manifest as somebody with an editor would, or one who knows the checksum."""
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    change(manifest)
    if sign:
        del manifest["sha256"]
        canonical = json.dumps(manifest, sort_keys=True)
        manifest["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def test_the_untouched_state_loads(folder):
    rewrite(folder, lambda _: None, sign=True)
    assert loaded(folder).calibrated


@pytest.mark.parametrize("pattern", ["*.json", "*.npz"])
def test_any_flipped_byte_is_noticed(folder, pattern):
    (path,) = folder.glob(pattern)
    data = path.read_bytes()
    for position in np.linspace(0, len(data) - 1, 80).astype(int):
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(StateError):
            loaded(folder)


TAMPERINGS = {
    "policy edited": (lambda m: m["values"]["policy"].update(quarantine_at=0.9), "checksum"),
    "label slipped in": (lambda m: m["values"]["known_labels"].append("x"), "checksum"),
    "checksum removed": (lambda m: m.pop("sha256"), "checksum"),
    "other format": (lambda m: m.update(format=99), "reads only format 1"),
    "format removed": (lambda m: m.pop("format"), "not a saved guard"),
}


@pytest.mark.parametrize(("change", "words"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_an_edited_manifest_is_refused(folder, change, words):
    rewrite(folder, change)
    with pytest.raises(StateError, match=words):
        loaded(folder)


SIGNED = {
    "other format": lambda m: m.update(format=99),
    "unknown detector": lambda m: m["values"]["detectors"][0].update(kind="os.system"),
    "unknown setting": lambda m: m["values"]["detectors"][0]["config"].update(x=1),
    "setting out of range": lambda m: m["values"]["detectors"][0]["config"].update(min_entries=0),
    "unknown policy": lambda m: m["values"]["policy"].update(x=1),
    "array missing": lambda m: m["values"]["held_out"].append("x"),
    "values missing": lambda m: m.pop("values"),
    "values are a list": lambda m: m.update(values=[]),
    "detectors are a number": lambda m: m["values"].update(detectors=1),
    "a detector is a word": lambda m: m["values"].update(detectors=["x"]),
    "labels missing": lambda m: m["values"]["detectors"][0].update(learned={}),
    "arrays are a word": lambda m: m.update(arrays="x"),
    "another file": lambda m: m["arrays"].update(file="../elsewhere.npz"),
}


@pytest.mark.parametrize("change", SIGNED.values(), ids=SIGNED)
def test_a_manifest_that_fits_its_checksum_but_makes_no_sense_is_refused(folder, change):
    rewrite(folder, change, sign=True)
    with pytest.raises(StateError):
        loaded(folder)


@pytest.mark.parametrize(
    "data",
    [b"", b"not json", b"[]", b"7", b'"x"', b"\xff\xfe", b"\x80\x04K\x01.", b"[" * 200_000],
    ids=["empty", "words", "list", "number", "string", "no utf-8", "pickle", "deep"],
)
def test_invalid_manifest_is_refused(folder, data):
    (folder / MANIFEST).write_bytes(data)
    with pytest.raises(StateError, match=re.escape(str(folder))):
        loaded(folder)


def test_missing_files_are_named(folder, tmp_path):
    with pytest.raises(StateError, match="nowhere"):
        loaded(tmp_path / "nowhere")
    path = arrays_of(folder)
    path.unlink()
    with pytest.raises(StateError, match=path.name):
        loaded(folder)


class Bomb:
    """Goes off, by leaving a file, when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_inside_the_arrays_never_runs(folder, tmp_path):
    fuse = tmp_path / "exploded"
    buffer = io.BytesIO()
    with np.load(io.BytesIO(arrays_of(folder).read_bytes())) as there:
        arrays = dict(there)
    arrays["detector.0.sums"] = np.array([Bomb(fuse)], dtype=object)
    np.savez(buffer, **arrays)
    data = buffer.getvalue()
    arrays_of(folder).write_bytes(data)
    rewrite(
        folder, lambda m: m["arrays"].update(sha256=hashlib.sha256(data).hexdigest()), sign=True
    )
    with pytest.raises(StateError):
        loaded(folder)
    assert not fuse.exists()
    pickle.loads(pickle.dumps(Bomb(fuse))).close()  # noqa: S301 - it would have gone off
    assert fuse.exists()


def test_saving_and_loading_never_unpickles(tmp_path, monkeypatch):
    def forbidden(*_args, **_kwargs):
        msg = "unpickled"
        raise AssertionError(msg)

    for name in ("load", "loads", "Unpickler", "dump", "dumps", "Pickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    calibrated().save(tmp_path)
    assert loaded(tmp_path).calibrated


def test_state_that_would_have_to_be_pickled_is_not_saved(tmp_path):
    guard = two_levels().fit(KNOWN)
    guard.detectors[0].state = lambda: ({}, {"x": np.array([object()], dtype=object)})
    with pytest.raises(TypeError, match="pickled"):
        guard.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
