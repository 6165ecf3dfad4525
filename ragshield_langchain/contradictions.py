"""A chat model of LangChain that compares claims of new entries with standing passages."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

from ragshield_core.tools.contradictions.models import Answer, LanguageModel


def language_model(
    model: BaseChatModel, *, temperature: float | None = 0.0, **limits: Any
) -> LanguageModel:
    """Return a chat model as the ``model`` of a ``ContradictionChecker``.

    Parameters
    ----------
    model
        Any chat model. It is asked for structured output if it offers that.
    temperature
        Set on a copy of the model if it has this field; ``None`` leaves the model as it is.
    limits
        ``name``, ``calls_per_day`` and ``timeout`` of
        :class:`~ragshield_core.tools.contradictions.LanguageModel`.
    """
    if temperature is not None and "temperature" in type(model).model_fields:
        model = model.model_copy(update={"temperature": temperature})
    try:
        structured = model.with_structured_output(Answer, include_raw=True)
    except (NotImplementedError, ValueError):  # it has no tools
        structured = None

    def ask(prompt: str) -> Any:
        if structured is None:
            return model.invoke(prompt).text
        answer: Any = structured.invoke(prompt)
        return answer["parsed"] or answer["raw"].text

    return LanguageModel(ask, **{"name": type(model).__name__, **limits})
