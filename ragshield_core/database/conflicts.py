"""Errors that say that another transaction was in the way, and how long to wait for it."""

from __future__ import annotations

import random

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm.exc import StaleDataError

# Serialization failure, deadlock, lock not available, unique violation.
SQL_STATES = frozenset({"40001", "40P01", "55P03", "23505"})
# SQLite, extended codes cut to their first byte: busy, locked.
SQLITE_CODES = frozenset({5, 6})
SQLITE_UNIQUE = frozenset({"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY"})
# MySQL and its kin: lock wait timeout, deadlock, duplicate key.
MYSQL_CODES = frozenset({1205, 1213, 1062})

# Seconds before the second try, doubled before each further one, and at most.
FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0


def is_conflict(error: BaseException) -> bool:
    """Return whether the same transaction may well succeed if it is tried again."""
    if isinstance(error, StaleDataError):
        return True
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False  # whether a lost connection has committed is not known
    original = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if state is not None:
        return state in SQL_STATES
    name = getattr(original, "sqlite_errorname", None)
    if name is not None:
        code = getattr(original, "sqlite_errorcode", 0)
        return code & 0xFF in SQLITE_CODES or name in SQLITE_UNIQUE
    code = next(iter(getattr(original, "args", ())), None)
    return code in MYSQL_CODES or isinstance(error, IntegrityError)


def wait_before(tries: int) -> float:
    """Return for how many seconds to wait after so many tries, at random: others wait as well."""
    longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (tries - 1))
    return random.uniform(longest / 2, longest)  # noqa: S311 - no secret
