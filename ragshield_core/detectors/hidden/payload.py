"""Hidden parts of a text, the amount of prose in them, and marks for them in an entry's context.

Readers of files mark text that people do not see with two lines of an entry's context:
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
    """A hidden part of a text.

    Attributes
    ----------
    kind
        The way of hiding, such as ``"tag characters"``.
    decoded
        The text that a machine reads there; empty if it could not be decoded.
    span
        Its place in the text, in characters, end excluded.
    n_hidden
        Number of hidden or hiding characters.
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
    """Return a payload of characters without an innocent use; 10 characters weigh 1.04."""
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
# A word with apostrophes and hyphens, also of Hebrew and Armenian; Armenian puts marks in words.
_PLAIN_WORD = re.compile(
    rf"[(\"'«„“¿¡]{{0,2}}[{LETTERS}]+(?:['’\-\u05be\u05f3\u05f4\u055a-\u055e\u058a][{LETTERS}]+){{0,3}}"
    rf"[.,;:!)\"'»”\u055a-\u055e\u060c\u061b{QUESTION_MARKS}{FULL_STOPS}]{{0,3}}"
)
_UNSPACED = re.compile(f"[{UNSPACED}]")
_CODE = re.compile(r"[{}=<>;|\\$]|\w\(|::|//|\w:(?=\s)|\s-\s")
# One word of Tamil equals two of English. Wikipedia has 4.5 (Arabic) to 5.7 letters (Greek) for
# each word of the same text in English. A syllable of Hangul is two or three letters.
_LETTERS_OF_WORD = 5
_BEYOND_LATIN = re.compile("[\u0370-\U0010ffff]")


def _n_words(words: Sequence[str]) -> float:
    """Return the number of words, or the number estimated from their letters if it is larger."""
    joined = "".join(words)
    if joined.isascii():
        return len(words)
    n_letters = len(_BEYOND_LATIN.findall(unicodedata.normalize("NFD", joined)))
    return max(len(words), n_letters / _LETTERS_OF_WORD)


def prose_words(text: str) -> float:
    """Return the number of words of prose in a text, reduced if it looks like code.

    Text without spaces between its words (Chinese, Japanese, Thai, others) counts half a word per
    letter, other text beyond Latin scripts a word per five letters if that is more. Only the first
    4,000 characters are read, to bound the time.
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
    """Yield a payload if the text is prose; ``sure`` reduces the number of words that count."""
    if words := prose_words(decoded) * sure:
        yield carrying_prose(kind, decoded, span, words)


_OPENING = "[hidden "
_MARK = re.compile(
    r"^\[hidden ([01](?:\.[0-9]{1,3})?): ([^\]\n]{1,200})\]\.\n([^\n]{1,4000})", re.MULTILINE
)
# Most characters of one mark; fewer are enough to recognise prose.
LONGEST = 2_000


def mark(how: str, place: str, text: str, sure: float) -> str:
    r"""Return two lines with the way of hiding, the place in the document, and the hidden text.

    ``sure`` is how sure the intent to hide is, [0, 1]; 0 only lets other detectors read the text.

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
    """Return how sure a payload of prose is, [0, 1]: the share of its words that count."""
    words = prose_words(payload.decoded)
    weighed = 2 ** (payload.weight / 0.3) - 1  # see carrying_prose
    return min(1.0, weighed / words) if words else 0.0
