"""Figures of change among retrieved passages: from ranks and ids, words, and similarities."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base.retrieved import _INVISIBLE, RetrievedSet
from ragshield_core.detectors.question.query_echo import QueryEchoDetector
from ragshield_core.model.entries import Batch
from ragshield_core.text.characters import COMBINING
from ragshield_core.tools.canary.knowledge_base import Passage, Vectors

if TYPE_CHECKING:
    from ragshield_core.detectors.base import Detector
    from ragshield_core.tools.canary.storage import Observation

# Weight of a rank as a share of the one before: the first three hold half of the weight.
PERSISTENCE = 0.8
# Ranks of the growth test: those behind hold 7 % of the weight together, and every pattern of
# newcomers among so few ranks can be enumerated.
HEAD = 12


def jaccard(first: Sequence[str], second: Sequence[str]) -> float:
    """Return the Jaccard similarity of two lists as sets, in [0, 1]; 1 for two empty ones."""
    one, other = set(first), set(second)
    return len(one & other) / len(one | other) if one or other else 1.0


def overlap_at_k(first: Sequence[str], second: Sequence[str], k: int) -> float:
    """Return the share of the first k places that two lists of ids have in common, in [0, 1].

    Only taken places count, so short lists can be equal as well.

    Examples
    --------
    >>> overlap_at_k(["a", "b"], ["b", "a"], 6)
    1.0
    """
    one, other = set(first[:k]), set(second[:k])
    places = max(len(one), len(other))
    return len(one & other) / places if places else 1.0


def takeover(new: Sequence[bool], rate: float) -> tuple[float, float]:
    """Return the newcomers' share of the head, and its p-value under mere growth.

    Parameters
    ----------
    new
        For each rank, whether its entry is new.
    rate
        Share of newcomers in the whole knowledge base, in (0, 1): if additions are of the same kind
        as older entries, any rank is a newcomer's with this probability.

    Examples
    --------
    >>> share, p = takeover([False, False, False, False, True], 0.1)  # the tail: growth
    >>> round(share, 2), round(p, 2)
    (0.12, 0.41)
    >>> share, p = takeover([True, True, True, False, False], 0.1)  # the head: takeover
    >>> round(share, 2), round(p, 4)
    (0.73, 0.0012)
    """
    length = min(len(new), HEAD)
    if not length:
        return 0.0, 1.0
    held, patterns = _patterns(length)
    share = float(held[sum(1 << row for row, is_new in enumerate(new[:length]) if is_new)])
    counts = patterns[held >= share - 1e-9]
    probability = float(np.sum(rate**counts * (1.0 - rate) ** (length - counts)))
    return share, min(1.0, probability)


@lru_cache(maxsize=32)
def _patterns(length: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the newcomers' share of the weight and their number for every pattern of them."""
    bits = (np.arange(1 << length)[:, None] >> np.arange(length)) & 1
    weights = PERSISTENCE ** np.arange(length)
    return bits @ (weights / weights.sum()), bits.sum(axis=1)


def combined_p_value(*values: float, correlation: float = 0.0) -> float:
    """Return the joint p-value of several tests; ``correlation`` is that of -2 ln p in pairs.

    References
    ----------
    Fisher, "Statistical Methods for Research Workers", 1932: the sum of -2 ln p has a chi-squared
    distribution. Brown, "A method for combining non-independent, one-sided tests of significance",
    Biometrics 31, 1975: for dependent tests, it is scaled to their variance.

    Examples
    --------
    >>> round(combined_p_value(0.05, 0.05), 4)
    0.0175
    >>> round(combined_p_value(0.05, 0.05, correlation=0.5), 4)
    0.0351
    """
    from scipy.special import chdtrc  # noqa: PLC0415 - keeps `import ragshield_core` quick

    if min(values) <= 0.0:
        return 0.0
    n = len(values)
    # Each has mean 2 and variance 4.
    variance = 4.0 * n * (1.0 + (n - 1) * correlation)
    freedom = 2.0 * (2.0 * n) ** 2 / variance
    total = -2.0 * sum(map(math.log, values)) * freedom / (2.0 * n)
    return float(chdtrc(freedom, total))


