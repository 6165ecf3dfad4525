"""Arrays on the way between tasks, in files that all of them see."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import SourceError


class Arrays(Mapping[str, NDArray[Any]]):
    """The arrays of a folder, by name: mapped, so that only what is looked at is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> NDArray[Any]:
        path = self._folder / f"{name}.npy"
        try:
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError) as error:
            msg = (
                f"{path} cannot be read ({type(error).__name__}); all machines that take part need "
                "the --work-dir, and nobody else may write there."
            )
            raise SourceError(msg) from error

    def __iter__(self) -> Iterator[str]:
        return (path.name.removesuffix(".npy") for path in self._folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Files:
    """Named groups of arrays in a folder; a task that runs twice writes the same twice.

    Parameters
    ----------
    folder
        Has to be the same for all who take part.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays of numbers.

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
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        for key, array in arrays.items():
            np.save(self.folder / name / f"{key}.npy", array, allow_pickle=False)

    def read(self, name: str) -> Arrays:
        """Return what was written; it is not to be written to."""
        return Arrays(self.folder / name)

    def remove(self, name: str) -> None:
        """Remove all that was written under that name."""
        shutil.rmtree(self.folder / name, ignore_errors=True)


def joined(parts: Sequence[NDArray[Any]], dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return arrays of different lengths as one, and where each of them ends."""
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    return np.concatenate([np.empty(0, dtype=dtype), *parts]), np.cumsum(lengths)


def divided(flat: NDArray[Any], ends: NDArray[np.int64], rows: NDArray[Any]) -> list[NDArray[Any]]:
    """Return some of the arrays that were :func:`joined`."""
    starts = np.where(rows > 0, ends[rows - 1], 0) if len(rows) else rows
    return [flat[a:b] for a, b in zip(starts.tolist(), ends[rows].tolist(), strict=True)]
