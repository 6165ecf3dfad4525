"""Text as a reader sees it, for rules and counts to use instead of the raw characters.

Hostile text hides words from patterns while people and models still read them: zero-width
characters inside a word, look-alike letters of other scripts, mathematical alphabets, letters
separated by spaces. :func:`readable` undoes this and keeps the original position of each character.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from ragshield_core.text.characters import (
    CJK,
    FULL_STOPS,
    IGNORABLE,
    MARKS,
    QUESTION_MARKS,
    SPACED_LETTERS,
)
from ragshield_core.text.linear import hint
from ragshield_core.text.readings import Remembered

# Small capitals and phonetic letters: Latin letters, but in no alphabet.
_SMALL = "ɡıɩɑʀɪɢɴʟᴀʙᴄᴅᴇғʜᴊᴋᴍᴏᴘꜱᴛᴜᴠᴡʏᴢ"
# Letters that look like Latin letters and that NFKC does not change: a selection of confusables.txt
# of UTS #39, and further letters of homoglyph generators.
_ALIKE = {
    "абвгеёзікмнорстухьѕјһԁԛԝӏѵո": "abbreezikmhopctyxbsjhdqwlvn",  # Cyrillic small (one Armenian)
    "АВСЕНІЈКМОРЅТУХԌѴԜҮ": "ABCEHIJKMOPSTYXGVWY",
    "αεικνορτυχγηω": "aeikvoptuxynw",  # Greek
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ": "ABEZHIKMNOPTYX",
    "սօհցզյաՏՍՕԼ": "uohgqjwSUOL",  # Armenian
    _SMALL: "giiarignlabcdefhjkmopstuvwyz",
    "ᎪᏴᏟᎠᎬᏀᎻᎫᏦᏞᎷᏢᏚᎢᏙᎳᏃ": "ABCDEGHJKLMPSTVWZ",  # Cherokee
    "ꓮꓐꓚꓓꓰꓝꓖꓧꓲꓙꓗꓡꓟꓠꓳꓑꓣꓢꓔꓴꓦꓪꓫꓬꓜ": "ABCDEFGHIJKLMNOPRSTUVWXYZ",  # Lisu
}
_CONFUSABLE = {
    ord(letter): latin
    for letters, latins in _ALIKE.items()
    for letter, latin in zip(letters, latins, strict=True)
}
# Symbols that contain a Latin letter: white letters in black circles and squares.
_CONFUSABLE_SYMBOL = {
    start + i: chr(ord("A") + i) for start in (0x1F150, 0x1F170) for i in range(26)
}

# At most this many marks belong to one letter: sorting a run of them takes quadratic time.
_MAX_MARKS = 8
# This many words on either side of a word show the script around it.
_NEAR = 5
_DROPPED = re.compile(f"[{IGNORABLE}]+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_LETTER_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_MARK = re.compile(f"[{MARKS}]")
_CLUSTER = re.compile(rf"[^{MARKS}][{MARKS}]{{1,{_MAX_MARKS}}}|[^\x00-\x7f]")
_WORD = re.compile(r"[^\W_]+")
_WORD_BEYOND_ASCII = re.compile(r"(?<![^\W_])[A-Za-z0-9]*+[^\x00-\x7f\W_][^\W_]*")
_CONFUSABLE_LETTER = re.compile(f"[{''.join(map(chr, _CONFUSABLE))}]")
_LATIN_WITH_MARKS = re.compile(f"(?<=[A-Za-z{''.join(map(chr, _CONFUSABLE))}])[{MARKS}]+")
# Four letters or more, separated by the same character.
_SPACED = re.compile(r"(?<!\w)[^\W\d_]([ .*_\-|/])[^\W\d_](?:\1[^\W\d_]){2,}(?!\w)")
# Next to such a word, short words are written in the same way.
_SPACED_SHORT = re.compile(r"(?<!\w)[^\W\d_]([ .*_\-|/])[^\W\d_](?:\1[^\W\d_])*(?!\w)")
_SPACED_HINT = hint(r"[A-Za-z\x{80}-\x{10FFFF}](?:[ .*_\-|/][A-Za-z\x{80}-\x{10FFFF}]){3}")
# Runs of white space, single white space other than a space or line break, and control characters.
# The pattern starts with a single class, which the engine finds quickly.
_BLANKS = r"[\s\x00-\x08\x0e-\x1b\x7f-\x9f]"
_BLANK = re.compile(rf"{_BLANKS}(?:(?<![ \n])|(?={_BLANKS})){_BLANKS}*")

# The end of a sentence, but not an initial ("J. Smith"). In writing without spaces the mark alone
# ends it. The pattern starts with a single class, which the engine finds quickly.
_SENTENCE_END = re.compile(
    rf"[.!\u2026\n{FULL_STOPS}{QUESTION_MARKS}]"
    rf"(?:(?<=[\n{FULL_STOPS}{QUESTION_MARKS[1:]}])[\u201d\u2019\u300d]?"
    r"|(?<![ .(][A-Z]\.)[.!?]{0,8}[\"'\u201d\u2019)\]]{0,4}(?=\s))"
)
# Longer sentences are cut: rules read single sentences, and a page without a full stop is not one.
MAX_SENTENCE = 600

_TOKEN = re.compile(rf"[{CJK}]|[{SPACED_LETTERS}\d]+")
_ASCII_TOKEN = re.compile(r"[a-z0-9]+")
_ASCII_WORDS = bytes(
    code if chr(code).isascii() and chr(code).isalnum() else ord(" ") for code in range(256)
)


@dataclass(frozen=True, slots=True)
class _Step:
    """Replacements made in one text, ordered by position."""

    starts: list[int]  # in the new text
    ends: list[int]
    old_starts: list[int]
    old_ends: list[int]

    def old_span(self, position: int) -> tuple[int, int]:
        """Return the span in the old text of one character of the new text."""
        # The last of several replacements at one place: deletions come before the character.
        at = bisect_right(self.starts, position) - 1
        if at < 0:
            return position, position + 1
        if position < self.ends[at]:
            return self.old_starts[at], self.old_ends[at]
        old = self.old_ends[at] + position - self.ends[at]
        return old, old + 1


@dataclass(frozen=True, slots=True)
class Readable:
    """A text as a reader sees it, and the original that it was made from."""

    text: str
    original: str
    _steps: tuple[_Step, ...] = ()

    def original_span(self, start: int, end: int) -> tuple[int, int]:
        """Return the span in the original of characters ``start`` to ``end`` (excluded).

        Raises
        ------
        ValueError
            If the span does not lie within the text.
        """
        if not 0 <= start <= end <= len(self.text):
            msg = (
                f"span ({start}, {end}) does not lie within the text of {len(self.text)} "
                "characters, expected 0 <= start <= end <= its length."
            )
            raise ValueError(msg)
        if start == end:
            if not start:
                return 0, 0
            _, after = self.original_span(start - 1, start)
            return after, after
        first, last = start, end - 1
        for step in reversed(self._steps):
            first, last = step.old_span(first)[0], step.old_span(last)[1] - 1
        return first, last + 1

    def replaced(
        self, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]
    ) -> Readable:
        """Return the text with each match of ``pattern`` replaced, traceable as before."""
        text, step = self.text, _Step([], [], [], [])
        pieces: list[str] = []
        end = length = 0
        for match in pattern.finditer(text):
            new = replacement(match)
            if new == match.group():
                continue
            first, last = match.span()
            pieces += text[end:first], new
            length += first - end
            step.starts.append(length)
            length += len(new)
            step.ends.append(length)
            step.old_starts.append(first)
            step.old_ends.append(last)
            end = last
        if not step.starts:
            return self
        pieces.append(text[end:])
        return Readable("".join(pieces), self.original, (*self._steps, step))


@Remembered
def readable(text: str) -> Readable:
    r"""Return a text as a reader sees it, traceable to the original.

    Characters without a glyph and control characters are dropped. Compatibility variants become the
    plain character (NFKC). Latin letters lose marks that no precomposed letter has. Look-alikes of
    other scripts become Latin letters in words that mix scripts or consist only of look-alikes, but
    not within text of that script. Separated letters become words. A run of white space becomes one
    line break if it contains one, else one space.

    Parameters
    ----------
    text
        Anything.

    Returns
    -------
    Readable
        Its ``text`` is for patterns and counts, not for display: joiners that Persian or emoji
        need are gone.

    Notes
    -----
    Linear in the length of the text; ASCII text, the usual case, takes a quick path. Normalisation
    forms: Unicode Standard Annex #15; look-alikes: Unicode Technical Standard #39.

    Examples
    --------
    >>> text = "plea\u200bse IGN\u039fRE \uff54his, r\u00adead t h a t"
    >>> view = readable(text)
    >>> view.text
    'please IGNORE this, read that'
    >>> start, end = view.original_span(7, 13)
    >>> text[start:end] == "IGN\u039fRE"
    True
    """
    view = Readable(text, text)
    # In most texts, most characters beyond ASCII are dashes and quotation marks.
    if not text.isascii():
        beyond = beyond_ascii(text)
        if _DROPPED.search(beyond):
            view = view.replaced(_DROPPED, _nothing)
        folded = "".join(map(_nfkc, beyond))
        if _MARK.search(beyond + folded):
            view = view.replaced(_CLUSTER, _composed).replaced(_LATIN_WITH_MARKS, _nothing)
            view = _fold_confusables(view)
        else:
            if folded != beyond:
                view = view.replaced(_LETTER_BEYOND_ASCII, _composed)
            if _CONFUSABLE_LETTER.search(folded):
                view = _fold_confusables(view)
    if _SPACED_HINT(view.text) and _SPACED.search(view.text):
        view = view.replaced(_SPACED_SHORT, lambda found: found.group().replace(found.group(1), ""))
    # Quick path: all blanks are single spaces and ends of lines.
    blanks = view.text.replace("\n", " ")
    if blanks.isprintable() and "  " not in blanks:
        return view
    return view.replaced(_BLANK, lambda match: _shortened(match.group()))


def translated(text: str, table: Mapping[int, str]) -> str:
    """Return a text with its characters beyond ASCII translated; most texts have few of them."""
    return _BEYOND_ASCII.sub(lambda match: match.group().translate(table), text)


def beyond_ascii(text: str) -> str:
    """Return the characters of a text beyond ASCII, each once, in no order."""
    return "".join(set("".join(_BEYOND_ASCII.findall(text))))


def sentences(text: str) -> list[tuple[int, int]]:
    """Return the spans of sentences: start and end (excluded), without the white space around.

    A sentence ends at a full stop, exclamation or question mark before white space, at a Chinese
    counterpart anywhere, or at a line break. Sentences longer than :data:`MAX_SENTENCE` characters
    are cut, between words if possible. Abbreviations end a sentence too: too many short sentences
    are better than a long one that hides a short one.

    Examples
    --------
    >>> text = "First, by J. Doe. Second! 第三。第四。"
    >>> [text[start:end] for start, end in sentences(text)]
    ['First, by J. Doe.', 'Second!', '第三。', '第四。']
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        _add_sentence(text, start, match.end(), spans)
        start = match.end()
    _add_sentence(text, start, len(text), spans)
    return spans


