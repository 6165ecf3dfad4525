"""Scores of a batch and of recent entries by the phrases that they contain."""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.counts import (
    EMPTY,
    N_ORDERS,
    PAIRS,
    TAIL,
    Background,
    Grams,
    found_in,
    order_of,
)
from ragshield_core.detectors.phrase.memory import Memory, closeness
from ragshield_core.detectors.phrase.sample import BORDER, PLACES, Places
from ragshield_core.model.entries import Batch

logger = logging.getLogger("ragshield")

# Fewest recent holders of a suspicious n-gram, as a multiple of the expected number: below it, too
# many holders are innocent to condemn them all, even if some certainly are not.
MIN_LIFT = 4.0
# Texts that share this part of their three-word phrases are copies, and count once.
SAME_TEXT = 0.5
# Entries are scattered if their mean similarity to each other is less than this many standard
# deviations above the mean of stored entries: three in ten are closer.
CLOSE = 0.5
# A planted phrase is at most a quarter of a text.
MOST_OF_TEXT = 4
# Latest updates of a source that show whether it changes its template.
UPDATES = 50
# Most n-grams that are tested exactly, the most suspicious first.
MAX_CANDIDATES = 20_000
# An entry is at home in the knowledge base if it is more like it than this share of its own
# entries, by texts and vectors together (see :mod:`.memory`).
AT_HOME = 0.6
# Entries of the knowledge base have a mean likeness of a half, those of its lower half of a
# quarter; entries of other sources mostly have less. Clearly more means like the knowledge base.
LIKE = 0.33
# Phrases up to the first score are not tested exactly: every batch has some by chance. Their scores
# are upper limits, down to the second value.
FAINT, NOTHING = 0.0, -2.0
# An entry has a phrase if it has this share of its n-grams: a change of the middle one of five
# words removes half of them.
WHOLE = 0.25
# From this score on, a phrase counts as certain, and its parts are tested as parts of it.
SURE = 2.0
# Most phrases that are distinguished in one batch, the most suspicious ones.
MAX_PHRASES = 256


class Phrase(NamedTuple):
    """A suspicious phrase, on which scores are based."""

    score: float
    hashes: tuple[int, ...]  # the most suspicious n-gram, then the other parts
    n_recent: int  # recent entries with it
    n_known: float
    expected: float
    example: int  # a row of the batch with it
    ids: tuple[str, ...]  # of recent entries and of entries of the batch with it
    witnesses: frozenset[int]  # rows of these entries that are evidence for it


class PhraseJudgement(NamedTuple):
    """Scores of a batch and of recent entries, and the phrases behind them."""

    scores: NDArray[np.float64]  # (n_batch,)
    recent: NDArray[np.float64]  # (n_recent,), -inf without an opinion
    why: NDArray[np.int64]  # (n_batch + n_recent,): of phrases, -1 for none
    phrases: list[Phrase]
    places: Places  # of the batch
    n_recent: int  # counted entries


class Tests:
    """Tests of n-grams, each for too many recent entries among its holders."""

    def __init__(
        self,
        hashes: NDArray[np.uint32],
        background: Background,
        share: NDArray[np.float64],  # (N_ORDERS,): of all text that is recent
        part: float,  # of the knowledge base that recent entries are compared with
    ) -> None:
        self.hashes = hashes
        self.orders = order_of(hashes)
        self.known = part * background.of(hashes)
        self.share, self.odds = share[self.orders], (share / (1.0 - share))[self.orders]
        # Logarithm of the number of n-grams tested at once, by order and number of holders.
        self._log_tests = np.log10(background.tail * N_ORDERS)
        self._log_parts = np.full(len(hashes), np.inf)  # less for parts of a known phrase

    def scores(self, recent: NDArray[Any]) -> NDArray[np.float64]:
        """Return the corrected surprisal for numbers of recent holders, shape (n_hashes,)."""
        more = np.flatnonzero(recent > self.known)
        usual = self.known[more] * self.odds[more]
        more = more[recent[more] > MIN_LIFT * usual]
        surprisal = np.zeros(len(recent))
        held, known, share = recent[more], self.known[more], self.share[more]
        with np.errstate(divide="ignore", invalid="ignore"):
            part = held / (held + known)
            tail = held * np.log(part / share)
            rest = known * np.log((1.0 - part) / (1.0 - share))
            surprisal[more] = np.where(known > 0, tail + rest, tail) / math.log(10.0)
        frequent = np.minimum(recent + self.known, TAIL - 1).astype(np.int64)
        frequent += self.orders * TAIL
        surprisal -= np.minimum(self._log_tests.ravel()[frequent], self._log_parts)
        return surprisal

    def relate(self, parts: NDArray[np.int64]) -> None:
        """Correct these n-grams for each other only from now on: they are parts of one phrase."""
        self._log_parts[parts] = np.minimum(self._log_parts[parts], math.log10(max(1, len(parts))))


