"""Text that the reader of a page does not see, but a machine reads: found and decoded.

Everything here is a single pass or a bounded search: time is linear in the length of the text,
whatever it holds. Look-alike letters are a table of our own rather than the one of Unicode
(UTS 39), which equates letters that nobody would use as disguise and lacks some that are.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ragshield_core.text.hidden.letters import (
    FOREIGN,
    STYLED_LETTER,
    look_alikes,
    overrides,
    styled_letters,
)
from ragshield_core.text.hidden.markup import hidden_html, markdown_comments, white_latex
from ragshield_core.text.hidden.payload import Payload
from ragshield_core.text.hidden.symbols import (
    INVISIBLE,
    tag_characters,
    variation_selectors,
    zero_width_symbols,
)
from ragshield_core.text.hidden.terminal import CONTROL_CHARACTER, control_characters
from ragshield_core.text.normalized import REMEMBERED_LENGTH, beyond_ascii


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
    return list(_remembered_long(text) if len(text) > REMEMBERED_LENGTH else _payloads(text))


@lru_cache(maxsize=1)
def _remembered_long(text: str) -> list[Payload]:
    return _payloads(text)


def _payloads(text: str) -> list[Payload]:
    found: list[Payload] = []
    if not text.isascii() and _ODD.search(beyond_ascii(text)):
        for find in (
            tag_characters,
            variation_selectors,
            zero_width_symbols,
            overrides,
            look_alikes,
            styled_letters,
        ):
            found += find(text)
    # isprintable is far quicker than a search, and nearly always true but for the ends of lines.
    if not text.replace("\n", " ").isprintable() and CONTROL_CHARACTER.search(text):
        found += control_characters(text)
    if "<" in text:
        found += hidden_html(text)
    if "]:" in text:
        found += markdown_comments(text)
    if "{white}" in text or "phantom" in text:
        found += white_latex(text)
    return sorted(found, key=lambda payload: payload.span)


# Characters that any of the finders above looks for; most texts hold none of them.
_ODD = re.compile(
    f"[{INVISIBLE}\u202b\u202e\u2066-\u2069\ufe00-\ufe0f{FOREIGN}{STYLED_LETTER}"
    "\U0001f1e6-\U0001f1ff\U000e0000-\U000e0fff]"
)
