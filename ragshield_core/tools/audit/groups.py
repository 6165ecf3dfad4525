"""Groups among the entries of a knowledge base, judged by their surroundings.

Texts that were planted for one question are nearer to each other than to anything else, they share
few words, and each is a document of its own. Pages on one template are as near to many others, and
mostly share words. So a group is judged as a whole: by the *contrast* between the nearness of its
members to each other, as far as copied words do not explain it, and their nearness to the nearest
other entries. The knowledge base itself shows how rare a contrast is.

Trusted entries sharpen this. Clean groups are scattered over trusted and other entries, planted
groups are not: groups are searched among the trusted entries and among the others, and each is
compared with the other side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence
from ragshield_core.detectors.groups.detector import CliqueDetector
from ragshield_core.detectors.groups.evidence import nearness
from ragshield_core.detectors.groups.usual import Surprisal
from ragshield_core.model.entries import Batch
from ragshield_core.text.copies import containment, content_words
from ragshield_core.tools.audit.judging import DetectorScores

# Sizes of groups. Pairs are usual: a change log and a manual, a page and its translation.
FEWEST, LARGEST = 3, 6
# Nearest entries that are looked at, to find nearest ones of different documents without copied
# words; number of these that may belong to a group.
LOOKED_AT, NEAREST = 20, 8
# Nearest entries outside of a group that each member is compared with: two others on the same
# template explain a group.
AROUND = 2
# Copied words explain their share of a resemblance, from this share on all of it.
COPIED_ALL = 0.9
# Entries per block of the neighbour search, and pairs of entries that are compared at once.
BLOCK, PAIRS = 1_024, 1 << 14
# Fewer entries say too little about how tight groups are: templates look like groups.
FEWEST_ENTRIES = 1_000
# More entries would take as long as the rest of the audit.
MOST_ENTRIES = 50_000
# Smallest share of entries on a side: in a smaller one, entries are farther from each other.
SMALLEST_SIDE = 0.25
# The usual contrast is measured from its 80 % point on: fewer entries in groups do not show it.
LEAST_GROUPED = 0.25


class Groups(NamedTuple):
    """The group of each entry with the largest contrast.

    ``contrast`` has shape (n_entries,), NaN without a group; ``members`` has numbers of entries,
    shape (n_entries, LARGEST), padded with -1.
    """

    contrast: NDArray[np.float64]
    members: NDArray[np.int64]


def with_groups(
    judge: DetectorScores, batch: Batch, trusted: NDArray[np.intp] | None = None
) -> DetectorScores:
    """Return the judge of a detector of groups, by the contrast of groups, crowds and copies.

    The score of an entry is the surprisal of its group's contrast, plus that of its document's size
    if other members stand in documents as small. An attacker adds a group as separate documents,
    and most documents are longer than one passage. Other judges, and those of knowledge bases that
    are too small or too large, are returned unchanged.

    Parameters
    ----------
    judge
        Scores of an audit of ``batch``.
    batch
        The knowledge base.
    trusted
        Rows of entries that are known to be clean; ``None`` for none.
    """
    detector, n = judge.detector, len(batch)
    if not isinstance(detector, CliqueDetector) or not detector.traits.exchangeable:
        return judge
    if not FEWEST_ENTRIES <= n <= MOST_ENTRIES or not batch.dim:
        return judge
    sides = [np.arange(n)]
    if trusted is not None and SMALLEST_SIDE <= len(trusted) / n <= 1.0 - SMALLEST_SIDE:
        sides = [trusted, np.setdiff1d(sides[0], trusted)]
    small, words = _surprise_of_sizes(batch), list(map(content_words, batch.texts))
    scores, members = np.zeros(n), np.full((n, LARGEST), -1)
    for number, side in enumerate(sides):
        others = sides[1 - number] if len(sides) > 1 else None
        groups = groups_in(batch, words, side, others)
        there = ~np.isnan(groups.contrast)
        if there.mean() < LEAST_GROUPED:
            return judge
        values = np.where(there, groups.contrast, groups.contrast[there].min())
        found = Surprisal(values, robust=True)(values)
        rare = np.where(groups.members >= 0, small[groups.members], 0.0)
        alike = np.sort(rare, axis=1)[:, -FEWEST]
        scores[side] = np.where(there, found + np.minimum(alike, small[side]), 0.0)
        members[side] = groups.members
    # In the detector's unit, this is the score that every entry reaches.
    scores += detector.audit_threshold(1.0)
    copied = detector.judge_copies()
    by_group = scores > copied

    def explain(rows: NDArray[np.int64]) -> Sequence[Evidence]:
        others = rows[~by_group[rows]]
        told = dict(zip(others.tolist(), judge.explain(others), strict=True))
        return [
            told[row] if row in told else _sentence(batch, row, members[row])
            for row in rows.tolist()
        ]

    return replace(judge, scores=np.maximum(scores, copied), explain=explain)


def groups_in(
    batch: Batch,
    words: Sequence[NDArray[np.uint32]],
    side: NDArray[np.intp],
    others: NDArray[np.intp] | None,
) -> Groups:
    """Return the groups among the entries of one side.

    A group is an entry and the nearest of different documents that have it among their nearest,
    too.

    Parameters
    ----------
    batch
        The knowledge base.
    words
        Its :func:`~ragshield_core.text.copies.word_hashes`.
    side
        Rows among which groups are searched.
    others
        Rows with which groups are compared; ``None`` for all entries outside of each group.
    """
    n, vectors, documents = len(side), batch.embeddings, _documents(batch)
    near, alike = _neighbors(vectors, documents, side, side)
    pairs = np.stack([np.repeat(side, near.shape[1]), side[near].ravel()])
    unexplained = _nearness(alike.ravel(), words, pairs).reshape(near.shape)
    mates = _mates(near, unexplained, documents[side])
    group = np.concatenate([np.arange(n)[:, None], mates], axis=1)
    there = group >= 0
    # Nearness of all pairs of the largest group of each entry; smaller groups are its first ones.
    inside = np.zeros((n, LARGEST, LARGEST))
    first, second = np.triu_indices(LARGEST, 1)
    row, place = np.nonzero(there[:, first] & there[:, second])
    a, b = side[group[row, first[place]]], side[group[row, second[place]]]
    known, where = np.unique(np.sort(np.stack([a, b]), axis=0), axis=1, return_inverse=True)
    blocks = np.array_split(known, range(PAIRS, known.shape[1], PAIRS), axis=1)
    cosines = [np.einsum("ij,ij->i", vectors[one], vectors[other]) for one, other in blocks]
    pair_nearness = _nearness(np.concatenate(cosines), words, known)[where.ravel()]
    inside[row, first[place], second[place]] = pair_nearness
    inside[row, second[place], first[place]] = pair_nearness
    if others is None:
        around, among = nearness(alike), near
    else:
        among, found = _neighbors(vectors, documents, side, others)
        around, among = nearness(found), np.full_like(among, -1)
    contrast, best = np.full(n, np.nan), np.full((n, LARGEST), -1)
    for size in range(FEWEST, LARGEST + 1):
        rows = np.flatnonzero(there[:, size - 1])
        own = group[rows, :size]
        # Members of a group do not stand around it.
        apart = ~(among[own][..., None] == own[:, None, None, :]).any(axis=-1)
        nearest = apart & (np.cumsum(apart, axis=-1) <= AROUND)
        outside = np.where(nearest, around[own], 0.0).sum(axis=-1) / nearest.sum(axis=-1)
        tight = inside[rows, :size, :size].sum(axis=2) / (size - 1)
        each = (tight - outside) * np.sqrt(size)  # a larger group is more certain
        whole = each.mean(axis=1, keepdims=True)
        # An outsider beside a group borrows half of its contrast at most.
        values = np.minimum(whole, (whole + each) / 2.0)
        # A member of several groups keeps the best one, which comes last.
        which, place = np.unravel_index(np.argsort(values, axis=None, kind="stable"), values.shape)
        member = own[which, place]
        better = ~(contrast[member] >= values[which, place])  # also true for NaN
        which, place, member = which[better], place[better], member[better]
        contrast[member] = values[which, place]
        best[member] = -1
        best[member, :size] = side[own[which]]
    return Groups(contrast, best)


def _mates(
    near: NDArray[np.intp], nearness: NDArray[np.float32], documents: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Return the possible members of each entry's group, the nearest first, padded with -1.

    They are among its nearest entries of different documents, and it is among theirs.
    """
    order = np.argsort(-nearness, axis=1, kind="stable")
    unexplained = np.take_along_axis(nearness, order, axis=1) > 0.0
    nearest = []
    for listed, left in zip(np.take_along_axis(near, order, axis=1), unexplained, strict=True):
        by_document: dict[int, int] = {}
        for other in listed[left].tolist():
            by_document.setdefault(int(documents[other]), other)
        nearest.append(list(by_document.values())[:NEAREST])
    mutual = [set(row) for row in nearest]
    mates = np.full((len(near), LARGEST - 1), -1, dtype=np.intp)
    for number, others in enumerate(nearest):
        own = [other for other in others if number in mutual[other]][: LARGEST - 1]
        mates[number, : len(own)] = own
    return mates


