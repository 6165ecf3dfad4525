"""Names of databases: URLs, and paths of SQLite files."""

from __future__ import annotations

import re

DEFAULT_URL = "sqlite:///ragshield.db"

# Matches the path of a file: it has no scheme and no password, but perhaps the letter of a drive.
_PATH = re.compile(r"([A-Za-z]:[\\/])?[^:@]+")


def database_url(named: str) -> str:
    """Return the URL of a database, given its URL or the path of an SQLite file.

    Examples
    --------
    >>> database_url("held/guard.db"), database_url("sqlite://")
    ('sqlite:///held/guard.db', 'sqlite://')
    """
    return f"sqlite:///{named}" if _PATH.fullmatch(named) else named
