"""Objects of the user's code, by the name ``module:object`` in a command or a setting."""

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
    """Return the object of a ``module:object`` name; call a function without parameters for it.

    Raises
    ------
    ConfigurationError
        If there is no such module, or no such object in it.
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
    """Put the working directory on the path of modules, for late imports as well."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
