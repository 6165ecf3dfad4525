"""A reader of files as LlamaIndex documents, with marks for content that people do not see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.readers.base import BaseReader
from llama_index.core.schema import Document

from ragshield_core.files.folder import Coverage, FileOutcome, Folder


class FolderReader(BaseReader):
    """Reads a folder, or one file, as ``ragshield scan`` does.

    Cuts texts, HTML, JSON, tables, PDF, Word, OpenDocument and EPUB into chunks. Metadata holds the
    file, the place in it and, under ``ragshield_hidden``, the chunk's hidden content, which a guard
    judges as well. Models and embeddings see only the file in the metadata.

    Attributes
    ----------
    coverage
        The outcome of each file, once all were read.
    """

    def __init__(self) -> None:
        self.coverage = Coverage()

    def lazy_load_data(
        self,
        path: str | Path,
        *_: Any,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        **__: Any,
    ) -> Iterator[Document]:
        """Yield the chunks of each file; ``coverage`` names unreadable files.

        Parameters
        ----------
        path
            The folder or file.
        include, exclude
            Globs of paths within the folder.
        """
        outcomes: list[FileOutcome] = []
        for outcome, chunks in Folder(path=Path(path), include=include, exclude=exclude).read():
            outcomes.append(outcome)
            for chunk in chunks:
                unread = [key for key in chunk.metadata if key != "source"]
                yield Document(
                    id_=chunk.id,
                    text=chunk.text,
                    metadata=chunk.metadata,
                    excluded_embed_metadata_keys=unread,
                    excluded_llm_metadata_keys=unread,
                )
        self.coverage = Coverage(tuple(outcomes))