class Holding(NamedTuple):
    """Pairs of entry and n-gram, ordered by n-gram and copies; shape (n_pairs,) each."""

    rows: NDArray[np.int64]
    which: NDArray[np.int64]
    copies: NDArray[np.int64]  # the same number for copies of one text
    lineages: NDArray[np.int64]  # the same number for n-gram and document, counted from 0
    close: NDArray[np.bool_]  # whether the other holders of the n-gram are close to the entry

    def take(self, kept: NDArray[np.bool_]) -> Holding:
        """Return some of the pairs."""
        return Holding(*(column[kept] for column in self))  # type: ignore[arg-type]

    def counted(self, n_grams: int, large: float) -> NDArray[np.float64]:
        """Return the number of entries with each n-gram.

        Copies count once. Entries of one document count as their number divided by ``large``, the
        size of a large document, but at least as one.
        """
        first = np.ones(len(self.rows), dtype=np.bool_)
        first[1:] = (self.which[1:] != self.which[:-1]) | (self.copies[1:] != self.copies[:-1])
        which, lineages = self.which[first], self.lineages[first]
        gram = np.zeros(int(lineages.max(initial=-1)) + 1, dtype=np.int64)
        gram[lineages] = which
        number = np.bincount(lineages, minlength=len(gram))
        number = np.where(number > 0, np.maximum(1.0, number / large), 0.0)
        return np.asarray(np.bincount(gram, number, minlength=n_grams), dtype=np.float64)


