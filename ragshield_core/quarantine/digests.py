"""Digests over rows and log lines, which reveal changes and, with a key, forgeries."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from sqlalchemy import LargeBinary

from ragshield_core.database import TableBase, table_of
from ragshield_core.database.tables import UNSEALED, LogRow
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable

KEY_VARIABLE = "RAGSHIELD_AUDIT_KEY"
NEW_KEY_VARIABLE = "RAGSHIELD_NEW_AUDIT_KEY"
# Bytes of a key; shorter keys can be guessed.
SHORTEST_KEY = 16


class Digests:
    """Computes digests, with a key or without.

    Without a key, any writer of the database can compute them as well: they reveal accidents, and
    changes by people who do not know of the digests.

    Parameters
    ----------
    key
        A secret that the database's writers do not have.
    """

    def __init__(self, key: str | bytes | None = None) -> None:
        self._key = key.encode() if isinstance(key, str) else key
        if self._key is not None and len(self._key) < SHORTEST_KEY:
            msg = (
                f"the audit key is of {len(self._key)} bytes, expected {SHORTEST_KEY} or more, "
                f"drawn at random: openssl rand -hex 32; see {KEY_VARIABLE}."
            )
            raise QuarantineError(msg)
        # Identifies the key with which a line was written, without revealing it.
        self.key_name = None if self._key is None else self._digest([b"the name of the key"])[:16]

    def become(self, other: Digests) -> None:
        """Adopt the key of other digests; all users of this object use it from now on."""
        self._key, self.key_name = other._key, other.key_name

    def of(self, kind: type[TableBase], row: TableBase | Mapping[Any, Any]) -> str:
        """Return the digest of a row, over its sealed columns."""
        return self._digest(_in_bytes(kind, row))

    def match(self, kind: type[TableBase], row: TableBase | Mapping[Any, Any]) -> bool:
        """Return whether a row has the digest that :meth:`of` computes."""
        found = row["digest"] if isinstance(row, Mapping) else getattr(row, "digest", None)
        return bool(found == self.of(kind, row))

    def of_line(self, line: LogRow | Mapping[Any, Any], before: str) -> str:
        """Return the digest of a log line, chained to that of the previous line."""
        return self._digest([before.encode(), *_in_bytes(LogRow, line)])

    def _digest(self, parts: Iterable[bytes]) -> str:
        whole: Any = hashlib.sha256()
        if self._key is not None:
            whole = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            whole.update(part)
        return str(whole.hexdigest())


@cache
def sealed_columns(kind: type[TableBase]) -> tuple[str, ...]:
    """Return the columns of a table that its rows' digests cover."""
    columns = table_of(kind).columns
    return tuple(one.name for one in columns if one.name != "digest" and UNSEALED not in one.info)


@cache
def _binary_columns(kind: type[TableBase]) -> frozenset[str]:
    """Return the columns of a table that hold bytes."""
    columns = table_of(kind).columns
    return frozenset(one.name for one in columns if isinstance(one.type, LargeBinary))


def _in_bytes(kind: type[TableBase], row: TableBase | Mapping[Any, Any]) -> Iterator[bytes]:
    """Yield a row as bytes unique among all rows and tables, each value after its length."""
    yield f"{kind.__tablename__}\n".encode()
    binary = _binary_columns(kind)
    for name in sealed_columns(kind):
        value = row[name] if isinstance(row, Mapping) else getattr(row, name)
        if value is None:
            yield f"{name}\n".encode()
            continue
        if isinstance(value, float):
            value += 0.0  # SQLite drops the sign of zero
        # SQLite stores bytes in columns of text, where no query finds them: they are not the text.
        if isinstance(value, bytes) is not (name in binary):
            value = repr(value)
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        yield f"{name} {len(data)}\n".encode()
        yield data


def check_key(what: str, key_name: str | None, digests: Digests) -> None:
    """Check that a log or journal was written with the given key.

    Raises
    ------
    QuarantineError
        If it was written with another key or without one; names the expected key.
    """
    if key_name == digests.key_name:
        return
    if key_name is not None:
        mine = "none is given" if digests.key_name is None else f"{digests.key_name!r} is given"
        msg = (
            f"{what} is kept with the key {printable(key_name, 16)!r}, and {mine}: set "
            f"{KEY_VARIABLE}. Nothing was written."
        )
    else:
        msg = (
            f"{what} was written without the key that is given now; if the key is new, run "
            "`ragshield quarantine seal` once, otherwise somebody has replaced it. Nothing was "
            "written."
        )
    raise QuarantineError(msg)


def given_key(key: str | bytes | None) -> str | bytes | None:
    """Return the key, or else that of the environment, if any."""
    return key if key is not None else os.environ.get(KEY_VARIABLE) or None


PLAIN = Digests()
