"""Words and phrases that stand for ideas, looked up in running text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

# Words whose ideas are remembered.
MAX_KNOWN = 50_000

_CHOICE = re.compile(r"\{([^{}]*)\}")
_BETWEEN = re.compile(r"\|(?![^{]*\})")


def phrases_of(pattern: str) -> Iterator[str]:
    """Yield the words and phrases that a pattern stands for.

    Parameters
    ----------
    pattern
        Alternatives between ``|``; within a phrase, between ``{`` and ``}``.

    Examples
    --------
    >>> list(phrases_of("new|{old|older} {page|text}*"))
    ['new', 'old page*', 'old text*', 'older page*', 'older text*']
    """
    for phrase in _BETWEEN.split(pattern):
        parts = _CHOICE.split(phrase)
        choices = (part.split("|") if n % 2 else (part,) for n, part in enumerate(parts))
        yield from map("".join, product(*choices))


class Lexicon:
    """Words and phrases, each with its ideas as bits; ``*`` ends what is the beginning of words."""

    def __init__(self, phrases: Iterable[tuple[str, int]]) -> None:
        self.exact: dict[str, int] = {}
        self.prefixes: dict[str, int] = {}
        # By first word and second word; a second word that is a beginning is kept under "".
        self.phrases: dict[str, dict[str, list[tuple[tuple[str, ...], int]]]] = {}
        for phrase, bits in phrases:
            first, *rest = re.findall(r"[a-z0-9]+\*?", phrase) or [""]
            if rest:
                key = "" if rest[0].endswith("*") else rest[0]
                self.phrases.setdefault(first, {}).setdefault(key, []).append((tuple(rest), bits))
            elif first.endswith("*"):
                self.prefixes[first[:-1]] = self.prefixes.get(first[:-1], 0) | bits
            elif first:
                self.exact[first] = self.exact.get(first, 0) | bits
        self.lengths = sorted({len(prefix) for prefix in self.prefixes})
        self._known: dict[str, int] = {}

    def bits(self, word: str) -> int:
        """Return the ideas of one word."""
        bits = self._known.get(word)
        if bits is None:
            bits = self.exact.get(word, 0)
            for length in self.lengths:
                bits |= self.prefixes.get(word[:length], 0) if length <= len(word) else 0
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[word] = bits
        return bits

    def ideas(self, words: Sequence[str]) -> list[int]:
        """Return the ideas of each word, those of a phrase at its first."""
        known = self._known
        found = [known[word] if word in known else self.bits(word) for word in words]
        phrases = self.phrases
        for at, word in enumerate(words[:-1]):
            if word in phrases:
                seconds = phrases[word]
                for rest, bits in (*seconds.get(words[at + 1], ()), *seconds.get("", ())):
                    if len(rest) < len(words) - at and all(
                        map(_fits, words[at + 1 : at + 1 + len(rest)], rest)
                    ):
                        found[at] |= bits
        return found


def _fits(word: str, wanted: str) -> bool:
    return word == wanted or (wanted[-1] == "*" and word.startswith(wanted[:-1]))
