"""Rows of a Milvus collection by their ids, for both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragshield_core.store.inner import chunks

# Rows a request: a server takes 64 MB, and a row has a text of up to 64 kB and a vector.
AT_ONCE = 500
# Rows a page of ids: a server returns no more at once.
PAGE = 16_384
LONGEST = 65_535  # bytes of a text or an id
# Names that Milvus and Milvus Lite use themselves: a value under one of them would be lost.
RESERVED = frozenset({"$meta", "_seq", "_partition"})
# Milvus reads escapes of C within double quotes; a line must not end there.
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})


@dataclass(frozen=True)
class MilvusRows:
    """Rows of a collection, which need not exist yet."""

    client: Any
    collection: str
    key: str

    def there(self) -> bool:
        """Return whether the collection exists."""
        return bool(self.client.has_collection(self.collection))

    def read(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows under the ids, with all fields."""
        parts = chunks(list(dict.fromkeys(ids)), AT_ONCE) if self.there() else ()
        return [dict(row) for part in parts for row in self._ask(self._among(part), ["*"])]

    def put(self, rows: Sequence[dict[str, Any]], **options: Any) -> None:
        """Insert or replace rows, in parts; ``options`` are those of the client's ``upsert``."""
        for part in chunks(rows, AT_ONCE):
            self.client.upsert(self.collection, part, **options)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete the rows under the ids."""
        for part in chunks(ids, AT_ONCE) if self.there() else ():
            self.client.delete(self.collection, filter=self._among(part))

    def ids(self, condition: str = "") -> list[str]:
        """Return all ids, or those of rows that fulfil a condition."""
        if not self.there():
            return []
        found = self._ask(condition, [self.key], limit=PAGE)
        if len(found) < PAGE:
            return [row[self.key] for row in found]
        pages = self.client.query_iterator(
            self.collection,
            filter=condition,
            batch_size=PAGE,
            output_fields=[self.key],
            consistency_level="Strong",
        )
        names: list[str] = []
        while page := pages.next():
            names += [row[self.key] for row in page]
        pages.close()
        return names

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._ask("", ["count(*)"])[0]["count(*)"]) if self.there() else 0

    def _ask(self, condition: str, fields: list[str], **options: Any) -> Any:
        return self.client.query(
            self.collection,
            filter=condition,
            output_fields=fields,
            consistency_level="Strong",
            **options,
        )

    def _among(self, ids: Sequence[str]) -> str:
        """Return a condition on ids; Milvus Lite knows no parameters, so they are escaped."""
        return f"{self.key} in [{', '.join(map(literal, ids))}]"


def literal(text: str) -> str:
    """Return a text as a literal of Milvus's filters, which nothing in it can end."""
    return f'"{text.translate(ESCAPES)}"'
