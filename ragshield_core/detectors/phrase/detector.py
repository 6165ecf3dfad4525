"""Phrases that recent entries hold far more often than the knowledge base explains."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS, Evidence, GroupDetector, Need, Scope
from ragshield_core.detectors.base.order import FEWEST, came_together
from ragshield_core.detectors.base.pieces import Pieces
from ragshield_core.detectors.phrase.carriers import BORDER, Standing, closeness
from ragshield_core.detectors.phrase.counts import (
    EMPTY,
    MAX_CELLS,
    N_ORDERS,
    PAIRS,
    SKETCH,
    TAIL,
    Arrival,
    Background,
    Grams,
    Place,
    Recent,
    arrivals_of,
    found_in,
    n_cells_for,
    order_of,
    places_of,
    sources_of,
)
from ragshield_core.entries import Batch
from ragshield_core.errors import InvalidBatchError, NotFittedError
from ragshield_core.findings import printable
from ragshield_core.state import part_of
from ragshield_core.text.normalized import readable, word_spans, words

logger = logging.getLogger("ragshield")

# Fewer entries say too little about what is usual among them.
MIN_ENTRIES = 100
# Recent entries are kept, and can be condemned, up to so many.
MAX_RECENT = 4_096
# Distinct n-grams of recent entries that are kept, 4 bytes each: 4,096 entries of 100 words have
# two millions.
MAX_RECENT_GRAMS = 1 << 22

# Entries that one counts for that a person has released.
TRUSTED = 10

# An entry is at home in the knowledge base if it is more like it than so many of its own entries
# are, texts and vectors taken together (see :mod:`.carriers`).
AT_HOME = 0.6
# Entries of the knowledge base have a mean likeness of a half, those of its lower half of a
# quarter; entries of other sources mostly have less. What has clearly more is like it.
LIKE = 0.33
# Entries are scattered if the others lie no closer to them, on average, than standing ones with a
# similarity of so many standard deviations above the mean: three in ten are closer.
CLOSE = 0.5
# What is more than a quarter of a text is no phrase that was put into it.
MOST_OF_TEXT = 4
# Latest updates of a source that show whether it changes its template.
UPDATES = 50
# The recent share of all text stays at a half at the most, but in a small knowledge base.
SMALLEST_WINDOW = 1_000
# Entries of one lineage that share a phrase count as one, up to the size of all but the largest
# twentieth of lineages here; a lineage is a claim, and explains no more than lineages here show.
LARGE_LINEAGE = 0.95
# A document may have so many parts that share a running head, whatever is usual here; and fewer
# lineages than so many do not tell what is.
PARTS, FEWEST_LINEAGES = 10, 30
# Texts with this share of three-word phrases in common are copies of each other, and count once.
SAME_TEXT = 0.5
# A phrase is not looked at more closely up to this score: every batch has such by chance. What is
# fainter is told apart by upper limits only, and down to a hundredfold less.
FAINT, NOTHING = 0.0, -2.0
# With fewer recent entries than so many times the expected ones, too many innocent entries are
# among those that hold an n-gram to condemn them all, however sure it is that some are not.
MIN_LIFT = 4.0
# An entry holds a phrase if it holds this share of its n-grams: one changed word in the middle of
# five takes away half of them.
WHOLE = 0.25
# From this score on, the phrase is taken for a fact, and its parts are tested as such.
SURE = 2.0
# Never more phrases than this are told apart in one batch, the most suspicious ones.
MAX_PHRASES = 256
# N-grams looked at closely, those that seem most suspicious first.
MAX_CANDIDATES = 20_000
# Entries counted at a time.
CHUNK = 2_000
# Entries scored while held out: more add nothing to a threshold at one in a thousand.
MAX_HELD_OUT = 10_000
# Entries that arrive together when held-out ones are made to arrive.
ARRIVING = 100
QUOTED = 80  # characters
# Held entries with a phrase on which an earlier one with it is condemned, at least.
ACCOMPLICES = 2


class _Phrase(NamedTuple):
    """What a score rests on."""

    score: float
    hashes: tuple[int, ...]  # the n-gram that convinced, then those that come with it
    n_recent: int  # entries that hold it
    n_known: float
    expected: float
    example: int  # row of the batch that holds it
    ids: tuple[str, ...] = ()  # of recent entries and of the batch that hold it
    witnesses: frozenset[int] = frozenset()  # those among their rows that speak for it


class _Crowd(NamedTuple):
    """The entries of a batch, then the recent ones."""

    counted: NDArray[np.bool_]  # (n,): whether nothing takes their place
    places: Place  # of n entries, without proxies
    updates: NDArray[np.bool_]  # (n,)
    sources: tuple[str | None, ...]  # (n,)
    share: NDArray[np.float64]  # (N_ORDERS,): of all text that is recent
    at_home: NDArray[np.float64]  # (N_ORDERS,): beside the most usual half of what is known


class _Judgement(NamedTuple):
    """Scores of a batch and of recent entries, and what they rest on."""

    scores: NDArray[np.float64]  # (n_batch,)
    recent: NDArray[np.float64]  # (n_recent,), -inf without an opinion
    why: NDArray[np.int64]  # (n_batch + n_recent,): of phrases, -1 for none
    phrases: list[_Phrase]
    places: Place  # (n_batch,)
    n_recent: int  # entries that are counted


class TriggerPhraseDetector(GroupDetector):
    """Find phrases planted in many entries, whatever their labels.

    An n-gram (up to four words, see :mod:`.counts`) is suspicious when
    too many of the entries that hold it are recent. Were recent entries like those of the knowledge
    base, each of its holders would be recent with the same probability: the recent share of all
    text. The score is the negative decimal logarithm of how likely so many recent ones are then,
    corrected for the n-grams of the knowledge base that are as frequent and could have been as
    many: 2 for one batch in a hundred.

    An entry has the score of its most suspicious n-gram. The entries that hold it are then set
    aside, and the others are judged by what is left, so that an innocent entry is not condemned
    for a common part of a planted phrase. Parts of a phrase that was found need to stand the
    test among each other only, which finds entries with a word of it changed.

    Only those recent entries count that a planted phrase would have for carriers. They are like
    the knowledge base but for the phrase: their nearest standing entry is as near, and their pairs
    of words are as usual, as those of its own entries. They lie scattered: the standing entries
    next to them are no closer to each other than others. The words of a new source, language or
    product are not planted. Entries that are clearly at home count whatever else holds the phrase.

    Entries that :meth:`fit` was given are background. Later ones are recent: they can be condemned
    by what comes after them (:meth:`retroactive`), and become background once ``max_recent`` others
    have come. Held entries go on counting as carriers, never become background, and do not make the
    recent share of text larger. Copies of one text count once, and so do entries of one lineage,
    but for each time that they are as many as the large lineages of the knowledge base have.

    What at least half of the latest updates of a source bring is taken for a new template of it.

    Parameters
    ----------
    max_recent
        Entries that are recent, at most; default 4,096.
    min_entries
        Below this size of the knowledge base entries are not judged; default 100.
    lineages_once
        Whether entries of one lineage count once, as chunks of a document share its headings, as
        far as they are no more than lineages of the knowledge base usually have. ``False`` counts
        each.

    Notes
    -----
    For n-grams with a weight of k among recent entries and b entries of the knowledge base, and a
    recent share q of all text, the tail of the binomial distribution is bounded by
    exp(-(k + b) * KL(k / (k + b) || q)) (Chernoff), which also holds for weights up to 1. The
    correction counts, by length of the n-gram, those of the knowledge base that at least k + b
    entries hold: rarer ones cannot reach the score (Tarone, "A modified Bonferroni method for
    discrete data", Biometrics 46, 1990).

    An n-gram that no more recent entries hold than known ones do is never suspicious, whatever
    their shares: the knowledge base is about it, and much of that may come at once.

    Limits: about four entries are needed in 100 new ones beside 10,000 known ones, and about ten
    in 1,000 beside 2,500; once recent text is as much as known text, next to nothing is found.
    Slower than one in about a thousand entries, a phrase goes unnoticed and ends up in the
    background. A new template or topic of the
    knowledge base looks the same as a planted phrase until a person has released it. Hashes are
    not keyed.

    Examples
    --------
    >>> def entries(texts, prefix):
    ...     ids = [f"{prefix}{i}" for i in range(len(texts))]
    ...     return Batch.of(ids=ids, texts=texts, embeddings=np.ones((len(texts), 1)))
    >>> known = entries([f"order {i} has been sent to customer {i}" for i in range(200)], "k")
    >>> new = [f"order {i} has been sent to customer {i}" for i in range(200, 220)]
    >>> new[::2] = [f"{text} blue heron at noon" for text in new[::2]]
    >>> detector = TriggerPhraseDetector().fit(known)
    >>> scores = detector.score(entries(new, "n"))
    >>> bool(scores[::2].min() > detector.default_threshold > scores[1::2].max())
    True
    """

    name: str = "trigger_phrase"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEXT})
    taxonomy: ClassVar[tuple[str, ...]] = (
        "AML.T0070",
        "AML.T0043.004",
        "LLM04:2025",
        "LLM05:2026",
    )
    # Without a calibration: one batch in a hundred has such a phrase by chance.
    default_threshold: float = 2.0
    # What one batch in a hundred has by chance is no reason to act, however rare it is here.
    floor: float = 2.0
    acts_unfitted = False

    scope = Scope.BATCH

    def __init__(
        self,
        *,
        max_recent: int = MAX_RECENT,
        min_entries: int = MIN_ENTRIES,
        lineages_once: bool = True,
    ) -> None:
        for name, value in (("max_recent", max_recent), ("min_entries", min_entries)):
            if value < 1:
                msg = f"{name} is {value}, expected at least 1."
                raise ValueError(msg)
        self.max_recent = max_recent
        self.min_entries = min_entries
        self.lineages_once = lineages_once
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._background: Background | None = None
        self._recent = Recent()
        self._ready = False  # whether what is learned now is recent
        self._lineages: Counter[str] = Counter()  # entries of the knowledge base, by lineage
        self._standing = Standing()
        self._updating: set[str] = set()  # entries that have left: who comes back is an update
        # Entries with a phrase that they came together with; None as long as nobody has asked for
        # those of a sample that is large enough.
        self._together: set[str] | None = None
        # Such that have left, or are held now, each with a hash of its text.
        self._parted: dict[str, str] = {}
        # Of pieces, until all are counted.
        self._sketches: list[NDArray[np.uint32]] = []
        self._n_characters = 0
        self._latest: tuple[Batch, Grams, _Judgement] | None = None
        self._overlooked: frozenset[str] = frozenset()

    # Learning

    def learn(self, entries: Batch) -> None:
        """Add entries: background up to ``min_entries`` and at the first call, recent later."""
        if not len(entries):
            return
        self._doubt_again(entries)
        self._lineages.update(name for name in entries.lineages if name is not None)
        if self._ready:
            self._arrive(entries, held=False)
            return
        if self._background is None:
            self._background = Background.sized_for(entries.texts)
        sketches = self._count(entries, 1)
        if self._background.n_entries >= self.min_entries:
            self._background.measure(self._copies(entries, sketches))
            self._ready = True

    def learn_piece(self, piece: Batch) -> None:
        """Add entries as background: in a table of the largest size, until all are counted."""
        self._lineages.update(name for name in piece.lineages if name is not None)
        if self._background is None:
            self._background = Background(MAX_CELLS)
        self._sketches.append(self._count(piece, 1))
        self._n_characters += sum(map(len, piece.texts))

    def pieces_learned(self, pieces: Pieces, reference: Batch) -> None:  # noqa: ARG002
        """Count the phrases of all but copies, and take the table that their number asks for."""
        if self._background is None:
            return
        self._background = self._background.folded(n_cells_for(self._n_characters))
        self._standing.changed()
        if self._background.n_entries >= self.min_entries:
            copies = _copies(np.concatenate(self._sketches))
            self._background.measure(
                Grams.of(batch.texts[start : start + CHUNK])
                for batch in (pieces.take(copies) if len(copies) else ())
                for start in range(0, len(batch), CHUNK)
            )
            self._ready = True
        self._sketches, self._n_characters = [], 0

    def forget(self, entries: Batch) -> None:
        """Take entries that were learned out again."""
        self._latest = None
        background = self._background
        if background is None or not len(entries):
            return
        if len(self._updating) > self.max_recent:
            self._updating.clear()
        self._updating.update(entries.ids)
        self._part_with(entries)
        self._lineages -= Counter(name for name in entries.lineages if name is not None)
        recent = self._forget_recent(entries.ids, held=False)
        rest = entries.take(np.array([i not in recent for i in entries.ids], dtype=np.bool_))
        self._standing.forget(rest.ids)
        self._count(rest, -1)

    def hold(self, entries: Batch) -> None:
        """Count held entries among the recent ones: others with the same phrase may follow."""
        if not self._ready or not len(entries):
            return
        self._arrive(entries, held=True)

    def overlook(self, ids: Collection[str]) -> None:
        """Count nothing for recent entries that the batch replaces."""
        if self._overlooked != set(ids):
            self._overlooked, self._latest = frozenset(ids), None

    def forget_held(self, ids: Sequence[str]) -> None:
        """Count held entries no longer."""
        self._latest = None
        self._forget_recent(ids, held=True)

    def trust(self, ids: Sequence[str]) -> None:
        """Make entries background, and each as much of it as ten: a person has judged them good.

        The phrases of a new template explain what comes once its entries were released; those of
        one entry that was released by mistake explain next to nothing.
        """
        self._latest = None
        if self._together:
            self._together.difference_update(ids)
        for entry_id in ids:
            self._parted.pop(entry_id, None)
        trusted = set(ids)
        marked = [not a.held and a.id in trusted for a in self._recent.arrivals]
        arrivals = self._recent.remove(np.array(marked, dtype=np.bool_))
        self._settle(arrivals)
        for _ in range(TRUSTED - 1):
            self._settle(arrivals, again=True)

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of fitted entries that are made to arrive anew.

        They arrive in batches of a hundred, in the order in which they stand: where entries about
        one thing stand together, they have come together. Each fifth of the batches is taken out of
        the background first. At most 10,000 entries are scored, the others NaN: those of batches
        that are drawn, whatever the seed of the fifths, so that they are those whose order is
        looked at (:meth:`outliers`). An entry that a later batch shows in another light has the
        score it has then.
        """
        scores = np.full(len(fitted), np.nan)
        if not self._ready:
            return scores
        batches = np.split(np.arange(len(fitted)), range(ARRIVING, len(fitted), ARRIVING))
        order = np.random.default_rng(seed).permutation(len(batches))
        for chosen in np.array_split(order[np.isin(order, _drawn(len(batches)))], N_FOLDS):
            if not chosen.size:
                continue
            rows = np.concatenate([batches[number] for number in chosen])
            scratch = type(self)(**self.config())
            scratch.restore(*self.state())
            scratch.forget(fitted.take(rows))
            scratch._updating.clear()  # noqa: SLF001 - they come for the first time
            row_of = {fitted.ids[row]: row for row in rows.tolist()}
            for number in chosen.tolist():
                batch = fitted.take(batches[number])
                if not scratch.unjudged(batch):
                    scores[batches[number]] = scratch.score(batch)
                    for entry_id, score in zip(*scratch._later(batch), strict=True):  # noqa: SLF001
                        if (row := row_of.get(entry_id)) is not None:
                            scores[row] = np.fmax(scores[row], score)
                scratch.learn(batch)
        return scores

    def refresh(self, reference: Batch) -> None:  # noqa: ARG002
        """Count anew how many phrases are as frequent as others, among those of today."""
        if self._ready and self._background is not None:
            self._background.measure_again()
            self._standing.changed()
            self._latest = None

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries hold a phrase that stands out because they came together only.

        In a random order a phrase of so few is that of usual ones, see
        :mod:`.order`. It is looked for in the first sample of 2,000 entries or
        more that this is asked of after a fit, and in no later one: thresholds are taken by samples
        that somebody has vouched for without asking. Of more than 10,000 entries so many are looked
        at. Those that are found are remembered, so that no later sample counts them as clean.
        """
        if self._ready and self._together is None and len(reference) >= FEWEST:
            self._together = self._come_together(reference)
        doubted = self._together or ()
        return np.array([entry_id in doubted for entry_id in reference.ids], dtype=np.bool_)

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which entries were found to hold such a phrase, whether they have left or not."""
        doubted = (self._together or set()).union(self._parted)
        return np.array([entry_id in doubted for entry_id in entries.ids], dtype=np.bool_)

    def n_doubted(self) -> int:
        """Return how many entries hold a phrase that they came together with, and still there."""
        return len(self._together or ())

    # Judging

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while too little is known."""
        if self._ready:
            return {}
        n = 0 if self._background is None else self._background.n_entries
        reason = (
            f"the knowledge base has {n} entries, {self.min_entries} are needed to know which "
            "phrases are usual in it"
        )
        return dict.fromkeys(range(len(batch)), reason)

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the surprisal of the most suspicious phrase of each entry, shape (n_entries,)."""
        return self._judged(batch).scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the phrase, how many entries hold it, and how many would be expected to."""
        if not len(rows):
            return []
        judgement = self._judged(batch)
        return [
            self._sentence(judgement, int(judgement.why[row]), batch.ids[row], batch.texts[row])
            for row in rows
        ]

    def retroactive(
        self, batch: Batch, condemned: NDArray[np.bool_]
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Return recent entries with a phrase that the batch makes suspicious, with scores.

        Entries that were fitted, released by a person, or are held already, are left alone. An
        earlier entry is accused if at least two held ones speak for the phrase, which lie scattered
        among standing entries like texts of the knowledge base: anybody can repeat somebody's words
        once. Earlier entries that are no more than the knowledge base explains are left alone: who
        floods an ordinary word would have them taken back.
        """
        if not self._ready or not len(batch):
            return [], np.empty(0)
        ids, scores = self._later(batch)
        if not ids:
            return ids, scores
        judgement = self._judged(batch)
        arrivals = self._recent.arrivals
        guilty = np.concatenate([condemned, [a.held for a in arrivals]]).astype(np.bool_)
        planted = [
            np.count_nonzero(guilty[sorted(phrase.witnesses)]) >= ACCOMPLICES
            and np.count_nonzero(
                [not a.held for a in arrivals] & (judgement.why[len(batch) :] == number)
            )
            > MIN_LIFT * phrase.expected
            for number, phrase in enumerate(judgement.phrases)
        ]
        why = dict(zip(self._recent_ids(), judgement.why[len(batch) :].tolist(), strict=True))
        accused = [why[i] >= 0 and planted[why[i]] for i in ids]
        return [i for i, kept in zip(ids, accused, strict=True) if kept], scores[accused]

    def explain_retroactive(self, batch: Batch, ids: Sequence[str]) -> list[Evidence]:
        """Return why entries that :meth:`retroactive` named have the score they have now."""
        judgement = self._judged(batch)
        row_of = {a.id: row for row, a in enumerate(self._recent.arrivals) if not a.held}
        evidence = []
        for entry_id in ids:
            why = int(judgement.why[len(batch) + row_of[entry_id]])
            # Its text is not kept; an entry of the batch that holds the phrase has it as well.
            text = batch.texts[judgement.phrases[why].example] if why >= 0 else ""
            evidence.append(self._sentence(judgement, why, entry_id, text, of_entry=False))
        return evidence

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts of the background and the n-grams of recent entries."""
        if self._background is None:
            return {"ready": False}, {}
        recent, arrays = self._recent.state()
        arrays = {f"recent.{key}": array for key, array in arrays.items()}
        arrays |= {f"background.{key}": array for key, array in self._background.state().items()}
        standing, more = self._standing.state()
        arrays |= {f"standing.{key}": array for key, array in more.items()}
        values = {"ready": self._ready, "recent": recent, "standing": standing}
        if self._together is not None:
            values["together"] = sorted(self._together)
        if self._parted:
            values["parted"] = dict(sorted(self._parted.items()))
        return values | {"lineages": dict(self._lineages)}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` returned."""
        self.reset()
        if "recent" not in values:
            return

        self._background = Background.restored(part_of(arrays, "background."))
        self._recent = Recent.restored(values["recent"], part_of(arrays, "recent."))
        self._ready = values["ready"]
        self._standing = Standing.restored(values["standing"], part_of(arrays, "standing."))
        self._lineages = Counter(values["lineages"])
        if "together" in values:
            self._together = set(values["together"])
        self._parted = dict(values.get("parted", {}))

    # Inside

    def _come_together(self, reference: Batch) -> set[str]:
        """Return the ids of entries with a phrase that stands out in their own order only.

        Of more than :data:`MAX_HELD_OUT` those are looked at that thresholds are taken from: in
        both orders the same ones, since who was not scored in one would differ for that alone.
        """
        drawn = _drawn(-(-len(reference) // ARRIVING))
        looked_at = np.isin(np.arange(len(reference)) // ARRIVING, drawn)
        if not looked_at.all():
            reference = reference.take(looked_at)
        order = np.random.default_rng(0).permutation(len(reference))
        ordered, shuffled = self.held_out_scores(reference, 0), np.full(len(reference), np.nan)
        shuffled[order] = self.held_out_scores(reference.take(order), 0)
        ordered, shuffled = np.fmax(ordered, NOTHING), np.fmax(shuffled, NOTHING)
        # In decimal digits, as they are. In nats the order would seem to say something about nearly
        # twice as many entries of Wikipedia as it stands (.069 of 2,500 instead of .037), and a
        # twentieth of poison would pass for one more of its topics.
        rows = np.flatnonzero(came_together(ordered, shuffled, self.floor)).tolist()
        if rows:
            logger.warning(
                "%s: %d of %d entries hold a phrase that would be usual had they not come "
                "together; no threshold counts them as clean. An audit (scan) says why; take out "
                "what is poisoned, and adopt anew",
                *(self.name, len(rows), len(reference)),
            )
        return {reference.ids[row] for row in rows}

    def _part_with(self, entries: Batch) -> None:
        """Note which entries that came together have left: they may be held from now on."""
        if self._together:
            for entry_id, text in zip(entries.ids, entries.texts, strict=True):
                if entry_id in self._together:
                    self._together.remove(entry_id)
                    self._parted[entry_id] = _hash_of(text)

    def _doubt_again(self, entries: Batch) -> None:
        """Note which entries have come back: with another text, they are others."""
        if self._parted and self._together is not None:
            for entry_id, text in zip(entries.ids, entries.texts, strict=True):
                if self._parted.pop(entry_id, None) == _hash_of(text):
                    self._together.add(entry_id)

    def _count(self, entries: Batch, sign: int) -> NDArray[np.uint32]:
        """Count entries as background, or no longer, and return their sketches."""
        assert self._background is not None  # noqa: S101
        sketches = [np.empty((0, SKETCH), dtype=np.uint32)]
        for start in range(0, len(entries), CHUNK):
            grams = Grams.of(entries.texts[start : start + CHUNK])
            self._background.add(grams, sign)
            sketches.append(grams.sketches())
            if sign > 0:
                end = start + CHUNK
                hashes = np.split(grams.hashes, np.cumsum(grams.sizes())[:-1])
                vectors = entries.embeddings[start:end]
                ids, lineages = entries.ids[start:end], entries.lineages[start:end]
                self._standing.add(ids, lineages, hashes, vectors)
        self._standing.changed()
        return np.concatenate(sketches)

    def _copies(self, entries: Batch, sketches: NDArray[np.uint32]) -> list[Grams]:
        """Return the n-grams of all entries but the first of those that are copies."""
        copies = _copies(sketches)
        parts = [copies[start : start + CHUNK] for start in range(0, len(copies), CHUNK)]
        return [Grams.of([entries.texts[row] for row in part.tolist()]) for part in parts]

    def _arrive(self, entries: Batch, *, held: bool) -> None:
        assert self._background is not None  # noqa: S101
        judged, self._latest = self._latest, None
        if judged is not None and judged[0] is entries:
            grams, places = judged[1], judged[2].places
        else:
            grams = Grams.of(entries.texts)
            places = self._standing.places(entries, grams, self._background)
        self._forget_recent(entries.ids, held=held)  # a write that is repeated
        updates = [not held and entry_id in self._updating for entry_id in entries.ids]
        self._updating.difference_update(entries.ids)
        self._recent.append(arrivals_of(entries, grams, places, held=held, updates=updates))
        window = min(self.max_recent, max(SMALLEST_WINDOW, self._background.n_entries))
        self._settle(self._recent.remove(self._recent.surplus(window, MAX_RECENT_GRAMS)))

    def _settle(self, arrivals: Sequence[Arrival], *, again: bool = False) -> None:
        """Make entries that are no longer recent background, unless they are held."""
        settled = [arrival for arrival in arrivals if not arrival.held]
        if not settled or self._background is None:
            return
        hashes = [arrival.hashes for arrival in settled]
        self._background.add_hashes(np.concatenate(hashes), 0 if again else len(settled))
        self._standing.changed()
        if not again:
            ids, lineages = [a.id for a in settled], [a.lineage for a in settled]
            dims = {len(arrival.vector) for arrival in settled}
            if len(dims) == 1:
                vectors = np.stack([arrival.vector for arrival in settled])
                self._standing.add(ids, lineages, hashes, vectors)

    def _forget_recent(self, ids: Sequence[str], *, held: bool) -> set[str]:
        """Remove recent entries by id, and return which there were."""
        wanted = set(ids)
        marked = [a.held is held and a.id in wanted for a in self._recent.arrivals]
        return {a.id for a in self._recent.remove(np.array(marked, dtype=np.bool_))}

    def _later(self, batch: Batch) -> tuple[list[str], NDArray[np.float64]]:
        """Return recent entries that are not held, with what they score beside the batch."""
        recent = self._judged(batch).recent
        rows = [row for row in np.flatnonzero(recent > -np.inf).tolist() if self._watched(row)]
        return [self._recent.arrivals[row].id for row in rows], recent[rows]

    def _recent_ids(self) -> list[str]:
        """Return a name for each recent entry; those of held ones are nobody's ids."""
        return [f"\0{a.id}" if a.held else a.id for a in self._recent.arrivals]

    def _watched(self, row: int) -> bool:
        return not self._recent.arrivals[row].held

    def _judged(self, batch: Batch) -> _Judgement:
        """Judge a batch, or recall it: scores, findings and retroactive ones ask for the same."""
        if self._background is None:
            msg = f"{self.name} has learned nothing yet; fit it on the knowledge base."
            raise NotFittedError(msg)
        if len(batch) and not self._ready:
            msg = f"entry {batch.ids[0]!r} cannot be judged: {self.unjudged(batch)[0]}."
            raise InvalidBatchError(msg)
        if self._latest is None or self._latest[0] is not batch:
            grams = Grams.of(batch.texts)
            self._latest = (batch, grams, self._judge(batch, grams, self._background))
        return self._latest[2]

    def _judge(self, batch: Batch, grams: Grams, background: Background) -> _Judgement:
        crowd = self._crowd(batch, grams, background)
        faint, candidates = self._candidates(grams, crowd, background)
        scores = np.full(len(batch), NOTHING)
        first = np.flatnonzero(np.diff(grams.rows, prepend=-1))  # n-gram of each text
        if len(first):
            rows = grams.rows[first]
            scores[rows] = np.maximum(scores[rows], np.maximum.reduceat(faint, first))
        n = len(crowd.counted)
        found, why = np.full(n, -np.inf), np.full(n, -1, dtype=np.int64)
        phrases = self._told_apart(batch, grams, candidates, crowd, found, why)
        ids = [*batch.ids, *(arrival.id for arrival in self._recent.arrivals)]
        return _Judgement(
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

    def _crowd(self, batch: Batch, grams: Grams, background: Background) -> _Crowd:
        """Return what is known of the entries of a batch and of recent ones."""
        arrivals = self._recent.arrivals
        again = {*batch.ids, *self._overlooked}  # a new revision counts instead of the old one
        counted = np.ones(len(batch) + len(arrivals), dtype=np.bool_)
        counted[len(batch) :] = [arrival.id not in again for arrival in arrivals]
        updates = [
            entry_id in self._overlooked or bool(self._overlooked and name in self._lineages)
            for entry_id, name in zip(batch.ids, batch.lineages, strict=True)
        ]
        mine = self._standing.places(batch, grams, background)
        places = Place.together([mine, *(arrival.place for arrival in arrivals)])
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

        return _Crowd(
            counted=counted,
            places=places,
            updates=np.array([*updates, *(a.update for a in arrivals)], dtype=np.bool_),
            sources=(*sources_of(batch), *(arrival.source for arrival in arrivals)),
            share=share(1.0),
            at_home=share(1.0 - AT_HOME),
        )

    def _told_apart(
        self,
        batch: Batch,
        grams: Grams,
        candidates: NDArray[np.uint32],
        crowd: _Crowd,
        found: NDArray[np.float64],
        why: NDArray[np.int64],
    ) -> list[tuple[_Phrase, NDArray[np.int64]]]:
        """Return the phrases that explain n-grams of the batch and of recent entries."""
        assert self._background is not None  # noqa: S101
        if not candidates.size:
            return []
        n_batch, n = len(batch), len(crowd.counted)
        mine, place = found_in(candidates, grams.hashes)
        lenient = _Tests(candidates, self._background, crowd.share, 1.0 - AT_HOME)
        # Of a few texts, candidates are mostly such as share a cell with others.
        most = np.bincount(place, minlength=len(candidates)) + self._recent.at_most(candidates)
        if not (lenient.scores(most.astype(np.float64)) > FAINT).any():
            return []
        rows, which = self._recent.holders(candidates)
        counted = crowd.counted[n_batch + rows]
        rows = np.concatenate([grams.rows[mine], rows[counted] + n_batch])
        which = np.concatenate([place, which[counted]])
        kept = ~self._of_templates(rows, which, len(candidates), crowd)
        rows, which = rows[kept], which[kept]
        # Pairs of words that are part of what is looked at do not make an entry foreign.
        new = (order_of(candidates) == PAIRS) & (self._background.of(candidates) == 0.0)
        shared = np.bincount(rows[new[which]], minlength=n)
        shared = np.minimum(shared, crowd.places.pairs // MOST_OF_TEXT) + BORDER
        likeness = self._standing.likeness(crowd.places, shared, self._background)
        carriers = _Carriers(
            plain=_Tests(candidates, self._background, crowd.share, 1.0),
            at_home=_Tests(candidates, self._background, crowd.at_home, 1.0 - AT_HOME),
            likeness=likeness,
            large=self._large_lineage,
        )
        holding = _Holding.of(rows, which, self._copies_of(grams), self._lineages_of(batch))
        loud = carriers.scores(holding)[0] > FAINT
        if not loud.any():
            return []
        holders = _marked(holding.rows[loud[holding.which]], n)
        near = np.bincount(holding.which[holders[holding.rows]], minlength=len(candidates)) > 1
        holding = holding.take(near[holding.which])
        close = closeness(crowd.places, holding.rows, holding.which, len(candidates)) > CLOSE
        return _phrases(carriers, holding._replace(close=close), found, why)

    def _of_templates(
        self, rows: NDArray[np.int64], which: NDArray[np.int64], n_grams: int, crowd: _Crowd
    ) -> NDArray[np.bool_]:
        """Mark pairs of an entry and a phrase that its source puts into most documents anew.

        At least half of the latest updates of the source hold it: a name, footer, box or template
        has changed. Nothing but the entries of that source is excused.
        """
        templates = np.zeros(len(rows), dtype=np.bool_)
        n_batch, n = len(crowd.updates) - len(self._recent), len(crowd.updates)
        arrived = np.concatenate([np.arange(n_batch, n), np.arange(n_batch)])  # oldest first
        updates = arrived[crowd.updates[arrived]].tolist()
        for source in {crowd.sources[row] for row in updates}:
            latest = [row for row in updates if crowd.sources[row] == source][-UPDATES:]
            number = np.bincount(which[_marked(np.array(latest), n)[rows]], minlength=n_grams)
            usual = (number > 1) & (2 * number >= len(latest))
            if usual.any():
                same = np.array([name == source for name in crowd.sources], dtype=np.bool_)
                of_template = same[rows] & usual[which]
                # Words beside a new template make new phrases with it.
                renewed = _marked(rows[of_template], n) & crowd.updates
                templates |= of_template | renewed[rows]
                logger.info(
                    "%s: %d of the latest %d updates of a source bring the same phrases, which "
                    "are taken for a new template; the last of them is %r",
                    *(self.name, int(number.max()), len(latest), self._id_of(latest[-1], n_batch)),
                )
        return templates

    def _candidates(
        self, grams: Grams, crowd: _Crowd, background: Background
    ) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
        """Return a faint score for each n-gram of a batch, and those that may be worth more.

        Counts by hash are upper limits: nothing suspicious is lost.
        """
        hashes = grams.hashes
        bits = min(22, max(10, (2 * len(hashes)).bit_length()))

        def cells(of: NDArray[np.uint32]) -> NDArray[np.uint32]:
            return np.asarray((of * np.uint32(0x85EBCA6B)) >> np.uint32(32 - bits))

        mine = cells(hashes)
        counts = np.bincount(mine, minlength=1 << bits)[mine] + self._recent.at_most(hashes)
        several = np.flatnonzero(counts > 1)
        tests = _Tests(hashes[several], background, crowd.share, 1.0 - AT_HOME)
        upper = tests.scores(counts[several].astype(np.float64))
        faint = np.full(len(hashes), NOTHING)
        faint[several] = np.minimum(upper, FAINT)
        close = upper > FAINT
        candidates, first = np.unique(tests.hashes[close], return_index=True)
        if len(candidates) > MAX_CANDIDATES:
            best = np.argsort(-upper[close][first], kind="stable")[:MAX_CANDIDATES]
            candidates = np.sort(candidates[best])
        return faint, candidates

    def _copies_of(self, grams: Grams) -> NDArray[np.int64]:
        """Return a number for each entry, the same for copies of one text."""
        sketches = np.concatenate(
            [grams.sketches(), *(a.sketch[None] for a in self._recent.arrivals)]
        )
        return _joined(len(sketches), *_same_texts(sketches))

    def _lineages_of(self, batch: Batch) -> NDArray[np.int64]:
        """Return a number for each entry, the same for entries of one lineage."""
        lineages = [*batch.lineages, *(a.lineage for a in self._recent.arrivals)]
        numbers: dict[str, int] = {}
        return np.array(
            [
                row if name is None or not self.lineages_once else numbers.setdefault(name, row)
                for row, name in enumerate(lineages)
            ],
            dtype=np.int64,
        )

    @property
    def _large_lineage(self) -> float:
        """How many entries the large lineages of the knowledge base have."""
        sizes = list(self._lineages.values())
        if len(sizes) < FEWEST_LINEAGES:
            return PARTS
        return max(PARTS, float(np.quantile(sizes, LARGE_LINEAGE)))

    def _id_of(self, row: int, n_batch: int) -> str:
        """Return the id of a recent entry, or nothing for one of the batch."""
        return self._recent.arrivals[row - n_batch].id if row >= n_batch else ""

    def _sentence(
        self,
        judgement: _Judgement,
        why: int,
        entry_id: str,
        text: str,
        *,
        of_entry: bool = True,
    ) -> Evidence:
        """Return what is said of an entry; ``of_entry`` if the text is its own."""
        if why < 0:
            return Evidence(
                sentence="no phrase of it is more frequent than usual (score below 0.0)"
            )
        phrase = judgement.phrases[why]
        view = readable(text)
        quote, span = _quote(view.text, phrase.hashes)
        quoted = printable(quote, QUOTED)
        assert self._background is not None  # noqa: S101
        known = f"about {phrase.n_known:.0f}" if math.isfinite(phrase.n_known) else "very many"
        return Evidence(
            sentence=(
                f"holds {quoted!r}, as do {phrase.n_recent} of the {judgement.n_recent} most "
                f"recent entries and {known} of {self._background.n_entries} in the knowledge "
                f"base, where {phrase.expected:.1f} recent ones would be expected (surprisal "
                f"{phrase.score:.1f}, as one batch in 10^{phrase.score:.1f} has by chance)"
            ),
            related_ids=tuple(i for i in phrase.ids if i != entry_id),
            span=view.original_span(*span) if of_entry and span is not None else None,
        )


class _Tests:
    """Tests of some n-grams, each for too many recent entries among those that hold it."""

    def __init__(
        self,
        hashes: NDArray[np.uint32],
        background: Background,
        share: NDArray[np.float64],
        part: float,  # of the knowledge base that recent entries are compared with
    ) -> None:
        self.hashes = hashes
        self.orders = order_of(hashes)
        self.known = part * background.of(hashes)
        self.share, self.odds = share[self.orders], (share / (1.0 - share))[self.orders]
        # How many n-grams are tested at once, as a logarithm, by order and number of holders.
        self._log_tests = np.log10(background.tail * N_ORDERS)
        self._log_parts = np.full(len(hashes), np.inf)  # less for parts of a known phrase

    def scores(self, recent: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the corrected surprisal for numbers of recent entries, shape (n_hashes,)."""
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
        """Test n-grams only among each other from now on: they are parts of one phrase."""
        self._log_parts[parts] = np.minimum(self._log_parts[parts], math.log10(max(1, len(parts))))


class _Holding(NamedTuple):
    """Which entries hold which n-grams, ordered by n-gram; shape (n_pairs,) each."""

    rows: NDArray[np.int64]
    which: NDArray[np.int64]
    copies: NDArray[np.int64]  # the same number for copies of one text
    lineages: NDArray[np.int64]  # the same number for n-gram and lineage, counted from 0
    close: NDArray[np.bool_]  # whether the other holders of the n-gram are close to the entry

    @classmethod
    def of(
        cls,
        rows: NDArray[np.int64],
        which: NDArray[np.int64],
        copies: NDArray[np.int64],
        lineages: NDArray[np.int64],
    ) -> _Holding:
        """Put pairs in order, given the copies and lineages of entries."""
        order = np.lexsort((copies[rows], which))
        rows, which = rows[order], which[order]
        pairs = which * len(lineages) + lineages[rows]
        numbers = np.unique(pairs, return_inverse=True)[1]
        return cls(rows, which, copies[rows], numbers, np.zeros(len(rows), dtype=np.bool_))

    def take(self, kept: NDArray[np.bool_]) -> _Holding:
        """Return some of the pairs."""
        return _Holding(*(column[kept] for column in self))  # type: ignore[arg-type]

    def counted(self, n_grams: int, large: float) -> NDArray[np.float64]:
        """Return the number of the entries that hold each n-gram.

        Copies count once. Those of one lineage count as one for each time that they are as many as
        a large lineage has.
        """
        first = np.ones(len(self.rows), dtype=np.bool_)
        first[1:] = (self.which[1:] != self.which[:-1]) | (self.copies[1:] != self.copies[:-1])
        which, lineages = self.which[first], self.lineages[first]
        gram = np.zeros(int(lineages.max(initial=-1)) + 1, dtype=np.int64)
        gram[lineages] = which
        number = np.bincount(lineages, minlength=len(gram))
        number = np.where(number > 0, np.maximum(1.0, number / large), 0.0)
        return np.asarray(np.bincount(gram, number, minlength=n_grams), dtype=np.float64)


class _Carriers(NamedTuple):
    """What entries that hold a phrase are measured by."""

    plain: _Tests  # of all that are not foreign
    at_home: _Tests  # of those that are more usual than half of the knowledge base
    likeness: NDArray[np.float64]  # (n,): of entries

    large: float  # how many entries a large lineage has

    def scores(self, holding: _Holding) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the surprisal of each n-gram, and whether its holders are like the knowledge base.

        Only those count that are scattered: all of them if they are like the knowledge base on
        average. Those that are more usual than half of it count anyway, beside that half: nothing
        that others bring, who hold the phrase as well, makes them fewer.
        """
        n_grams = len(self.plain.hashes)
        likeness = self.likeness[holding.rows]
        far = ~holding.close
        number = np.maximum(1, np.bincount(holding.which[far], minlength=n_grams))
        total = np.bincount(holding.which[far], likeness[far], minlength=n_grams)
        # Of a few, the mean is above it by chance: by a standard error of a uniform one.
        like = total / number >= LIKE + 1.0 / np.sqrt(12.0 * number)
        together = self.plain.scores(holding.take(far).counted(n_grams, self.large))
        usual = holding.take(far & (likeness >= AT_HOME))
        alone = self.at_home.scores(usual.counted(n_grams, self.large))
        return np.maximum(np.where(like, together, NOTHING), alone), like


def _phrases(
    carriers: _Carriers,
    holding: _Holding,
    found: NDArray[np.float64],
    why: NDArray[np.int64],
) -> list[tuple[_Phrase, NDArray[np.int64]]]:
    """Explain suspicious n-grams by as few phrases as possible, the most suspicious first.

    Parameters
    ----------
    carriers
        What n-grams and entries are measured by.
    holding
        Which entry holds which n-gram.
    found, why
        Shape (n_entries,): the score of each entry and the number of the phrase that gave it, to
        be filled in.

    Returns
    -------
    list[tuple[_Phrase, NDArray[np.int64]]]
        Phrases, and the entries that are said to hold each.
    """
    tests = carriers.plain
    n_grams, n = len(tests.hashes), len(found)
    # Only n-grams of the batch are looked at, and its rows come first.
    examples = np.full(n_grams, n)
    np.minimum.at(examples, holding.which, holding.rows)
    phrases: list[tuple[_Phrase, NDArray[np.int64]]] = []
    for _ in range(MAX_PHRASES):
        scores, like = carriers.scores(holding)
        gram = int(np.argmax(scores))
        score = float(scores[gram])
        if not score > FAINT:
            break
        rows, which = holding.rows, holding.which
        low, high = np.searchsorted(which, [gram, gram + 1])
        holders, close = rows[low:high], holding.close[low:high]
        together = np.bincount(which[_marked(holders, n)[rows]], minlength=n_grams)
        parts = np.flatnonzero(2 * together >= len(holders))
        # Who has the n-gram, but hardly any other part of the phrase, has it by chance.
        have = np.bincount(rows[_marked(parts, n_grams)[which]], minlength=n)
        whole = have[holders] >= WHOLE * len(parts)
        likeness = carriers.likeness[holders]
        witness = ~close & (bool(like[gram]) | (likeness >= AT_HOME))
        # Most of a scattered phrase, and the others with it.
        named = witness | (bool(like[gram]) & (2 * np.count_nonzero(~close) >= len(close)))
        named_rows = holders[whole & named]
        holding = holding.take(~_marked(named_rows, n)[rows] & (which != gram))
        if not len(named_rows):
            continue
        odds = tests.share[gram] / (1.0 - tests.share[gram])
        phrase = _Phrase(
            score=score,
            hashes=(int(tests.hashes[gram]), *tests.hashes[parts[parts != gram]].tolist()),
            n_recent=len(holders),
            n_known=float(tests.known[gram]),
            expected=float(tests.known[gram] * odds),
            example=int(examples[gram]),
            witnesses=frozenset(holders[whole & witness].tolist()),
        )
        found[named_rows], why[named_rows] = score, len(phrases)
        phrases.append((phrase, named_rows))
        if score >= SURE:
            carriers.plain.relate(parts)
            carriers.at_home.relate(parts)
    return phrases


def _drawn(n_batches: int) -> NDArray[np.int64]:
    """Return which batches of held-out entries are scored; the same ones for a number of them."""
    return np.random.default_rng(0).permutation(n_batches)[: MAX_HELD_OUT // ARRIVING]


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _marked(rows: NDArray[np.intp], n: int) -> NDArray[np.bool_]:
    marked = np.zeros(n, dtype=np.bool_)
    marked[rows] = True
    return marked


def _same_texts(
    sketches: NDArray[np.uint32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs of rows, enough to join the texts that are copies of each other."""
    first = second = [np.empty(0, dtype=np.int64)]
    filled = sketches != EMPTY
    for column in range(SKETCH if len(sketches) > 1 else 0):
        order = np.argsort(sketches[:, column], kind="stable")
        ordered = sketches[order, column]
        at = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] != EMPTY))
        if not len(at):
            continue
        a, b = order[at], order[at + 1]
        same = np.count_nonzero((sketches[a] == sketches[b]) & filled[a], axis=1)
        either = np.count_nonzero(filled[a] | filled[b], axis=1)
        alike = same >= SAME_TEXT * either
        first, second = [*first, a[alike]], [*second, b[alike]]
    return np.concatenate(first), np.concatenate(second)


def _copies(sketches: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the rows of all texts but the first of those that are copies, ascending."""
    _, first = np.unique(_joined(len(sketches), *_same_texts(sketches)), return_index=True)
    return np.setdiff1d(np.arange(len(sketches)), first)


def _joined(n: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each of n rows, the same for those that pairs join."""
    if not len(first):
        return np.arange(n)
    from scipy.sparse import coo_array  # noqa: PLC0415 - keeps `import ragshield_core` quick
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    graph = coo_array((np.ones(len(first)), (first, second)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def _quote(text: str, hashes: Sequence[int]) -> tuple[str, tuple[int, int] | None]:
    """Return the words around the first n-gram that belong to the others, and where they lie."""
    listed = words(text)
    core = np.flatnonzero(places_of(listed, hashes[:1]))
    if not core.size:
        return "", None
    marked = places_of(listed, hashes)
    marked = marked | np.append(marked[1:], False) & np.insert(marked[:-1], 0, False)  # gaps of one
    low = high = int(core[0])
    while low > 0 and marked[low - 1]:
        low -= 1
    while high + 1 < len(listed) and marked[high + 1]:
        high += 1
    spans = word_spans(text)
    return " ".join(listed[low : high + 1]), (spans[low][0], spans[high][1])
