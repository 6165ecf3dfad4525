"""Detect entries that would take over the answers of known queries."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base import Audits, Evidence, Need, Overlooks, Scope, Traits
from ragshield_core.detectors.base.retrieved import RetrievedSet
from ragshield_core.detectors.question.query_echo import MAX_QUERY, QueryEchoDetector, word_weights
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import NotFittedError
from ragshield_core.model.findings import printable
from ragshield_core.model.taxonomy import CRAFTED, POISONING, VECTORS

# Weight of each rank as a share of the rank before.
PERSISTENCE = 0.8
# Entries closer to each other than this take over a head together, as do entries that rank before
# all known ones.
SAME = 0.7
# Entries kept per query below the top k, so that entries can leave.
RESERVE = 64
# From the first share on, repeating a query counts; from the second on, it suffices by itself.
ECHO_FROM, ECHO_FULL = 0.6, 0.8
# Difference of float32 products between batch shapes.
TIE = 1e-6
# Difference between two embeddings of one text.
CLOSE = 1e-4
# Entries that are compared with all queries at a time.
BLOCK = 4_096
# Entries without a document id count as parts of one document up to this distance in rows.
NEXT_TO = 5


class _Taken(NamedTuple):
    """A place among the top k of a query that an entry takes."""

    query: int
    entry: int  # row of the batch
    rank: int  # from 0, among known entries and those of the group
    share: float  # of the head, taken by the entry's group


class CanaryDisplacementDetector(Audits, Overlooks):
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
        self.queries = tuple(queries)
        if not self.queries:
            msg = "queries is empty, expected canary queries or logged ones."
            raise ValueError(msg)
        if k < 1:
            msg = f"k is {k}, expected at least 1."
            raise ValueError(msg)
        if isinstance(vectors, str):
            given = np.frombuffer(base64.b64decode(vectors), "<f4").reshape(len(queries), -1)
        else:
            given = np.asarray(vectors, dtype=np.float32)
        if given.ndim != 2 or len(given) != len(self.queries):  # noqa: PLR2004 - a matrix
            msg = f"vectors has shape {given.shape}, expected ({len(self.queries)}, dim)."
            raise ValueError(msg)
        norms = np.linalg.norm(given.astype(np.float64), axis=1, keepdims=True)
        if not np.isfinite(norms).all() or not norms.all():
            msg = "vectors has a row that is zero or not finite; check the embedder of the queries."
            raise ValueError(msg)
        unit = np.abs(norms - 1.0) < TIE  # kept as they are, so that a copy is equal
        self.vectors = np.where(unit, given, given / norms).astype(np.float32)
        self.k = k
        # The only place belongs to one entry, whichever entries come with it.
        if k == 1:
            self.traits = replace(self.traits, scope=Scope.ENTRY)
        self._weights = PERSISTENCE ** np.arange(k)
        self._weights /= self._weights.sum()
        self._query_words = [_retrieved(query, "").query_words[:MAX_QUERY] for query in queries]
        self.reset()

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again; vectors as base64."""
        data = base64.b64encode(self.vectors.astype("<f4").tobytes()).decode("ascii")
        return {"queries": list(self.queries), "vectors": data, "k": self.k}

    def reset(self) -> None:
        """Forget every entry."""
        self._heads: list[dict[str, float]] | None = None
        # Per query, the similarity below which its head may lack entries.
        self._floors = np.full(len(self.queries), -np.inf)
        # Similarities of each top k, computed on demand.
        self._thresholds: NDArray[np.float64] | None = None
        self._overlooked: frozenset[str] = frozenset()

    def overlook(self, ids: Collection[str]) -> None:
        """Give the places of entries that the batch replaces to their new revisions."""
        self._overlooked = frozenset(ids)

    def learn(self, entries: Batch) -> None:
        """Note the entries that are among the nearest to a query."""
        if self._heads is None:
            self._heads = [{} for _ in self.queries]
        self._thresholds = None
        depth = self.k + RESERVE
        for start in range(0, len(entries), BLOCK):
            similarity = self.vectors @ entries.embeddings[start : start + BLOCK].T
            thresholds = np.array([_last(head, depth) for head in self._heads])
            if similarity.shape[1] > depth:  # a block can add no more than these
                thresholds = np.maximum(
                    thresholds, np.partition(similarity, -depth, axis=1)[:, -depth]
                )
            # Entries left out stay unknown, so a head is incomplete below this similarity.
            self._floors = np.maximum(self._floors, thresholds)
            hits = np.nonzero(similarity >= self._floors[:, None].astype(np.float32))
            for query, row in zip(*(axis.tolist() for axis in hits), strict=True):
                self._heads[query][entries.ids[start + row]] = float(similarity[query, row])
            for query in np.unique(hits[0]).tolist():
                if len(self._heads[query]) > depth:
                    ranked = sorted(self._heads[query].items(), key=lambda item: -item[1])[:depth]
                    self._heads[query] = dict(ranked)
                    self._floors[query] = max(self._floors[query], ranked[-1][1])

    def forget(self, entries: Batch) -> None:
        """Remove entries from the heads; the entries that move up are normally in the reserve."""
        self._thresholds = None
        gone = set(entries.ids)
        for head in self._heads or ():
            for entry_id in head.keys() & gone:
                del head[entry_id]

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while the knowledge base is empty, since nothing can be displaced."""
        if self._heads is None or not any(self._heads):
            return dict.fromkeys(range(len(batch)), "the knowledge base is empty")
        return {}

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
            top = _ranked(head)[: self.k]
            ranks = np.array([r for r, entry_id in enumerate(top) if entry_id in rows], np.intp)
            mine = np.array([rows[top[rank]] for rank in ranks.tolist()], dtype=np.intp)
            # Without the document, entries below move up: it would take its present ranks.
            shares = _come_together(fitted, mine, ranks) @ self._weights[ranks]
            columns = mine.tolist(), ranks.tolist(), shares.tolist()
            taken += [_Taken(query, *place) for place in zip(*columns, strict=True)]
        return self._scores(fitted, taken)

    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
        """Fit a whole knowledge base and score the share of the heads that each entry holds."""
        self.fit(entries)
        return self.held_out_scores(entries, seed)

    def explain_audit(self, entries: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the number of queries for which each entry is retrieved."""
        tops = [set(_ranked(head)[: self.k]) for head in self._known()]
        sentences = []
        for row in rows:
            names = [
                q for q, top in zip(self.queries, tops, strict=True) if entries.ids[row] in top
            ]
            shown = printable(names[0], 60) if names else ""
            sentences.append(
                Evidence(
                    sentence=f"it is among the first {self.k} results of {len(names)} watched "
                    f"queries, such as {shown!r}"
                )
            )
        return sentences

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

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the heads: ids as JSON, similarities as an array."""
        heads = self._heads
        if heads is None:
            return {"ids": None}, {}
        values = [value for head in heads for value in head.values()]
        return (
            {"ids": [list(head) for head in heads]},
            {"similarities": np.array(values, dtype=np.float64), "floors": self._floors.copy()},
        )

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        self.reset()
        if values["ids"] is None:
            return
        similarities = iter(arrays["similarities"].tolist())
        self._heads = [
            {str(entry_id): float(next(similarities)) for entry_id in ids} for ids in values["ids"]
        ]
        self._floors = np.array(arrays["floors"], dtype=np.float64)

    def _known(self) -> list[dict[str, float]]:
        if self._heads is None:
            msg = "CanaryDisplacementDetector has learned no knowledge base; call fit first."
            raise NotFittedError(msg)
        return self._heads

    def _best(self) -> NDArray[np.float64]:
        """Return the similarities of each query's top k, shape (n_queries, k)."""
        heads = self._known()
        if self._thresholds is None:
            # If so many have left that the head is incomplete, the best unknown similarity counts.
            self._thresholds = np.repeat(self._floors[:, None], self.k, axis=1)
            for thresholds, head in zip(self._thresholds, heads, strict=True):
                values = sorted(head.values(), reverse=True)[: self.k]
                np.maximum(thresholds[: len(values)], values, out=thresholds[: len(values)])
        return self._thresholds

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
        left = [entry_id in self._overlooked for entry_id in _ranked(head)[: self.k]]
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


def _ranked(head: Mapping[str, float]) -> list[str]:
    return sorted(head, key=lambda entry_id: -head[entry_id])


def _last(head: Mapping[str, float], depth: int) -> float:
    """Return the similarity that an entry needs to be among the first ``depth``."""
    return min(head.values()) if len(head) >= depth else -np.inf
