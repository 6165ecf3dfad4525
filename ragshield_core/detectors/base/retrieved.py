"""Retrieved passages with their query, and the kind of detector that judges them."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base import Evidence, Need, Scope, Traits
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.text.copies import word_hashes

# Words of a passage that are read. No text has words this long on average: it is cut before its
# words are counted, so that a hostile text costs no more.
MAX_WORDS = 1_000
MAX_CHARACTERS = 16 * MAX_WORDS
# Invisible characters that split words: soft hyphen, zero-width, directions, tags.
_INVISIBLE = re.compile("[\xad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]")


@dataclass(frozen=True, kw_only=True, eq=False)
class RetrievedSet:
    """A query and the passages that were retrieved for it; build one with :meth:`of`.

    Parameters
    ----------
    query
        Text of the query; ``None`` or empty if there is none.
    vector
        The query's vector, shape (dim,), float32, of unit length; ``None`` if not known.
    passages
        In the order of retrieval, best first.
    has_vectors
        Whether the vectors of the passages are known; if not, ``passages.embeddings`` mean
        nothing.
    """

    query: str | None
    vector: NDArray[np.float32] | None
    passages: Batch
    has_vectors: bool = True

    @classmethod
    def of(
        cls,
        query: str | None,
        passages: Batch,
        vector: ArrayLike | None = None,
        *,
        has_vectors: bool = True,
    ) -> Self:
        """Build a set from a query vector of any length.

        Raises
        ------
        InvalidBatchError
            If the query's vector is not finite, zero, or has another dimension than those of the
            passages.
        """
        if vector is None or not has_vectors or not len(passages):
            return cls(query=query, vector=None, passages=passages, has_vectors=has_vectors)
        given = np.asarray(vector, dtype=np.float64)
        if given.shape != (passages.dim,):
            msg = (
                f"the query's vector has shape {given.shape}, expected ({passages.dim},) as the "
                "passages have; embed both with the same model."
            )
            raise InvalidBatchError(msg)
        norm = float(np.linalg.norm(given))
        if not np.isfinite(norm) or norm == 0.0:
            msg = (
                f"the query's vector has L2 norm {norm}, expected a direction; check what the "
                "embedding model returned for the query."
            )
            raise InvalidBatchError(msg)
        unit = (given / norm).astype(np.float32)
        return cls(query=query, vector=unit, passages=passages, has_vectors=has_vectors)

    def __len__(self) -> int:
        return len(self.passages)

    @cached_property
    def query_words(self) -> NDArray[np.uint32]:
        """Hashes of the words of the query, in order."""
        return _words(self.query or "")

    @cached_property
    def words(self) -> list[NDArray[np.uint32]]:
        """Hashes of the words of each passage, in order."""
        return [_words(text) for text in self.passages.texts]


def readable_beginning(text: str) -> str:
    """Return the beginning of a text as a person reads it."""
    cut = text[:MAX_CHARACTERS]
    if cut.isascii():
        return cut
    return _INVISIBLE.sub("", unicodedata.normalize("NFKC", cut))


def _words(text: str) -> NDArray[np.uint32]:
    """Return the word hashes of the beginning of a text, as a person reads it."""
    return word_hashes(readable_beginning(text))[:MAX_WORDS]


class RetrievalDetector(ABC):
    """Base class of detectors that judge passages by the query and by the other passages.

    Unlike a :class:`~ragshield_core.detectors.base.Detector` it learns no knowledge base: there is
    nothing to fit, and any thread may compute its score. Scores are evidence; higher is more
    suspicious.

    Attributes
    ----------
    name
        The name in findings and in a saved guard.
    needs
        The data that it requires.
    default_threshold
        Without a calibration, a score above it is suspicious.
    traits
        How the guard treats the detector.
    """

    name: str
    needs: ClassVar[frozenset[Need]]
    default_threshold: ClassVar[float]
    traits: Traits = Traits(scope=Scope.RETRIEVAL)

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again, JSON-ready."""
        return {}

    @abstractmethod
    def score(self, retrieved: RetrievedSet) -> NDArray[np.float64]:
        """Return one finite score per passage, shape (n_passages,); NaN where it has no opinion.

        Only called if :meth:`skip_reason` returns ``None``.
        """

    @abstractmethod
    def explain(self, retrieved: RetrievedSet, rows: Sequence[int]) -> list[Evidence]:
        """Return the evidence for the scores of the given passages."""

    def skip_reason(self, retrieved: RetrievedSet) -> str | None:
        """Return the reason if this detector cannot judge this set."""
        if Need.QUERY in self.needs and not retrieved.query:
            return "needs the text of the query"
        if Need.EMBEDDING in self.needs and not retrieved.has_vectors:
            return "needs the vectors of the passages, which are not known; give the guard embed="
        if Need.EMBEDDING in self.needs and retrieved.vector is None:
            return "needs the vector of the query, which is not known; give the guard embed_query="
        return None
