"""Streams of clean entries with poison in them: how they are made up, run, and remembered."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.guard import Guard
from ragshield_core.logs import quiet
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Decision, Report
from ragshield_core.quarantine import Quarantine
from ragshield_core.state import replace_file
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
    known: Batch,
    entries: Batch,
    *,
    workers: int = 1,
    folder: Path | None = None,
    done: Callable[[int], object] = lambda _: None,
) -> list[Held]:
    """Run streams, each by a guard that begins anew, and return who objects to what is held.

    Parameters
    ----------
    streams
        What comes.
    guard
        Fitted and calibrated on what is known.
    known
        That, which tells whether an earlier result is of the same guard.
    entries
        Clean ones, and behind them the poison.
    workers
        Processes.
    folder
        Keeps what was found; streams that are found there are not run again, unless anything of
        entries, settings or RAGShield's own files has changed. ``None`` keeps nothing.
    done
        Told how many are done.
    """
    found: dict[int, Held] = {}
    paths = _paths(streams, guard, known, entries, folder)
    for number, path in enumerate(paths):
        held = None if path is None else _read(path)
        if held is not None:
            found[number] = held
    done(len(found))
    missing = [number for number in range(len(streams)) if number not in found]
    with tempfile.TemporaryDirectory() as saved:
        guard.save(saved)
        jobs = [(streams[number].rows, paths[number]) for number in missing]
        results = _run(jobs, (saved, entries), min(workers, len(missing)))
        for number, held in zip(missing, results, strict=True):
            found[number] = held
            done(len(found))
    return [found[number] for number in range(len(streams))]


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
    jobs: Sequence[tuple[NDArray[np.intp], Path | None]], begin: tuple[str, Batch], workers: int
) -> Iterator[Held]:
    """Yield what was held in each stream, in their order."""
    if workers <= 1:
        _begin(*begin)
        yield from (_streamed(*job) for job in jobs)
        return
    # A process that is forked inherits locks of threads that it does not have.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, begin) as pool:
        yield from pool.map(_streamed, *zip(*jobs, strict=True))


def _begin(saved: str, entries: Batch) -> None:
    _of_process.update(saved=saved, entries=entries)


def _streamed(rows: NDArray[np.intp], path: Path | None) -> Held:
    """Return who objects to what is held or taken back of a stream; keep it in a file."""
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
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"held": held}).encode())
    return held


def _read(path: Path) -> Held | None:
    """Return what a file says was held, or None where it is missing or damaged."""
    try:
        held = json.loads(path.read_bytes())["held"]
        return {str(entry_id): [str(kind) for kind in each] for entry_id, each in held.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _paths(
    streams: Sequence[Stream], guard: Guard, known: Batch, entries: Batch, folder: Path | None
) -> list[Path | None]:
    """Return where each stream's result is kept, by a digest of all that it depends on."""
    if folder is None:
        return [None] * len(streams)
    settings = [guard.policy.model_dump(mode="json"), sorted(guard.calibration.thresholds.items())]
    whole = hashlib.blake2b(json.dumps(settings).encode() + _code(), digest_size=20)
    for batch in (known, entries):
        columns = (batch.ids, batch.texts, batch.labels, batch.lineages, batch.contexts)
        for column in (*columns, [sorted(each.items(), key=repr) for each in batch.metadatas]):
            whole.update(repr(column).encode("utf-8", "surrogatepass"))
        whole.update(np.ascontiguousarray(batch.embeddings).data)
    paths: list[Path | None] = []
    for each in streams:
        digest = whole.copy()
        digest.update(each.rows.tobytes())
        paths.append(folder / f"stream-{digest.hexdigest()}.json")
    return paths


def _code() -> bytes:
    """Return a digest of RAGShield's own files: another version judges otherwise."""
    digest = hashlib.blake2b(digest_size=20)
    found = [files("ragshield_core")]
    while found:
        for each in sorted(found.pop().iterdir(), key=lambda path: path.name):
            if not each.is_dir():
                data = each.read_bytes()
                digest.update(f"{each.name}:{len(data)}:".encode() + data)
            elif each.name != "__pycache__":
                found.append(each)
    return digest.digest()


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
