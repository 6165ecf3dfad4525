"""NumPy arrays in one file, read row by row without loading it whole."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
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

    Members are read row by row out of the archive, never as a whole and never pickled.
    """

    def __len__(self) -> int:
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            return self._columns(archive)["id"].n_rows

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order."""
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            columns = self._columns(archive)
            n, reader = columns["id"].n_rows, RecordReader(self)
            for start in range(0, n, CHUNK_ROWS):
                size = min(CHUNK_ROWS, n - start)
                parts = {role: column.next_rows(size) for role, column in columns.items()}
                matrix = parts.pop("embedding", None)
                values = {columns[role].name: part.tolist() for role, part in parts.items()}
                records = [
                    (f"row {start + row}", dict(zip(values, record, strict=True)))
                    for row, record in enumerate(zip(*values.values(), strict=True))
                ]
                yield reader.rows(records, None if matrix is None else matrix.astype(np.float32))

    def _columns(self, archive: zipfile.ZipFile) -> dict[str, _Member]:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        columns = {}
        for role in USUAL:
            name = first_of(self.columns.names(role), names)
            if name is not None:
                columns[role] = _Member(archive, name, self.path)
            elif getattr(self.columns, role):
                raise_for_column(self.path, role, getattr(self.columns, role), names)
        if "id" not in columns or not columns.keys() & {"text", "embedding"}:
            msg = (
                f"{self.path} holds the arrays {names}, expected ids and embeddings (or texts, to "
                "be embedded); say what they are called with --id-column and --embedding-column."
            )
            raise SourceError(msg)
        for column in columns.values():
            column.check(2 if column is columns.get("embedding") else 1, columns["id"].n_rows)
        return columns


class _Member:
    """One array of an npz archive, read a few rows at a time."""

    def __init__(self, archive: zipfile.ZipFile, name: str, path: Path) -> None:
        self.name, self.path = name, path
        info = archive.getinfo(f"{name}.npy")
        self._file = archive.open(info)
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0
        if version >= (2, 0):
            read = np.lib.format.read_array_header_2_0
        self.shape, self._fortran, self.dtype = read(self._file)
        self._left = info.file_size - self._file.tell()

    @property
    def n_rows(self) -> int:
        return int(self.shape[0]) if self.shape else 0

    def check(self, n_dims: int, n_rows: int) -> None:
        """Refuse what is not a column of plain values of the right length."""
        where = f"{self.path}: the array {self.name}"
        if self.dtype.hasobject:
            msg = f"{where} holds Python objects, which only unpickling could read; save it as "
            raise SourceError(msg + "strings or numbers: np.asarray(values, dtype=str).")
        if len(self.shape) != n_dims or self.n_rows != n_rows:
            wanted = f"({n_rows}, dim)" if n_dims > 1 else f"({n_rows},)"
            msg = f"{where} has shape {self.shape}, expected {wanted}: one row per id."
            raise SourceError(msg)
        if n_dims > 1 and self.dtype.kind != "f":
            msg = f"{where} is of dtype {self.dtype}, expected floats."
            raise SourceError(msg)
        if self._fortran and n_dims > 1:
            msg = f"{where} lies in columns; save it in rows: np.ascontiguousarray(embeddings)."
            raise SourceError(msg)
        if self._left != math.prod(self.shape) * self.dtype.itemsize:
            msg = f"{where} is cut short or damaged: its size is not that of its shape."
            raise SourceError(msg)

    def next_rows(self, n: int) -> NDArray[Any]:
        shape = (n, *self.shape[1:])
        size = math.prod(shape) * self.dtype.itemsize
        data = self._file.read(size)
        if len(data) != size:
            msg = f"{self.path}: the array {self.name} is cut short."
            raise SourceError(msg)
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)
