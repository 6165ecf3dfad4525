"""Whatever retrieves, answers or embeds, known by its methods."""

from types import SimpleNamespace

import numpy as np
import pytest
from canary_world import embed

from ragshield_core import Batch
from ragshield_core.canary import CanaryError
from ragshield_core.canary.retrievers import (
    Embedder,
    as_answerer,
    as_passage,
    as_retriever,
    embedder_of,
)


def document(text="text", entry_id="a", **metadata):
    return SimpleNamespace(page_content=text, id=entry_id, metadata=metadata)


def node(text="text", entry_id="n"):
    inner = SimpleNamespace(
        node_id=entry_id, get_content=lambda: text, metadata={"page": 1}, ref_doc_id="doc"
    )
    return SimpleNamespace(node=inner, score=0.5)


@pytest.mark.parametrize(
    ("item", "entry_id", "lineage"),
    [
        (document(), "a", None),
        (document(source="f.txt"), "a", "f.txt"),
        ((document(), 0.3), "a", None),
        (document(entry_id=None, chunk_id="c"), "c", None),
        (node(), "n", "doc"),
        ({"id": "d", "text": "text", "lineage": "l"}, "d", "l"),
        (("e", "text"), "e", None),
    ],
)
def test_what_is_retrieved_becomes_a_passage(item, entry_id, lineage):
    passage = as_passage(item)
    assert (passage.id, passage.text, passage.lineage) == (entry_id, "text", lineage)


def test_without_an_id_the_text_names_the_passage():
    assert as_passage("x").id == as_passage(document("x", None)).id != as_passage("y").id


@pytest.mark.parametrize("item", [3, {"id": "a"}, document(text=None)])
def test_what_holds_no_text_is_refused(item):
    with pytest.raises(CanaryError, match="text"):
        as_passage(item)


@pytest.mark.parametrize(
    "source",
    [
        lambda query: [document(query, str(n)) for n in range(5)],
        lambda query, k: [document(query, str(n)) for n in range(k)],
        lambda query, k=4: [document(query, str(n)) for n in range(k)],
        SimpleNamespace(invoke=lambda query: [document(query, str(n)) for n in range(5)]),
        SimpleNamespace(retrieve=lambda query: [node(query, str(n)) for n in range(5)]),
        SimpleNamespace(
            as_retriever=lambda similarity_top_k: SimpleNamespace(
                retrieve=lambda query: [node(query, str(n)) for n in range(similarity_top_k)]
            )
        ),
        SimpleNamespace(
            similarity_search=lambda query, k: [document(query, str(n)) for n in range(k)],
            search=print,  # LangChain has one, of another kind
        ),
    ],
)
def test_every_kind_of_retriever(source):
    found = as_retriever(source).search(["one", "two"], None, 3)
    assert [[p.id for p in passages] for passages in found] == [["0", "1", "2"]] * 2
    assert [passages[0].text for passages in found] == ["one", "two"]


def test_a_store_that_cannot_search_by_vector_is_asked_by_text():
    def refuse(*_args, **_options):
        raise NotImplementedError

    store = SimpleNamespace(
        similarity_search=lambda query, k: [document(query)][:k],
        similarity_search_by_vector=refuse,
    )
    found = as_retriever(store).search(["one", "two"], np.ones((2, 3), dtype=np.float32), 1)
    assert [p[0].text for p in found] == ["one", "two"]


def test_a_batch_is_a_retriever():
    batch = Batch.of(ids=["a", "b"], texts=["x", "y"], embeddings=[[1.0, 0.0], [0.0, 1.0]])
    retriever = as_retriever(batch)
    assert retriever.size() == 2
    assert retriever.search(["q"], np.array([[0.1, 1.0]], dtype=np.float32), 1)[0][0].id == "b"


@pytest.mark.parametrize(
    "source",
    [
        lambda query: f"to {query}",
        lambda query, texts: f"to {query}" if texts == ["t"] else "",
        SimpleNamespace(invoke=lambda query: SimpleNamespace(content=f"to {query}")),
        SimpleNamespace(invoke=lambda query: {"answer": f" to {query} "}),
        SimpleNamespace(query=lambda query: SimpleNamespace(response=f"to {query}")),
    ],
)
def test_every_kind_of_answerer(source):
    assert as_answerer(source)("q", ["t"]) == "to q"


