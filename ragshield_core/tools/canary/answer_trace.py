"""From one wrong answer to the retrieved entries that are to blame; no language model."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.tools.canary.embedder import Embedder
from ragshield_core.tools.canary.likeness import alike, echoes_of, matrix, words
from ragshield_core.tools.canary.passages import Passage
from ragshield_core.tools.canary.suspicions import text_findings
from ragshield_core.tools.canary.traceback import (
    Suspect,
    Traceback,
    in_utc,
    ingested_at,
    origin,
    text_part,
)

# Most retrieved texts repeat so much of it.
ORDINARY_ECHO = 0.4
# Of a wrong answer's entries, log odds: relevance (in robust standard deviations above the other
# retrieved entries), the answer word for word (per log of how rarely the others state it), the
# share of its words, the share of the query's words, the echo of the query, likeness to other
# retrieved entries (in standard deviations), and suspicious text. Rounded from a logistic
# regression on PoisonedRAG's NQ texts, where five of fifty state the answer; the priors, chosen by
# a look at its HotpotQA texts too, leave one or two clean entries in a hundred above one half.
ODDS = {
    "relevance": 2.1,
    "answer": 1.35,
    "answer_words": 1.0,
    "query_words": 1.0,
    "echo": 3.5,
    "likeness": 0.7,
    "suspicion": 2.0,
}
PRIOR = -6.5
# Where the rank stands for relevance, which goes up to 2 then, and likeness may not be known.
PRIOR_BY_RANK = -4.5
# A text that holds less than half of the wrong answer's words is no more than so relevant.
HALF, SILENT_RELEVANCE = 0.5, 2.0
# Where fewer passages are given, the next ones are taken not to state the answer.
USUAL_DEPTH = 50
# Numbers that texts spell out.
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBERS = {word: str(number) for number, word in enumerate(_NUMBERS.split())}
# Answers that texts lead to without stating them.
_VERDICTS = (
    "yes no true false ja nein oui non sí si sì não sim da nee 是 否 不是 はい いいえ 예 아니요"
)
VERDICTS = frozenset(words(_VERDICTS))
# An entry that was there when the answer was still right has no more, whatever else it shows.
OLDER = -5.0


def trace_answer(
    query: str,
    wrong_answer: str,
    passages: Sequence[Passage],
    *,
    embedder: Any = None,
    suspicion: Callable[[Passage], float] = lambda _passage: 0.0,
    since: dt.datetime | None = None,
) -> Traceback:
    """Return which retrieved entries are to blame for a wrong answer, most responsible first.

    Parameters
    ----------
    query, wrong_answer
        As reported.
    passages
        Retrieved for the query, best first; some dozens, so that the clean ones show what is usual.
    embedder
        The model, of any kind. With it, and with passages that carry their vectors, relevance is
        the similarity to query and answer together; without, the rank stands for it.
    suspicion
        Of a text, in [0, 1].
    since
        When the answer was still right: entries whose metadata name an earlier time of ingestion
        (:data:`~ragshield_core.tools.canary.traceback.TIME_KEYS`) are not to blame. Only where your
        own pipeline writes it: who brings an entry could claim what he likes.

    Notes
    -----
    A text is to blame if it makes the answer: it is more relevant to the question with this answer
    than the other retrieved ones (in robust standard deviations), states the answer, which most
    others do not, and holds the words of the question. Each adds to the log odds, see :data:`ODDS`;
    the responsibility is the probability. The right answer's texts are as relevant to the question:
    what holds no word of the wrong answer is given little for relevance and likeness, unless the
    answer is a mere yes or no, and is found by its echo of the question alone.
    """
    if not passages:
        return Traceback(candidates=(), subject="one wrong answer")
    vectors = matrix(passages)
    by_rank = vectors is None or embedder is None
    relevance, likeness = _by_rank(len(passages)), np.zeros(len(passages))
    if vectors is not None:
        others = np.sort(vectors @ vectors.T, axis=1)[:, ::-1][:, 1:5]
        likeness = _standing(others.mean(axis=1), -3.0, 6.0) if others.size else likeness
        if embedder is not None:
            statement = Embedder.of(embedder).queries([f"{query} {wrong_answer}"])[0]
            relevance = _standing(vectors @ statement, -3.0, 8.0)
    shared, echo = _word_signs(query, wrong_answer, passages), echoes_of(query, passages)
    silent = shared["answer_words"] < HALF
    if set(words(wrong_answer)) <= VERDICTS:
        silent[:] = False  # no text can be asked to state it
    most = SILENT_RELEVANCE / 2 if by_rank else SILENT_RELEVANCE
    signs = {
        "relevance": np.where(silent, np.minimum(relevance, most), relevance),
        **shared,
        "echo": np.maximum(0.0, (echo - ORDINARY_ECHO) / (1.0 - ORDINARY_ECHO)),
        "likeness": np.where(silent, np.minimum(likeness, 1.0), likeness),
        "suspicion": np.array([suspicion(passage) for passage in passages]),
    }
    odds = np.full(len(passages), PRIOR_BY_RANK if by_rank else PRIOR)
    for name, values in signs.items():
        odds += ODDS[name] * values
    older = np.array([_is_older(p, since) for p in passages])
    odds = np.where(older, np.minimum(odds, OLDER), odds)
    same = alike(passages, passages)
    suspects = []
    for row, passage in enumerate(passages):
        better = "better" if relevance[row] > 0 else "no better"
        parts = [f"rank {row + 1}", f"fits {better} than the others ({relevance[row]:+.1f} sd)"]
        stated = float(signs["answer_words"][row])
        parts.append(
            "states the wrong answer"
            if signs["answer"][row]
            else f"holds {stated:.0%} of the wrong answer's words"
        )
        parts.append(f"repeats {echo[row]:.0%} of the query")
        suspicious = float(signs["suspicion"][row])
        findings = text_findings(passage) if suspicious else ()
        parts += text_part(suspicious, findings)
        if older[row]:
            parts.append("was there when the answer was right")
        suspects.append(
            Suspect(
                entry_id=passage.id,
                passage=passage,
                responsibility=float(1.0 / (1.0 + np.exp(-odds[row]))),
                why=", ".join(parts) + origin(passage),
                rank=row + 1,
                rank_score=0.55 + 0.45 / (row + 1),
                related_ids=tuple(
                    passages[n].id for n in np.flatnonzero(same[row]).tolist() if n != row
                ),
                findings=findings,
            )
        )
    suspects.sort(key=lambda s: (-s.responsibility, s.rank))
    return Traceback(candidates=tuple(suspects), subject="one wrong answer")


def _word_signs(
    query: str, answer: str, passages: Sequence[Passage]
) -> dict[str, NDArray[np.float64]]:
    """Return, per passage, how much it says that it states the answer, and shares of words.

    What few of the passages hold weighs more, words as well as the answer: a text that states what
    half of the others state is hardly the one that makes it.
    """
    listed = [_terms(passage.text) for passage in passages]
    sets = [set(each) for each in listed]
    counts = Counter(word for each in sets for word in each)
    n = len(passages)

    def shares(wanted: Sequence[str]) -> NDArray[np.float64]:
        weights = {w: max(math.log((n + 1) / (counts[w] + 0.5)), 0.05) for w in wanted}
        whole = sum(weights.values())
        if not whole:
            return np.zeros(n)
        held = [sum(weight for w, weight in weights.items() if w in each) for each in sets]
        return np.array(held) / whole

    said = _terms(answer)
    phrase = f" {' '.join(said)} "
    stated = np.array([bool(said) and phrase in f" {' '.join(each)} " for each in listed])
    rarity = math.log((max(n, USUAL_DEPTH) + 1) / (np.count_nonzero(stated) + 0.5))
    return {
        "answer": stated * rarity,
        "answer_words": shares(said),
        "query_words": shares(_terms(query)),
    }


def _terms(text: str) -> list[str]:
    """Return the words of a text, numbers as digits."""
    return [NUMBERS.get(word, word) for word in words(text)]


def _standing(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Return how many robust standard deviations each value is above the median."""
    median = np.median(values)
    spread = 1.4826 * float(np.median(np.abs(values - median))) + 0.02
    return np.asarray(np.clip((values - median) / spread, low, high), dtype=np.float64)


def _by_rank(n: int) -> NDArray[np.float64]:
    """Return a relevance by rank alone, from +2 for the first to -1 for the last."""
    return np.asarray(2.0 - 3.0 * (np.arange(n) / max(1, n - 1)) ** 0.5, dtype=np.float64)


def _is_older(passage: Passage, since: dt.datetime | None) -> bool:
    when = ingested_at(passage)
    return since is not None and when is not None and when < in_utc(since)
