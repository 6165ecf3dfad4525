"""Arrays in files that are whole or not there, so that work goes on from those that are."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import SourceError
from ragshield_core.state import replacing

# Where an array begins in its file: a multiple of a cache line, and of the size of any number.
ALIGNED = 64
# The length of the table of contents, in the last bytes of a file.
TAIL = 8


class Files:
    """A folder of named files, each of which holds named arrays of numbers.

    A file is written beside its place, flushed to the disk, and then put there, so that whoever
    finds it finds it whole; a task that runs twice writes the same file twice. Reading maps it:
    what is not looked at is not read, and nothing is unpickled.

    Parameters
    ----------
    folder
        Has to be the same for all who take part.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def write(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a file of arrays; its name has ``/`` between folder and file.

        Raises
        ------
        SourceError
            If the folder is not there: this machine does not see it.
        """
        if not self.folder.is_dir():
            msg = (
                f"{self.folder} is not there on this machine; name a --work-dir on storage that "
                "all machines that take part share."
            )
            raise SourceError(msg)
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            contents = {}
            for key, given in arrays.items():
                array = np.asarray(given, order="C")
                file.seek(-file.tell() % ALIGNED, os.SEEK_CUR)
                contents[key] = (array.dtype.str, array.shape, file.tell())
                file.write(array.tobytes() if array.dtype.kind == "U" else array.data)
            table = json.dumps(contents).encode()
            file.write(table + len(table).to_bytes(TAIL, "little"))
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays of a file, mapped; they are not to be written to.

        Raises
        ------
        SourceError
            If it is not there, or was changed by others.
        """
        path, arrays = self._path(name), {}
        try:
            data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
            size = int.from_bytes(data[-TAIL:].tobytes(), "little")
            contents = json.loads(data[-TAIL - size : -TAIL].tobytes())
            for key, (dtype, shape, start) in contents.items():
                stop = start + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
                arrays[key] = data[start:stop].view(dtype).reshape(shape)
        except (OSError, ValueError, TypeError, KeyError) as error:
            kind = type(error).__name__
            msg = (
                f"{path} cannot be read ({kind}); all machines that take part need the --work-dir, "
                "and nobody else may write there. Remove the folder to begin anew."
            )
            raise SourceError(msg) from error
        return arrays

    def remove(self, folder: str) -> None:
        """Remove all files of a folder, if there are any."""
        for path in (self.folder / folder).glob("*"):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.arrays"


@contextmanager
def work_folder(wanted: Path | None) -> Iterator[Path]:
    """Lend a folder for intermediate files; it is kept if what they are for does not end well."""
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="ragshield-") as temporary:
            yield Path(temporary) / "partitions"
        return
    folder = wanted.absolute() / "partitions"
    yield folder
    shutil.rmtree(folder)


def joined(parts: Sequence[NDArray[Any]], dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return arrays of different lengths as one, and where each of them ends."""
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    return np.concatenate([np.empty(0, dtype=dtype), *parts]), np.cumsum(lengths)


def divided(flat: NDArray[Any], ends: NDArray[np.int64], rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Return some of the arrays that were :func:`joined`."""
    starts = np.where(rows > 0, ends[rows - 1], 0) if len(rows) else rows
    return [flat[a:b] for a, b in zip(starts.tolist(), ends[rows].tolist(), strict=True)]
