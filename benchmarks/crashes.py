"""A client that is killed again and again while it writes, and then checks the store.

The client calls, is killed (SIGKILL), starts again, opens everything as docs/operating.md says, and
repeats the call that was not acknowledged. For the tests and the benchmark.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from crash_plan import Plan, Step, made_up
from crash_stores import STORES, Store

from ragshield_core import Guard
from ragshield_core.detectors import CliqueDetector, TriggerPhraseDetector
from ragshield_core.model.errors import OvertakenError, QuarantineError
from ragshield_core.quarantine import Status

LEASE = 0.5
SEARCHED = 50  # most held entries whose vectors are searched
IN_OPENING = 0.15  # share of the kills that hit a client while it opens
# Modules that are loaded once, not at each start.
PRELOADED = [
    "crashes",
    "chromadb",
    "faiss",
    "langchain_chroma",
    "langchain_community.vectorstores.faiss",
    "langchain_postgres",
    "llama_index.core",
    "llama_index.vector_stores.chroma",
    "ragshield_core.sharing.shared_writes",
    "ragshield_core.quarantine",
    "ragshield_langchain.vectorstore",
    "ragshield_llamaindex.index",
]


class Task(NamedTuple):
    """An ingest: its plan, store and database."""

    store: str
    folder: Path
    url: str  # the guard's database
    server: str  # URL of the PostgreSQL server, if the store needs one
    n: int
    known: int
    seed: int
    fpr: float
    batch: int = 50

    @property
    def plan(self) -> Plan:
        """The plan of the entries to write."""
        return made_up(self.n, known=self.known, batch=self.batch, seed=self.seed)

    def open(self) -> Store:
        """Return the guarded store."""
        detectors = [CliqueDetector(), TriggerPhraseDetector()]
        namespace = self.folder.name
        guard = Guard.open(self.url, namespace, detectors=detectors, fpr=self.fpr, lease=LEASE)
        return STORES[self.store](guard, self.folder / "store", self.server)


class Moment:
    """Records the current operation of a process, for the process that kills it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self.now = ""

    def __call__(self, name: str) -> None:
        """Record a new operation."""
        self.now = name
        os.pwrite(self._file, name.ljust(32).encode(), 0)

    def during(self, owner: Any, method: str, name: str) -> None:
        """Record each call of a method under a name."""
        do = getattr(owner, method)

        def noted(*args: Any, **kwargs: Any) -> Any:
            before = self.now
            self(name)
            try:
                return do(*args, **kwargs)
            finally:
                self(before)

        setattr(owner, method, noted)

    def watch(self, store: Store) -> None:
        """Record the operations of a store."""
        self.during(store.guard, "screen", "judging")
        self.during(store.guard.writes, "together", "journal: intended")
        self.during(store.guard.writes, "intend", "journal: intended")
        self.during(store.guard.writes, "intend_recall", "journal: intended")
        for method in ("write", "delete"):
            self.during(store.access, method, "store")
        self.during(store.guard.writes, "finish", "journal: done")
        self.during(store, "save", "saving")


@dataclass
class Look:
    """Faults of a store that was opened again, as ids of entries."""

    missing: list[str] = field(default_factory=list)  # acknowledged, and lost
    neither: list[str] = field(default_factory=list)  # in the open update: no revision
    twice: list[str] = field(default_factory=list)  # more than once in the store
    both: list[str] = field(default_factory=list)  # held, and in the bare store as well
    readable: list[str] = field(default_factory=list)  # held, yet readable
    stale: list[str] = field(default_factory=list)  # deleted, or an old revision
    unknown: list[str] = field(default_factory=list)  # in the store or known to the guard, not both
    log: str = ""  # error of the audit log
    held: list[str] = field(default_factory=list)  # no fault
    known: int = 0

    @property
    def wrong(self) -> dict[str, Any]:
        """The faults by name."""
        return {name: value for name, value in vars(self).items() if value and name not in RIGHT}


RIGHT = ("held", "known")


