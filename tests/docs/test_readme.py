"""The README keeps its word: its snippets run, and its commands and results are the real ones."""

import contextlib
import io
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import ragshield_core.detectors
import ragshield_core.model.errors
import ragshield_langchain
import ragshield_llamaindex

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
# Texts for the documentation of others.
SUBMITTED = {
    f"submit/{path.name}": path.read_text(encoding="utf-8")
    for path in (ROOT / "docs" / "submit").glob("*.md")
}
SNIPPETS = {
    f"{name}-{number}": code
    for name, page in {"README": README, **PAGES, **SUBMITTED}.items()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    if name != "start.md"  # whose blocks follow each other: test_commands.py
}
# Those that embed or train.
SLOW = {"README-0", "README-1", "evaluation.md-0", "scale.md-0"}
PARAMS = [
    pytest.param(code, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, code in SNIPPETS.items()
]
COMMANDS = re.findall(r"```bash\n(python3 -m venv .*?)\n```", README, flags=re.DOTALL)


def test_there_are_snippets():
    assert len([name for name in SNIPPETS if name.startswith("README")]) >= 2
    assert {
        *SLOW,
        "own_detector.md-0",
        "submit/langchain.md-0",
        "submit/llamahub.md-0",
    } <= SNIPPETS.keys()


@pytest.mark.parametrize("code", PARAMS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_snippet_prints_its_commented_output(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102
    # Comment lines below a print show its output.
    promised = "".join(
        match.replace("# ", "")
        for match in re.findall(r"^ *print\(.*\)\n((?:# .*\n)+)", code, re.MULTILINE)
    )
    assert promised
    assert printed.getvalue().split() == promised.split()


def test_demo_is_called_offline_only_once_installed():
    """`pip install` downloads."""
    (before,) = re.findall(r"\n\n([^`]*?)\n\n```bash\n[^\n]*ragshield demo\n```", README)
    assert re.findall(r"offline\b.{15}", before.replace("\n", " ")) == ["offline once installed"]


def test_exactly_two_set_up_commands_of_one_line_each():
    assert len(COMMANDS) == 2
    assert all("\n" not in command for command in COMMANDS)
    assert COMMANDS[0].endswith("ragshield demo")
    assert COMMANDS[1].endswith("pytest")
    assert all("-c constraints.txt" in command for command in COMMANDS)


def test_constraints_pin_every_dependency_and_torch():
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[<>=\[ ]", requirement)[0].lower() for requirement in wanted}
    assert names - {"ragshield"} <= {name.lower() for name in pins}
    assert pins["torch"] == "2.13.0"


def test_questions_in_front_are_quoted_alike_in_the_readme_and_among_the_limits():
    block = re.search(r"<!-- results: [\w ]+ -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)[1]
    rows = [row.strip("| ").split(" | ")[1:] for row in block.splitlines()[2:]]
    _, five, three, one, *_ = rows
    limits = PAGES["limits.md"].partition("## Forms of a question in front")[2]
    for name, row in (("five", five), ("three", three), ("one", one)):
        assert f"| {name} | {row[0]} | {row[1]} |" in limits


def test_the_reference_names_all_that_is_public():
    pages = "".join(path.read_text("utf-8") for path in (ROOT / "docs/reference").glob("*.md"))
    errors = {
        name for name in vars(ragshield_core.model.errors) if name.endswith(("Error", "Warning"))
    }
    for module in (
        ragshield_core,
        ragshield_core.detectors,
        ragshield_langchain,
        ragshield_llamaindex,
    ):
        for name in set(module.__all__) - errors:
            if not name.isupper():
                assert re.search(rf"^   [\w.]+\.{name}$", pages, re.MULTILINE), name
