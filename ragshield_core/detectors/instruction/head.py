"""Linear head over vectors and moods of sentences that recognises orders to a model.

Its discriminants separate three classes of sentences: orders by family and near misses, both
written for this project (the folder ``corpus``), and candidates of the knowledge base itself, which
are usual there. Families share little except being orders: one discriminant for all finds fewer
than one for each. A fit needs only sums of products, so that parts of the knowledge base can be
held out without a pass over the rest.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS
from ragshield_core.detectors.instruction.gate import moods, n_features

# Function that returns a vector for each text.
Embed = Callable[[list[str]], Any]

# Weights of the two kinds of usual sentences, independent of their numbers: near misses, none of
# which is an order, and candidates of the knowledge base.
OF_NEAR, OF_KNOWN = 0.04, 0.96
# Share of orders in the covariance, and the ridge added to its diagonal.
OF_ORDERS, RIDGE = 0.3, 0.06
# Vectors are scaled to this spread in the corpus, beside moods of 0 and 1.
SPREAD = 4.0
# A model does not understand orders if its vectors separate them from near misses no better than
# this (area under the curve; a coin has .5).
TELLS = 0.7
# Quantile of the scores of near misses at which all languages are made equal.
HIGH = 0.9
SEED = 0


class Sentence(NamedTuple):
    """A sentence of the corpus."""

    text: str
    order: bool
    family: str
    language: str


@cache
def corpus() -> tuple[Sentence, ...]:
    """Return the orders and near misses of the package, English ones first."""
    found = []
    folder = files(__package__).joinpath("corpus")
    for file in sorted(folder.iterdir(), key=lambda file: (file.name[:3] != "en.", file.name)):
        language, _, ending = file.name.partition(".")
        if ending not in ("jsonl", "jsonl.gz"):
            continue
        data = file.read_bytes()
        lines = (gzip.decompress(data) if ending.endswith("gz") else data).decode().splitlines()
        for row in map(json.loads, filter(None, lines)):
            spoken = row.get("lang", language)
            found.append(Sentence(row["text"], row["order"], row["family"], spoken))
    return tuple(found)


@cache
def _columns() -> tuple[NDArray[np.bool_], NDArray[np.str_], NDArray[np.str_]]:
    """Return, for each sentence of the corpus, whether it is an order, its language and family."""
    _, orders, families, languages = zip(*corpus(), strict=True)
    return np.array(orders), np.array(languages), np.array(families)


@cache
def _corpus_moods() -> NDArray[np.float32]:
    return moods([sentence.text for sentence in corpus()])


@cache
def made_of() -> str:
    """Return a hash that identifies the corpus and the features."""
    content = json.dumps([n_features(), *corpus()], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def sums_of(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sums of rows for a discriminant; those of parts add up to those of the whole.

    Shape (n_columns + 1, n_columns + 1): the number of rows at the corner, their sum in the first
    row, and the sum of their products.
    """
    sums = np.empty((rows.shape[1] + 1,) * 2)
    sums[0, 0] = len(rows)
    sums[0, 1:] = sums[1:, 0] = rows.sum(axis=0, dtype=np.float64)
    sums[1:, 1:] = rows.T @ rows
    return sums


