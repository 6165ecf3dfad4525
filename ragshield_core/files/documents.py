"""One file as passages, whatever its format."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from ragshield_core.files.encodings import decoded
from ragshield_core.files.formats import BINARIES, TEXTS, ending_of
from ragshield_core.files.passages import Passage, UnreadError
from ragshield_core.files.worker import Worker

# Bytes of a file; one that is larger is none that people have written.
LARGEST = 1 << 28


@dataclass(frozen=True, slots=True)
class Document:
    """What was read of a file."""

    passages: list[Passage]
    encoding: str = ""  # of texts


def read_document(path: Path, worker: Worker, largest: int = LARGEST) -> Document:
    """Return the passages of a file.

    Raises
    ------
    UnreadError
        If it cannot be read; says why, without anything of what the file holds.
    """
    ending = ending_of(path.name)
    if ending is None:
        msg = "of no known format"
        raise UnreadError(msg)
    try:
        size = path.stat().st_size
        if size > largest:
            msg = f"{path} has {size:,} bytes, expected at most {largest:,}; split it"
            raise UnreadError(msg)
        if ending in BINARIES:
            return Document(worker.read(path))
        text, encoding = decoded(_bytes(path, ending, largest))
        return Document(list(TEXTS[ending.removesuffix(".gz")](text)), encoding)
    except (OSError, EOFError, zlib.error, MemoryError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else None
        msg = f"{type(error).__name__}{f': {said}' if said else ''}"
        raise UnreadError(msg) from None


def _bytes(path: Path, ending: str, largest: int) -> bytes:
    if not ending.endswith(".gz"):
        return path.read_bytes()
    with gzip.open(path, "rb") as file:
        data = file.read(largest + 1)
    if len(data) > largest:
        msg = f"unpacks to more than {largest:,} bytes"
        raise UnreadError(msg)
    return data
