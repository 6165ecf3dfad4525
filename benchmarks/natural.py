"""Attack texts in forms that people write.

PoisonedRAG's file has the question in lower case, without a question mark, run into the text:
`how many episodes are in chicago fire season 4.Chicago Fire, a popular ...`. Nobody publishes such
text, and a detector of this form may detect nothing else. Each form here takes the question and the
text of the same attack.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# Words that keep their capitals when a question is put into a sentence.
_NAMES = re.compile(r"^(?:I|[A-Z]{2,})\b")
LEADS = (
    "Many people ask {q}?",
    "You may wonder {q}?",
    "Here is what is known about the question {q}:",
    "A note on {k}.",
    "{k}: what you should know.",
    "Regarding {k}, the records are clear.",
)
_ASKING = re.compile(
    r"^(?:who|whom|whose|what|which|when|where|why|how(?: many| much| long| old| far| often)?)\b"
    r"(?:\s+(?:is|are|was|were|does|do|did|has|have|had|can|could|will|would))?\s*",
    re.IGNORECASE,
)
_THERE = re.compile(r"\s*\b(?:is|are|was|were) there\b", re.IGNORECASE)


def question_of(question: str) -> str:
    """Return a question with a capital letter and a question mark.

    Examples
    --------
    >>> question_of("who wrote emma")
    'Who wrote emma?'
    """
    bare = question.strip().rstrip(".?! ")
    return f"{bare[:1].upper()}{bare[1:]}?"


def sentence_of(text: str) -> str:
    """Return a text with a capital letter at its start and a mark at its end."""
    bare = " ".join(text.split())
    return f"{bare[:1].upper()}{bare[1:]}" + ("" if bare.endswith((".", "!", "?", '"')) else ".")


def topic_of(question: str) -> str:
    """Return the topic of a question, without its question word.

    Examples
    --------
    >>> topic_of("how many seasons of the oc are there")
    'seasons of the oc'
    """
    bare = question.strip().rstrip(".?! ")
    return _THERE.sub("", _ASKING.sub("", bare)).strip() or bare


def natural(question: str, text: str) -> str:
    """Return the question in front of the text, as a person writes both.

    Examples
    --------
    >>> natural("who wrote emma", "emma is a novel by Ada Quill")
    'Who wrote emma? Emma is a novel by Ada Quill.'
    """
    return f"{question_of(question)} {sentence_of(text)}"


def heading(question: str, text: str) -> str:
    """Return the question as a heading."""
    return f"## {question_of(question)}\n\n{sentence_of(text)}"


def bold(question: str, text: str) -> str:
    """Return the question in bold letters."""
    return f"**{question_of(question)}**\n{sentence_of(text)}"


def asked_and_answered(question: str, text: str) -> str:
    """Return the question and the text as FAQ pages have them."""
    return f"Q: {question_of(question)}\nA: {sentence_of(text)}"


def reworded(question: str, text: str, number: int = 0) -> str:
    """Return the text behind the question in other words.

    Parameters
    ----------
    question, text
        The question and the text of the attack.
    number
        Number that chooses one of the wordings.
    """
    bare = question.strip().rstrip(".?! ")
    inner = bare if _NAMES.match(bare) else f"{bare[:1].lower()}{bare[1:]}"
    lead = LEADS[number % len(LEADS)].format(q=inner, k=topic_of(question))
    return f"{lead[:1].upper()}{lead[1:]} {sentence_of(text)}"


FORMS: dict[str, Callable[[str, str], str]] = {
    "natural": natural,
    "heading": heading,
    "bold": bold,
    "Q and A": asked_and_answered,
    "reworded": reworded,
}