def cosine(first: ArrayLike, second: ArrayLike) -> float:
    """Return the cosine of two vectors; 0 if one of them is zero."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms > 0.0 else 0.0


# A passage holds words of a query in one place if they lie within this multiple of its length.
SLACK = 1.25
# Words of a query that are compared; longer queries are no questions. Any passage on the topic
# holds the words of a query with fewer than three, and many hold those of one with fewer than five.
LONGEST, FULL_LENGTH, LEAST_LENGTH = 64, 5, 3


def word_weights(queries: Collection[str]) -> Mapping[str, float]:
    """Return the weight of each word of a suite's queries: the fewer queries hold it, the higher.

    Question words and function words are in many queries, and a query's topic words are in few, in
    any language.

    References
    ----------
    Spärck Jones, "A statistical interpretation of term specificity and its application in
    retrieval", Journal of Documentation 28(1), 1972: inverse document frequency.
    """
    counts = Counter(word for query in queries for word in set(words(query)))
    return {w: math.log((len(queries) + 1.0) / (n + 0.5)) for w, n in counts.items()}


def coverage(query: str, text: str, weights: Mapping[str, float]) -> float:
    """Return the share of a query that a text holds in one place, in [0, 1].

    Text is retrieved for a query because it holds its words. Crafted text holds them close
    together, whatever its wording; ordinary passages on the topic hold some here, some there.

    The share is reduced for queries of fewer than five words, and 0 for fewer than three. The
    weights are those that :func:`word_weights` returns for queries that include this one.

    Examples
    --------
    >>> query = "Who built the old harbour bridge?"
    >>> weights = word_weights((query, "Who runs the ferry?", "What is the toll of the tunnel?"))
    >>> crafted = "Records on the old harbour bridge (built) were withdrawn."
    >>> round(coverage(query, crafted, weights), 2)
    0.9
    >>> ordinary = "The bridge spans the river at the mill, far away from the harbour."
    >>> round(coverage(query, ordinary, weights), 2)
    0.25
    """
    asked = words(query)[:LONGEST]
    if len(asked) < LEAST_LENGTH:
        return 0.0
    width = math.ceil(SLACK * len(asked))
    wanted = {word: weights[word] for word in asked}
    inside: Counter[str] = Counter()
    hits = [(place, word) for place, word in enumerate(words(text)) if word in wanted]
    first, held, best = 0, 0.0, 0.0
    for place, word in hits:
        held += 0.0 if inside[word] else wanted[word]
        inside[word] += 1
        while hits[first][0] <= place - width:  # out of the window
            gone = hits[first][1]
            inside[gone] -= 1
            held -= 0.0 if inside[gone] else wanted[gone]
            first += 1
        best = max(best, held)
    return min(1.0, best / sum(wanted.values())) * min(1.0, len(asked) / FULL_LENGTH)


# Entries with this similarity say much the same and are left out together. Texts made for one
# question reach it, chunks of one document rarely. If ordinary passages of a model are closer than
# .5, the threshold is WAY of the distance from their similarity to 1, at most that of copies.
SAME, WAY, NEARLY_EQUAL = 0.7, 0.4, 0.98
# Fewest passages that show how close ordinary ones are.
FEW = 4
# Characters and words of a text that are read: more than chunks have, and few enough that a text
# made to be slow takes milliseconds.
MAX_CHARACTERS, MAX_WORDS = 16_000, 2_500

_WORD = re.compile(rf"[\w{COMBINING}]+")
# Scripts without spaces between words (Thai to Lao, Burmese, Khmer, kana, Han), and Hangul, whose
# words carry their particles.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+"
)


def newcomers_of(passages: Sequence[Passage], before: Observation) -> list[bool]:
    """Return, per passage, whether the baseline lacks it or has another text of it.

    A passage from just below the baseline's top k that moved up is not new. Nor is a known text
    under another id, as many times as it was known: a rebuilt store gives new ids to all texts, but
    a further copy takes another text's place.
    """
    known = {*zip(before.ids, before.revisions, strict=True), *before.below}
    texts = Counter(revision for _, revision in known)
    stayed = [(passage.id, passage.revision) in known for passage in passages]
    texts.subtract(p.revision for p, known_here in zip(passages, stayed, strict=True) if known_here)
    fresh = []
    for passage, known_here in zip(passages, stayed, strict=True):
        renamed = not known_here and texts[passage.revision] > 0
        texts[passage.revision] -= renamed
        fresh.append(not (known_here or renamed))
    return fresh


def echoes_of(query: str, passages: Sequence[Passage]) -> NDArray[np.float64]:
    """Return the share of a query that each passage repeats, in [0, 1], shape (n_passages,)."""
    batch = Batch.of(
        ids=[str(row) for row in range(len(passages))],
        texts=[_segmented(passage.text) for passage in passages],
        embeddings=None,
    )
    return QueryEchoDetector().repeated(
        RetrievedSet.of(_segmented(query), batch, has_vectors=False)
    )


def alike(passages: Sequence[Passage], ordinary: Sequence[Passage]) -> NDArray[np.bool_]:
    """Return whether each two passages say much the same, shape (n, n), with True on the diagonal.

    The vectors decide if all are known, else the words. Embedding models differ in how close they
    put texts that share no more than a subject; ordinary passages for the same query show it.
    """
    vectors = matrix(passages)
    if vectors is None:
        sets = [set(words(passage.text)) for passage in passages]
        shared = np.array([[len(one & other) for other in sets] for one in sets], dtype=np.float64)
        sizes = np.array([*map(len, sets)], dtype=np.float64)
        either = np.maximum(1.0, sizes[:, None] + sizes - shared.reshape(len(sets), len(sets)))
        same = shared.reshape(len(sets), len(sets)) >= SAME * either
    else:
        bar, usual = SAME, matrix(ordinary)
        if usual is not None and len(usual) >= FEW:
            middle = float(np.median((usual @ usual.T)[np.triu_indices(len(usual), 1)]))
            bar = min(NEARLY_EQUAL, max(SAME, middle + WAY * (1.0 - middle)))
        same = vectors @ vectors.T >= bar
    np.fill_diagonal(same, val=True)
    return np.asarray(same, dtype=np.bool_)


def matrix(passages: Sequence[Passage]) -> Vectors | None:
    """Return the vectors of passages, shape (n, dim); None if one of them is unknown."""
    vectors = [passage.vector for passage in passages if passage.vector is not None]
    return np.stack(vectors) if vectors and len(vectors) == len(passages) else None


def words(text: str) -> list[str]:
    """Return the words of a text's beginning, in order, as a person reads them.

    In scripts without spaces between words, pairs of characters stand for words, as is usual in
    retrieval.

    Examples
    --------
    >>> words("Zu\u0308rich, naturally")
    ['zürich', 'naturally']
    >>> words("首都是北京。")
    ['首都', '都是', '是北', '北京']
    """
    return _WORD.findall(_segmented(text).casefold())[:MAX_WORDS]


def _segmented(text: str) -> str:
    """Return a text's beginning with spaces between all words, without invisible characters."""
    cut = text[:MAX_CHARACTERS]
    if cut.isascii():
        return cut
    shown = unicodedata.normalize("NFKC", cut)[:MAX_CHARACTERS]  # one sign can become 18 letters
    return _UNSPACED.sub(_in_pairs, _INVISIBLE.sub("", shown))


