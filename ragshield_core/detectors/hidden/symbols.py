"""Finders of messages in invisible characters: tags, selectors, zero-width symbols, controls."""

# ruff: noqa: PLR2004 - code points, widths of encodings, lengths of words

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import permutations
from math import ceil, log, log2

from ragshield_core.detectors.hidden.payload import (
    CONTROL,
    SPLIT_WORDS,
    TAGS,
    VARIATION,
    ZERO_WIDTH,
    Payload,
    prose,
    smuggled,
)
from ragshield_core.text.characters import COMBINING, LETTERS, UNSPACED

# Tag characters

_TAG_RUN = re.compile("[\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]+")
# Flags of England, Scotland and Wales: a black flag, their tags, a cancel tag.
_FLAGS = frozenset({"gbeng", "gbsct", "gbwls"})
_SCATTERED = 4  # more runs than this form one message
_CANCEL_TAG = "\U000e007f"


def tag_characters(text: str) -> Iterator[Payload]:
    """Yield messages in tag characters."""
    found = []
    for match in _TAG_RUN.finditer(text):
        run, start = match[0], match.start()
        decoded = "".join(chr(ord(c) - 0xE0000) for c in run if 0x20 <= ord(c) - 0xE0000 < 0x7F)
        on_flag = start > 0 and text[start - 1] == "\U0001f3f4"
        if not (on_flag and decoded in _FLAGS and run.endswith(_CANCEL_TAG)):
            found.append((decoded, match.span()))
    if len(found) > _SCATTERED:  # single characters between visible letters
        decoded = "".join(part for part, _ in found)
        n = sum(end - start for _, (start, end) in found)
        yield smuggled(TAGS, decoded, (found[0][1][0], found[-1][1][1]), n)
    else:
        for decoded, (start, end) in found:
            yield smuggled(TAGS, decoded, (start, end), end - start)


# Variation selectors: there are 256, so each carries a byte

_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]+")


def _byte_of(selector: str) -> int:
    code = ord(selector)
    return code - 0xFE00 if code < 0xE0100 else code - 0xE0100 + 16


def _selects(base: str, selector: str) -> bool:
    """Return whether a variation selector has a regular use after a character."""
    code, number = ord(base), _byte_of(selector)
    ideograph = 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF
    if number >= 16:
        return ideograph
    if number >= 14:  # text or emoji style
        return base in "#*0123456789©®" or code >= 0x2000
    # Variants of ideographs, full-width punctuation, mathematical operators and some scripts.
    return code >= 0x1000 and unicodedata.category(base) != "So" and number <= 3


def variation_selectors(text: str) -> Iterator[Payload]:
    """Yield messages in variation selectors."""
    singles: list[int] = []
    for match in _SELECTORS.finditer(text):
        run, start = match[0], match.start()
        if len(run) > 1:
            yield smuggled(VARIATION, _decode_bytes(run), match.span(), len(run))
        elif start == 0 or not _selects(text[start - 1], run):
            singles.append(start)
    if singles:
        run = "".join(text[i] for i in singles)
        span = singles[0], singles[-1] + 1
        decoded = _decode_bytes(run) if len(run) > 3 else ""
        yield smuggled(VARIATION, decoded, span, len(run))


def _decode_bytes(run: str) -> str:
    values = [_byte_of(c) for c in run]
    readings = [_text_of(values)]
    if max(values) < 16:
        pairs = zip(values[::2], values[1::2], strict=False)
        readings.append(_text_of([16 * a + b for a, b in pairs]))
        readings.append(_decode_symbols(run))
    return max(readings, key=_legibility)


# Zero-width characters

INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a\u202c\u202d"
    "\u2060-\u2064\u206a-\u206f\u3164\ufeff\uffa0"
)
_INVISIBLE_RUN = re.compile(f"[{INVISIBLE}]+")
_LETTER, _COMBINING = re.compile(f"[{LETTERS}]"), re.compile(f"[{COMBINING}]")
# Scripts with joiners in their words; and scripts without spaces between words, or with fillers in
# syllables.
_JOINED = re.compile("[\u0600-\u0dff\ufb50-\ufdff\ufe70-\ufefe]")
_UNSPACED = re.compile(f"[\u0f00-\u0fff\u1100-\u11ff\u1800-\u18af{UNSPACED}]")
# In the scripts of India, joiners belong after or before one of these.
_VIRAMA = frozenset("\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca")
_SPLITTERS = frozenset(
    "\u034f\u115f\u1160\u180e\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\u3164\ufeff\uffa0"
)
_JOINERS = frozenset("\u200c\u200d")
_WORD_JOINERS = frozenset("\u2060\u2061\u2062\u2063\u2064\ufeff")
# Another invisible character follows one letter later; in scripts without spaces, where words of
# one letter are common, a third one follows as well.
_LETTER_ON = f"[{LETTERS}][{COMBINING}]{{0,3}}[{INVISIBLE}]"
_APART, _FURTHER_APART = re.compile(_LETTER_ON), re.compile(f"(?:{_LETTER_ON}){{2}}")
_MARKS = frozenset("\u200e\u200f\u061c\u00ad")
_LONG = 8  # symbols in a row: a byte, and more than typography ever uses
_GAP = 80  # most characters between two disguised words of one group


