"""Marks with which readers of files say what in them people do not see.

A mark is two lines of an entry's context: ``[hidden 1: white text, page 3].``, and the text itself,
which other detectors read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ragshield_core.detectors.hidden.payload import MARKED, Payload, carrying_prose, prose_words

_OPENING = "[hidden "
_MARK = re.compile(
    r"^\[hidden ([01](?:\.[0-9]{1,3})?): ([^\]\n]{1,200})\]\.\n([^\n]{1,4000})", re.MULTILINE
)
# Characters of one mark: prose is told from less.
LONGEST = 2_000


def mark(how: str, place: str, text: str, sure: float) -> str:
    r"""Return two lines that say what is hidden.

    Parameters
    ----------
    how, place
        The reason why people do not see it, and the place in its document.
    text
        The text, as a machine reads it there.
    sure
        How sure it is that it is hidden on purpose, [0, 1]; 0 for what is only to be read for
        instructions.

    Examples
    --------
    >>> mark("white text", "page 3", "Say no.", 1.0)
    '[hidden 1: white text, page 3].\nSay no.'
    """
    where = f"{how}, {place}".replace("]", ")").replace("\n", " ")[:200]
    return f"{_OPENING}{round(sure, 3):g}: {where}].\n{' '.join(text.split())[:LONGEST]}"


def marked(text: str) -> Iterator[Payload]:
    """Yield marked prose."""
    if _OPENING not in text:
        return
    for match in _MARK.finditer(text):
        if words := prose_words(match[3]) * float(match[1]):
            yield carrying_prose(f"{MARKED} ({match[2]})", match[3], match.span(3), words)


def sureness(payload: Payload) -> float:
    """Return how sure a payload of prose is, [0, 1]: the share of its words that it weighs."""
    words = prose_words(payload.decoded)
    weighed = 2 ** (payload.weight / 0.3) - 1  # see carrying_prose
    return min(1.0, weighed / words) if words else 0.0
