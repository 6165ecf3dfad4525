"""The GitHub Action's own steps, as bash runs them there."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
STEPS = {
    step.get("id", "exit" if "CODE" in step["env"] else "install"): step["run"]
    for step in ACTION["runs"]["steps"]
    if "run" in step
}

needs_bash = pytest.mark.skipif(
    shutil.which("bash") is None or sys.platform == "win32", reason="runs bash"
)


def run(step, folder, **variables):
    given = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]]
    return subprocess.run(command, cwd=folder, env=given, check=False).returncode


@needs_bash
@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_step_passes_its_words_on_and_says_how_the_scan_ended(tmp_path, code):
    (tmp_path / "ragshield").write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" > said\n'
        f"[ {code} = 2 ] || echo '# report' > ragshield.md\nexit {code}\n"
    )
    (tmp_path / "ragshield").chmod(0o755)
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).touch()
    (tmp_path / "ragshield.md").write_text("of an earlier run")
    ended = run(
        "scan",
        tmp_path,
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        DOCUMENTS="my docs",
        ARGUMENTS="--fpr 0.02 --exclude *.txt",
        GITHUB_OUTPUT=str(tmp_path / "output"),
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
    )
    assert ended == 0
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:6] == ["scan", "my docs", "--fpr", "0.02", "--exclude", "*.txt"]
    assert (tmp_path / "output").read_text() == f"code={code}\n"
    summary = tmp_path / "summary"
    assert (summary.read_text() if summary.exists() else "") == ("" if code == 2 else "# report\n")
    assert run("exit", tmp_path, CODE=str(code)) == code


def test_action_and_hook_install_extras_that_there_are():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (hook,) = HOOK
    installed = [step for step in STEPS.values() if "pip install" in step]
    installed += hook["additional_dependencies"]
    extras = {name for line in installed for name in re.search(r"\[(.*)\]", line)[1].split(",")}
    assert {"files", "minilm"} <= extras <= {*known["optional-dependencies"]}
    assert hook["entry"].split()[0] in known["scripts"]
