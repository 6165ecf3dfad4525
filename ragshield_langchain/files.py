"""Loader of files as LangChain documents, with text that people do not see marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document

from ragshield_core.files.folder import Coverage, FileOutcome, Folder


class FolderLoader(BaseLoader):
    """Loads a folder, or one file, as ``ragshield scan`` reads it.

    It cuts texts, HTML, JSON, tables, PDF, Word, OpenDocument and EPUB into chunks. Metadata holds
    the file, the place in it and, under ``ragshield_hidden``, the chunk's text that people do not
    see: a guard judges that as well.

    Parameters
    ----------
    path
        The folder or file.
    include, exclude
        Globs of paths within the folder.

    Attributes
    ----------
    coverage
        The outcome of each file, once all were loaded.
    """

    def __init__(
        self, path: str | Path, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> None:
        self._folder = Folder(path=Path(path), include=include, exclude=exclude)
        self.coverage = Coverage()

    def lazy_load(self) -> Iterator[Document]:
        """Yield the chunks of each file; ``coverage`` names unreadable files."""
        outcomes: list[FileOutcome] = []
        for outcome, chunks in self._folder.read():
            outcomes.append(outcome)
            for chunk in chunks:
                yield Document(id=chunk.id, page_content=chunk.text, metadata=chunk.metadata)
        self.coverage = Coverage(tuple(outcomes))
