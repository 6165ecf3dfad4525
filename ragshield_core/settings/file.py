"""The file of settings and the variables beside it, as they are written: nothing is checked yet."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from ragshield_core.model.errors import ConfigurationError
from ragshield_core.model.printing import printable

FILE = "ragshield.toml"
PREFIX, BELOW = "RAGSHIELD_", "__"
FILE_VARIABLE = f"{PREFIX}CONFIG"
# Never in the file: it would lie beside the database whose log the keys protect.
SECRETS = (f"{PREFIX}AUDIT_KEY", f"{PREFIX}NEW_AUDIT_KEY", f"{PREFIX}WEBHOOK_SECRET")
# Known variables that are no settings: the file's name, and places for tests and benchmarks.
OTHERS = (FILE_VARIABLE, f"{PREFIX}DATA", f"{PREFIX}TEST_POSTGRES")


def written(path: str | Path | None = None) -> dict[str, Any]:
    """Return the values in the file and in variables, by the names of settings.

    Raises
    ------
    ConfigurationError
        If a named file is missing or no TOML.
    """
    file = file_of(path)
    of_file = {} if file is None else parsed(file)
    settings = {name.upper(): value for name, value in os.environ.items()}
    return of_file | {
        name.removeprefix(PREFIX).lower(): value
        for name, value in settings.items()
        if name.startswith(PREFIX) and name not in (*OTHERS, *SECRETS)
    }


def file_of(path: str | Path | None = None) -> Path | None:
    """Return the file of the settings, if there is one.

    Raises
    ------
    ConfigurationError
        If a named file does not exist.
    """
    chosen = path if path is not None else os.environ.get(FILE_VARIABLE)
    if not chosen:
        return Path(FILE) if Path(FILE).is_file() else None
    if not Path(chosen).is_file():
        by = "" if path is not None else f", which {FILE_VARIABLE} names,"
        msg = f"the file {named(str(chosen))}{by} is not there; make it, or name another."
        raise ConfigurationError(msg)
    return Path(chosen)


def parsed(file: Path) -> dict[str, Any]:
    """Return the values of a file, as they stand in it."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        where = f" ({error})" if isinstance(error, tomllib.TOMLDecodeError) else ""
        msg = f"{file} cannot be read as TOML{where}; see docs/configuration.md for its keys."
        raise ConfigurationError(msg) from None


def named(name: str) -> str:
    """Return a name for a message."""
    return repr(printable(name, 100))
