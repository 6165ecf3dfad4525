"""Rules for wordings of instructions, and a fast test for the rules that a text can match."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files

from ragshield_core.text.characters import CJK
from ragshield_core.text.lexicon import plain_letters, plain_words
from ragshield_core.text.linear import LinearPattern
from ragshield_core.text.normalized import words

# Gaps between words of a pattern, always within one sentence or clause.
_GAPS = {
    "g": "[^.!?\\n\u3002]{0,60}?",
    "q": r"[^\n]{0,200}?",  # space for a question with its mark
    "m": r"{0,4}",
    "m1": r"{1,4}",
} | {f"w{n}": rf"(?:[^\s.!?]{{1,24}}\s){{0,{n}}}" for n in range(1, 6)}
_MACRO = re.compile(r"\{([a-z_]+\d?)\}")
# Needs other than words: signs that occur anywhere in a text.
SIGNS = (
    ("<markup>", "<"),
    ("<markup>", "["),
    ("<markup>", "{"),
    ("<pipe>", "<|"),
    ("<pipe>", "<\uff5c"),
    ("<link>", "]("),
    ("<image>", "!["),
    ("<query>", "="),
    ("<underscore>", "_"),
)
_CJK_LETTER = re.compile(f"[{CJK}]")


@dataclass(frozen=True)
class OrderRule:
    """One way to address a model.

    Attributes
    ----------
    id, family, language, source
        Its name, the group of rules for the same purpose, the language (``multi`` for several), and
        the publication that describes the attack.
    weight
        Evidence in hits: below 1 it is no evidence by itself, 2 convinces alone.
    pattern
        Regular expression over text in lower case without marks, in which ``{name}`` stands for a
        list of words and ``{g}``, ``{q}``, ``{w3}`` for bounded gaps between them.
    needs
        Lists of words; a text without a word of each cannot match.
    unless
        An expression that must not follow a match; a pattern itself cannot look ahead.
    positive, negative
        Examples that this rule finds, and examples that no rule of its family finds.
    """

    id: str
    family: str
    weight: float
    language: str
    source: str
    needs: Sequence[str]
    pattern: str
    positive: Sequence[str]
    negative: Sequence[str]
    words: Mapping[str, str] = field(repr=False)
    unless: str = ""

    @property
    def spelled_needs(self) -> list[str]:
        """The needs of the rule, with the names of lists replaced by their words."""
        return [_MACRO.sub(lambda macro: self.words[macro[1]], need) for need in self.needs]

    @cached_property
    def regex(self) -> LinearPattern:
        """The compiled pattern."""
        edge = self.pattern[0].isalnum() or self.pattern[0] in "{("
        chinese = self.language == "zh"
        begins = r"\b" if edge and not chinese and "(^" not in self.pattern[:2] else ""
        return LinearPattern(
            begins + self._spelled_out(self.pattern),
            unless=self._spelled_out(self.unless),
        )

    def _spelled_out(self, pattern: str) -> str:
        def expanded(macro: re.Match[str]) -> str:
            name = macro.group(1)
            if name in _GAPS:
                return _GAPS[name]
            # The longest first: "do not follow" before "do".
            listed = sorted(self.words[name].split("|"), key=len, reverse=True)
            return rf"\b({'|'.join(map(re.escape, listed))})\b".replace("\\ ", " ")

        pattern = _MACRO.sub(expanded, pattern).replace("(", "(?:").replace("(?:?", "(?")
        return pattern.replace(r"\(?:", r"\(").replace(" ", r"\s")


@cache
def rules() -> tuple[OrderRule, ...]:
    """Return all rules of the data file."""
    file = files(__package__).joinpath("rules.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    return tuple(OrderRule(**rule, words=data["words"]) for rule in data["rules"])


@cache
def masks() -> tuple[tuple[int, OrderRule], ...]:
    """Return, per rule, the words that it needs, as bits: one for each list of words."""
    numbers = {need: number for number, need in enumerate(_needs())}
    return tuple(
        (sum({1 << numbers[need] for need in rule.spelled_needs}), rule) for rule in rules()
    )


@cache
def needed_words() -> dict[str, int]:
    """Return, for each word that a rule needs, the needs that it meets, as bits."""
    bits: defaultdict[str, int] = defaultdict(int)
    for number, need in enumerate(_needs()):
        for word in need.split("|"):
            tokens = [word] if word.startswith("<") else words(plain_letters(word))
            bits[max(tokens, key=len)] |= 1 << number
    return dict(bits)


def _needs() -> list[str]:
    return sorted({need for rule in rules() for need in rule.spelled_needs})


def words_of(plain: str, spans: Sequence[tuple[int, int]]) -> list[list[str]]:
    """Return the words of each sentence of a text in lower case without marks."""
    return [plain_words(plain[start:end]) for start, end in spans]


def clues_in(plain: str, words: Sequence[str]) -> int:
    """Return the needs of rules that a text in lower case without marks meets, as bits."""
    vocabulary = needed_words()
    clues = 0
    for word in vocabulary.keys() & words:
        clues |= vocabulary[word]
    for mark, sign in SIGNS:
        if sign in plain:
            clues |= vocabulary[mark]
    if not plain.isascii() and _CJK_LETTER.search(plain):
        clues |= vocabulary["<cjk>"]
    return clues
