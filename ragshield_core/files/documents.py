"""One file as passages, whatever its format and encoding."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ragshield_core.files.pages import page
from ragshield_core.files.passages import Passage, UnreadError
from ragshield_core.files.plain import json_lines, json_values, paragraphs, table
from ragshield_core.files.worker import BINARIES, Worker

# Bytes of a file; one that is larger is none that people have written.
LARGEST = 1 << 28

TEXTS: dict[str, Callable[[str], Iterator[Passage]]] = {
    **dict.fromkeys((".txt", ".md", ".markdown", ".rst"), paragraphs),
    **dict.fromkeys((".html", ".htm", ".xhtml"), page),
    **dict.fromkeys((".csv", ".tsv"), table),
    **dict.fromkeys((".jsonl", ".ndjson"), json_lines),
    ".json": json_values,
}
# Formats whose lines are read from compressed files as well.
LINES = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt")
ENDINGS = (*TEXTS, *BINARIES, *(f"{ending}.gz" for ending in LINES))


def ending_of(name: str) -> str | None:
    """Return the ending by which a file is read, ``None`` where none is known.

    Examples
    --------
    >>> ending_of("Prices.CSV.gz"), ending_of("logo.png")
    ('.csv.gz', None)
    """
    lowered = name.lower()
    suffixes = Path(lowered).suffixes
    for ending in ("".join(suffixes[-2:]), "".join(suffixes[-1:])):
        if ending in ENDINGS:
            return ending
    return None


def read_document(path: Path, worker: Worker, largest: int = LARGEST) -> tuple[list[Passage], str]:
    """Return the passages of a file, and the encoding of a text.

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
            msg = f"it has {size:,} bytes, expected at most {largest:,}; split it"
            raise UnreadError(msg)
        if ending in BINARIES:
            return worker.read(path), ""
        text, encoding = decoded(_bytes(path, ending, largest))
        return list(TEXTS[ending.removesuffix(".gz")](text)), encoding
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


_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# So many bytes tell the encoding of a file.
_SAMPLE = 1 << 18
# Without a mark of order, half of the bytes of UTF-16 in most scripts are zeros.
_ZEROS = 0.3
# A text holds fewer control characters than that.
_CONTROLS = 0.02


def decoded(data: bytes) -> tuple[str, str]:
    r"""Return the text of a file and the name of its encoding; ends of lines become ``\n``.

    Raises
    ------
    UnreadError
        If it is no text.

    Examples
    --------
    >>> decoded("déjà vu".encode("utf-16"))
    ('déjà vu', 'utf-16')
    """
    encoding = _encoding(data)
    try:
        text = data.decode(encoding, "strict" if encoding.startswith("utf") else "replace")
    except UnicodeError as error:
        msg = f"not the {encoding} that it begins as ({type(error).__name__})"
        raise UnreadError(msg) from None
    if sum(text.count(chr(code)) for code in range(9)) > _CONTROLS * len(text):
        msg = "binary data, not text"
        raise UnreadError(msg)
    return text.replace("\r\n", "\n").replace("\r", "\n"), encoding.removesuffix("-sig")


def _encoding(data: bytes) -> str:
    for bom, name in _BOMS:
        if data.startswith(bom):
            return name
    sample = data[:_SAMPLE]
    if b"\0" in sample:
        half = max(1, len(sample) // 2)
        for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
            if sample[first::2].count(0) > _ZEROS * half > 10 * sample[1 - first :: 2].count(0):
                return name
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return _guessed(sample)
    return "utf-8"


def _guessed(sample: bytes) -> str:
    try:
        from charset_normalizer import from_bytes  # noqa: PLC0415 - of an extra
    except ImportError:
        return "cp1252"  # of most files that are not UTF-8
    best = from_bytes(sample).best()
    if best is None:
        msg = "binary data, not text"
        raise UnreadError(msg)
    return str(best.encoding)
