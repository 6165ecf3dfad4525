"""Status of a guard, from the guard itself and from ``ragshield status``."""

import hashlib
import io
import json
import sqlite3

import pytest
from rich.console import Console
from support import Scripted, group, passages, scored

from ragshield_core import Guard, Quarantine
from ragshield_core.calibration.arrivals import Shift
from ragshield_core.database import Database
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector
from ragshield_core.model.findings import Skipped

RATE = 0.05
HOSTILE = "tenant [red]\u202e"


def calibrated(url, **options):
    guard = Guard.open(url, detectors=[CliqueDetector()], **options)
    return guard.fit(passages(300, 1)).calibrate(fpr=RATE)


def written(guard, batch):
    guard.admit(guard.hold(guard.screen(batch)))


def rich_text(status):
    console = Console(file=io.StringIO(), width=200)
    console.print(status)
    return console.file.getvalue()


# Of itself


@pytest.mark.slow
def test_status_describes_counts_calibration_and_concerns(url):
    guard = calibrated(url)
    written(guard, group(5, 3))
    status = guard.status()
    assert (status.n_known, status.held, status.pending) == (300, 5, 0)
    assert status.calibrated_on is not None
    assert status.snapshot[0] == status.position - 2  # one event held them, one counted them
    assert (status.namespace, status.database) == ("default", url)
    assert [(d.name, d.in_force, d.spent.held) for d in status.detectors] == [("clique", True, 5)]
    (question,) = status.questions  # all of the first five that came
    assert status.concerns() == (str(question),)
    for text in (str(status), rich_text(status)):
        assert "taken at 300 entries from 300 vetted ones, on 20" in text
        assert "100.00% of 5 held or recalled; 5.00% of clean ones accepted" in text
        assert "5 entries wait for a reviewer" in text
        assert "clique" in text


def test_a_guard_that_was_not_opened_says_nothing_of_a_journal():
    guard = Guard([Scripted()], quarantine=Quarantine("sqlite://"))
    status = guard.status()
    assert (status.position, status.namespace, status.snapshot) == (None, None, None)
    assert "journal" not in str(status)
    assert "not calibrated; next at 1000 entries" in str(status)


def test_status_says_why_a_detector_is_inactive():
    detectors = [CliqueDetector(), LabelCentroidDetector(min_entries=1)]
    guard = Guard(detectors, quarantine=Quarantine("sqlite://"))
    guard.state.left_out = (Skipped(detector="model", reason="pip install something"),)
    guard.learn(passages(3, 1))
    why = {one.name: one.why_not for one in guard.status().detectors}
    assert "acts once the knowledge base has 1000 entries (3 now)" in why["clique"]
    assert why["label_centroid"] == "no entry of the knowledge base has a label"
    assert why["model"] == "pip install something"
    guard.fit(passages(300, 1)).calibrate(fpr=RATE)
    why = {one.name: one.why_not for one in guard.status().detectors}
    assert why["clique"] is None
    assert why["label_centroid"] == "not calibrated: it could judge none of the clean entries"


@pytest.mark.slow
def test_pending_events_of_a_gone_process_are_a_concern(url):
    one, other = calibrated(url), Guard.open(url)
    kept = one.writes.intend(passages(1, 9, "new"))
    (alive,) = other.status().writers
    assert (alive.n_events, alive.alive) == (1, True)
    assert other.status().concerns() == ()
    assert "1 of" in str(other.status())
    one.close()
    (gone,) = other.status().writers
    assert (gone.silent_for, gone.alive) == (None, False)
    assert "which is gone: the next write recovers them" in other.status().concerns()[0]
    assert len(kept.positions) == 1


def test_names_are_shown_escaped(url):
    guard = Guard.open(url, HOSTILE, detectors=[Scripted("evil\x1b[31m")])
    status = guard.status()
    for text in (str(status), rich_text(status), json.dumps(status.to_dict())):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "u{1b}" in str(status)


def test_passwords_are_left_out(url):
    guard = Guard.open(url, detectors=[Scripted()])
    guard.writes._database.url = "postgresql+psycopg://anna:secret@host/name"
    status = guard.status()
    assert status.database == "postgresql+psycopg://anna:***@host/name"
    assert "secret" not in str(status)


# From outside


@pytest.mark.slow
def test_the_command_says_the_same_as_the_guard(url, ragshield):
    guard = calibrated(url)
    written(guard, group(5, 3))
    written(guard, passages(20, 7, "later"))
    code, out, err = ragshield("status", "--database", url, "--format", "json")
    assert (code, err) == (1, "")  # nine of the first 25 are held
    said, own = json.loads(out), json.loads(json.dumps(guard.status().to_dict()))
    assert said.pop("as_of") < said["position"]
    assert own.pop("as_of") is None
    assert said == own
    _, out, _ = ragshield("status", "--database", url)
    assert "taken at 300 entries from 300 vetted ones" in out


