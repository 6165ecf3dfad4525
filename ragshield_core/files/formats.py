"""Which reader a file is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ragshield_core.files.pages import page
from ragshield_core.files.passages import Passage
from ragshield_core.files.plain import json_lines, json_values, paragraphs, table

TEXTS: dict[str, Callable[[str], Iterator[Passage]]] = {
    **dict.fromkeys((".txt", ".md", ".markdown", ".rst"), paragraphs),
    **dict.fromkeys((".html", ".htm", ".xhtml"), page),
    **dict.fromkeys((".csv", ".tsv"), table),
    **dict.fromkeys((".jsonl", ".ndjson"), json_lines),
    ".json": json_values,
}
# Formats whose lines are read from compressed files as well.
LINES = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt")


@dataclass(frozen=True, slots=True)
class Binary:
    """A format that a library reads, in a process of its own."""

    module: str
    reader: str
    package: str  # which has to be there

    def read(self, path: Path) -> Iterator[Passage]:
        """Yield the passages of a file."""
        read: Callable[[Path], Iterator[Passage]] = getattr(
            import_module(f"ragshield_core.files.{self.module}"), self.reader
        )
        return read(path)


BINARIES = {
    ".pdf": Binary("pdf", "pdf", "pypdf"),
    ".docx": Binary("word", "word", "defusedxml"),
    ".odt": Binary("open_document", "open_document", "defusedxml"),
    ".epub": Binary("epub", "epub", "defusedxml"),
}

ENDINGS = (*TEXTS, *BINARIES, *(f"{ending}.gz" for ending in LINES))


def ending_of(name: str) -> str | None:
    """Return the ending by which a file is read, ``None`` where none is known.

    Examples
    --------
    >>> ending_of("Prices.CSV.gz"), ending_of("logo.png")
    ('.csv.gz', None)
    """
    lowered = name.lower()
    suffixes = Path(lowered).suffixes
    for ending in ("".join(suffixes[-2:]), "".join(suffixes[-1:])):
        if ending in ENDINGS:
            return ending
    return None
