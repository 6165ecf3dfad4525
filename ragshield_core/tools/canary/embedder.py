"""Embedding models of any kind, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.errors import CanaryError
from ragshield_core.tools.canary.frameworks import by_framework

Vectors = NDArray[np.float32]

# Texts whose vectors tell whether the embedder is still the same: short, long, and not English.
PROBES = (
    "canary",
    "What was paid back, to whom, and why did it take 14 days?",
    "Der Fluss tritt im Frühjahr über die Ufer.",
)


class Embedder:
    """One embedding model, of whichever kind; :meth:`of` finds out which.

    Parameters
    ----------
    queries, documents
        Functions of a list of texts that return one vector each.
    """

    def __init__(
        self,
        queries: Callable[[list[str]], ArrayLike],
        documents: Callable[[list[str]], ArrayLike],
    ) -> None:
        self._queries = queries
        self._documents = documents

    @classmethod
    def of(cls, model: Any) -> Embedder:
        """Return the interface to a model.

        Parameters
        ----------
        model
            An embedding model of LangChain or LlamaIndex, or a function from a list of texts to one
            vector each.

        Raises
        ------
        CanaryError
            If it is none of these.
        """
        if isinstance(model, Embedder):
            return model
        found = by_framework(model, lambda framework: framework.embedder(model))
        if found is not None:
            return found
        if callable(model):
            return cls(model, model)
        msg = (
            f"embedder is a {type(model).__name__}, expected a LangChain or LlamaIndex embedding "
            "model, or a function from a list of texts to vectors."
        )
        raise CanaryError(msg)

    def queries(self, texts: Sequence[str], *, unit: bool = True) -> Vectors:
        """Return vectors of queries, shape (n_texts, dim).

        Of unit length; or as the model gave them, which is what stores that compare distances want
        to be asked with.
        """
        vectors = _matrix(self._queries(list(texts)), len(texts))
        return unit_vectors(vectors, len(texts)) if unit else vectors

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors of texts, shape (n_texts, dim)."""
        return unit_vectors(self._documents(list(texts)), len(texts))


def unit_vectors(given: ArrayLike, n: int) -> Vectors:
    """Return n vectors as rows of unit length; zeros stay zeros.

    Raises
    ------
    CanaryError
        If they are not n vectors of finite values.
    """
    vectors = _matrix(given, n)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def _matrix(given: ArrayLike, n: int) -> Vectors:
    vectors = np.asarray(given, dtype=np.float32) if n else np.empty((0, 0), "f4")
    if vectors.ndim != 2 or len(vectors) != n:  # noqa: PLR2004 - a matrix
        msg = (
            f"the embedder returned an array of shape {vectors.shape} for {n} texts, expected "
            f"({n}, dim)."
        )
        raise CanaryError(msg)
    if not np.isfinite(vectors).all():
        msg = "the embedder returned values that are not finite; check the model."
        raise CanaryError(msg)
    return vectors
