"""The notebooks run from top to bottom, and print the committed output."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
REPORT_NUMBERS = ["score", "threshold", "p"]
# Figures that differ from run to run: times, and what depends on them.
NUMBER = re.compile(r"[\d.,]+")


def read(path):
    return nbformat.read(path, as_version=4)


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """Return the text that each code cell printed, without numbers and their padding."""
    return [
        [
            NUMBER.sub("0", " ".join("".join(output.text).split()))
            for output in cell.outputs
            if output.output_type == "stream"
        ]
        for cell in code_of(notebook)
    ]


def tables(notebook):
    """Return the tables of each code cell, by head, numbers left out.

    Findings depend on the machine's last digits; the heads of the cells do not.
    """
    return [
        [table_of(html) for html in map("".join, htmls_of(cell)) if "<table" in html]
        for cell in code_of(notebook)
    ]


def htmls_of(cell):
    return [output.get("data", {}).get("text/html", "") for output in cell.outputs]


def table_of(html):
    """Return the heads, and the kinds of the values below each."""
    heads = re.findall(r"<th>(.*?)</th>", html)
    rows = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in html.split("<tr>")[2:]]
    assert all(len(row) == len(heads) for row in rows)
    numeric = {
        head: all(re.fullmatch(r"-?[\d.]*", row[place]) for row in rows)
        for place, head in enumerate(heads)
    }
    return numeric if rows else heads


def plots(notebook):
    return sum(
        "image/png" in output.get("data", {})
        for cell in code_of(notebook)
        for output in cell.outputs
    )


def test_all_five_notebooks_are_found():
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("ANSWER_MODEL", raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_prints_the_committed_output(path, tmp_path):
    committed, notebook = read(path), read(path)
    for cell in code_of(notebook):
        cell.outputs = []
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": tmp_path}},
    )
    client.execute()  # raises the errors of cells, failed asserts among them
    assert all(o.get("name") != "stderr" for cell in code_of(notebook) for o in cell.outputs)
    assert plots(notebook) == plots(committed) > 0
    assert printed(notebook) == printed(committed)
    assert tables(notebook) == tables(committed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebook_is_one_complete_run(path):
    notebook = read(path)
    counts = [cell.execution_count for cell in code_of(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert not any(o.output_type == "error" for cell in code_of(notebook) for o in cell.outputs)
    for table in (table for cell in tables(notebook) for table in cell if isinstance(table, dict)):
        if "found by" in table:
            assert [head for head, numeric in table.items() if numeric] == REPORT_NUMBERS
    text = json.dumps(notebook)
    assert not re.search(r"/(home|root|tmp|work|Users|usr)/", text)
    assert len(text) < 500_000


def test_the_plots_of_the_canaries_are_told_in_words():
    told = [
        output.metadata.get("image/png", {}).get("alt", "")
        for cell in code_of(read(FOLDER / "01_canary_retrieval_drift.ipynb"))
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(told) == 4
    assert all(len(alt) > 80 for alt in told)


@pytest.mark.slow
def test_a_language_model_answers_where_one_can_be_had(tmp_path, monkeypatch):
    import transformers  # noqa: PLC0415 - slow to import
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - of transformers

    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "refund": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(
        tmp_path
    )
    config = transformers.T5Config(
        vocab_size=len(words),
        d_model=8,
        d_kv=4,
        d_ff=8,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    monkeypatch.setenv("ANSWER_MODEL", str(tmp_path))
    notebook = read(FOLDER / "01_canary_retrieval_drift.ipynb")
    loading = code_of(notebook)[:2]
    asking = nbformat.v4.new_code_cell('print(type(answer("refund?", ["refund"])).__name__)')
    notebook.cells = [*loading, asking]
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert loading[0].outputs[-1].text == "Answers by: language model\n"
    assert asking.outputs[-1].text == "str\n"