def words(text: str) -> list[str]:
    """Return the words of a text in order, casefolded; each Chinese or Japanese character is one.

    Punctuation and underscores separate words and are left out. Hostile text goes through
    :func:`readable` first.

    Examples
    --------
    >>> words("It's snake_case, STRASSE: 3.5 你好")
    ['it', 's', 'snake', 'case', 'strasse', '3', '5', '你', '好']
    """
    if text.isascii():
        return _ASCII_TOKEN.findall(text.lower())
    return _TOKEN.findall(text.casefold())


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the words that :func:`words` returns, in order; ends are excluded.

    Examples
    --------
    >>> text = "It's STRASSE, 你好"
    >>> [text[start:end] for start, end in word_spans(text)]
    ['It', 's', 'STRASSE', '你', '好']
    """
    if text.isascii():
        return [match.span() for match in _ASCII_TOKEN.finditer(text.lower())]
    folded = [character.casefold() for character in text]
    # Case folding may turn one character into several.
    origin = [place for place, letters in enumerate(folded) for _ in letters]
    return [
        (origin[match.start()], origin[match.end() - 1] + 1)
        for match in _TOKEN.finditer("".join(folded))
    ]


def encoded_words(text: str) -> list[bytes]:
    """Return the result of :func:`words` in UTF-8; ASCII text takes half the time."""
    if text.isascii():
        return text.lower().encode().translate(_ASCII_WORDS).split()
    return [word.encode() for word in _TOKEN.findall(text.casefold())]


def _add_sentence(text: str, start: int, end: int, spans: list[tuple[int, int]]) -> None:
    while True:
        while start < end and text[start].isspace():
            start += 1
        if end - start <= MAX_SENTENCE:
            break
        # Not before the middle: a cut close to the start would hardly shorten the rest.
        cut = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
        cut = cut if cut > 0 else start + MAX_SENTENCE
        spans.append((start, cut))
        start = cut
    while start < end and text[end - 1].isspace():
        end -= 1
    if start < end:
        spans.append((start, end))


def _nothing(_: re.Match[str]) -> str:
    return ""


def _composed(match: re.Match[str]) -> str:
    return _nfkc(match.group())


@lru_cache(maxsize=4096)
def _nfkc(cluster: str) -> str:
    if len(cluster) == 1 and ord(cluster) in _CONFUSABLE_SYMBOL:
        return _CONFUSABLE_SYMBOL[ord(cluster)]
    return unicodedata.normalize("NFKC", cluster)


@lru_cache(maxsize=4096)
def _shortened(blank: str) -> str:
    if "\n" in blank or "\r" in blank or "\u2028" in blank or "\u2029" in blank:
        return "\n"
    return " " if any(map(str.isspace, blank)) else ""


def _fold_confusables(view: Readable) -> Readable:
    """Make look-alikes Latin, except in or near words of another script."""
    text = view.text
    if not _CONFUSABLE_LETTER.search(text):
        return view
    spans = [match.span() for match in _WORD_BEYOND_ASCII.finditer(text)]
    kinds = [_kind(text[start:end]) for start, end in spans]
    if "mixed" not in kinds and "alike" not in kinds:
        return view

    disguised = iter(
        [
            kind == "mixed" or (kind == "alike" and not _near_foreign(text, spans, kinds, number))
            for number, kind in enumerate(kinds)
        ]
    )

    def folded(match: re.Match[str]) -> str:
        return match.group().translate(_CONFUSABLE) if next(disguised) else match.group()

    return view.replaced(_WORD_BEYOND_ASCII, folded)


def _near_foreign(
    text: str, spans: Sequence[tuple[int, int]], kinds: Sequence[str], number: int
) -> bool:
    """Return whether a word beyond ASCII is within a few words of one of another script."""
    for step in (-1, 1):
        away, at = 0, number
        while 0 <= at + step < len(spans):
            (_, end), (start, _) = sorted((spans[at], spans[at + step]))
            # Count the ASCII words between, but no more than needed.
            away += 1 + sum(1 for _ in islice(_WORD.finditer(text, end, start), _NEAR))
            at += step
            if away > _NEAR:
                break
            if kinds[at] == "foreign":
                return True
    return False


def _kind(word: str) -> str:
    """Return the kind of a word beyond ASCII: "plain", "mixed", "alike" or "foreign"."""
    if not _CONFUSABLE_LETTER.search(word):
        return "plain" if any(map(_is_latin, word)) else "foreign"
    alike = sum(ord(letter) in _CONFUSABLE for letter in word)
    latin = any(
        letter in _SMALL if ord(letter) in _CONFUSABLE else _is_latin(letter) for letter in word
    )
    if latin:
        return "mixed"
    if alike == len(word):
        # A single letter may be a symbol, and says nothing about the words around.
        return "alike" if alike > 1 else "plain"
    return "foreign"


def _is_latin(letter: str) -> bool:
    """Return whether a character is a Latin letter, apart from digits and ligatures."""
    return letter.isalpha() and (letter <= "\u024f" or "\u1e00" <= letter <= "\u1eff")
