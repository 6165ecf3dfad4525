"""Detect phrases that are far more frequent in recent entries than in the knowledge base."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import (
    N_FOLDS,
    Evidence,
    GroupDetector,
    Need,
    Scope,
    SharesLearning,
    Traits,
)
from ragshield_core.detectors.base.order import FEWEST, came_together
from ragshield_core.detectors.phrase.counts import Grams, hashed, n_cells_for, places_of
from ragshield_core.detectors.phrase.judging import (
    MIN_LIFT,
    NOTHING,
    PhraseJudgement,
    copies_in,
    judge,
    planted_in,
)
from ragshield_core.detectors.phrase.memory import CHUNK, Memory
from ragshield_core.detectors.phrase.sample import Places
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.model.findings import printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING
from ragshield_core.text.normalized import readable, word_spans, words

logger = logging.getLogger("ragshield")

# Fewer entries do not show their usual phrases.
MIN_ENTRIES = 100
# Weight of an entry that a person has released, in entries.
TRUSTED = 10
# Most entries that are scored while held out: more do not improve a threshold at one in a thousand.
MAX_HELD_OUT = 10_000
# Size of the batches in which held-out entries arrive.
ARRIVING = 100
QUOTED = 80  # characters
# Fewest held entries with a phrase that condemn an earlier entry with it.
ACCOMPLICES = 2


class TriggerPhraseDetector(GroupDetector, SharesLearning):
    """Find phrases that were planted in many entries, with any labels.

    An n-gram (up to four words, see :mod:`.counts`) is suspicious if too many of the entries that
    contain it are recent. If recent entries were like the knowledge base, each holder would be
    recent with the same probability: the recent share of all text. The score is the negative
    decimal logarithm of the probability of so many recent holders, corrected for the number of
    n-grams of the knowledge base that are as frequent: chance reaches 2 in one batch of a hundred.

    An entry has the score of its most suspicious n-gram. The holders of the most suspicious n-gram
    are then set aside, and the others are judged by the remaining n-grams, so that an innocent
    entry is not condemned for a common part of a planted phrase. Parts of a found phrase are tested
    among each other only, which finds entries that changed one of its words.

    Only those recent entries count that could carry a planted phrase. They are like the knowledge
    base except for the phrase: their nearest stored entry is as near, and their pairs of words are
    as usual, as for its own entries. They are scattered: the stored entries next to them are no
    closer to each other than others. So the words of a new source, language or product are not
    reported. Entries that are clearly like the knowledge base always count.

    The fitted entries (:meth:`fit`) are background. Later entries are recent: further batches can
    condemn them (:meth:`retroactive`), and they become background once 4,096 others have come. Held
    entries still count as carriers, never become background, and do not increase the recent share
    of text. Copies of one text count once. So do entries of one document, up to the size of a large
    document of the knowledge base; more count in proportion.

    A phrase in at least half of the latest updates of a source is taken for its new template.

    Notes
    -----
    For an n-gram with a weight of k among recent entries and b entries of the knowledge base, and a
    recent share q of all text, the tail of the binomial distribution is bounded by
    exp(-(k + b) * KL(k / (k + b) || q)) (Chernoff), which also holds for weights up to 1. The
    correction counts, by length of the n-gram, the n-grams in at least k + b entries of the
    knowledge base: rarer ones cannot reach the score (Tarone, "A modified Bonferroni method for
    discrete data", Biometrics 46, 1990).

    An n-gram with no more recent than known holders is never suspicious, whichever share is
    recent: it belongs to the knowledge base, and many such entries may come at once.

    Limits: a phrase needs about four entries in 100 new ones beside 10,000 known ones, and about
    ten in 1,000 beside 2,500; once recent text is as much as known text, hardly any is found.
    A phrase in fewer than about one in a thousand entries goes unnoticed and ends up in the
    background. A new template or topic of the knowledge base looks the same as a planted phrase
    until a person has released it. Hashes are not keyed.

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
    # Without a calibration: one batch in a hundred has such a phrase by chance.
    default_threshold: float = 2.0
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0043.004", *POISONING, CRAFTED, "CWE-349"),
        # Chance reaches this in one batch of a hundred: no reason to act, however rare it is here.
        floor=2.0,
        scope=Scope.BATCH,
        acts_unfitted=False,
        reads=(hashed,),
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._memory: Memory | None = None  # before the first entry
        self._ready = False  # whether entries learned from now on are recent
        # Entries with a phrase that is suspicious because they came together; None until a large
        # enough sample was checked.
        self._together: set[str] | None = None
        # Such entries that have left or are held now, each with a hash of its text.
        self._parted: dict[str, str] = {}
        self._latest: tuple[Batch, Grams, PhraseJudgement] | None = None
        self._prepared: tuple[Batch, Grams, Places] | None = None  # to be learned next
        self._overlooked: frozenset[str] = frozenset()

    # Learning

    def learn(self, entries: Batch) -> None:
        """Add entries: background at the first call and up to :data:`MIN_ENTRIES`, then recent."""
        if not len(entries):
            return
        self._doubt_again(entries)
        if self._memory is None:
            n_cells = n_cells_for(sum(map(len, entries.texts)))
            self._memory = Memory(entries.dim, n_cells)
        self._memory.lineages.update(name for name in entries.lineages if name is not None)
        if self._ready:
            self._arrive(entries, held=False)
            return
        sketches = self._memory.count(entries, 1)
        if self._memory.background.n_entries >= MIN_ENTRIES:
            self._memory.background.measure(_grams_of([entries.take(_copies(sketches))]))
            self._ready = True

    def prepared(self, entries: Batch) -> dict[str, NDArray[Any]]:
        """Return the places of entries in the knowledge base."""
        if not self._ready:
            return {}
        if self._latest is not None and self._latest[0] is entries:
            _, grams, judgement = self._latest
            places = judgement.places
        else:
            grams, memory = Grams.of(entries.texts), self._fitted()
            places = memory.sample.places(entries, grams, memory.background)
        self._prepared = entries, grams, places
        return dict(places)

    def take_prepared(self, entries: Batch, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Let the next :meth:`learn` of these entries use their places."""
        if self._ready and self._fitted().fits(arrays, len(entries)):
            self._prepared = entries, Grams.of(entries.texts), arrays

    def forget(self, entries: Batch) -> None:
        """Remove learned entries."""
        self._changed()
        if self._memory is not None and len(entries):
            self._part_with(entries)
            self._memory.forget(entries)

    def remember_held(self, entries: Batch) -> None:
        """Count held entries among the recent ones: others with the same phrase may follow.

        Of an entry with a planted phrase, only that phrase counts. Otherwise, a flood of held
        entries would make all their words suspicious.
        """
        if self._ready and len(entries):
            planted = planted_in(self._judged(entries), self._fitted().background)
            self._arrive(entries, held=True, only=planted)

    def overlook(self, ids: Collection[str]) -> None:
        """Ignore recent entries that the batch replaces."""
        if self._overlooked != set(ids):
            self._overlooked = frozenset(ids)
            self._changed()

    def forget_held(self, ids: Sequence[str]) -> None:
        """Stop counting held entries."""
        self._changed()
        if self._memory is not None:
            self._memory.forget_recent(ids, held=True)

    def trust(self, ids: Sequence[str]) -> None:
        """Make entries background with a weight of ten each: a person has judged them good.

        Once the entries of a new template are released, its phrases explain later entries; the
        phrases of one entry that was released by mistake explain hardly any.
        """
        self._changed()
        if self._together:
            self._together.difference_update(ids)
        for entry_id in ids:
            self._parted.pop(entry_id, None)
        if self._memory is not None:
            left = self._memory.leave(self._memory.recent_among(ids, held=False))
            for number in range(TRUSTED):
                self._memory.make_background(left, again=number > 0)

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of fitted entries that arrive once more.

        They arrive in batches of a hundred, in their stored order: adjacent entries of one topic
        have come together. Each fifth of the batches is first removed from the background. At most
        10,000 entries are scored, in batches drawn independently of ``seed``, so that
        :meth:`outliers` checks the order of the same entries; the others are NaN. An entry that a
        later batch makes more suspicious has that later score.
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
            scratch._memory, scratch._ready = self._fitted().copy(), True  # noqa: SLF001
            scratch.forget(fitted.take(rows))
            scratch._fitted().updating.clear()  # noqa: SLF001 - these entries are no updates
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
        """Measure again how many phrases of the present background have each frequency."""
        if self._ready and self._memory is not None:
            background = self._memory.background  # assumes the same share of copies as before
            background.tail = np.maximum(background.held_by() * background.originals, 1.0)
            self._memory.sample.changed()
            self._changed()

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries have a phrase that is suspicious only because they came together.

        In a random order, a phrase of so few entries is usual, see
        :mod:`.order`. Only the first sample of 2,000 entries or more after a fit is checked: for
        samples that somebody has vouched for, thresholds are measured without this call. At most
        10,000 entries of the sample are checked. The entries found are remembered, so that no later
        sample counts them as clean.
        """
        if self._ready and self._together is None and len(reference) >= FEWEST:
            self._together = self._come_together(reference)
        doubted = self._together or ()
        return np.array([entry_id in doubted for entry_id in reference.ids], dtype=np.bool_)

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return which entries were found to have such a phrase, including removed ones."""
        doubted = (self._together or set()).union(self._parted)
        return np.array([entry_id in doubted for entry_id in entries.ids], dtype=np.bool_)

    def n_doubted(self) -> int:
        """Return how many present entries have a phrase that is suspicious by their order."""
        return len(self._together or ())

    # Judging

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while the knowledge base is too small."""
        if self._ready:
            return {}
        reason = (
            f"the knowledge base has {self._n_known} entries, {MIN_ENTRIES} are needed "
            "to know which phrases are usual in it"
        )
        return dict.fromkeys(range(len(batch)), reason)

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the surprisal of the most suspicious phrase of each entry, shape (n_entries,)."""
        return self._judged(batch).scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the phrase, the number of entries with it, and the expected number."""
        if not len(rows):
            return []
        judgement, n_known = self._judged(batch), self._n_known
        return [
            _explained(
                judgement, n_known, int(judgement.why[row]), batch.ids[row], batch.texts[row]
            )
            for row in rows
        ]

    def retroactive(
        self,
        batch: Batch,
        condemned: NDArray[np.bool_],
        unusual: Collection[str] = (),  # noqa: ARG002
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Return recent entries with a phrase that the batch makes suspicious, with scores.

        Entries that were fitted, released by a person, or are already held are never returned. An
        earlier entry is accused if at least two held witnesses have the phrase, scattered in the
        knowledge base and similar to it: anybody can repeat a text's words once. Earlier entries
        are also spared if the knowledge base explains their number: otherwise an attacker could
        have them removed by flooding an ordinary word.
        """
        if not self._ready or not len(batch):
            return [], np.empty(0)
        ids, scores = self._later(batch)
        if not ids:
            return ids, scores
        judgement, recent = self._judged(batch), self._fitted().recent
        why = judgement.why[len(batch) :]
        guilty = np.concatenate([condemned, recent["held"]])
        planted = [
            np.count_nonzero(guilty[sorted(phrase.witnesses)]) >= ACCOMPLICES
            and np.count_nonzero(~recent["held"] & (why == number)) > MIN_LIFT * phrase.expected
            for number, phrase in enumerate(judgement.phrases)
        ]
        why_of = self._why_of(why)
        accused = np.array([why_of[i] >= 0 and planted[why_of[i]] for i in ids], dtype=np.bool_)
        return [i for i, kept in zip(ids, accused, strict=True) if kept], scores[accused]

    def explain_retroactive(self, batch: Batch, ids: Sequence[str]) -> list[Evidence]:
        """Return the evidence for entries that :meth:`retroactive` named, with their new score."""
        judgement = self._judged(batch)
        why_of = self._why_of(judgement.why[len(batch) :])
        evidence = []
        for entry_id in ids:
            why = why_of[entry_id]
            # The entry's text is not kept; quote an entry of the batch with the same phrase.
            text = batch.texts[judgement.phrases[why].example] if why >= 0 else ""
            said = _explained(judgement, self._n_known, why, entry_id, text, of_entry=False)
            evidence.append(said)
        return evidence

    def _why_of(self, why: NDArray[np.int64]) -> dict[str, int]:
        """Return, by id, the numbers of the phrases of recent entries that are not held."""
        recent = self._fitted().recent
        mine = np.flatnonzero(~recent["held"])
        return dict(zip(recent["id"][mine].tolist(), why[mine].tolist(), strict=True))

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts of the background and the n-grams of recent entries."""
        if self._memory is None:
            return {"ready": False}, {}
        values, arrays = self._memory.state()
        values["ready"] = self._ready
        if self._together is not None:
            values["together"] = sorted(self._together)
        if self._parted:
            values["parted"] = dict(sorted(self._parted.items()))
        return values, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        self.reset()
        if "recent" not in values:
            return
        self._memory = Memory.restored(values, arrays)
        self._ready = values["ready"]
        if "together" in values:
            self._together = set(values["together"])
        self._parted = dict(values.get("parted", {}))

    # Inside

    @property
    def _n_known(self) -> int:
        return 0 if self._memory is None else self._memory.background.n_entries

    def _fitted(self) -> Memory:
        if self._memory is None:
            msg = f"{self.name} has learned nothing yet; fit it on the knowledge base."
            raise NotFittedError(msg)
        return self._memory

    def _come_together(self, reference: Batch) -> set[str]:
        """Return the ids of entries with a phrase that is suspicious only in their own order.

        From more than :data:`MAX_HELD_OUT` entries, those that thresholds are measured on are
        checked, the same ones in both orders: an entry scored in only one order would differ.
        """
        drawn = _drawn(-(-len(reference) // ARRIVING))
        looked_at = np.isin(np.arange(len(reference)) // ARRIVING, drawn)
        if not looked_at.all():
            reference = reference.take(looked_at)
        order = np.random.default_rng(0).permutation(len(reference))
        ordered, shuffled = self.held_out_scores(reference, 0), np.full(len(reference), np.nan)
        shuffled[order] = self.held_out_scores(reference.take(order), 0)
        ordered, shuffled = np.fmax(ordered, NOTHING), np.fmax(shuffled, NOTHING)
        # Scores stay in decimal digits. In nats, the order would seem to say something about nearly
        # twice as many entries of Wikipedia in their own order (.069 of 2,500 instead of .037), and
        # a twentieth of poison would pass for another topic.
        rows = np.flatnonzero(came_together(ordered, shuffled, self.traits.floor)).tolist()
        if rows:
            logger.warning(
                "%s: %d of %d entries hold a phrase that would be usual had they not come "
                "together; no threshold counts them as clean. An audit (scan) says why; take out "
                "what is poisoned, and adopt anew",
                *(self.name, len(rows), len(reference)),
            )
        return {reference.ids[row] for row in rows}

    def _part_with(self, entries: Batch) -> None:
        """Note which entries that came together leave: they may be held from now on."""
        if self._together:
            for entry_id, text in zip(entries.ids, entries.texts, strict=True):
                if entry_id in self._together:
                    self._together.remove(entry_id)
                    self._parted[entry_id] = _hash_of(text)

    def _doubt_again(self, entries: Batch) -> None:
        """Note which of these entries come back; an entry with another text is a new one."""
        if self._parted and self._together is not None:
            for entry_id, text in zip(entries.ids, entries.texts, strict=True):
                if self._parted.pop(entry_id, None) == _hash_of(text):
                    self._together.add(entry_id)

    def _arrive(
        self,
        entries: Batch,
        *,
        held: bool,
        only: Mapping[int, NDArray[np.uint32]] | None = None,
    ) -> None:
        """Add entries to the recent ones, with the n-grams and places from their judgement."""
        judged, self._latest = self._latest, None
        prepared, self._prepared = self._prepared, None
        known = None
        if prepared is not None and prepared[0] is entries:
            known = prepared[1:]
        elif judged is not None and judged[0] is entries:
            known = judged[1], judged[2].places
        self._fitted().arrive(entries, known, held=held, only=only)

    def _changed(self) -> None:
        self._latest = self._prepared = None

    def _later(self, batch: Batch) -> tuple[list[str], NDArray[np.float64]]:
        """Return recent entries that are not held, with their scores beside the batch."""
        scores, recent = self._judged(batch).recent, self._fitted().recent
        rows = np.flatnonzero((scores > -np.inf) & ~recent["held"])
        return recent["id"][rows].tolist(), scores[rows]

    def _judged(self, batch: Batch) -> PhraseJudgement:
        """Judge a batch, or reuse the last judgement: several methods need the same one."""
        memory = self._fitted()
        if len(batch) and not self._ready:
            msg = f"entry {batch.ids[0]!r} cannot be judged: {self.unjudged(batch)[0]}."
            raise InvalidBatchError(msg)
        if self._latest is None or self._latest[0] is not batch:
            grams = Grams.of(batch.texts)
            judgement = judge(memory, batch, grams, self._overlooked, self.name)
            self._latest = (batch, grams, judgement)
        return self._latest[2]


def _drawn(n_batches: int) -> NDArray[np.int64]:
    """Return the numbers of the held-out batches that are scored; a fixed draw by ``n_batches``."""
    return np.random.default_rng(0).permutation(n_batches)[: MAX_HELD_OUT // ARRIVING]


def _copies(sketches: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the rows of texts that copy an earlier one, ascending."""
    _, first = np.unique(copies_in(sketches), return_index=True)
    return np.setdiff1d(np.arange(len(sketches)), first)


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _grams_of(batches: Iterable[Batch]) -> Iterator[Grams]:
    """Yield the n-grams of entries, chunk by chunk."""
    for batch in batches:
        for start in range(0, len(batch), CHUNK):
            yield Grams.of(batch.texts[start : start + CHUNK])


def _explained(
    judgement: PhraseJudgement,
    n_known: int,
    why: int,
    entry_id: str,
    text: str,
    *,
    of_entry: bool = True,
) -> Evidence:
    """Return the evidence about an entry; ``of_entry``: whether ``text`` is its own text."""
    if why < 0:
        return Evidence(sentence="no phrase of it is more frequent than usual (score below 0.0)")
    phrase = judgement.phrases[why]
    view = readable(text)
    quote, span = _quote(view.text, phrase.hashes)
    quoted = printable(quote, QUOTED)
    known = f"about {phrase.n_known:.0f}" if math.isfinite(phrase.n_known) else "very many"
    return Evidence(
        sentence=(
            f"{phrase.n_recent} of the {judgement.n_recent} newest entries say {quoted!r}, of the "
            f"{n_known:,} older ones {known} (by chance {phrase.expected:.1f} of the newest would; "
            f"so many do in one batch of 10^{phrase.score:.1f})"
        ),
        related_ids=tuple(i for i in phrase.ids if i != entry_id),
        span=view.original_span(*span) if of_entry and span is not None else None,
    )


def _quote(text: str, hashes: Sequence[int]) -> tuple[str, tuple[int, int] | None]:
    """Return the words of the n-grams around the first one, and their span."""
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
