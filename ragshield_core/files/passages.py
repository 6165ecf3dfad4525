"""Passages of a document with their places, and chunks of passages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ragshield_core.detectors.hidden.payload import mark
from ragshield_core.model.claims import HIDDEN_KEY

# Characters of a chunk, roughly: some 170 words, which fit into small embedding models.
CHUNK = 1_000
# Hidden text in this share of the files, and at least this many, is the template of a site.
TEMPLATE, FEWEST_FILES = 0.1, 10
# Most marks of one chunk; a larger number is the habit of an author.
MOST_MARKS = 20


class UnreadError(Exception):
    """A file cannot be read; the message says why and holds nothing of the file."""


@dataclass(frozen=True, slots=True)
class FilePassage:
    """A paragraph, a row of a table, or a text beside the running text."""

    text: str  # the text, as a machine reads it
    # The place: `"line"`, `"page"`, `"paragraph"` or `"record"`, counted from 1
    unit: str = "line"
    number: int = 1
    # Why people do not see it, such as `"white text"`; empty if they see it
    hidden: str = ""
    # How sure it is hidden on purpose, [0, 1]. Comments and alternative texts have 0: they are only
    # checked for instructions
    sure: float = 1.0
    beside: bool = False  # whether it is only a mark, not part of the chunk's text

    @property
    def place(self) -> str:
        """The place as text."""
        return f"{self.unit} {self.number}"


@dataclass(slots=True)
class Chunk:
    """A piece of a file, judged and stored as one entry."""

    # The file's path within its folder, and the number of this chunk in the file
    name: str
    number: int
    text: str  # the text, as a machine reads it
    # The place of its beginning, as in Passage
    unit: str
    at: int
    hidden: list[FilePassage] = field(default_factory=list)  # passages that people do not see

    @property
    def id(self) -> str:
        """The id of the chunk."""
        return f"{self.name}#{self.number}"

    @property
    def context(self) -> str | None:
        """Marks of text that people do not see, for detectors; None if there is none."""
        surest = sorted(self.hidden, key=lambda one: -one.sure)[:MOST_MARKS]
        marks = [mark(one.hidden, one.place, one.text, one.sure) for one in surest]
        return "\n".join(marks) or None

    @property
    def metadata(self) -> dict[str, Any]:
        """The file as ``source``, the place, and the marks."""
        # A unit such as "part 3, line" is not a single word.
        place = {"place": f"{self.unit} {self.at}"} if "," in self.unit else {self.unit: self.at}
        context = self.context
        marks = {} if context is None else {HIDDEN_KEY: context}
        return {"source": self.name, **place, **marks}


def chunks_of(passages: Iterable[FilePassage], name: str = "") -> list[Chunk]:
    """Return the passages of a file, joined into chunks of about :data:`CHUNK` characters.

    Examples
    --------
    >>> parts = [FilePassage("word " * 150, "page", page) for page in (1, 2)]
    >>> [(len(chunk.text), chunk.at) for chunk in chunks_of(parts)]
    [(749, 1), (749, 2)]
    """
    chunks: list[Chunk] = []
    early: list[FilePassage] = []  # marks before any text
    for passage in passages:
        if passage.beside:
            (chunks[-1].hidden if chunks else early).append(passage)
            continue
        marked = not passage.hidden
        for piece, offset in _pieces(passage.text):
            if chunks and len(chunks[-1].text) + len(piece) < CHUNK:
                chunks[-1].text += f"\n\n{piece}"
            else:
                lines = passage.text.count("\n", 0, offset) if passage.unit == "line" else 0
                at = passage.number + lines
                chunks.append(Chunk(name, len(chunks), piece, passage.unit, at))
            if not marked:
                chunks[-1].hidden.append(passage)
                marked = True
    if early and not chunks:  # the file has marks only
        chunks = [Chunk(name, 0, early[0].text[:CHUNK], early[0].unit, early[0].number)]
    if early:
        chunks[0].hidden[:0] = early
    return chunks


def without_templates(chunks: Sequence[Chunk]) -> None:
    """Set ``sure`` to 0 for marks in many files, which are then only checked for instructions.

    A search box that scripts show, for example, is hidden on every page of a site.
    """
    files = len({chunk.name for chunk in chunks})
    holders = Counter(
        text for text, _ in {(one.text, chunk.name) for chunk in chunks for one in chunk.hidden}
    )
    many = max(FEWEST_FILES, TEMPLATE * files)
    for chunk in chunks:
        chunk.hidden = [
            replace(one, sure=0.0) if holders[one.text] >= many else one for one in chunk.hidden
        ]


def paragraphs(text: str) -> Iterator[FilePassage]:
    """Yield the paragraphs of a plain text with their lines."""
    start = 0
    line = 1
    for blank in [*re.finditer(r"\n[ \t]*\n", text), None]:
        end = len(text) if blank is None else blank.start()
        paragraph = text[start:end]
        lead = len(paragraph) - len(paragraph.lstrip())
        if stripped := paragraph.strip():
            yield FilePassage(stripped, "line", line + paragraph.count("\n", 0, lead))
        if blank is not None:
            line += text.count("\n", start, blank.end())
            start = blank.end()


def _pieces(paragraph: str) -> Iterator[tuple[str, int]]:
    """Yield a paragraph with its offset, or parts of a long one, cut at spaces, with theirs."""
    start = len(paragraph) - len(paragraph.lstrip())
    end = len(paragraph.rstrip())
    while end - start > CHUNK:
        at = paragraph.rfind(" ", start + CHUNK // 2, start + CHUNK)
        at = start + CHUNK if at < 0 else at
        yield paragraph[start:at].strip(), start
        start = at
        while start < end and paragraph[start].isspace():
            start += 1
    if end > start:
        yield paragraph[start:end], start
