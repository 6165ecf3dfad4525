"""The canaries' world for LlamaIndex."""

from canary_world import embed
from llama_index.core.base.embeddings.base import BaseEmbedding


class LlamaWords(BaseEmbedding):
    """The world's embedding as a LlamaIndex model."""

    def _get_query_embedding(self, query):
        return embed([query])[0].tolist()

    def _get_text_embedding(self, text):
        return embed([text])[0].tolist()

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)
