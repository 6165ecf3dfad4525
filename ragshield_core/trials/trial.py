"""A trial: half of a corpus is the knowledge base, the rest comes, clean and with poison in it."""

from __future__ import annotations

import hashlib
import logging
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.attacks import ATTACKS, Attack, Planted, Target, flip_labels
from ragshield_core.entries import Batch, together
from ragshield_core.errors import SourceError
from ragshield_core.findings import Decision, Report
from ragshield_core.guard import Guard
from ragshield_core.quarantine import Quarantine
from ragshield_core.trials.figures import CLEAN, Evaluation, Group, Rate, Reached, Recall, Regime
from ragshield_core.trials.poison import Poison, check_names, embedded
from ragshield_core.trials.targets import targets_of

# Told what is being done, how many are done, and of how many.
Progress = Callable[[str, int, int], object]

N_TARGETS = 10
# Clean entries of a stream; of what comes, one in a hundred is poison.
STREAM, POISONED = 1_000, 0.01
BATCH = 100
# Clean entries that are screened one by one.
ALONE = 300
TOP_K = 5
# Clean entries around a group that is drawn.
AROUND = 5
# One in so many clean entries that come is given another label, at most.
MOST_FLIPPED = 10
# Questions about clean entries, to see what wrongly held ones cost.
N_QUESTIONS = 200

# Of each attack, who objects to each of its texts; None where nobody does.
_Found = Mapping[str, Sequence[list[str] | None]]


