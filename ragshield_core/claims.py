"""What metadata claims about an entry: its label, and what it was cut from."""

from __future__ import annotations

import math
from pathlib import PurePath

import numpy as np

from ragshield_core.errors import InvalidBatchError


def claim_of(key: str, entry_id: str, value: object) -> str | None:
    """Return a label or lineage as a str, or None where there is none.

    Parameters
    ----------
    key, entry_id
        Where the value stands, for the message.
    value
        A str, a number, a boolean or a path; None, or NaN, for nothing.

    Raises
    ------
    InvalidBatchError
        If it is something else; names the entry.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None  # how data frames say that there is none
    if isinstance(value, bool | int | float | np.generic | PurePath):
        return str(value)
    msg = (
        f"metadata[{key!r}] of entry {entry_id!r} is of type {type(value).__name__}, expected "
        "a str, a number or nothing; store one scalar under that key, or name another key."
    )
    raise InvalidBatchError(msg)