class Carriers(NamedTuple):
    """Tests of the entries that carry a phrase."""

    plain: Tests  # of all scattered entries
    at_home: Tests  # of those that are more usual than most of the knowledge base
    likeness: NDArray[np.float64]  # (n,): of entries
    large: float  # number of entries of a large document

    def scores(self, holding: Holding) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the surprisal of each n-gram, and whether its holders are like the knowledge base.

        Only scattered holders count: all of them if they are like the knowledge base on average.
        Those at home in it also count by themselves, against its entries that are as usual: further
        entries with the phrase cannot reduce their number.
        """
        n_grams = len(self.plain.hashes)
        likeness = self.likeness[holding.rows]
        far = ~holding.close
        number = np.maximum(1, np.bincount(holding.which[far], minlength=n_grams))
        total = np.bincount(holding.which[far], likeness[far], minlength=n_grams)
        # A mean of few may exceed it by chance: add one standard error of a uniform distribution.
        like = total / number >= LIKE + 1.0 / np.sqrt(12.0 * number)
        together = self.plain.scores(holding.take(far).counted(n_grams, self.large))
        usual = holding.take(far & (likeness >= AT_HOME))
        alone = self.at_home.scores(usual.counted(n_grams, self.large))
        return np.maximum(np.where(like, together, NOTHING), alone), like


def judge(
    memory: Memory, batch: Batch, grams: Grams, overlooked: frozenset[str], detector: str
) -> PhraseJudgement:
    """Return the scores of a batch and of recent entries, and the phrases behind them.

    ``overlooked`` are ids of entries that the batch replaces; ``detector`` is a name for the log.
    """
    background, recent, n_batch = memory.background, memory.recent, len(batch)
    ids = [*batch.ids, *recent["id"].tolist()]
    n = len(ids)
    again = {*batch.ids, *overlooked}  # a new revision counts instead of the old one
    counted = np.ones(n, dtype=np.bool_)
    counted[n_batch:] = [entry_id not in again for entry_id in ids[n_batch:]]
    fresh = counted.copy()
    fresh[n_batch:] &= ~recent["held"]
    n_fresh = max(1.0, float(fresh.sum()))
    n_words = float(fresh @ np.concatenate([grams.sizes(), memory.recent["size"]]))

    def share(part: float) -> NDArray[np.float64]:
        """Return, by order, the recent share of text or of entries, whichever is larger."""
        known = background.n_grams
        texts = known / max(1, known.sum()) * n_words
        by_text = texts / np.maximum(1, texts + part * known)
        by_entries = n_fresh / (n_fresh + max(1.0, part * background.n_entries))
        return np.asarray(np.minimum(np.maximum(by_text, by_entries), 1.0 - 1e-6))

    shares = share(1.0), share(1.0 - AT_HOME)
    faint, candidates = _candidates(memory, grams, shares[0])
    scores = np.full(n_batch, NOTHING)
    first = np.flatnonzero(np.diff(grams.rows, prepend=-1))  # n-gram of each text
    if len(first):
        rows = grams.rows[first]
        scores[rows] = np.maximum(scores[rows], np.maximum.reduceat(faint, first))
    mine = memory.sample.places(batch, grams, background)
    found, why = np.full(n, -np.inf), np.full(n, -1, dtype=np.int64)
    phrases, holders = [], np.empty(0, dtype=np.int64)
    holding = _holding(memory, batch, grams, candidates, counted, shares[0])
    if holding is not None:
        kept = ~_of_templates(memory, batch, holding, len(candidates), overlooked, detector)
        holding = holding.take(kept)
        holders, owner = np.unique(holding.rows, return_inverse=True)
        new, old = _parted(holders, n_batch)
        places = {name: np.concatenate([mine[name][new], recent[name][old]]) for name in PLACES}
        scored, reasons = np.full(len(holders), -np.inf), np.full(len(holders), -1)
        holding = holding._replace(rows=owner)
        phrases = _phrases(memory, holding, candidates, places, shares, scored, reasons)
        found[holders], why[holders] = scored, reasons
    return PhraseJudgement(
        scores=np.maximum(scores, found[:n_batch]),
        recent=found[n_batch:],
        why=why,
        phrases=[
            phrase._replace(
                ids=tuple(ids[row] for row in holders[named].tolist()),
                example=int(holders[phrase.example]),
                witnesses=frozenset(holders[list(phrase.witnesses)].tolist()),
            )
            for phrase, named in phrases
        ],
        places=mine,
        n_recent=int(np.count_nonzero(counted)),
    )


def planted_in(judgement: PhraseJudgement, background: Background) -> dict[int, NDArray[np.uint32]]:
    """Return, by row of the batch, the n-grams of its phrase, for entries that have one.

    Parts of the phrase that a known entry has are left out: they are usual words.
    """
    found: dict[int, NDArray[np.uint32]] = {}
    for number, phrase in enumerate(judgement.phrases):
        hashes = np.array(phrase.hashes, dtype=np.uint32)
        new = background.of(hashes) == 0.0
        new[0] = True
        mine = np.flatnonzero(judgement.why[: len(judgement.scores)] == number)
        found |= dict.fromkeys(mine.tolist(), hashes[new])
    return found


def _candidates(
    memory: Memory, grams: Grams, share: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
    """Return a faint score for each n-gram of a batch, and the n-grams that may score more.

    Counts by hash are upper limits: no suspicious n-gram is lost.
    """
    hashes = grams.hashes
    bits = min(22, max(10, (2 * len(hashes)).bit_length()))
    mine = (hashes * np.uint32(0x85EBCA6B)) >> np.uint32(32 - bits)
    counts = np.bincount(mine, minlength=1 << bits)[mine] + memory.at_most(hashes)
    several = np.flatnonzero(counts > 1)
    tests = Tests(hashes[several], memory.background, share, 1.0 - AT_HOME)
    upper = tests.scores(counts[several].astype(np.float64))
    faint = np.full(len(hashes), NOTHING)
    faint[several] = np.minimum(upper, FAINT)
    close = upper > FAINT
    candidates, first = np.unique(tests.hashes[close], return_index=True)
    if len(candidates) > MAX_CANDIDATES:
        best = np.argsort(-upper[close][first], kind="stable")[:MAX_CANDIDATES]
        candidates = np.sort(candidates[best])
    return faint, candidates


def _holding(
    memory: Memory,
    batch: Batch,
    grams: Grams,
    candidates: NDArray[np.uint32],
    counted: NDArray[np.bool_],
    share: NDArray[np.float64],
) -> Holding | None:
    """Return the candidates in entries of the batch and recent ones, ``None`` if all are faint."""
    if not candidates.size:
        return None
    mine, place = found_in(candidates, grams.hashes)
    lenient = Tests(candidates, memory.background, share, 1.0 - AT_HOME)
    # With few texts, most candidates only share a cell with other n-grams.
    most = np.bincount(place, minlength=len(candidates)) + memory.at_most(candidates)
    if not (lenient.scores(most.astype(np.float64)) > FAINT).any():
        return None
    n_batch, recent = len(batch), memory.recent
    rows, which = memory.holders(candidates)
    there = counted[n_batch + rows]
    rows = np.concatenate([grams.rows[mine], rows[there] + n_batch])
    which = np.concatenate([place, which[there]])
    holders, owner = np.unique(rows, return_inverse=True)
    new, old = _parted(holders, n_batch)
    copies = copies_in(np.concatenate([grams.sketches()[new], recent["sketch"][old]]))
    numbers: dict[str, int] = {}
    lineages = np.array(
        [
            row if name is None else numbers.setdefault(name, row)
            for row, name in enumerate(
                [*map(batch.lineages.__getitem__, new.tolist()), *recent["lineage"][old].tolist()]
            )
        ],
        dtype=np.int64,
    )
    order = np.lexsort((copies[owner], which))
    rows, which, owner = rows[order], which[order], owner[order]
    by_lineage = np.unique(which * len(lineages) + lineages[owner], return_inverse=True)[1]
    return Holding(rows, which, copies[owner], by_lineage, np.zeros(len(rows), dtype=np.bool_))


def _parted(rows: NDArray[np.int64], n_batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the batch among rows, and the places of the others in recent entries."""
    return rows[rows < n_batch], rows[rows >= n_batch] - n_batch


