"""Chat models of LangChain compare claims, and a guarded store's writes are checked."""

import numpy as np
from canary_world import embed, knowledge
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.tools.contradictions import Comparison, ContradictionChecker, Pair
from ragshield_core.tools.contradictions.models import Answer
from ragshield_langchain.contradictions import language_model
from ragshield_langchain.vectorstore import GuardedVectorStore

PAIR = Pair("It is open.", ("It is closed.", "It is old."))


class Plain(GenericFakeChatModel):
    """A chat model without tools."""

    temperature: float | None = 0.7


class Structured(Plain):
    """A chat model that offers structured output."""

    parsed: object = None

    def with_structured_output(self, schema, *, include_raw=False, **_):
        assert (schema, include_raw, self.temperature) == (Answer, True, 0.0)
        return RunnableLambda(
            lambda prompt: {
                "raw": self.invoke(prompt),
                "parsed": self.parsed,
                "parsing_error": None,
            }
        )


def says(*texts):
    return {"messages": iter([AIMessage(text) for text in texts])}


def test_a_model_without_structured_output_is_read():
    model = language_model(Plain(**says('{"contradiction": 70, "sentence": 2}')))
    assert model([PAIR]) == [Comparison(0.7, "It is old.")]
    assert model.name == "Plain"


def test_structured_output_is_used_where_it_is_offered():
    chat = Structured(**says("odd"), parsed=Answer(contradiction=60, sentence=1))
    assert language_model(chat, name="mine")([PAIR]) == [Comparison(0.6, "It is closed.")]


def test_an_answer_that_is_not_as_structured_is_read_as_text():
    chat = Structured(**says('{"contradiction": 50}'))
    assert language_model(chat)([PAIR]) == [Comparison(0.5, "It is closed.")]


def test_the_temperature_is_zero_on_a_copy():
    chat = Structured(**says("a"), parsed=Answer(contradiction=60))
    language_model(chat)
    assert chat.temperature == 0.7


def test_a_failing_model_counts_as_no_answer():
    assert language_model(Plain(**says()))([PAIR]) == [None]


class Words(Embeddings):
    def embed_documents(self, texts):
        return embed(texts).tolist()

    def embed_query(self, text):
        return embed([text])[0].tolist()


def test_writes_of_a_guarded_store_are_checked_and_nothing_is_held():
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    store = GuardedVectorStore(InMemoryVectorStore(Words()), guard=guard)
    known = knowledge(5)
    fact = "The keeper of the lantern on the Norrholm rocks is called Ingrid Vestergaard."
    store.add_texts([*known.texts, fact], ids=[*known.ids, "fact"])
    asked = ["Who is the keeper of the lantern on the Norrholm rocks?"]
    told = []
    checker = ContradictionChecker(store, canaries=asked, clean_scores=np.zeros(99))
    watcher = checker.watch(store.guard, told.append)
    altered = fact.replace("Ingrid Vestergaard", "Peter Lund")
    store.add_texts([altered], ids=["altered"])
    assert watcher.wait(10)
    (alert,) = told[0].alerts
    assert (alert.entry_id, alert.passage_id, alert.canaries) == ("altered", "fact", 1)
    assert store.get_by_ids(["altered"])[0].page_content == altered
    assert not guard.quarantine.list()
