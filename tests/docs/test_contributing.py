"""The map in CONTRIBUTING.md is the tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAP = TEXT.partition("## Where things are\n")[2].partition("\n## ")[0]
MAPPED = ("ragshield_core", "ragshield_langchain", "ragshield_llamaindex", "tests", "benchmarks")
# Folders whose files need no names here: tests are found by theirs, results by their benchmarks.
WHOLE = {"tests/contract", "tests/core", "tests/faults", "tests/langchain", "tests/llamaindex"}
WHOLE |= {"ragshield_core/tools/review/static", "ragshield_core/tools/review/templates"}
WHOLE |= {
    "tests/docs",
    "tests/review",
    "ragshield_core/tools/evaluate/help_desk",
    "benchmarks/results",
    "benchmarks/wordings",
}


def drawn():
    """Return by folder what the map says is in it."""
    found, folder = {}, None
    for line in MAP.splitlines():
        if heading := re.match(r"    (\S+)/(?:\s|$)", line):
            folder = found.setdefault(heading[1], set())
        elif line.startswith(" " * 8) and folder is not None:
            folder.update(re.findall(r"(?<![\w/])(\w+(?:\.py|/))(?![\w/])", line))
    return found


def folders():
    """Return the folders of the packages, the tests and the benchmarks that hold code."""
    for name in MAPPED:
        for path in (ROOT / name, *(ROOT / name).rglob("*")):
            relative = path.relative_to(ROOT).as_posix()
            whole = any(relative == one or relative.startswith(f"{one}/") for one in WHOLE)
            if path.is_dir() and path.name != "__pycache__" and not whole:
                yield relative


@pytest.mark.parametrize("folder", list(folders()))
def test_the_map_says_what_is_in_a_folder(folder):
    there = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / folder).iterdir()
        if path.name not in ("__pycache__", "__init__.py")
        and (path.is_dir() or path.suffix == ".py")
    }
    assert drawn().get(folder) == there


def test_the_map_shows_no_folder_that_is_not_there():
    assert set(drawn()) == set(folders())
