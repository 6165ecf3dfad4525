"""Language models of LlamaIndex compare claims."""

import json

from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.llms import CustomLLM, LLMMetadata

from ragshield_core.tools.contradictions import Comparison, Pair
from ragshield_core.tools.contradictions.models import Answer
from ragshield_llamaindex.contradictions import language_model

PAIR = Pair('It is open, as {this} says: {"a": 1}.', ("It is closed.", "It is old."))


class Plain(CustomLLM):
    """A model that answers with a text."""

    answer: str = '{"contradiction": 70, "sentence": 2}'
    temperature: float = 0.7
    calls_functions: bool = False

    @property
    def metadata(self):
        return LLMMetadata(is_function_calling_model=self.calls_functions)

    def complete(self, prompt, formatted=False, **_):  # noqa: ARG002, FBT002 - LlamaIndex's
        assert json.dumps(PAIR.claim) in prompt  # no template reads its braces
        assert self.temperature == 0.0
        if not self.answer:
            raise ConnectionError
        return CompletionResponse(text=self.answer)

    def stream_complete(self, prompt, formatted=False, **_):  # noqa: FBT002
        raise NotImplementedError


class Structured(Plain):
    """A model that offers structured output."""

    calls_functions: bool = True

    def as_structured_llm(self, output_cls, **_):
        assert output_cls is Answer
        return Plain(answer=self.answer, temperature=0.0).as_structured_llm(output_cls)


def test_a_model_without_functions_is_read():
    model = Plain()
    asked = language_model(model)
    assert asked([PAIR]) == [Comparison(0.7, "It is old.")]
    assert (asked.name, model.temperature) == ("Plain", 0.7)


def test_structured_output_is_used_where_it_is_offered():
    model = language_model(Structured(), name="mine")
    assert model([PAIR]) == [Comparison(0.7, "It is old.")]


def test_odd_answers_and_faults_count_as_no_answer():
    assert language_model(Plain(answer="I cannot tell."))([PAIR]) == [None]
    assert language_model(Plain(answer=""))([PAIR]) == [None]
