"""Text as a reader sees it: what rules and counts should look at instead of the raw characters.

Hostile text hides words from patterns while people and models still read them: zero-width
characters inside a word, letters of other scripts that look alike, mathematical alphabets, letters
set apart by spaces. :func:`readable` undoes all that and remembers where everything came from.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ragshield_core.text.characters import CJK, IGNORABLE, MARKS
from ragshield_core.text.columns import Alphabet
from ragshield_core.text.linear import Hint

# Small capitals and phonetic letters: Latin letters themselves, in no alphabet.
_SMALL = "ɡıɩɑʀɪɢɴʟᴀʙᴄᴅᴇғʜᴊᴋᴍᴏᴘꜱᴛᴜᴠᴡʏᴢ"
# Letters that look like Latin ones and that NFKC leaves alone (a choice from confusables.txt of
# UTS #39, and those that homoglyph generators use besides).
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
# Symbols with a Latin letter in them: white letters in black circles and squares.
_CONFUSABLE_SYMBOL = {
    start + i: chr(ord("A") + i) for start in (0x1F150, 0x1F170) for i in range(26)
}

# Several detectors read the same texts of a batch one after the other. So many are remembered, of
# at most so many characters, some MB, and the latest one that is longer. Those that were read first
# are forgotten first, asked for since or not.
REMEMBERED, REMEMBERED_LENGTH = 1024, 4000
# Characters from which on it pays to look at all of them as an array.
_FEW, _LONG = 300, 4_000
_N_ASCII, _N_CODES = 0x80, 0x110000
# At most this many marks belong to one letter: sorting a run of them takes quadratic time.
_MAX_MARKS = 8
# So many words on either side of one tell what script it stands in.
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
# Four letters or more, each set apart from the next by one and the same character.
_SPACED = re.compile(r"(?<!\w)[^\W\d_]([ .*_\-|/])[^\W\d_](?:\1[^\W\d_]){2,}(?!\w)")
# Where there is one such word, the short words around it are written the same way.
_SPACED_SHORT = re.compile(r"(?<!\w)[^\W\d_]([ .*_\-|/])[^\W\d_](?:\1[^\W\d_])*(?!\w)")
_SPACED_SIGN = r"[A-Za-z\x{80}-\x{10FFFF}](?:[ .*_\-|/][A-Za-z\x{80}-\x{10FFFF}]){3}"
_SPACED_HINT = Hint(_SPACED_SIGN)
# Runs of white space, any but a plain space or line break, and control characters.
# One class in front, because that is what the engine looks for quickly.
_BLANKS = r"[\s\x00-\x08\x0e-\x1b\x7f-\x9f]"
_BLANK = re.compile(rf"{_BLANKS}(?:(?<![ \n])|(?={_BLANKS})){_BLANKS}*")

# Any of these, and blanks that are not single spaces or ends of lines.
_CHANGES_HINT = Hint(
    rf"{_SPACED_SIGN}|[ \n][ \n]|[\x00-\x09\x0b-\x1f\x7f-\x{{a0}}\x{{1680}}\x{{2000}}-\x{{200a}}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
)
_BLANK_LETTER = re.compile(_BLANKS)
_LAST_BLANK = 0x3000  # the ideographic space
_RANGE = re.compile(r"(.)-(.)", re.DOTALL)

# The end of a sentence; an initial ("J. Smith") is none. In writing without spaces the mark alone
# ends it. One class in front, because that is what the engine looks for quickly.
_SENTENCE_END = re.compile(
    r"[.!?\u2026\u061f\u0964\u3002\uff01\uff1f\n](?:(?<=[\u3002\uff01\uff1f\n])[\u201d\u2019\u300d]?"
    r"|(?<![ .(][A-Z]\.)[.!?]{0,8}[\"'\u201d\u2019)\]]{0,4}(?=\s))"
)
# Longer ones are cut: rules look at sentences one by one, and a page without a full stop is none.
MAX_SENTENCE = 600

_TOKEN = re.compile(rf"[{CJK}]|[^\W_{CJK}]+")
_ASCII_TOKEN = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class _Step:
    """Replacements made in one text, ordered by position."""

    starts: list[int]  # in the new text
    ends: list[int]
    old_starts: list[int]
    old_ends: list[int]

    def old_span(self, position: int) -> tuple[int, int]:
        """Return the characters of the old text behind one character of the new one."""
        # Of replacements at one place, the last: those by nothing come before the character.
        at = bisect_right(self.starts, position) - 1
        if at < 0:
            return position, position + 1
        if position < self.ends[at]:
            return self.old_starts[at], self.old_ends[at]
        old = self.old_ends[at] + position - self.ends[at]
        return old, old + 1


@dataclass(frozen=True, slots=True)
class Readable:
    """A text, and the one it was made from.

    Attributes
    ----------
    text
        What a reader sees.
    original
        What is there.
    """

    text: str
    original: str
    _steps: tuple[_Step, ...] = ()

    def original_span(self, start: int, end: int) -> tuple[int, int]:
        """Return where characters ``start`` to ``end`` (excluded) of the text came from.

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
        self,
        pattern: re.Pattern[str],
        replacement: Callable[[re.Match[str]], str],
        starts: Iterable[int] | None = None,
    ) -> Readable:
        """Return the text with each match of ``pattern`` replaced, traceable as before.

        Parameters
        ----------
        pattern, replacement
            As of :func:`re.sub`.
        starts
            Where matches may begin, ascending, if that is known; nowhere else is looked.
        """
        text, step = self.text, _Step([], [], [], [])
        pieces: list[str] = []
        end = length = 0
        for match in _found(pattern, text, starts):
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


