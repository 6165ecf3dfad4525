"""A trial: half of a corpus is the knowledge base, the rest arrives, clean and with poison."""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing import get_context

import numpy as np
from numpy.typing import ArrayLike

from ragshield_core.guard import Guard
from ragshield_core.logs import quiet
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import CalibrationError, SourceError
from ragshield_core.model.findings import Decision, Report
from ragshield_core.model.p_values import clean_entries_needed
from ragshield_core.quarantine import Quarantine
from ragshield_core.store.keeper import Progress
from ragshield_core.tools.defaults import N_TARGETS, SIZES, STREAM, STREAMS, TOP_K
from ragshield_core.tools.evaluate.attacks import (
    ATTACKS,
    LABEL_FLIPS,
    Attack,
    Planted,
    Target,
    flip_labels,
)
from ragshield_core.tools.evaluate.figures import (
    REGIMES,
    Evaluation,
    Missed,
    Rate,
    Reached,
    Recall,
    Regime,
)
from ragshield_core.tools.evaluate.poison import Poison, Stream, check_names
from ragshield_core.tools.evaluate.targets import targets_of

BATCH = 100
# Clean entries that are screened one by one.
ALONE = 300
# At most one in this many new clean entries gets another label.
MOST_FLIPPED = 10
# Number of questions about clean entries, to measure the cost of wrongly held ones.
N_QUESTIONS = 200
# Recommended multiple of 1 / rate: detectors that share a rate need more entries than one alone.
ENOUGH = 3


# Entries of a stream that arrive at once: two texts of a target seldom do.
AT_ONCE = 50

# Objecting detectors, by the id of each entry that is held or taken back.
Held = Mapping[str, list[str]]


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
    workers: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Plant attacks into your own corpus, and measure the share that the default guard holds.

    Half of the corpus, by documents, is the knowledge base that the guard is fitted and calibrated
    on. The other half is clean and new. Texts of each attack arrive in three ways: the first one,
    two and so on of each target **alone**, with nothing else of the attack known; one by one in a
    **stream** of clean entries, one in a hundred poisoned, if there are several for a target; all
    in one **batch** with clean ones, which flatters the guard.

    Parameters
    ----------
    entries
        The corpus, with texts and vectors; believed to be clean. It needs at least twice as many
        entries as the rate needs: 2,000 at 1 %.
    embed
        Returns a vector for each text, by the model that made the corpus's vectors.
    attacks
        Recipes; by default all recipes, as published.
        :meth:`~ragshield_core.tools.evaluate.attacks.Attack.at` makes them harder.
    label_flips
        Whether to give clean entries another label of the corpus as well, as many as there are
        targets; they no longer count as clean. Without labels there are none.
    own
        Your own attack texts, as :func:`ragshield_core.tools.evaluate.attacks.read_attacks`
        returns them.
    targets
        Questions and wrong answers; ``None`` makes them from the corpus
        (:func:`~ragshield_core.tools.evaluate.targets_of`).
    n_targets
        Maximum number of targets.
    fpr
        Accepted false-positive rate, (0, 1).
    top_k
        Number of entries that a question retrieves.
    sizes
        Numbers of texts of a target that arrive alone, one size after the other, for attacks that
        have several; each attack's own size is measured, too. Smaller groups are the first texts
        of larger ones, so that each text is embedded once.
    stream
        Maximum number of clean entries of a stream. Longer streams have the poison of more
        targets: one entry in a hundred.
    streams
        Maximum number of streams of an attack, each with other targets and other clean entries.
    workers
        Processes that share the streams; 1, the default, starts none. More need a main module
        that can be imported without running, as ``multiprocessing`` imports it.
    seed
        Seed of all random choices.
    progress
        Called with the step, the number done and the total.

    Raises
    ------
    CalibrationError
        If the corpus is too small for the rate; names a rate that would do.
    InvalidBatchError
        If the model returns vectors of another length than the corpus's, or others for its texts.
    SourceError
        If the corpus is a single document, no questions can be made of it, or own attack texts have
        the name of a recipe.
    ValueError
        If no text can be planted.

    Notes
    -----
    Synthetic questions and wordings vary less than those of people and language models. Texts of
    one target are held together, so that intervals, which treat them as independent, are too narrow
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
    tell("embedding the attacks", 0, 1)
    poison = Poison(planted, entries, embed, {attack.name: attack.size for attack in attacks})
    tell("fitting", 0, 1)
    begin = time.perf_counter()
    guard = Guard.default(fpr, quarantine=Quarantine("sqlite://"), seed=seed).fit(known)
    try:
        guard.calibrate()
    except CalibrationError as error:
        msg = f"{error} {_ask_for(len(known))}"
        raise CalibrationError(msg) from None
    fit_seconds = time.perf_counter() - begin
    tell("fitting", 1, 1)

    clean_alone = _clean_alone(guard, rest, tell)
    alone = _alone(guard, poison, sizes, tell)
    wrong, idle, milliseconds = _clean_in_batches(guard, rest, tell)
    batches = _in_batches(guard, rest, poison, tell)
    comings = poison.streams(len(rest), stream, streams, seed)
    held = _run(comings, guard, concatenate([rest, poison.batch]), workers, tell)
    streamed, clean_streamed = _in_streams(comings, held, rest, poison)
    arrived = [*alone, *streamed, *batches]
    arrived.sort(key=lambda a: (poison.attacks.index(a.attack), REGIMES.index(a.regime), a.size))
    # The main results of each attack.
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
            "seed": seed,
        },
        n_known=len(known),
        n_clean=len(rest),
        false_positives={
            "alone": clean_alone,
            "batch": Rate(len(wrong), len(rest)),
            "stream": clean_streamed,
        },
        false_by=_counts(wrong.values()),
        recalls=tuple(each.recall for each in arrived),
        reached=tuple(_reached(main, known, poison, top_k)),
        lost=_lost(known, rest, wrong, top_k, seed),
        fit_seconds=fit_seconds,
        milliseconds=milliseconds,
        idle=idle,
        recipes={name: told.get(name, "texts of one's own") for name in poison.attacks},
        missed=tuple(_missed(main, poison)),
        wrongly_held={entry_id: tuple(kinds) for entry_id, kinds in wrong.items()},
    )


