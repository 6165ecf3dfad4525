"""Objects of the user's own code that a command or a setting names: ``module:object``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ragshield_core.model.errors import ConfigurationError


def named_object(name: str) -> Any:
    """Return what ``module:object`` names; a function without parameters is called for it.

    Raises
    ------
    ConfigurationError
        If there is no such module, or nothing of that name in it.
    """
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"{name!r} cannot be imported ({error}); expected module:object."
        raise ConfigurationError(msg) from error
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        return found()
    return found


@contextmanager
def modules_here() -> Iterator[None]:
    """Let modules of the working directory be found, also those that are imported when asked."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
