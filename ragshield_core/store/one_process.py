"""Folders that are for one process: noticed when a second one opens them."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from ragshield_core.model.errors import SharedFolderWarning
from ragshield_core.model.findings import printable

try:
    import fcntl
except ImportError:  # no such locks there: a second process is not noticed
    fcntl = None  # type: ignore[assignment]

# Of each folder that this process has open, by its id: a lock that ends with the process.
_LOCKS: dict[tuple[int, Path], int] = {}


def note_folder(folder: str | None, kind: str, *, stacklevel: int = 2) -> None:
    """Note that this process has a folder open, and warn if another one has it open as well.

    Parameters
    ----------
    folder
        Where the store keeps its data; ``None`` for a store that several processes may use.
    kind
        Of the store, for the message.
    stacklevel
        As :func:`warnings.warn` counts.
    """
    if folder is None or fcntl is None:
        return
    key = os.getpid(), Path(folder).resolve()
    if key in _LOCKS:
        return
    try:
        lock = os.open(key[1], os.O_RDONLY)
    except OSError:  # not made yet, or not to be opened like this
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        msg = (
            f"the folder {printable(folder, 200)!r} of this {kind} is open in another process: it "
            "is for one process, and reads of each miss what the other writes. Use a server, such "
            "as `chroma run --path FOLDER` with chromadb.HttpClient."
        )
        warnings.warn(msg, SharedFolderWarning, stacklevel=stacklevel)
        return
    _LOCKS[key] = lock