def readable(text: str) -> Readable:
    r"""Return a text as a reader sees it, traceable to the original.

    Characters without a glyph and control characters are dropped, compatibility variants become
    the plain character (NFKC), Latin letters lose marks that no precomposed letter has,
    look-alikes of other scripts become Latin letters in words that mix scripts or consist of
    look-alikes throughout (not within text of that script), letters set apart become words, and
    runs of white space become one space or, where they hold one, one line break.

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
    return _remembered([text])[0]


def readables(texts: Sequence[str]) -> list[Readable]:
    """Return what :func:`readable` does of each text, in order: quicker than one by one."""
    return _remembered(texts)


class _Remembered:
    """Readable texts: the latest short ones, and the latest one that is longer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.cache_clear()

    def cache_clear(self) -> None:
        """Remember nothing any more."""
        self._short: dict[str, Readable] = {}
        self._long: dict[str, Readable] = {}

    def __call__(self, texts: Sequence[str]) -> list[Readable]:
        short, long = self._short, self._long
        remembered = {text: short.get(text) or long.get(text) for text in texts}
        found = {text: view for text, view in remembered.items() if view is not None}
        new = [text for text, view in remembered.items() if view is None]
        if new:
            found.update(zip(new, _read(new), strict=True))
            with self._lock:
                for text in new:
                    known, most = (short, REMEMBERED) if _is_short(text) else (long, 1)
                    known[text] = found[text]
                    while len(known) > most:
                        del known[next(iter(known))]
        return [found[text] for text in texts]


_remembered = _Remembered()


def _is_short(text: str) -> bool:
    return len(text) <= REMEMBERED_LENGTH


def _oddity(character: str) -> int:
    """Return 2 of a character beyond ASCII that may be read as another one or not, 1 of others."""
    odd = not character.isascii() and (
        _nfkc(character) != character
        or _DROPPED.match(character)
        or _MARK.match(character)
        or _CONFUSABLE_LETTER.match(character)
    )
    return 2 if odd else 1


_oddities = Alphabet(_oddity)
_ODD = b"\2"


def _read(texts: Sequence[str]) -> list[Readable]:
    """Return what readers see of texts: of most, the text as it is."""
    beyond = [text for text in texts if not text.isascii()]
    odd = {text for text, found in zip(beyond, _oddities(beyond), strict=True) if _ODD in found}
    encoded = [text.encode("utf-8", "replace") for text in texts]
    respaced = {texts[n] for n in _CHANGES_HINT.likely(encoded)}
    respaced -= odd  # which are read from the start on
    views = (_readable(text) if text in odd else Readable(text, text) for text in texts)
    return [_respaced(view) if view.original in respaced else view for view in views]