def _of_templates(
    memory: Memory,
    batch: Batch,
    holding: Holding,
    n_grams: int,
    overlooked: frozenset[str],
    detector: str,
) -> NDArray[np.bool_]:
    """Mark pairs of an entry and a phrase that belongs to a new template of its source.

    At least half of the latest updates of the source have it: a name, footer, box or template
    has changed. Only the entries of that source are excused.
    """
    recent, rows, which = memory.recent, holding.rows, holding.which
    mine = [
        entry_id in overlooked or bool(overlooked and name in memory.lineages)
        for entry_id, name in zip(batch.ids, batch.lineages, strict=True)
    ]
    updated = np.array([*mine, *recent["update"].tolist()], dtype=np.bool_)
    sources = [*batch.sources, *recent["source"].tolist()]
    templates = np.zeros(len(rows), dtype=np.bool_)
    n_batch, n = len(batch), len(updated)
    arrived = np.concatenate([np.arange(n_batch, n), np.arange(n_batch)])  # oldest first
    updates = arrived[updated[arrived]].tolist()
    for source in {sources[row] for row in updates}:
        latest = [row for row in updates if sources[row] == source][-UPDATES:]
        number = np.bincount(which[marked(np.array(latest), n)[rows]], minlength=n_grams)
        usual = (number > 1) & (2 * number >= len(latest))
        if usual.any():
            same = np.array([name == source for name in sources], dtype=np.bool_)
            of_template = same[rows] & usual[which]
            # Words next to a new template form new phrases with it.
            templates |= of_template | (marked(rows[of_template], n) & updated)[rows]
            last = latest[-1] - n_batch
            logger.info(
                "%s: %d of the latest %d updates of a source bring the same phrases, which "
                "are taken for a new template; the last of them is %r",
                *(detector, int(number.max()), len(latest)),
                recent["id"][last] if last >= 0 else "",
            )
    return templates


