"""Kinds of characters, for use in the brackets of regular expressions."""

import re
from itertools import groupby
from unicodedata import category

# Default_Ignorable_Code_Point (DerivedCoreProperties.txt of the Unicode character database):
# characters without a glyph of their own, such as soft hyphens, joiners, bidirectional controls,
# variation selectors and tag characters.
IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
# Combining marks that are drawn over Latin letters.
MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u3099\u309a"
# Scripts without spaces between words, except those in which each letter is a word.
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# All scripts whose words touch each other: CJK, Thai, Lao, Burmese, Khmer.
UNSPACED = f"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff{CJK}"
RIGHT_TO_LEFT = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
# Fullwidth, Arabic, Greek, Ethiopic, Vai, Coptic, and signs that contain one. The Armenian question
# mark stands within a word and ends no sentence.
QUESTION_MARKS = "?\uff1f\u061f\u037e\u1367\ua60f\u2cfa\u2cfb\u2047-\u2049\u203d\ufe56\ufe16"
# Characters that are always full stops, with or without a space behind them: Armenian, Arabic,
# Syriac, Indic, Tibetan, Burmese, Ethiopic, Khmer, Mongolian, ideographic, halfwidth, fullwidth.
FULL_STOPS = (
    "\u0589\u06d4\u0700\u0701\u0702\u0964\u0965\u0f0d\u0f0e\u104a\u104b\u1362\u1368\u17d4\u17d5\u1803\u1809"
    "\u3002\uff01\uff0e\uff61"
)
_IGNORABLE, _CJK = re.compile(f"[{IGNORABLE}]"), re.compile(f"[{CJK}]")


def _kind(character: str) -> str:
    """Return "M" for a mark, "L" for a letter or a number other than a digit, "" for the rest."""
    kind = category(character)
    if kind[0] not in "LM" and kind not in ("Nl", "No"):
        return ""
    if _CJK.match(character) or _IGNORABLE.match(character):
        return ""
    return "M" if kind[0] == "M" else "L"


_RANGES = [
    (kind, f"{first}-{[first, *others][-1]}")
    for kind, (first, *others) in groupby(map(chr, range(0x10000)), _kind)
    if kind
]
# Combining marks of all scripts except kana, including vowel signs.
COMBINING = "".join(span for kind, span in _RANGES if kind == "M")
# Python's ``\w`` has no marks, and splits the words of Hindi, Bengali, Tamil, Telugu and Thai.
SPACED_LETTERS = (
    "".join(span for _, span in _RANGES)
    + "\u055b\u055c\u055e"  # Armenian stress, exclamation and question marks, within words
    "\U00010000-\U0001cfff\U0001d400-\U0001efff"  # mostly letters
)
LETTERS = SPACED_LETTERS + CJK
