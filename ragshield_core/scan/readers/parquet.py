"""A Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.errors import SourceError
from ragshield_core.scan.readers.source import (
    CHUNK_ROWS,
    USUAL,
    RecordReader,
    Rows,
    Source,
    first_of,
    reading,
)


class Parquet(Source):
    """A parquet file; needs pyarrow, the extra ``parquet``."""

    def __len__(self) -> int:
        return int(self._file().metadata.num_rows)

    def chunks(self) -> Iterator[Rows]:
        """Yield the entries in order; a column of vectors of one length is read without lists."""
        reader = RecordReader(self)
        with reading(self.path):
            file = self._file()
            names = list(file.schema_arrow.names)
            roles = {role: first_of(self.columns.names(role), names) for role in USUAL}
            wanted = names if self.metadata else [name for name in roles.values() if name]
            number = 0
            for batch in file.iter_batches(batch_size=CHUNK_ROWS, columns=wanted):
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
