"""What one check of canaries says, compared with their baseline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ragshield_core.model.findings import printable
from ragshield_core.tools.canary.drift import SHOWN_ID, SIBLINGS_APART, AnomalyWeights, CanaryDrift
from ragshield_core.tools.canary.embedder import Vectors
from ragshield_core.tools.canary.likeness import newcomers_of, says, words
from ragshield_core.tools.canary.passages import Passage
from ragshield_core.tools.canary.rank_figures import (
    Rule,
    combined_p_value,
    cosine,
    jaccard,
    overlap_at_k,
    takeover,
)
from ragshield_core.tools.canary.storage import Baseline, Observation
from ragshield_core.tools.canary.suite import Canary
from ragshield_core.tools.canary.usual_growth import UsualCoverage, UsualResemblance

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
