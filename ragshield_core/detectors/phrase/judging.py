"""Judge a batch and the recent entries by the phrases that they hold."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.carriers import BORDER, closeness
from ragshield_core.detectors.phrase.copies import joined, same_texts
from ragshield_core.detectors.phrase.counts import (
    PAIRS,
    Background,
    Grams,
    Place,
    found_in,
    order_of,
    sources_of,
)
from ragshield_core.detectors.phrase.memory import Memory
from ragshield_core.detectors.phrase.surprise import Tests
from ragshield_core.detectors.phrase.telling_apart import (
    AT_HOME,
    FAINT,
    NOTHING,
    Carriers,
    Holding,
    Phrase,
    marked,
    phrases_of,
)
from ragshield_core.model.entries import Batch

logger = logging.getLogger("ragshield")

# Entries are scattered if the others lie no closer to them, on average, than standing ones with a
# similarity of so many standard deviations above the mean: three in ten are closer.
CLOSE = 0.5
# What is more than a quarter of a text is no phrase that was put into it.
MOST_OF_TEXT = 4
# Latest updates of a source that show whether it changes its template.
UPDATES = 50
# N-grams looked at closely, those that seem most suspicious first.
MAX_CANDIDATES = 20_000


class Asked(NamedTuple):
    """How a batch is to be judged."""

    overlooked: frozenset[str]  # entries that it replaces
    detector: str  # for the log


class Crowd(NamedTuple):
    """The entries of a batch, then the recent ones."""

    counted: NDArray[np.bool_]  # (n,): whether nothing takes their place
    places: Place  # of n entries, without proxies
    updates: NDArray[np.bool_]  # (n,)
    sources: tuple[str | None, ...]  # (n,)
    share: NDArray[np.float64]  # (N_ORDERS,): of all text that is recent
    at_home: NDArray[np.float64]  # (N_ORDERS,): beside the most usual half of what is known


class Judgement(NamedTuple):
    """Scores of a batch and of recent entries, and what they rest on."""

    scores: NDArray[np.float64]  # (n_batch,)
    recent: NDArray[np.float64]  # (n_recent,), -inf without an opinion
    why: NDArray[np.int64]  # (n_batch + n_recent,): of phrases, -1 for none
    phrases: list[Phrase]
    places: Place  # (n_batch,)
    n_recent: int  # entries that are counted


def judge(memory: Memory, asked: Asked, batch: Batch, grams: Grams) -> Judgement:
    """Return the scores of a batch and of recent entries, and the phrases that they rest on."""
    background = memory.background
    assert background is not None  # noqa: S101 - the detector is fitted
    crowd = _crowd(memory, asked, batch, grams, background)
    faint, candidates = _candidates(memory, grams, crowd, background)
    scores = np.full(len(batch), NOTHING)
    first = np.flatnonzero(np.diff(grams.rows, prepend=-1))  # n-gram of each text
    if len(first):
        rows = grams.rows[first]
        scores[rows] = np.maximum(scores[rows], np.maximum.reduceat(faint, first))
    n = len(crowd.counted)
    found, why = np.full(n, -np.inf), np.full(n, -1, dtype=np.int64)
    phrases = _told_apart(memory, asked, batch, grams, candidates, crowd, found, why)
    ids = [*batch.ids, *(arrival.id for arrival in memory.recent.arrivals)]
    return Judgement(
        scores=np.maximum(scores, found[: len(batch)]),
        recent=found[len(batch) :],
        why=why,
        phrases=[
            phrase._replace(ids=tuple(ids[row] for row in holders.tolist()))
            for phrase, holders in phrases
        ],
        places=crowd.places.take(slice(len(batch))),
        n_recent=int(np.count_nonzero(crowd.counted)),
    )


def _crowd(
    memory: Memory, asked: Asked, batch: Batch, grams: Grams, background: Background
) -> Crowd:
    """Return what is known of the entries of a batch and of recent ones."""
    arrivals = memory.recent.arrivals
    again = {*batch.ids, *asked.overlooked}  # a new revision counts instead of the old one
    counted = np.ones(len(batch) + len(arrivals), dtype=np.bool_)
    counted[len(batch) :] = [arrival.id not in again for arrival in arrivals]
    updates = [
        entry_id in asked.overlooked or bool(asked.overlooked and name in memory.lineages)
        for entry_id, name in zip(batch.ids, batch.lineages, strict=True)
    ]
    mine = memory.sample.places(batch, grams, background)
    places = Place.concatenate([mine, *(arrival.place for arrival in arrivals)])
    fresh = counted.copy()
    fresh[len(batch) :] &= ~np.array([arrival.held for arrival in arrivals], dtype=np.bool_)
    sizes = np.concatenate([grams.sizes(), [len(a.hashes) for a in arrivals]])
    mixture = background.n_grams / max(1, background.n_grams.sum())

    def share(part: float) -> NDArray[np.float64]:
        """Return, by order, the recent share of text; by entries where that is more."""
        texts, known = mixture * float(fresh @ sizes), part * background.n_grams
        by_text = texts / np.maximum(1, texts + known)
        n_known = max(1.0, part * background.n_entries)
        entries = max(1.0, float(fresh.sum()))
        share: NDArray[np.float64] = np.maximum(by_text, entries / (entries + n_known))
        return np.minimum(share, 1.0 - 1e-6)

    return Crowd(
        counted=counted,
        places=places,
        updates=np.array([*updates, *(a.update for a in arrivals)], dtype=np.bool_),
        sources=(*sources_of(batch), *(arrival.source for arrival in arrivals)),
        share=share(1.0),
        at_home=share(1.0 - AT_HOME),
    )


def _told_apart(
    memory: Memory,
    asked: Asked,
    batch: Batch,
    grams: Grams,
    candidates: NDArray[np.uint32],
    crowd: Crowd,
    found: NDArray[np.float64],
    why: NDArray[np.int64],
) -> list[tuple[Phrase, NDArray[np.int64]]]:
    """Return the phrases that explain n-grams of the batch and of recent entries."""
    assert memory.background is not None  # noqa: S101
    if not candidates.size:
        return []
    n_batch, n = len(batch), len(crowd.counted)
    mine, place = found_in(candidates, grams.hashes)
    lenient = Tests(candidates, memory.background, crowd.share, 1.0 - AT_HOME)
    # Of a few texts, candidates are mostly such as share a cell with others.
    most = np.bincount(place, minlength=len(candidates)) + memory.recent.at_most(candidates)
    if not (lenient.scores(most.astype(np.float64)) > FAINT).any():
        return []
    rows, which = memory.recent.holders(candidates)
    counted = crowd.counted[n_batch + rows]
    rows = np.concatenate([grams.rows[mine], rows[counted] + n_batch])
    which = np.concatenate([place, which[counted]])
    kept = ~_of_templates(memory, asked, rows, which, len(candidates), crowd)
    rows, which = rows[kept], which[kept]
    # Pairs of words that are part of what is looked at do not make an entry foreign.
    new = (order_of(candidates) == PAIRS) & (memory.background.of(candidates) == 0.0)
    shared = np.bincount(rows[new[which]], minlength=n)
    shared = np.minimum(shared, crowd.places.pairs // MOST_OF_TEXT) + BORDER
    likeness = memory.sample.likeness(crowd.places, shared, memory.background)
    carriers = Carriers(
        plain=Tests(candidates, memory.background, crowd.share, 1.0),
        at_home=Tests(candidates, memory.background, crowd.at_home, 1.0 - AT_HOME),
        likeness=likeness,
        large=memory.large_lineage,
    )
    holding = Holding.of(rows, which, _copies_of(memory, grams), _lineages_of(memory, batch))
    loud = carriers.scores(holding)[0] > FAINT
    if not loud.any():
        return []
    holders = marked(holding.rows[loud[holding.which]], n)
    near = np.bincount(holding.which[holders[holding.rows]], minlength=len(candidates)) > 1
    holding = holding.take(near[holding.which])
    close = closeness(crowd.places, holding.rows, holding.which, len(candidates)) > CLOSE
    return phrases_of(carriers, holding._replace(close=close), found, why)


def _of_templates(
    memory: Memory,
    asked: Asked,
    rows: NDArray[np.int64],
    which: NDArray[np.int64],
    n_grams: int,
    crowd: Crowd,
) -> NDArray[np.bool_]:
    """Mark pairs of an entry and a phrase that its source puts into most documents anew.

    At least half of the latest updates of the source hold it: a name, footer, box or template
    has changed. Nothing but the entries of that source is excused.
    """
    templates = np.zeros(len(rows), dtype=np.bool_)
    n_batch, n = len(crowd.updates) - len(memory.recent), len(crowd.updates)
    arrived = np.concatenate([np.arange(n_batch, n), np.arange(n_batch)])  # oldest first
    updates = arrived[crowd.updates[arrived]].tolist()
    for source in {crowd.sources[row] for row in updates}:
        latest = [row for row in updates if crowd.sources[row] == source][-UPDATES:]
        number = np.bincount(which[marked(np.array(latest), n)[rows]], minlength=n_grams)
        usual = (number > 1) & (2 * number >= len(latest))
        if usual.any():
            same = np.array([name == source for name in crowd.sources], dtype=np.bool_)
            of_template = same[rows] & usual[which]
            # Words beside a new template make new phrases with it.
            renewed = marked(rows[of_template], n) & crowd.updates
            templates |= of_template | renewed[rows]
            logger.info(
                "%s: %d of the latest %d updates of a source bring the same phrases, which "
                "are taken for a new template; the last of them is %r",
                *(
                    asked.detector,
                    int(number.max()),
                    len(latest),
                    _id_of(memory, latest[-1], n_batch),
                ),
            )
    return templates


def _candidates(
    memory: Memory, grams: Grams, crowd: Crowd, background: Background
) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
    """Return a faint score for each n-gram of a batch, and those that may be worth more.

    Counts by hash are upper limits: nothing suspicious is lost.
    """
    hashes = grams.hashes
    bits = min(22, max(10, (2 * len(hashes)).bit_length()))

    def cells(of: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return np.asarray((of * np.uint32(0x85EBCA6B)) >> np.uint32(32 - bits))

    mine = cells(hashes)
    counts = np.bincount(mine, minlength=1 << bits)[mine] + memory.recent.at_most(hashes)
    several = np.flatnonzero(counts > 1)
    tests = Tests(hashes[several], background, crowd.share, 1.0 - AT_HOME)
    upper = tests.scores(counts[several].astype(np.float64))
    faint = np.full(len(hashes), NOTHING)
    faint[several] = np.minimum(upper, FAINT)
    close = upper > FAINT
    candidates, first = np.unique(tests.hashes[close], return_index=True)
    if len(candidates) > MAX_CANDIDATES:
        best = np.argsort(-upper[close][first], kind="stable")[:MAX_CANDIDATES]
        candidates = np.sort(candidates[best])
    return faint, candidates


def _copies_of(memory: Memory, grams: Grams) -> NDArray[np.int64]:
    """Return a number for each entry, the same for copies of one text."""
    sketches = np.concatenate([grams.sketches(), *(a.sketch[None] for a in memory.recent.arrivals)])
    return joined(len(sketches), *same_texts(sketches))


def _lineages_of(memory: Memory, batch: Batch) -> NDArray[np.int64]:
    """Return a number for each entry, the same for entries of one lineage."""
    lineages = [*batch.lineages, *(a.lineage for a in memory.recent.arrivals)]
    numbers: dict[str, int] = {}
    return np.array(
        [
            row if name is None else numbers.setdefault(name, row)
            for row, name in enumerate(lineages)
        ],
        dtype=np.int64,
    )


def _id_of(memory: Memory, row: int, n_batch: int) -> str:
    """Return the id of a recent entry, or nothing for one of the batch."""
    return memory.recent.arrivals[row - n_batch].id if row >= n_batch else ""
