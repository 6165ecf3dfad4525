"""Which reader a file or folder is for, and the reader of folders of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ragshield_core.files.documents import ENDINGS
from ragshield_core.files.folder import Coverage, FileOutcome, Folder
from ragshield_core.files.passages import Chunk, without_templates
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.faiss_folder import faiss_folder
from ragshield_core.tools.audit.readers.llama_folder import DOCSTORE, llama_folder
from ragshield_core.tools.audit.readers.records import json_lines, parquet
from ragshield_core.tools.audit.readers.source import CHUNK_ROWS, Columns, Rows, Source, reading

# Readers by the endings of names.
RECORDS: dict[str, Callable[[Source], Iterator[Rows]]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), json_lines),
    **dict.fromkeys((".parquet", ".pq"), parquet),
}


def documents(source: Source) -> Iterator[Rows]:
    """Yield the chunks of all documents in a folder and those below it, by name, or of one file.

    Paragraphs are put together to chunks of about a thousand characters; an entry's id is the
    file's path within the folder and the number of the chunk, its lineage is the file. Of HTML,
    what a browser could show is read, hidden or not. What people do not see of a document is marked
    in the context of the chunk. ``coverage`` names each file, also one that cannot be read.
    """
    outcomes: list[FileOutcome] = []
    chunks: list[Chunk] = []
    folder = Folder(path=source.path, include=source.include, exclude=source.exclude)
    for outcome, found in folder.read():
        outcomes.append(outcome)
        chunks += found
    source.coverage = Coverage(tuple(outcomes))
    if not chunks:
        msg = f"{source.path} holds no text, expected files ending in {', '.join(ENDINGS)}."
        for file in source.coverage.of("unread")[:1]:
            msg += f" {file.name} cannot be read: {file.why}."
        raise SourceError(msg)
    without_templates(chunks)
    for start in range(0, len(chunks), CHUNK_ROWS):
        part = chunks[start : start + CHUNK_ROWS]
        yield Rows(
            ids=[chunk.id for chunk in part],
            texts=[chunk.text for chunk in part],
            labels=[None] * len(part),
            lineages=[chunk.name for chunk in part],
            contexts=[chunk.context for chunk in part],
            metadatas=[chunk.metadata for chunk in part],
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
        As of :class:`~ragshield_core.tools.audit.readers.source.Source`.
    include, exclude
        Globs of documents, see :class:`~ragshield_core.files.folder.Folder`.

    Raises
    ------
    SourceError
        If there is no such file, or it is of no known kind.
    """
    name = path.name.lower()
    if not path.exists():
        msg = (
            f"{path} does not exist, expected a file, a folder of texts, or one that "
            "FAISS.save_local or a LlamaIndex StorageContext.persist wrote."
        )
        raise SourceError(msg)
    if (path / DOCSTORE).is_file():
        reader: Callable[[Source], Iterator[Rows]] = llama_folder
    elif path.suffix == ".faiss" or any((*path.glob("*.faiss"), *path.glob("index.pkl"))):
        reader = faiss_folder
    elif ending := next((one for one in RECORDS if path.is_file() and name.endswith(one)), None):
        reader = RECORDS[ending]
    elif path.is_dir() or name.endswith(ENDINGS):
        reader = documents
    else:
        msg = (
            f"{path} is of no known kind, expected a name ending in {', '.join(RECORDS)}, or a "
            "folder that LangChain's FAISS or a LlamaIndex index was saved in, or of documents "
            f"({', '.join(ENDINGS)})."
        )
        raise SourceError(msg)
    if (include or exclude) and reader is not documents:
        msg = "--include and --exclude are for files of a folder of documents; leave them out."
        raise SourceError(msg)
    return Source(path, reader, columns or Columns(), metadata, include, exclude)


def read_ids(path: Path) -> list[str]:
    """Return the ids that a file names, one per line; blank lines are ignored."""
    with reading(path):
        lines = path.read_text(encoding="utf-8").split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]
