"""Passages of one file of any format and encoding; reads text, JSON and tables itself."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from ragshield_core.files.pages import page
from ragshield_core.files.passages import FilePassage, UnreadError, paragraphs
from ragshield_core.files.worker import BINARIES, Worker

# Most bytes of a file; people do not write larger ones.
LARGEST = 1 << 28
_DELIMITERS = ",;\t|"
# Most characters of one field; csv allows 131,072 by default.
_LONGEST_FIELD = 1 << 24


def json_values(text: str) -> Iterator[FilePassage]:
    """Yield the texts of a JSON file, one passage per record."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"not JSON ({type(error).__name__})"
        raise UnreadError(msg) from None
    yield from _records(enumerate(value if isinstance(value, list) else [value], 1), "record")


def json_lines(text: str) -> Iterator[FilePassage]:
    """Yield the texts of JSON Lines, one passage per line."""

    def values() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:
                    msg = f"line {number} is not JSON ({type(error).__name__})"
                    raise UnreadError(msg) from None

    yield from _records(values(), "line")


def table(text: str) -> Iterator[FilePassage]:
    """Yield the rows of a table, each value after the name of its column."""
    usual = csv.field_size_limit(_LONGEST_FIELD)  # a setting of the whole process
    head = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=head.count)
    rows = csv.reader(StringIO(text), delimiter=delimiter)
    names: list[str] | None = None
    line = 1
    try:
        for row in rows:
            if names is None:
                names = row
                if len(row) == 1:  # a list of texts without a head
                    yield from _passage("", row, line)
            else:
                yield from _passage("", _named(names, row), line)
            line = rows.line_num + 1
    except csv.Error:
        msg = f"no table from line {line} on"
        raise UnreadError(msg) from None
    finally:
        csv.field_size_limit(usual)
    if names is not None and len(names) > 1 and line == 2:  # noqa: PLR2004 - a heading alone
        yield from _passage("", names, 1)


def _passage(lead: str, lines: Iterable[str], number: int) -> Iterator[FilePassage]:
    if said := (lead + "\n".join(line for line in lines if line.strip())).strip():
        yield FilePassage(said, "line", number)


def _named(names: list[str], row: list[str]) -> Iterator[str]:
    for at, value in enumerate(row):
        if value.strip():
            yield f"{names[at]}: {value}" if at < len(names) and len(names) > 1 else value


def _records(values: Iterable[tuple[int, Any]], unit: str) -> Iterator[FilePassage]:
    for number, value in values:
        try:
            said = "\n".join(_said(value, ""))
        except RecursionError:
            msg = f"{unit} {number} is nested too deeply"
            raise UnreadError(msg) from None
        if said.strip():
            yield FilePassage(said, unit, number)


def _said(value: Any, name: str) -> Iterator[str]:
    """Yield the texts and numbers of a value, each after its name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _said(inner, key)
    elif isinstance(value, list):
        if value and all(isinstance(one, int | float) for one in value):
            return  # a vector
        for inner in value:
            yield from _said(inner, name)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value).encode("utf-8", "replace").decode()
        yield f"{name}: {text}" if name and len(name) <= len(text) else text


TEXTS: dict[str, Callable[[str], Iterator[FilePassage]]] = {
    **dict.fromkeys((".txt", ".md", ".markdown", ".rst"), paragraphs),
    **dict.fromkeys((".html", ".htm", ".xhtml"), page),
    **dict.fromkeys((".csv", ".tsv"), table),
    **dict.fromkeys((".jsonl", ".ndjson"), json_lines),
    ".json": json_values,
}
# Formats of lines, which are read from compressed files as well.
LINES = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt")
ENDINGS = (*TEXTS, *BINARIES, *(f"{ending}.gz" for ending in LINES))


def ending_of(name: str) -> str | None:
    """Return the ending that selects the reader of a file, ``None`` if no reader fits.

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


def read_document(
    path: Path, worker: Worker, largest: int = LARGEST
) -> tuple[list[FilePassage], str]:
    """Return the passages of a file, and its encoding if it is a text.

    Raises
    ------
    UnreadError
        If the file cannot be read; the message says why, without content of the file.
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
    (codecs.BOM_UTF32_LE, "utf-32"),  # starts with that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Bytes from which the encoding of a file is guessed.
_SAMPLE = 1 << 18
# Least share of zeros in UTF-16 without a byte order mark: in most scripts, every other byte is 0.
_ZEROS = 0.3
# Largest share of control characters in a text.
_CONTROLS = 0.02


def decoded(data: bytes) -> tuple[str, str]:
    r"""Return the text of a file and the name of its encoding; line ends become ``\n``.

    Raises
    ------
    UnreadError
        If the data are not text.

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
        from charset_normalizer import from_bytes  # noqa: PLC0415 - an optional extra
    except ImportError:
        return "cp1252"  # the encoding of most files that are not UTF-8
    best = from_bytes(sample).best()
    if best is None:
        msg = "binary data, not text"
        raise UnreadError(msg)
    return str(best.encoding)
