"""Lazy attributes of packages: a module is imported when one of its names is used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, given the module of each name."""

    def get(name: str) -> Any:
        if name not in homes:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
