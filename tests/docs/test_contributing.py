"""The list in CONTRIBUTING.md names the folders of the tree."""

import re
from pathlib import Path

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


def test_the_list_says_what_each_is_for():
    assert all(
        re.fullmatch(r"    \S+/ +\S.*", line) for line in LIST.splitlines() if line[:4] == "    "
    )