def look(store: Store, plan: Plan, done: int) -> Look:
    """Compare a store with a plan of which the first `done` steps are acknowledged."""
    found = Look()
    sent = plan.revisions(done)
    ahead = plan.revisions(done + 1)
    open_step = set(plan.steps[done].ids) if done < len(plan.steps) else set()
    raw = store.raw()
    by_id: dict[str, list[str]] = defaultdict(list)
    for (entry_id, text), times in raw.items():
        by_id[entry_id] += [text] * times
    entries = [one.entry for one in store.guard.quarantine.list(Status.HELD)]
    held = {(entry.id, entry.text) for entry in entries}
    found.held = sorted({entry_id for entry_id, _ in held})
    found.twice = [entry_id for entry_id, texts in by_id.items() if len(texts) > 1]
    found.both = [entry_id for entry_id, text in held if raw[entry_id, text]]
    for entry_id, texts in sent.items():
        here, last = by_id[entry_id], texts[-1] if texts else None
        if entry_id in open_step:
            last = ahead[entry_id][-1] if ahead[entry_id] else None
            both = {(entry_id, text) for text in (*texts[-1:], last)}
            if texts and last is not None and not here and both.isdisjoint(held):
                found.neither.append(entry_id)
        elif last is None:
            if here or entry_id in found.held:
                found.stale.append(entry_id)
        elif (entry_id, last) not in held and last not in here:
            (found.stale if here else found.missing).append(entry_id)
    vectors = np.array([e.embedding for e in entries if e.embedding.size][:SEARCHED])
    found.readable = sorted(i for i, _ in store.seen(found.held, vectors) & held)
    visible = {i for i, text in raw if (i, text) not in held}
    ids = {*sent, *ahead}
    found.unknown = sorted(visible ^ set(store.guard.writes.known(list(ids))))
    found.known = store.guard.status().n_known
    try:
        store.guard.quarantine.log.verify()
    except QuarantineError as error:
        found.log = str(error)
    return found


# The client


def do(store: Store, step: Step) -> None:
    """Do a step that may have been done before, in whole or in part."""
    match step:
        case Step("add" | "update", _, entries) if entries is not None:
            store.add(entries)
        case Step("delete", ids):
            store.delete(ids)
        case Step("release", ids):
            held = store.guard.quarantine
            waiting = sorted(held.held_ids(ids))
            late = [one.id for one in held.list(Status.RELEASED) if one.id in ids]
            for entry_id in (*waiting, *late):
                try:
                    store.guarded.release([entry_id], by="reviewer")
                except QuarantineError:  # released before, and in the store
                    if entry_id in waiting:
                        raise
    store.save()


def begin(task: Task) -> None:
    """Make the store with the known entries."""
    store, known = task.open(), task.plan.known
    with closing(store.guard):
        store.guard.fit(known).calibrate()
        store.fill(known)
        store.save()


def work(task: Task, first: int, pipe: Connection, *, waits: bool) -> None:
    """Write from a step on; report each step.

    Parameters
    ----------
    task, first, pipe
        The task, its first step, and the pipe for reports.
    waits
        Whether to wait first until all pending writes are recovered.
    """
    try:
        logging.disable()  # held entries are counted instead
        moment, plan = Moment(task.folder / "moment"), task.plan
        moment("opening")
        pipe.send(("started", first, None))
        store = task.open()
        moment.watch(store)
        moment("recovering")
        store.guarded.recover()
        while waits and store.guard.status().pending:
            time.sleep(LEASE / 5)
            store.guarded.recover()
        # A store in memory has lost the changes after its last save, deletions included.
        still_there = store.guarded.reconcile().readable
        if still_there:
            store.guarded.recall(still_there)
        pipe.send(("opened", first, look(store, plan, first)))
        for number, step in enumerate(plan.steps[first:], first):
            moment("between calls")
            pipe.send(("begun", number, None))
            moment("in a call")
            try:
                do(store, step)
            except OvertakenError:  # slower than LEASE: lost its lock, wrote nothing
                do(store, step)
            moment("between calls")
            pipe.send(("done", number, None))
        pipe.send(("end", len(plan.steps), look(store, plan, len(plan.steps))))
        store.guard.close()
    except Exception:  # noqa: BLE001 - the parent raises it
        pipe.send(("failed", first, traceback.format_exc()))


