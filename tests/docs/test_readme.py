"""The README keeps its word: its snippets run, and its commands and results are the real ones."""

import contextlib
import io
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
SNIPPETS = {
    f"{name}-{number}": code
    for name, page in {"README": README, **PAGES}.items()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
}
COMMANDS = re.findall(r"```bash\n(python3 -m venv .*?)\n```", README, flags=re.DOTALL)


def test_there_are_snippets():
    assert len([name for name in SNIPPETS if name.startswith("README")]) >= 2
    assert "own_detector.md-0" in SNIPPETS


@pytest.mark.parametrize("code", SNIPPETS.values(), ids=SNIPPETS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_snippet_prints_what_its_comments_say(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102
    # Comment lines below a print are what it prints.
    promised = "".join(
        match.replace("# ", "")
        for match in re.findall(r"^ *print\(.*\)\n((?:# .*\n)+)", code, re.MULTILINE)
    )
    assert promised
    assert printed.getvalue().split() == promised.split()


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


@pytest.mark.parametrize(
    "name", ["label_flipping", "guard_cost", "cliques", "ingestion", "canaries"]
)
def test_results_are_those_that_the_benchmarks_wrote(name):
    block = re.search(rf"<!-- results: {name} -->\n(.*?)<!-- end -->", README, flags=re.DOTALL)[1]
    written = (ROOT / "benchmarks" / "results" / f"{name}.md").read_text(encoding="utf-8")
    rows = [row for row in block.splitlines() if row.startswith("| ")][1:]
    assert rows
    for row in rows:
        for cell in row.strip("| ").split(" | ")[1:]:
            assert cell in written, f"{cell!r} of the README is not in {name}.md"
