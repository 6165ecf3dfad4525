"""Piece of hidden text, how much of it reads as prose, and marks for it in the context of an entry.

Readers of files mark what people do not see with two lines of an entry's context:
``[hidden 1: white text, page 3].``, and the text itself, which other detectors read as well.
"""

# ruff: noqa: PLR2004 - code points, widths of encodings, lengths of words

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2

from ragshield_core.text.characters import FULL_STOPS, LETTERS, QUESTION_MARKS, UNSPACED

TAGS = "tag characters"
VARIATION = "variation selectors"
ZERO_WIDTH = "zero-width characters"
SPLIT_WORDS = "words split by invisible characters"
BIDI = "bidirectional override"
CONTROL = "control characters"
LOOK_ALIKES = "look-alike letters"
STYLED = "letters that normalise to others (NFKC)"
HTML = "hidden HTML"
LATEX = "white LaTeX"
COMMENT = "comment carrying prose"
MARKED = "text that people do not see"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Something hidden in a text.

    Attributes
    ----------
    kind
        How it is hidden, such as ``"tag characters"``.
    decoded
        What a machine reads there; empty where something is hidden that could not be decoded.
    span
        Where it stands in the text, in characters, end excluded.
    n_hidden
        Number of characters that hide, or are hidden.
    weight
        Above 0. A payload above 1 is enough by itself to call a text suspicious: about ten
        smuggled characters, ten words of invisible prose, or three disguised words.
    """

    kind: str
    decoded: str
    span: tuple[int, int]
    n_hidden: int
    weight: float


def smuggled(kind: str, decoded: str, span: tuple[int, int], n: int) -> Payload:
    """Return a payload of characters that have no innocent use; 10 characters weigh 1.04."""
    return Payload(kind=kind, decoded=decoded, span=span, n_hidden=n, weight=0.3 * log2(1 + n))


# Prose, as opposed to code, markup, file names and separators.

_COMMON = (
    # English, German, French, Spanish, Italian, Portuguese
    "the of and to in is are was be that this it for on with as you your not by from or all any "
    "der die das und ist sie nicht ein eine zu den von mit auf für alle "
    "le la les des et est vous que dans une du pour ne pas toutes "
    "el los las y es en un una no por para se con todas "
    "il di che è non per sono lo tutte "
    "o os de e não em da do uma você todas"
)
_FUNCTION_WORDS = frozenset(_COMMON.split())
# With apostrophes and hyphens, Hebrew and Armenian ones among them; Armenian sets marks in words.
_PLAIN_WORD = re.compile(
    rf"[(\"'«„“¿¡]{{0,2}}[{LETTERS}]+(?:['’\-\u05be\u05f3\u05f4\u055a-\u055e\u058a][{LETTERS}]+){{0,3}}"
    rf"[.,;:!)\"'»”\u055a-\u055e\u060c\u061b{QUESTION_MARKS}{FULL_STOPS}]{{0,3}}"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_CODE = re.compile(r"[{}=<>;|\\$]|\w\(|::|//|\w:(?=\s)|\s-\s")
# One word of Tamil says what two of English say. Wikipedia has 4.5 (Arabic) to 5.7 letters (Greek)
# for each word of the same text in English. A syllable of Hangul is two or three letters.
_LETTERS_OF_WORD = 5
_BEYOND_LATIN = re.compile("[\u0370-\U0010ffff]")


def _n_words(words: Sequence[str]) -> float:
    """Return how many words they are, by their letters where that is more."""
    joined = "".join(words)
    if joined.isascii():
        return len(words)
    n_letters = len(_BEYOND_LATIN.findall(unicodedata.normalize("NFD", joined)))
    return max(len(words), n_letters / _LETTERS_OF_WORD)


def prose_words(text: str) -> float:
    """Return how many words of prose a text holds: fewer than its words if it looks like code.

    Text without spaces between its letters (Chinese, Japanese, Thai, others) counts half a word
    per letter, other text beyond Latin scripts a word per five letters if these are more. At most
    the first 4,000 characters are looked at, so that time is bounded.
    """
    text = text[:4000]
    tokens = text.split()
    words = [token for token in tokens if _PLAIN_WORD.fullmatch(token)]
    unspaced = 0 if text.isascii() else len(_UNSPACED.findall(text))
    if unspaced >= 4:
        return unspaced / 2 + sum(word.isascii() for word in words)
    if len(words) < 3 or len(words) < 0.6 * len(tokens):
        return 0.0
    share = sum(word.strip(".,;:!?\"'()").lower() in _FUNCTION_WORDS for word in words) / len(words)
    fluent = share >= 0.1 or not text.isascii()
    code = len(_CODE.findall(text)) / len(tokens)
    return _n_words(words) * (1.0 if fluent else 0.6) * max(0.0, 1.0 - 2.0 * code)


def carrying_prose(kind: str, decoded: str, span: tuple[int, int], words: float) -> Payload:
    """Return a payload of prose; 10 words weigh 1.04."""
    return Payload(
        kind=kind, decoded=decoded, span=span, n_hidden=len(decoded), weight=0.3 * log2(1 + words)
    )


def prose(kind: str, decoded: str, span: tuple[int, int], sure: float = 1.0) -> Iterator[Payload]:
    """Yield a payload if the text is prose; its words count as far as it is sure to be hidden."""
    if words := prose_words(decoded) * sure:
        yield carrying_prose(kind, decoded, span, words)


_OPENING = "[hidden "
_MARK = re.compile(
    r"^\[hidden ([01](?:\.[0-9]{1,3})?): ([^\]\n]{1,200})\]\.\n([^\n]{1,4000})", re.MULTILINE
)
# Characters of one mark: prose is told from less.
LONGEST = 2_000


def mark(how: str, place: str, text: str, sure: float) -> str:
    r"""Return two lines that say how a text is hidden, where in its document, and what it says.

    It is sure to be hidden on purpose, [0, 1]; 0 for what is only to be read for instructions.

    Examples
    --------
    >>> mark("white text", "page 3", "Say no.", 1.0)
    '[hidden 1: white text, page 3].\nSay no.'
    """
    where = f"{how}, {place}".replace("]", ")").replace("\n", " ")[:200]
    return f"{_OPENING}{round(sure, 3):g}: {where}].\n{' '.join(text.split())[:LONGEST]}"


def marked(text: str) -> Iterator[Payload]:
    """Yield marked prose."""
    for match in _MARK.finditer(text) if _OPENING in text else ():
        yield from prose(f"{MARKED} ({match[2]})", match[3], match.span(3), float(match[1]))


def sureness(payload: Payload) -> float:
    """Return how sure a payload of prose is, [0, 1]: the share of its words that it weighs."""
    words = prose_words(payload.decoded)
    weighed = 2 ** (payload.weight / 0.3) - 1  # see carrying_prose
    return min(1.0, weighed / words) if words else 0.0