def discriminants(
    orders: Sequence[NDArray[np.float64]],
    near: NDArray[np.float64],
    known: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return discriminants of each family of orders, and of all orders, from other sentences.

    They are linear, with a shared covariance. On each, a near miss scores 0 and an order of its
    family 1, on average. The arguments are sums for each family of orders, for near misses, and for
    candidates of the knowledge base; shape (n_discriminants, n_columns + 1), the bias first.
    """
    usual = [(near, OF_NEAR)] + ([] if known is None or not known[0, 0] else [(known, OF_KNOWN)])
    whole = sum(weight for _, weight in usual)
    shares = [(sums[0, 0], sums, weight / whole) for sums, weight in usual]
    rest = np.sum([sums[0, 1:] / n * share for n, sums, share in shares], axis=0)
    products = np.sum([sums[1:, 1:] * (share / n) for n, sums, share in shares], axis=0)
    means = [sums[0, 1:] / sums[0, 0] for sums in orders]
    within = np.mean(
        [
            sums[1:, 1:] / sums[0, 0] - np.outer(mean, mean)
            for sums, mean in zip(orders, means, strict=True)
        ],
        axis=0,
    )
    covariance = (1 - OF_ORDERS) * (products - np.outer(rest, rest)) + OF_ORDERS * within
    every = np.sum([sums[0] for sums in orders], axis=0)
    apart = np.array([*means, every[1:] / every[0]]) - rest
    each = np.linalg.solve(covariance + RIDGE * np.eye(len(rest)), apart.T).T
    low = each @ (near[0, 1:] / near[0, 0])
    unit = np.maximum(np.einsum("fc,fc->f", each, apart + rest) - low, 1e-9)
    return np.asarray(np.column_stack([-low, each]) / unit[:, None])


def highest(weights: NDArray[np.float64], rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the highest score of each row by some discriminants, shape (n_rows,)."""
    return np.asarray((rows @ weights[:, 1:].T + weights[:, 0]).max(axis=1), dtype=np.float64)


def told_apart(scores: NDArray[np.float64], orders: NDArray[np.bool_]) -> float:
    """Return the area under the curve: the probability that an order outscores another sentence.

    Examples
    --------
    >>> told_apart(np.array([0.1, 0.2, 0.9]), np.array([False, False, True]))
    1.0
    """
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    n = int(orders.sum())
    return float((ranks[orders].sum() - n * (n + 1) / 2) / max(1, n * (len(scores) - n)))


def _by_vectors(
    vectors: NDArray[np.float32], orders: NDArray[np.bool_], among: NDArray[np.bool_]
) -> NDArray[np.float64]:
    scaled = vectors * np.float32(SPREAD)
    weights = discriminants([sums_of(scaled[orders & among])], sums_of(scaled[~orders & among]))
    weights[:, 1:] *= SPREAD
    return weights


def cross_validated(vectors: NDArray[np.float32], orders: NDArray[np.bool_]) -> float:
    """Return the area under the curve for held-out sentences, with vectors alone."""
    fold = np.random.default_rng(SEED).integers(0, N_FOLDS, len(vectors))
    scores = np.zeros(len(vectors))
    for part in range(N_FOLDS):
        held = fold == part
        scores[held] = highest(_by_vectors(vectors, orders, ~held), vectors[held])
    return told_apart(scores, orders)


class OrderModel:
    """An embedding model's view of orders: its vectors of the corpus.

    It has the vectors and the area under the curve of the languages in which the model tells orders
    apart; of no language if it does not do so in English.
    """

    def __init__(
        self, vectors: NDArray[np.float16], languages: Mapping[str, float], told: float
    ) -> None:
        self.vectors, self.languages, self.told = vectors, dict(languages), told
        self.means: dict[str | None, NDArray[np.float32]] = {}
        own = np.isin(_columns()[1], list(languages))
        orders, spoken, families = _columns()
        self.orders, self.spoken, families = orders[own], spoken[own], families[own]
        given = vectors.astype(np.float32)
        # The vectors of many models mostly encode the language, which is subtracted.
        self.means |= {name: given[self.spoken == name].mean(axis=0) for name in languages}
        if len(given):
            self.means[None] = given.mean(axis=0)
            spread = np.sqrt((self._centred(given, self.spoken.tolist()) ** 2).sum(axis=1).mean())
            self.scale = SPREAD / max(float(spread), 1e-6)
            self.rows = self.joined(given, _corpus_moods()[own], self.spoken.tolist())
            english = self.spoken == "en"
            self._english = self._sums(families, english)
            self._every = self._sums(families, np.ones_like(english))

    def _sums(
        self, families: NDArray[np.str_], among: NDArray[np.bool_]
    ) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """Return the sums of each family of orders, and of near misses."""
        orders = self.orders & among
        names = sorted(set(families[orders].tolist()))
        found = [sums_of(self.rows[orders & (families == name)]) for name in names]
        return found, sums_of(self.rows[~self.orders & among])

    @classmethod
    def of(cls, embed: Embed) -> Self:
        """Embed the corpus, and measure the embedding model with it."""
        orders, spoken, _ = _columns()
        vectors, english = embedded(embed, [each.text for each in corpus()]), spoken == "en"
        told = cross_validated(vectors[english], orders[english])
        languages = {"en": told} if told >= TELLS else {}
        weights = _by_vectors(vectors, orders, english)
        for language in dict.fromkeys(spoken[~english].tolist()) if languages else ():
            own = spoken == language
            there = told_apart(highest(weights, vectors[own]), orders[own])
            if there >= TELLS:
                languages[language] = there
        kept = np.isin(spoken, list(languages))
        return cls(vectors[kept].astype(np.float16), languages, told)

    def joined(
        self,
        vectors: NDArray[np.float32],
        of_moods: NDArray[np.float32],
        languages: Sequence[str | None],
    ) -> NDArray[np.float32]:
        """Return rows for the discriminants, shape (n, dim + n_features)."""
        scaled = self._centred(vectors, languages) * np.float32(self.scale)
        return np.hstack([scaled, of_moods]).astype(np.float32)

    def _centred(
        self, vectors: NDArray[np.float32], languages: Sequence[str | None]
    ) -> NDArray[np.float32]:
        means = [self.means.get(name, self.means[None]) for name in languages]
        return vectors - np.array(means, dtype=np.float32).reshape(len(means), -1)

    def fitted(self, known: NDArray[np.float64]) -> Head:
        """Return the head for a knowledge base, given the sums of its candidates."""
        english = discriminants(*self._english, known)
        others = discriminants(*self._every, known) if len(self.languages) > 1 else english
        high = {}
        for name in self.languages:
            rows = self.rows[~self.orders & (self.spoken == name)]
            high[name] = np.quantile(highest(english if name == "en" else others, rows), HIGH)
        return Head(english, others, {name: float(high[name] - high["en"]) for name in high})


class Head(NamedTuple):
    """Discriminants, and the lead of each language's near misses over the English ones.

    English has its own discriminants, because those of all languages fit each language less.
    """

    english: NDArray[np.float64]
    others: NDArray[np.float64]
    above: dict[str, float]

    def scores(
        self, rows: NDArray[np.float32], languages: Sequence[str | None]
    ) -> NDArray[np.float64]:
        """Return the score of each row; a row of an unknown language is judged as English."""
        spoken = np.array([name in {"en", None} for name in languages], dtype=np.bool_)
        scores = np.zeros(len(rows))
        scores[spoken] = highest(self.english, rows[spoken])
        above = [max(0.0, self.above.get(name or "en", 0.0)) for name in languages]
        scores[~spoken] = highest(self.others, rows[~spoken])
        return scores - np.where(spoken, 0.0, np.array(above, dtype=np.float64))


def embedded(embed: Embed, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return unit vectors of texts, shape (n_texts, dim); raise if the model returns others."""
    given = np.asarray(embed(list(texts)), dtype=np.float32)
    if given.ndim != 2 or len(given) != len(texts) or not np.isfinite(given).all():  # noqa: PLR2004
        msg = (
            f"the embedding model returned an array of shape {given.shape} for {len(texts)} "
            "sentences, expected one finite vector for each; give use_embedder a function from a "
            "list of texts to their vectors."
        )
        raise ValueError(msg)
    lengths = np.linalg.norm(given, axis=1, keepdims=True)
    return np.asarray(given / np.maximum(lengths, 1e-12), dtype=np.float32)