def halves(entries: Batch, seed: int = 0) -> tuple[Batch, Batch]:
    """Return two random halves of a corpus; chunks of one document stay together."""
    names = [
        f"\0{row}" if lineage is None else lineage for row, lineage in enumerate(entries.lineages)
    ]
    # By hashes of names, so that a growing corpus keeps its halves.
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
    """Refuse a rate that needs more known entries; name the number or the rate that would do."""
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


@dataclass
class _Arrived:
    """Results for the texts of an attack that arrived, ``size`` for each target."""

    attack: str
    regime: Regime
    size: int
    targets: list[int]
    # Objecting detectors, by the id of each text; None if it was not held.
    kinds: dict[str, list[str] | None] = field(default_factory=dict)

    def came(self, ids: Iterable[str], held: Held) -> None:
        """Record the results for some texts."""
        self.kinds.update({entry_id: held.get(entry_id) for entry_id in ids})

    @property
    def recall(self) -> Recall:
        held = [kinds for kinds in self.kinds.values() if kinds is not None]
        return Recall(
            attack=self.attack,
            regime=self.regime,
            size=self.size,
            held=Rate(len(held), len(self.kinds)),
            by=_counts(held),
        )


def _counts(kinds: Iterable[Sequence[str]]) -> dict[str, int]:
    """Return the number of entries that each detector objects to, the most frequent first."""
    return dict(Counter(kind for each in kinds for kind in each).most_common())


def _kinds(decision: Decision) -> list[str]:
    """Return the detectors whose thresholds an entry is above."""
    return list(dict.fromkeys(f.detector for f in decision.findings if f.score > f.threshold))


def _objecting(report: Report) -> dict[str, list[str]]:
    """Return the objecting detectors by the id of each entry to be held."""
    return {decision.entry_id: _kinds(decision) for decision in report.quarantined}


