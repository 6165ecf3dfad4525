"""A language model of LlamaIndex that compares claims of new entries with standing passages."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import LLM

from ragshield_core.tools.contradictions.models import Answer, LanguageModel


def language_model(model: LLM, *, temperature: float | None = 0.0, **limits: Any) -> LanguageModel:
    """Return a language model as the ``model`` of a ``ContradictionChecker``.

    Parameters
    ----------
    model
        Any language model. It is asked for structured output if it calls functions.
    temperature
        Set on a copy of the model if it has this field; ``None`` leaves the model as it is.
    limits
        ``name``, ``calls_per_day`` and ``timeout`` of
        :class:`~ragshield_core.tools.contradictions.LanguageModel`.
    """
    if temperature is not None and "temperature" in type(model).model_fields:
        model = model.model_copy(update={"temperature": temperature})
    structured = (
        model.as_structured_llm(Answer) if model.metadata.is_function_calling_model else None
    )

    def ask(prompt: str) -> Any:
        if structured is None:
            return model.complete(prompt).text
        # A template would read the braces of the data as its own.
        return structured.chat([ChatMessage(role="user", content=prompt)]).raw

    return LanguageModel(ask, **{"name": type(model).__name__, **limits})
