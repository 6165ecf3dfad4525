"""Judge groups of a source that joins by what is usual within it.

Documents of one product, under one template, resemble each other; in a knowledge base of
something else each of them looks like a member of a crafted group. Two questions tell them apart:

- Does the group sit among *standing* topics? Poisoned documents must answer questions that standing
  documents answer, or they are not retrieved instead of them. How near an entry is to the entries
  of other sources is a quantile of how near these are to each other: no cosine decides.
- Does it stand out within its own source? Where the source is large enough, its own entries say how
  alike they usually are.

A group that sits among standing topics is judged by the knowledge base alone. One that does not,
or whose language the knowledge base does not hold, must stand out in its source as well: a model of
other languages puts all texts of this one near to each other, and near to anything. While its
source is small, a group in another language is reported as unjudged; later arrivals never take it
out. Near-exact copies under several lineages are judged by the knowledge base in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.graph import Lists
from ragshield_core.detectors.groups.usual import Tied, Usual

# A source says what is usual in it from so many entries on: below, one group of five would be a
# quarter of all that there is to compare it with.
FEWEST_OF_SOURCE = 20
# Of a language that the knowledge base does not hold, with 20 passages in five languages were held
# at .16 to .24 where they came one by one, with 100 at .00 to .04. Others have no such grace: a
# model that reads metadata puts a text without any far from all that stands.
FEWEST_FOREIGN = 100
# Entries of a source that are compared with: enough for the largest in a hundred.
MOST_OF_SOURCE = 400
# The third nearest standing entry says whether an entry sits among standing topics: one or two may
# be near by chance, or be copies.
STANDING_RANK = 3
# A group sits among standing topics if its members are nearer to them than a quarter of the
# standing entries are to each other. Of texts crafted for questions that the knowledge base
# answers, 95 % in groups are; of groups of clean sources that join another, one in four.
AMONG = 0.25
# Fewer known words than one entry in a hundred of the knowledge base has: another language.
HARDLY_ANY = 0.01
# Standing entries that are compared with: exact up to this size, a sample of it above.
MOST_STANDING = 20_000
# The source of a slot of which none was noted.
NO_SOURCE = -1
# An entry is not judged by a tail that it has drawn out itself.
N_FOLDS = 5


class Vocabulary:
    """The words of sources that somebody vouches for, to tell texts of other languages.

    Parameters
    ----------
    words
        Hashes of words, ascending.
    least_known
        The share of its words that nearly every entry of the knowledge base shares with others.
    """

    def __init__(self, words: NDArray[np.uint32], least_known: float) -> None:
        self.words, self.least_known = words, least_known

    @classmethod
    def of(cls, entries: Sequence[NDArray[np.uint32]]) -> Vocabulary:
        """Take the words of entries, and how many of its words an entry shares with others."""
        distinct = [np.unique(words) for words in entries]
        joined = np.concatenate([np.empty(0, dtype=np.uint32), *distinct])
        words, counts = np.unique(joined, return_counts=True)
        shared = cls(words[counts > 1], 0.0)
        sample = distinct[:: max(1, len(distinct) // MOST_OF_SOURCE)]
        known = [shared.known(one) for one in sample if len(one)]
        return cls(words, float(np.quantile(known, HARDLY_ANY)) if known else 0.0)

    def known(self, words: NDArray[np.uint32]) -> float:
        """Return the share of words that are known, [0, 1]; 1 of none."""
        if not len(words) or not len(self.words):
            return 1.0
        place = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        return float(np.mean(self.words[place] == words))

    def foreign(self, entries: Sequence[NDArray[np.uint32]]) -> NDArray[np.bool_]:
        """Return which texts are in a language that the knowledge base does not hold."""
        return np.array([self.known(words) < self.least_known for words in entries], dtype=np.bool_)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        return {"words": self.words, "least": np.array([self.least_known])}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Vocabulary:
        """Return the vocabulary that :meth:`state` described."""
        return cls(arrays["words"].astype(np.uint32), float(arrays["least"][0]))


class SourceTable:
    """Which source each slot of a graph is of, and which sources a person has vouched for.

    Attributes
    ----------
    by_slot
        Shape (n_slots or more,), int32: codes of sources.
    """

    def __init__(self) -> None:
        self._codes: dict[str | None, int] = {}
        self._vouched: set[int] = set()
        self.by_slot: NDArray[np.int32] = np.empty(0, dtype=np.int32)

    def codes_of(self, sources: Sequence[str | None]) -> NDArray[np.int32]:
        """Return a code for each source name; new names have new codes, and are not noted."""
        codes: dict[str | None, int] = {}
        found = (
            self._codes[name]
            if name in self._codes
            else codes.setdefault(name, len(self._codes) + len(codes))
            for name in sources
        )
        return np.fromiter(found, np.int32, len(sources))

    def put(self, slots: NDArray[np.int64], sources: Sequence[str | None]) -> None:
        """Note the sources of slots."""
        if slots.size and (need := int(slots.max()) + 1) > len(self.by_slot):
            self.grow(max(need, len(self.by_slot) + len(self.by_slot) // 2))
        self.by_slot[slots] = self._noted(sources)

    def grow(self, size: int) -> None:
        """Make room for so many slots."""
        if size <= len(self.by_slot):
            return
        grown = np.full(size, NO_SOURCE, dtype=np.int32)
        grown[: len(self.by_slot)] = self.by_slot
        self.by_slot = grown

    def keep(self, slots: NDArray[np.int64]) -> None:
        """Renumber slots, given those that stay; forget names that nothing is of any more."""
        self.by_slot = self.by_slot[slots]
        used = np.union1d(self.by_slot[self.by_slot != NO_SOURCE], list(self._vouched))
        place = {code: number for number, code in enumerate(used.astype(np.int64).tolist())}
        renumbered = np.full(len(self._codes), NO_SOURCE, dtype=np.int32)
        renumbered[list(place)] = list(place.values())
        known = self.by_slot != NO_SOURCE
        self.by_slot[known] = renumbered[self.by_slot[known]]
        self._codes = {name: place[code] for name, code in self._codes.items() if code in place}
        self._vouched = {place[code] for code in self._vouched}

    def vouch(self, sources: Sequence[str | None]) -> None:
        """Note that somebody vouches for sources: the knowledge base is judged by them."""
        self._vouched.update(self._noted(sources).tolist())

    def joining(self, codes: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which codes are of sources that nobody vouches for, shape as ``codes``."""
        return ~np.isin(codes, list(self._vouched))

    def _noted(self, sources: Sequence[str | None]) -> NDArray[np.int32]:
        codes = self.codes_of(sources)
        for name, code in zip(sources, codes.tolist(), strict=True):
            self._codes.setdefault(name, code)
        return codes

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        values = {"names": list(self._codes), "vouched": sorted(self._vouched)}
        return values, {"by_slot": self.by_slot}

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> SourceTable:
        """Return the table that :meth:`state` described."""
        table = cls()
        table._codes = {name: code for code, name in enumerate(values["names"])}
        table._vouched = set(values["vouched"])
        table.by_slot = arrays["by_slot"].astype(np.int32)
        return table