@pytest.mark.slow
def test_command_agrees_with_the_guard_after_recalibration(url, ragshield):
    guard = Guard.open(url, detectors=[CliqueDetector()], fpr=RATE)
    assert ragshield("status", "--database", url)[0] == 1  # not calibrated
    written(guard, passages(150, 1, "early"))
    written(guard, passages(100, 2, "later"))
    gone = passages(100, 2, "later").take([0])
    guard.writes.finish(guard.writes.intend_recall(gone, []))
    code, out, _ = ragshield("status", "--database", url, "--format", "json")
    said, own = json.loads(out), json.loads(json.dumps(guard.status().to_dict()))
    assert code == 0
    for name in ("n_known", "calibrated", "calibrated_at", "next_at", "n_sample", "spent"):
        assert said[name] == own[name], name
    assert said["calibrated_at"] == 250


@pytest.mark.parametrize("server", ["file", "postgres"])
@pytest.mark.slow
def test_the_command_changes_nothing_and_needs_no_detector(
    url, tmp_path, ragshield, server, request
):
    if server == "postgres":
        url = request.getfixturevalue("on_postgres")
    guard = Guard.open(url, detectors=[Scripted()])  # which is not registered anywhere
    guard.learn(scored([-1.0, -1.0]))
    before = guard.status().position, Database(url).version()
    code, out, _ = ragshield("status", "--database", url, "--format", "json")
    assert (code, json.loads(out)["n_known"]) == (1, 2)
    assert guard.status().position == before[0]
    if server == "postgres":
        assert Database(url).version() == before[1]
        return
    guard.close()
    file = tmp_path / "guard.db"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    there = hashlib.sha256(file.read_bytes()).digest()
    ragshield("status", "--database", url)
    assert hashlib.sha256(file.read_bytes()).digest() == there


@pytest.mark.slow
def test_exit_codes_distinguish_concerns_from_errors(url, ragshield, tmp_path):
    guard = calibrated(url)
    assert ragshield("status", "--database", url)[0] == 0
    kept = guard.writes.intend(passages(1, 9, "new"))
    assert ragshield("status", "--database", url)[0] == 0  # it is alive
    code, out, _ = ragshield("status", "--database", url, "--lease", "1e-9")
    assert code == 1
    assert "(crashed, last sign of life" in out
    assert ragshield("status", "--database", url, "--lease", "0")[0] == 2
    guard.close()
    code, out, _ = ragshield("status", "--database", url)
    assert code == 1
    assert "which is gone" in out
    assert kept
    code, out, err = ragshield("status", "--database", url, "--namespace", "nope")
    assert (code, out) == (2, "")
    assert "there is no guard in namespace 'nope'" in err
    assert ragshield("status", "--database", "nonsense")[0] == 2
    for name in ("none.db", "empty.db"):
        if name == "empty.db":
            (tmp_path / name).touch()
        code, _, err = ragshield("status", "--database", f"sqlite:///{tmp_path}/{name}")
        assert code == 2
        assert "there is no" in err
    assert not (tmp_path / "none.db").exists()
    assert (tmp_path / "empty.db").read_bytes() == b""


def test_the_command_reads_no_database_of_another_schema(url, ragshield):
    Quarantine(url).count()
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE ragshield_schema SET version = 99")
    connection.close()
    code, out, err = ragshield("status", "--database", url)
    assert (code, out) == (2, "")
    assert "of schema 99" in err


@pytest.mark.slow
def test_command_crash_exits_as_an_error(url, ragshield):
    calibrated(url).close()
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE ragshield_snapshot_chunks SET data = x'00'")
    connection.close()
    code, out, err = ragshield("status", "--database", url)
    assert (code, out) == (2, "")
    assert "error:" in err


@pytest.mark.slow
def test_several_tenants_are_listed_and_one_is_chosen(url, ragshield):
    calibrated(url)
    Guard.open(url, HOSTILE, detectors=[Scripted()])
    code, out, _ = ragshield("status", "--database", url)
    assert code == 0
    assert "2 guards; choose one with --namespace:" in out
    assert "\u202e" not in out
    assert json.loads(ragshield("status", "--database", url, "--format", "json")[1])[
        "namespaces"
    ] == ["default", HOSTILE]
    assert ragshield("status", "--database", url, "--namespace", "default")[0] == 0
    code, out, _ = ragshield("status", "--database", url, "--namespace", HOSTILE)
    assert code == 1
    assert "\u202e" not in out


@pytest.mark.slow
def test_shift_is_a_concern(url, ragshield, monkeypatch):
    guard = calibrated(url)
    shift = Shift(detector="clique\x1b", n_entries=100, share=0.9, expected=0.2)
    monkeypatch.setattr("ragshield_core.calibration.arrivals.Arrivals.shifts", lambda _: [shift])
    assert guard.status().concerns() == (f"shift: {shift}",)
    code, out, _ = ragshield("status", "--database", url)
    assert code == 1
    assert "shift: clique" in out
    assert "\x1b" not in out