def test_every_kind_of_embedder():
    langchain = SimpleNamespace(
        embed_query=lambda _text: [0.0, 2.0],
        embed_documents=lambda texts: [[3.0, 0.0]] * len(texts),
    )
    llamaindex = SimpleNamespace(
        get_query_embedding=lambda _text: [0.0, 2.0],
        get_text_embedding_batch=lambda texts: [[3.0, 0.0]] * len(texts),
    )
    for model in (langchain, llamaindex):
        embedder = Embedder.of(model)
        assert embedder.queries(["a", "b"]).tolist() == [[0.0, 1.0]] * 2
        assert embedder.documents(["a"]).tolist() == [[1.0, 0.0]]
    assert Embedder.of(embed).queries(["a"]).shape == (1, 512)


def test_the_embedder_is_found_where_a_retriever_carries_it():
    model = object()
    assert embedder_of(SimpleNamespace(embeddings=model)) is model
    assert embedder_of(SimpleNamespace(_embed_model=model)) is model
    assert embedder_of(SimpleNamespace(vectorstore=SimpleNamespace(embeddings=model))) is model
    assert embedder_of(lambda query: query) is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: as_retriever(3), "retriever is a int"),
        (lambda: as_answerer(3), "answerer is a int"),
        (lambda: Embedder.of(3), "embedder is a int"),
        (lambda: Embedder.of(lambda _texts: [[np.nan]]).queries(["a"]), "not finite"),
    ],
)
def test_what_is_of_no_kind_is_refused(make, said):
    with pytest.raises(CanaryError, match=said):
        make()


def test_options_of_a_function_are_no_places_and_no_texts():
    def search(query, config=None):
        assert config is None
        return [query]

    def answer(query, config=None):
        assert config is None
        return query

    assert as_retriever(search).search(["one"], None, 3)[0][0].text == "one"
    assert as_answerer(answer)("one", ["t"]) == "one"


def test_a_document_s_id_is_none_of_a_chunk():
    chunks = [as_passage(document(text, None, doc_id="report")) for text in ("one", "two")]
    assert chunks[0].id != chunks[1].id
    assert chunks[0].lineage == chunks[1].lineage == "report"


def test_a_batch_s_vectors_are_no_model():
    batch = Batch.of(ids=["a"], texts=["x"], embeddings=[[1.0, 0.0]])
    assert embedder_of(batch) is None


@pytest.mark.parametrize("embeddings", [[[1.0, 0.0]], None])
def test_vectors_of_another_dimension_are_named(embeddings):
    retriever = as_retriever(Batch.of(ids=["a"], texts=["x"], embeddings=embeddings))
    with pytest.raises(CanaryError, match="dimension 3"):
        retriever.search(["q"], np.ones((1, 3), dtype=np.float32), 1)


def test_an_empty_batch_gives_nothing():
    empty = Batch.of(ids=[], texts=[], embeddings=None)
    assert as_retriever(empty).search(["q"], np.ones((1, 3), dtype=np.float32), 6) == [[]]


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "to q"},
        {"output": SimpleNamespace(content="to q")},
        SimpleNamespace(content=[{"type": "text", "text": "to q"}], text="to q"),
    ],
)
def test_answers_of_chains_and_messages(answer):
    assert as_answerer(lambda _query: answer)("q", []) == "to q"


def test_a_mapping_without_an_answer_is_refused():
    """An empty answer would be the same at every check, whatever the application says."""
    with pytest.raises(CanaryError, match=r"'messages'.*expected one of answer"):
        as_answerer(lambda _query: {"messages": []})("q", [])


@pytest.mark.parametrize("shape", [(2, 8), (4,), (4, 2, 2)])
def test_one_vector_per_text_is_expected(shape):
    with pytest.raises(CanaryError, match="4 texts"):
        Embedder.of(lambda _texts: np.ones(shape)).queries(["a", "b", "c", "d"])


def test_a_model_that_takes_several_queries_is_asked_once():
    asked = []

    class Model:
        def embed_documents(self, texts):
            return [[1.0, 0.0] for _ in texts]

        def embed_query(self, text):
            raise AssertionError(text)

        def embed_queries(self, texts):
            asked.append(texts)
            return [[0.0, 2.0] for _ in texts]

    assert Embedder.of(Model()).queries(["a", "b"]).tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert asked == [["a", "b"]]
