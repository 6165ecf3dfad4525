"""Write parquet files into a guarded store, piece by piece, in this process or on Ray.

Each process opens the store by itself. The store's guard is shared by its database, which puts the
writes of all processes in one order. A mark in a file says how far each piece got, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import OvertakenError, SourceError
from ragshield_core.model.findings import Report
from ragshield_core.store.guarded import Guarded
from ragshield_core.store.keeper import Progress
from ragshield_core.tools.audit.partitioned.engines import Engine, engine_of
from ragshield_core.tools.audit.partitioned.plan import Parts, RowGroups
from ragshield_core.tools.audit.readers.records import parquet
from ragshield_core.tools.audit.readers.source import ColumnNames, Rows, Source
from ragshield_core.tools.defaults import BATCH_ROWS
from ragshield_core.tools.options import live_store

# Rows of a task, if row groups are no larger: tasks that are small enough to share out evenly.
TASK_ROWS = 2_000


class Ingested(NamedTuple):
    """The numbers of a run."""

    n_rows: int  # of the input
    n_written: int  # by this run; earlier runs have written the others
    n_held: int  # of these


def ingest(
    parts: Parts,
    into: str,
    *,
    engine: str | Engine | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: Progress = lambda *_: None,
) -> Ingested:
    """Write the rows of parquet files into a guarded store.

    Parameters
    ----------
    parts
        The input; ids, texts and vectors in columns of their usual names, all other columns are
        metadata. Its ``work_dir`` keeps the marks of finished writes, by default in
        ``NAME.ragshield``; all machines have to see it.
    into
        ``module:object`` of the guarded store, or of a function without parameters that opens it.
        With Ray, each process opens it: its guard has to be opened on one database.
    engine
        ``"ray"``, ``"local"`` (one piece after the other), or an engine.
    batch_rows
        Entries of one write.
    progress
        Called with the step, the number of finished pieces and that of all.

    Returns
    -------
    Ingested
        The numbers of rows, of written ones and of held ones.

    Raises
    ------
    SourceError
        If a file cannot be read, a row has no id, only some rows have a vector, or rows were
        written before into a store that is empty now.
    ConfigurationError
        If there is no guarded store at ``into``.

    Notes
    -----
    A row whose write was interrupted is written again, under its id. A file that has changed since
    is written from its beginning.
    """
    marks = (parts.work_dir or Path(f"{parts.path.name}.ragshield")).absolute()
    marks.mkdir(parents=True, exist_ok=True)
    pieces = parts.pieces(TASK_ROWS)
    n_rows, written, held = sum(piece.n_rows for piece in pieces), 0, 0
    here = str(Path.cwd())
    tasks = [(piece, parts.columns, into, marks, batch_rows, here) for piece in pieces]
    with engine_of(engine) as runner:
        # Alone: a new store makes its tables, which some clients cannot do twice at once.
        list(runner.run(_open, [(into, here)]))
        for done, (more, out) in enumerate(runner.run(_write_piece, tasks), start=1):
            written, held = written + more, held + out
            progress("writing", done, len(pieces))
    return Ingested(n_rows, written, held)


def _open(into: str, here: str) -> None:
    """Open the store in this process."""
    opened(into, here)


def _write_piece(
    piece: RowGroups, columns: ColumnNames, into: str, marks: Path, batch_rows: int, here: str
) -> tuple[int, int]:
    """Write the rows of a piece behind its mark; return how many were written, and held."""
    mark = _Mark(piece, into, marks)
    begin, held, at = mark.read(), 0, 0
    store = opened(into, here)
    if begin and not store.guard.n_known:
        msg = (
            f"{begin} rows of {piece.path} were written before, says {marks}, and the guard of "
            f"{into} knows no entry: it is another store, or was lost; remove {marks} to write "
            "all rows."
        )
        raise SourceError(msg)
    if begin >= piece.n_rows:
        return 0, 0
    source = Source(piece.path, parquet, columns, metadata=True)
    for rows in _batches(parquet(source, piece.groups), batch_rows):
        at += len(rows)
        if at <= begin:
            continue
        vectors = None if rows.vectors is None else rows.vectors.matrix
        if vectors is not None and len(vectors) < len(rows):
            msg = (
                f"{piece.path}: only some of its rows have a vector; give all of them one, or name "
                "another column with --embedding-column."
            )
            raise SourceError(msg)
        held += len(_added(store, rows, vectors).quarantined)
        mark.write(at)
    return at - begin, held


def _added(store: Guarded, rows: Rows, vectors: NDArray[np.float32] | None) -> Report:
    """Write rows; once more if this process was so silent that another one took its turn."""
    columns = (rows.ids, rows.texts, rows.metadatas, vectors)
    try:
        return store.add_rows(*columns)
    except OvertakenError:
        return store.add_rows(*columns)


def _batches(chunks: Iterator[Rows], size: int) -> Iterator[Rows]:
    """Yield rows in the batches of single writes."""
    for rows in chunks:
        for start in range(0, len(rows), size):
            yield rows.part(start, start + size)


@cache
def opened(into: str, here: str) -> Guarded:
    """Return the guarded store, which this process opens once and leaves at its end."""
    if here not in sys.path:
        sys.path.insert(0, here)
    store: Guarded = live_store(into, "add_rows", "guard")
    atexit.register(store.guard.close)
    return store


class _Mark:
    """The number of rows of a piece that are written, in a file of its own."""

    def __init__(self, piece: RowGroups, into: str, folder: Path) -> None:
        file = piece.path.stat()
        # A file that was written anew is another one.
        self._of = [into, str(piece.path), file.st_size, file.st_mtime_ns, *piece.groups]
        store = hashlib.sha256(into.encode()).hexdigest()[:8]
        groups = f"{piece.groups.start}-{piece.groups.stop}"
        self._path = folder / f"{piece.path.name}.{groups}.{store}.json"

    def read(self) -> int:
        """Return the number of rows; 0 for a piece of which none is written."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return int(found["rows"]) if found["of"] == self._of else 0
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0  # rows that are written twice do no harm

    def write(self, rows: int) -> None:
        """Set the number; a crash leaves the one before."""
        beside = self._path.with_suffix(f".{os.getpid()}.new")
        beside.write_text(json.dumps({"of": self._of, "rows": rows}), encoding="utf-8")
        beside.replace(self._path)
