"""From drift against a baseline to the entries that are to blame; no language model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ragshield_core.tools.canary.likeness import alike, echoes_of, newcomers_of, says, words
from ragshield_core.tools.canary.passages import Passage
from ragshield_core.tools.canary.suspicions import text_findings
from ragshield_core.tools.canary.traceback import Suspect, Traceback, origin, text_part

if TYPE_CHECKING:
    from ragshield_core.tools.canary.drift import AnomalyWeights, CanaryDrift, DriftReport
    from ragshield_core.tools.canary.storage import Observation
    from ragshield_core.tools.canary.suite import Canary

# What an entry that stands before all that was known is to blame for by that alone.
HEAD_BLAME = 0.5
# Up to this share, ordinary answers repeat the words of a query; an echo of all of them is to blame
# for so much.
USUAL_ECHO, ECHO_BLAME = 0.7, 0.9
# What an entry that says all that is new in an answer is to blame for by that.
ANSWER_BLAME = 0.5
# No cause alone is certain.
MOST = 0.99
# Less than this is no reason worth a sentence: an answer's "the" stands in most passages.
TOLD = 0.25
# How causes are told that have no number.
SENTENCES = {
    "head": "stands before all that was known",
    "expected": "an expected entry is back without it",
    "forbidden": "holds a forbidden string",
    "answer": "says what the changed answer says",
}


def trace_drift_as_source(
    report: DriftReport, passages: Mapping[str, Sequence[Passage]], top_n: int = 10
) -> Traceback:
    """Return everything retrieved for flagged canaries, by appearances and rank, as the notebook.

    The responsibility is the score as a share of the highest one; all are suspects.
    """
    found = _appearances(passages, report.k)
    highest = max((each.score for each in found.values()), default=1.0)
    suspects = [
        Suspect(
            entry_id=entry_id,
            passage=each.passage,
            responsibility=each.score / highest,
            why=f"retrieved for {len(each.names)} flagged canaries, rank score {each.score:.3f}",
            canaries=each.names,
            rank=each.rank,
            rank_score=each.score,
        )
        for entry_id, each in found.items()
    ]
    suspects.sort(key=lambda s: -s.rank_score)
    return Traceback(
        candidates=tuple(suspects[:top_n]),
        subject=f"drift of suite {report.suite!r} (notebook's rule)",
        all_are_suspects=True,
    )


def trace_drift(
    report: DriftReport,
    passages: Mapping[str, Sequence[Passage]],
    observations: Mapping[str, Observation],
    canaries: Mapping[str, Canary],
    suspicion: Callable[[Passage], float],
    *,
    weights: AnomalyWeights,
    top_n: int | None = None,
) -> Traceback:
    """Return the newcomers among what flagged canaries retrieve, most responsible first.

    Parameters
    ----------
    report
        Of the check.
    passages
        By flagged canary, what was retrieved, best first: the places that are compared, and what
        would move up into them.
    observations
        By canary, the baseline.
    canaries
        By name, with what is expected of them.
    suspicion
        Of a text, in [0, 1].
    weights
        By which canaries were flagged.
    top_n
        How many at most.

    Notes
    -----
    An entry is left out of what a canary retrieves, together with those that say much the same, and
    the next ones move up. It is to blame for the share of the newcomers' takeover that is gone
    then; for standing before all that was known, alone or through such a companion; for an expected
    entry that is back then; for a forbidden string; for repeating the query; for suspicious text;
    and for saying what a changed answer says. These join as independent causes do (noisy or), and
    over the canaries the gravest counts. The first two do not count where the canary is flagged for
    something else, such as an expected entry that somebody deleted. What was there at the baseline,
    unchanged, is to blame for nothing.
    """
    found = _appearances(passages, report.k)
    gravest: dict[str, _Blame] = {}
    for name, listed in passages.items():
        before = observations.get(name)
        if before is None:
            continue
        traced = _Canary(canaries[name], report[name], before, listed, report.k)
        blames = traced.blames(suspicion, weights)
        for entry_id, blame in blames.items():
            if entry_id not in gravest or blame.responsibility > gravest[entry_id].responsibility:
                gravest[entry_id] = blame
    suspects = [
        Suspect(
            entry_id=entry_id,
            passage=blame.passage,
            responsibility=blame.responsibility,
            why=blame.why + origin(blame.passage),
            canaries=found[entry_id].names,
            rank=found[entry_id].rank,
            rank_score=found[entry_id].score,
            related_ids=blame.related,
            findings=blame.findings,
        )
        for entry_id, blame in gravest.items()
    ]
    suspects.sort(key=lambda s: (-s.responsibility, -s.rank_score))
    return Traceback(candidates=tuple(suspects[:top_n]), subject=f"drift of suite {report.suite!r}")


class _Appearances(NamedTuple):
    """Where an entry was retrieved, its best rank, and the notebook's score."""

    passage: Passage
    names: tuple[str, ...]
    rank: int
    score: float


