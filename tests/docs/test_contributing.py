"""The list in CONTRIBUTING.md names the folders of the tree, and its recipe makes a command."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ragshield_core.cli import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LIST = TEXT.partition("## Where things are\n")[2].partition("\n## ")[0]
PACKAGES = ("ragshield_core", "ragshield_langchain", "ragshield_llamaindex")


def test_the_list_names_every_folder_of_code_and_no_other():
    named = set(re.findall(r"^    (\S+)/ ", LIST, re.MULTILINE)) - {"tests", "benchmarks"}
    there = {
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    data = {one for one in there if not any((ROOT / one).glob("[a-z]*.py"))}
    assert named == there - data | (named & data)
    assert data - named == {"ragshield_core/tools/evaluate/help_desk"}


def test_list_says_what_each_folder_is_for():
    assert all(
        re.fullmatch(r"    \S+/ +\S.*", line) for line in LIST.splitlines() if line[:4] == "    "
    )


@pytest.mark.usefixtures("_other_package")
def test_the_recipe_makes_a_command_of_another_package(tmp_path):
    database = f"sqlite:///{tmp_path / 'held.db'}"
    done = CliRunner().invoke(app, ["census"], env={"RAGSHIELD_DATABASE": database})
    assert (done.exit_code, done.output) == (0, "0\n")


@pytest.fixture
def _other_package(tmp_path, monkeypatch):
    """Install the package of the recipe."""
    recipe = TEXT.partition("## A new command\n")[2]
    (code,) = re.findall(r"```python\n(.*?)```", recipe, re.DOTALL)
    (points,) = re.findall(r"```toml\n(.*?)```", recipe, re.DOTALL)
    group, name, target = re.fullmatch(r'\[.*"(.*)"\]\n(.*) = "(.*)"\n', points).groups()
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "census.py").write_text(code, encoding="utf-8")
    metadata = tmp_path / "my_package-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
