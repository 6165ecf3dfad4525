"""Pages stay short, in sentences that have a subject and an end; docstrings and comments, too."""

import ast
import io
import re
import textwrap
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS, LONGEST_SENTENCE, LONGEST_PARAGRAPH = 20_000, 30, 6  # words, words, lines
COLUMNS = 100  # at which a reader sees a paragraph

CODE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INLINE, TARGET = re.compile(r"`[^`]*`"), re.compile(r"\]\([^)]*\)")
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?])\s+|: ")
# A clause in the place of a subject: "What is suspicious is held", "Who may only look ...".
HEADLESS = re.compile(
    r"(?:^|[.:;] )(?:What|Who|Which|Of which|Whoever) "
    r"(?:is|are|was|were|may|can|has|have|nobody|only|a|an|the|it|they|you)\b(?![^.?!]*\?)"
)

MODULES = [
    p for folder in ("ragshield_*", "benchmarks") for p in sorted(ROOT.glob(f"{folder}/**/*.py"))
]
# In code, such a clause is a fault anywhere but behind a verb that asks or says, or a person:
# "Forget what was let in", "held by whoever reads it". Some are good English: few may stand.
VERBS = (
    "is|are|was|were|has|have|had|may|can|came|comes?|they|it|a|an|the|nobody|people|others?|only|"
    "that|this|each|every|some|all|stands?|waits?|counts?|lies|reads?|writes?|asks?|needs?|left"
)
CLAUSE = re.compile(
    r"(?<!\bsay )(?<!\bsays )(?<!\btell )(?<!\btells )(?<!\btold )(?<!\bknow )(?<!\bknows )"
    r"(?<!\bshow )(?<!\bshows )(?<!\bsee )(?<!\bask )(?<!\basks )(?<!\bdecide )(?<!\bdecides )"
    rf"\b(?:what|whatever|whoever) (?:{VERBS})\b(?![^.?!]*\?)",
    re.IGNORECASE,
)
MOST_CLAUSES = 0


def told(source):
    """Yield the docstrings and comments of a module, in a line each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = re.sub(
                r"^\s*(?:>>>|\.\.\.) .*$", "", ast.get_docstring(node) or "", flags=re.MULTILINE
            )
            yield " ".join(text.split())
    comments, last = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comments and token.start[0] != last + 1:
                yield " ".join(comments)
                comments = []
            comments.append(token.string.lstrip("# "))
            last = token.start[0]
    yield " ".join(comments)


def clauses(source):
    """Return clauses without a head in docstrings and comments."""
    return [
        text[max(0, m.start() - 30) : m.end() + 30]
        for text in told(source)
        for m in CLAUSE.finditer(text)
    ]


def prose(path):
    return COMMENT.sub("", CODE.sub("\n\n", path.read_text(encoding="utf-8")))


def paragraphs(text):
    """Yield paragraphs and items of lists, as their lines; no tables, headings or code."""
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if line.strip()]
        is_code = all(line.startswith("    ") for line in lines)
        if not lines or is_code or lines[0].lstrip().startswith(("|", "#", "<", "[")):
            continue
        found = []
        for line in lines:
            if not found or ITEM.match(line):
                found.append([])
            found[-1].append(line.strip())
        yield from found


def faults(text):
    """Return the faults of a text, a line each."""
    found = []
    for lines in paragraphs(text):
        shown = textwrap.wrap(TARGET.sub("]", " ".join(lines)), COLUMNS)
        if (n_lines := max(len(lines), len(shown))) > LONGEST_PARAGRAPH:
            found.append(f"{n_lines} lines: {lines[0]}")
        joined = TARGET.sub("]", INLINE.sub("code", " ".join(lines)))
        found += [
            f"{n} words: {sentence}"
            for sentence in END.split(joined)
            if (n := len(re.findall(r"\w[\w'’.-]*", sentence))) > LONGEST_SENTENCE
        ]
        found += [f"no subject: {joined[m.start() :][:60]}" for m in HEADLESS.finditer(joined)]
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_is_in_plain_words(path):
    assert faults(prose(path)) == []


def test_all_pages_together_are_short():
    assert sum(len(prose(path).split()) for path in PAGES) <= MOST_WORDS


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("What is suspicious is held.", "no subject"),
        ("It works. Who may only look verifies without a line in the log.", "no subject"),
        ("word " * 31 + ".", "31 words"),
        ("a\nb\nc\nd\ne\nf\ng", "7 lines"),
        ("Five words in one sentence. " * 26, "8 lines"),
        ("Fine.\n\n- one\n- two " + "word " * 30, "31 words"),
    ],
)
def test_faults_are_found(text, fault):
    assert [one.split(":")[0] for one in faults(text)] == [fault]


@pytest.mark.slow
def test_code_is_told_in_plain_words():
    found = [
        f"{path.relative_to(ROOT)}: {clause}"
        for path in MODULES
        for clause in clauses(path.read_text(encoding="utf-8"))
    ]
    assert len(found) <= MOST_CLAUSES, "\n".join(found)


def test_names_of_tests_are_plain():
    found = [
        name
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(
            r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
        if CLAUSE.search(name.replace("_", " "))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ("# Forget what was let in\nx = 1", 1),
        ('"""Held by whoever reads or writes it."""', 1),
        ('"""Errors say what was expected. What is held?"""', 0),
        ("x = 'what is held'", 0),
    ],
)
def test_clauses_without_a_head_are_found(source, n):
    assert len(clauses(source)) == n


@pytest.mark.parametrize("text", ["What is held?", "# What is held", "    What is", "| What is |"])
def test_questions_headings_and_code_are_not_faults(text):
    assert faults(text) == []
