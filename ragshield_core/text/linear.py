"""Patterns matched in time linear in the text, whatever it holds.

Python's ``re`` backtracks: rooms of bounded length one behind the other cost their product at every
character, and runs cost their square. RE2 follows all ways at once and finds the same match, since
it prefers alternatives in the same order. It knows no look-around and no back references, and its
words are of ASCII: text is therefore given to it with one byte for each character, which also makes
its positions those of the text.

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

import codecs
import re
from collections.abc import Iterator

import re2

from ragshield_core.text.characters import CJK

# Automata grow with what they meet; RE2 forgets the states beyond so many bytes and goes on. There
# are two hundred patterns, and most meet nothing.
MAX_MEMORY = 1 << 21

_IDEOGRAPH = re.compile(f"[{CJK}]")
_END = re.compile(r"(?<!\\)\$")
_BOUND = re.compile(r"\{(\d+),\d+\}\??")

# Characters outside ASCII that patterns ask for, and what stands for all others: letters that text
# in small letters does not have, so that words end where they did, and a byte that is part of none.
_KNOWN = {"\u3002": 0x80}
_IDEOGRAPH_BYTE, _LETTER_BYTE, _OTHER_BYTE = ord("Y"), ord("Z"), 0xFF


class LinearPattern:
    r"""A pattern over text in small ASCII letters, and whatever else it holds.

    Parameters
    ----------
    pattern
        In the syntax that ``re`` and RE2 share. Capital letters in it match nothing; nor does what
        is beyond ASCII, the ideographic full stop apart.
    unless
        What a match must not be followed by, looked at with ``re``: of bounded length.
    ideographs
        Whether it is one of ideographs instead, in which there are no words (``\b``, ``\w``).
    """

    __slots__ = ("_compiled", "_endless", "_ideographs", "_unless", "pattern")

    def __init__(self, pattern: str, *, unless: str = "", ideographs: bool = False) -> None:
        self.pattern = pattern
        self._unless = re.compile(unless) if unless else None
        self._ideographs = ideographs
        self._compiled = _compiled(pattern, ideographs=ideographs)
        # Rooms of bounded length have as many states as characters, most of them met for the first
        # time. Without their bounds there are few, and who does not match then does not at all. Nor
        # do parts of a text that does not match: there, a part may end where the text goes on.
        endless = _END.sub("", _BOUND.sub(r"{\1,}", pattern))
        self._endless = _compiled(endless, ideographs=ideographs)

    def search(self, text: str) -> tuple[int, int] | None:
        """Return where the first match in a text lies."""
        return next(self.spans(text, narrow(text), 0, len(text)), None)

    def may_match(self, text: str, narrowed: bytes) -> bool:
        """Return whether the pattern may match in a text or a part of it; quicker than a match."""
        looked_at = text.encode("utf-8", "replace") if self._ideographs else narrowed
        return self._endless.search(looked_at) is not None

    def spans(self, text: str, narrowed: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where matches lie between two places of a text.

        Parameters
        ----------
        text, narrowed
            The text, and what :func:`narrow` made of it, once for many patterns.
        start, end
            Matches begin at ``start`` or later; for them, the text ends at ``end``.
        """
        for begin, stop in self._found(text, narrowed, start, end):
            if self._unless is None or not self._unless.match(text, stop, end):
                yield begin, stop

    def _found(self, text: str, narrowed: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
        if self._ideographs:
            # UTF-8, without halves of surrogate pairs, which it does not have.
            part = text[start:end].encode("utf-8", "replace")
            if not self._endless.search(part):
                return
            done = 0  # bytes, which are `start` characters
            for match in self._compiled.finditer(part):
                first, last = match.span()
                begin = start + len(part[done:first].decode())
                done, start = last, begin + len(part[first:last].decode())
                yield begin, start
        else:
            # With the character before, which tells whether a word begins at the first one.
            shift = max(0, start - 1)
            part = narrowed[shift:end]
            if not self._endless.search(part, start - shift):
                return
            for match in self._compiled.finditer(part, start - shift):
                first, last = match.span()
                yield shift + first, shift + last


class Hint:
    r"""A quick look at a text as it is, for what another pattern looks for more closely.

    Parameters
    ----------
    pattern
        Of RE2, over Unicode; ``\s``, ``\w`` and ``\b`` are of ASCII.
    """

    __slots__ = ("_compiled",)

    def __init__(self, pattern: str) -> None:
        self._compiled = _compiled(pattern, ideographs=True)

    def __call__(self, text: str) -> bool:
        """Return whether a text has it somewhere."""
        return self._compiled.search(text.encode("utf-8", "replace")) is not None


def _compiled(pattern: str, *, ideographs: bool) -> re2._Regexp:
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.never_capture = True
    options.log_errors = False
    if ideographs:
        return re2.compile(pattern.encode(), options)
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(narrow(pattern), options)


def narrow(text: str) -> bytes:
    """Return a text with one byte for each character."""
    return text.encode("ascii", _NARROWED)


def _narrowed(error: UnicodeError) -> tuple[bytes, int]:
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101
    run = error.object[error.start : error.end]
    return run.translate(_BYTES).encode("latin-1"), error.end


class _Bytes(dict[int, int]):
    """The byte that stands for each character beyond ASCII."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        if not character.isalnum():
            byte = _KNOWN.get(character, _OTHER_BYTE)
        else:
            byte = _IDEOGRAPH_BYTE if _IDEOGRAPH.match(character) else _LETTER_BYTE
        if code < _BEYOND_BASIC:  # a million others would fill the memory
            self[code] = byte
        return byte


_BEYOND_BASIC = 0x10000
_BYTES = _Bytes()
_NARROWED = "ragshield.narrowed"
codecs.register_error(_NARROWED, _narrowed)
