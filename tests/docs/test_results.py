"""Figures that are quoted stand in results that say which code measured them."""

import os
import re
from pathlib import Path

import pytest
from results_files import RESULTS, current, measured_by
from run_all import END, NOTE, SCRIPTS, with_note
from smoke import ALL as SMOKES

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}
BLOCK = re.compile(r"<!-- results: ([\w ]+) -->\n(.*?)<!-- end -->", re.DOTALL)
QUOTES = [
    (page, names.split(), block)
    for page, text in PAGES.items()
    for names, block in BLOCK.findall(text)
]
QUOTED = sorted({name for _, names, _ in QUOTES for name in names})
NUMBER = re.compile(r"(?<![\d.])\d*\.\d+(?![\d.])")


def test_quoted_results_exist():
    assert {"README.md", "results.md"} <= {page for page, _, _ in QUOTES}
    assert [name for name in QUOTED if not (RESULTS / f"{name}.md").exists()] == []


@pytest.mark.parametrize(
    ("names", "block"),
    [pytest.param(names, block, id=f"{page}-{names[0]}") for page, names, block in QUOTES],
)
def test_quoted_figures_stand_in_their_results(names, block):
    text = "".join((RESULTS / f"{name}.md").read_text(encoding="utf-8") for name in names)
    there = [float(figure) for figure in NUMBER.findall(text)]
    for row in block.splitlines()[2:]:
        for figure in NUMBER.findall(row.partition(" | ")[2]):
            digits = len(figure.partition(".")[2])
            assert float(figure) in {round(value, digits) for value in there}, row


# The small versions of these print other columns than the results have.
OTHER_COLUMNS = {"adversary", "fit_instruction_model"}


@pytest.mark.parametrize("name", sorted(SMOKES.keys() - OTHER_COLUMNS))
def test_columns_that_the_smoke_test_reads_stand_in_the_results(name):
    columns = {wanted.column for wanted in SMOKES[name].figures if isinstance(wanted.column, str)}
    if columns:
        results = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        assert [column for column in columns if f"| {column} |" not in results] == []


def test_the_docs_say_which_code_measured_the_results():
    """Whoever commits new results writes it down; `run_all.py --note` does it."""
    page = PAGES["results.md"]
    assert NOTE in page
    assert END in page.partition(NOTE)[2]
    assert with_note(page) == page


def test_results_of_decisions_that_are_quoted_can_be_run_again():
    assert set(QUOTED) <= set(SCRIPTS)


@pytest.mark.skipif(
    os.environ.get("RAGSHIELD_RELEASE") != "1",
    reason="code changes daily, results when they are run; a release wants both to be of one day",
)
@pytest.mark.parametrize("name", [name for name in QUOTED if name in SCRIPTS])
def test_no_quoted_figure_is_stale(name):
    assert measured_by(name).codes == (current(),)
