"""An embedding model of LangChain that knows the vectors of some texts, and makes none."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from ragshield_core import Batch


class LookedUp(Embeddings):
    """Vectors that were made before, by text.

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