def _nearness(
    cosines: NDArray[np.float32],
    words: Sequence[NDArray[np.uint32]],
    pairs: NDArray[np.intp],
) -> NDArray[np.float32]:
    """Return the nearness of pairs of entries, shape (n_pairs,), that copied words leave."""
    left = np.clip(1.0 - containment(words, pairs[0], pairs[1]) / COPIED_ALL, 0.0, 1.0)
    return np.asarray(nearness(cosines) * left, dtype=np.float32)


def _neighbors(
    vectors: NDArray[np.float32],
    documents: NDArray[np.int64],
    rows: NDArray[np.intp],
    among: NDArray[np.intp],
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return places in ``among`` of the nearest entries of other documents, and their cosines."""
    k = min(LOOKED_AT, len(among) - 1)
    near, alike = np.empty((len(rows), k), np.intp), np.empty((len(rows), k), np.float32)
    columns = vectors[among].T
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        cosines = vectors[rows[block]] @ columns
        cosines[documents[rows[block], None] == documents[None, among]] = -1.0
        some = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(cosines, some, axis=1), axis=1)
        near[block] = np.take_along_axis(some, order, axis=1)
        alike[block] = np.take_along_axis(cosines, near[block], axis=1)
    return near, alike


def _sentence(batch: Batch, row: int, members: NDArray[np.int64]) -> Evidence:
    others = tuple(batch.ids[one] for one in members.tolist() if one not in (row, -1))
    return Evidence(
        sentence=(
            f"it is one of {len(others) + 1} entries from different documents that agree with "
            "each other more than with anything else on their topic"
        ),
        related_ids=others,
    )


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
