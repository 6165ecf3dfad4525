"""NumPy arrays in one file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.source import (
    CHUNK_ROWS,
    USUAL,
    RecordReader,
    Rows,
    Source,
    first_of,
    raise_for_column,
    reading,
)


class Npz(Source):
    """Arrays ``ids`` and ``embeddings``, and if they are there ``texts``, ``labels``, ``lineages``.

    They are never unpickled.
    """

    def __len__(self) -> int:
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            return len(self._array(archive, self._names(archive)["id"]))

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order."""
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            names = self._names(archive)
            columns = {role: self._array(archive, name) for role, name in names.items()}
        self._check(columns, names)
        matrix, reader = columns.pop("embedding", None), RecordReader(self)
        for start in range(0, len(columns["id"]), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            values = {names[role]: column[part].tolist() for role, column in columns.items()}
            records = [
                (f"row {start + row}", dict(zip(values, record, strict=True)))
                for row, record in enumerate(zip(*values.values(), strict=True))
            ]
            yield reader.rows(records, None if matrix is None else matrix[part].astype(np.float32))

    def _names(self, archive: zipfile.ZipFile) -> dict[str, str]:
        """Return the names of the arrays that are columns."""
        there = [name.removesuffix(".npy") for name in archive.namelist()]
        names = {}
        for role in USUAL:
            name = first_of(self.columns.names(role), there)
            if name is not None:
                names[role] = name
            elif getattr(self.columns, role):
                raise_for_column(self.path, role, getattr(self.columns, role), there)
        if "id" not in names or not names.keys() & {"text", "embedding"}:
            msg = (
                f"{self.path} holds the arrays {there}, expected ids and embeddings (or texts, to "
                "be embedded); say what they are called with --id-column and --embedding-column."
            )
            raise SourceError(msg)
        return names

    def _array(self, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
        with archive.open(f"{name}.npy") as file:
            try:
                array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            except ValueError as error:  # whose message may quote the file
                msg = (
                    f"{self.path}: the array {name} is cut short, or holds Python objects, which "
                    "only unpickling could read; save it as strings or numbers: "
                    "np.asarray(values, dtype=str)."
                )
                raise SourceError(msg) from error
        return np.atleast_1d(array)

    def _check(self, columns: dict[str, NDArray[Any]], names: dict[str, str]) -> None:
        """Refuse what is not a column of the right length."""
        n = len(columns["id"])
        for role, column in columns.items():
            where, vectors = f"{self.path}: the array {names[role]}", role == "embedding"
            if column.ndim != 1 + vectors or len(column) != n:
                wanted = f"({n}, dim)" if vectors else f"({n},)"
                msg = f"{where} has shape {column.shape}, expected {wanted}: one row per id."
                raise SourceError(msg)
            if vectors and column.dtype.kind != "f":
                msg = f"{where} is of dtype {column.dtype}, expected floats."
                raise SourceError(msg)
