"""The published rule of a canary notebook, for comparison: no ranks, no growth, no p-values.

MP Aghababa, "Detecting RAG Poisoning via Canary Queries and Retrieval Drift": overlap is divided by
k, nine signs make a text suspicious, and the entries retrieved for flagged canaries are blamed.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.tools.canary import AnomalyWeights, DriftReport, Passage

_WHICH = ("all", "any", "previous", "prior")
SIGNS = tuple(
    re.compile(rf"\b(?:{'|'.join(phrases)})\b")
    for phrases in (
        [f"ignore {which} instructions" for which in _WHICH],
        [f"disregard {which} instructions" for which in _WHICH],
        ["system prompt", "developer message", "assistant rules"],
        ["you are chatgpt", "you are an ai"],
        *(["do not answer"], ["override"], ["confidential"], ["internal memo"]),
        ["security policy"],
    )
)
# Most entries that the rule blames.
NAMED = 10


def scores_of(before: DriftReport, now: DriftReport) -> NDArray[np.float64]:
    """Return the anomaly score of every canary; ``before`` is a check right after the baseline."""
    weights, k = AnomalyWeights(), now.k
    return np.array(
        [
            weights.score(
                answer_drift=drift.answer_drift,
                jaccard=drift.jaccard or 0.0,
                overlap=len({*drift.ids} & {*drift.baseline_ids}) / k,
                suspicion_delta=_suspicion(now.passages[drift.name][:k])
                - _suspicion(before.passages[drift.name][:k]),
            )
            for drift in now.canaries
        ]
    )


def suspects_of(now: DriftReport, flagged: Iterable[str]) -> list[str]:
    """Return the entries retrieved for flagged canaries, ordered by appearances and ranks."""
    blame: dict[str, float] = defaultdict(float)
    for name in flagged:
        for rank, entry_id in enumerate(now[name].ids, start=1):
            blame[entry_id] += 0.55 + 0.45 / (rank + 1e-6)
    return sorted(blame, key=lambda entry_id: -blame[entry_id])[:NAMED]


def _suspicion(passages: Sequence[Passage]) -> float:
    """Return the mean of 1 - exp(-0.45 h) for h signs in a text."""
    texts = [passage.text.lower() for passage in passages]
    hits = [sum(sign.search(text) is not None for sign in SIGNS) for text in texts]
    return float(np.mean([1.0 - math.exp(-0.45 * n) for n in hits])) if hits else 0.0