def _readable(text: str) -> Readable:
    view = Readable(text, text)
    # Dashes and quotation marks are most of what most texts have beyond ASCII.
    if not text.isascii() and _ODD in _oddities([beyond := beyond_ascii(text)])[0]:
        if _DROPPED.search(beyond):
            view = view.replaced(_DROPPED, _nothing, _starts(view.text, _is_dropped))
        forms = list(map(_nfkc, beyond))
        folded = "".join(forms)
        changing = "".join(a for a, b in zip(beyond, forms, strict=True) if a != b)
        if _MARK.search(beyond + folded):
            starts = _starts(view.text, _among(changing), _is_mark)
            view = view.replaced(_CLUSTER, _composed, starts)
            starts = _starts(view.text, _is_mark)
            view = view.replaced(_LATIN_WITH_MARKS, _nothing, starts)
            view = _fold_confusables(view)
        else:
            if changing:
                starts = _starts(view.text, _among(changing))
                view = view.replaced(_LETTER_BEYOND_ASCII, _composed, starts)
            if _CONFUSABLE_LETTER.search(folded):
                view = _fold_confusables(view)
    return _respaced(view)


def _respaced(view: Readable) -> Readable:
    """Return a text with letters that were set apart put together, and no more blanks than one."""
    if _SPACED_HINT(view.text):
        starts = _starts_of_spaced(view.text)
        if any(_found(_SPACED, view.text, starts)):
            view = view.replaced(_SPACED_SHORT, _joined, starts)
    # No other blanks than single spaces and ends of lines.
    blanks = view.text.replace("\n", " ")
    if blanks.isprintable() and "  " not in blanks:
        return view
    return view.replaced(_BLANK, _one_blank, _starts_of_blanks(view.text))


def _found(
    pattern: re.Pattern[str], text: str, starts: Iterable[int] | None
) -> Iterator[re.Match[str]]:
    """Return what ``finditer`` does, given where matches may begin, ascending, if it is known."""
    return pattern.finditer(text) if starts is None else _matches(pattern, text, starts)


def _matches(pattern: re.Pattern[str], text: str, starts: Iterable[int]) -> Iterator[re.Match[str]]:
    end = 0
    for start in starts:
        if start >= end and (match := pattern.match(text, start)):
            yield match
            end = match.end()


def _starts(text: str, wanted: _Kind, behind: _Kind | None = None) -> Iterable[int] | None:
    """Return where a long text has characters of a kind, or one of another kind behind them.

    Of short ones nothing: there, a pattern finds them as quickly.
    """
    if len(text) <= _LONG:
        return None
    codes = _codes(text)
    found = wanted()[codes]
    if behind is not None:
        found[:-1] |= behind()[codes[1:]]
    places: list[int] = np.flatnonzero(found).tolist()
    return places


def _starts_of_blanks(text: str) -> Iterable[int] | None:
    """Return where a text has blanks that are not single spaces or ends of lines."""
    if len(text) <= _FEW:
        return None
    places: list[int] = np.flatnonzero(_begins_blank(_codes(text))).tolist()
    return places