# The killer


class Kill(NamedTuple):
    """The moment of a kill."""

    step: int
    share: float  # share of the usual time of this step, or of an opening
    opening: bool


@dataclass
class Outcome:
    """The outcome of an ingest.

    Attributes
    ----------
    kills
        Number of kills by the operation that they hit.
    wrong
        Number of entries by fault, over all kills, counted before the client repeats its call.
    end
        The check of the store at the end.
    seconds
        Times of openings, and of steps by kind.
    """

    kills: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    end: Look = field(default_factory=Look)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def chosen(n: int, steps: int, seed: int) -> list[Kill]:
    """Return random moments of kills."""
    rng = np.random.default_rng(seed)
    kills: list[Kill] = []
    for step in sorted(rng.integers(steps, size=n).tolist()):
        opening = bool(kills) and rng.random() < IN_OPENING
        at = kills[-1].step if opening else step
        kills.append(Kill(at, 1.1 * rng.random(), opening))
    return kills


def ingest(
    task: Task, kills: Sequence[Kill] = (), seconds: Mapping[str, Sequence[float]] | None = None
) -> Outcome:
    """Do all of a plan, with a kill now and then.

    Parameters
    ----------
    task
        The task.
    kills
        Moments of the kills; none for the baseline run.
    seconds
        Times of openings and steps, from the baseline run.
    """
    task.folder.mkdir(parents=True)
    _finished(_start(begin, task))
    usual = {event: float(np.mean(took)) for event, took in (seconds or {}).items()}
    outcome, waiting = Outcome(), deque(kills)
    done = number = 0
    while not outcome.end.known:
        # Every other client waits until the lease of the killed one has expired.
        done = _client(task, done, outcome, waiting, usual, waits=number % 2 == 0)
        number += 1
    return outcome


def _client(
    task: Task,
    done: int,
    outcome: Outcome,
    waiting: deque[Kill],
    usual: Mapping[str, float],
    *,
    waits: bool,
) -> int:
    """Let a process write until it is killed or done; return the number of steps done."""
    steps = task.plan.steps
    ours, theirs = CONTEXT.Pipe()
    child = _start(work, task, done, theirs, waits=waits)
    theirs.close()
    deadline, since = None, time.monotonic()
    with closing(ours):
        while ours.poll(None if deadline is None else max(0.0, deadline - time.monotonic())):
            event, at, found = ours.recv()
            now = time.monotonic()
            kind = steps[at].kind if at < len(steps) else ""
            next_kill = waiting[0] if waiting else None
            match event:
                case "failed":
                    raise RuntimeError(found)
                case "started" if next_kill is not None and next_kill.opening:
                    deadline = now + next_kill.share * usual["opened"]
                case "opened":
                    outcome.seconds[event].append(now - since)
                    _noted(outcome, found)
                case "begun" if deadline is None and next_kill is not None and next_kill.step <= at:
                    deadline = now + next_kill.share * usual[kind]
                case "done":
                    outcome.seconds[kind].append(now - since)
                    done = at + 1
                case "end":
                    outcome.end = found
                    child.join()
                    return done
            since = now
        child.kill()
        child.join()
        waiting.popleft()
        outcome.kills[(task.folder / "moment").read_text().strip()] += 1
        return _drained(ours, done)


def _noted(outcome: Outcome, found: Look) -> None:
    for name, value in found.wrong.items():
        outcome.times[name] += 1
        outcome.wrong[name] += len(value) if isinstance(value, list) else 1


def _drained(pipe: Connection, done: int) -> int:
    """Return the number of steps that a killed process has acknowledged."""
    try:
        while pipe.poll():
            event, at, _ = pipe.recv()
            done = at + 1 if event == "done" else done
    except (EOFError, OSError):
        pass
    return done


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


def _start(target: Callable[..., None], *args: Any, **options: Any) -> Any:
    child = CONTEXT.Process(target=target, args=args, kwargs=options)
    child.start()
    return child


def _finished(child: Any) -> None:
    child.join()
    if child.exitcode:
        msg = f"a process ended with exit code {child.exitcode}, expected 0."
        raise RuntimeError(msg)
