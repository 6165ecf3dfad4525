"""A trial: half of a corpus is the knowledge base, the rest comes, clean and with poison in it."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base.pieces import Progress
from ragshield_core.guard import Guard
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import CalibrationError, SourceError
from ragshield_core.model.findings import Skipped
from ragshield_core.model.p_values import clean_entries_needed
from ragshield_core.quarantine import Quarantine
from ragshield_core.tools.evaluate.attacks import (
    ATTACKS,
    LABEL_FLIPS,
    WORDINGS,
    Attack,
    Planted,
    Target,
    Wordings,
    flip_labels,
)
from ragshield_core.tools.evaluate.attacks.wordings import mark_of
from ragshield_core.tools.evaluate.figures import (
    CLEAN,
    REGIMES,
    Evaluation,
    Missed,
    Rate,
    Reached,
    Recall,
    Regime,
    WronglyHeld,
)
from ragshield_core.tools.evaluate.poison import Poison, check_names, embedded
from ragshield_core.tools.evaluate.streams import (
    STREAM,
    STREAMS,
    first_comings,
    objecting,
    parts,
    run,
    streams_of,
)
from ragshield_core.tools.evaluate.targets import targets_of

N_TARGETS = 10
# Texts of a target that come together, of attacks that have several.
SIZES = (1, 2, 3, 5)
BATCH = 100
# Clean entries that are screened one by one.
ALONE = 300
TOP_K = 5
# One in so many clean entries that come is given another label, at most.
MOST_FLIPPED = 10
# Questions about clean entries, to see what wrongly held ones cost.
N_QUESTIONS = 200
# Clean entries for each that may be held: detectors that share a rate need more than one alone.
ENOUGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrived:
    """Texts of an attack that came, so many for each target.

    Attributes
    ----------
    attack, regime, size
        As of :class:`~ragshield_core.tools.evaluate.figures.Recall`.
    targets
        Numbers of those whose texts came.
    kinds
        By the id of each text, who objects to it; ``None`` where nobody does.
    """

    attack: str
    regime: Regime
    size: int
    targets: list[int] = field(default_factory=list)
    kinds: dict[str, list[str] | None] = field(default_factory=dict)

    @property
    def recall(self) -> Recall:
        held = [kinds for kinds in self.kinds.values() if kinds is not None]
        return Recall(
            attack=self.attack,
            regime=self.regime,
            size=self.size,
            held=Rate(len(held), len(self.kinds)),
            by=dict(Counter(kind for kinds in held for kind in kinds).most_common()),
        )


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
    sizes: Sequence[int] = SIZES,
    stream: int = STREAM,
    streams: int = STREAMS,
    wordings: Wordings = WORDINGS,
    workers: int = 1,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Plant attacks into one's own corpus, and see what the default guard holds.

    Half of the corpus, by documents, is the knowledge base that the guard is fitted and calibrated
    on. The other half is clean and new. Texts of each attack come in three ways: the first one, two
    and so on of each target **alone**, with nothing else of the attack known; one by one in a
    **stream** of clean entries, one in a hundred poisoned, if there are several for a target; all
    in one **batch** with clean ones, which flatters.

    Parameters
    ----------
    entries
        The corpus, with texts and vectors; believed to be clean. At least twice as many as
        the rate needs: 2,000 at 1 %.
    embed
        Returns a vector for each of some texts, of the model that made the corpus's.
    attacks
        Recipes; by default all there are, as published.
        :meth:`~ragshield_core.tools.evaluate.attacks.Attack.at` makes them harder.
    label_flips
        Whether clean entries come under another label of the corpus as well, as many as there are
        targets; they are taken out of those that come clean. Without labels there are none.
    own
        Attack texts of one's own, as :func:`ragshield_core.tools.evaluate.attacks.read_attacks`
        returns them.
    targets
        Questions and wrong answers; ``None`` makes them from the corpus
        (:func:`~ragshield_core.tools.evaluate.targets_of`).
    n_targets
        How many targets, at most.
    fpr
        Accepted false-positive rate, (0, 1).
    top_k
        How many entries a question retrieves.
    sizes
        How many texts of a target come alone, one size after the other, of attacks that have
        several; each attack's own size is measured besides. Smaller groups are the first texts of
        larger ones, so that each text is embedded once.
    stream
        Clean entries of each stream, at most. Longer ones have the poison of more targets: one in
        a hundred.
    streams
        Streams of each attack, at most, each with other targets and other clean entries.
    wordings
        Of the recipes: ours, or :func:`~ragshield_core.tools.evaluate.attacks.own_wordings`.
    workers
        Processes that the streams are shared out to; 1, the default, starts none. More need a main
        module that can be imported without running, as ``multiprocessing`` does.
    seed
        Of everything that is drawn.
    folder
        Keeps what was found in streams, so that the same evaluation goes on where it was
        interrupted; ``None``, the default, keeps nothing.
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
    check_enough(len(known), fpr)  # before attacks are embedded
    if targets is None:
        targets = targets_of(known, n_targets, seed)
    targets = list(targets)[:n_targets]
    planted = [
        attack.plant(
            target,
            seed=1_000 * seed + number,
            size=max(attack.size, *sizes) if attack.size > 1 and sizes else attack.size,
            wordings=wordings,
        )
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
    poison = Poison(
        planted,
        entries,
        lambda texts: embedded(embed, texts, entries.dim, tell),
        {attack.name: attack.size for attack in attacks},
    )

    begin = time.perf_counter()
    tell("fitting", 0, 1)
    guard = Guard.default(fpr, quarantine=Quarantine("sqlite://"), seed=seed).fit(known)
    try:
        guard.calibrate()
    except CalibrationError as error:
        msg = f"{error} {_ask_for(len(known))}"
        raise CalibrationError(msg) from None
    fit_seconds = time.perf_counter() - begin
    tell("fitting", 1, 1)

    trial = _Trial(guard, known, rest, poison, tell)
    clean_alone = trial.clean_alone()
    alone = trial.alone(sizes)
    wrong, milliseconds = trial.clean_in_batches()
    batches = trial.in_batches()
    streamed, clean_streamed = trial.in_streams(stream, streams, seed, workers, folder)
    arrived = [*alone, *streamed, *batches]
    arrived.sort(key=lambda a: (poison.attacks.index(a.attack), REGIMES.index(a.regime), a.size))
    # What counts of each attack.
    main = [*(each for each in alone if poison.size_of(each.attack) == 1), *streamed]
    told = {attack.name: attack.told for attack in attacks}
    told[LABEL_FLIPS] = "clean entries under another label"
    return Evaluation(
        settings={
            "fpr": fpr,
            "top_k": top_k,
            "n_targets": len(targets),
            "sizes": list(sizes),
            "stream": min(stream, len(rest)),
            "streams": streams,
            "wordings": mark_of(wordings),
            "seed": seed,
        },
        n_known=len(known),
        n_clean=len(rest),
        false_positives={
            "alone": clean_alone,
            "batch": Rate(len(wrong), len(rest)),
            "stream": clean_streamed,
        },
        false_by=dict(Counter(kind for kinds in wrong.values() for kind in kinds).most_common()),
        recalls=tuple(each.recall for each in arrived),
        reached=tuple(trial.reached(main, top_k)),
        lost=trial.lost(wrong, top_k, seed),
        fit_seconds=fit_seconds,
        milliseconds=milliseconds,
        scores=dict(trial.scores),
        thresholds={name: float(value) for name, value in guard.calibration.thresholds.items()},
        idle=dict(trial.idle),
        recipes={name: told.get(name, "texts of one's own") for name in poison.attacks},
        missed=tuple(trial.missed(main)),
        wrongly_held=tuple(
            WronglyHeld(entry_id=entry_id, detectors=tuple(kinds))
            for entry_id, kinds in wrong.items()
        ),
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
    sizes = Counter(names)
    first, n = set(), 0
    for name in sorted(marks, key=marks.__getitem__):
        if n >= len(names) // 2:
            break
        first.add(name)
        n += sizes[name]
    mine = np.array([name in first for name in names], dtype=np.bool_)
    return entries.take(np.flatnonzero(mine)), entries.take(np.flatnonzero(~mine))


def check_enough(n_known: int, fpr: float) -> None:
    """Refuse a rate that so few known entries can in no case justify.

    Raises
    ------
    CalibrationError
        Says what would do.
    """
    if n_known < clean_entries_needed(fpr):
        msg = (
            f"the half of the corpus that is the knowledge base has {n_known} entries, too few for "
            f"a false-positive rate of {fpr:g}: {math.ceil(ENOUGH / fpr)} or more would do. "
            f"{_ask_for(n_known)}"
        )
        raise CalibrationError(msg)


def _ask_for(n_known: int) -> str:
    rate = math.ceil(100 * ENOUGH / max(1, n_known)) / 100
    if rate >= 1.0:
        return "Bring more entries."
    return f"Bring more entries, or accept a rate of {rate:g} (--fpr {rate:g})."


class _Trial:
    """What is done with one guard."""

    def __init__(
        self, guard: Guard, known: Batch, rest: Batch, poison: Poison, tell: Progress
    ) -> None:
        self._guard, self._known, self._rest = guard, known, rest
        self._poison, self._tell = poison, tell
        self.scores: dict[str, dict[str, tuple[float, ...]]] = defaultdict(dict)
        self.idle: dict[str, str] = {}

    def clean_alone(self) -> Rate:
        """Screen clean entries one by one."""
        n = min(ALONE, len(self._rest))
        held = 0
        for row in range(n):
            held += len(self._guard.screen(self._rest.take([row])).quarantined)
            self._tell("clean entries, alone", row + 1, n)
        return Rate(held, n)

    def alone(self, sizes: Sequence[int]) -> list[_Arrived]:
        """Screen the first texts of every target by themselves, by attack and how many they are."""
        poison = self._poison
        arrived = [
            _Arrived(attack=name, regime="alone", size=size, targets=poison.of_attack(name))
            for name in poison.attacks
            for size in poison.sizes_of(name, sizes)
        ]
        jobs = [
            (each, rows)
            for each in arrived
            for number in each.targets
            for rows in [poison.rows_of(number, each.size)]
            # Texts of one's own may be fewer for one target than for another: all of them come.
            if len(rows) == each.size or each.size == poison.size_of(each.attack)
        ]
        for done, (each, rows) in enumerate(jobs, start=1):
            report = self._guard.screen(poison.batch.take(rows))
            objected = objecting(report)
            each.kinds.update({i: objected.get(i) for i in report.batch.ids})
            self._tell("poison, alone", done, len(jobs))
        return arrived

    def clean_in_batches(self) -> tuple[dict[str, list[str]], float]:
        """Screen all clean entries in batches; return who objects to what, and the time of each."""
        wrong: dict[str, list[str]] = {}
        scores: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        seconds, done = 0.0, 0
        for part in parts(self._rest, BATCH):
            begin = time.perf_counter()
            report = self._guard.screen(part)
            seconds += time.perf_counter() - begin
            wrong |= objecting(report)
            for name, column in report.scores.items():
                scores[name].append(column)
            skipped = {item.detector: self._why(item) for item in report.skipped}
            unjudged = {item.detector: item.reason for item in report.unjudged}
            self.idle = unjudged | skipped | self.idle
            done += len(part)
            self._tell("clean entries, in batches", done, len(self._rest))
        for name, columns in scores.items():
            self.scores[name][CLEAN] = _opinions(np.concatenate(columns))
            if self.scores[name][CLEAN]:
                self.idle.pop(name, None)
        return wrong, 1_000.0 * seconds / len(self._rest)

    def _why(self, item: Skipped) -> str:
        """Return why a detector is not in force, with what it says itself of clean entries."""
        (detector,) = (each for each in self._guard.detectors if each.name == item.detector)
        said = dict.fromkeys(detector.unjudged(self._rest).values())
        return ": ".join([item.reason, *said])

    def in_batches(self) -> list[_Arrived]:
        """Screen all texts of each attack at once, with a hundred clean ones."""
        found = []
        clean = self._rest.take(range(min(BATCH, len(self._rest))))
        for done, name in enumerate(self._poison.attacks, start=1):
            numbers = self._poison.of_attack(name)
            rows = np.concatenate([self._poison.rows_of(number) for number in numbers])
            texts = self._poison.batch.take(rows)
            report = self._guard.screen(concatenate([texts, clean]))
            objected = objecting(report)
            kinds = {entry_id: objected.get(entry_id) for entry_id in texts.ids}
            size = self._poison.size_of(name)
            found.append(
                _Arrived(attack=name, regime="batch", size=size, targets=numbers, kinds=kinds)
            )
            for kind, column in report.scores.items():
                self.scores[kind][name] = _opinions(column[: len(texts)])
            self._tell("poison, in batches", done, len(self._poison.attacks))
        return found

    def in_streams(
        self, length: int, n_streams: int, seed: int, workers: int, folder: Path | None
    ) -> tuple[list[_Arrived], Rate]:
        """Let the texts of each target trickle in among clean entries, by a guard that begins anew.

        Texts that are made to be alone are judged alone. Of a clean entry, the first stream that it
        is in counts.
        """
        streams = streams_of(self._poison, len(self._rest), length, n_streams, seed)
        results = run(
            streams,
            self._guard,
            self._known,
            concatenate([self._rest, self._poison.batch]),
            workers=workers,
            folder=folder,
            done=lambda n: self._tell("poison, in streams", n, len(streams)),
        )
        found: dict[str, _Arrived] = {}
        false = Rate(0, 0)
        fresh = first_comings(streams, len(self._rest))
        for stream, held, new in zip(streams, results, fresh, strict=True):
            size = self._poison.size_of(stream.attack)
            arrived = found.setdefault(
                stream.attack, _Arrived(attack=stream.attack, regime="stream", size=size)
            )
            arrived.targets.extend(stream.targets)
            for number in stream.targets:
                ids = (self._poison.batch.ids[row] for row in self._poison.rows_of(number))
                arrived.kinds.update({entry_id: held.get(entry_id) for entry_id in ids})
            hits = sum(self._rest.ids[row] in held for row in new.tolist())
            false = Rate(false.hits + hits, false.n + len(new))
        return list(found.values()), false

    def reached(self, arrived: Sequence[_Arrived], top_k: int) -> Iterator[Reached]:
        """Yield for how many questions of an attack poison is among the nearest, and stays so."""
        for each in arrived:
            n, before, after = 0, 0, 0
            for number in each.targets:
                question = self._poison.planted[number].question
                if question is None:
                    continue
                vector = self._poison.questions[question]
                clean = self._known.embeddings @ vector
                k = min(top_k, len(clean))
                least = np.partition(clean, -k)[-k]
                rows = self._poison.rows_of(number)
                near = self._poison.batch.embeddings[rows] @ vector > least
                stays = np.array([each.kinds[self._poison.batch.ids[row]] is None for row in rows])
                n += 1
                before += bool(near.any())
                after += bool((near & stays).any())
            if n:
                yield Reached(attack=each.attack, before=Rate(before, n), after=Rate(after, n))

    def missed(self, arrived: Sequence[_Arrived]) -> Iterator[Missed]:
        """Yield the texts that nobody objects to."""
        texts = dict(zip(self._poison.batch.ids, self._poison.batch.texts, strict=True))
        for each in arrived:
            for entry_id, kinds in each.kinds.items():
                if kinds is None:
                    exact = f"{len(each.attack)}:{each.attack}{texts[entry_id]}"
                    data = exact.encode("utf-8", "surrogatepass")
                    mark = hashlib.blake2b(data, digest_size=16).hexdigest()
                    yield Missed(
                        entry_id=entry_id, attack=each.attack, regime=each.regime, mark=mark
                    )

    def lost(self, held: Collection[str], top_k: int, seed: int) -> Rate:
        """Return for how many clean entries one of the nearest is missing as it was held."""
        everything = np.concatenate([self._known.embeddings, self._rest.embeddings])
        out = np.array([entry_id in held for entry_id in self._rest.ids], dtype=np.bool_)
        missing = np.concatenate([np.zeros(len(self._known), dtype=np.bool_), out])
        n = min(N_QUESTIONS, len(everything))
        chosen = np.random.default_rng(seed).permutation(len(everything))[:n]
        similar = everything[chosen] @ everything.T
        similar[np.arange(n), chosen] = -np.inf  # not itself
        k = min(top_k, similar.shape[1] - 1)
        nearest = np.argpartition(-similar, k - 1, axis=1)[:, :k]
        return Rate(int(missing[nearest].any(axis=1).sum()), n)


def _opinions(scores: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(scores[np.isfinite(scores)].round(4).tolist())
