"""Detect passages of a retrieved set that agree with each other far more than the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence, Need, Scope, Traits
from ragshield_core.detectors.base.retrieved import RetrievalDetector, RetrievedSet
from ragshield_core.detectors.groups.evidence import nearness
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS
from ragshield_core.text.copies import containment

# Group sizes; a larger group contains groups of five.
SIZES = (2, 3, 4, 5)
# Fewest passages of a set, so that a group has a rest to differ from, and most passages that are
# judged: prompts hardly ever contain more, and the work grows with the cube.
LEAST_SET, MAX_SET = 4, 64
# Usual evidence of ordinary passages, and, per size, the excess of one in a hundred: measured on
# the ten best of 20,000 Wikipedia passages for 1,200 questions, with all-MiniLM-L6-v2. They only
# make the sizes comparable; a calibration sets the threshold.
USUAL = 0.3
SPREAD = {2: 2.4, 3: 2.0, 4: 1.8, 5: 1.7}
# Weight of the contrast in nearness to the query. The two contrasts in tightness (to groups of the
# rest, and to the link between group and rest) and the nearness itself weigh 1 each.
QUERY_WEIGHT = 2.0


class ConsensusDetector(RetrievalDetector):
    """Find a tight group among the retrieved passages that stands apart from the others.

    Texts crafted for one question say the same in other words, and are closer to the question than
    most. For each passage and group size, the group is the passage and its nearest; nearness is the
    negative logarithm of the cosine distance, reduced by copied words, which explain it (words of
    the query do not: every answer contains them). The evidence is the sum of

    - the contrast of the group's tightness to the tightest group of the same size in the rest, and
      to the closest link between the group and the rest,
    - twice the contrast of its nearness to the query to that of the rest (median),
    - the nearness of its members and the query to each other.

    Each part of a passage's evidence is limited to the best of the other members. The score is the
    largest over the sizes, in units in which 1 in 100 ordinary passages reaches about 1 per size.

    Notes
    -----
    A single text forms no group, and no group stands apart from a rest that is poisoned too:
    retrieve at least twice as many passages as an attacker is likely to place (ten, for five).
    Copying explains exact copies, so they are not found here, but at ingestion, by
    :class:`~ragshield_core.detectors.CliqueDetector`. Only the first 64 passages are judged.

    References
    ----------
    The idea without a language model: Kim et al., "Rescuing the Unpoisoned: Efficient Defense
    against Knowledge Corruption Attacks on RAG Systems" (RAGDefender), ACSAC 2025; Zhou et al.,
    "TrustRAG", arXiv 2501.00879, first stage.

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> rng = np.random.default_rng(0)
    >>> vectors = rng.normal(size=(10, 64)) + 0.5
    >>> vectors[:3] = rng.normal(size=64) + 0.5 + 0.2 * rng.normal(size=(3, 64))
    >>> batch = Batch.of(ids=list("abcdefghij"), texts=[f"text {i}" for i in range(10)],
    ...                  embeddings=vectors)
    >>> retrieved = RetrievedSet.of("?", batch, vectors[:3].mean(axis=0))
    >>> ConsensusDetector().score(retrieved).round(1)[:5] > 1.8
    array([ True,  True,  True, False, False])
    """

    name: str = "consensus"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEXT, Need.EMBEDDING})
    # One in a hundred first-ranked passages of Wikipedia and of HotpotQA reaches it.
    default_threshold: ClassVar[float] = 1.8
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, CRAFTED, "CWE-349"),
        floor=1.2,
        scope=Scope.RETRIEVAL,
    )

    def skip_reason(self, retrieved: RetrievedSet) -> str | None:
        """Return the reason if this detector cannot judge this set."""
        if len(retrieved) < LEAST_SET:
            return f"needs {LEAST_SET} passages to tell a group from the rest, not {len(retrieved)}"
        return super().skip_reason(retrieved)

    def score(self, retrieved: RetrievedSet) -> NDArray[np.float64]:
        """Return the evidence for a group around each passage, shape (n_passages,)."""
        scores = np.full(len(retrieved), np.nan)
        best = np.max([score for _, score in _groups(retrieved)], axis=0)
        scores[: len(best)] = best
        return scores

    def explain(self, retrieved: RetrievedSet, rows: Sequence[int]) -> list[Evidence]:
        """Return the group, the similarity within it, and the similarity to the rest."""
        groups = _groups(retrieved)
        vectors, ids = retrieved.passages.embeddings, retrieved.passages.ids
        assert retrieved.vector is not None  # noqa: S101 - skip_reason says so otherwise
        evidence = []
        for row in rows:
            of_size, _ = max(groups, key=lambda group: group[1][row])
            members = of_size[row]
            size, n = len(members), len(of_size)
            rest = np.setdiff1d(np.arange(n), members)
            inside = (vectors[members] @ vectors[members].T)[np.triu_indices(size, 1)].mean()
            across = (vectors[members] @ vectors[rest].T).max()
            evidence.append(
                Evidence(
                    sentence=(
                        f"it is one of {size} among {n} retrieved passages that say nearly the "
                        "same, are unlike the rest, and fit the question better (similarity to "
                        f"each other {inside:.3f}, to the rest at most {across:.3f}; to the "
                        f"question {(vectors[members] @ retrieved.vector).mean():.3f}, of the rest "
                        f"{np.median(vectors[rest] @ retrieved.vector):.3f})"
                    ),
                    related_ids=tuple(ids[member] for member in members[1:].tolist()),
                )
            )
        return evidence


def _groups(retrieved: RetrievedSet) -> list[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """Return one group per passage for each size up to half of the passages.

    Members have shape (n, size), the passage itself first, and scores (n,).
    """
    n = min(len(retrieved), MAX_SET)
    assert retrieved.vector is not None  # noqa: S101 - skip_reason says so otherwise
    near = _nearness(retrieved, n)
    to_query = nearness(retrieved.passages.embeddings[:n] @ retrieved.vector)
    itself = near.copy()
    np.fill_diagonal(itself, -np.inf)
    order = np.argsort(-itself, axis=1, kind="stable")
    sizes = [size for size in SIZES if size <= n // 2]
    return [_groups_of(size, near, itself, order, to_query) for size in sizes]


def _groups_of(
    size: int,
    near: NDArray[np.float32],
    itself: NDArray[np.float32],  # near, with -inf on the diagonal
    order: NDArray[np.intp],
    to_query: NDArray[np.float32],
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    n = len(near)
    others = order[:, : size - 1]
    members = np.concatenate([np.arange(n)[:, None], others], axis=1)
    inside = np.zeros((n, n), dtype=np.bool_)
    inside[np.arange(n)[:, None], members] = True
    pairs = near[members[:, :, None], members[:, None, :]].sum(axis=(1, 2)) / (size * (size - 1))
    # An outsider next to a group must not borrow its tightness.
    tight = np.minimum(pairs, np.take_along_axis(near, others, 1).mean(axis=1))
    # The tightest star of the same size in the rest: a passage and its nearest in the rest.
    left = np.where(inside[:, :, None] | inside[:, None, :], -np.inf, itself[None])
    stars = np.maximum(np.partition(left, n - size + 1, axis=2)[:, :, n - size + 1 :], 0.0)
    rest = stars.mean(axis=2).max(axis=1)
    link = np.where(inside[:, :, None] & ~inside[:, None, :], near[None], 0.0).max(axis=(1, 2))
    own = np.minimum(to_query, to_query[members].mean(axis=1))
    outside = np.sort(np.where(inside, np.inf, to_query[None]), axis=1)  # inf last
    ordinary = outside[:, [(n - size - 1) // 2, (n - size) // 2]].mean(axis=1)  # median of the rest
    together = ((size - 1) * tight + 2.0 * own) / (size + 1)
    score = np.zeros(n)
    weighted = ((tight - rest, 1.0), (tight - link, 1.0), (own - ordinary, QUERY_WEIGHT))
    for part, weight in (*weighted, (together, 1.0)):
        # At most as much as the best of the other members.
        score += weight * np.minimum(part, part[others].max(axis=1))
    return members, (score - USUAL) / SPREAD[size]


def _nearness(retrieved: RetrievedSet, n: int) -> NDArray[np.float32]:
    """Return the unexplained nearness between the first n passages, 0 on the diagonal."""
    vectors = retrieved.passages.embeddings[:n]
    first, second = np.triu_indices(n, 1)
    asked = np.unique(retrieved.query_words)[:, None]
    words = [part[~(part == asked).any(axis=0)] for part in retrieved.words[:n]]
    copied = np.zeros((n, n), dtype=np.float32)
    copied[first, second] = containment(words, first, second)
    bare = np.array([not part.size for part in retrieved.words[:n]])
    copied[bare] = 1.0  # a rule or a bracket has no content to agree with
    near = nearness(vectors @ vectors.T, copied + copied.T)
    np.fill_diagonal(near, 0.0)
    return near