def _begins_blank(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = _is_blank()[codes]
    plain = (codes == ord(" ")) | (codes == ord("\n"))
    plain[:-1] &= ~found[1:]
    found &= ~plain
    return found


def _starts_of_spaced(text: str) -> Iterable[int] | None:
    """Return where single letters that are set apart may begin in a long text."""
    if len(text) <= _LONG:
        return None
    codes = _codes(text)
    letter, apart = _letters_and_signs(codes)
    found = letter[:-2] & apart[1:-1] & letter[2:]
    found[1:] &= ~_is_plain()[np.minimum(codes[:-3], _N_ASCII)]
    places: list[int] = np.flatnonzero(found).tolist()
    return places


def _letters_and_signs(codes: NDArray[np.uint32]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which characters may be letters, and which may set them apart."""
    codes = np.minimum(codes, _N_ASCII)
    return _may_be_letter()[codes], _sets_apart()[codes]


def _starts_of_words(text: str) -> Iterable[int] | None:
    """Return where words beyond ASCII may begin in a long text."""
    if len(text) <= _LONG:
        return None
    codes = _codes(text)
    beyond = codes >= _N_ASCII
    plain = _is_plain()[np.minimum(codes, _N_ASCII)]
    # Where letters of ASCII lead to one beyond it, the first of them.
    first = np.flatnonzero(plain & ~np.append(False, plain[:-1]))
    last = np.flatnonzero(plain & ~np.append(plain[1:], False))
    leads = np.append(beyond[1:], False)[last]
    starts = beyond & ~np.append(False, plain[:-1])
    starts[first[leads]] = True
    places: list[int] = np.flatnonzero(starts).tolist()
    return places


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


# Which characters are of a kind, of all that there are: made when first needed.
_Kind = Callable[[], NDArray[np.bool_]]


def _among(characters: str) -> _Kind:
    def kind() -> NDArray[np.bool_]:
        among = np.zeros(_N_CODES, dtype=np.bool_)
        among[[*map(ord, characters)]] = True
        return among

    return kind


def _in_brackets(characters: str) -> NDArray[np.bool_]:
    """Return which characters belong to what stands in the brackets of a pattern."""
    return _among(_RANGE.sub(_written_out, characters))()


@lru_cache(maxsize=1)
def _is_plain() -> NDArray[np.bool_]:
    """Return which characters of ASCII are letters or digits, and for one more that it is not."""
    return np.array([chr(code).isalnum() for code in range(_N_ASCII)] + [False])


@lru_cache(maxsize=1)
def _may_be_letter() -> NDArray[np.bool_]:
    return np.array([chr(code).isalpha() for code in range(_N_ASCII)] + [True])


@lru_cache(maxsize=1)
def _sets_apart() -> NDArray[np.bool_]:
    return _among(" .*_-|/")()


@lru_cache(maxsize=1)
def _is_dropped() -> NDArray[np.bool_]:
    return _in_brackets(IGNORABLE)


@lru_cache(maxsize=1)
def _is_mark() -> NDArray[np.bool_]:
    return _in_brackets(MARKS)


@lru_cache(maxsize=1)
def _is_blank() -> NDArray[np.bool_]:
    return _among("".join(filter(_BLANK_LETTER.match, map(chr, range(_LAST_BLANK + 1)))))()


def translated(text: str, table: Mapping[int, str]) -> str:
    """Return a text with its characters beyond ASCII translated, of which most texts have few."""
    return _BEYOND_ASCII.sub(lambda match: match.group().translate(table), text)


def beyond_ascii(text: str) -> str:
    """Return the characters of a text beyond ASCII, each once, in no order."""
    if len(text) <= _FEW:
        return "".join(set("".join(_BEYOND_ASCII.findall(text))))
    codes = _codes(text)
    if len(text) <= _LONG:
        return "".join(map(chr, set(codes[codes >= _N_ASCII].tolist())))
    seen = np.zeros(_N_CODES, dtype=np.bool_)
    seen[codes] = True
    return "".join(map(chr, (_N_ASCII + np.flatnonzero(seen[_N_ASCII:])).tolist()))


def sentences(text: str) -> list[tuple[int, int]]:
    """Return where sentences lie: start and end (excluded), without the white space around.

    A full stop, exclamation or question mark before white space ends one, so do their Chinese
    relatives anywhere and line breaks. Longer ones than :data:`MAX_SENTENCE` characters are cut,
    between words where possible. Abbreviations are not known: short sentences too many are better
    than a long one that hides a short one.

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
    """Return where the words lie that :func:`words` returns, in its order; ends are excluded.

    Examples
    --------
    >>> text = "It's STRASSE, 你好"
    >>> [text[start:end] for start, end in word_spans(text)]
    ['It', 's', 'STRASSE', '你', '好']
    """
    if text.isascii():
        return [match.span() for match in _ASCII_TOKEN.finditer(text.lower())]
    folded = [character.casefold() for character in text]
    # One character may become several.
    origin = [place for place, letters in enumerate(folded) for _ in letters]
    return [
        (origin[match.start()], origin[match.end() - 1] + 1)
        for match in _TOKEN.finditer("".join(folded))
    ]


def _add_sentence(text: str, start: int, end: int, spans: list[tuple[int, int]]) -> None:
    while True:
        while start < end and text[start].isspace():
            start += 1
        if end - start <= MAX_SENTENCE:
            break
        # Not before the middle: a cut close to the start would hardly shorten what is left.
        cut = text.rfind(" ", start + MAX_SENTENCE // 2, start + MAX_SENTENCE)
        cut = cut if cut > 0 else start + MAX_SENTENCE
        spans.append((start, cut))
        start = cut
    while start < end and text[end - 1].isspace():
        end -= 1
    if start < end:
        spans.append((start, end))


def _written_out(match: re.Match[str]) -> str:
    return "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1)))


def _nothing(_: re.Match[str]) -> str:
    return ""


def _composed(match: re.Match[str]) -> str:
    return _nfkc(match.group())


@lru_cache(maxsize=4096)
def _nfkc(cluster: str) -> str:
    if len(cluster) == 1 and ord(cluster) in _CONFUSABLE_SYMBOL:
        return _CONFUSABLE_SYMBOL[ord(cluster)]
    return unicodedata.normalize("NFKC", cluster)


def _joined(match: re.Match[str]) -> str:
    return match.group().replace(match.group(1), "")


def _one_blank(match: re.Match[str]) -> str:
    return _shortened(match.group())


@lru_cache(maxsize=4096)
def _shortened(blank: str) -> str:
    if "\n" in blank or "\r" in blank or "\u2028" in blank or "\u2029" in blank:
        return "\n"
    return " " if any(map(str.isspace, blank)) else ""


def _fold_confusables(view: Readable) -> Readable:
    """Make look-alikes Latin, but neither in a word of another script nor next to one."""
    text = view.text
    if not _CONFUSABLE_LETTER.search(text):
        return view
    # Words of ASCII are plain, and the most.
    starts = _starts_of_words(text)
    spans = [match.span() for match in _found(_WORD_BEYOND_ASCII, text, starts)]
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

    return view.replaced(_WORD_BEYOND_ASCII, folded, starts)


def _near_foreign(
    text: str, spans: Sequence[tuple[int, int]], kinds: Sequence[str], number: int
) -> bool:
    """Return whether a word beyond ASCII stands near one of another script, in words."""
    for step in (-1, 1):
        away, at = 0, number
        while 0 <= at + step < len(spans):
            (_, end), (start, _) = sorted((spans[at], spans[at + step]))
            # So many words of ASCII, of which no more than needed are looked at.
            away += 1 + sum(1 for _ in islice(_WORD.finditer(text, end, start), _NEAR))
            at += step
            if away > _NEAR:
                break
            if kinds[at] == "foreign":
                return True
    return False


def _kind(word: str) -> str:
    """Return whether a word beyond ASCII is plain, mixed, all look-alikes, or another script's."""
    if not _CONFUSABLE_LETTER.search(word):
        return "plain" if any(map(_is_latin, word)) else "foreign"
    alike = sum(ord(letter) in _CONFUSABLE for letter in word)
    latin = any(
        letter in _SMALL if ord(letter) in _CONFUSABLE else _is_latin(letter) for letter in word
    )
    if latin:
        return "mixed"
    if alike == len(word):
        # A letter by itself may be a symbol, and tells nothing about the words around.
        return "alike" if alike > 1 else "plain"
    return "foreign"


def _is_latin(letter: str) -> bool:
    """Return whether it is a Latin letter, digits and ligatures aside."""
    return letter.isalpha() and (letter <= "\u024f" or "\u1e00" <= letter <= "\u1eff")
