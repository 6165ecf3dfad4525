"""The demo and the command line, run as a user runs them."""

import gzip
import json
import os
import re
import subprocess
import sys

import pytest

from ragshield_core.tools.evaluate.help_desk import help_desk


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


def test_the_help_desk_is_enough_and_balanced():
    rows = help_desk()
    assert len({row["text"] for row in rows}) == len({row["id"] for row in rows}) == len(rows)
    tickets = help_desk("tickets")
    assert rows == [*help_desk("handbook"), *tickets]
    labels = [row["label"] for row in tickets]
    assert len(set(labels)) == 3
    assert min(map(labels.count, set(labels))) >= 50
    with pytest.raises(ValueError, match="handbook, tickets"):
        help_desk("manual")


@pytest.mark.slow
def test_demo_answers_wrongly_without_a_guard_and_rightly_with_one(tmp_path):
    done = ragshield("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    clean, poisoned, guarded = re.findall(r"a refund take\?  ->  (.*)", done.stdout)
    assert "five working days" in clean
    assert "two years" in poisoned
    assert guarded == clean
    assert "5 entries: 0 admitted, 0 flagged, 5 quarantined" in done.stdout
    assert "one of a group of 5" in done.stdout
    places = [
        done.stdout.index(said)
        for said in (clean, poisoned, "one of a group of 5", "Flipped labels in", "recall")
    ]
    assert places == sorted(places)  # the story comes first, then flipped labels


@pytest.mark.slow
def test_demo_holds_flipped_labels_and_releases_one(tmp_path):
    done = ragshield("demo", "--database", "sqlite:///held.db", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recall = float(re.search(r"recall (\d\.\d+)", done.stdout)[1])
    fpr = float(re.search(r"false-positive\s+rate (\d\.\d+)", done.stdout)[1])
    assert recall >= 0.8
    assert fpr <= 0.1
    assert "unguarded" in done.stdout
    held = int(re.search(r"still held: (\d+)", done.stdout)[1])
    listed = ragshield("quarantine", "list", "--database", "sqlite:///held.db", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert f"{held} entries held" in listed.stdout
    log = ragshield("quarantine", "log", "--database", "sqlite:///held.db", cwd=tmp_path)
    assert log.stdout.count(" hold ") == held + 1
    assert log.stdout.count(" release ") == 1


@pytest.mark.slow
def test_demo_takes_a_file_of_the_users(tmp_path):
    texts = {
        "fruit": ["Apples ripen in autumn {}.", "Pears are sweet and juicy {}."],
        "metal": ["Steel rusts in salt water {}.", "Copper conducts current well {}."],
    }
    rows = [
        {"id": f"{label}-{n}", "text": texts[label][n % 2].format(n), "label": label}
        for label in texts
        for n in range(30)
    ]
    path = tmp_path / "own.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    done = ragshield("demo", "--data", str(path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "precision 1.00, recall 1.00" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"id": "a", "text": "x", "label": "y"}\n{"id": "b"}', "line 2"),
        ("not json", "line 1"),
        ('{"id": "a", "text": "x", "label": "y"}', "two labels"),
    ],
)
def test_demo_says_what_is_wrong_with_a_file(content, named, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(content)
    done = ragshield("demo", "--data", str(path), cwd=tmp_path)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


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
