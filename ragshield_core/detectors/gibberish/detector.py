"""Detector of gibberish: text that an optimiser wrote or spliced together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS, Detector, Evidence, Need, SharesUsual, Traits
from ragshield_core.detectors.gibberish.fluency import NEUTRAL, Fluency, Tokens, tokenized
from ragshield_core.detectors.gibberish.language import Languages
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import NotFittedError
from ragshield_core.model.findings import printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS

# Tokens of a window, and bits per token added to its mean. Optimised pieces have 10 to 40 tokens;
# the mean of twice as many clean tokens varies less, by about half a bit, and that of ten tokens
# more. A text shorter than the first window is one window.
WINDOWS = ((12, 0.0), (10, -0.4), (24, 0.5))
# A shorter text is judged as if ordinary tokens filled it up to this length: three rare words in a
# row, such as a title, are no evidence.
SHORTEST = 10
# Entries that give the usual scores during a fit: enough for the largest in a hundred.
SAMPLE = 2_000
# Fewer entries say nothing about the rarest scores.
ENOUGH = 100
# A document with a larger share of the knowledge base than this is a collection, and not held out
# as a whole: too little would be left for a model.
LARGEST_DOCUMENT = 0.05
# Bits per token up to which nothing is gibberish. Prose about another subject, in words that the
# knowledge base lacks, has windows of 6 to 7 bits: a threshold from its own entries alone, which
# share a vocabulary, would hold every other source. A window of unknown words only has half the
# binary logarithm of the number of tokens, from 7.3 (25,000) to 9.5.
FLOOR = 7.2
# Length of quoted text, in characters.
QUOTED = 80
# A line beside a text is read if it has this many words between two commas: paths, dates, names and
# lists of key words are not language. Lines after the first LINES are ignored.
FEWEST_WORDS, LINES = 4, 100
SEPARATORS = re.compile("[,;|]")

# A knowledge base with fewer words and marks, about 200 passages of 100 words, is too small: even a
# window of unknown words stays below the floor there.
MIN_TOKENS = 25_000

_UNIT = 2.0**20  # scale of the integers in which surprise is summed


class _Worst(NamedTuple):
    """The most unusual window of each entry."""

    score: NDArray[np.float64]
    start: NDArray[np.intp]
    end: NDArray[np.intp]
    length: NDArray[np.intp]  # in tokens


class DisfluencyDetector(SharesUsual, Detector):
    """Find the window of an entry that reads least like text of the knowledge base's languages.

    Gradient-optimised text (HotFlip, GCG, Phantom triggers) is a salad of rare tokens in an order
    that no person writes. A model of the knowledge base's own words and neighbouring words
    (:class:`~.fluency.Fluency`) gives each token its surprise in bits. The score is the mean of the
    worst window of 10, 12 or 24 tokens, so that a short insertion in a long clean text counts in
    full. Running text has windows of 3 to 7 bits per token, salad 8 to 10. Lines of words beside
    the text, such as a title in metadata, are read with it.

    Attributes
    ----------
    default_threshold
        A score that about one clean entry in 1,000 exceeds, at least the floor; :meth:`fit`
        estimates it from held-out entries if there are enough.

    Notes
    -----
    Nothing is downloaded: the detector learns usual text from the knowledge base, including its
    code, tables and languages. The model is a table of 40 MiB, and one of 4 MiB for the languages
    (:class:`~.language.Languages`), for any size of the knowledge base; learning and forgetting are
    exact and cost O(batch).

    The threshold comes from a sample of the knowledge base only, never from later entries. A clean
    document of another source has unknown words among known function words, and scores below the
    floor.

    References
    ----------
    The attacks: Ebrahimi et al., "HotFlip", ACL 2018; Zou et al., "Universal and Transferable
    Adversarial Attacks on Aligned Language Models" (GCG), arXiv 2307.15043; Chaudhari et al.,
    "Phantom", arXiv 2405.20485. Perplexity in windows as a defence: Jain et al., "Baseline Defenses
    for Adversarial Attacks Against Aligned Language Models", arXiv 2309.00614; Alon and Kamfonas,
    "Detecting Language Model Attacks with Perplexity", arXiv 2308.14132.
    """

    name: str = "disfluency"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEXT})
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, CRAFTED, "CWE-349"),
        floor=FLOOR,
        acts_unfitted=False,
        reads_contexts=True,
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every text."""
        self._fluency = Fluency()
        self._languages = Languages()
        self.default_threshold = FLOOR

    def learn(self, entries: Batch) -> None:
        """Count the words of entries, and pairs of neighbouring words."""
        self._learn(_read(entries))

    def forget(self, entries: Batch) -> None:
        """Subtract learned entries from the counts."""
        self._forget(_read(entries))

    def fit(self, reference: Batch) -> Self:
        """Learn only ``reference``, and measure how unusual its own entries are."""
        super().fit(reference)
        self.refresh(reference)
        return self

    def refresh(self, reference: Batch) -> None:
        """Measure anew the usual scores of the knowledge base, and its common words."""
        fold = np.flatnonzero(_folds(reference, 0) == 0)
        sample = _read(reference.take(fold[:SAMPLE]))
        with self._without(sample):
            self._languages.refresh(sample)
            scores = self._scores(sample)
        if len(scores) >= ENOUGH:
            # Tail of a mean of many small terms: each tenfold rarity adds about as many bits.
            tenth, hundredth = np.quantile(scores, [0.9, 0.99])
            self.default_threshold = max(FLOOR, float(hundredth + (hundredth - tenth)))

    def usual(self, earlier: Self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the usual values that a copy has measured."""
        languages = earlier._languages.usual
        return {"languages": languages, "rule_threshold": earlier.default_threshold}, {}

    def take_usual(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        """Take over the usual values that another process has measured."""
        self._languages.usual = values["languages"]
        self.default_threshold = float(values["rule_threshold"])

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of the fitted entries, each by a model without its document.

        Entries of one document are held out together, because a new document comes as a whole and
        brings new names.
        """
        part = _folds(fitted, seed)
        scores = np.full(len(fitted), np.nan)
        for fold in range(N_FOLDS):
            rows = np.flatnonzero(part == fold)
            if len(rows):
                texts = _read(fitted.take(rows))
                with self._without(texts):
                    scores[rows] = self._scores(texts)
        return scores

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while the knowledge base is small, else those in other languages."""
        return self._unjudged(_read(batch))

    def _unjudged(self, texts: Sequence[str]) -> dict[int, str]:
        if self._fluency.n_tokens < MIN_TOKENS:
            reason = (
                f"the knowledge base has {self._fluency.n_tokens} words and marks, "
                f"{MIN_TOKENS} are needed to know how it reads"
            )
            return dict.fromkeys(range(len(texts)), reason)
        return self._languages.unheld(texts)

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the bits per token of the worst window, shape (n_entries,)."""
        return self._worst(_read(batch)).score

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the worst window of each entry."""
        chosen = batch.take(rows)
        texts = _read(chosen)
        worst = self._worst(texts)
        evidence = []
        for row, text in enumerate(texts):
            start, end = int(worst.start[row]), int(worst.end[row])
            before = len(text) - len(chosen.texts[row])
            evidence.append(
                Evidence(
                    sentence=(
                        "it does not read like the other entries: "
                        f"'{printable(text[start:end], QUOTED)}' is a row of words and marks that "
                        f"seldom follow each other here ({worst.length[row]} of them, "
                        f"score {worst.score[row]:.2f}; ordinary entries stay below "
                        f"{self.default_threshold:.2f})"
                    ),
                    span=(start - before, end - before) if end > start >= before else None,
                )
            )
        return evidence

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts and the usual score."""
        values, arrays = self._fluency.state()
        languages, words = self._languages.state()
        values |= {"languages": languages, "rule_threshold": self.default_threshold}
        return values, arrays | words

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the counts and the usual score."""
        self.reset()
        self._fluency.restore(values, arrays)
        self.default_threshold = float(values["rule_threshold"])
        self._languages.restore(values["languages"], arrays)

    def _learn(self, texts: Sequence[str]) -> None:
        self._fluency.learn(texts)
        self._languages.learn(texts)

    def _forget(self, texts: Sequence[str]) -> None:
        for learned in self._fluency.forget(texts):
            self._languages.forget(learned)

    @contextmanager
    def _without(self, texts: Sequence[str]) -> Iterator[None]:
        """Forget learned texts for the duration of the context."""
        self._forget(texts)
        try:
            yield
        finally:
            self._learn(texts)

    def _scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the score of each text, NaN if the knowledge base is too small.

        A clean entry that cannot be judged is never held. It gets the lowest score in a clean
        sample, so that a few such entries do not make the sample too small.
        """
        if self._fluency.n_tokens < MIN_TOKENS:
            return np.full(len(texts), np.nan)
        scores = self._worst(texts).score
        scores[list(self._unjudged(texts))] = 0.0
        return scores

    def _worst(self, texts: Sequence[str]) -> _Worst:
        if not self._fluency.n_tokens:
            msg = (
                f"{self.name} has learned no text yet; fit it on the knowledge base before scoring."
            )
            raise NotFittedError(msg)
        n = len(texts)
        worst = _Worst(np.full(n, -np.inf), *(np.zeros(n, dtype=np.intp) for _ in range(3)))
        for first, tokens in tokenized(texts):
            surprise = self._fluency.surprise(tokens)
            surprise[self._languages.quoted(tokens)] = NEUTRAL
            for length, bonus in WINDOWS:
                _take_worst(worst, tokens, surprise, first, length, bonus)
        worst.score[np.isneginf(worst.score)] = 0.0  # texts without a token
        return worst


def _read(batch: Batch) -> Sequence[str]:
    """Return texts, each after the lines of its context that are language, such as a title."""
    return [
        text if context is None else _language_in(context) + text
        for context, text in zip(batch.contexts, batch.texts, strict=True)
    ]


def _language_in(context: str) -> str:
    """Return the lines of a context with enough words, without their keys."""
    found = ""
    for line in context.split("\n")[:LINES]:
        value = line.partition(": ")[2] or line
        n_words = sum(any(map(str.isalpha, word)) for word in value.split())
        if n_words >= FEWEST_WORDS * (1 + len(SEPARATORS.findall(value))):
            found += f"{value}\n"
    return found


def _folds(entries: Batch, seed: int) -> NDArray[np.int64]:
    """Return a random part for each entry, the same for all entries of a document."""
    part = np.random.default_rng(seed).integers(N_FOLDS, size=len(entries))
    sizes = Counter(entries.lineages)
    documents: dict[str, int] = {}
    for row, lineage in enumerate(entries.lineages):
        if lineage is not None and sizes[lineage] <= LARGEST_DOCUMENT * len(entries):
            part[row] = documents.setdefault(lineage, int(part[row]))
    return part


def _take_worst(
    worst: _Worst,
    tokens: Tokens,
    surprise: NDArray[np.float64],
    first: int,
    length: int,
    bonus: float,
) -> None:
    """Record windows of up to ``length`` tokens that are worse than those found before."""
    if not len(tokens):
        return
    counts = np.bincount(tokens.owner)
    begin = np.cumsum(counts) - counts
    place = np.arange(len(tokens))
    size = np.minimum(length, (begin + counts)[tokens.owner] - place)
    # Windows of full length within one text; a shorter text is one window.
    window = size == length
    if length == WINDOWS[0][0]:
        window |= place == begin[tokens.owner]
    place, size = place[window], size[window]
    if not len(place):
        return
    # Sums of integers are exact: the last bits of a score must not depend on the rest of the batch.
    sums = np.concatenate([[0], np.cumsum(np.rint(surprise * _UNIT).astype(np.int64))])
    mean = (sums[place + size] - sums[place]) / (_UNIT * np.maximum(size, SHORTEST)) + bonus
    owner = tokens.owner[place]
    heads = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    largest = np.repeat(np.maximum.reduceat(mean, heads), np.diff(np.append(heads, len(owner))))
    candidates = np.flatnonzero(mean == largest)
    _, which = np.unique(owner[candidates], return_index=True)  # the first of equal windows
    best = candidates[which]
    rows = owner[best] + first
    better = mean[best] > worst.score[rows]
    best, rows = best[better], rows[better]
    worst.score[rows] = mean[best]
    worst.start[rows] = tokens.start[place[best]]
    worst.end[rows] = tokens.end[place[best] + size[best] - 1]
    worst.length[rows] = size[best]
