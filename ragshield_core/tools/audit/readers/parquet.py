"""A Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.source import (
    CHUNK_ROWS,
    USUAL,
    Columns,
    RecordReader,
    Rows,
    Source,
    first_of,
    reading,
)


class Parquet(Source):
    """A parquet file; needs pyarrow, the extra ``parquet``.

    Parameters
    ----------
    path, columns, metadata
        As of :class:`Source`.
    groups
        Numbers of the row groups that are read; ``None`` for all.
    """

    def __init__(
        self,
        path: Path,
        columns: Columns | None = None,
        *,
        metadata: bool = False,
        groups: range | None = None,
    ) -> None:
        super().__init__(path, columns, metadata=metadata)
        self._groups = groups

    def __len__(self) -> int:
        sizes = self.group_sizes()
        return sum(sizes if self._groups is None else (sizes[group] for group in self._groups))

    def group_sizes(self) -> list[int]:
        """Return the number of rows in each row group of the file."""
        metadata = self._file().metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; a column of vectors of one length is read without lists."""
        reader = RecordReader(self)
        with reading(self.path):
            file = self._file()
            names = list(file.schema_arrow.names)
            roles = {role: first_of(self.columns.names(role), names) for role in USUAL}
            wanted = names if self.metadata else [name for name in roles.values() if name]
            groups = None if self._groups is None else list(self._groups)
            number = sum(self.group_sizes()[: groups[0]]) if groups else 0
            batches = file.iter_batches(batch_size=CHUNK_ROWS, row_groups=groups, columns=wanted)
            for batch in batches:
                matrix = _plain_matrix(batch, roles["embedding"])
                if matrix is not None:
                    batch = batch.drop_columns([roles["embedding"]])  # noqa: PLW2901
                records = [
                    (f"row {number + row}", record) for row, record in enumerate(batch.to_pylist())
                ]
                number += len(records)
                if records:
                    yield reader.rows(records, matrix)
        reader.check_columns()

    def _file(self) -> Any:
        try:
            import pyarrow.parquet  # noqa: PLC0415 - an extra
        except ImportError as error:
            msg = f"reading {self.path} needs pyarrow; pip install 'ragshield[parquet]'."
            raise SourceError(msg) from error
        with reading(self.path):
            return pyarrow.parquet.ParquetFile(self.path)


def _plain_matrix(batch: Any, name: str | None) -> NDArray[np.float32] | None:
    """Return a column of float lists of one length without making Python objects of it."""
    if name is None or not batch.num_rows:
        return None
    column = batch.column(name)
    if column.null_count or not hasattr(column, "flatten"):
        return None
    flat = column.flatten()
    if "float" not in str(flat.type) and str(flat.type) != "double":
        return None
    dim, rest = divmod(len(flat), batch.num_rows)
    if rest or not dim or flat.null_count:
        return None
    if hasattr(column, "value_lengths"):  # lists of a fixed size have none
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if (lengths != dim).any():
            return None
    matrix: NDArray[np.float32] = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return matrix.reshape(batch.num_rows, dim)
