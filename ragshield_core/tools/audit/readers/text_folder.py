"""A folder of texts, Markdown and HTML, cut into chunks as an ingestion pipeline would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.source import CHUNK_ROWS, Rows, Source, reading

PLAIN, HTML = (".txt", ".md", ".markdown", ".rst"), (".html", ".htm")
ENDINGS = (*PLAIN, *HTML)
# Characters of a chunk, about: some 170 words, as small embedding models take them.
CHUNK = 1_000
# What is in these elements is not read by anybody; behind a block, words do not run together.
_UNREAD = frozenset({"script", "style", "template", "noscript"})
_BLOCK = re.compile(
    "address|article|aside|blockquote|br|dd|div|dl|dt|fieldset|figcaption|figure|footer|form|h[1-6]"
    "|header|hr|li|main|nav|ol|p|pre|section|table|td|th|title|tr|ul"
)


class TextFolder(Source):
    """All texts, Markdown and HTML files in a folder and those below it, by name.

    Paragraphs are put together to chunks of about a thousand characters; an entry's id is the
    file's path within the folder and the number of the chunk, its lineage is the file. Of HTML,
    what a browser could show is read, hidden or not: what is hidden is what detectors look for.
    """

    def __len__(self) -> int:
        return len(self._chunks)

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order."""
        for start in range(0, len(self._chunks), CHUNK_ROWS):
            part = self._chunks[start : start + CHUNK_ROWS]
            yield Rows(
                ids=[f"{name}#{number}" for name, number, _ in part],
                texts=[text for _, _, text in part],
                labels=[None] * len(part),
                lineages=[name for name, _, _ in part],
                metadatas=[{"source": name} for name, _, _ in part] if self.metadata else [],
            )

    @cached_property
    def _chunks(self) -> list[tuple[str, int, str]]:
        found = []
        for path in text_files(self.path):
            name = path.relative_to(self.path).as_posix()
            with reading(path):
                text = path.read_text(encoding="utf-8")
            if path.suffix.lower() in HTML:
                text = shown_in(text)
            found += [(name, number, chunk) for number, chunk in enumerate(cut(text))]
        if not found:
            msg = f"{self.path} holds no text, expected files ending in {', '.join(ENDINGS)}."
            raise SourceError(msg)
        return found


def text_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are texts, by name; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in ENDINGS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def cut(text: str) -> list[str]:
    r"""Return paragraphs put together to chunks of about :data:`CHUNK` characters.

    Examples
    --------
    >>> [len(chunk) for chunk in cut("word " * 150 + "\n\n" + "word " * 150)]
    [749, 749]
    """
    chunks: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        for piece in _pieces(paragraph.strip()):
            if chunks and len(chunks[-1]) + len(piece) < CHUNK:
                chunks[-1] += f"\n\n{piece}"
            else:
                chunks.append(piece)
    return chunks


def _pieces(paragraph: str) -> Iterator[str]:
    """Yield a paragraph, cut at spaces where it is too long."""
    while len(paragraph) > CHUNK:
        at = paragraph.rfind(" ", CHUNK // 2, CHUNK)
        at = CHUNK if at < 0 else at
        yield paragraph[:at].strip()
        paragraph = paragraph[at:].strip()
    if paragraph:
        yield paragraph


def shown_in(page: str) -> str:
    r"""Return the text of a page of HTML, a paragraph a block.

    Examples
    --------
    >>> shown_in("<h1>A</h1><p>b <i>c</i><script>d</script></p>")
    'A\n\nb c'
    """
    parser = _Text()
    parser.feed(page)
    parser.close()
    blocks = (" ".join(block.split()) for block in "".join(parser.parts).split("\0"))
    return "\n\n".join(block for block in blocks if block)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._unread: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - as it is called
        if tag in _UNREAD:
            self._unread.append(tag)
        if _BLOCK.fullmatch(tag):
            self.parts.append("\0")

    def handle_endtag(self, tag: str) -> None:
        if self._unread and tag == self._unread[-1]:
            self._unread.pop()
        if _BLOCK.fullmatch(tag):
            self.parts.append("\0")

    def handle_data(self, data: str) -> None:
        if not self._unread:
            self.parts.append(data.replace("\0", " "))
