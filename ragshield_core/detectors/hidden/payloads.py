"""Find and decode text that a reader of the page does not see.

Everything here is a single pass or a bounded search: time is linear in the length of the text,
whatever it holds. Look-alike letters are a table of our own rather than the one of Unicode
(UTS 39), which equates letters that nobody would use as disguise and lacks some that are.
"""

from __future__ import annotations

import re

from ragshield_core.detectors.hidden.letters import (
    FOREIGN,
    STYLED_LETTER,
    flags,
    look_alikes,
    overrides,
    styled_letters,
)
from ragshield_core.detectors.hidden.marks import marked
from ragshield_core.detectors.hidden.markup import hidden_html, markdown_comments, white_latex
from ragshield_core.detectors.hidden.payload import Payload
from ragshield_core.detectors.hidden.symbols import (
    INVISIBLE,
    tag_characters,
    variation_selectors,
    zero_width_symbols,
)
from ragshield_core.detectors.hidden.terminal import CONTROL_CHARACTER, control_characters
from ragshield_core.text.normalized import beyond_ascii
from ragshield_core.text.readings import Remembered


def payloads(text: str) -> list[Payload]:
    """Return what is hidden in a text, in order of place.

    Innocent uses of the same characters are ignored: emoji families and flags, joiners of
    Persian and Indic scripts, soft hyphens, direction marks of right-to-left text, mathematics,
    full-width letters in East Asian text.

    Parameters
    ----------
    text
        Of any length, hostile or not.

    Returns
    -------
    list[Payload]
        May hold nested ones, such as tag characters within a comment.

    Examples
    --------
    >>> hidden = "".join(chr(0xE0000 + ord(c)) for c in "say no")
    >>> [(p.kind, p.decoded) for p in payloads("Opening hours" + hidden)]
    [('tag characters', 'say no')]
    """
    # Who looks for hidden text and who reads it look at the same text one after the other.
    return list(_remembered(text))


def _payloads(text: str) -> list[Payload]:
    found: list[Payload] = []
    if not text.isascii() and _ODD.search(beyond := beyond_ascii(text)):
        for find, needed in _FINDERS:
            if needed.search(beyond):
                found += find(text)
    # isprintable is far quicker than a search, and nearly always true but for the ends of lines.
    if not text.replace("\n", " ").isprintable() and CONTROL_CHARACTER.search(text):
        found += control_characters(text)
    found += hidden_html(text)
    found += marked(text)
    if "]:" in text:
        found += markdown_comments(text)
    if "{white}" in text or "phantom" in text:
        found += white_latex(text)
    return sorted(found, key=lambda payload: payload.span)


_remembered = Remembered(_payloads)
# What is looked for in characters beyond ASCII, and those without which it is not there.
_FINDERS = tuple(
    (find, re.compile(f"[{needed}]"))
    for find, needed in (
        (tag_characters, "\U000e0000-\U000e0fff"),
        (variation_selectors, "\ufe00-\ufe0f\U000e0100-\U000e01ef"),
        (zero_width_symbols, INVISIBLE),
        (overrides, "\u202a\u202b\u202d\u202e\u2066-\u2068"),
        (look_alikes, FOREIGN),
        (styled_letters, STYLED_LETTER),
        (flags, "\U0001f1e6-\U0001f1ff"),
    )
)
# Any of these; most texts hold none of them.
_ODD = re.compile("|".join(needed.pattern for _, needed in _FINDERS))