def _innocent(text: str, start: int, end: int) -> bool:
    """Return whether typography explains the place of a short run of invisible characters."""
    if start == 0 or set(text[start:end]) <= _MARKS:
        return True
    before, after = text[start - 1], text[end : end + 1]
    return not all(c <= "\u02ff" or _is_plain(c) for c in (before, after))


def _is_plain(character: str) -> bool:
    """Return whether a letter belongs to a script without joiners, fillers and breaks."""
    special = _JOINED.match(character) or _UNSPACED.match(character)
    return bool(_LETTER.match(character)) and not special


def _splits(text: str, start: int, end: int) -> bool:
    """Return whether a run of invisible characters splits a word."""
    before, after, run = text[start - 1 : start], text[end : end + 1], set(text[start:end])
    if end - start >= _LONG or not (_LETTER.match(before) and _LETTER.match(after)):
        return False
    unspaced = _UNSPACED.match(before) or _UNSPACED.match(after)
    if run <= _SPLITTERS:
        if "\u034f" in run and _COMBINING.match(after):  # it controls the order of marks
            return False
        if run <= _WORD_JOINERS or (_is_plain(before) and _is_plain(after)):
            return True
        # Zero-width spaces split a word, joiners do not.
        if not unspaced and run.isdisjoint(_JOINERS):
            return True
    # Typography does not put invisible characters after one letter and again after the next.
    apart = _FURTHER_APART if unspaced else _APART
    return _VIRAMA.isdisjoint((before, after)) and bool(apart.match(text, end))


def zero_width_symbols(text: str) -> Iterator[Payload]:
    """Yield messages in zero-width symbols, and words split by them."""
    loose: list[tuple[int, int]] = []
    long: list[tuple[int, int]] = []
    runs = [match.span() for match in _INVISIBLE_RUN.finditer(text)]
    for start, end in runs:
        if end - start < _LONG:
            if not _innocent(text, start, end):
                loose.append((start, end))
            continue
        if len(set(text[start:end])) > 1:
            long.append((start, end))
        else:  # padding carries almost no information
            n = end - start
            yield Payload(kind=ZERO_WIDTH, decoded="", span=(start, end), n_hidden=n, weight=0.2)
    together = [_message(text, spans) for spans in (long, loose) if len(spans) > 1]
    legible = [m for m in together if m.decoded and m.n_hidden >= 2 * _LONG]
    yield from legible
    if not (long and legible):
        yield from (_message(text, [span]) for span in long)
    if legible:
        return
    places = [span for span in runs if _splits(text, *span)]
    # Innocent texts have one or two break opportunities in long words.
    weight = 0.25 * log2(1 + len(places)) / max(1, len(places))
    for group in grouped(places):
        start, end = _whole_words(text, group[0][0], group[-1][1])
        n = len(group)
        decoded = _INVISIBLE_RUN.sub("", text[start:end])
        yield Payload(
            kind=SPLIT_WORDS, decoded=decoded, span=(start, end), n_hidden=n, weight=n * weight
        )


def _message(text: str, spans: Sequence[tuple[int, int]]) -> Payload:
    """Return the message that the invisible characters at some places spell together."""
    run = "".join(text[start:end] for start, end in spans)
    decoded = _decode_symbols(run)
    return Payload(
        kind=ZERO_WIDTH,
        decoded=decoded,
        span=(spans[0][0], spans[-1][1]),
        n_hidden=len(run),
        # Two symbols weigh as much as one smuggled character, or less if they spell no text.
        weight=(0.3 if decoded else 0.2) * log2(1 + len(run) / 2),
    )


def _whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span extended to word borders, at most 40 characters on either side."""
    left = text[max(0, start - 40) : start]
    right = text[end : end + 40]
    kept_left = re.split(r"\s", left)[-1]
    kept_right = re.split(r"\s", right, maxsplit=1)[0]
    return start - len(kept_left), end + len(kept_right)


def grouped(spans: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield lists of spans that are at most ``_GAP`` characters apart."""
    group: list[tuple[int, int]] = []
    for span in spans:
        if group and span[0] - group[-1][1] > _GAP:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


# From symbols to text: all meanings of the symbols are tried, and the most legible reading wins.

_SAMPLE = 512  # number of symbols that decide the reading
_LEGIBLE = 0.6


def _text_of(values: Sequence[int]) -> str:
    """Return code units as text, decoded as UTF-8 if valid, else as code points."""
    if not values or max(values) > 0x10FFFF:
        return ""
    if max(values) < 256:
        with suppress(UnicodeDecodeError):
            return bytes(values).decode()
    return "".join(map(chr, values))


def _legibility(text: str) -> float:
    """Return about 1 for words, below :data:`_LEGIBLE` for noise."""
    if len(text) < 2:
        return 0.0
    value = 0.0
    for c in text[:_SAMPLE]:
        if "a" <= c <= "z" or c == " ":
            value += 1.0
        elif c.isascii() and c.isprintable():
            value += 0.8 if c.isalnum() or c in ".,'-:!?" else 0.4
        elif not c.isascii() and _LETTER.match(c):
            value += 0.75 if ord(c) > 0x36F else 0.2
        elif c not in "\n\t":
            value -= 0.5 if c.isprintable() else 2.0
    return value / min(len(text), _SAMPLE)


