"""Find text that a terminal hides: control characters, backspaces, escape sequences."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ragshield_core.detectors.hidden.payload import (
    CONTROL,
    Payload,
    carrying_prose,
    prose_words,
    smuggled,
)

# Control characters

CONTROL_CHARACTER = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\x9b]|\r(?!\n)")
_ESCAPE = re.compile(r"(?:\x1b\[|\x9b)([0-9;?]{0,20})([A-Za-z])|\x1b\]([^\x07\x1b]{0,200})")
_LONGEST_LINE = 4000
_CONCEAL = re.compile(r"(?:^|;)8(?:;|$)|(?:^|;)30;40(?:;|$)|(?:^|;)37;47(?:;|$)")


def control_characters(text: str) -> Iterator[Payload]:
    """Yield what a terminal would not show: erased, overwritten or concealed."""
    yield from _backspaces(text)
    yield from _escapes(text)
    if text.count("\r") <= text.count("\n"):  # else they end lines, as on old Macintoshes
        last = 0
        for match in re.finditer(r"\r(?=[^\r\n])", text):
            end = match.start()
            start = max(text.rfind("\n", last, end) + 1, last, end - _LONGEST_LINE)
            if words := prose_words(text[start:end]):
                yield carrying_prose(CONTROL, text[start:end], (start, end), words)
            last = end + 1


def _backspaces(text: str) -> Iterator[Payload]:
    for match in re.finditer("[\x08\x7f]+", text):
        start, n = match.start(), len(match[0])
        erased = text[max(0, start - n) : start]
        # Overstrike of printed manuals: a letter on itself or on an underscore.
        overstrike = n == 1 and (erased == "_" or erased == text[match.end() : match.end() + 1])
        if erased and not overstrike:
            yield smuggled(CONTROL, erased, (start - len(erased), match.end()), n)


def _escapes(text: str) -> Iterator[Payload]:
    concealed: int | None = None
    last = 0
    for match in _ESCAPE.finditer(text):
        codes, final = match[1] or "", match[2]
        if concealed is not None and final == "m":
            hidden = text[concealed : match.start()]
            if hidden.strip():
                yield smuggled(CONTROL, hidden, (concealed, match.start()), len(hidden))
            concealed = None
        if final == "m" and _CONCEAL.search(codes):
            concealed = match.end()
        elif final in ("K", "J", "A", "F"):  # erase, or go back up and write over
            end = match.start()
            start = max(text.rfind("\n", last, end) + 1, last, end - _LONGEST_LINE)
            last = match.end()
            erased = _ESCAPE.sub("", text[start:end])
            if words := prose_words(erased):
                yield carrying_prose(CONTROL, erased, (start, end), words)
    if concealed is not None and text[concealed:].strip():
        yield smuggled(CONTROL, text[concealed:], (concealed, len(text)), len(text) - concealed)