def _parts(entries: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(entries), size):
        yield entries.take(range(start, min(start + size, len(entries))))


def _clean_alone(guard: Guard, rest: Batch, tell: Progress) -> Rate:
    """Screen clean entries one by one."""
    n, held = min(ALONE, len(rest)), 0
    for row in range(n):
        held += len(guard.screen(rest.take([row])).quarantined)
        tell("clean entries, alone", row + 1, n)
    return Rate(held, n)


def _alone(guard: Guard, poison: Poison, sizes: Sequence[int], tell: Progress) -> list[_Arrived]:
    """Screen the first texts of every target by themselves, by attack and number of texts."""
    arrived = [
        _Arrived(name, "alone", size, poison.of_attack(name))
        for name in poison.attacks
        for size in poison.sizes_of(name, sizes)
    ]
    for done, each in enumerate(arrived, start=1):
        for number in each.targets:
            rows = poison.rows_of(number, each.size)
            # A target may have fewer own texts than another: all of them arrive.
            if len(rows) == each.size or each.size == poison.size_of(each.attack):
                report = guard.screen(poison.batch.take(rows))
                each.came(report.batch.ids, _objecting(report))
        tell("poison, alone", done, len(arrived))
    return arrived


def _clean_in_batches(
    guard: Guard, rest: Batch, tell: Progress
) -> tuple[dict[str, list[str]], dict[str, str], float]:
    """Screen all clean entries in batches.

    Returns the objecting detectors of each held entry, the reasons of detectors that judge nothing,
    and the milliseconds of an entry.
    """
    wrong: dict[str, list[str]] = {}
    idle: dict[str, str] = {}
    judging: set[str] = set()
    seconds, done = 0.0, 0
    for part in _parts(rest, BATCH):
        begin = time.perf_counter()
        report = guard.screen(part)
        seconds += time.perf_counter() - begin
        wrong |= _objecting(report)
        judging |= {name for name, scores in report.scores.items() if np.isfinite(scores).any()}
        reasons = {item.detector: item.reason for item in report.unjudged}
        for item in report.skipped:  # with the detector's own reasons
            (detector,) = (each for each in guard.detectors if each.name == item.detector)
            said = dict.fromkeys(detector.unjudged(rest).values())
            reasons[item.detector] = ": ".join([item.reason, *said])
        idle = reasons | idle
        done += len(part)
        tell("clean entries, in batches", done, len(rest))
    idle = {name: why for name, why in idle.items() if name not in judging}
    return wrong, idle, 1_000.0 * seconds / len(rest)


def _in_batches(guard: Guard, rest: Batch, poison: Poison, tell: Progress) -> list[_Arrived]:
    """Screen all texts of each attack at once, with a hundred clean ones."""
    found = []
    clean = rest.take(range(min(BATCH, len(rest))))
    for done, name in enumerate(poison.attacks, start=1):
        each = _Arrived(name, "batch", poison.size_of(name), poison.of_attack(name))
        texts = poison.batch.take(np.concatenate([poison.rows_of(n) for n in each.targets]))
        each.came(texts.ids, _objecting(guard.screen(concatenate([texts, clean]))))
        found.append(each)
        tell("poison, in batches", done, len(poison.attacks))
    return found


def _run(
    streams: Sequence[Stream], guard: Guard, entries: Batch, workers: int, tell: Progress
) -> list[Held]:
    """Return the objecting detectors of each held entry, by stream; each has a fresh guard."""
    coming = [entries.take(stream.rows) for stream in streams]
    found: list[Held] = []
    with tempfile.TemporaryDirectory() as saved, ExitStack() as stack:
        guard.save(saved)
        run: Callable[..., Iterable[Held]] = map
        if min(workers, len(streams)) > 1:
            # A forked process inherits the locks of threads that it does not have.
            pool = ProcessPoolExecutor(min(workers, len(streams)), get_context("spawn"))
            run = stack.enter_context(pool).map
        for held in run(_streamed, repeat(saved), coming):
            found.append(held)
            tell("poison, in streams", len(found), len(streams))
    return found