def evaluate(  # noqa: PLR0913 - settings of an experiment
    entries: Batch,
    embed: Callable[[list[str]], ArrayLike],
    *,
    attacks: Sequence[Attack] = ATTACKS,
    label_flips: bool = True,
    own: Sequence[Planted] = (),
    targets: Sequence[Target] | None = None,
    n_targets: int = N_TARGETS,
    fpr: float = 0.01,
    top_k: int = TOP_K,
    stream: int = STREAM,
    workers: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Plant attacks into one's own corpus, and see what the default guard holds.

    Half of the corpus, by documents, is the knowledge base that the guard is fitted and calibrated
    on. The other half is clean and new. Texts of each attack come in three ways: the first of each
    target **alone**, with nothing else of the attack known; in a **stream** of clean entries, one
    in a hundred poisoned, if there are several for a target; all in one **batch** with clean ones,
    which flatters.

    Parameters
    ----------
    entries
        The corpus, with texts and vectors; believed to be clean. At least twice as many as
        the rate needs: 2,000 at 1 %.
    embed
        Returns a vector for each of some texts, of the model that made the corpus's.
    attacks
        Recipes; by default all there are.
    label_flips
        Whether clean entries come under another label of the corpus as well, as many as there are
        targets; they are taken out of those that come clean. Without labels there are none.
    own
        Attack texts of one's own, as :func:`ragshield_core.attacks.read_attacks` returns them.
    targets
        Questions and wrong answers; ``None`` makes them from the corpus
        (:func:`~ragshield_core.trials.targets_of`).
    n_targets
        How many targets, at most.
    fpr
        Accepted false-positive rate, (0, 1).
    top_k
        How many entries a question retrieves.
    stream
        Clean entries of each stream, at most.
    workers
        Processes that the streams are shared out to; 1, the default, starts none. More need a main
        module that can be imported without running, as ``multiprocessing`` does.
    seed
        Of everything that is drawn.
    progress
        Told how far it is.

    Raises
    ------
    CalibrationError
        If the corpus is too small for the rate; says what would do.
    InvalidBatchError
        If the model returns vectors of another length than the corpus's, or others for its texts.
    SourceError
        If the corpus is of one document, no questions can be made of it, or own attack texts are
        named as something else is.
    ValueError
        If there is nothing to plant.

    Notes
    -----
    Made-up questions and wordings vary less than what people and language models write. Texts of
    one target are held together, so that intervals, which take them for independent, are too narrow
    for groups.
    """
    tell = progress or (lambda *_: None)
    known, rest = halves(entries, seed)
    if not len(known) or not len(rest):
        msg = (
            f"{len(entries)} entries are of too few documents to keep half of them; name what they "
            "were cut from in lineages, or nothing."
        )
        raise SourceError(msg)
    if targets is None:
        targets = targets_of(known, n_targets, seed)
    targets = list(targets)[:n_targets]
    planted = [
        attack.plant(target, seed=1_000 * seed + number)
        for attack in attacks
        for number, target in enumerate(targets)
    ]
    check_names(own, attacks)
    planted += own
    if label_flips:
        flipped, rows = flip_labels(rest, min(n_targets, len(rest) // MOST_FLIPPED), seed)
        planted += flipped
        rest = rest.take(np.setdiff1d(np.arange(len(rest)), rows))
    if not planted:
        msg = "there is nothing to plant; pass attacks and targets, or own texts."
        raise ValueError(msg)
    poison = Poison.of(planted, entries, lambda texts: embedded(embed, texts, entries.dim, tell))

    begin = time.perf_counter()
    tell("fitting", 0, 1)
    guard = Guard.default(fpr, quarantine=Quarantine("sqlite://"), seed=seed).fit(known)
    guard.calibrate()
    fit_seconds = time.perf_counter() - begin
    tell("fitting", 1, 1)

    trial = _Trial(guard, known, rest, poison, tell)
    clean_alone = trial.clean_alone()
    alone = trial.alone()
    false, clean_held, milliseconds = trial.clean_in_batches()
    batch = trial.in_batches()
    streamed, clean_streamed, reached = trial.in_streams(stream, top_k, seed, workers)
    reached = (*reached, *trial.reached_alone(alone, top_k))
    came: dict[Regime, _Found] = {"alone": alone, "stream": streamed, "batch": batch}
    return Evaluation(
        settings={
            "fpr": fpr,
            "top_k": top_k,
            "n_targets": len(targets),
            "stream": min(stream, len(rest)),
            "seed": seed,
        },
        n_known=len(known),
        n_clean=len(rest),
        false_positives={
            "alone": clean_alone,
            "batch": Rate(int(clean_held.sum()), len(rest)),
            "stream": clean_streamed,
        },
        false_by=dict(false.most_common()),
        recalls=tuple(
            Recall(
                attack=name,
                regime=regime,
                size=poison.size_of(name),
                held=Rate(len(held), n),
                by=dict(Counter(kind for kinds in held for kind in kinds).most_common()),
            )
            for name in poison.attacks
            for regime, found in came.items()
            if name in found
            for held, n in [_typed(found[name])]
        ),
        reached=reached,
        lost=trial.lost(clean_held, top_k, seed),
        fit_seconds=fit_seconds,
        milliseconds=milliseconds,
        scores=dict(trial.scores),
        thresholds={name: float(value) for name, value in guard.thresholds.items()},
        groups=trial.groups,
        idle=dict(trial.idle),
    )


def halves(entries: Batch, seed: int = 0) -> tuple[Batch, Batch]:
    """Return two halves of a corpus, at random; chunks of one document are in the same."""
    names = [
        f"\0{row}" if lineage is None else lineage for row, lineage in enumerate(entries.lineages)
    ]
    # By name, so that a corpus that grows keeps its halves.
    key = f"{seed}:".encode()
    marks = {
        name: hashlib.blake2b(key + name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for name in names
    }
    order = sorted(marks, key=marks.__getitem__)
    sizes = Counter(names)
    first, n = set(), 0
    for name in order:
        if n >= len(names) // 2:
            break
        first.add(name)
        n += sizes[name]
    mine = np.array([name in first for name in names], dtype=np.bool_)
    return entries.take(np.flatnonzero(mine)), entries.take(np.flatnonzero(~mine))


class _Trial:
    """What is done with one guard."""

    def __init__(
        self, guard: Guard, known: Batch, rest: Batch, poison: Poison, tell: Progress
    ) -> None:
        self._guard, self._known, self._rest = guard, known, rest
        self._poison, self._tell = poison, tell
        self.scores: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
        self._groups: dict[bool, Group] = {}
        self.idle: dict[str, str] = {}

    def clean_alone(self) -> Rate:
        """Screen clean entries one by one."""
        n = min(ALONE, len(self._rest))
        held = 0
        for row in range(n):
            held += len(self._guard.screen(self._rest.take([row])).quarantined)
            self._tell("clean entries, alone", row + 1, n)
        return Rate(held, n)

    def alone(self) -> dict[str, list[list[str] | None]]:
        """Screen the first text of every target by itself; return who objects, None for nobody."""
        found: dict[str, list[list[str] | None]] = defaultdict(list)
        for number, (planted, rows) in enumerate(
            zip(self._poison.planted, self._poison.rows, strict=True), start=1
        ):
            report = self._guard.screen(self._poison.batch.take(rows[:1]))
            found[planted.attack] += [_objecting(report).get(report.batch.ids[0])]
            self._tell("poison, alone", number, len(self._poison.planted))
        return found

    def clean_in_batches(self) -> tuple[Counter[str], NDArray[np.bool_], float]:
        """Screen all clean entries in batches; return who objects, which are held, and the time."""
        by: Counter[str] = Counter()
        held = []
        scores: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        seconds = 0.0
        for part in _parts(self._rest):
            begin = time.perf_counter()
            report = self._guard.screen(part)
            seconds += time.perf_counter() - begin
            held.append(~report.admitted)
            by.update(kind for kinds in _objecting(report).values() for kind in kinds)
            for name, column in report.scores.items():
                scores[name].append(column)
            skipped = {item.detector: item.reason for item in report.skipped}
            unjudged = {item.detector: item.reason for item in report.unjudged}
            self.idle = unjudged | skipped | self.idle
            self._tell("clean entries, in batches", sum(map(len, held)), len(self._rest))
        for name, columns in scores.items():
            self.scores[name][CLEAN] = _opinions(np.concatenate(columns))
            if self.scores[name][CLEAN]:
                self.idle.pop(name, None)
        return by, np.concatenate(held), 1_000.0 * seconds / len(self._rest)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The group that was caught first, and the first of which nothing was held."""
        return tuple(self._groups[caught] for caught in (True, False) if caught in self._groups)

    def in_batches(self) -> dict[str, list[list[str] | None]]:
        """Screen all texts of each attack at once, with a hundred clean ones."""
        found: dict[str, list[list[str] | None]] = {}
        clean = self._rest.take(range(min(BATCH, len(self._rest))))
        for done, name in enumerate(self._poison.attacks, start=1):
            numbers = self._poison.of_attack(name)
            rows = np.concatenate([self._poison.rows[number] for number in numbers])
            texts = self._poison.batch.take(rows)
            report = self._guard.screen(together([texts, clean]))
            objecting = _objecting(report)
            found[name] = [objecting.get(entry_id) for entry_id in texts.ids]
            for kind, column in report.scores.items():
                self.scores[kind][name] = _opinions(column[: len(texts)])
            why = {d.entry_id: d.findings[0].evidence for d in report.quarantined if d.findings}
            self._draw(numbers, set(objecting), why)
            self._tell("poison, in batches", done, len(self._poison.attacks))
        return found

    def in_streams(
        self, n_clean: int, top_k: int, seed: int, workers: int
    ) -> tuple[_Found, Rate, tuple[Reached, ...]]:
        """Let each attack trickle in among clean entries, by a guard that begins anew.

        Texts that are made to be alone are judged alone, and reach the same questions.
        """
        n_clean = min(n_clean, len(self._rest))
        n_texts = max(1, round(POISONED * n_clean))
        names = [name for name in self._poison.attacks if self._poison.size_of(name) > 1]
        chosen = {name: self._for_stream(name, n_texts) for name in names}
        texts = {
            name: self._poison.batch.take(
                np.concatenate([self._poison.rows[number] for number in numbers])
            )
            for name, numbers in chosen.items()
        }
        found: dict[str, list[list[str] | None]] = {}
        reached, false = [], 0
        with tempfile.TemporaryDirectory() as folder:
            self._guard.save(folder)
            jobs = []
            for number, name in enumerate(names):
                rng = np.random.default_rng([seed, number])
                clean = self._rest.take(rng.permutation(len(self._rest))[:n_clean])
                whole = together([texts[name], clean])
                jobs.append((folder, whole.take(rng.permutation(len(whole)))))
            for name, objecting in zip(names, _run(jobs, workers), strict=True):
                found[name] = [objecting.get(entry_id) for entry_id in texts[name].ids]
                mine = set(texts[name].ids)
                false += sum(entry_id not in mine for entry_id in objecting)
                self._draw(chosen[name], set(objecting), {})
                rates = self._reached(chosen[name], set(objecting), top_k)
                if rates[0].n:
                    reached.append(Reached(attack=name, before=rates[0], after=rates[1]))
                self._tell("poison, in streams", len(found), len(names))
        return found, Rate(false, n_clean * len(names)), tuple(reached)

    def reached_alone(self, alone: _Found, top_k: int) -> Iterator[Reached]:
        """Yield how far texts get that come alone: those of attacks with one for each target."""
        for name, found in alone.items():
            if self._poison.size_of(name) > 1:
                continue
            numbers = self._poison.of_attack(name)
            held = {
                self._poison.batch.ids[self._poison.rows[number][0]]
                for number, kinds in zip(numbers, found, strict=True)
                if kinds is not None
            }
            before, after = self._reached(numbers, held, top_k)
            if before.n:
                yield Reached(attack=name, before=before, after=after)

    def lost(self, held: NDArray[np.bool_], top_k: int, seed: int) -> Rate:
        """Return for how many clean entries one of the nearest is missing as it was held."""
        everything = np.concatenate([self._known.embeddings, self._rest.embeddings])
        missing = np.concatenate([np.zeros(len(self._known), dtype=np.bool_), held])
        n = min(N_QUESTIONS, len(everything))
        chosen = np.random.default_rng(seed).permutation(len(everything))[:n]
        similar = everything[chosen] @ everything.T
        similar[np.arange(n), chosen] = -np.inf  # not itself
        k = min(top_k, similar.shape[1] - 1)
        nearest = np.argpartition(-similar, k - 1, axis=1)[:, :k]
        return Rate(int(missing[nearest].any(axis=1).sum()), n)

    def _for_stream(self, name: str, n_texts: int) -> list[int]:
        """Return so many targets that their texts are about so many; one at least."""
        chosen: list[int] = []
        total = 0
        for number in self._poison.of_attack(name):
            size = len(self._poison.rows[number])
            if chosen and total + size > n_texts:
                break
            chosen.append(number)
            total += size
        return chosen

    def _reached(self, numbers: Sequence[int], held: set[str], top_k: int) -> tuple[Rate, Rate]:
        """Return for how many questions poison is among the nearest, before and after."""
        n, before, after = 0, 0, 0
        for number in numbers:
            question = self._poison.planted[number].question
            if question is None:
                continue
            vector = self._poison.questions[question]
            clean = self._known.embeddings @ vector
            k = min(top_k, len(clean))
            least = np.partition(clean, -k)[-k]
            rows = self._poison.rows[number]
            near = self._poison.batch.embeddings[rows] @ vector > least
            stays = np.array([self._poison.batch.ids[row] not in held for row in rows])
            n += 1
            before += bool(near.any())
            after += bool((near & stays).any())
        return Rate(before, n), Rate(after, n)

    def _draw(self, numbers: Sequence[int], held: set[str], why: Mapping[str, str]) -> None:
        """Keep the first target whose texts are all held, and the first of which none is."""
        for number in numbers:
            rows = self._poison.rows[number]
            out = [self._poison.batch.ids[row] in held for row in rows]
            caught = all(out)
            if len(rows) < 2 or caught in self._groups or (any(out) and not caught):  # noqa: PLR2004
                continue
            planted, theirs = self._poison.planted[number], self._poison.batch.embeddings[rows]
            around = np.argsort(-(self._known.embeddings @ theirs.mean(axis=0)))[:AROUND]
            vectors = np.concatenate([theirs, self._known.embeddings[around]])
            cosines = (vectors @ vectors.T).round(4).astype(float).tolist()
            self._groups[caught] = Group(
                attack=planted.attack,
                question=planted.question or "",
                caught=caught,
                texts=(*planted.texts, *(self._known.texts[row] for row in around)),
                n_planted=len(rows),
                cosines=tuple(map(tuple, cosines)),
                why=why.get(self._poison.batch.ids[rows[0]], ""),
            )


def _run(jobs: Sequence[tuple[str, Batch]], workers: int) -> Iterator[dict[str, list[str]]]:
    """Yield what :func:`_streamed` returns of each job, in order."""
    if workers == 1 or len(jobs) < 2:  # noqa: PLR2004 - there is nothing to share
        yield from (_streamed(*job) for job in jobs)
        return
    # A process that is forked inherits locks of threads that it does not have.
    with ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn")) as pool:
        yield from pool.map(_streamed, *zip(*jobs, strict=True))


def _streamed(folder: str, whole: Batch) -> dict[str, list[str]]:
    """Return who objects to what is held or taken back of a stream, by id."""
    row_of = {entry_id: row for row, entry_id in enumerate(whole.ids)}
    objecting: dict[str, list[str]] = {}
    with quiet():
        guard = Guard.load(folder, quarantine=Quarantine("sqlite://"))
        for part in _parts(whole):
            report = guard.hold(guard.screen(part))
            earlier = [d for d in report.retroactive if d.entry_id in row_of]
            if earlier:
                rows = [row_of[decision.entry_id] for decision in earlier]
                guard.recall(whole.take(rows), earlier, lambda _: None)
            guard.admit(report)
            objecting |= _objecting(report)
            objecting |= {decision.entry_id: _kinds(decision) for decision in earlier}
    return objecting


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to oneself what a guard says that nobody goes on to use; errors are told."""
    logger = logging.getLogger("ragshield")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _objecting(report: Report) -> dict[str, list[str]]:
    """Return the detectors that object to each entry that is to be held."""
    return {decision.entry_id: _kinds(decision) for decision in report.quarantined}


def _kinds(decision: Decision) -> list[str]:
    return list(dict.fromkeys(f.detector for f in decision.findings if f.score > f.threshold))


def _parts(entries: Batch) -> Iterator[Batch]:
    for start in range(0, len(entries), BATCH):
        yield entries.take(range(start, min(start + BATCH, len(entries))))


def _opinions(scores: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(scores[np.isfinite(scores)].round(4).tolist())


def _typed(found: Sequence[list[str] | None]) -> tuple[list[list[str]], int]:
    """Return what was held, each with who objects, and how many there were."""
    return [kinds for kinds in found if kinds is not None], len(found)
