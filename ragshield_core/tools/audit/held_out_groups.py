"""Groups among the entries of a knowledge base, judged as if they were new.

Members of a group in a knowledge base are each other's surroundings, and so hide each other. A
group is therefore taken out as a whole and judged like new entries, as a guard would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Audits, Evidence, GroupDetector, Need
from ragshield_core.model.entries import Batch
from ragshield_core.tools.audit.judging import EXTREME, DetectorScores, doubtful

# Nearest entries of other documents that may belong to a group, and its maximum size.
NEAREST, LARGEST = 8, 6
FEWEST = 3
# Nearest entries outside a group that each member is compared with.
AROUND = 5
# Maximum number of groups that are judged: the tightest ones.
MOST_GROUPS = 40
# Entries per block of the neighbour search.
BLOCK = 1_024
# Fewer entries say too little about how tight groups are: templates look like groups.
FEWEST_ENTRIES = 1_000
# More entries would take as long as the rest of the audit.
MOST_ENTRIES = 50_000


class Group(NamedTuple):
    """Entries of different documents that are nearest to each other."""

    rows: tuple[int, ...]
    score: float


def groups_in(detector: GroupDetector, batch: Batch) -> list[Group]:
    """Return the tightest groups of a knowledge base, with their scores as new entries.

    Pass a detector for this call alone, since it is fitted here. Scores are in its unit, a
    surprisal: the mean of the members, plus the surprisal of documents as small as those of the
    group. An attacker adds a group as separate documents, and most documents are longer than one
    passage.
    """
    if not NEAREST + AROUND < len(batch) <= MOST_ENTRIES or not batch.dim:
        return []
    found = _tightest(batch)
    if not found:
        return []
    detector.fit(batch)
    small = _surprise_of_sizes(batch)
    groups = []
    for rows in found:
        part = batch.take(rows)
        detector.forget(part)
        if not detector.unjudged(part):
            score = float(np.mean(detector.score(part))) + float(small[list(rows)].min())
            groups.append(Group(rows, score))
        detector.learn(part)
    return groups


def with_groups(judge: DetectorScores, batch: Batch) -> DetectorScores:
    """Return a group detector's judge in which members of a group do not hide each other."""
    detector = judge.detector
    if not isinstance(detector, GroupDetector) or Need.EMBEDDING not in detector.needs:
        return judge
    if len(batch) < FEWEST_ENTRIES:
        return judge
    if not detector.traits.exchangeable:
        return judge
    group_of: dict[int, Group] = {}
    # An audit's threshold is for entries in their surroundings: a group has to be far above it.
    least = detector.audit_threshold(EXTREME) if isinstance(detector, Audits) else 0.0
    scores = judge.scores.copy()
    for group in groups_in(type(detector)(**detector.config()), batch):
        for row in group.rows if group.score > least else ():
            if not group.score <= scores[row]:  # also true for NaN: not judged
                group_of[row], scores[row] = group, group.score
    if not group_of:
        return judge

    def explain(rows: NDArray[np.int64]) -> Sequence[Evidence]:
        others = np.array([row for row in rows.tolist() if row not in group_of], dtype=np.int64)
        told = dict(zip(others.tolist(), judge.explain(others), strict=True))
        return [
            told[row] if row in told else _sentence(batch, row, group_of[row])
            for row in rows.tolist()
        ]

    # A group is rarely beyond doubt: its score counts among the usual scores.
    return replace(judge, scores=scores, explain=explain, doubtful=doubtful(judge))


def _sentence(batch: Batch, row: int, group: Group) -> Evidence:
    others = tuple(batch.ids[one] for one in group.rows if one != row)
    return Evidence(
        sentence=(
            f"it is one of {len(group.rows)} entries from different documents that agree with "
            "each other more than with anything else on their topic (score "
            f"{group.score:.1f}, had they come together today)"
        ),
        related_ids=others,
    )


def _tightest(batch: Batch) -> list[tuple[int, ...]]:
    """Return the rows of groups that are more alike than their surroundings, the tightest first."""
    documents = _documents(batch)
    near, alike = _neighbors(batch.embeddings, documents)
    nearest = near[:, :NEAREST].tolist()
    mutual = [set(row) for row in nearest]
    tightness: dict[tuple[int, ...], float] = {}
    for row, others in enumerate(nearest):
        own = [other for other in others if row in mutual[other]][: LARGEST - 1]
        nested = [sorted([row, *own[:n]]) for n in range(FEWEST - 1, len(own) + 1)]
        apart = [rows for rows in nested if len({documents[one] for one in rows}) == len(rows)]
        told = [(_tightness(batch.embeddings, near, alike, rows), tuple(rows)) for rows in apart]
        if told:
            best, rows = max(told)
            tightness[rows] = best
    return sorted(tightness, key=lambda rows: -tightness[rows])[:MOST_GROUPS]


def _tightness(
    vectors: NDArray[np.float32],
    near: NDArray[np.int64],
    alike: NDArray[np.float32],
    rows: Sequence[int],
) -> float:
    """Return how much nearer members are to each other than to the entries around them.

    The difference of cosines, times the root of the size: a larger group is more certain.
    """
    own = vectors[rows] @ vectors[rows].T
    inside = float(own[np.triu_indices(len(rows), 1)].mean())
    outside = np.where(np.isin(near[rows], rows), np.nan, alike[rows])
    around = -np.sort(-outside, axis=1)[:, :AROUND]  # NaN last
    return (inside - float(np.nanmean(around))) * float(np.sqrt(len(rows)))


def _neighbors(
    vectors: NDArray[np.float32], documents: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the nearest entries of other documents and their cosines, the nearest first."""
    k = min(NEAREST + AROUND, len(vectors) - 1)
    near, alike = np.empty((len(vectors), k), np.int64), np.empty((len(vectors), k), np.float32)
    for start in range(0, len(vectors), BLOCK):
        block = slice(start, start + BLOCK)
        cosines = vectors[block] @ vectors.T
        cosines[documents[block, None] == documents[None, :]] = -1.0
        some = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(cosines, some, axis=1), axis=1)
        near[block] = np.take_along_axis(some, order, axis=1)
        alike[block] = np.take_along_axis(cosines, near[block], axis=1)
    return near, alike


def _documents(batch: Batch) -> NDArray[np.int64]:
    """Return a number for each entry's document; an entry without a document is its own."""
    numbers: dict[object, int] = {}
    names = (row if name is None else name for row, name in enumerate(batch.lineages))
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _surprise_of_sizes(batch: Batch) -> NDArray[np.float64]:
    """Return the surprisal of so small a document for each entry, shape (n_entries,)."""
    documents = _documents(batch).tolist()
    of = Counter(documents)
    sizes = np.array([of[document] for document in documents])
    share = np.searchsorted(np.sort(sizes), sizes, side="right") / len(sizes)
    return -np.log(share)
