"""Digests over rows and lines: a changed one is found, and with a key, a forged one as well."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from ragshield_core.database import TableBase, table_of
from ragshield_core.database.tables import UNSEALED, LogRow
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable

KEY_VARIABLE = "RAGSHIELD_AUDIT_KEY"
NEW_KEY_VARIABLE = "RAGSHIELD_NEW_AUDIT_KEY"
# Bytes of a key: shorter ones can be guessed.
SHORTEST_KEY = 16


class Digests:
    """Makes digests, with a key or without.

    Without one, who may write to the database can make them as well: they show accidents, and
    changes by who does not know of them.

    Parameters
    ----------
    key
        A secret that whoever may write to the database does not have.
    """

    def __init__(self, key: str | bytes | None = None) -> None:
        self._key = key.encode() if isinstance(key, str) else key
        if self._key is not None and len(self._key) < SHORTEST_KEY:
            msg = (
                f"the audit key is of {len(self._key)} bytes, expected {SHORTEST_KEY} or more, "
                f"drawn at random: openssl rand -hex 32; see {KEY_VARIABLE}."
            )
            raise QuarantineError(msg)
        # Says with which key a line was written, and nothing of the key.
        self.key_name = None if self._key is None else self._digest([b"the name of the key"])[:16]

    def become(self, other: Digests) -> None:
        """Take over the key of others: whoever has these digests uses it from now on."""
        self._key, self.key_name = other._key, other.key_name

    def of(self, kind: type[TableBase], row: TableBase | Mapping[Any, Any]) -> str:
        """Return the digest of a row, over all of its columns that decide."""
        return self._digest(_in_bytes(kind, row))

    def match(self, kind: type[TableBase], row: TableBase | Mapping[Any, Any]) -> bool:
        """Return whether a row has the digest that :meth:`of` makes."""
        found = row["digest"] if isinstance(row, Mapping) else getattr(row, "digest", None)
        return bool(found == self.of(kind, row))

    def of_line(self, line: LogRow | Mapping[Any, Any], before: str) -> str:
        """Return the digest of a line of the log, chained to that of the line before."""
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
    """Return the columns of a table that the digests of its rows cover."""
    columns = table_of(kind).columns
    return tuple(one.name for one in columns if one.name != "digest" and UNSEALED not in one.info)


def _in_bytes(kind: type[TableBase], row: TableBase | Mapping[Any, Any]) -> Iterator[bytes]:
    """Yield a row as bytes that no other row of any table has, each value behind its length."""
    yield f"{kind.__tablename__}\n".encode()
    for name in sealed_columns(kind):
        value = row[name] if isinstance(row, Mapping) else getattr(row, name)
        if value is None:
            yield f"{name}\n".encode()
            continue
        if isinstance(value, float):
            value += 0.0  # SQLite keeps no sign of a zero
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        yield f"{name} {len(data)}\n".encode()
        yield data


def check_key(what: str, key_name: str | None, digests: Digests) -> None:
    """Refuse to go on with what is kept with another key, or without one.

    Raises
    ------
    QuarantineError
        Says which key is expected.
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
    """Return the key, or else that of the environment, if there is one."""
    return key if key is not None else os.environ.get(KEY_VARIABLE) or None


PLAIN = Digests()
