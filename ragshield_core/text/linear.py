r"""Patterns matched in time linear in the text, whatever it holds.

Python's ``re`` backtracks: rooms of bounded length one behind the other cost their product at every
character, and runs cost their square. RE2 follows all ways at once and finds the same match, since
it prefers alternatives in the same order. It knows no look-around and no back references, and its
words (``\b``, ``\w``) are of ASCII.

What was tried on 300 kB of prose of public corpora, on one core: of the rules that are not Chinese,
``re`` takes 920 ms for those that RE2 takes 72 ms for; RE2 takes 95 ms for all of them, pattern by
pattern. One set of all (``re2.Set``) takes 20 ms with 256 MiB, is not compiled with 8 MiB, and
takes 2.6 s with these and rooms without bounds: after each frequent word some room is open, and
each stretch of text is a new state. Hyperscan refuses the rules ("Pattern is
too large"). A dictionary of the words that rules need, split from the text, tells where to look at
all and takes 3 ms, an Aho-Corasick automaton of the same words 14 ms. So: the dictionary first,
then RE2, pattern by pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import re2

# Automata grow with what they meet; RE2 forgets the states beyond so many bytes and goes on. There
# are two hundred patterns, and most meet nothing.
MAX_MEMORY = 1 << 21

_END = re.compile(r"(?<!\\)\$")
_BOUND = re.compile(r"\{(\d+),\d+\}\??")


class LinearPattern:
    """A pattern in the syntax that ``re`` and RE2 share, over text without lone surrogates.

    Parameters
    ----------
    pattern
        What to match.
    unless
        What a match must not be followed by, looked at with ``re``: of bounded length.
    """

    __slots__ = ("_compiled", "_endless", "_unless", "pattern")

    def __init__(self, pattern: str, *, unless: str = "") -> None:
        self.pattern = pattern
        self._unless = re.compile(unless) if unless else None
        self._compiled = _compiled(pattern)
        # Rooms of bounded length have as many states as characters, most of them met for the first
        # time. Without their bounds there are few, and who does not match then does not at all. Nor
        # do parts of a text that does not match: there, a part may end where the text goes on.
        self._endless = _compiled(_END.sub("", _BOUND.sub(r"{\1,}", pattern)))

    def search(self, text: str) -> tuple[int, int] | None:
        """Return where the first match in a text lies."""
        return next(self.spans(text, 0, len(text)), None)

    def may_match(self, text: str) -> bool:
        """Return whether the pattern may match in a text or a part of it; quicker than a match."""
        return self._endless.search(text) is not None

    def spans(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where matches lie that begin at ``start`` or later; the text ends at ``end``."""
        # With the character before, which tells whether a word begins at the first one.
        shift = max(0, start - 1)
        part = text[shift:end]
        if not self._endless.search(part, start - shift):
            return
        for match in self._compiled.finditer(part, start - shift):
            first, last = match.span()
            if self._unless is None or not self._unless.match(text, shift + last, end):
                yield shift + first, shift + last


def hint(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a text has a pattern of RE2 over Unicode somewhere.

    A quick look, whatever the text holds, for what another pattern looks for more closely.
    """
    search = _compiled(pattern).search
    return lambda text: search(without_surrogates(text)) is not None


def without_surrogates(text: str) -> str:
    """Return a text of the same length in which no half of a surrogate pair stands."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.never_capture = True
    options.log_errors = False
    return re2.compile(pattern, options)
