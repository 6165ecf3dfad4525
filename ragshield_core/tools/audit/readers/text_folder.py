"""A folder of documents, cut into chunks as an ingestion pipeline would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from ragshield_core.files.documents import ENDINGS, LARGEST
from ragshield_core.files.folder import Coverage, FileChunk, FileOutcome, Folder, without_templates
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.source import CHUNK_ROWS, Columns, Rows, Source


class TextFolder(Source):
    """All documents in a folder and those below it, by name, or one file.

    Paragraphs are put together to chunks of about a thousand characters; an entry's id is the
    file's path within the folder and the number of the chunk, its lineage is the file. Of HTML,
    what a browser could show is read, hidden or not. What people do not see of a document is marked
    in the context of the chunk. A file that cannot be read is left out, and named in ``unread``.

    Parameters
    ----------
    path, columns, metadata
        As of :class:`Source`.
    include, exclude
        Globs, see :class:`~ragshield_core.files.folder.Folder`.
    """

    def __init__(
        self,
        path: Path,
        columns: Columns | None = None,
        *,
        metadata: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        super().__init__(path, columns, metadata=metadata)
        self._include, self._exclude = include, exclude

    def __len__(self) -> int:
        return len(self._chunks)

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order."""
        for start in range(0, len(self._chunks), CHUNK_ROWS):
            part = self._chunks[start : start + CHUNK_ROWS]
            yield Rows(
                ids=[chunk.id for chunk in part],
                texts=[chunk.text for chunk in part],
                labels=[None] * len(part),
                lineages=[chunk.name for chunk in part],
                contexts=[chunk.context for chunk in part],
                metadatas=[chunk.metadata for chunk in part],
            )

    @cached_property
    def _chunks(self) -> list[FileChunk]:
        outcomes: list[FileOutcome] = []
        found: list[FileChunk] = []
        folder = Folder(
            path=self.path, include=self._include, exclude=self._exclude, largest=LARGEST
        )
        for outcome, chunks in folder.read():
            outcomes.append(outcome)
            found += chunks
        self.coverage = Coverage(tuple(outcomes))
        for file in self.coverage.of("unread"):
            path = self.path / file.name if self.path.is_dir() else self.path
            self.unread.append(f"{path} cannot be read: {file.why}.")
        if not found:
            msg = f"{self.path} holds no text, expected files ending in {', '.join(ENDINGS)}."
            raise SourceError(" ".join((msg, *self.unread[:1])))
        return without_templates(found)
