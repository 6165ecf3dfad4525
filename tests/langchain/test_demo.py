"""The demo and the command line, run as a user runs them."""

import os
import re
import subprocess
import sys

import pytest


def ragshield(*arguments, cwd):
    code = "from ragshield_core.cli import main; main()"
    environment = os.environ | {"COLUMNS": "160", "HF_HUB_OFFLINE": "1"}
    environment.pop("RAGSHIELD_DATABASE", None)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_demo_answers_wrongly_without_a_guard_and_rightly_with_one(tmp_path):
    done = ragshield("demo", "--database", "sqlite:///held.db", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    clean, poisoned, guarded = re.findall(r"a refund take\?  ->  (.*)", done.stdout)
    assert "five working days" in clean
    assert "two years" in poisoned
    assert guarded == clean
    assert "5 entries: 0 admitted, 0 flagged, 5 quarantined" in done.stdout
    assert "one of 5 entries" in done.stdout
    listed = ragshield("quarantine", "list", "--database", "sqlite:///held.db", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "5 entries held" in listed.stdout


@pytest.mark.slow
def test_errors_are_shown_without_a_traceback(tmp_path):
    done = ragshield("quarantine", "show", "no-such", cwd=tmp_path)
    assert done.returncode == 2
    assert "ragshield.db" in done.stderr
    assert "does not exist" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ragshield.db").exists()


@pytest.mark.slow
def test_hostile_text_is_shown_escaped(tmp_path):
    from ragshield_core import Batch, Quarantine  # noqa: PLC0415

    hostile = "[red]\x1b[2J\u202egnp.exe"
    batch = Batch.of(ids=["a\x1b[31m"], texts=[hostile], embeddings=[[1.0, 0.0]], labels=[hostile])
    Quarantine(f"sqlite:///{tmp_path}/held.db").hold(batch)
    for command in (["list"], ["show", "a\x1b[31m"], ["log"]):
        done = ragshield("quarantine", *command, "--database", "sqlite:///held.db", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "\x1b[2J" not in done.stdout
        assert "\u202e" not in done.stdout
        assert "\x1b[31m" not in done.stdout
