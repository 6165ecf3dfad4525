"""Suites of canary queries: made, read, suggested."""

import json

import pytest

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.canary import Canary, CanaryError, CanarySuite

CANARIES = [
    {"name": "refund", "query": "How are refunds paid?", "expected_entries": ["kb-1"]},
    {"query": "Wer leitet die Firma?", "expected_answer": "Ada", "forbidden": ["crypto", "x"]},
    "plain query",
]


@pytest.mark.parametrize("ending", ["jsonl", "yaml", "yml"])
def test_a_suite_is_read_from_both_kinds_of_files(tmp_path, ending):
    rows = [row if isinstance(row, dict) else {"query": row} for row in CANARIES]
    lines = [json.dumps(row) for row in rows]
    listed = "name: mine\ncanaries:\n" + "\n".join(f"  - {line}" for line in lines)
    path = tmp_path / f"mine.{ending}"
    path.write_text("\n".join(lines) if ending == "jsonl" else listed, encoding="utf-8")
    suite = CanarySuite.load(path)
    assert suite.name == "mine"
    assert suite.canaries == CanarySuite(CANARIES).canaries
    assert suite.names == ("refund", "Wer leitet die Firma?", "plain query")


def test_yaml_may_be_a_plain_list(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("- one question\n- {query: another, forbidden: [never]}\n", encoding="utf-8")
    assert CanarySuite.load(path).queries == ["one question", "another"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", "canaries: {a: b}", "holds no list"),
        ("a.yaml", "[unclosed", "is not YAML"),
        ("a.yaml", "!!python/object/apply:os.getcwd []", "is not YAML"),
        ("a.jsonl", '{"query": "x"}\n{bad', "line 2"),
        ("a.jsonl", '{"query": "x", "expected": ["y"]}', "expected: Extra inputs"),
        ("a.jsonl", '{"query": ""}', "canary 1: query"),
        ("a.jsonl", '{"query": "x"}\n{"query": "x"}', "is duplicated"),
        ("a.jsonl", '"x"', "line 1: a JSON str"),
        ("a.jsonl", "\n", "no canaries"),
        ("a.jsonl", "[" * 100_000, "line 1: not valid JSON"),
        ("a.txt", "x", "ends in"),
        # What Python cannot read as a scalar.
        ("a.yaml", "- 2024-13-45", "a.yaml cannot be read"),
        ("a.yaml", "- " + "9" * 5000, "a.yaml cannot be read"),
        ("a.jsonl", "9" * 5000, "line 1: not valid JSON"),
        ("a.yaml", "name: [a, b]\ncanaries: [q]", "no name of a few words"),
    ],
)
def test_invalid_suite_file_is_refused_by_name(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises((CanaryError, SourceError), match=said):
        CanarySuite.load(path)


def test_the_most_frequent_logged_queries_are_suggested():
    log = ["a?", "b?", "B?", " b? ", "c?", "c?", "  "]
    assert CanarySuite.suggest(log, n=2).queries == ["b?", "c?"]


def test_a_canary_cannot_be_changed():
    canary = Canary(query="x")
    with pytest.raises(ValueError, match="frozen"):
        canary.query = "y"


def test_a_query_may_hold_any_line_separator_and_a_file_a_byte_order_mark(tmp_path):
    path, query = tmp_path / "s.jsonl", "one\u2028two\x85three"
    line = json.dumps({"query": query}, ensure_ascii=False)
    path.write_bytes(f'{line}\r\n{{"query": "another"}}\r\n'.encode("utf-8-sig"))
    assert CanarySuite.load(path).queries == [query, "another"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CanarySuite("one query"), "put it into a list"),
        (lambda: CanarySuite.suggest("one query"), "put it into a list"),
        (lambda: CanarySuite.suggest([]), "no canaries"),
        (lambda: CanarySuite.load("absent.yaml"), "absent"),
        (lambda: CanarySuite(["q"], name="n" * 201), "201 characters"),
        (lambda: CanarySuite(["q"], name=""), "0 characters"),
        (lambda: CanarySuite.load("suite.json"), "ends in '.json'"),
    ],
)
def test_invalid_suite_arguments_are_refused_early(make, said):
    with pytest.raises((CanaryError, SourceError), match=said):
        make()
