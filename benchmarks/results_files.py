"""Result files with the fingerprint of the code that measured them.

A result in `benchmarks/results` ends in a line with the version and a fingerprint of the deciding
modules: the source of `ragshield_core` except packages that decide nothing about an entry.
Comments, docstrings, blank lines, imports and the places of files do not count. A result is stale
when the fingerprint of the current code differs.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
CORE = ROOT / "ragshield_core"
# Packages and modules that decide nothing about an entry. A new one counts as deciding until it is
# named here.
NOT_DECIDING = frozenset(
    {
        "cli",
        "database",
        "huggingface",
        "logs",
        "model.errors",
        "quarantine",
        "settings",
        "sharing",
        "signing",
        "state",
        "store",
        "testing",
        "tools",
    }
)
# Code of a result, or a part of one, from before results named their code.
UNKNOWN = "unknown"
LENGTH = 12  # hexadecimal digits shown of a fingerprint
_LINE = re.compile(r"^Measured by RAGShield (\S+), code ((?:`\w+`(?:, )?)+)\.$", re.MULTILINE)


class MeasuredBy(NamedTuple):
    """The code that measured a result, as its file names it."""

    version: str
    codes: tuple[str, ...]  # several where parts were measured at different times

    def __str__(self) -> str:
        """Return the line for the result file."""
        codes = ", ".join(f"`{code}`" for code in self.codes)
        return f"Measured by RAGShield {self.version}, code {codes}."


def version() -> str:
    """Return the version of this tree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])


def deciding_files(core: Path = CORE) -> Iterator[Path]:
    """Return the files whose source decides about entries, in order."""
    for path in sorted(core.rglob("*")):
        name = ".".join(path.relative_to(core).with_suffix("").parts)
        decides = NOT_DECIDING.isdisjoint((name, name.partition(".")[0]))
        skipped = path.name == "__init__.py" or "__pycache__" in path.parts
        if path.is_file() and decides and not skipped:
            yield path


def fingerprint(core: Path = CORE) -> str:
    """Return a fingerprint of the deciding modules and of the data that they read."""
    found = []
    for path in deciding_files(core):
        source = path.read_bytes()
        code = code_of(source.decode()).encode() if path.suffix == ".py" else source
        found.append(hashlib.sha256(code).digest())
    return hashlib.sha256(b"".join(sorted(found))).hexdigest()[:LENGTH]


@cache
def current() -> str:
    """Return the fingerprint of this tree."""
    return fingerprint()


def code_of(source: str) -> str:
    """Return the code lines of a module without imports."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        documented = isinstance(body, list) and body and _is_docstring(node, body[0])
        left_out = [body[0]] if documented else []
        left_out += [node] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        for one in left_out:
            for row in range(one.lineno - 1, one.end_lineno or one.lineno):
                lines[row] = ""
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))


def _is_docstring(node: ast.AST, first: ast.stmt) -> bool:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return (
        isinstance(node, documented)
        and isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def write(
    name: str, text: str, *, codes: Sequence[str] | None = None, partly: bool = False
) -> None:
    """Write a result, with the line about the code at its end.

    Parameters
    ----------
    name
        Name of the file in `benchmarks/results`, without suffix.
    text
        The page; an existing line about the code is replaced.
    codes
        Fingerprints of its parts, if these differ; otherwise the current one.
    partly
        Whether parts of the page are older: then the codes in the file are kept.
    """
    RESULTS.mkdir(exist_ok=True)
    before = measured_by(name).codes if partly else ()
    line = MeasuredBy(version(), tuple(dict.fromkeys([*before, *(codes or [current()])])))
    page = _LINE.sub("", text).rstrip()
    (RESULTS / f"{name}.md").write_text(f"{page}\n\n{line}\n", encoding="utf-8")


def measured_by(name: str) -> MeasuredBy:
    """Return the code that measured a result, "unknown" if the file does not say."""
    path = RESULTS / f"{name}.md"
    found = _LINE.findall(path.read_text(encoding="utf-8")) if path.exists() else []
    if not found:
        return MeasuredBy(UNKNOWN, (UNKNOWN,))
    last_version, codes = found[-1]
    return MeasuredBy(last_version, tuple(re.findall(r"`(\w+)`", codes)))


def is_current(name: str) -> bool:
    """Return whether the current code measured the whole result."""
    return measured_by(name).codes == (current(),)


class Parts:
    """The parts of a long result, each kept with the code that measured it.

    Parameters
    ----------
    name
        Name of the result.
    head
        The lines above the first part.
    order
        Names of all parts, in the order of the page.
    """

    def __init__(self, name: str, head: str, order: Sequence[str]) -> None:
        self.name, self.head, self.order = name, head, list(order)
        self._file = RESULTS / f"{name}.json"
        self._parts: dict[str, dict[str, object]] = {}
        if self._file.exists():
            stored = json.loads(self._file.read_text(encoding="utf-8"))
            for part, value in stored.items():
                known = isinstance(value, dict)
                self._parts[part] = value if known else {"code": UNKNOWN, "lines": value}

    def stale(self) -> list[str]:
        """Return the parts that the current code has not measured."""
        return [p for p in self.order if self._parts.get(p, {}).get("code") != current()]

    def lines(self, part: str) -> list[str]:
        """Return the lines of a part."""
        found = self._parts.get(part, {}).get("lines", [])
        return list(found) if isinstance(found, list) else []

    def put(self, part: str, lines: Sequence[str]) -> None:
        """Store a newly measured part, and write the result."""
        self._parts[part] = {"code": current(), "lines": list(lines)}
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps(self._parts, indent=1, ensure_ascii=False)
        self._file.write_text(text + "\n", encoding="utf-8")
        there = [p for p in self.order if p in self._parts]
        page = "\n".join([self.head, *(line for p in there for line in self.lines(p))])
        write(self.name, page, codes=[str(self._parts[p]["code"]) for p in there])
