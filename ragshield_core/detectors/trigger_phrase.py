"""Phrases that recent entries hold far more often than the knowledge base explains."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Sized
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS, Detector, Evidence, Need, Scope
from ragshield_core.entries import Batch
from ragshield_core.errors import InvalidBatchError, NotFittedError
from ragshield_core.findings import printable
from ragshield_core.groups.order import FEWEST, came_together
from ragshield_core.groups.pieces import Pieces
from ragshield_core.state import part_of
from ragshield_core.text.normalized import readable, word_spans, words
from ragshield_core.text.phrase_counts import (
    EMPTY,
    MAX_CELLS,
    N_ORDERS,
    SKETCH,
    TAIL,
    Arrival,
    Background,
    Grams,
    Recent,
    arrivals_of,
    found_in,
    n_cells_for,
    order_of,
    places_of,
)

logger = logging.getLogger("ragshield")

# Fewer entries say too little about what is usual among them.
MIN_ENTRIES = 100
# Number of newer entries after which an entry counts half: one poisoned entry in 100 then adds up
# to nearly 30, and a burst of last month is not held against this month's.
HALF_LIFE = 2_000
# Recent entries are kept, and can be condemned, up to so many. The oldest count a quarter then.
MAX_RECENT = 4_096
# Distinct n-grams of recent entries that are kept, 4 bytes each: 4,096 entries of 100 words have
# two millions.
MAX_RECENT_GRAMS = 1 << 22

# Entries that one counts for that a person has released.
TRUSTED = 10

# More phrases than these at once, each with its own holders, are not planted but new: another
# source, or another language.
CAMPAIGN = 4
# So many entries are held or recalled for one phrase at the most, until a person has confirmed some
# of them: what is found for ever, in every hundredth entry, is part of the language. But no new
# word is suddenly in every twentieth one.
PATIENCE, TOO_MANY = 30, 0.05
# Entries whose mean cosine is higher than that of all recent ones by this are about one thing; a
# dozen drawn at random differ from it by less.
UNUSUALLY_ALIKE = 0.05
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
# Never more phrases than this are told apart in one batch; entries that hold further ones are
# judged by the n-grams that remain.
MAX_PHRASES = 64
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


class _ToldApart(NamedTuple):
    """Phrases, and what they say of the entries of a batch and of recent ones."""

    phrases: list[tuple[_Phrase, NDArray[np.int64]]]  # each with the entries that hold it
    found: NDArray[np.float64]  # (n_batch + n_recent,): scores; -inf without one
    why: NDArray[np.int64]  # (n_batch + n_recent,): of phrases, -1 for none


class _Judgement(NamedTuple):
    """Scores of a batch and of recent entries, and what they rest on."""

    scores: NDArray[np.float64]  # (n_batch,)
    recent: NDArray[np.float64]  # (n_recent,), -inf without an opinion
    why: NDArray[np.int64]  # (n_batch + n_recent,): of phrases, -1 for none
    phrases: list[_Phrase]
    n_recent: int  # entries that are counted


class TriggerPhraseDetector(Detector):
    """Find phrases planted in many entries, whatever their labels.

    An n-gram (up to four words, see :mod:`ragshield_core.text.phrase_counts`) is suspicious when
    too many of the entries that hold it are recent. Were recent entries like those of the knowledge
    base, each of its holders would be recent with the same probability: the recent share of all
    text. The score is the negative decimal logarithm of how likely so many recent ones are then,
    corrected for the n-grams of the knowledge base that are as frequent and could have been as
    many: 2 for one batch in a hundred.

    An entry has the score of its most suspicious n-gram. The entries that hold it are then set
    aside, and the others are judged by what is left, so that an innocent entry is not condemned
    for a common part of a planted phrase. Parts of a phrase that was found need to stand the
    test among each other only, which finds entries with a word of it changed.

    Entries that :meth:`fit` was given are background. Later ones are recent: they count with a
    weight that halves every ``half_life`` entries, they can be condemned by what comes after them
    (:meth:`retroactive`), and become background once ``max_recent`` others have come. Held
    entries go on counting and never become background. Copies of one text count once, and so do
    entries of one lineage, but for each time that they are as many as the large lineages of the
    knowledge base have: whoever brings an entry may claim any lineage. Entries about one thing, as
    their vectors tell, share its name: they count as the fewer, the more alike they are.

    Parameters
    ----------
    half_life
        Number of newer entries after which an entry counts half; default 2,000.
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

    kind: ClassVar[str] = "trigger_phrase"
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
    in_pieces = True

    scope = Scope.BATCH

    def __init__(
        self,
        *,
        half_life: float = HALF_LIFE,
        max_recent: int = MAX_RECENT,
        min_entries: int = MIN_ENTRIES,
        lineages_once: bool = True,
    ) -> None:
        if half_life <= 0:
            msg = f"half_life is {half_life}, expected a positive number of entries."
            raise ValueError(msg)
        for name, value in (("max_recent", max_recent), ("min_entries", min_entries)):
            if value < 1:
                msg = f"{name} is {value}, expected at least 1."
                raise ValueError(msg)
        self.half_life = half_life
        self.max_recent = max_recent
        self.min_entries = min_entries
        self.lineages_once = lineages_once
        self.reset()

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again."""
        return {
            "half_life": self.half_life,
            "max_recent": self.max_recent,
            "min_entries": self.min_entries,
            "lineages_once": self.lineages_once,
        }

    def reset(self) -> None:
        """Forget everything."""
        self._background: Background | None = None
        self._recent = Recent()
        self._ready = False  # whether what is learned now is recent
        self._lineages: Counter[str] = Counter()  # entries of the knowledge base, by lineage
        self._confirmed: set[str] = set()  # held, and judged poisoned by a person
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
        self._part_with(entries)
        self._lineages -= Counter(name for name in entries.lineages if name is not None)
        recent = self._forget_recent(entries.ids, held=False)
        rest = entries.take(np.array([i not in recent for i in entries.ids], dtype=np.bool_))
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
            self._settle(arrivals, n_entries=0)

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
            self._latest = None

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries hold a phrase that stands out because they came together only.

        In a random order a phrase of so few is that of usual ones, see
        :mod:`ragshield_core.groups.order`. It is looked for in the first sample of 2,000 entries or
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
        """Return every row while too little is known, or while all that comes reads differently."""
        if self._ready:
            return self._new_ground(batch)
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

        Entries that were fitted, released by a person, or are held already, are left alone, and so
        are those whose phrase at most one held entry has: anybody can repeat somebody's words once.
        What very many have is not taken back on the word of a machine; see :data:`PATIENCE`.
        """
        if not self._ready or not len(batch):
            return [], np.empty(0)
        ids, scores = self._later(batch)
        if not ids:
            return ids, scores
        judgement = self._judged(batch)
        guilty = {a.id for a in self._recent.arrivals if a.held}
        guilty |= {batch.ids[row] for row in np.flatnonzero(condemned).tolist()}
        holders = [
            0
            if len(phrase.ids) > PATIENCE and _may_be_new(phrase, judgement.why)
            else sum(i in guilty for i in phrase.ids)
            for phrase in judgement.phrases
        ]
        why = dict(zip(self._recent_ids(), judgement.why[len(batch) :].tolist(), strict=True))
        accused = [why[i] >= 0 and holders[why[i]] >= ACCOMPLICES for i in ids]
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
        confirmed = sorted(self._confirmed)
        values = {"ready": self._ready, "recent": recent, "confirmed": confirmed}
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
        self._confirmed = set(values.get("confirmed", ()))
        self._lineages = Counter(values.get("lineages", {}))  # early versions did not count them
        if "together" in values:
            self._together = set(values["together"])
        self._parted = dict(values.get("parted", {}))  # early versions forgot them

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
        return np.concatenate(sketches)

    def _copies(self, entries: Batch, sketches: NDArray[np.uint32]) -> list[Grams]:
        """Return the n-grams of all entries but the first of those that are copies."""
        copies = _copies(sketches)
        parts = [copies[start : start + CHUNK] for start in range(0, len(copies), CHUNK)]
        return [Grams.of([entries.texts[row] for row in part.tolist()]) for part in parts]

    def _arrive(self, entries: Batch, *, held: bool) -> None:
        judged, self._latest = self._latest, None
        if judged is not None and judged[0] is entries:
            grams = judged[1]
        else:
            grams = Grams.of(entries.texts)
        self._forget_recent(entries.ids, held=held)  # a write that is repeated
        self._recent.append(arrivals_of(entries, grams, held=held))
        self._settle(self._recent.remove(self._recent.surplus(self.max_recent, MAX_RECENT_GRAMS)))

    def _settle(self, arrivals: Sequence[Arrival], n_entries: int | None = None) -> None:
        """Make entries that are no longer recent background, unless they are held."""
        settled = [arrival.hashes for arrival in arrivals if not arrival.held]
        if settled and self._background is not None:
            n_settled = len(settled) if n_entries is None else n_entries
            self._background.add_hashes(np.concatenate(settled), n_settled)

    def _forget_recent(self, ids: Sequence[str], *, held: bool) -> set[str]:
        """Remove recent entries by id, and return which there were."""
        wanted = set(ids)
        marked = [a.held is held and a.id in wanted for a in self._recent.arrivals]
        return {a.id for a in self._recent.remove(np.array(marked, dtype=np.bool_))}

    def _new_ground(self, batch: Batch) -> dict[int, str]:
        """Return every row, if too many phrases stand out at once to have been planted."""
        phrases = self._judged(batch).phrases
        loud = len(phrases)
        if loud <= CAMPAIGN and any(phrase.score > self.floor for phrase in phrases):
            loud = max(loud, self._n_loud_lately(batch))
        if loud <= CAMPAIGN:
            return {}
        reason = (
            f"{loud} phrases at once are more frequent lately than the knowledge base explains: "
            "what comes reads differently from what is there, and no phrase can be called planted"
        )
        return dict.fromkeys(range(len(batch)), reason)

    def _n_loud_lately(self, batch: Batch) -> int:
        """Return how many phrases would stand out, had the latest entries come with the batch.

        What reads differently must not look planted because it comes entry by entry.
        """
        assert self._background is not None  # noqa: S101
        if len(batch) >= ARRIVING:
            return 0
        latest = self._recent.arrivals[-(ARRIVING - len(batch)) :]
        grams = Grams.of(batch.texts)
        weights = self._weights(batch)
        share = self._recent_share(grams, weights[len(batch) :], self._background)
        hashes = np.concatenate([grams.hashes, *(arrival.hashes for arrival in latest)])
        _, candidates = self._candidates(grams, hashes, share, self._background)
        return len(self._told_apart(batch, grams, candidates, share, weights).phrases)

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
        weights = self._weights(batch)
        share = self._recent_share(grams, weights[len(batch) :], background)
        faint, candidates = self._candidates(grams, grams.hashes, share, background)
        scores = np.full(len(batch), NOTHING)
        first = np.flatnonzero(np.diff(grams.rows, prepend=-1))  # n-gram of each text
        if len(first):
            rows = grams.rows[first]
            scores[rows] = np.maximum(scores[rows], np.maximum.reduceat(faint, first))
        told = self._told_apart(batch, grams, candidates, share, weights)
        self._lose_patience(told.phrases, len(batch), told.found)
        ids = [*batch.ids, *(arrival.id for arrival in self._recent.arrivals)]
        return _Judgement(
            scores=np.maximum(scores, told.found[: len(batch)]),
            recent=told.found[len(batch) :],
            why=told.why,
            phrases=[
                phrase._replace(ids=tuple(ids[row] for row in holders.tolist()))
                for phrase, holders in told.phrases
            ],
            n_recent=int(np.count_nonzero(weights)),
        )

    def _told_apart(
        self,
        batch: Batch,
        grams: Grams,
        candidates: NDArray[np.uint32],
        share: NDArray[np.float64],
        weights: NDArray[np.float64],
    ) -> _ToldApart:
        """Return the phrases that explain n-grams of the batch and of recent entries."""
        assert self._background is not None  # noqa: S101
        n_batch, n = len(batch), len(weights)
        found, why = np.full(n, -np.inf), np.full(n, -1, dtype=np.int64)
        if not candidates.size:
            return _ToldApart([], found, why)
        mine, place = found_in(candidates, grams.hashes)
        tests = _Tests(candidates, self._background, share)
        # Of a few texts, candidates are mostly such as share a cell with others.
        most = np.bincount(place, minlength=len(candidates)) + self._recent.at_most(candidates)
        if not (tests.scores(most.astype(np.float64)) > FAINT).any():
            return _ToldApart([], found, why)
        rows, which = self._recent.holders(candidates)
        counted = weights[n_batch + rows] > 0.0
        rows = np.concatenate([grams.rows[mine], rows[counted] + n_batch])
        which = np.concatenate([place, which[counted]])
        holding = _Holding.of(
            rows, which, self._copies_of(grams), self._lineages_of(batch), weights
        )
        kinship = _kinship(self._vectors(batch), rows, which, len(candidates), weights > 0.0)
        phrases = _phrases(tests, holding, weights, kinship, self._large_lineage, found, why)
        return _ToldApart(phrases, found, why)

    def _lose_patience(
        self,
        phrases: Sequence[tuple[_Phrase, NDArray[np.int64]]],
        n_batch: int,
        found: NDArray[np.float64],
    ) -> None:
        """Take what is said for phrases back that many are held for, and nobody has confirmed."""
        waiting = np.zeros(len(found), dtype=np.bool_)
        waiting[n_batch:] = [a.held and a.id not in self._confirmed for a in self._recent.arrivals]
        for phrase, holders in phrases:
            n_waiting = int(np.count_nonzero(waiting[holders]))
            if phrase.score > self.floor and n_waiting >= PATIENCE and _may_be_new(phrase, found):
                found[holders] = np.minimum(found[holders], FAINT)
                logger.warning(
                    "%s: %d entries are held for one phrase and nobody has confirmed any: no more "
                    "are; confirm or release some of them",
                    *(self.name, n_waiting),
                )

    def confirm(self, ids: Sequence[str]) -> None:
        """Believe what is said of held entries: a person has judged them poisoned."""
        self._confirmed.update(ids)
        self._latest = None

    def _weights(self, batch: Batch) -> NDArray[np.float64]:
        """Return how much the entries of the batch and recent ones count, in [0, 1]."""
        arrivals = self._recent.arrivals
        age = np.arange(len(arrivals), 0, -1)
        weights = np.exp2(-age / self.half_life)
        again = {*batch.ids, *self._overlooked}  # a new revision counts instead of the old one
        weights[[row for row, arrival in enumerate(arrivals) if arrival.id in again]] = 0.0
        return np.concatenate([np.ones(len(batch)), weights])

    def _recent_share(
        self, grams: Grams, weights: NDArray[np.float64], background: Background
    ) -> NDArray[np.float64]:
        """Return, by order, the share of all text that is recent; by entries where that is more."""
        sizes = np.array([len(a.hashes) for a in self._recent.arrivals], dtype=np.float64)
        orders = np.bincount(order_of(grams.hashes), minlength=N_ORDERS)
        # Recent entries are taken to have the mixture of orders of the background.
        mixture = background.n_grams / max(1, background.n_grams.sum())
        texts = orders + mixture * float(weights @ sizes)
        by_text = texts / np.maximum(1, texts + background.n_grams)
        entries = grams.n_rows + weights.sum()
        by_entry = entries / (entries + max(1, background.n_entries))
        share: NDArray[np.float64] = np.minimum(np.maximum(by_text, by_entry), 1.0 - 1e-6)
        return share

    def _candidates(
        self,
        grams: Grams,
        hashes: NDArray[np.uint32],
        share: NDArray[np.float64],
        background: Background,
    ) -> tuple[NDArray[np.float64], NDArray[np.uint32]]:
        """Return a faint score for each of some n-grams, and those that may be worth more.

        Counts by hash, and not by weight, are upper limits: nothing suspicious is lost.

        Parameters
        ----------
        grams
            Of the batch.
        hashes
            The n-grams that are looked at: these, or with those of the latest entries.
        share
            Of all text that is recent, by order.
        background
            What is known.
        """
        bits = min(22, max(10, (2 * len(hashes)).bit_length()))

        def cells(of: NDArray[np.uint32]) -> NDArray[np.uint32]:
            return np.asarray((of * np.uint32(0x85EBCA6B)) >> np.uint32(32 - bits))

        mine = cells(grams.hashes)
        here = np.bincount(mine, minlength=1 << bits)
        counts = here[mine if hashes is grams.hashes else cells(hashes)]
        counts += self._recent.at_most(hashes)
        several = np.flatnonzero(counts > 1)
        tests = _Tests(hashes[several], background, share)
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

    def _vectors(self, batch: Batch) -> NDArray[np.float32] | None:
        """Return the vectors of the batch and of recent entries; None if any has none."""
        recent = [arrival.vector for arrival in self._recent.arrivals]
        if not batch.dim or any(len(vector) != batch.dim for vector in recent):
            return None
        if not recent:
            return batch.embeddings
        return np.concatenate([batch.embeddings, np.stack(recent).astype(np.float32)])

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
        self, hashes: NDArray[np.uint32], background: Background, share: NDArray[np.float64]
    ) -> None:
        self.hashes = hashes
        self.orders = order_of(hashes)
        self.known = background.of(hashes)
        self.share, self.odds = share[self.orders], (share / (1.0 - share))[self.orders]
        # How many n-grams are tested at once, as a logarithm, by order and number of holders.
        self._log_tests = np.log10(background.tail * N_ORDERS)
        self._log_parts = np.full(len(hashes), np.inf)  # less for parts of a known phrase

    def scores(self, recent: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the corrected surprisal for weights of recent entries, shape (n_hashes,)."""
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

    @classmethod
    def of(
        cls,
        rows: NDArray[np.int64],
        which: NDArray[np.int64],
        copies: NDArray[np.int64],
        lineages: NDArray[np.int64],
        weights: NDArray[np.float64],
    ) -> _Holding:
        """Put pairs in order, given the copies, lineages and weights of entries."""
        order = np.lexsort((-weights[rows], copies[rows], which))
        rows, which = rows[order], which[order]
        pairs = which * len(lineages) + lineages[rows]
        return cls(rows, which, copies[rows], np.unique(pairs, return_inverse=True)[1])

    def take(self, kept: NDArray[np.bool_]) -> _Holding:
        """Return some of the pairs."""
        return _Holding(*(column[kept] for column in self))

    def counted(
        self, weights: NDArray[np.float64], n_grams: int, large: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weight, and the number, of the entries that hold each n-gram.

        Of copies, the one of most weight counts. Those of one lineage count as one for each time
        that they are as many as a large lineage has.
        """
        first = np.ones(len(self.rows), dtype=np.bool_)
        first[1:] = (self.which[1:] != self.which[:-1]) | (self.copies[1:] != self.copies[:-1])
        rows, which, lineages = self.rows[first], self.which[first], self.lineages[first]
        n = int(lineages.max(initial=-1)) + 1
        most, gram = np.zeros(n), np.zeros(n, dtype=np.int64)
        np.maximum.at(most, lineages, weights[rows])
        gram[lineages] = which
        number = np.bincount(lineages, minlength=n)
        weight = np.maximum(most, np.bincount(lineages, weights[rows], minlength=n) / large)
        number = np.where(number > 0, np.maximum(1.0, number / large), 0.0)
        return (
            np.asarray(np.bincount(gram, weight, minlength=n_grams), dtype=np.float64),
            np.asarray(np.bincount(gram, number, minlength=n_grams), dtype=np.float64),
        )


def _phrases(
    tests: _Tests,
    holding: _Holding,
    weights: NDArray[np.float64],
    kinship: NDArray[np.float64],
    large: float,
    found: NDArray[np.float64],
    why: NDArray[np.int64],
) -> list[tuple[_Phrase, NDArray[np.int64]]]:
    """Explain suspicious n-grams by as few phrases as possible, the most suspicious first.

    Parameters
    ----------
    tests
        Of the n-grams.
    holding
        Which entry holds which n-gram.
    weights
        Shape (n_entries,): how much each counts.
    kinship
        Shape (n_grams,), [0, 1]: how far the entries that hold an n-gram are about one thing.
    large
        How many entries a large lineage has.
    found, why
        Shape (n_entries,): the score of each entry and the number of the phrase that gave it, to
        be filled in.

    Returns
    -------
    list[tuple[_Phrase, NDArray[np.int64]]]
        Phrases, and the entries that hold each.
    """
    n_grams, n = len(tests.hashes), len(weights)
    # Only n-grams of the batch are looked at, and its rows come first.
    examples = np.full(n_grams, n)
    np.minimum.at(examples, holding.which, holding.rows)
    phrases: list[tuple[_Phrase, NDArray[np.int64]]] = []

    def counted() -> NDArray[np.float64]:
        total, number = holding.counted(weights, n_grams, large)
        # Entries about one thing share its name: they are worth as many independent ones as the
        # design effect says (Kish, "Survey Sampling", 1965).
        return np.asarray(total / (1.0 + np.maximum(number - 1.0, 0.0) * kinship))

    def add(gram: int, score: float, holders: NDArray[np.int64], parts: NDArray[np.intp]) -> None:
        odds = tests.share[gram] / (1.0 - tests.share[gram])
        phrase = _Phrase(
            score=score,
            hashes=(int(tests.hashes[gram]), *tests.hashes[parts[parts != gram]].tolist()),
            n_recent=len(holders),
            n_known=float(tests.known[gram]),
            expected=float(tests.known[gram] * odds),
            example=int(examples[gram]),
        )
        found[holders], why[holders] = score, len(phrases)
        phrases.append((phrase, holders))

    for _ in range(MAX_PHRASES):
        scores = tests.scores(counted())
        gram = int(np.argmax(scores))
        score = float(scores[gram])
        if not score > FAINT:
            return phrases
        rows, which = holding.rows, holding.which
        low, high = np.searchsorted(which, [gram, gram + 1])
        holders = rows[low:high]
        together = np.bincount(which[_marked(holders, n)[rows]], minlength=n_grams)
        parts = np.flatnonzero(2 * together >= len(holders))
        # Who has the n-gram, but hardly any other part of the phrase, has it by chance.
        have = np.bincount(rows[_marked(parts, n_grams)[which]], minlength=n)
        holders = holders[have[holders] >= WHOLE * len(parts)]
        add(gram, score, holders, parts)
        if score >= SURE:
            tests.relate(parts)
        holding = holding.take(~_marked(holders, n)[rows])
    # Too many phrases to tell apart: the rest is judged by what is left of its n-grams.
    scores = tests.scores(counted())
    best = np.full(n, -1, dtype=np.int64)
    rows, which = holding.rows, holding.which
    order = np.argsort(scores[which], kind="stable")
    best[rows[order]] = which[order]
    for gram in np.unique(best[best >= 0]).tolist():
        if scores[gram] > FAINT:
            add(gram, float(scores[gram]), np.flatnonzero(best == gram), np.array([gram]))
    return phrases


def _kinship(
    vectors: NDArray[np.float32] | None,
    rows: NDArray[np.int64],
    which: NDArray[np.int64],
    n_grams: int,
    counted: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Return how much more alike the holders of each n-gram are than entries usually are.

    Parameters
    ----------
    vectors
        Of all entries, shape (n_entries, dim); ``None`` if there are none.
    rows, which
        Shape (n_pairs,): which entry holds which n-gram.
    counted
        Shape (n_entries,): which entries count.

    Returns
    -------
    NDArray[np.float64]
        Shape (n_grams,), [0, 1]: the mean cosine of two holders, from what is usual on.
    """
    if vectors is None:
        return np.zeros(n_grams)
    from scipy.sparse import csr_array  # noqa: PLC0415 - keeps `import ragshield_core` quick

    shape = (n_grams, len(vectors))
    holders = csr_array((np.ones(len(rows), dtype=np.float32), (which, rows)), shape=shape)
    n = np.maximum(holders.sum(axis=1), 2.0)
    length = np.square(holders @ vectors).sum(axis=1)  # n + the cosines of all pairs
    cosine = (length - n) / (n * (n - 1.0))
    usual = float(np.square(vectors[counted].mean(axis=0)).sum()) + UNUSUALLY_ALIKE
    beyond = (cosine - usual) / max(1.0 - usual, UNUSUALLY_ALIKE)
    return np.asarray(np.clip(beyond, 0.0, 1.0), dtype=np.float64)


def _may_be_new(phrase: _Phrase, entries: Sized) -> bool:
    """Return whether a phrase may be a new word, by how many of the recent entries hold it."""
    return phrase.n_recent < TOO_MANY * len(entries)


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
