"""A tenant may borrow another's calibration: its numbers, and nothing of its entries."""

from shutil import copyfile

import numpy as np
import pytest
from sqlalchemy import create_engine, make_url, text
from support import Scripted, group, loaded, passages, saved, scored, write

from ragshield_core import Guard
from ragshield_core.detectors import CliqueDetector, InstructionDetector
from ragshield_core.model.errors import CalibrationError, StateError

RATE = 0.05
THEIRS = passages(600, 1, "theirs")


def opened(url, namespace, **options):
    options = {"detectors": [CliqueDetector()], "fpr": RATE} | options
    return Guard.open(url, namespace, **options)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Return a database with the guard of a large tenant."""
    file = tmp_path_factory.mktemp("lender") / "shared.db"
    guard = opened(f"sqlite:///{file}", "large").fit(THEIRS).calibrate()
    guard.close()
    return file


@pytest.fixture
def lender(url, database):
    """Return that guard, in a database of a test's own."""
    copyfile(database, make_url(url).database)
    return opened(url, "large")


@pytest.mark.slow
def test_small_tenant_finds_groups_with_borrowed_calibration(url, lender):
    small = opened(url, "small", calibration_of="large")
    alone = opened(url, "alone")
    assert small.calibrated
    assert small.calibration.thresholds == lender.calibration.thresholds
    for guard in (small, alone):
        write(guard, passages(120, 2))
    bad = group(5, 3)
    assert not write(small, bad).admitted.any()
    assert write(alone, bad).admitted.all()  # it collects
    assert small.status().borrowed
    assert "that of another guard" in str(small.status())
    assert not lender.status().borrowed


@pytest.mark.usefixtures("lender")
@pytest.mark.slow
def test_borrowed_calibration_contains_only_numbers(url, tmp_path):
    small = opened(url, "small", calibration_of="large")
    small.save(tmp_path / "saved")
    saved = b"".join(path.read_bytes() for path in (tmp_path / "saved").iterdir())
    for hostile in (*THEIRS.ids[:50], *THEIRS.texts[:50], *THEIRS.lineages[:50]):
        assert hostile.encode() not in saved
    assert THEIRS.embeddings[0].tobytes() not in saved
    assert small.writes.known(THEIRS.ids) == []
    # The order of the scores says nothing of that of the entries.
    state = small.state.calibrator.calibration.scores["clique"]
    assert (np.diff(state) >= 0).all()
    assert small.judge.dim is None


@pytest.mark.slow
def test_borrowed_calibration_is_updated_only_on_request(url, lender):
    small = opened(url, "small", calibration_of="large")
    before = dict(small.calibration.thresholds)
    lender.learn(group(40, 7, "crowd"))
    lender.learn(passages(100, 8, "more"))
    lender.writes.settled()
    assert lender.calibration.thresholds != before
    small.writes.catch_up()
    assert small.calibration.thresholds == before
    again = opened(url, "small", calibration_of="large")  # it is there already
    assert again.calibration.thresholds == before
    small.calibration.borrow(lender.calibration)
    again.writes.catch_up()
    assert (
        small.calibration.thresholds
        == again.calibration.thresholds
        == lender.calibration.thresholds
    )
    assert small.status().borrowed


@pytest.mark.slow
def test_guard_calibrates_itself_once_it_has_enough_entries(url, lender, tmp_path):
    small = opened(url, "small", calibration_of="large")
    for number in range(10):
        write(small, passages(20, 10 + number, f"n{number}-"))
        late = opened(url, "small")
        assert saved(small, tmp_path / "small") == saved(late, tmp_path / "late")
        late.close()
    while small.status().n_known < 200:  # some were held
        assert small.status().borrowed
        write(small, passages(6, small.status().n_known, f"m{small.status().n_known}-"))
    status = small.status()
    assert not status.borrowed
    assert status.n_sample > 0
    assert small.calibration.thresholds != lender.calibration.thresholds
    with pytest.raises(CalibrationError, match="entries of its own"):
        small.calibration.borrow(lender.calibration)
    assert small.calibration.thresholds != lender.calibration.thresholds


