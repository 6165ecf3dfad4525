"""A folder of documents, and which reader any file or folder is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from ragshield_core.files.documents import ENDINGS, LARGEST
from ragshield_core.files.folder import Coverage, FileChunk, FileOutcome, Folder, without_templates
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.faiss_folder import FaissFolder
from ragshield_core.tools.audit.readers.llama_folder import LlamaFolder
from ragshield_core.tools.audit.readers.records import JsonLines, Parquet
from ragshield_core.tools.audit.readers.source import CHUNK_ROWS, Columns, Rows, Source, reading


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


READERS: tuple[tuple[tuple[str, ...], Callable[..., Source]], ...] = (
    ((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), JsonLines),
    ((".parquet", ".pq"), Parquet),
)


def open_source(
    path: Path,
    columns: Columns | None = None,
    *,
    metadata: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Source:
    """Return the source for a file, chosen by its ending, or for a folder.

    A folder is one that LangChain's FAISS has saved, or a LlamaIndex index persisted, or holds
    documents. One document is read like a folder of it.

    Parameters
    ----------
    path, columns, metadata
        As of :class:`Source`.
    include, exclude
        Globs of documents, see :class:`~ragshield_core.files.folder.Folder`.

    Raises
    ------
    SourceError
        If there is no such file, or it is of no known kind.
    """
    if not path.exists():
        msg = (
            f"{path} does not exist, expected a file, a folder of texts, or one that "
            "FAISS.save_local or a LlamaIndex StorageContext.persist wrote."
        )
        raise SourceError(msg)
    if (path / "docstore.json").is_file():
        return LlamaFolder(path, columns, metadata=metadata)
    documents = TextFolder(path, columns, metadata=metadata, include=include, exclude=exclude)
    if path.is_dir() and not any(path.glob("*.faiss")) and Folder(path=path).holds_documents():
        return documents
    if path.is_dir() or path.suffix == ".faiss":
        return FaissFolder(path, columns, metadata=metadata)
    for endings, reader in READERS:
        if path.name.lower().endswith(endings):
            return reader(path, columns, metadata=metadata)
    if path.name.lower().endswith(ENDINGS):
        return documents
    known = ", ".join(ending for endings, _ in READERS for ending in endings)
    msg = (
        f"{path} is of no known kind, expected a name ending in {known}, or a folder that "
        "LangChain's FAISS or a LlamaIndex index was saved in, or of documents "
        f"({', '.join(ENDINGS)})."
    )
    raise SourceError(msg)


def read_ids(path: Path) -> list[str]:
    """Return the ids that a file names, one per line; blank lines are ignored.

    Raises
    ------
    SourceError
        If it cannot be read.
    """
    with reading(path):
        lines = path.read_text(encoding="utf-8").split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]
