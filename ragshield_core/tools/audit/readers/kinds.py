"""Which reader a file or folder is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ragshield_core.files.documents import ENDINGS
from ragshield_core.files.folder import Folder
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.faiss_folder import FaissFolder
from ragshield_core.tools.audit.readers.llama_folder import LlamaFolder
from ragshield_core.tools.audit.readers.records import JsonLines, Parquet
from ragshield_core.tools.audit.readers.source import Columns, Source, reading
from ragshield_core.tools.audit.readers.text_folder import TextFolder

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