@pytest.mark.usefixtures("lender")
@pytest.mark.slow
def test_guard_with_enough_entries_calibrates_itself_on_request(url):
    small = opened(url, "small", calibration_of="large")
    seen = []
    for number in range(3):  # the baseline is measured as it grows
        small.learn(passages(20, 10 + number, f"n{number}-"))
        seen.append(small.status().calibrated_at)
    assert seen == [20, 40, 60]
    small.fit(passages(150, 2))
    assert small.status().borrowed
    small.calibrate()
    assert not small.status().borrowed
    with pytest.raises(TypeError, match="expected the calibration of another guard"):
        small.calibration.borrow("large")


@pytest.mark.slow
def test_borrowed_calibration_survives_a_fit_on_few_entries(url, lender):
    small = opened(url, "small", calibration_of="large", fpr=0.01, detectors=[CliqueDetector()])
    small.adopt(passages(30, 2))
    assert small.status().borrowed
    assert small.calibrated
    with pytest.raises(CalibrationError):
        small.calibrate()
    assert small.status().borrowed
    assert lender.policy.quarantine_at == RATE != small.policy.quarantine_at


@pytest.mark.usefixtures("lender")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"detectors": [CliqueDetector(), InstructionDetector()]}, "instruction"),
        ({"detectors": [CliqueDetector(trusted_lineages=["mine"])]}, "clique"),
        ({"fpr": 0.0001}, "never justify"),
    ],
)
@pytest.mark.slow
def test_incompatible_options_are_refused_and_no_guard_is_created(url, options, said):
    with pytest.raises(CalibrationError, match=said):
        opened(url, "small", calibration_of="large", **options)
    assert not opened(url, "small").calibrated  # there was none yet


def test_uncalibrated_guard_has_nothing_to_lend(url):
    opened(url, "large").learn(passages(50, 1))
    with pytest.raises(CalibrationError, match="is not calibrated"):
        opened(url, "small", calibration_of="large")
    with pytest.raises(StateError, match="no guard in the journal of namespace 'nowhere'"):
        opened(url, "small", calibration_of="nowhere")
    with pytest.raises(StateError, match="no guard"):
        opened(url, "small", calibration_of="small")
    with create_engine(url).connect() as connection:
        found = connection.execute(text("SELECT DISTINCT namespace FROM ragshield_journal_heads"))
        assert set(found.scalars()) == {"large"}


@pytest.mark.usefixtures("lender")
@pytest.mark.slow
def test_vectors_of_another_model_are_refused(url):
    small = opened(url, "small", calibration_of="large")
    with pytest.raises(CalibrationError, match="32 dimensions, and those here have 2"):
        small.screen(scored([1.0]))


def test_unregistered_detectors_learn_nothing_from_the_lender(url):
    large = opened(url, "large", detectors=[Scripted()])
    large.fit(scored(np.linspace(-1, 1, 100))).calibrate()
    mine = Scripted()
    small = opened(url, "small", detectors=[mine], calibration_of="large")
    assert small.detectors == (mine,)
    assert mine.learned == 0
    assert small.calibration.thresholds == large.calibration.thresholds
    assert large.detectors[0].learned == 100


@pytest.mark.usefixtures("lender")
@pytest.mark.slow
def test_borrowed_calibration_is_saved_and_loaded(url, tmp_path):
    small = opened(url, "small", calibration_of="large")
    small.learn(passages(120, 2))
    small.save(tmp_path / "saved")
    again = loaded(tmp_path / "saved")
    assert again.status().borrowed
    assert again.calibration.thresholds == small.calibration.thresholds
    assert saved(small, tmp_path / "small") == saved(again, tmp_path / "loaded")
