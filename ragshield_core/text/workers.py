"""Processes that read texts, for as many texts that starting them pays.

Reading texts is work of the interpreter, of which each process has one. The processes are loky's:
they import what they are asked for and nothing else, so that a script without ``if __name__ ==
"__main__"``, a notebook or ``python -c`` is not run again in each of them, as those of the standard
library would; and where one is killed, who waits for it is told.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Executor

logger = logging.getLogger("ragshield")

Reading = TypeVar("Reading")

ENVIRONMENT = "RAGSHIELD_WORKERS"
# Processes take a second to start. To read so many characters (about 7,000 passages of 100 words)
# takes one process as long or longer.
LEAST = 4_000_000
# Characters of the texts that are read together, which bounds the memory, and is a tenth of a
# second of work for a process.
SHARE = 1 << 19
# Seconds without work after which they end.
IDLE = 60


class _Setting:
    """How many processes were asked for; none: as many as there are cores."""

    wanted: int | None = None
    forked = False


def set_workers(n: int | None) -> None:
    """Set in how many processes large batches of texts are read, from this process on.

    Fitting, calibrating, screening and auditing read texts, which takes most of their time where
    vectors are given. The results are the same however many processes there are.

    Parameters
    ----------
    n
        1 for this process alone. ``None``, the default, is what the environment variable
        ``RAGSHIELD_WORKERS`` says, and without it one for each core that this process may use;
        but 1 in a process that is one of several itself (of ``multiprocessing``, or forked since
        the package was imported, as web servers do).

    Raises
    ------
    ValueError
        If it is less than 1.

    Notes
    -----
    Each process takes about 100 MB; they end after a minute without work, and with this process.
    Batches below four million characters are read here: to start processes would take longer.
    """
    if n is not None and n < 1:
        msg = f"workers is {n}, expected at least 1; None is one for each core."
        raise ValueError(msg)
    _Setting.wanted = n


def n_workers() -> int:
    """Return in how many processes texts are read at the most.

    Raises
    ------
    ValueError
        If the environment variable ``RAGSHIELD_WORKERS`` is not a whole number from 1 on.
    """
    wanted = _Setting.wanted
    if wanted is None and (given := os.environ.get(ENVIRONMENT)):
        if not given.isascii() or not given.isdigit() or int(given) < 1:
            msg = f"{ENVIRONMENT} is {given!r}, expected a whole number from 1 on."
            raise ValueError(msg)
        wanted = int(given)
    if wanted is not None:
        return wanted
    if _Setting.forked or multiprocessing.parent_process() is not None:
        return 1
    from loky import cpu_count  # noqa: PLC0415 - keeps `import ragshield_core` quick

    return int(cpu_count())


def read_all(read: Callable[[Sequence[str]], list[Reading]], texts: Sequence[str]) -> list[Reading]:
    """Return what a function returns of texts, in several processes where that pays.

    Parameters
    ----------
    read
        Of texts, one reading each, in order, whichever texts stand beside it; a function of a
        module, which is told to the processes by its name.
    texts
        Any number.
    """
    if sum(map(len, texts)) < LEAST or (n := n_workers()) == 1:
        return read_here(read, texts)
    try:
        parts = list(_pool(n).map(read, _shares(texts)))
    except Exception as error:  # noqa: BLE001 - killed, out of memory, not allowed to start
        # What is wrong with a text is raised here again.
        logger.warning("%s in another process; going on in this one", type(error).__name__)
        _close_pool(n)
        return read_here(read, texts)
    return [reading for part in parts for reading in part]


# By process, because a forked one inherits what it cannot use, and number of processes.
_POOLS: dict[tuple[int, int], Executor] = {}
_lock = threading.Lock()


def _pool(n: int) -> Executor:
    """Return the processes of this one; they are started as they are needed, and started again."""
    from loky import ProcessPoolExecutor  # noqa: PLC0415

    with _lock:
        found = _POOLS.get((os.getpid(), n))
        if found is None:
            found = _POOLS[os.getpid(), n] = ProcessPoolExecutor(n, timeout=IDLE)
            atexit.register(_close_pool, n)  # before modules are gone that it ends with
        return found


def _close_pool(n: int) -> None:
    with _lock:
        pool = _POOLS.pop((os.getpid(), n), None)
    if pool is not None:
        pool.shutdown(wait=False)


def read_here(
    read: Callable[[Sequence[str]], list[Reading]], texts: Sequence[str]
) -> list[Reading]:
    """Return what a function returns of texts, in this process, a share of them at a time."""
    return [reading for share in _shares(texts) for reading in read(share)]


def _shares(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts of together at most :data:`SHARE` characters, or one longer text, in order."""
    share: list[str] = []
    taken = 0
    for text in texts:
        if share and taken + len(text) > SHARE:
            yield share
            share, taken = [], 0
        share.append(text)
        taken += len(text)
    if share:
        yield share


def _in_forked_process() -> None:
    global _lock  # noqa: PLW0603 - who held it is not here
    _lock = threading.Lock()
    _Setting.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_process)
