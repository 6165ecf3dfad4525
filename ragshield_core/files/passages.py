"""Passages of a document with their places, and chunks made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# Characters of a chunk, about: some 170 words, as small embedding models take them.
CHUNK = 1_000


class UnreadError(Exception):
    """A file cannot be read; the message says why and holds nothing of the file."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph, a row of a table, or a text beside the text.

    Attributes
    ----------
    text
        The text, as a machine reads it.
    unit, number
        The place: ``"line"``, ``"page"``, ``"paragraph"`` or ``"record"``, counted from 1.
    hidden
        What keeps people from seeing it, such as ``"white text"``; empty if they see it.
    sure
        How sure it is that it is hidden on purpose, [0, 1]. Comments and alternative texts have 0:
        they are read for instructions only.
    beside
        Whether it only marks text: it is no part of the chunk's text.
    """

    text: str
    unit: str = "line"
    number: int = 1
    hidden: str = ""
    sure: float = 1.0
    beside: bool = False

    @property
    def place(self) -> str:
        """The place in words."""
        return f"{self.unit} {self.number}"


@dataclass(slots=True)
class Chunk:
    """A piece of a document as it is judged and stored."""

    text: str
    unit: str
    number: int
    hidden: list[Passage] = field(default_factory=list)


def chunks_of(passages: Iterable[Passage]) -> list[Chunk]:
    """Return passages put together to chunks of about :data:`CHUNK` characters.

    Examples
    --------
    >>> parts = [Passage("word " * 150, "page", page) for page in (1, 2)]
    >>> [(len(chunk.text), chunk.number) for chunk in chunks_of(parts)]
    [(749, 1), (749, 2)]
    """
    chunks: list[Chunk] = []
    early: list[Passage] = []  # marks that stand before any text
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
                chunks.append(Chunk(piece, passage.unit, passage.number + lines))
            if not marked:
                chunks[-1].hidden.append(passage)
                marked = True
    if early and not chunks:  # all that a machine reads stands beside the text
        chunks = [Chunk(early[0].text[:CHUNK], early[0].unit, early[0].number)]
    if early:
        chunks[0].hidden[:0] = early
    return chunks


def paragraphs(text: str) -> Iterator[Passage]:
    """Yield the paragraphs of a plain text with their lines."""
    start = 0
    line = 1
    for blank in [*re.finditer(r"\n[ \t]*\n", text), None]:
        end = len(text) if blank is None else blank.start()
        paragraph = text[start:end]
        lead = len(paragraph) - len(paragraph.lstrip())
        if stripped := paragraph.strip():
            yield Passage(stripped, "line", line + paragraph.count("\n", 0, lead))
        if blank is not None:
            line += text.count("\n", start, blank.end())
            start = blank.end()


def _pieces(paragraph: str) -> Iterator[tuple[str, int]]:
    """Yield a paragraph and 0, or parts cut at spaces where it is too long, with their offsets."""
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
