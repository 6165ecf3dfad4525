"""A saved guard on disk: JSON for values, npz for arrays, checksums over both, never pickle."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import StateError

FORMAT = 1
MANIFEST = "ragshield.json"

# Errors that damaged files raise when read; RecursionError comes from deeply nested JSON.
_DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError),
    *(EOFError, RecursionError, OverflowError, MemoryError, zipfile.BadZipFile),
)


def write(folder: Path, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a state into ``folder``, replacing an older one in one step.

    The arrays go into a file named after their checksum. The manifest, which names that file and
    has a checksum of itself, is written last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{k: _plain(array) for k, array in arrays.items()})
    data = buffer.getvalue()
    checksum = hashlib.sha256(data).hexdigest()
    name = f"arrays-{checksum[:16]}.npz"
    manifest = {
        "format": FORMAT,
        "values": dict(values),
        "arrays": {"file": name, "sha256": checksum},
    }
    manifest["sha256"] = _checksum(manifest)
    replace_file(folder / name, data)
    # Texts of a clean sample may contain lone surrogates.
    text = json.dumps(manifest, ensure_ascii=False)
    replace_file(folder / MANIFEST, text.encode("utf-8", "surrogatepass"))
    for old in folder.glob("arrays-*.npz"):
        if old.name != name:
            old.unlink(missing_ok=True)


@contextmanager
def opened(folder: Path) -> Iterator[tuple[dict[str, Any], Mapping[str, NDArray[Any]]]]:
    """Yield the values and arrays that :func:`write` wrote; each array is read on access.

    The saved arrays and the guard built from them are thus never in memory together as a whole.
    Errors within the context that come from damage are raised as :class:`StateError`.

    Raises
    ------
    StateError
        If a file is missing, does not match its checksum, or is of another format.
    """
    path = folder / MANIFEST
    if not path.is_file():
        msg = f"{path} does not exist, expected the folder that Guard.save wrote."
        raise StateError(msg)
    with reading(folder):
        manifest = json.loads(path.read_bytes())
        if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
            msg = f"{path} is not a saved guard; restore it from a backup or fit the guard again."
            raise StateError(msg)
        check_format(manifest["format"], FORMAT, path)
        recorded = manifest.pop("sha256", None)
        if recorded != _checksum(manifest):
            _raise_tampered(path)
        name = folder / Path(manifest["arrays"]["file"]).name
        with name.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest["arrays"]["sha256"]:
                _raise_tampered(name)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                yield manifest["values"], arrays


def check_format(found: int, expected: int, what: object) -> None:
    """Refuse data in the format of another version of RAGShield."""
    if found != expected:
        msg = (
            f"{what} is of format {found}, this version of RAGShield reads only format {expected}; "
            "use the version of RAGShield that wrote it."
        )
        raise StateError(msg)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn errors from a damaged state into a :class:`StateError`."""
    try:
        yield
    except StateError:
        raise
    except _DAMAGE as error:
        msg = (
            f"the saved guard in {folder} cannot be read ({type(error).__name__}: {error}); "
            "restore it from a backup or fit the guard again."
        )
        raise StateError(msg) from error


def give_back() -> None:
    """Return freed memory from the C library to the system, if the library can.

    Freed arrays of less than 32 MiB, such as a guard's, can keep as much memory again in glibc's
    heap: 730 bytes an entry for a guard of 40,000 entries opened from a database.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def part_of(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Mapping[str, NDArray[Any]]:
    """Return the arrays with this prefix, under the rest of their names, without reading them."""
    return _Part(arrays, prefix)


class _Part(Mapping[str, NDArray[Any]]):
    """Some of the arrays of another mapping."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        self._arrays, self._prefix = arrays, prefix
        self._names = [key.removeprefix(prefix) for key in arrays if key.startswith(prefix)]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[self._prefix + name]

    def __contains__(self, name: object) -> bool:
        return name in self._names  # the default implementation would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.hasobject:
        msg = (
            f"a detector's state holds an array of dtype {array.dtype}, expected numbers: objects "
            "would have to be pickled. Put them into the JSON-ready values of Detector.state."
        )
        raise TypeError(msg)
    return array


def _checksum(manifest: Mapping[str, Any]) -> str:
    canonical = json.dumps(manifest, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _raise_tampered(path: Path) -> None:
    msg = (
        f"{path} does not match its checksum: it was damaged or changed by hand; restore it from a "
        "backup or fit the guard again."
    )
    raise StateError(msg)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves either the old or the new file."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces ``path`` once it is complete and on disk."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
