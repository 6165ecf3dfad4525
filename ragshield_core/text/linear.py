r"""Patterns matched in time linear in the text, even in hostile text.

Python's ``re`` backtracks: gaps of bounded length in a row cost their product at every character,
and runs cost their square. RE2 follows all alternatives at once and finds the same match, since it
prefers them in the same order. It has no look-around and no back references, and its words
(``\b``, ``\w``) are ASCII.

Alternatives were measured on 300 kB of prose of public corpora, on one core. For some of the rules
that are not Chinese, ``re`` takes 920 ms and RE2 72 ms; RE2 takes 95 ms for all of them, pattern by
pattern. One set of all rules (``re2.Set``) takes 20 ms with 256 MiB, fails to compile with 8 MiB,
and takes 2.6 s with 8 MiB and gaps without bounds: some gap is open after each frequent word, so
that each stretch of text is a new state. Hyperscan refuses the rules ("Pattern is too large"). A
dictionary of the words that rules need, split from the text, finds the places to look at in 3 ms,
an Aho-Corasick automaton of the same words in 14 ms. Therefore the dictionary comes first, then
RE2, pattern by pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import re2

# Automata grow with the text; beyond this many bytes RE2 drops its states and goes on. There are
# two hundred patterns, and most find nothing.
MAX_MEMORY = 1 << 21

_END = re.compile(r"(?<!\\)\$")
_BOUND = re.compile(r"\{(\d+),\d+\}\??")


class LinearPattern:
    """A pattern in the syntax that ``re`` and RE2 share, over text without lone surrogates.

    Parameters
    ----------
    pattern
        The expression to match.
    unless
        An expression for ``re``, of bounded length, that must not follow a match.
    """

    __slots__ = ("_compiled", "_endless", "_unless", "pattern")

    def __init__(self, pattern: str, *, unless: str = "") -> None:
        self.pattern = pattern
        self._unless = re.compile(unless) if unless else None
        self._compiled = _compiled(pattern)
        # Gaps of bounded length have as many states as characters, and most states are new. Without
        # bounds there are few states. A text that does not match without bounds does not match with
        # them; nor do its parts, as this pattern lets a part end in the middle of the text.
        self._endless = _compiled(_END.sub("", _BOUND.sub(r"{\1,}", pattern)))

    def search(self, text: str) -> tuple[int, int] | None:
        """Return the span of the first match in a text."""
        return next(self.spans(text, 0, len(text)), None)

    def may_match(self, text: str) -> bool:
        """Return whether the pattern may match in a text or its parts; faster than a search."""
        return self._endless.search(text) is not None

    def spans(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the spans of matches that begin at ``start`` or later; the text ends at ``end``."""
        # The character before ``start`` shows whether a word begins there.
        shift = max(0, start - 1)
        part = text[shift:end]
        if not self._endless.search(part, start - shift):
            return
        for match in self._compiled.finditer(part, start - shift):
            first, last = match.span()
            if self._unless is None or not self._unless.match(text, shift + last, end):
                yield shift + first, shift + last


def hint(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a text matches a pattern of RE2 over Unicode anywhere.

    It is a fast test, in any text, before a slower and more precise pattern.
    """
    search = _compiled(pattern).search
    return lambda text: search(without_surrogates(text)) is not None


def without_surrogates(text: str) -> str:
    """Return a text of the same length without halves of surrogate pairs."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.never_capture = True
    options.log_errors = False
    return re2.compile(pattern, options)