def _phrases(
    memory: Memory,
    holding: Holding,
    candidates: NDArray[np.uint32],
    places: Places,
    shares: tuple[NDArray[np.float64], NDArray[np.float64]],
    found: NDArray[np.float64],
    why: NDArray[np.int64],
) -> list[tuple[Phrase, NDArray[np.int64]]]:
    """Return the phrases that explain candidates, see :func:`phrases_of`."""
    background, n, n_grams = memory.background, len(found), len(candidates)
    # Unknown pairs of words that belong to candidates do not make an entry foreign.
    new = (order_of(candidates) == PAIRS) & (background.of(candidates) == 0.0)
    shared = np.bincount(holding.rows[new[holding.which]], minlength=n)
    shared = np.minimum(shared, places["pairs"] // MOST_OF_TEXT) + BORDER
    carriers = Carriers(
        plain=Tests(candidates, background, shares[0], 1.0),
        at_home=Tests(candidates, background, shares[1], 1.0 - AT_HOME),
        likeness=memory.sample.likeness(places, shared, background),
        large=memory.large_lineage,
    )
    loud = carriers.scores(holding)[0] > FAINT
    if not loud.any():
        return []
    holders = marked(holding.rows[loud[holding.which]], n)
    near = np.bincount(holding.which[holders[holding.rows]], minlength=n_grams) > 1
    holding = holding.take(near[holding.which])
    close = closeness(places, holding.rows, holding.which, n_grams) > CLOSE
    return phrases_of(carriers, holding._replace(close=close), found, why)


def phrases_of(
    carriers: Carriers,
    holding: Holding,
    found: NDArray[np.float64],
    why: NDArray[np.int64],
) -> list[tuple[Phrase, NDArray[np.int64]]]:
    """Explain suspicious n-grams by as few phrases as possible, the most suspicious first.

    Return the phrases, and the entries named for each. The score of each entry and the number of
    its phrase are written to ``found`` and ``why``, shape (n_entries,).
    """
    tests = carriers.plain
    n_grams, n = len(tests.hashes), len(found)
    # Only n-grams of the batch are tested, and its rows come first.
    examples = np.full(n_grams, n)
    np.minimum.at(examples, holding.which, holding.rows)
    phrases: list[tuple[Phrase, NDArray[np.int64]]] = []
    for _ in range(MAX_PHRASES):
        scores, like = carriers.scores(holding)
        gram = int(np.argmax(scores))
        score = float(scores[gram])
        if not score > FAINT:
            break
        rows, which = holding.rows, holding.which
        low, high = np.searchsorted(which, [gram, gram + 1])
        holders, close = rows[low:high], holding.close[low:high]
        together = np.bincount(which[marked(holders, n)[rows]], minlength=n_grams)
        parts = np.flatnonzero(2 * together >= len(holders))
        # An entry with the n-gram, but hardly any other part of the phrase, has it by chance.
        have = np.bincount(rows[marked(parts, n_grams)[which]], minlength=n)
        whole = have[holders] >= WHOLE * len(parts)
        likeness = carriers.likeness[holders]
        witness = ~close & (bool(like[gram]) | (likeness >= AT_HOME))
        # If most holders are scattered, the others are named with them.
        named = witness | (bool(like[gram]) & (2 * np.count_nonzero(~close) >= len(close)))
        named_rows = holders[whole & named]
        holding = holding.take(~marked(named_rows, n)[rows] & (which != gram))
        if not len(named_rows):
            continue
        odds = tests.share[gram] / (1.0 - tests.share[gram])
        phrase = Phrase(
            score=score,
            hashes=(int(tests.hashes[gram]), *tests.hashes[parts[parts != gram]].tolist()),
            n_recent=len(holders),
            n_known=float(tests.known[gram]),
            expected=float(tests.known[gram] * odds),
            example=int(examples[gram]),
            ids=(),
            witnesses=frozenset(holders[whole & witness].tolist()),
        )
        found[named_rows], why[named_rows] = score, len(phrases)
        phrases.append((phrase, named_rows))
        if score >= SURE:
            carriers.plain.relate(parts)
            carriers.at_home.relate(parts)
    return phrases


def copies_in(sketches: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return a number for each of n texts, the same for copies of each other."""
    n = len(sketches)
    filled = sketches != EMPTY
    # A hash has the same column in all sketches.
    rows = np.nonzero(filled)[0].astype(np.uint64)
    keys = np.sort(sketches[filled].astype(np.uint64) << np.uint64(32) | rows)
    hashes, rows = keys >> np.uint64(32), keys.astype(np.uint32)
    at = np.flatnonzero(hashes[1:] == hashes[:-1])
    first, second = rows[at], rows[at + 1]
    same = np.count_nonzero((sketches[first] == sketches[second]) & filled[first], axis=1)
    either = np.count_nonzero(filled[first] | filled[second], axis=1)
    alike = same >= SAME_TEXT * either
    if not alike.any():
        return np.arange(n)
    pairs = first[alike], second[alike]
    from scipy.sparse import coo_array  # noqa: PLC0415 - keeps `import ragshield_core` quick
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    graph = coo_array((np.ones(len(pairs[0])), pairs), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def marked(rows: NDArray[np.intp], n: int) -> NDArray[np.bool_]:
    """Return a mask of length n that is true at these rows."""
    found = np.zeros(n, dtype=np.bool_)
    found[rows] = True
    return found
