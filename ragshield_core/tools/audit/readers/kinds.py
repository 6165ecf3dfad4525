"""Choice of the reader for a file or folder, and the reader of folders of documents."""

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
from ragshield_core.tools.audit.readers.source import CHUNK_ROWS, ColumnNames, Rows, Source, reading

# Readers by file extension.
RECORDS: dict[str, Callable[[Source], Iterator[Rows]]] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), json_lines),
    **dict.fromkeys((".parquet", ".pq"), parquet),
}


def documents(source: Source) -> Iterator[Rows]:
    """Yield the chunks of one file, or of all documents in a folder and its subfolders, by name.

    Paragraphs are joined to chunks of about a thousand characters. An entry's id is the file's path
    in the folder and the number of the chunk; its lineage is the file. HTML is read as far as a
    browser could show it, hidden or not. The context of a chunk marks the text that people do not
    see. ``coverage`` lists every file, including unreadable ones.
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
    columns: ColumnNames | None = None,
    *,
    metadata: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Source:
    """Return the source for a file, chosen by its ending, or for a folder.

    A folder may be a saved LangChain FAISS store, a persisted LlamaIndex index, or a folder of
    documents. A single document is read like a folder that contains it.

    Parameters
    ----------
    path, columns, metadata
        As in :class:`~ragshield_core.tools.audit.readers.source.Source`.
    include, exclude
        Globs of documents, see :class:`~ragshield_core.files.folder.Folder`.

    Raises
    ------
    SourceError
        If the file does not exist, or its kind is unknown.
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
    return Source(path, reader, columns or ColumnNames(), metadata, include, exclude)


def read_ids(path: Path) -> list[str]:
    """Return the ids that a file names, one per line; blank lines are ignored."""
    with reading(path):
        lines = path.read_text(encoding="utf-8").split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]
