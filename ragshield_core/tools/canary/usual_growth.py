"""What mere growth shows at the head of canaries, told by what stands there and is not new."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.tools.canary.likeness import NEARLY_EQUAL, matrix
from ragshield_core.tools.canary.passages import Passage
from ragshield_core.tools.canary.storage import Baseline
from ragshield_core.tools.canary.text_figures import coverage, word_weights

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
