"""Detect entries that would take over the answers of known queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base import Evidence, Need, Scope, Traits
from ragshield_core.detectors.base.retrieved import RetrievedSet
from ragshield_core.detectors.question.query_echo import MAX_QUERY, QueryEchoDetector, word_weights
from ragshield_core.detectors.question.watched import TIE, WatchedQueries, ranked
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS

# Weight of each rank as a share of the rank before.
PERSISTENCE = 0.8
# Entries closer to each other than this take over a head together, as do entries that rank before
# all known ones.
SAME = 0.7
# From the first share on, repeating a query counts; from the second on, it suffices by itself.
ECHO_FROM, ECHO_FULL = 0.6, 0.8
# Difference between two embeddings of one text.
CLOSE = 1e-4
# Entries without a document id count as parts of one document up to this distance in rows.
NEXT_TO = 5


class _Taken(NamedTuple):
    """A place among the top k of a query that an entry takes."""

    query: int
    entry: int  # row of the batch
    rank: int  # from 0, among known entries and those of the group
    share: float  # of the head, taken by the entry's group


class CanaryDisplacementDetector(WatchedQueries):
    """Find entries that take over the head of canary queries, or of logged ones.

    The score sums, over the queries whose top k the entry would enter, the share of the head that
    it takes (each rank weighs .8 of the one before). Entries of its batch that are similar (cosine
    .7 or more), or that also rank before all known entries, take the share together. A text that
    repeats one of these queries scores more. The score is 0 if nothing is displaced.

    Parameters
    ----------
    queries
        Texts of the queries.
    vectors
        Shape (n_queries, dim), of any length; or the string from :meth:`config`.
    k
        Number of top entries from which a query is answered.

    Notes
    -----
    With six places and the threshold .6, three entries at the head of one query hold .66 of it, and
    an entry at the head of three queries scores .81. A retrieved text that repeats its query nearly
    word for word scores more than 1 by that alone. The best answer to three canaries scores like a
    takeover too, and each place weighs more if there are fewer; with k = 1, the only place weighs
    all: calibrate on the knowledge base.

    One matrix product per batch. Not part of the default guard: it needs queries.

    References
    ----------
    MITRE ATLAS AML.T0066, Retrieval Content Crafting.

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> detector = CanaryDisplacementDetector(["opening hours?"], [[1.0, 0.0]], k=1)
    >>> _ = detector.fit(Batch.of(ids=["a"], texts=["open at 9"], embeddings=[[0.8, 0.6]]))
    >>> new = Batch.of(ids=["b", "c"], texts=["closed", "tea"], embeddings=[[1, 0], [0, 1]])
    >>> detector.score(new)
    array([1., 0.])
    """

    name: str = "canary_displacement"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.EMBEDDING, Need.TEXT})
    default_threshold: float = 0.6
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, CRAFTED, "CWE-349"),
        floor=0.3,  # one entry at the first rank of one query, of six places
        scope=Scope.BATCH,
        on_request=True,  # it needs queries
    )

    def __init__(self, queries: Sequence[str], vectors: ArrayLike | str, *, k: int = 6) -> None:
        super().__init__(queries, vectors, k=k)
        # The only place belongs to one entry, whichever entries come with it.
        if k == 1:
            self.traits = replace(self.traits, scope=Scope.ENTRY)
        self._weights = PERSISTENCE ** np.arange(k)
        self._weights /= self._weights.sum()
        self._query_words = [_retrieved(query, "").query_words[:MAX_QUERY] for query in queries]

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the share of the heads that each entry takes over, shape (n_entries,)."""
        return self._scores(batch, self._displaced(batch))

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores of fitted entries, each as if its document had come after all others.

        If fifths were held out, as in other detectors, each fifth would take over heads together.
        """
        del seed
        rows = {entry_id: row for row, entry_id in enumerate(fitted.ids)}
        taken = []
        for query, head in enumerate(self._known()):
            top = ranked(head)[: self.k]
            ranks = np.array([r for r, entry_id in enumerate(top) if entry_id in rows], np.intp)
            mine = np.array([rows[top[rank]] for rank in ranks.tolist()], dtype=np.intp)
            # Without the document, entries below move up: it would take its present ranks.
            shares = _come_together(fitted, mine, ranks) @ self._weights[ranks]
            columns = mine.tolist(), ranks.tolist(), shares.tolist()
            taken += [_Taken(query, *place) for place in zip(*columns, strict=True)]
        return self._scores(fitted, taken)

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the queries that each entry would take over, with its rank and its group."""
        taken = self._displaced(batch)
        explained = []
        for row in rows:
            mine = [place for place in taken if place.entry == row]
            if not mine:
                explained.append(Evidence(sentence="displaces nothing (0 queries)"))
                continue
            first = max(mine, key=lambda place: place.share)
            echo = self._echo(batch, row, [place.query for place in mine], 0.0)
            related = tuple(
                batch.ids[place.entry]
                for place in taken
                if place.query == first.query and place.entry != row
            )
            company = f", together with {len(related)} more of its batch" if related else ""
            sentence = (
                f"it would be among the first {self.k} results of {len(mine)} watched queries; for "
                f"{printable(self.queries[first.query], 60)!r} it comes at rank {first.rank + 1}"
                f"{company}, and takes {first.share:.0%} of the first results; it repeats "
                f"{echo:.0%} of a query"
            )
            explained.append(Evidence(sentence=sentence, related_ids=related))
        return explained

    def _displaced(self, batch: Batch) -> list[_Taken]:
        """Return the places in the top k that entries would take, each with only its group."""
        known, heads, taken = self._best(), self._known(), list[_Taken]()
        if not len(batch):
            return taken
        similarity = self.vectors @ batch.embeddings.T
        higher = similarity > known[:, -1:].astype(np.float32) + TIE
        for query in np.flatnonzero(higher.any(axis=1)).tolist():
            rows, best = np.flatnonzero(higher[query]), known[query]
            values = similarity[query, rows].astype(np.float64)
            # An entry that is there already, unchanged, displaces nothing.
            there = [heads[query].get(batch.ids[row], -np.inf) for row in rows.tolist()]
            moved = np.abs(np.array(there) - values) > CLOSE
            rows, values = rows[moved], values[moved]
            vectors, first = batch.embeddings[rows], values > best[0] + TIE
            alike = (vectors @ vectors.T >= SAME) | (first[:, None] & first[None, :])
            np.fill_diagonal(alike, val=True)
            given_up = self._given_up(heads[query])
            for row, value, group in zip(rows.tolist(), values, alike, strict=True):
                both = np.concatenate([best, values[group]])
                top = np.argsort(-both, kind="stable")[: self.k]
                share = max(0.0, float(self._weights @ (top >= self.k)) - given_up)
                taken.append(_Taken(query, row, int(np.count_nonzero(best >= value)), share))
        return taken

    def _given_up(self, head: Mapping[str, float]) -> float:
        """Return the weight of the places that overlooked entries leave."""
        if not self._overlooked:
            return 0.0
        left = [entry_id in self._overlooked for entry_id in ranked(head)[: self.k]]
        return float(self._weights[: len(left)] @ np.array(left))

    def _scores(self, batch: Batch, taken: Sequence[_Taken]) -> NDArray[np.float64]:
        scores, queries = np.zeros(len(batch)), dict[int, list[int]]()
        for place in taken:
            scores[place.entry] += place.share
            queries.setdefault(place.entry, []).append(place.query)
        for row, displaced in queries.items():
            echo = self._echo(batch, row, displaced, ECHO_FROM)
            scores[row] += max(0.0, echo - ECHO_FROM) / (ECHO_FULL - ECHO_FROM)
        return scores

    def _echo(self, batch: Batch, row: int, queries: Sequence[int], least: float) -> float:
        """Return the largest share of one of the queries that an entry repeats, in [0, 1].

        Only queries whose share of words in the text exceeds ``least`` are compared: this saves
        work, because in a small knowledge base each entry displaces something of most queries.
        """
        held, text, most = _retrieved(None, batch.texts[row]).words[0], batch.texts[row], 0.0
        for query in queries:
            words = self._query_words[query]
            weights = word_weights(len(words))
            if weights[np.isin(words, held)].sum() > least * weights.sum():
                echo = QueryEchoDetector().repeated(_retrieved(self.queries[query], text))
                most = max(most, float(echo[0]))
        return most