def _streamed(saved: str, whole: Batch) -> Held:
    """Return the objecting detectors of each entry of a stream that is held or taken back."""
    row_of = {entry_id: row for row, entry_id in enumerate(whole.ids)}
    held: dict[str, list[str]] = {}
    with quiet():
        guard = Guard.load(saved, quarantine=Quarantine("sqlite://"))
        for part in _parts(whole, AT_ONCE):
            report = guard.hold(guard.screen(part))
            earlier = [d for d in report.retroactive if d.entry_id in row_of]
            if earlier:
                taken = [row_of[decision.entry_id] for decision in earlier]
                guard.recall(whole.take(taken), earlier, lambda _: None)
            guard.admit(report)
            held |= _objecting(report)
            held |= {decision.entry_id: _kinds(decision) for decision in earlier}
    return held


def _in_streams(
    streams: Sequence[Stream], results: Sequence[Held], rest: Batch, poison: Poison
) -> tuple[list[_Arrived], Rate]:
    """Return the results for attacks, and the rate of held clean entries, in streams.

    A clean entry counts in its first stream only.
    """
    found: dict[str, _Arrived] = {}
    seen: set[int] = set()
    hits = 0
    for stream, held in zip(streams, results, strict=True):
        name = stream.attack
        each = found.setdefault(name, _Arrived(name, "stream", poison.size_of(name), []))
        each.targets.extend(stream.targets)
        for number in stream.targets:
            each.came(poison.ids_of(number), held)
        new = {row for row in stream.rows.tolist() if row < len(rest)} - seen
        hits += sum(rest.ids[row] in held for row in new)
        seen |= new
    return list(found.values()), Rate(hits, len(seen))


def _reached(
    arrived: Sequence[_Arrived], known: Batch, poison: Poison, top_k: int
) -> Iterator[Reached]:
    """Yield the shares of questions with poison among the nearest, before and after screening."""
    for each in arrived:
        n, before, after = 0, 0, 0
        for number in each.targets:
            question = poison.planted[number].question
            if question is None:
                continue
            vector = poison.questions[question]
            clean = known.embeddings @ vector
            k = min(top_k, len(clean))
            near = (
                poison.batch.embeddings[poison.rows_of(number)] @ vector
                > np.partition(clean, -k)[-k]
            )
            stays = np.array([each.kinds[entry_id] is None for entry_id in poison.ids_of(number)])
            n += 1
            before += bool(near.any())
            after += bool((near & stays).any())
        if n:
            yield Reached(attack=each.attack, before=Rate(before, n), after=Rate(after, n))


def _missed(arrived: Sequence[_Arrived], poison: Poison) -> Iterator[Missed]:
    """Yield the texts that were not held."""
    texts = dict(zip(poison.batch.ids, poison.batch.texts, strict=True))
    for each in arrived:
        for entry_id, kinds in each.kinds.items():
            if kinds is None:
                data = f"{len(each.attack)}:{each.attack}{texts[entry_id]}"
                mark = hashlib.blake2b(data.encode("utf-8", "surrogatepass"), digest_size=16)
                yield Missed(
                    entry_id=entry_id, attack=each.attack, regime=each.regime, mark=mark.hexdigest()
                )


def _lost(known: Batch, rest: Batch, held: Collection[str], top_k: int, seed: int) -> Rate:
    """Return the share of clean entries that miss a held entry among their nearest ones."""
    everything = np.concatenate([known.embeddings, rest.embeddings])
    missing = np.array([False] * len(known) + [entry_id in held for entry_id in rest.ids])
    n = min(N_QUESTIONS, len(everything))
    chosen = np.random.default_rng(seed).permutation(len(everything))[:n]
    similar = everything[chosen] @ everything.T
    similar[np.arange(n), chosen] = -np.inf  # not itself
    k = min(top_k, similar.shape[1] - 1)
    nearest = np.argpartition(-similar, k - 1, axis=1)[:, :k]
    return Rate(int(missing[nearest].any(axis=1).sum()), n)
