"""A file of JSON objects, one a line, compressed or not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.source import RecordReader, Rows, Source, reading

# A vector as a list of Python floats takes eight times the room: 1,024 of them as much as above.
JSON_ROWS = 1_024


class JsonLines(Source):
    """One JSON object per line, gzip-compressed if the name ends in ``.gz``."""

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        with reading(self.path), _opened(self.path) as file:
            return sum(1 for line in file if line.strip())

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; blank lines are ignored."""
        reader = RecordReader(self)
        lines = objects(self.path)
        while records := [(f"line {number}", row) for number, row in islice(lines, JSON_ROWS)]:
            yield reader.rows(records)
        reader.check_columns()


def objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the objects of a file, with the numbers of their lines; blank lines are ignored.

    Raises
    ------
    SourceError
        If the file cannot be read, or a line is no object; names the line.
    """
    with reading(path), _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _parsed(line, f"{path}, line {number}")


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _parsed(line: bytes, place: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        # The parser's own message would quote hostile text.
        msg = (
            f"{place}: not valid JSON ({type(error).__name__}), expected one JSON object per line."
        )
        raise SourceError(msg) from None
    if not isinstance(value, dict):
        msg = f"{place}: a JSON {type(value).__name__}, expected an object "
        raise SourceError(msg + 'such as {"id": "1", "text": "..."}.')
    return value