def _decode_symbols(run: str) -> str:
    """Return the text that a run of few different symbols spells, or an empty string."""
    counts = Counter(run)
    # A symbol that only frames the message has no meaning.
    kept = {c for c, n in counts.items() if n > 2 or len(run) < 2 * _LONG}
    if 2 <= len(kept) < len(counts):
        run = "".join(c for c in run if c in kept)
    best, best_legibility = None, _LEGIBLE
    for reading in _readings(run):
        if (legibility := _legibility(_read(run[:_SAMPLE], *reading))) > best_legibility:
            best, best_legibility = reading, legibility
    return _read(run, *best) if best else ""


# Digits of a base, their number in a group (0: a symbol separates groups), that symbol, and whether
# the lowest digit comes first.
_Reading = tuple[Sequence[str], int, str, bool]


def _read(run: str, digits: Sequence[str], width: int, separator: str, turned: bool) -> str:  # noqa: FBT001
    values = {c: value for value, c in enumerate(digits)}
    units: list[int] = []
    for group in run.split(separator) if separator else [run]:
        found = [values[c] for c in group if c in values]
        step = width or min(max(1, len(found)), 21)
        for at in range(0, len(found) - step + 1, step):
            chunk = found[at : at + step]
            places = chunk[::-1] if turned else chunk
            units.append(reduce(lambda unit, digit: unit * len(digits) + digit, places, 0))
    return _text_of(units)


def _readings(run: str) -> Iterator[_Reading]:
    alphabet = sorted(set(run))
    k = len(alphabet)
    if k > 16 or k < 2:
        return
    # More than four symbols have too many orders to try them all.
    orders: Iterable[Sequence[str]] = (
        permutations(alphabet) if k <= 4 else (alphabet, alphabet[::-1], [*dict.fromkeys(run)])
    )
    widths = (7, 8, 16) if k == 2 else sorted({ceil(8 * log(2, k)), ceil(16 * log(2, k))})
    for order in orders:
        for width in widths:
            yield order, width, "", False
            yield order, width, "", True
        if k == 3:  # two digits and a separator, of characters or of words
            parted = len(run) / (1 + run.count(order[2]))
            for width in (0,) if parted < 2 * _LONG else (8, 7):
                yield order[:2], width, order[2], False


# Control characters that hide text in a terminal

CONTROL_CHARACTER = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\x9b]|\r(?!\n)")
_ESCAPE = re.compile(r"(?:\x1b\[|\x9b)([0-9;?]{0,20})([A-Za-z])|\x1b\]([^\x07\x1b]{0,200})")
_LONGEST_LINE = 4000
_CONCEAL = re.compile(r"(?:^|;)8(?:;|$)|(?:^|;)30;40(?:;|$)|(?:^|;)37;47(?:;|$)")


def control_characters(text: str) -> Iterator[Payload]:
    """Yield text that a terminal would not show: erased, overwritten or concealed."""
    yield from _backspaces(text)
    yield from _escapes(text)
    if text.count("\r") <= text.count("\n"):  # otherwise "\r" ends lines, as on old Macintoshes
        last = 0
        for match in re.finditer(r"\r(?=[^\r\n])", text):
            end = match.start()
            start = max(text.rfind("\n", last, end) + 1, last, end - _LONGEST_LINE)
            yield from prose(CONTROL, text[start:end], (start, end))
            last = end + 1


def _backspaces(text: str) -> Iterator[Payload]:
    for match in re.finditer("[\x08\x7f]+", text):
        start, n = match.start(), len(match[0])
        erased = text[max(0, start - n) : start]
        # Overstrike of printed manuals: a letter on itself or on an underscore.
        overstrike = n == 1 and (erased == "_" or erased == text[match.end() : match.end() + 1])
        if erased and not overstrike:
            yield smuggled(CONTROL, erased, (start - len(erased), match.end()), n)


def _escapes(text: str) -> Iterator[Payload]:
    concealed: int | None = None
    last = 0
    for match in _ESCAPE.finditer(text):
        codes, final = match[1] or "", match[2]
        if concealed is not None and final == "m":
            hidden = text[concealed : match.start()]
            if hidden.strip():
                yield smuggled(CONTROL, hidden, (concealed, match.start()), len(hidden))
            concealed = None
        if final == "m" and _CONCEAL.search(codes):
            concealed = match.end()
        elif final in ("K", "J", "A", "F"):  # erase, or go back up and overwrite
            end = match.start()
            start = max(text.rfind("\n", last, end) + 1, last, end - _LONGEST_LINE)
            last = match.end()
            yield from prose(CONTROL, _ESCAPE.sub("", text[start:end]), (start, end))
    if concealed is not None and text[concealed:].strip():
        yield smuggled(CONTROL, text[concealed:], (concealed, len(text)), len(text) - concealed)
