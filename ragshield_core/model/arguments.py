"""Checks that refuse an argument of a wrong type at once, before it fails somewhere else."""

from __future__ import annotations

from collections.abc import Sequence


def check_type(name: str, value: object, fits: type | Sequence[str], expected: str) -> None:
    """Refuse an argument of a wrong type; ``None`` always passes.

    It fits if it is an instance of a class, or an object with all the named methods. A class with
    these methods does not fit, only an instance of it.

    Examples
    --------
    >>> check_type("remove", print, ["__call__"], "a function")
    >>> check_type("remove", "all", ["__call__"], "a function")
    Traceback (most recent call last):
    ...
    TypeError: remove is a str, expected a function.
    """
    if isinstance(fits, type):
        fitting = isinstance(value, fits)
    else:
        fitting = not isinstance(value, type) and all(hasattr(value, method) for method in fits)
    if value is not None and not fitting:
        msg = f"{name} is {kind_of(value)}, expected {expected}."
        raise TypeError(msg)


def check_names(names: Sequence[str]) -> None:
    """Refuse an empty list of detectors, and two detectors with the same name."""
    if not names:
        msg = "detectors is empty, expected at least one; try [InstructionDetector()]."
        raise ValueError(msg)
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        msg = f"detector name {repeated!r} is duplicated; names must differ."
        raise ValueError(msg)


def kind_of(value: object) -> str:
    """Return the name of an object's type for an error message.

    >>> kind_of(7), kind_of(dict)
    ('a int', 'the class dict')
    """
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def expect_ids(ids: Sequence[str | None] | None) -> None:
    """Refuse a single str, whose characters would be taken for ids."""
    if isinstance(ids, str | bytes):
        msg = f"ids is of type {type(ids).__name__}, expected a list of ids: [{ids!r}]."
        raise TypeError(msg)
