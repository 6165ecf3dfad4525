"""A folder of texts, Markdown and HTML, cut into chunks as an ingestion pipeline would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.html_text import shown_in
from ragshield_core.tools.audit.readers.source import CHUNK_ROWS, Rows, Source, reading

PLAIN, HTML = (".txt", ".md", ".markdown", ".rst"), (".html", ".htm")
ENDINGS = (*PLAIN, *HTML)
# Characters of a chunk, about: some 170 words, as small embedding models take them.
CHUNK = 1_000
# Bytes of a file; one that is larger is none that people have written.
LARGEST = 1 << 28


class TextFolder(Source):
    """All texts, Markdown and HTML files in a folder and those below it, by name.

    Paragraphs are put together to chunks of about a thousand characters; an entry's id is the
    file's path within the folder and the number of the chunk, its lineage is the file. Of HTML,
    what a browser could show is read, hidden or not: what is hidden is what detectors look for. A
    file that cannot be read is left out, and named in ``unread``.
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
            try:
                text = _text_of(path)
            except SourceError as error:
                self.unread.append(str(error))
                continue
            found += [(name, number, chunk) for number, chunk in enumerate(cut(text))]
        if not found:
            msg = f"{self.path} holds no text, expected files ending in {', '.join(ENDINGS)}."
            raise SourceError(" ".join((msg, *self.unread[:1])))
        return found


def _text_of(path: Path) -> str:
    """Return the text of a file.

    Raises
    ------
    SourceError
        If it cannot be read; names it.
    """
    with reading(path):
        size = path.stat().st_size
        if size > LARGEST:
            msg = f"{path} has {size:,} bytes, expected at most {LARGEST:,}; split it."
            raise SourceError(msg)
        text = path.read_text(encoding="utf-8")
        return shown_in(text) if path.suffix.lower() in HTML else text


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