def nearness_of_standing(lists: Lists) -> NDArray[np.float32]:
    """Return how near entries are to their third nearest, ascending."""
    nearest = lists.similarities[:, STANDING_RANK - 1]
    return np.sort(nearest[np.isfinite(nearest)])


def among_standing(
    vectors: NDArray[np.float32],
    standing: NDArray[np.float32],
    usual: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return how near entries are to standing ones, as a quantile of how near these are usually.

    Parameters
    ----------
    vectors
        Shape (n, dim), rows of unit length.
    standing
        Shape (n_standing, dim), of other sources.
    usual
        Ascending: the similarity of standing entries to their third nearest.

    Returns
    -------
    NDArray[np.float64]
        Shape (n,), [0, 1]; 0 where there is nothing to compare with.
    """
    if len(standing) < STANDING_RANK or not len(usual):
        return np.zeros(len(vectors))
    similar = vectors @ standing.T
    nearest = np.partition(similar, -STANDING_RANK, axis=1)[:, -STANDING_RANK]
    return np.searchsorted(usual, nearest) / len(usual)


def surprisals_within(tied: Tied, reference: Tied, own: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return how surprising n entries are among those of their own source, shape (n,).

    Parameters
    ----------
    tied
        Evidence about the n entries that are judged.
    reference
        Evidence about entries of the source.
    own
        Shape (n,): which row of the reference each is itself, -1 for none. An entry must not
        be judged by a tail that it has drawn out itself, so that it is left out then, with a fifth
        of the others.
    """
    fold = np.random.default_rng(0).permutation(len(reference.crowd)) % N_FOLDS
    scores = np.empty(len(own))
    left_out = np.where(own >= 0, fold[np.maximum(own, 0)], N_FOLDS)
    for number in np.unique(left_out).tolist():
        usual = Usual.of(reference.take(fold != number), robust=False)
        mine = left_out == number
        scores[mine] = tied.take(mine).columns(usual).max(axis=1)
    return scores
