"""The sentences of a readable text, digits and signs for letters undone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ragshield_core.detectors.instruction.rules import needed_words, plain_of
from ragshield_core.text.normalized import Readable, sentences

# A word on a line of its own, and as many as are read together: a sentence may be set like this.
MAX_LINE = 15
MAX_JOINED_LINES = 300

_LEET = str.maketrans("0134578@$", "oieastbas")
_LEET_SIGN = re.compile(r"[0134578@$][a-z]")  # which is found quicker
_LEET_HINT = re.compile(r"[a-z][0134578@$][a-z]")
# Other than of letters alone.
_LEET_WORD = re.compile(r"(?<![\w@$])(?=[a-z]*+[0134578@$])[a-z0134578@$]{4,24}(?![\w@$])")


def sentences_of(view: Readable) -> tuple[Readable, str, list[tuple[int, int]]]:
    """Return readable text without leetspeak, the same in small letters, and its sentences."""
    plain = plain_of(view.text)
    if _LEET_SIGN.search(plain) and _LEET_HINT.search(plain):
        leet = _without_leet(view)
        if leet is not view:
            view, plain = leet, plain_of(leet.text)
    return view, plain, _joined_lines(plain, sentences(plain))


def _without_leet(view: Readable) -> Readable:
    """Return a text with digits for letters undone, in words that rules look for."""
    vocabulary = needed_words()

    def word(match: re.Match[str]) -> str:
        given = match.group()
        if given.isdigit():
            return given
        folded = given.translate(_LEET)
        for candidate in (folded, given.replace("1", "l").translate(_LEET)):
            if candidate in vocabulary:
                return candidate
        return given

    lowered = Readable(plain_of(view.text), view.original, view._steps)  # noqa: SLF001
    changed = lowered.replaced(_LEET_WORD, word)
    return view if changed is lowered else changed


def _joined_lines(plain: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sentences, with words that stand on lines of their own put together."""
    joined: list[tuple[int, int]] = []
    short = False  # whether the line before was
    for start, end in spans:
        begin = joined[-1][0] if joined else start
        if short and end - start <= MAX_LINE and end - begin <= MAX_JOINED_LINES:
            joined[-1] = (begin, end)
        else:
            joined.append((start, end))
        short = end - start <= MAX_LINE and plain[end - 1].isalnum()
    return joined
