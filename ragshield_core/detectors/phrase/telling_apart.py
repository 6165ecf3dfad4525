"""Explain suspicious n-grams by as few phrases as possible."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.phrase.surprise import Tests

# An entry is at home in the knowledge base if it is more like it than so many of its own entries
# are, texts and vectors taken together (see :mod:`.carriers`).
AT_HOME = 0.6
# Entries of the knowledge base have a mean likeness of a half, those of its lower half of a
# quarter; entries of other sources mostly have less. What has clearly more is like it.
LIKE = 0.33
# A phrase is not looked at more closely up to this score: every batch has such by chance. What is
# fainter is told apart by upper limits only, and down to a hundredfold less.
FAINT, NOTHING = 0.0, -2.0
# An entry holds a phrase if it holds this share of its n-grams: one changed word in the middle of
# five takes away half of them.
WHOLE = 0.25
# From this score on, the phrase is taken for a fact, and its parts are tested as such.
SURE = 2.0
# Never more phrases than this are told apart in one batch, the most suspicious ones.
MAX_PHRASES = 256


class Phrase(NamedTuple):
    """What a score rests on."""

    score: float
    hashes: tuple[int, ...]  # the n-gram that convinced, then those that come with it
    n_recent: int  # entries that hold it
    n_known: float
    expected: float
    example: int  # row of the batch that holds it
    ids: tuple[str, ...] = ()  # of recent entries and of the batch that hold it
    witnesses: frozenset[int] = frozenset()  # those among their rows that speak for it


class Holding(NamedTuple):
    """Which entries hold which n-grams, ordered by n-gram; shape (n_pairs,) each."""

    rows: NDArray[np.int64]
    which: NDArray[np.int64]
    copies: NDArray[np.int64]  # the same number for copies of one text
    lineages: NDArray[np.int64]  # the same number for n-gram and lineage, counted from 0
    close: NDArray[np.bool_]  # whether the other holders of the n-gram are close to the entry

    @classmethod
    def of(
        cls,
        rows: NDArray[np.int64],
        which: NDArray[np.int64],
        copies: NDArray[np.int64],
        lineages: NDArray[np.int64],
    ) -> Holding:
        """Put pairs in order, given the copies and lineages of entries."""
        order = np.lexsort((copies[rows], which))
        rows, which = rows[order], which[order]
        pairs = which * len(lineages) + lineages[rows]
        numbers = np.unique(pairs, return_inverse=True)[1]
        return cls(rows, which, copies[rows], numbers, np.zeros(len(rows), dtype=np.bool_))

    def take(self, kept: NDArray[np.bool_]) -> Holding:
        """Return some of the pairs."""
        return Holding(*(column[kept] for column in self))  # type: ignore[arg-type]

    def counted(self, n_grams: int, large: float) -> NDArray[np.float64]:
        """Return the number of the entries that hold each n-gram.

        Copies count once. Those of one lineage count as one for each time that they are as many as
        a large lineage has.
        """
        first = np.ones(len(self.rows), dtype=np.bool_)
        first[1:] = (self.which[1:] != self.which[:-1]) | (self.copies[1:] != self.copies[:-1])
        which, lineages = self.which[first], self.lineages[first]
        gram = np.zeros(int(lineages.max(initial=-1)) + 1, dtype=np.int64)
        gram[lineages] = which
        number = np.bincount(lineages, minlength=len(gram))
        number = np.where(number > 0, np.maximum(1.0, number / large), 0.0)
        return np.asarray(np.bincount(gram, number, minlength=n_grams), dtype=np.float64)


class Carriers(NamedTuple):
    """What entries that hold a phrase are measured by."""

    plain: Tests  # of all that are not foreign
    at_home: Tests  # of those that are more usual than half of the knowledge base
    likeness: NDArray[np.float64]  # (n,): of entries

    large: float  # how many entries a large lineage has

    def scores(self, holding: Holding) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the surprisal of each n-gram, and whether its holders are like the knowledge base.

        Only those count that are scattered: all of them if they are like the knowledge base on
        average. Those that are more usual than half of it count anyway, beside that half: nothing
        that others bring, who hold the phrase as well, makes them fewer.
        """
        n_grams = len(self.plain.hashes)
        likeness = self.likeness[holding.rows]
        far = ~holding.close
        number = np.maximum(1, np.bincount(holding.which[far], minlength=n_grams))
        total = np.bincount(holding.which[far], likeness[far], minlength=n_grams)
        # Of a few, the mean is above it by chance: by a standard error of a uniform one.
        like = total / number >= LIKE + 1.0 / np.sqrt(12.0 * number)
        together = self.plain.scores(holding.take(far).counted(n_grams, self.large))
        usual = holding.take(far & (likeness >= AT_HOME))
        alone = self.at_home.scores(usual.counted(n_grams, self.large))
        return np.maximum(np.where(like, together, NOTHING), alone), like


