"""Comparison of one check of canaries with their baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.findings import printable
from ragshield_core.tools.canary.drift import SHOWN_ID, AnomalyWeights, CanaryDrift
from ragshield_core.tools.canary.figures import (
    NEARLY_EQUAL,
    combined_p_value,
    cosine,
    coverage,
    jaccard,
    matrix,
    newcomers_of,
    overlap_at_k,
    says,
    takeover,
    word_weights,
    words,
)
from ragshield_core.tools.canary.knowledge_base import Passage, Vectors
from ragshield_core.tools.canary.storage import Baseline, Observation
from ragshield_core.tools.canary.suite import Canary

# Share of canaries at each end, with fewest and most newcomers, that the estimate of growth omits.
TRIMMED = 0.2
# Without a known size, a knowledge base that more than doubled looks like one whose canaries are
# all taken over. Canaries are then flagged if newcomers hold more than half of the head.
MOST_UNCOUNTED, HALF = 0.5, 0.5
# Additions on the canaries' topics have a larger share of the ranks below the head than of the
# knowledge base. The estimate takes up to a quarter: poison could fill those ranks as well.
MOST_TOPICAL = 0.25
# Nearly all canaries, at least three, below this p-value are no coincidence: these are all flagged,
# though none would be alone.
EVERYWHERE, NEARLY_ALL, LEAST_EVERYWHERE = 0.05, 0.9, 3
# A topic has a growth of its own if so many newcomers below the head are less probable than this
# under overall growth, which then is a prior worth so many ranks.
BY_TOPIC, OWN_PRIOR = 0.1, 4.0
# Correlation of -2 ln p between two tests: good pages on a canary's topic take its first ranks,
# hold its words and resemble each other, all at once. Measured with additions by topic: .0 to .5.
TOGETHER = 0.33
# Chunks of one document that are more similar than this count as copies.
SIBLINGS_APART = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A canary with its passages and answer now, and its baseline's if they can be compared."""

    canary: Canary
    before: Observation | None
    passages: Sequence[Passage]
    new: Sequence[bool]
    k: int
    answer: str | None
    similarity: float | None  # of both answers

    @property
    def head(self) -> list[tuple[Passage, bool]]:
        """The first k passages, which are compared, and whether each is new."""
        return list(zip(self.passages[: self.k], self.new, strict=False))

    @property
    def below(self) -> Sequence[bool]:
        """Flags of new passages below the head; of a short list, in its second half."""
        return self.new[min(self.k, len(self.new) // 2) :]


def compared(
    canaries: Sequence[Canary],
    then: Baseline,
    deep: Sequence[Sequence[Passage]],
    answers: Sequence[str | None],
    vectors: Vectors | None,
    *,
    weights: AnomalyWeights,
    size: int | None,
    suspicion: Callable[[Passage], float],
) -> tuple[float, tuple[CanaryDrift, ...]]:
    """Return the share of newcomers under mere growth, and the drift of each canary.

    ``deep``, ``answers`` and ``vectors`` are each canary's results now: the compared passages with
    those below them, the answer, and the answer's vector. ``size`` is the size of the knowledge
    base now, if known.
    """
    rows = {name: row for row, name in enumerate(then.observations)}
    asked = []
    for number, (canary, passages, answer) in enumerate(zip(canaries, deep, answers, strict=True)):
        before = then.observations.get(canary.name)
        if before is not None and before.query != canary.query:
            before = None  # another question under a known name has no baseline
        similarity = None
        if before is not None and vectors is not None and then.answers is not None:
            similarity = cosine(vectors[number], then.answers[rows[canary.name]])
            if before.answer == answer:
                similarity = 1.0
        asked.append(
            _Asked(
                canary=canary,
                before=before,
                passages=passages,
                new=[False] * len(passages) if before is None else newcomers_of(passages, before),
                k=then.k,
                answer=answer,
                similarity=similarity,
            )
        )
    growth = _growth(then.size, size, asked)
    # Without a known size, growth above this explains nothing.
    told = None if growth > MOST_UNCOUNTED and not (size and then.size is not None) else growth
    drifts = [_figures(one, weights, suspicion) for one in asked]
    # Canaries without a baseline are recorded but not compared.
    known = [row for row, one in enumerate(asked) if one.before is not None]
    held, usual = Coverages.of(then), UsualResemblance(deep, [one.new for one in asked], then.k)
    for row in known:
        alike = usual.knows(row), usual.p_value(row) if any(n for _, n in asked[row].head) else None
        drifts[row] = _with_takeover(drifts[row], asked[row], told, held, alike)
    rare = sum(d.takeover_p is not None and d.takeover_p <= EVERYWHERE for d in drifts)
    everywhere = rare >= max(LEAST_EVERYWHERE, NEARLY_ALL * len(drifts))
    threshold = max(weights.takeover_p, EVERYWHERE) if everywhere else weights.takeover_p
    for row in known:
        drifts[row] = _flagged(drifts[row], asked[row], threshold, weights)
    return growth, tuple(drifts)


def _figures(
    asked: _Asked, weights: AnomalyWeights, suspicion: Callable[[Passage], float]
) -> CanaryDrift:
    """Return the changes of a canary, and their anomaly score."""
    before, passages = asked.before, asked.passages[: asked.k]
    ids = tuple(p.id for p in passages)
    ratio = float(np.mean([suspicion(p) for p in passages])) if passages else 0.0
    drift = CanaryDrift(
        name=asked.canary.name,
        query=asked.canary.query,
        flagged=False,
        score=0.0,
        answer=asked.answer,
        suspicion_ratio=ratio,
        ids=ids,
    )
    if before is None:
        return drift
    changed = None if asked.similarity is None else 1.0 - asked.similarity
    same, overlap = jaccard(ids, before.ids), overlap_at_k(ids, before.ids, asked.k)
    suspicion_delta = ratio - (float(np.mean(before.suspicions)) if before.suspicions else 0.0)
    return replace(
        drift,
        score=weights.score(
            answer_drift=changed, jaccard=same, overlap=overlap, suspicion_delta=suspicion_delta
        ),
        answer_drift=changed,
        jaccard=same,
        overlap_at_k=overlap,
        suspicion_delta=suspicion_delta,
        baseline_ids=before.ids,
        newcomers=tuple(p.id for p, is_new in asked.head if is_new),
    )


def _with_takeover(
    drift: CanaryDrift,
    asked: _Asked,
    growth: float | None,
    held: Coverages,
    resemblance: tuple[bool, float | None],
) -> CanaryDrift:
    """Add the newcomers' share of the head, and its p-value under mere growth."""
    fresh = [is_new for _, is_new in asked.head]
    if not any(fresh):
        return replace(drift, takeover=0.0, takeover_p=1.0)
    share, _ = takeover(fresh, growth or HALF)
    if growth is None:
        return replace(drift, takeover=share)
    passages = asked.passages[: asked.k]
    siblings = _siblings(passages, fresh)
    counted = [is_new for place, is_new in enumerate(fresh) if place not in siblings]
    told, by_resemblance = resemblance
    if told:  # without the test of resemblance, poison in the ranks below would pass as growth
        growth = _own_growth(asked.below, growth)
    _, by_growth = takeover(counted, growth)
    rows = [place for place, is_new in enumerate(fresh) if is_new and place not in siblings]
    by_coverage = coverage_p_value(held, drift.query, passages, rows)
    if by_resemblance is None:
        # Under mere growth, the ranks of newcomers are independent of their texts.
        p = combined_p_value(by_growth, by_coverage)
    else:
        p = combined_p_value(by_growth, by_coverage, by_resemblance, correlation=TOGETHER)
    return replace(drift, takeover=share, takeover_p=p, resemblance_p=by_resemblance)


def _own_growth(below: Sequence[bool], growth: float) -> float:
    """Return the share of newcomers that growth brings to the ranks of one canary, in (0, 1).

    Pages on a canary's topic come together and to all its ranks, so an excess of newcomers below
    the head, compared with overall growth, shows the topic's own growth.
    """
    from scipy.special import bdtrc  # noqa: PLC0415 - keeps `import ragshield_core` quick

    came = sum(below)
    if bdtrc(came - 1, len(below), growth) > BY_TOPIC:  # so many or more
        return growth
    return max(growth, (came + OWN_PRIOR * growth) / (len(below) + OWN_PRIOR))


def _growth(size_then: int | None, size: int | None, asked: Sequence[_Asked]) -> float:
    """Return the share of newcomers that each rank would have under mere growth, in (0, 1)."""
    # Growth brings newcomers to every rank alike, and poison takes the head, so the ranks below it
    # show the growth. A trimmed mean leaves out poison that fills these ranks too, since it aims at
    # a minority of the canaries.
    counts = sorted((sum(one.below), len(one.below)) for one in asked)
    ends = round(TRIMMED * len(counts))
    usual = counts[ends : len(counts) - ends]
    came, places = sum(n for n, _ in usual), sum(n for _, n in usual)
    if not size or size_then is None:
        # Laplace's rule of succession: one newcomer in two places is added, for small suites.
        return (came + 1) / (places + 2)
    fresh = {p.id for one in asked for p, is_new in one.head if is_new}
    share = min(max(size - size_then, len(fresh), 1) / size, 1.0 - 1e-6)
    return max(share, min(came / max(1, places), MOST_TOPICAL))


def _flagged(
    drift: CanaryDrift, asked: _Asked, threshold: float, weights: AnomalyWeights
) -> CanaryDrift:
    """Add whether the canary is flagged, and the reasons."""
    before, p = asked.before, drift.takeover_p
    assert before is not None  # noqa: S101 - only compared canaries come here
    reasons = []
    if drift.score >= weights.threshold:
        reasons.append(f"the anomaly score is {drift.score:.3f}, {weights.threshold:g} or more")
    held = f"newcomers hold {drift.takeover or 0.0:.0%} of the head"
    taken_over = (drift.takeover or 0.0) > HALF if p is None else p <= threshold
    if taken_over and p is not None:
        if threshold > weights.takeover_p:
            held += ", as of most canaries"
        if drift.resemblance_p is not None and drift.resemblance_p <= EVERYWHERE:
            held += ", and resemble each other more than what stands around them"
        reasons.append(f"{held} (p = {p:.2g} under mere growth)")
    elif taken_over:
        reasons.append(
            f"{held}, and most else looks new, too: a takeover of all, or more than a doubling "
            "(the size is not known)"
        )
    if (drift.answer_drift or 0.0) >= weights.answer_takeover:
        reasons += _answered(drift, asked, before)
    reasons += _broken(drift, asked, before)
    return replace(drift, flagged=bool(reasons), reasons=tuple(reasons), taken_over=taken_over)


def _broken(drift: CanaryDrift, asked: _Asked, before: Observation) -> list[str]:
    """Return the broken expectations of a canary."""
    canary, reasons = asked.canary, []
    if before.ids and not drift.ids:
        reasons.append("nothing is retrieved any more")
    reasons += [
        f"expected entry {entry_id!r} is no longer among the top {asked.k}"
        for entry_id in canary.expected_entries
        if entry_id in before.ids and entry_id not in drift.ids
    ]
    if canary.expected_answer is not None and drift.answer is not None:
        was = before.answer is not None and says(before.answer, canary.expected_answer)
        if was and not says(drift.answer, canary.expected_answer):
            reasons.append("the expected answer is no longer given")
    said = [("the answer", drift.answer or "")]
    said += [
        (f"entry {printable(p.id, SHOWN_ID)!r}, which is new,", p.text)
        for p, is_new in asked.head
        if is_new
    ]
    for place, text in said:
        number = next((n for n, f in enumerate(canary.forbidden) if says(text, f)), None)
        if number is not None:
            reasons.append(f"{place} holds forbidden string {number + 1} of this canary")
    return reasons


def _answered(drift: CanaryDrift, asked: _Asked, before: Observation) -> list[str]:
    """Return a reason if a changed answer follows a new entry."""
    changed = f"the answer drifted by {drift.answer_drift:.3f}, and"
    if any(is_new for _, is_new in asked.head[:1]):
        return [f"{changed} the entry at rank 1 is new"]
    # The passage that holds most of the answer's new words, if any.
    said = set(words(drift.answer or ""))
    said -= set(words(drift.query)) | set(words(before.answer or ""))
    held = [len(said & set(words(passage.text))) for passage, _ in asked.head]
    row = held.index(max(held)) if any(held) else None
    if row is None or not asked.new[row]:
        return []
    return [f"{changed} follows the entry at rank {row + 1}, which is new"]


def _siblings(passages: Sequence[Passage], fresh: Sequence[bool]) -> set[int]:
    """Return the rows of further chunks of new documents, which do not count as newcomers.

    Chunks of one document come together, so only the first counts; near-copies, which ordinary
    chunks are not, count each for itself. Without vectors all chunks count.
    """
    seen: dict[str, list[Vectors]] = {}
    siblings = set()
    for row, (passage, is_new) in enumerate(zip(passages, fresh, strict=True)):
        if is_new and passage.lineage is not None and passage.vector is not None:
            others = seen.setdefault(passage.lineage, [])
            close = max((float(passage.vector @ v) for v in others), default=1.0)
            others.append(passage.vector)
            if close < SIBLINGS_APART:
                siblings.add(row)
    return siblings


class Coverages(NamedTuple):
    """Shares of their queries that passages hold in one place.

    ``table`` is the baseline's, of shape (n_canaries, k), with NaN for missing passages.
    ``weights`` are those of the words of all queries.
    """

    table: NDArray[np.float64]
    weights: Mapping[str, float]

    @classmethod
    def of(cls, then: Baseline) -> Coverages:
        """Return the coverages of a baseline."""
        table = np.full((len(then.observations), then.k), np.nan)
        for row, observation in zip(table, then.observations.values(), strict=True):
            row[: len(observation.coverages)] = observation.coverages
        return cls(table, word_weights(then.asked.values()))

    def usual(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Return the means over some ranks, one per canary that has all of them."""
        means = self.table[:, list(rows)].mean(axis=1)
        return np.asarray(means[~np.isnan(means)])


def coverage_p_value(
    held: Coverages, query: str, passages: Sequence[Passage], rows: Sequence[int]
) -> float:
    """Return the p-value, under mere growth, of newcomers that hold so much of a query.

    It counts the canaries whose baseline passages at these rows hold as much on average. It is 1 if
    the baseline has no such passages, and at least 1 / (n + 1) with n canaries: small suites gain
    little.

    References
    ----------
    A permutation test, Pitman, "Significance tests which may be applied to samples from any
    populations", Journal of the Royal Statistical Society 4(1), 1937: if additions are of the same
    kind as older entries, any passage could as well have been a new one.
    """
    found = float(np.mean([coverage(query, passages[row].text, held.weights) for row in rows]))
    usual = held.usual(rows)
    return (1 + int(np.count_nonzero(usual >= found - 1e-9))) / (len(usual) + 1)


# Largest group of newcomers that is tested: one with so many mates.
MATES = 4
# Draws of older passages that show the usual resemblance: in total, and at most per canary.
DRAWS, MOST_DRAWS = 750, 20
# Pairs of passages compared for it; long lists get fewer draws, down to a minimum.
PAIRS, FEWEST_DRAWS = 4_000_000, 100
# Fewest canaries that show the usual resemblance.
LEAST_CANARIES = 5
# Steps to which the share of newcomers below the head is rounded.
STEPS = 4


class UsualResemblance:
    """Test for newcomers at the head that resemble each other more than the passages around them.

    Texts made for one question resemble each other more than they resemble good texts on its topic;
    good new pages resemble older passages as much as each other. It takes each canary's retrieved
    passages, best first, with flags of new ones, and the number of ranks of the head.
    """

    def __init__(
        self, deep: Sequence[Sequence[Passage]], new: Sequence[Sequence[bool]], k: int
    ) -> None:
        self._k = k
        self._lists = [_List.of(passages) for passages in deep]
        self._new = [np.array(flags, dtype=np.bool_) for flags in new]
        self._usual: dict[tuple[int, int], NDArray[np.float64]] = {}

    def knows(self, row: int) -> bool:
        """Return whether a canary's passages have vectors, and those of enough other canaries."""
        return self._lists[row] is not None and len(self._standing) >= LEAST_CANARIES

    def p_value(self, row: int) -> float | None:
        """Return the p-value, under mere growth, of the resemblance among a canary's newcomers.

        Draws take as many older passages for newcomers at the heads of all canaries, and the
        p-value counts draws with as much resemblance. The least probable group of two, three, and
        so on counts, compared with the least probable groups of draws. It is ``None`` without
        vectors, with fewer than two newcomers that differ in lineage and are no copies, and if
        nothing else is retrieved.

        References
        ----------
        Westfall & Young, "Resampling-Based Multiple Testing", Wiley, 1993: the minimum of several
        p-values, against its own distribution.
        """
        from scipy.stats import rankdata  # noqa: PLC0415 - slow to import

        mine, new = self._lists[row], self._new[row]
        if mine is None or not self.knows(row):
            return None
        n_head = int(new[: self._k].sum())
        found = _contrasts([mine], new[None, :], self._k)[0]
        sizes = np.isfinite(found)
        if not sizes.any():
            return None
        below = new[self._k :]
        key = n_head, round(STEPS * float(below.mean())) if below.size else 0
        usual = self._drawn(*key)[:, sizes]
        as_much = (usual >= found[sizes]).sum(axis=0)
        n, theirs = len(usual), rankdata(-usual, method="max", axis=0)
        usually = theirs.min(axis=1) / (n + 1)
        least = (1 + as_much.min()) / (n + 1)
        return float((1 + np.count_nonzero(usually <= least + 1e-12)) / (n + 1))

    @cached_property
    def _standing(self) -> list[_List]:
        """The older passages of each canary that retrieves enough of them."""
        lists = []
        for mine, new in zip(self._lists, self._new, strict=True):
            if mine is not None and int((~new).sum()) > self._k:
                lists.append(mine.take(np.flatnonzero(~new)))
        return lists

    def _drawn(self, n_head: int, step: int) -> NDArray[np.float64]:
        """Return contrasts of draws with ``n_head`` newcomers at the head, (n_draws, n_sizes)."""
        if (n_head, step) not in self._usual:
            rng = np.random.default_rng([n_head, step])
            lists = self._standing
            lists = lists * min(MOST_DRAWS, -(-DRAWS // len(lists)))
            most = max(FEWEST_DRAWS, PAIRS // max(map(len, lists)) ** 2)
            if len(lists) > most:
                lists = [lists[row] for row in rng.permutation(len(lists))[:most].tolist()]
            new = np.zeros((len(lists), max(map(len, lists))), dtype=np.bool_)
            for row, each in enumerate(lists):
                new[row, rng.permutation(self._k)[:n_head]] = True
                others = len(each) - self._k
                n_below = min(round(step / STEPS * others), others - 1)
                new[row, self._k + rng.permutation(others)[:n_below]] = True
            self._usual[n_head, step] = _contrasts(lists, new, self._k)
        return self._usual[n_head, step]


class _List(NamedTuple):
    """One canary's passages: their similarities in pairs, and the pairs that may form a group."""

    similarities: NDArray[np.float32]
    apart: NDArray[np.bool_]

    @classmethod
    def of(cls, passages: Sequence[Passage]) -> _List | None:
        """Return the list of some passages; None without their vectors."""
        vectors = matrix(passages)
        if vectors is None:
            return None
        similarities = vectors @ vectors.T
        names = [f"of {p.lineage}" if p.lineage else f"{row}" for row, p in enumerate(passages)]
        codes = np.unique(names, return_inverse=True)[1]
        # Copies, and chunks of one document, come together without anybody's intent.
        apart = (similarities < NEARLY_EQUAL) & (codes[:, None] != codes)
        return cls(similarities.astype(np.float32), apart)

    def __len__(self) -> int:
        return len(self.similarities)

    def take(self, rows: NDArray[np.intp]) -> _List:
        """Return the list of some of the passages."""
        both = np.ix_(rows, rows)
        return _List(self.similarities[both], self.apart[both])


def _contrasts(lists: Sequence[_List], new: NDArray[np.bool_], k: int) -> NDArray[np.float64]:
    """Return how much more groups of newcomers resemble each other than passages around them.

    The shape is (n_lists, MATES), for groups of two, three, and so on. A member's contrast is its
    mean similarity to the others, less that to as many of its nearest older passages; a group's is
    the least of its members; the best group counts. -inf stands for none. ``new`` flags the new
    passages of each list, ``k`` is the number of ranks of the head.
    """
    longest = max(new.shape[1], MATES + 1)
    new = np.pad(new, ((0, 0), (0, longest - new.shape[1])))
    similar = np.full((len(lists), longest, longest), -np.inf, dtype=np.float32)
    mates = np.zeros(similar.shape, dtype=np.bool_)
    standing = np.zeros(new.shape, dtype=np.bool_)
    for row, each in enumerate(lists):
        n = len(each)
        similar[row, :n, :n], mates[row, :n, :n] = each
        standing[row, :n] = ~new[row, :n]
    head = new & (np.arange(longest) < k)
    mates &= head[:, :, None] & head[:, None, :]
    counts = np.arange(1, MATES + 1)
    best = _largest(np.where(mates, similar, -np.inf))
    nearest = _largest(np.where(standing[:, None, :], similar, -np.inf))
    there = np.isfinite(nearest)
    around = np.where(there, nearest, 0.0).cumsum(axis=2) / np.maximum(there.cumsum(axis=2), 1)
    contrast = np.where(
        there[:, :, :1], best.cumsum(axis=2, dtype=np.float64) / counts - around, -np.inf
    )
    ranked = -np.sort(-contrast, axis=1)
    return np.asarray(ranked[:, counts, counts - 1])  # all members of a group


def _largest(similar: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the MATES largest along the last axis, the largest first."""
    return -np.sort(np.partition(-similar, MATES - 1, axis=2)[:, :, :MATES], axis=2)
