"""A file of JSON objects, one a line, compressed or not."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import IO, Any

from ragshield_core.errors import SourceError
from ragshield_core.tools.audit.readers.source import RecordReader, Rows, Source, reading

# A vector as a list of Python floats takes eight times the room: 1,024 of them as much as above.
JSON_ROWS = 1_024


class JsonLines(Source):
    """One JSON object per line, gzip-compressed if the name ends in ``.gz``."""

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        with reading(self.path), self._open() as file:
            return sum(1 for line in file if line.strip())

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; blank lines are ignored."""
        reader = RecordReader(self)
        with reading(self.path), self._open() as file:
            records: list[tuple[str, Mapping[str, Any]]] = []
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                records.append((f"line {number}", self._parse(line, number)))
                if len(records) == JSON_ROWS:
                    yield reader.rows(records)
                    records = []
            if records:
                yield reader.rows(records)
        reader.check_columns()

    def _open(self) -> IO[bytes] | gzip.GzipFile:
        if self.path.suffix == ".gz":
            return gzip.open(self.path, "rb")
        return self.path.open("rb")

    def _parse(self, line: bytes, number: int) -> Mapping[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            # The parser's own message would quote hostile text.
            msg = f"{self.path}, line {number}: not valid JSON ({type(error).__name__}), expected "
            raise SourceError(msg + "one JSON object per line.") from None
        if not isinstance(value, dict):
            msg = f"{self.path}, line {number}: a JSON {type(value).__name__}, expected an object "
            raise SourceError(msg + 'such as {"id": "1", "text": "..."}.')
        return value