def _come_together(
    fitted: Batch, rows: NDArray[np.intp], ranks: NDArray[np.intp]
) -> NDArray[np.bool_]:
    """Return which entries at the head of a query would take it over together, (n, n).

    These are entries of one document that are similar, or that fill the first ranks alone. Entries
    without a document id belong to one document if they are next to each other.
    """
    lineage = [fitted.lineages[row] for row in rows.tolist()]
    same = np.array([[a is not None and a == b for b in lineage] for a in lineage], dtype=np.bool_)
    unknown = np.array([name is None for name in lineage], dtype=np.bool_)
    near = np.abs(rows[:, None] - rows[None, :]) <= NEXT_TO
    same = same.reshape(len(rows), len(rows)) | (near & unknown[:, None] & unknown[None, :])
    vectors = fitted.embeddings[rows]
    first = np.zeros(same.shape, dtype=np.bool_)
    for row in range(len(rows)):
        n_first = int(np.argmin(np.append(same[row], False)))  # ranks of its document from the top
        first[row, :n_first] = (ranks[:n_first] == np.arange(n_first)) & (row < n_first)
    together = same & ((vectors @ vectors.T >= SAME) | first)
    np.fill_diagonal(together, val=True)
    return np.asarray(together)


def _retrieved(query: str | None, text: str) -> RetrievedSet:
    passage = Batch.of(ids=["e"], texts=[text], embeddings=None)
    return RetrievedSet.of(query, passage, has_vectors=False)
