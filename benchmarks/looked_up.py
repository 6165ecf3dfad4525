"""LangChain embedding model that looks up the vectors of known texts."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from ragshield_core import Batch


class LookedUp(Embeddings):
    """Embedding model with the given vectors of texts.

    Parameters
    ----------
    batches
        Texts with their vectors.
    """

    def __init__(self, *batches: Batch) -> None:
        self._vectors: dict[str, list[float]] = {}
        for batch in batches:
            self._vectors |= zip(batch.texts, batch.vectors.tolist(), strict=True)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts."""
        return [self._vectors[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text."""
        return self._vectors[text]
