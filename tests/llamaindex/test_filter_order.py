"""The place of a PoisonFilter among other steps, wherever LlamaIndex takes a list of them."""

import warnings

import pytest
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownElementNodeParser
from llama_index.core.postprocessor import (
    AutoPrevNextNodePostprocessor,
    LLMRerank,
    LongContextReorder,
    PrevNextNodePostprocessor,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import CitationQueryEngine, RetrieverQueryEngine
from llama_index.core.schema import TextNode
from llama_index.core.tools import QueryEngineTool, RetrieverTool
from llama_support import guard_of
from pydantic import PrivateAttr

from ragshield_core.detectors import InstructionDetector
from ragshield_llamaindex import (
    GuardedRetriever,
    GuardedVectorStoreIndex,
    PoisonFilter,
    PoisonFilterOrderWarning,
    PoisonGuard,
    PoisonGuardOrderWarning,
    check_order,
    check_transformations,
    guarded_tools,
)

MODEL = MockEmbedding(embed_dim=8)
LLM = MockLLM(max_tokens=2)
QUESTION = "When does the ferry leave?"


class Judge(BaseNodePostprocessor):
    """A reranker of one's own, which keeps its model under a name of its own."""

    judge: MockLLM

    def _postprocess_nodes(self, nodes, _query_bundle=None):
        for one in nodes:
            self.judge.complete(one.node.text)
        return nodes


class SecretJudge(Judge):
    judge: MockLLM | None = None
    _model: MockLLM = PrivateAttr(default_factory=lambda: LLM)

    def _postprocess_nodes(self, nodes, _query_bundle=None):
        return nodes


class Footnotes(BaseNodePostprocessor):
    """Puts text from elsewhere into nodes."""

    def _postprocess_nodes(self, nodes, _query_bundle=None):
        for one in nodes:
            one.node.set_content(f"{one.node.text} (From elsewhere.)")
        return nodes


@pytest.fixture
def index():
    return VectorStoreIndex([TextNode(text="The ferry leaves at nine.")], embed_model=MODEL)


def told(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(one.message) for one in caught if one.category is PoisonFilterOrderWarning]


def chat(kind):
    def ask(index, steps):
        engine = kind.from_defaults(index.as_retriever(), llm=LLM, node_postprocessors=steps)
        return lambda: engine.chat(QUESTION)

    return ask


def cited(index, steps):
    engine = CitationQueryEngine.from_args(index, llm=LLM, node_postprocessors=steps)
    return lambda: engine.query(QUESTION)


def queried(index, steps):
    engine = index.as_query_engine(llm=LLM, node_postprocessors=steps)
    return lambda: engine.query(QUESTION)


ASK = {
    "query": queried,
    "citations": cited,
    "chat": chat(ContextChatEngine),
    "condensing chat": chat(CondensePlusContextChatEngine),
}


@pytest.mark.parametrize("ask", ASK.values(), ids=ASK)
def test_both_sides_of_a_filter_are_looked_at_wherever_steps_are_given(ask, index):
    work = ask(index, [LLMRerank(llm=LLM), PoisonFilter(), Footnotes()])
    before, after = told(work)
    assert "LLMRerank runs before the PoisonFilter" in before
    assert "Footnotes runs after the PoisonFilter" in after
    assert told(work) == []  # said once
    steps = [Footnotes(), PoisonFilter(), LLMRerank(llm=LLM), SimilarityPostprocessor()]
    assert told(ask(index, steps)) == []


def test_a_user_who_makes_the_warning_an_error_gets_it_at_every_call(index):
    work = queried(index, [PoisonFilter(), Footnotes()])
    with warnings.catch_warnings():
        warnings.simplefilter("error", PoisonFilterOrderWarning)
        for _ in range(2):
            with pytest.raises(PoisonFilterOrderWarning):
                work()


@pytest.mark.parametrize("step", [Judge(judge=LLM), SecretJudge(), "settings"])
def test_a_model_is_found_under_any_name(step, index):
    if step == "settings":  # the model that LlamaIndex takes where none is given
        step = AutoPrevNextNodePostprocessor(docstore=index.docstore)
    with pytest.warns(PoisonFilterOrderWarning, match="runs before the PoisonFilter"):
        assert not check_order([step, PoisonFilter()])


def test_a_parser_reads_tables_with_the_model_of_the_settings():
    steps = [MarkdownElementNodeParser(), PoisonGuard(guard_of(InstructionDetector()))]
    with pytest.warns(PoisonGuardOrderWarning, match="MarkdownElementNodeParser runs before"):
        assert not check_transformations(steps)


def test_steps_that_choose_or_sort_may_stand_anywhere():
    for step in (SimilarityPostprocessor(), LongContextReorder()):
        assert check_order([step, PoisonFilter(), step])


def test_steps_behind_a_guarded_retriever_are_looked_at(index):
    def asked(*steps):
        retriever = GuardedRetriever(index)
        engine = RetrieverQueryEngine.from_args(retriever, llm=LLM, node_postprocessors=list(steps))
        return told(lambda: engine.query(QUESTION))

    around = PrevNextNodePostprocessor(docstore=index.docstore)
    (warning,) = asked(around, Footnotes())
    assert "PrevNextNodePostprocessor, Footnotes runs after the PoisonFilter" in warning
    assert asked() == asked(LLMRerank(llm=LLM)) == asked(around, PoisonFilter()) == []
    assert asked(LLMRerank(llm=LLM), PoisonFilter()) == []  # it reads what was judged


def test_guarded_tools_look_at_the_steps_before_them(index):
    def made(steps, kind=RetrieverTool):
        if kind is RetrieverTool:
            bare = RetrieverTool.from_defaults(index.as_retriever(), node_postprocessors=steps)
        else:
            engine = index.as_query_engine(llm=LLM, node_postprocessors=steps)
            bare = QueryEngineTool.from_defaults(engine, name="ask")
        return told(lambda: guarded_tools([bare]))

    (warning,) = made([LLMRerank(llm=LLM)])
    assert "LLMRerank runs before the PoisonFilter" in warning
    assert made([PoisonFilter(), LLMRerank(llm=LLM)]) == made([Footnotes()]) == made([]) == []
    (warning,) = made([], QueryEngineTool)
    assert "the model of tool 'ask' reads passages that were not judged" in warning
    assert made([PoisonFilter()], QueryEngineTool) == []


def test_a_model_may_read_nodes_of_a_guarded_index(index):
    guarded = GuardedVectorStoreIndex([], guard=guard_of(InstructionDetector()), embed_model=MODEL)
    guarded.insert_nodes([TextNode(text="The ferry leaves at nine.")])
    steps = [LLMRerank(llm=LLM), PoisonFilter()]
    assert told(queried(guarded, steps)) == []
    assert len(told(queried(index, steps))) == 1


def test_an_engine_over_guarded_nodes_needs_no_filter(index):
    guarded = GuardedVectorStoreIndex([], guard=guard_of(InstructionDetector()), embed_model=MODEL)
    engines = [
        guarded.as_query_engine(llm=LLM),
        RetrieverQueryEngine.from_args(GuardedRetriever(index), llm=LLM),
    ]
    tools = [QueryEngineTool.from_defaults(engine) for engine in engines]
    assert told(lambda: guarded_tools(tools)) == []
