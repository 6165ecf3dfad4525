"""Digests over rows and lines: a changed one is found, and with a key, a forged one as well."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from typing import Any

from ragshield_core.database import TableBase, table_of
from ragshield_core.database.tables import HeldRow, LogRow, RuleRow
from ragshield_core.model.errors import QuarantineError

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
        self.key_name = None if self._key is None else self._digest("the name of the key")[:16]

    def of_row(self, row: TableBase | Mapping[Any, Any]) -> str:
        """Return the digest of a row: over each of its columns, but for the digest itself."""
        if isinstance(row, TableBase):
            row = {name: getattr(row, name) for name in table_of(type(row)).columns.keys()}  # noqa: SIM118
        return self._digest(
            {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in row.items()
                if name != "digest" and value is not None
            }
        )

    def matches(self, row: HeldRow | RuleRow) -> bool:
        """Return whether a row is as it was written."""
        return row.digest == self.of_row(row)

    def of_line(self, line: LogRow | Mapping[str, Any], before: str) -> str:
        """Return the digest of a line of the log, chained to that of the line before."""
        if isinstance(line, LogRow):
            line = {name: getattr(line, name) for name in table_of(LogRow).columns.keys()}  # noqa: SIM118
        return self._digest([before, self.of_row(line)])

    def _digest(self, content: Any) -> str:
        data = json.dumps(content, sort_keys=True).encode()
        if self._key is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()


def given_key(key: str | bytes | None) -> str | bytes | None:
    """Return the key, or else that of the environment, if there is one."""
    return key if key is not None else os.environ.get(KEY_VARIABLE) or None


PLAIN = Digests()
