"""What one check of canaries says, compared with their baseline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.findings import printable
from ragshield_core.tools.canary.drift import SHOWN_ID, SIBLINGS_APART, AnomalyWeights, CanaryDrift
from ragshield_core.tools.canary.figures import (
    NEARLY_EQUAL,
    Rule,
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

# An answer and its vector; None without an answerer, or an embedder.
Answer = tuple[str | None, Vectors | None]

# Of the canaries that drift most, and least, so many are left out of the estimate of growth.
TRIMMED = 0.2
# Where the size is not known, a knowledge base that more than doubled cannot be told from one whose
# canaries are all taken over; those of which newcomers hold more than half of the head are flagged.
MOST_UNCOUNTED, HALF = 0.5, 0.5
# Where additions are about what canaries ask, ranks below the head hold more of them than the whole
# has. It is believed up to a quarter: poison could fill those ranks as well.
MOST_TOPICAL = 0.25
# Where nearly all canaries, and no fewer than three, are so improbable, it is not by chance: these
# are all flagged, though each alone would not be.
EVERYWHERE, NEARLY_ALL, LEAST_EVERYWHERE = 0.05, 0.9, 3
# A topic grows by itself where so many newcomers below the head are less probable than this by the
# growth of everything, which is then worth so many of its ranks.
BY_TOPIC, OWN_PRIOR = 0.1, 4.0
# Good pages about what a canary asks take its first ranks, say what it asks, and resemble each
# other, all at once. Measured where they came by topics, between -2 ln p of each two: .0 to .5.
TOGETHER = 0.33


class Usual(NamedTuple):
    """What mere growth shows."""

    coverage: UsualCoverage
    resemblance: UsualResemblance


class Asked(NamedTuple):
    """A canary, and what it gives.

    Attributes
    ----------
    canary, before
        Which, and what it gave; None where there is nothing to compare with.
    head, fresh
        What is compared, and which of it is new.
    deep, new
        The same, and what stands below.
    answer
        With its vector.
    """

    canary: Canary
    before: Observation | None
    head: Sequence[Passage]
    fresh: Sequence[bool]
    deep: Sequence[Passage]
    new: Sequence[bool]
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How canaries are compared with their baseline.

    Attributes
    ----------
    k, rule, weights
        As of the monitor.
    size
        Entries of the knowledge base now, if that is known.
    suspicion
        Of a text, in [0, 1].
    """

    k: int
    rule: Rule
    weights: AnomalyWeights
    size: int | None
    suspicion: Callable[[Passage], float]

    def drifts(
        self,
        canaries: Sequence[Canary],
        then: Baseline,
        deep: Sequence[Sequence[Passage]],
        answers: Sequence[Answer],
        poisoned: Collection[str] | None = None,
    ) -> tuple[float, tuple[CanaryDrift, ...]]:
        """Return the share that growth brings, and what became of each canary.

        Parameters
        ----------
        canaries
            In any order.
        then
            The baseline.
        deep, answers
            What each canary gives now: the places that are compared, and those below.
        poisoned
            Ids known to be poisoned.
        """
        asked = []
        for canary, passages, answer in zip(canaries, deep, answers, strict=True):
            # Another question under a known name has nothing to be compared with.
            known = then.asked.get(canary.name) == canary.query
            before = then.observations.get(canary.name) if known else None
            new = [False] * len(passages) if before is None else newcomers_of(passages, before)
            head, fresh = passages[: self.k], new[: self.k]
            asked.append(Asked(canary, before, head, fresh, passages, new, answer))
        growth = self._growth(then, asked)
        told = None if self._cannot_tell(then, growth) else growth
        drifts = [self._figures(one, poisoned) for one in asked]
        # What has no baseline is recorded, but there is nothing to compare it with.
        compared = [row for row, one in enumerate(asked) if one.before is not None]
        if self.rule == "notebook":
            for row in compared:
                drifts[row] = self._flagged_as_source(drifts[row])
            return growth, tuple(drifts)
        resemblance = UsualResemblance(deep, [one.new for one in asked], self.k)
        usual = Usual(UsualCoverage(then, self.k), resemblance)
        for row in compared:
            drifts[row] = self._with_takeover(drifts[row], row, asked[row], told, usual)
        threshold = self._threshold(drifts)
        for row in compared:
            drifts[row] = self._flagged(drifts[row], asked[row], threshold)
        return growth, tuple(drifts)

    def _threshold(self, drifts: Sequence[CanaryDrift]) -> float:
        """Return the probability under mere growth up to which a head counts as taken over."""
        rare = sum(d.takeover_p is not None and d.takeover_p <= EVERYWHERE for d in drifts)
        everywhere = rare >= max(LEAST_EVERYWHERE, NEARLY_ALL * len(drifts))
        return max(self.weights.takeover_p, EVERYWHERE) if everywhere else self.weights.takeover_p

    def _figures(self, asked: Asked, poisoned: Collection[str] | None) -> CanaryDrift:
        """Return the figures of the notebook."""
        canary, before, passages = asked.canary, asked.before, asked.head
        answer, vector = asked.answer
        ids = tuple(p.id for p in passages)
        suspicions = [self.suspicion(p) for p in passages]
        ratio = float(np.mean(suspicions)) if suspicions else 0.0
        poison = poison_share(passages, poisoned)
        drift = CanaryDrift(
            name=canary.name,
            query=canary.query,
            flagged=False,
            score=0.0,
            answer=answer,
            suspicion_ratio=ratio,
            poison_ratio=poison,
            ids=ids,
        )
        if before is None:
            return drift
        similarity = None
        if vector is not None and before.answer_vector is not None:
            similarity = cosine(vector, before.answer_vector)
            if before.answer == answer and self.rule != "notebook":
                similarity = 1.0
        poison_delta = None if poison is None else poison - (before.poison_ratio or 0.0)
        compared = {
            "jaccard": jaccard(ids, before.ids),
            "overlap": overlap_at_k(ids, before.ids, self.k, rule=self.rule),
            "suspicion_delta": ratio - before.suspicion_ratio,
            "answer_drift": None if similarity is None else 1.0 - similarity,
        }
        score = self.weights.score(
            **compared,  # type: ignore[arg-type]
            poison_delta=poison_delta if self.rule == "notebook" else None,
        )
        return replace(
            drift,
            score=max(0.0, score) if self.rule != "notebook" else score,
            answer_cosine=similarity,
            answer_drift=compared["answer_drift"],
            jaccard=compared["jaccard"],
            overlap_at_k=compared["overlap"],
            suspicion_delta=compared["suspicion_delta"],
            poison_delta=poison_delta,
            baseline_ids=before.ids,
            newcomers=tuple(
                p.id for p, is_new in zip(passages, asked.fresh, strict=True) if is_new
            ),
        )

    def _flagged_as_source(self, drift: CanaryDrift) -> CanaryDrift:
        reasons = self._anomaly(drift)
        delta = drift.poison_delta
        if delta is not None and delta >= self.weights.poison_delta:
            reasons.append(f"the poison ratio rose by {delta:.3f} (ground truth)")
        return replace(drift, flagged=bool(reasons), reasons=tuple(reasons))

    def _anomaly(self, drift: CanaryDrift) -> list[str]:
        if drift.score < self.weights.threshold:
            return []
        return [f"the anomaly score is {drift.score:.3f}, {self.weights.threshold:g} or more"]

    def _with_takeover(
        self, drift: CanaryDrift, row: int, asked: Asked, growth: float | None, usual: Usual
    ) -> CanaryDrift:
        """Add how much of the head newcomers hold, and how probable that is."""
        passages, fresh = asked.head, asked.fresh
        if not any(fresh):
            return replace(drift, takeover=0.0, takeover_p=1.0)
        share, _ = takeover(fresh, growth or HALF, self.weights.persistence)
        if growth is None:
            return replace(drift, takeover=share)
        siblings = _siblings(passages, fresh)
        counted = [is_new for place, is_new in enumerate(fresh) if place not in siblings]
        if usual.resemblance.knows(row):  # else poison that fills the ranks below would be believed
            growth = self._own_growth(asked.new, growth)
        _, by_growth = takeover(counted, growth, self.weights.persistence)
        rows = [place for place, is_new in enumerate(fresh) if is_new and place not in siblings]
        by_coverage = usual.coverage.p_value(drift.query, passages, rows)
        by_resemblance = usual.resemblance.p_value(row)
        if by_resemblance is None:
            # Under growth, which ranks are new says nothing of what stands there.
            p = combined_p_value(by_growth, by_coverage)
        else:
            parts = (by_growth, by_coverage, by_resemblance)
            p = combined_p_value(*parts, correlation=TOGETHER)
        return replace(drift, takeover=share, takeover_p=p, resemblance_p=by_resemblance)

    def _own_growth(self, flags: Sequence[bool], growth: float) -> float:
        """Return the share of newcomers that growth brings to the ranks of one canary, in (0, 1).

        Pages about what it asks come at once, and to all its ranks: where more of those below the
        head are new than by growth elsewhere, they tell.
        """
        from scipy.special import bdtrc  # noqa: PLC0415 - keeps `import ragshield_core` quick

        below = flags[min(self.k, len(flags) // 2) :]
        came = sum(below)
        if bdtrc(came - 1, len(below), growth) > BY_TOPIC:  # so many or more
            return growth
        return max(growth, (came + OWN_PRIOR * growth) / (len(below) + OWN_PRIOR))

    def _flagged(self, drift: CanaryDrift, asked: Asked, threshold: float) -> CanaryDrift:
        canary, before, passages, fresh = asked.canary, asked.before, asked.head, asked.fresh
        assert before is not None  # noqa: S101 - of what is compared
        reasons = self._anomaly(drift)
        p = drift.takeover_p
        taken_over = (drift.takeover or 0.0) > HALF if p is None else p <= threshold
        if taken_over and p is not None:
            everywhere = ", as of most canaries" if threshold > self.weights.takeover_p else ""
            reasons.append(
                f"newcomers hold {drift.takeover:.0%} of the head{everywhere}"
                f"{_resembling(drift)} (p = {p:.2g} under mere growth)"
            )
        elif taken_over:
            reasons.append(
                f"newcomers hold {drift.takeover:.0%} of the head, and most else looks new, too: a "
                "takeover of all, or more than a doubling (the size is not known)"
            )
        reasons += self._answer_takeover(drift, before, passages, fresh)
        if before.ids and not passages:
            reasons.append("nothing is retrieved any more")
        for entry_id in canary.expected_entries:
            if entry_id in before.ids and entry_id not in drift.ids:
                reasons.append(f"expected entry {entry_id!r} is no longer among the top {self.k}")
        if canary.expected_answer is not None and drift.answer is not None:
            was = before.answer is not None and says(before.answer, canary.expected_answer)
            if was and not says(drift.answer, canary.expected_answer):
                reasons.append("the expected answer is no longer given")
        said = [("the answer", drift.answer or "")]
        said += [
            (f"entry {printable(p.id, SHOWN_ID)!r}, which is new,", p.text)
            for p, is_new in zip(passages, fresh, strict=True)
            if is_new
        ]
        for place, text in said:
            number = next((n for n, f in enumerate(canary.forbidden) if says(text, f)), None)
            if number is not None:
                reasons.append(f"{place} holds forbidden string {number + 1} of this canary")
        return replace(drift, flagged=bool(reasons), reasons=tuple(reasons), taken_over=taken_over)

    def _answer_takeover(
        self,
        drift: CanaryDrift,
        before: Observation,
        passages: Sequence[Passage],
        fresh: Sequence[bool],
    ) -> list[str]:
        changed = drift.answer_drift or 0.0
        if changed < self.weights.answer_takeover:
            return []
        if any(fresh[:1]):
            return [f"the answer drifted by {changed:.3f}, and the entry at rank 1 is new"]
        row = _told_by(drift, before, passages)
        if row is None or not fresh[row]:
            return []
        told = f"the answer drifted by {changed:.3f}, and follows the entry at rank {row + 1}"
        return [f"{told}, which is new"]

    def _growth(self, then: Baseline, asked: Sequence[Asked]) -> float:
        """Return the share of newcomers that each rank would have under mere growth, in (0, 1)."""
        # Growth brings newcomers to every rank alike, poison takes the head: what stands below it
        # shows the growth. Poison that fills these ranks as well aims at a minority of the
        # canaries: a trimmed mean.
        below = [one.new[min(self.k, len(one.new) // 2) :] for one in asked]
        counts = sorted(zip(map(sum, below), map(len, below), strict=True))
        ends = round(TRIMMED * len(counts))
        usual = counts[ends : len(counts) - ends]
        came, places = sum(n for n, _ in usual), sum(n for _, n in usual)
        if not self.size or then.size is None:
            # One in two is added, for want of better knowledge of small suites.
            return (came + 1) / (places + 2)
        fresh = {
            p.id for one in asked for p, is_new in zip(one.head, one.fresh, strict=True) if is_new
        }
        added = max(self.size - then.size, len(fresh), 1)
        share = min(added / self.size, 1.0 - 1e-6)
        measured = came / max(1, places)
        return max(share, min(measured, MOST_TOPICAL))

    def _cannot_tell(self, then: Baseline, growth: float) -> bool:
        """Return whether so much is new that growth is no explanation without a known size."""
        return growth > MOST_UNCOUNTED and not (self.size and then.size is not None)


def poison_share(passages: Sequence[Passage], poisoned: Collection[str] | None) -> float | None:
    """Return the share of passages known to be poisoned; None without ground truth."""
    if poisoned is None:
        return None
    return sum(p.id in poisoned for p in passages) / len(passages) if passages else 0.0


def _resembling(drift: CanaryDrift) -> str:
    """Return that newcomers resemble each other, where that is rare."""
    rare = drift.resemblance_p is not None and drift.resemblance_p <= EVERYWHERE
    return ", and resemble each other more than what stands around them" * rare


def _siblings(passages: Sequence[Passage], fresh: Sequence[bool]) -> set[int]:
    """Return the rows of further chunks of a new document that came already.

    Chunks of one document come together; only copies of each other, which ordinary chunks are not,
    count each for itself. Without vectors nobody can tell, and all count.
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


def _told_by(drift: CanaryDrift, before: Observation, passages: Sequence[Passage]) -> int | None:
    """Return the row of the passage that holds most of what is new in an answer, if any does."""
    said = set(words(drift.answer or ""))
    said -= set(words(drift.query)) | set(words(before.answer or ""))
    held = [len(said & set(words(passage.text))) for passage in passages]
    return held.index(max(held)) if any(held) else None


# Groups of newcomers up to this one and so many mates are looked at.
MATES = 4
# So many draws of passages that are not new tell what is usual; of one canary, so many at the most.
DRAWS, MOST_DRAWS = 750, 20
# Pairs of passages that are looked at for it: of long lists, fewer draws have to do.
PAIRS, FEWEST_DRAWS = 4_000_000, 100
# Fewer canaries do not tell.
LEAST_CANARIES = 5
# How many of the ranks below the head are new is told apart in so many steps.
STEPS = 4


class UsualCoverage:
    """How much of their queries the baseline's passages hold in one place, rank by rank.

    Parameters
    ----------
    then
        The baseline.
    k
        Places that are compared.
    """

    def __init__(self, then: Baseline, k: int) -> None:
        self._weights = word_weights(then.asked.values())
        self._table = np.full((len(then.observations), k), np.nan)
        for row, observation in zip(self._table, then.observations.values(), strict=True):
            known = observation.coverages[:k]
            row[: len(known)] = known

    def p_value(self, query: str, passages: Sequence[Passage], rows: Sequence[int]) -> float:
        """Return how probable it is that newcomers hold so much of a query under mere growth.

        Had the baseline's own passages at these rows been the newcomers, how many canaries would
        show as much, on average over the rows? It is 1 where the baseline does not tell, and with n
        canaries at least 1 / (n + 1): small suites gain little.

        References
        ----------
        A permutation test, Pitman, "Significance tests which may be applied to samples from any
        populations", Journal of the Royal Statistical Society 4(1), 1937: if what was added is of
        the same kind as what was there, any passage could as well have been a new one.
        """
        found = float(np.mean([coverage(query, passages[row].text, self._weights) for row in rows]))
        usual = self._usual(tuple(rows))
        as_much = len(usual) - int(np.searchsorted(usual, found - 1e-9))
        return (1 + as_much) / (len(usual) + 1)

    def _usual(self, rows: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the baseline's means over some rows, in order, of canaries with all of them."""
        means = self._table[:, list(rows)].mean(axis=1)
        return np.sort(means[~np.isnan(means)])


class UsualResemblance:
    """How much newcomers at the head resemble each other, beyond what stands around them.

    Texts that were made for one question resemble each other more than they resemble good ones on
    the matter; good pages that are new resemble what stands there as much as each other.

    Parameters
    ----------
    deep
        Per canary, what is retrieved, the head and what is below.
    new
        Per canary, which of it is new.
    k
        Ranks of the head.
    """

    def __init__(
        self, deep: Sequence[Sequence[Passage]], new: Sequence[Sequence[bool]], k: int
    ) -> None:
        self._k = k
        self._lists = [_List.of(passages) for passages in deep]
        self._new = [np.array(flags, dtype=np.bool_) for flags in new]
        self._usual: dict[tuple[int, int], NDArray[np.float64]] = {}

    def knows(self, row: int) -> bool:
        """Return whether the vectors of what a canary retrieves are known, and enough others'."""
        return self._lists[row] is not None and len(self._standing) >= LEAST_CANARIES

    def p_value(self, row: int) -> float | None:
        """Return how probable it is under mere growth that the newcomers of a canary are so alike.

        Had as many of the passages that are not new been the newcomers, at the heads of all
        canaries, how many draws would show as much? Of the groups of two, three, and so on, the
        least probable one counts; the draws say how improbable the least probable one usually is.
        ``None`` without vectors, with fewer than two newcomers that are of different lineages and
        no copies of each other, and where nothing else is retrieved.

        References
        ----------
        Westfall & Young, "Resampling-Based Multiple Testing", Wiley, 1993: the minimum of several
        p-values, against its own distribution.
        """
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
        n = len(usual)
        ordered = np.sort(usual, axis=0)
        as_much = np.array(
            [n - np.searchsorted(ordered[:, j], found[sizes][j]) for j in range(usual.shape[1])]
        )
        least = float(((1 + as_much) / (n + 1)).min())
        theirs = np.stack(
            [n - np.searchsorted(ordered[:, j], usual[:, j]) for j in range(usual.shape[1])], axis=1
        )
        usually = (theirs / (n + 1)).min(axis=1)
        return float((1 + np.count_nonzero(usually <= least + 1e-12)) / (n + 1))

    @cached_property
    def _standing(self) -> list[_List]:
        """What is not new, of the canaries that retrieve enough of it."""
        lists = []
        for mine, new in zip(self._lists, self._new, strict=True):
            if mine is not None and int((~new).sum()) > self._k:
                lists.append(mine.take(np.flatnonzero(~new)))
        return lists

    def _drawn(self, n_head: int, step: int) -> NDArray[np.float64]:
        """Return the contrasts of draws with so many newcomers, shape (n_draws, n_sizes)."""
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
    """What one canary retrieves: how alike each two are, and which may be mates."""

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
        # Copies and chunks of one document come together without anybody's intent.
        apart = (similarities < NEARLY_EQUAL) & (codes[:, None] != codes)
        return cls(similarities.astype(np.float32), apart)

    def __len__(self) -> int:
        return len(self.similarities)

    def take(self, rows: NDArray[np.intp]) -> _List:
        """Return the list of some of the passages."""
        both = np.ix_(rows, rows)
        return _List(self.similarities[both], self.apart[both])


def _contrasts(lists: Sequence[_List], new: NDArray[np.bool_], k: int) -> NDArray[np.float64]:
    """Return how much groups of newcomers resemble each other beyond what stands around them.

    Parameters
    ----------
    lists
        n of them.
    new
        Shape (n, n_longest): which of each list is new.
    k
        Ranks of the head.

    Returns
    -------
    NDArray[np.float64]
        Shape (n, MATES), for groups of two, three, and so on: the least of its members' mean
        similarity to the others, less that to as many of the nearest that stand; of several such
        groups the best. -inf where there is none.
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
    found = np.full((len(lists), MATES), -np.inf)
    for column in range(MATES):
        found[:, column] = ranked[:, column + 1, column]  # all members of a group
    return found


def _largest(similar: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the MATES largest along the last axis, the largest first."""
    return -np.sort(np.partition(-similar, MATES - 1, axis=2)[:, :, :MATES], axis=2)