def phrases_of(
    carriers: Carriers,
    holding: Holding,
    found: NDArray[np.float64],
    why: NDArray[np.int64],
) -> list[tuple[Phrase, NDArray[np.int64]]]:
    """Explain suspicious n-grams by as few phrases as possible, the most suspicious first.

    Parameters
    ----------
    carriers
        What n-grams and entries are measured by.
    holding
        Which entry holds which n-gram.
    found, why
        Shape (n_entries,): the score of each entry and the number of the phrase that gave it, to
        be filled in.

    Returns
    -------
    list[tuple[Phrase, NDArray[np.int64]]]
        Phrases, and the entries that are said to hold each.
    """
    tests = carriers.plain
    n_grams, n = len(tests.hashes), len(found)
    # Only n-grams of the batch are looked at, and its rows come first.
    examples = np.full(n_grams, n)
    np.minimum.at(examples, holding.which, holding.rows)
    phrases: list[tuple[Phrase, NDArray[np.int64]]] = []
    for _ in range(MAX_PHRASES):
        scores, like = carriers.scores(holding)
        gram = int(np.argmax(scores))
        score = float(scores[gram])
        if not score > FAINT:
            break
        rows, which = holding.rows, holding.which
        low, high = np.searchsorted(which, [gram, gram + 1])
        holders, close = rows[low:high], holding.close[low:high]
        together = np.bincount(which[marked(holders, n)[rows]], minlength=n_grams)
        parts = np.flatnonzero(2 * together >= len(holders))
        # Who has the n-gram, but hardly any other part of the phrase, has it by chance.
        have = np.bincount(rows[marked(parts, n_grams)[which]], minlength=n)
        whole = have[holders] >= WHOLE * len(parts)
        likeness = carriers.likeness[holders]
        witness = ~close & (bool(like[gram]) | (likeness >= AT_HOME))
        # Most of a scattered phrase, and the others with it.
        named = witness | (bool(like[gram]) & (2 * np.count_nonzero(~close) >= len(close)))
        named_rows = holders[whole & named]
        holding = holding.take(~marked(named_rows, n)[rows] & (which != gram))
        if not len(named_rows):
            continue
        odds = tests.share[gram] / (1.0 - tests.share[gram])
        phrase = Phrase(
            score=score,
            hashes=(int(tests.hashes[gram]), *tests.hashes[parts[parts != gram]].tolist()),
            n_recent=len(holders),
            n_known=float(tests.known[gram]),
            expected=float(tests.known[gram] * odds),
            example=int(examples[gram]),
            witnesses=frozenset(holders[whole & witness].tolist()),
        )
        found[named_rows], why[named_rows] = score, len(phrases)
        phrases.append((phrase, named_rows))
        if score >= SURE:
            carriers.plain.relate(parts)
            carriers.at_home.relate(parts)
    return phrases


def marked(rows: NDArray[np.intp], n: int) -> NDArray[np.bool_]:
    """Return, of n, which are among some rows."""
    found = np.zeros(n, dtype=np.bool_)
    found[rows] = True
    return found