def _appearances(passages: Mapping[str, Sequence[Passage]], k: int) -> dict[str, _Appearances]:
    """Return where each entry stands among the first k places."""
    found: dict[str, _Appearances] = {}
    for name, listed in passages.items():
        for rank, passage in enumerate(listed[:k], start=1):
            known = found.get(passage.id, _Appearances(passage, (), rank, 0.0))
            found[passage.id] = _Appearances(
                known.passage,
                (*known.names, name),
                min(known.rank, rank),
                known.score + 0.55 + 0.45 / (rank + 1e-6),
            )
    return found


class _Blame(NamedTuple):
    """What one canary holds against an entry."""

    passage: Passage
    responsibility: float
    why: str
    related: tuple[str, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Canary:
    """A flagged canary, and what it retrieves, deeper than what is compared."""

    canary: Canary
    drift: CanaryDrift
    before: Observation
    passages: Sequence[Passage]
    k: int

    def blames(
        self,
        suspicion: Callable[[Passage], float],
        weights: AnomalyWeights,
    ) -> dict[str, _Blame]:
        """Return what the canary holds against each newcomer among its first k places."""
        fresh = newcomers_of(self.passages, self.before)
        rows = [row for row, is_new in enumerate(fresh) if is_new]
        new = [self.passages[row] for row in rows]
        known = [p for p, is_new in zip(self.passages, fresh, strict=True) if not is_new]
        same = alike(new, known)
        echo = echoes_of(self.drift.query, self.passages)[rows]
        said = self._said()
        taken_over = bool(said) or self._taken_over(weights)
        first_known = fresh.index(False) if False in fresh else len(fresh)
        blames: dict[str, _Blame] = {}
        for number, passage in enumerate(new):
            if rows[number] >= self.k:
                break
            group = np.flatnonzero(same[number]).tolist()
            out = {rows[member] for member in group}
            suspicious = suspicion(passage)
            causes = {
                "drop": taken_over * self._drop(fresh, out, weights.persistence),
                "head": taken_over * HEAD_BLAME * (min(out) < first_known),
                "expected": float(self._is_back(out)),
                "forbidden": float(any(says(passage.text, f) for f in self.canary.forbidden)),
                "echo": ECHO_BLAME
                * max(0.0, (float(echo[number]) - USUAL_ECHO) / (1 - USUAL_ECHO)),
                "suspicion": suspicious,
                "answer": ANSWER_BLAME * len(said & {*words(passage.text)}) / max(1, len(said)),
            }
            responsibility = 1.0 - math.prod(1.0 - min(cause, MOST) for cause in causes.values())
            known_blame = blames.get(passage.id)  # retrievers may give one id to several texts
            if known_blame is not None and known_blame.responsibility >= responsibility:
                continue
            findings = text_findings(passage) if suspicious else ()
            parts = [f"new at rank {rows[number] + 1}"]
            if taken_over:
                others = len(group) - 1
                companions = f" and {others} that say the same" if others else ""
                parts.append(f"without it{companions} {causes['drop']:.0%} of the takeover is gone")
            parts += [sentence for cause, sentence in SENTENCES.items() if causes[cause] >= TOLD]
            if causes["echo"]:
                parts.append(f"repeats {echo[number]:.0%} of the query")
            parts += text_part(suspicious, findings)
            blames[passage.id] = _Blame(
                passage=passage,
                responsibility=responsibility,
                why=", ".join(parts),
                related=tuple(new[member].id for member in group if member != number),
                findings=findings,
            )
        return blames

    def _taken_over(self, weights: AnomalyWeights) -> bool:
        """Return whether the canary is flagged for what newcomers do, not for what is missing."""
        drift = self.drift
        return (
            drift.taken_over
            or (drift.takeover_p is not None and drift.takeover_p <= weights.takeover_p)
            or drift.score >= weights.threshold
            or (drift.answer_drift or 0.0) >= weights.answer_takeover
        )

    def _drop(self, fresh: Sequence[bool], out: Collection[int], persistence: float) -> float:
        """Return the share of the takeover that is gone without some rows, in [0, 1]."""
        now = _held(fresh[: self.k], persistence)
        then = _held([f for row, f in enumerate(fresh) if row not in out][: self.k], persistence)
        return max(0.0, now - then) / now

    def _is_back(self, out: Collection[int]) -> bool:
        """Return whether an expected entry that was displaced is back without some rows."""
        now = {passage.id for passage in self.passages[: self.k]}
        left = [p.id for row, p in enumerate(self.passages) if row not in out][: self.k]
        wanted = {*self.canary.expected_entries} & {*self.before.ids}
        return bool(wanted & {*left} - now)

    def _said(self) -> set[str]:
        """Return the words that a changed answer holds, and neither query nor old answer."""
        if self.drift.answer is None or self.before.answer is None:
            return set()
        old = {*words(self.drift.query)} | {*words(self.before.answer)}
        return {*words(self.drift.answer)} - old


def _held(fresh: Sequence[bool], persistence: float) -> float:
    """Return the weight of the ranks that newcomers hold."""
    return sum(persistence**row for row, is_new in enumerate(fresh) if is_new)
