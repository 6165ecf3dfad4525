"""What retrieves or answers, behind one interface each: of a framework, or a plain function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError
from ragshield_core.model.findings import printable
from ragshield_core.tools.canary.frameworks import by_framework
from ragshield_core.tools.canary.knowledge_base import FunctionKnowledgeBase, KnowledgeBase
from ragshield_core.tools.canary.matrix import MatrixRetriever

# Names of a function's second parameter where it takes more than a query.
PLACES = ("k", "top_k", "n", "n_results", "limit", "similarity_top_k")
TEXTS = ("texts", "passages", "contexts", "context", "documents")
# Keys under which programs return what they answer, and attributes that hold its text.
ANSWER_KEYS = ("answer", "result", "output", "response", "text")
TEXT_NAMES = ("content", "response", "text")


def as_knowledge_base(source: Any) -> KnowledgeBase:
    """Return the interface to anything that retrieves.

    Parameters
    ----------
    source
        A :class:`KnowledgeBase`; a vector store or retriever of LangChain, an index, retriever or
        query engine of LlamaIndex; a batch; or a function of a query, or of a query and k, that
        returns passages, documents, nodes, dicts, pairs of an id and a text, or texts.

    Raises
    ------
    CanaryError
        If it is none of these.
    """
    if isinstance(source, type):
        msg = f"retriever is the class {source.__name__}, expected an instance of it."
        raise CanaryError(msg)
    if isinstance(source, KnowledgeBase):
        return source
    if isinstance(source, Batch):
        return MatrixRetriever(source)
    found = by_framework(source, lambda framework: framework.knowledge_base(source))
    if found is not None:
        return found
    if callable(source):
        if takes_two(source, PLACES):
            return FunctionKnowledgeBase(source)
        return FunctionKnowledgeBase(lambda query, _k: source(query))
    msg = (
        f"retriever is a {type(source).__name__}, expected a LangChain vector store or retriever, "
        "a LlamaIndex index or retriever, a function of a query, or a subclass of "
        "ragshield_core.tools.canary.KnowledgeBase."
    )
    raise CanaryError(msg)


def as_answerer(source: Any) -> Callable[[str, list[str]], str]:
    """Return the interface to anything that answers: a function of a query and of passages.

    Parameters
    ----------
    source
        A LangChain ``Runnable``, a LlamaIndex query engine, or a function of a query, or of a query
        and the texts retrieved for it.

    Raises
    ------
    CanaryError
        If it is none of these.
    """
    found = by_framework(source, lambda framework: framework.answerer(source))
    if found is not None:
        return _answerer(found)
    if callable(source):
        if takes_two(source, TEXTS):
            return lambda query, texts: answer_text(source(query, texts))
        return _answerer(source)
    msg = (
        f"answerer is a {type(source).__name__}, expected a LangChain Runnable, a LlamaIndex query "
        "engine, or a function of a query (and of the texts retrieved for it)."
    )
    raise CanaryError(msg)


def _answerer(ask: Callable[[str], Any]) -> Callable[[str, list[str]], str]:
    return lambda query, _texts: answer_text(ask(query))


def answer_text(answer: Any) -> str:
    """Return the text of what an answerer returned.

    Raises
    ------
    CanaryError
        If it is a mapping without an answer: an empty one would be the same at every check.
    """
    if isinstance(answer, Mapping):
        found = [answer[key] for key in ANSWER_KEYS if key in answer]
        if not found:
            msg = (
                f"the answerer returned a mapping with {printable(str(sorted(map(str, answer))))}, "
                f"expected one of {', '.join(ANSWER_KEYS)}; return the text of the answer."
            )
            raise CanaryError(msg)
        answer = found[0]
    for name in TEXT_NAMES:  # a message's content may be a list of blocks
        value = getattr(answer, name, None)
        if isinstance(value, str):
            return value.strip()
    return str(answer).strip()


def takes_two(function: Callable[..., Any], names: Collection[str]) -> bool:
    """Return whether a function has a second parameter that it needs, or that has such a name.

    Others are options, such as a configuration.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [p for p in parameters if p.kind in kinds][1:2]
    return any(p.default is inspect.Parameter.empty or p.name in names for p in second)
