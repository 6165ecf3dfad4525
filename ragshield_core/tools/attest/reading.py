"""Files from elsewhere as checked values: of bounded size, nothing twice, nothing executed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ragshield_core.model.errors import AttestationError

# Bytes: a statement names every file, and some 200,000 fit in.
LARGEST = 1 << 26
# Faults that a message names.
NAMED = 3

M = TypeVar("M", bound=BaseModel)


def bytes_of(path: Path, largest: int = LARGEST) -> bytes:
    """Return what a file holds.

    Raises
    ------
    AttestationError
        If it cannot be read, or holds more than ``largest`` bytes.
    """
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        msg = f"{path} cannot be read ({error.strerror or type(error).__name__}); check its name."
        raise AttestationError(msg) from None
    if len(data) > largest:
        msg = f"{path} has more than {largest:,} bytes, expected no more; name the right file."
        raise AttestationError(msg)
    return data


def parsed(data: bytes, model: type[M], *, where: str, way_out: str) -> M:
    """Return JSON as a value of that model; messages quote nothing of it.

    Parameters
    ----------
    data
        UTF-8.
    model
        What is expected.
    where, way_out
        For errors: where the data is from, and what to do.

    Raises
    ------
    AttestationError
        If it is no JSON, holds a name twice in one object, or is not as the model has it.
    """
    try:
        values = json.loads(
            data.decode("utf-8"), object_pairs_hook=_each_once, parse_constant=_no_number
        )
        return model.model_validate(values)
    except ValidationError as error:
        faults = [f"{_place(one['loc'])}: {one['type']}" for one in error.errors()[:NAMED]]
        msg = f"{where} is not as expected ({'; '.join(faults)}); {way_out}"
    except (ValueError, RecursionError) as error:  # of Unicode, of JSON, of nesting
        msg = f"{where} is no JSON that can be read ({type(error).__name__}); {way_out}"
    raise AttestationError(msg)


def _place(steps: Sequence[int | str]) -> str:
    return ".".join(map(str, steps)) or "the whole"


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice: readers differ in which of both they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        msg = "a name twice"
        raise ValueError(msg)
    return found


def _no_number(constant: str) -> Any:
    raise ValueError(constant)