def _in_pairs(run: re.Match[str]) -> str:
    characters = [character for character in run[0] if character.isalnum()]
    pairs = [first + second for first, second in pairwise(characters)]
    return f" {' '.join(pairs or characters)} "


def says(text: str, part: str) -> bool:
    """Return whether a text contains another one, as a person reads both.

    Case, white space, invisible characters and the width of letters make no difference.
    """
    wanted = _plain(part)
    return bool(wanted) and wanted in _plain(text)


def _plain(text: str) -> str:
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    return " ".join(text.casefold().split())


class Suspicions:
    """Suspicions of texts by their hash, in [0, 1).

    Each built-in text detector that needs no knowledge base adds to the suspicion if it finds
    something, and less than the one before.
    """

    def __init__(self) -> None:
        self.known: dict[str, float] = {}

    def __call__(self, passage: Passage) -> float:
        """Return the suspicion of a passage's text."""
        self.judge([passage])
        return self.known[passage.revision]

    def judge(self, passages: Iterable[Passage]) -> None:
        """Judge all texts that are not judged yet, in one batch."""
        new = {p.revision: p.text for p in passages if p.revision not in self.known}
        if not new:
            return
        batch = Batch.of(ids=[*new], texts=[*new.values()], embeddings=None)
        hits = np.zeros(len(new), dtype=np.intp)
        for detector in _text_detectors():
            hits += detector.score(batch) > detector.default_threshold
        self.known.update(zip(new, (1.0 - np.exp(-0.45 * hits)).tolist(), strict=True))


def text_findings(passage: Passage) -> tuple[str, ...]:
    """Return the findings of the same detectors on a passage, a sentence each."""
    batch = Batch.of(ids=["0"], texts=[passage.text], embeddings=None)
    return tuple(
        detector.explain(batch, [0])[0].sentence
        for detector in _text_detectors()
        if detector.score(batch)[0] > detector.default_threshold
    )


@cache
def _text_detectors() -> tuple[Detector, ...]:
    from ragshield_core.detectors.hidden.detector import HiddenTextDetector  # noqa: PLC0415 - slow
    from ragshield_core.detectors.instruction.detector import InstructionDetector  # noqa: PLC0415

    return InstructionDetector(), HiddenTextDetector()
