"""Streams of clean entries with poison in them: how they are made up, and run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.guard import Guard
from ragshield_core.logs import quiet
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Decision, Report
from ragshield_core.quarantine import Quarantine
from ragshield_core.tools.evaluate.poison import Poison

# Clean entries of a stream, and how many streams an attack has: of what comes, one in a hundred is
# poison. Most of the time goes into taking thresholds anew, once for every tenth by which a
# knowledge base grows: four streams of five hundred cost half as much again as one of a
# thousand, and have twice as many targets.
STREAM, STREAMS, POISONED = 500, 4, 0.01
# Entries that come at once: two texts of a target seldom do.
AT_ONCE = 50

# Who objects to what is held or taken back, by id.
Held = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class Stream:
    """What comes, in order.

    Attributes
    ----------
    attack
        Whose texts are in it.
    targets
        Numbers of the targets that they belong to.
    rows
        Of the clean entries, and behind them those of the poison, as they come.
    """

    attack: str
    targets: tuple[int, ...]
    rows: NDArray[np.intp]


def streams_of(
    poison: Poison, n_clean: int, length: int, n_streams: int, seed: int
) -> list[Stream]:
    """Return streams of each attack that comes in groups; a target is in one of them at most.

    Parameters
    ----------
    poison
        What is planted.
    n_clean
        How many clean entries there are to draw from.
    length
        Clean entries of a stream, at most.
    n_streams
        Streams of each attack, at most: fewer, if all its targets are in one.
    seed
        Of the draws: other clean entries, and other places, in each.
    """
    length = min(length, n_clean)
    found = []
    for number, name in enumerate(n for n in poison.attacks if poison.size_of(n) > 1):
        rng = np.random.default_rng([seed, number])
        shared_out = _shared_out(poison, name, max(1, round(POISONED * length)))
        for targets in islice(shared_out, n_streams):
            planted = np.concatenate([poison.rows_of(each) for each in targets]) + n_clean
            clean = rng.permutation(n_clean)[:length]
            rows = rng.permutation(np.concatenate([clean, planted]))
            found.append(Stream(name, tuple(targets), rows))
    return found


def run(
    streams: Sequence[Stream],
    guard: Guard,
    entries: Batch,
    *,
    workers: int = 1,
    done: Callable[[int], object] = lambda _: None,
) -> list[Held]:
    """Run streams, each by a guard that begins anew, and return who objects to what is held.

    Parameters
    ----------
    streams
        What comes.
    guard
        Fitted and calibrated on what is known.
    entries
        Clean ones, and behind them the poison.
    workers
        Processes.
    done
        Told how many are done.
    """
    found: list[Held] = []
    done(0)
    with tempfile.TemporaryDirectory() as saved:
        guard.save(saved)
        rows = [stream.rows for stream in streams]
        for held in _run(rows, (saved, entries), min(workers, len(rows))):
            found.append(held)
            done(len(found))
    return found


def first_comings(streams: Sequence[Stream], n_clean: int) -> Iterator[NDArray[np.intp]]:
    """Yield for each stream the rows of clean entries that were in none before."""
    came = np.zeros(n_clean, dtype=np.bool_)
    for stream in streams:
        clean = stream.rows[stream.rows < n_clean]
        yield clean[~came[clean]]
        came[clean] = True


def _shared_out(poison: Poison, name: str, n_texts: int) -> Iterator[list[int]]:
    """Yield an attack's targets by streams, so many that their texts are about so many."""
    chosen: list[int] = []
    total = 0
    for number in poison.of_attack(name):
        size = len(poison.rows_of(number))
        if chosen and total + size > n_texts:
            yield chosen
            chosen, total = [], 0
        chosen.append(number)
        total += size
    yield chosen


# Of a process that runs streams: the folder of the guard, and all entries.
_of_process: dict[str, Any] = {}


def _run(
    rows: Sequence[NDArray[np.intp]], begin: tuple[str, Batch], workers: int
) -> Iterator[Held]:
    """Yield what was held in each stream, in their order."""
    if workers <= 1:
        _begin(*begin)
        yield from map(_streamed, rows)
        return
    # A process that is forked inherits locks of threads that it does not have.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, begin) as pool:
        yield from pool.map(_streamed, rows)


def _begin(saved: str, entries: Batch) -> None:
    _of_process.update(saved=saved, entries=entries)


def _streamed(rows: NDArray[np.intp]) -> Held:
    """Return who objects to what is held or taken back of a stream."""
    whole: Batch = _of_process["entries"].take(rows)
    row_of = {entry_id: row for row, entry_id in enumerate(whole.ids)}
    held: dict[str, list[str]] = {}
    with quiet():
        guard = Guard.load(_of_process["saved"], quarantine=Quarantine("sqlite://"))
        for part in parts(whole, AT_ONCE):
            report = guard.hold(guard.screen(part))
            earlier = [d for d in report.retroactive if d.entry_id in row_of]
            if earlier:
                taken = [row_of[decision.entry_id] for decision in earlier]
                guard.recall(whole.take(taken), earlier, lambda _: None)
            guard.admit(report)
            held |= objecting(report)
            held |= {decision.entry_id: kinds(decision) for decision in earlier}
    return held


def objecting(report: Report) -> dict[str, list[str]]:
    """Return the detectors that object to each entry that is to be held, by id."""
    return {decision.entry_id: kinds(decision) for decision in report.quarantined}


def kinds(decision: Decision) -> list[str]:
    """Return the detectors whose thresholds an entry is above."""
    return list(dict.fromkeys(f.detector for f in decision.findings if f.score > f.threshold))


def parts(entries: Batch, size: int) -> Iterator[Batch]:
    """Yield entries in batches of a size."""
    for start in range(0, len(entries), size):
        yield entries.take(range(start, min(start + size, len(entries))))
