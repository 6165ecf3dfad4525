"""Text that the reader of a page does not see, but a machine reads: found and decoded.

Everything here is a single pass or a bounded search: time is linear in the length of the text,
whatever it holds. Look-alike letters are a table of our own rather than the one of Unicode
(UTS 39), which equates letters that nobody would use as disguise and lacks some that are.
"""
# ruff: noqa: PLR2004 - code points, widths of encodings, lengths of words

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import permutations
from math import ceil, log, log2

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


def payloads(text: str) -> list[Payload]:
    """Return what is hidden in a text, in order of place.

    Innocent uses of the same characters are passed over: emoji families and flags, joiners of
    Persian and Indic scripts, soft hyphens, direction marks of right-to-left text, mathematics,
    full-width letters in East Asian text.

    Parameters
    ----------
    text
        Of any length, hostile or not.

    Returns
    -------
    list[Payload]
        May hold nested ones, such as tag characters within a comment.

    Examples
    --------
    >>> hidden = "".join(chr(0xE0000 + ord(c)) for c in "say no")
    >>> [(p.kind, p.decoded) for p in payloads("Opening hours" + hidden)]
    [('tag characters', 'say no')]
    """
    found: list[Payload] = []
    if not text.isascii() and _ODD.search(text):
        for find in (_tags, _variation_selectors, _zero_width, _bidi, _look_alikes, _styled):
            found += find(text)
    # isprintable is far quicker than a search, and nearly always true but for the ends of lines.
    if not text.replace("\n", " ").isprintable() and _CONTROL.search(text):
        found += _control(text)
    if "<" in text:
        found += _html(text)
    if "]:" in text:
        found += _markdown_comments(text)
    if "{white}" in text or "phantom" in text:
        found += _latex(text)
    return sorted(found, key=lambda payload: payload.span)


def _smuggled(kind: str, decoded: str, span: tuple[int, int], n: int) -> Payload:
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
_PLAIN_WORD = re.compile(r"[(\"'«„“¿¡]{0,2}[^\W\d_]+(?:['’-][^\W\d_]+){0,3}[.,;:!?)\"'»”]{0,3}")
_CODE = re.compile(r"[{}=<>;|\\$]|\w\(|::|//|\w:(?=\s)|\s-\s")


def prose_words(text: str) -> float:
    """Return how many words of prose a text holds: fewer than its words if it looks like code.

    Text without any spaces between its letters (Chinese, Japanese, Thai) counts half a word per
    letter. At most the first 4,000 characters are looked at, so that time is bounded.
    """
    text = text[:4000]
    tokens = text.split()
    words = [token for token in tokens if _PLAIN_WORD.fullmatch(token)]
    unspaced = sum(1 for c in text if "\u0e00" <= c <= "\u0eff" or "\u3040" <= c <= "\u9fff")
    if unspaced >= 4:
        return unspaced / 2 + sum(word.isascii() for word in words)
    if len(words) < 3 or len(words) < 0.6 * len(tokens):
        return 0.0
    share = sum(word.strip(".,;:!?\"'()").lower() in _FUNCTION_WORDS for word in words) / len(words)
    fluent = share >= 0.1 or not text.isascii()
    code = len(_CODE.findall(text)) / len(tokens)
    return len(words) * (1.0 if fluent else 0.6) * max(0.0, 1.0 - 2.0 * code)


# Tag characters

_TAG_RUN = re.compile("[\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]+")
# England, Scotland, Wales: a black flag, their tags, a cancel tag.
_FLAGS = frozenset({"gbeng", "gbsct", "gbwls"})
_SCATTERED = 4  # more runs than this are read as one message
_CANCEL_TAG = "\U000e007f"


def _tags(text: str) -> Iterator[Payload]:
    found = []
    for match in _TAG_RUN.finditer(text):
        run, start = match[0], match.start()
        decoded = "".join(chr(ord(c) - 0xE0000) for c in run if 0x20 <= ord(c) - 0xE0000 < 0x7F)
        on_flag = start > 0 and text[start - 1] == "\U0001f3f4"
        if not (on_flag and decoded in _FLAGS and run.endswith(_CANCEL_TAG)):
            found.append((decoded, match.span()))
    if len(found) > _SCATTERED:  # one by one between the letters that are seen
        decoded = "".join(part for part, _ in found)
        n = sum(end - start for _, (start, end) in found)
        yield _smuggled(TAGS, decoded, (found[0][1][0], found[-1][1][1]), n)
    else:
        for decoded, (start, end) in found:
            yield _smuggled(TAGS, decoded, (start, end), end - start)


# Variation selectors: the 256 of them carry a byte each

_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]+")


def _byte_of(selector: str) -> int:
    code = ord(selector)
    return code - 0xFE00 if code < 0xE0100 else code - 0xE0100 + 16


def _selects(base: str, selector: str) -> bool:
    """Return whether a variation selector has a use behind a character."""
    code, number = ord(base), _byte_of(selector)
    ideograph = 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x3FFFF
    if number >= 16:
        return ideograph
    if number >= 14:  # text or emoji style
        return base in "#*0123456789©®" or code >= 0x2000
    # Variants of ideographs, full-width punctuation, mathematical operators and some scripts.
    return code >= 0x1000 and unicodedata.category(base) != "So" and number <= 3


def _variation_selectors(text: str) -> Iterator[Payload]:
    singles: list[int] = []
    for match in _SELECTORS.finditer(text):
        run, start = match[0], match.start()
        if len(run) > 1:
            yield _smuggled(VARIATION, _decode_bytes(run), match.span(), len(run))
        elif start == 0 or not _selects(text[start - 1], run):
            singles.append(start)
    if singles:
        run = "".join(text[i] for i in singles)
        span = singles[0], singles[-1] + 1
        decoded = _decode_bytes(run) if len(run) > 3 else ""
        yield _smuggled(VARIATION, decoded, span, len(run))


def _decode_bytes(run: str) -> str:
    values = [_byte_of(c) for c in run]
    readings = [_text_of(values)]
    if max(values) < 16:
        readings.append(_text_of([16 * a + b for a, b in _chunks(values, 2)]))
        readings.append(_decode_symbols(run))
    return max(readings, key=_legibility)


# Zero-width characters

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a\u202c\u202d"
    "\u2060-\u2064\u206a-\u206f\u3164\ufeff\uffa0"
)
_INVISIBLE_RUN = re.compile(f"[{_INVISIBLE}]+")
_SPLIT = re.compile(
    # invisible between two Latin letters; soft hyphens only where they stand one letter apart
    "(?<=[A-Za-z])(?:[\u034f\u115f\u1160\u180e\u200b-\u200d\u2060-\u2064\u3164\ufeff\uffa0]{1,7}"
    "(?=[A-Za-z])|\u00ad(?=[A-Za-z]\u00ad))"
)
_MARKS = frozenset("\u200e\u200f\u061c\u00ad")
_LONG = 8  # symbols in a row: a byte, and more than typography ever puts there
_GAP = 80  # characters between two disguised words that still belong together


def _innocent(text: str, start: int, end: int) -> bool:
    """Return whether a short run of invisible characters stands where typography puts them."""
    if start == 0 or set(text[start:end]) <= _MARKS:
        return True
    before, after = text[start - 1], text[end : end + 1]
    # Joiners and fillers serve scripts beyond Latin, and emoji; a zero-width space separates
    # words of scripts that have no spaces.
    return ord(before) > 0x02FF or after > "\u02ff"


def _zero_width(text: str) -> Iterator[Payload]:
    loose: list[tuple[int, int]] = []
    long: list[tuple[int, int]] = []
    for match in _INVISIBLE_RUN.finditer(text):
        start, end = match.span()
        if end - start < _LONG:
            if not _innocent(text, start, end):
                loose.append((start, end))
            continue
        if len(set(match[0])) > 1:
            long.append((start, end))
        else:  # padding carries next to nothing
            n = end - start
            yield Payload(kind=ZERO_WIDTH, decoded="", span=(start, end), n_hidden=n, weight=0.2)
    together = [_message(text, spans) for spans in (long, loose) if len(spans) > 1]
    legible = [m for m in together if m.decoded and m.n_hidden >= 2 * _LONG]
    yield from legible
    if not (long and legible):
        yield from (_message(text, [span]) for span in long)
    if legible:
        return
    places = [match.span() for match in _SPLIT.finditer(text)]
    # Breaking opportunities in long words come one or two to a text.
    weight = 0.25 * log2(1 + len(places)) / max(1, len(places))
    for group in _grouped(places):
        start, end = _whole_words(text, group[0][0], group[-1][1])
        n = len(group)
        decoded = _INVISIBLE_RUN.sub("", text[start:end])
        yield Payload(
            kind=SPLIT_WORDS, decoded=decoded, span=(start, end), n_hidden=n, weight=n * weight
        )


def _message(text: str, spans: Sequence[tuple[int, int]]) -> Payload:
    """Return what the invisible characters at some places spell together."""
    run = "".join(text[start:end] for start, end in spans)
    decoded = _decode_symbols(run)
    return Payload(
        kind=ZERO_WIDTH,
        decoded=decoded,
        span=(spans[0][0], spans[-1][1]),
        n_hidden=len(run),
        # Two symbols weigh as one smuggled character; less sure where no text comes out.
        weight=(0.3 if decoded else 0.2) * log2(1 + len(run) / 2),
    )


def _whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span extended to word borders, at most 40 characters on either side."""
    left = text[max(0, start - 40) : start]
    right = text[end : end + 40]
    kept_left = re.split(r"\s", left)[-1]
    kept_right = re.split(r"\s", right, maxsplit=1)[0]
    return start - len(kept_left), end + len(kept_right)


def _grouped(spans: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield lists of spans that stand less than ``_GAP`` characters apart."""
    group: list[tuple[int, int]] = []
    for span in spans:
        if group and span[0] - group[-1][1] > _GAP:
            yield group
            group = []
        group.append(span)
    if group:
        yield group


# Symbols to text. Which symbol means what is tried out; the most legible reading wins.

_SAMPLE = 512  # symbols on which the reading is chosen
_LEGIBLE = 0.6


def _chunks(values: Sequence[int], width: int) -> Iterator[Sequence[int]]:
    for i in range(0, len(values) - width + 1, width):
        yield values[i : i + width]


def _text_of(values: Sequence[int]) -> str:
    """Return code units as text: UTF-8 where it is, else code points."""
    if not values or max(values) > 0x10FFFF:
        return ""
    if max(values) < 256:
        try:
            return bytes(values).decode()
        except UnicodeDecodeError:
            pass
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
        elif not c.isascii() and c.isalpha():
            value += 0.75 if ord(c) > 0x36F else 0.2
        elif c not in "\n\t":
            value -= 0.5 if c.isprintable() else 2.0
    return value / min(len(text), _SAMPLE)


def _decode_symbols(run: str) -> str:
    """Return the text that a run of few different symbols spells, or an empty string."""
    counts = {c: run.count(c) for c in dict.fromkeys(run)}
    # A symbol that frames the message says nothing.
    kept = [c for c in counts if counts[c] > 2 or len(run) < 2 * _LONG]
    if 2 <= len(kept) < len(counts):
        run = "".join(c for c in run if c in kept)
    best, best_legibility = None, _LEGIBLE
    for reading in _readings(run):
        legibility = _legibility(reading(run[:_SAMPLE]))
        if legibility > best_legibility:
            best, best_legibility = reading, legibility
    return best(run) if best else ""


class _Reading:
    """One way to read symbols: digits of a base, in groups of a width or parted by a symbol."""

    def __init__(
        self, digits: Sequence[str], width: int, separator: str = "", *, turned: bool = False
    ) -> None:
        self.values = {ord(c): value for value, c in enumerate(digits)}
        self.base, self.width, self.separator = len(digits), width, separator
        self.turned = turned  # the lowest digit comes first

    def __call__(self, run: str) -> str:
        groups = run.split(self.separator) if self.separator else [run]
        units: list[int] = []
        for group in groups:
            digits = [self.values[ord(c)] for c in group if ord(c) in self.values]
            width = self.width or min(max(1, len(digits)), 21)
            for chunk in _chunks(digits, width):
                unit = 0
                for digit in reversed(chunk) if self.turned else chunk:
                    unit = unit * self.base + digit
                units.append(unit)
        return _text_of(units)


def _readings(run: str) -> Iterator[_Reading]:
    alphabet = sorted(set(run))
    k = len(alphabet)
    if k > 16 or k < 2:
        return
    # Beyond four symbols there are too many orders to try them all.
    orders = (
        list(permutations(alphabet))
        if k <= 4
        else [tuple(alphabet), tuple(reversed(alphabet)), tuple(dict.fromkeys(run))]
    )
    for order in orders:
        widths = (8, 7, 16) if k == 2 else {ceil(8 * log(2, k)), ceil(16 * log(2, k))}
        for width in sorted(widths):
            yield _Reading(order, width)
            yield _Reading(order, width, turned=True)
        if k == 3:  # two digits and a separator, of characters or of words
            parted = len(run) / (1 + run.count(order[2]))
            for width in (0,) if parted < 2 * _LONG else (8, 7):
                yield _Reading(order[:2], width, order[2])


# Bidirectional controls

_BIDI_CONTROL = re.compile("[\u202a-\u202e\u2066-\u2069\n\u2029]")
_OPENS = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
_LRO, _RLO = "\u202d", "\u202e"
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_LATIN_OR_DIGIT = re.compile("[A-Za-z0-9]")
# As "Trojan Source" (CVE-2021-42574) does it: left-to-right pieces put in right-to-left order.
_LEFT_TO_RIGHT_PIECE = re.compile("[\u202a\u2066]")
_BIDI_CONTROLS = {ord(c): None for c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}


def _bidi(text: str) -> Iterator[Payload]:
    """Yield stretches that are shown in another order than they are read."""
    for opener, start, end in _bidi_stretches(text):
        inner = text[start:end]
        plain = inner.translate(_BIDI_CONTROLS)
        shown = plain[::-1]
        if opener in (_RLO, _LRO):
            turned = _LATIN_OR_DIGIT if opener == _RLO else _RIGHT_TO_LEFT
            n = len(turned.findall(plain))
        elif opener in "\u202b\u2067" and not _RIGHT_TO_LEFT.search(inner):
            pieces = [piece for piece in _BIDI_CONTROL.split(inner) if piece.strip()]
            n = len(plain) if len(_LEFT_TO_RIGHT_PIECE.findall(inner)) > 1 else 0
            shown = " ".join(reversed(pieces))
        else:
            n = 0
        if n >= 2:
            yield _smuggled(BIDI, shown, (start - 1, end), n)


def _bidi_stretches(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the opening character and the inside of outermost overrides and embeddings."""
    depth, opener, start = 0, "", 0
    for match in _BIDI_CONTROL.finditer(text):
        control, place = match[0], match.start()
        if control in "\n\u2029":  # a paragraph closes all
            if depth:
                yield opener, start, place
            depth = 0
        elif control in _OPENS:
            # An override within an isolate or embedding is what counts.
            if depth == 0 or (control in (_LRO, _RLO) and opener not in (_LRO, _RLO)):
                depth, opener, start = 0, control, place + 1
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                yield opener, start, place
    if depth:
        yield opener, start, len(text)


# Look-alike letters

_SCRIPTS = {  # foreign letters, and what they are taken for
    "Cyrillic": (
        "аеорсухіјѕһԁԛԝӏьгкмнпитвгьѵАВЕКМНОРСТУХІЈЅԌҮЬЗ",
        "aeopcyxijshdqwlbrkmhnutbrbvABEKMHOPCTYXIJSGYb3",
    ),
    "Greek": (
        "αορνικτυηωχγεϲϳςΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹ",
        "aopviktunwxyecjsABEZHIKMNOPTYXC",
    ),
    "Armenian": ("օսոհցքգզաԱՕՏՍլյե", "ounhgfqqwUOSUljt"),
    "Cherokee": ("ᎪᏴᏟᎠᎬᎻᎢᎫᏦᏞᎷᏢᏒᏚᎢᏙᎳᎩᏃꭺꮯꮪꮩꮃꮓ", "ABCDEHIJKLMPRSTVWYZacsvwz"),
    "Coptic": ("ⲥⲟⲣⲤⲎⲔⲘⲚⲞⲢⲦⲬ", "copCHKMNOPTX"),
    "Lisu": ("ꓮꓐꓚꓓꓰꓝꓖꓧꓙꓗꓡꓟꓠꓳꓑꓣꓢꓔꓴꓦꓪꓫꓬꓜ", "ABCDEFGHJKLMNOPRSTUVWXYZ"),
    "Small capitals": ("ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢɑɡ", "abcdefghijklmnoprstuvwyzag"),
}
_LOOK_ALIKE = {
    ord(c): latin
    for letters, taken_for in _SCRIPTS.values()
    for c, latin in zip(letters, taken_for, strict=True)
}
_FOREIGN = "".join(map(chr, _LOOK_ALIKE))
_HAS_FOREIGN = re.compile(f"[{_FOREIGN}]")
_WORD = re.compile(r"[^\W\d_]+")
# A foreign letter in a Latin word: before or after a lower-case letter of it, or between two.
_DISGUISED = re.compile(
    f"[a-zA-Z][{_FOREIGN}]{{1,40}}[a-z]|^[{_FOREIGN}]{{1,40}}[a-z]{{2}}"
    f"|[a-z]{{2}}[{_FOREIGN}]{{1,40}}$|[A-Z]{{2}}[{_FOREIGN}]{{1,40}}[A-Z]"
)
# Small capitals and others that phonetic transcriptions use too; these hold stress marks or
# letters that look like no other.
_PHONETIC_LETTERS = frozenset("ɪɡɑʙɢʜʟɴʀʏ")
_PHONETIC = re.compile("[ˈˌːəʃŋðθʒɔɛʊʌɹʁɾʔ]")
# Alike enough within a Latin word, not enough for a word of nothing else.
_LOOSE = frozenset("ьгкмнпитвѵηωχγειυκτςգզա")
_SYMBOLS = frozenset("αγεηικνορτυχω")  # that science puts before and behind Latin letters
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "log", "exp", "lim", "max", "min", "det"})


def _look_alikes(text: str) -> Iterator[Payload]:
    if not _HAS_FOREIGN.search(text):
        return
    mixed, whole, proper = _foreign_words(text)
    if proper > 2:  # foreign words stand there anyway, and slips of the keyboard among them
        each, whole = 0.08, []
    else:
        each = 0.4
    weights = {text[start:end].lower(): 0.15 for start, end in whole}
    for start, end in mixed:
        word = text[start:end].lower()
        in_science = _SYMBOLS.issuperset(_HAS_FOREIGN.findall(word))
        weights[word] = 0.5 * each if in_science else each
    for group in _grouped(sorted(mixed + whole)):
        start, end = group[0][0], group[-1][1]
        # A word that is repeated counts once.
        weight = sum(weights.pop(text[a:b].lower(), 0.0) for a, b in group)
        if weight:
            yield Payload(
                kind=LOOK_ALIKES,
                decoded=text[start:end].translate(_LOOK_ALIKE),
                span=(start, end),
                n_hidden=len(_HAS_FOREIGN.findall(text, start, end)),
                weight=weight,
            )


def _foreign_words(text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
    """Return words in which letters are disguised, words of look-alikes only, and other words.

    The last is how many words there are of a script beyond Latin that are what they look like.
    """
    phonetic = bool(_PHONETIC.search(text))
    mixed: list[tuple[int, int]] = []
    whole: list[tuple[int, int]] = []
    proper = 0
    for match in _WORD.finditer(text):
        word = match[0]
        foreign = [] if word.isascii() else _HAS_FOREIGN.findall(word)
        latin = any(c < "\u0250" for c in word)
        if len(foreign) < sum(c >= "\u0250" for c in word):
            proper += not latin
        elif not foreign or _is_phonetic(text, match.start(), foreign, phonetic=phonetic):
            pass
        elif latin:
            if _is_disguised(word, foreign):
                mixed.append(match.span())
        elif len(word) > 2 and not word.isupper() and not _LOOSE.intersection(word):
            whole.append(match.span())
    return mixed, whole, proper


def _is_phonetic(text: str, start: int, foreign: Sequence[str], *, phonetic: bool) -> bool:
    return _PHONETIC_LETTERS.issuperset(foreign) and (
        phonetic or text[start - 1 : start] in ("/", "[")
    )


def _is_disguised(word: str, foreign: Sequence[str]) -> bool:
    """Return whether a word of Latin and look-alike letters is more than a term of science."""
    if len(word) < 4 or not _DISGUISED.search(word):
        return False
    if len(foreign) == 1 and foreign[0] in _SYMBOLS:
        return foreign[0] not in (word[0], word[-1])
    return word.strip(_FOREIGN).lower() not in _FUNCTIONS


# Letters that NFKC turns into others

_STYLED_LETTER = (
    "\u24b6-\u24e9\u02b0-\u02b8\u02e1-\u02e3\u1d9c-\u1dbf\u249c-\u24b5\uff21-\uff3a\uff41-\uff5a\u1d2c-\u1d6a\u2071\u207f\u2090-\u209c"
    "\u2102\u210a-\u2115\u2119-\u211d\u2124\u2128\u212c-\u2134\u2145-\u2149"
    "\U0001d400-\U0001d6a3\U0001f110-\U0001f12f\U0001f130-\U0001f189"
)
_STYLED_RUN = re.compile(
    f"[{_STYLED_LETTER}](?:[{_STYLED_LETTER}]|[ '’.,!?-](?=[{_STYLED_LETTER}]))+"
)
_FULL_WIDTH = re.compile("[\uff21-\uff3a\uff41-\uff5a]")
_EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FLAG_RUN = re.compile("[\U0001f1e6-\U0001f1ff](?:\\s?[\U0001f1e6-\U0001f1ff])*")
# Negative circled and squared letters, and regional indicators, have no NFKC form; that of
# letters in parentheses has the parentheses.
_ENCLOSED = {
    first + i: chr(ord("a") + i) for first in (0x1F150, 0x1F170, 0x1F1E6, 0x249C) for i in range(26)
}


def _styled(text: str) -> Iterator[Payload]:
    east_asian = bool(_EAST_ASIAN.search(text))
    places = []
    for match in _STYLED_RUN.finditer(text):
        run = match[0]
        if east_asian and _FULL_WIDTH.search(run):
            continue
        words = [word for word in _plain(run).lower().split() if len(word) > 2]
        if len(words) == 1 and (words[0] in _FUNCTIONS or len(words[0]) < 4):
            continue
        if words:
            places.append((match.start(), match.end()))
    for group in _grouped(places):
        start, end = group[0][0], group[-1][1]
        decoded = _plain(text[start:end])
        n = sum(map(len, re.findall(f"[{_STYLED_LETTER}]+", text[start:end])))
        # A heading in bold mathematical letters is a fashion; sentences are not.
        yield Payload(
            kind=STYLED,
            decoded=decoded,
            span=(start, end),
            n_hidden=n,
            weight=0.3 * log2(1 + n / 3),
        )
    for match in _FLAG_RUN.finditer(text):
        # Flags are pairs and come in rows; a row that holds pairs of no country spells a word.
        letters = "".join(match[0].translate(_ENCLOSED).split())
        pairs = [letters[i : i + 2] for i in range(0, len(letters), 2)]
        odd = sum(pair not in _COUNTRIES for pair in pairs)
        if odd >= 2 and len(letters) >= 5:
            yield _smuggled(STYLED, letters, match.span(), len(letters))


# ISO 3166-1 alpha-2 and the few others that have a flag.
_CODES = (
    "ac ad ae af ag ai al am ao aq ar as at au aw ax az ba bb bd be bf bg bh bi bj bl bm bn bo bq "
    "br bs bt bv bw by bz ca cc cd cf cg ch ci ck cl cm cn co cp cr cu cv cw cx cy cz de dg dj dk "
    "dm do dz ea ec ee eg eh er es et eu fi fj fk fm fo fr ga gb gd ge gf gg gh gi gl gm gn gp gq "
    "gr gs gt gu gw gy hk hm hn hr ht hu ic id ie il im in io iq ir is it je jm jo jp ke kg kh ki "
    "km kn kp kr kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc md me mf mg mh mk ml mm mn mo mp "
    "mq mr ms mt mu mv mw mx my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm "
    "pn pr ps pt pw py qa re ro rs ru rw sa sb sc sd se sg sh si sj sk sl sm sn so sr ss st sv sx "
    "sy sz ta tc td tf tg th tj tk tl tm tn to tr tt tv tw tz ua ug um un us uy uz va vc ve vg vi "
    "vn vu wf ws xk ye yt za zm zw"
)
_COUNTRIES = frozenset(_CODES.split())


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text.translate(_ENCLOSED))


# Control characters

_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\x9b]|\r(?!\n)")
_ESCAPE = re.compile(r"(?:\x1b\[|\x9b)([0-9;?]{0,20})([A-Za-z])|\x1b\]([^\x07\x1b]{0,200})")
_LONGEST_LINE = 4000
_CONCEAL = re.compile(r"(?:^|;)8(?:;|$)|(?:^|;)30;40(?:;|$)|(?:^|;)37;47(?:;|$)")


def _control(text: str) -> Iterator[Payload]:
    """Yield what a terminal would not show: erased, overwritten or concealed."""
    yield from _backspaces(text)
    yield from _escapes(text)
    if text.count("\r") <= text.count("\n"):  # else they end lines, as on old Macintoshes
        last = 0
        for match in re.finditer(r"\r(?=[^\r\n])", text):
            end = match.start()
            start = max(text.rfind("\n", last, end) + 1, last, end - _LONGEST_LINE)
            if words := prose_words(text[start:end]):
                yield _prose(CONTROL, text[start:end], (start, end), words)
            last = end + 1


def _backspaces(text: str) -> Iterator[Payload]:
    for match in re.finditer("[\x08\x7f]+", text):
        start, n = match.start(), len(match[0])
        erased = text[max(0, start - n) : start]
        # Overstrike of printed manuals: a letter on itself or on an underscore.
        overstrike = n == 1 and (erased == "_" or erased == text[match.end() : match.end() + 1])
        if erased and not overstrike:
            yield _smuggled(CONTROL, erased, (start - len(erased), match.end()), n)


def _escapes(text: str) -> Iterator[Payload]:
    concealed: int | None = None
    last = 0
    for match in _ESCAPE.finditer(text):
        codes, final = match[1] or "", match[2]
        if concealed is not None and final == "m":
            hidden = text[concealed : match.start()]
            if hidden.strip():
                yield _smuggled(CONTROL, hidden, (concealed, match.start()), len(hidden))
            concealed = None
        if final == "m" and _CONCEAL.search(codes):
            concealed = match.end()
        elif final in ("K", "J", "A", "F"):  # erase, or go back up and write over
            end = match.start()
            start = max(text.rfind("\n", last, end) + 1, last, end - _LONGEST_LINE)
            last = match.end()
            erased = _ESCAPE.sub("", text[start:end])
            if words := prose_words(erased):
                yield _prose(CONTROL, erased, (start, end), words)
    if concealed is not None and text[concealed:].strip():
        yield _smuggled(CONTROL, text[concealed:], (concealed, len(text)), len(text) - concealed)


# Prose in markup

_NOTE = re.compile(
    r"^\[|\b(?:copyright|licen[sc]ed?|spdx|todo|fixme|xxx|hack|eslint|prettier|markdownlint|pylint"
    r"|noqa|do not edit|generated (?:by|from|with)|auto-?generated|google tag|analytics|begin|start"
    r"|end|endif|toc|more|doctoc|vale|textlint|cspell|deprecated)\b",
    re.IGNORECASE,
)
_LICENCE = re.compile(
    r"\b(?:copyright|licen[sc]ed?|warrant(?:y|ies)|rights reserved|redistribut\w{1,5}|spdx)\b",
    re.IGNORECASE,
)
_TAG_OR_ENTITY = re.compile(r"<[^<>]{0,1000}>|&#?\w{1,10};")


def _prose(kind: str, decoded: str, span: tuple[int, int], words: float) -> Payload:
    """Return a payload of prose; 10 words weigh 1.04."""
    return Payload(
        kind=kind, decoded=decoded, span=span, n_hidden=len(decoded), weight=0.3 * log2(1 + words)
    )


def _comment(decoded: str, span: tuple[int, int], factor: float) -> Iterator[Payload]:
    decoded = " ".join(_TAG_OR_ENTITY.sub(" ", decoded).split())
    words = prose_words(decoded) - 4.0  # a remark of that length says what comes next
    if len(set(map(str.lower, _LICENCE.findall(decoded[:2000])))) > 1:
        words = min(words, 0.3)  # however long it is
    elif _NOTE.search(decoded[:80]):
        factor *= 0.1
    if words * factor > 0:
        yield _prose(COMMENT, decoded, span, words * factor)


_MARKDOWN_COMMENT = re.compile(
    r"^[ \t]{0,3}\[[^\]\n]{1,80}\]:[ \t]{0,8}(\S{1,500})[ \t]{1,8}"
    r"(?:\(([^\n]{1,4000})\)|\"([^\n]{1,4000})\"|'([^\n]{1,4000})')[ \t]{0,8}$",
    re.MULTILINE,
)
_NOWHERE = frozenset({"#", "<>", "<#>", ".", "/", "//", "-"})


def _markdown_comments(text: str) -> Iterator[Payload]:
    for match in _MARKDOWN_COMMENT.finditer(text):
        # The title of a link that leads somewhere is shown when one points at it.
        factor = 1.0 if match[1] in _NOWHERE else 0.08
        yield from _comment(match[2] or match[3] or match[4], match.span(), factor)


# LaTeX, as in papers that address their reviewers' models in white

_LATEX = re.compile(
    r"\\(?:textcolor\s{0,4}\{white\}\s{0,4}\{|color\s{0,4}\{white\}|[hv]?phantom\s{0,4}\{)"
    r"([^{}]{1,4000})"
)


def _latex(text: str) -> Iterator[Payload]:
    for match in _LATEX.finditer(text):
        if words := prose_words(match[1]):
            yield _prose(LATEX, match[1], match.span(1), words)


# HTML. A scanner of tags rather than a parser: what is hidden is decided by the element that hides
# it, and hostile markup must not cost more than its length.

_TAG = re.compile(r"<(?:(!--)|(/?)([A-Za-z][A-Za-z0-9:-]{0,40}))")
_NO_CONTENT = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_NO_CONTENT.split())
_ATTRIBUTE = re.compile(
    r"([A-Za-z][A-Za-z-]{0,30})(?:\s{0,8}=\s{0,8}(?:\"([^\"]{0,2000})\"|'([^']{0,2000})'|([^\s\"'>]{1,500})))?"
)
_CSS_COMMENT = re.compile(r"/\*[^*]{0,500}\*/|\s")
_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)", re.MULTILINE)
_END_OF_RAW = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_NO_TAG = re.compile(r"<|\n[ \t\r]{0,20}\n")  # within what would be one: a sign for "less than"
_LONGEST_TAG = 4000
_DEEPEST = 60  # open elements among which the one that a closing tag closes is looked for


@dataclass(slots=True)
class _Element:
    """An open element: where its inside starts, what hides it, and the colour behind its text."""

    name: str
    start: int
    hidden: float  # 0 where it is shown, else how sure it is that it is not
    background: tuple[int, int, int] | None


def _html(text: str) -> Iterator[Payload]:  # noqa: C901 - one case per kind of tag
    fences = [match.start() for match in _FENCE.finditer(text)]
    stack: list[_Element] = []
    hiding: dict[str, float] = {}  # selectors that a style sheet hides
    place = covered = 0  # up to `covered`, hidden text was reported
    while match := _TAG.search(text, place):
        start = match.start()
        if match[1]:
            end = text.find("-->", match.end())
            place = len(text) if end < 0 else end + 3
            decoded = text[match.end() : len(text) if end < 0 else end]
            # A comment that is never closed may be a remark on comments.
            sure = _shown_as_code(text, start, fences) * (0.5 if end < 0 else 1.0)
            yield from _comment(decoded, (start, place), sure)
            continue
        end = text.find(">", match.end(), match.end() + _LONGEST_TAG)
        if end < 0 or _NO_TAG.search(text, match.end(), end):
            place = match.end()
            continue
        place = end + 1
        name = match[3].lower()
        if match[2]:
            for element in _close(stack, name):
                if element.hidden and element.start >= covered:
                    covered = start
                    yield from _hidden(text, element, start, fences)
        elif name in ("script", "style"):
            raw = _END_OF_RAW[name].search(text, place)
            end = raw.start() if raw else len(text)
            if name == "style":
                hiding |= _hiding_selectors(text[place:end])
            place = end
        elif name == "input":
            yield from _hidden_input(text[match.end() : end], (start, place))
        elif name not in _VOID and text[end - 1] != "/":
            behind = stack[-1].background if stack else None
            stack.append(_opened(name, place, text[match.end() : end], hiding, behind))
    for element in stack:
        placeholder = element.name == "template"  # as in "--format=<template>"
        if element.hidden and element.start >= covered and not placeholder:
            covered = len(text)
            yield from _hidden(text, element, covered, fences)


def _shown_as_code(text: str, place: int, fences: Sequence[int]) -> float:
    """Return a factor for what stands in a block of code: renderers show it."""
    return 0.15 if bisect(fences, place) % 2 or text[place - 1 : place] == "`" else 1.0


def _close(stack: list[_Element], name: str) -> list[_Element]:
    """Take the element of that name off the stack, with all that is open within it."""
    for depth in range(1, min(len(stack), _DEEPEST) + 1):
        if stack[-depth].name == name:
            closed = stack[-depth:]
            del stack[-depth:]
            return closed
    return []


def _hidden(text: str, element: _Element, end: int, fences: Sequence[int]) -> Iterator[Payload]:
    decoded = " ".join(_TAG_OR_ENTITY.sub(" ", text[element.start : end]).split())
    sure = element.hidden * _shown_as_code(text, element.start, fences)
    if words := prose_words(decoded) * sure:
        yield _prose(HTML, decoded, (element.start, end), words)


def _attributes(source: str) -> dict[str, str]:
    source = unescape(source) if "&" in source else source
    return {
        match[1].lower(): match[2] or match[3] or match[4] or ""
        for match in _ATTRIBUTE.finditer(source)
    }


def _hidden_input(source: str, span: tuple[int, int]) -> Iterator[Payload]:
    values = _attributes(source)
    decoded = values.get("value", "")
    if values.get("type", "").lower() == "hidden" and (words := prose_words(decoded)):
        yield _prose(HTML, decoded, span, words)


def _opened(
    name: str,
    start: int,
    attributes: str,
    hiding: dict[str, float],
    behind: tuple[int, int, int] | None,
) -> _Element:
    values = {key: value.lower() for key, value in _attributes(attributes).items()}
    style = _CSS_COMMENT.sub("", values.get("style", ""))
    if "bgcolor" in values:
        style = f"background:{values['bgcolor']};{style}"
    if name == "font" and "color" in values:
        style = f"color:{values['color']};{style}"
    declared = _declarations(style)
    behind = _background(declared) or behind
    sure = max(
        _hides(declared, behind),
        1.0 if "hidden" in values and values["hidden"] != "until-found" else 0.0,
        0.7 if name == "template" else 0.0,
        1.0 if name in ("svg", "div", "iframe") and "0" in map(values.get, _SIZES) else 0.0,
        0.2 if values.get("aria-hidden") == "true" else 0.0,
    )
    if hiding:
        selectors = [name, f"#{values.get('id', '')}"]
        selectors += [f".{c}" for c in values.get("class", "").split()[:20]]
        sure = max([sure, *(hiding.get(selector, 0.0) for selector in selectors)])
    return _Element(name, start, sure, behind)


def _declarations(style: str) -> dict[str, str]:
    pairs = (declaration.partition(":") for declaration in style.split(";")[:60])
    return {name: value.replace("!important", "") for name, _, value in pairs}


_LAST_SELECTOR = re.compile(r"[.#]?[\w-]{1,64}$")  # of "div p.note", what matters is ".note"


def _background(declared: dict[str, str]) -> tuple[int, int, int] | None:
    return _colour(declared.get("background-color") or declared.get("background", ""))


def _hiding_selectors(sheet: str) -> dict[str, float]:
    found = {}
    for rule in sheet.split("}"):
        selectors, _, body = rule.partition("{")
        declared = _declarations(_CSS_COMMENT.sub("", body).lower())
        if sure := _hides(declared, _background(declared)):
            for selector in selectors.lower().split(",")[:20]:
                if last := _LAST_SELECTOR.search(selector.strip()):
                    found[last[0]] = sure
    return found


_LENGTH = re.compile(r"(-?[0-9]{0,6}\.?[0-9]{0,6})(px|pt|em|rem|ex|vw|vh|cm|mm|in|%|)")
_PIXELS = {"em": 16.0, "rem": 16.0, "ex": 8.0, "vw": 10.0, "vh": 10.0, "%": 0.16, "pt": 1.3}
_OFF_SCREEN = 500.0  # pixels
_OFFSETS = ("left", "right", "top", "bottom", "text-indent", "margin-left", "margin-top")
_SIZES = ("width", "height", "max-width", "max-height")
_NO_ALPHA = re.compile(r"^(?:rgba|hsla)\([^)]{1,60},0?\.?0+%?\)$")


def _pixels(value: str) -> float | None:
    match = _LENGTH.fullmatch(value)
    if not match or not any(c.isdigit() for c in match[1]):
        return None
    return float(match[1]) * _PIXELS.get(match[2], 1.0)


def _hides(declared: dict[str, str], behind: tuple[int, int, int] | None) -> float:
    """Return how sure it is that declarations of CSS hide the text that they apply to, [0, 1]."""
    size, opacity = _pixels(declared.get("font-size", "")), _pixels(declared.get("opacity", ""))
    boxed = declared.get("overflow") == "hidden"
    transform = declared.get("transform", "")
    if (
        declared.get("display") == "none"
        or declared.get("visibility") in ("hidden", "collapse")
        or (opacity is not None and opacity <= 0.05)
        or (size is not None and 0 <= size <= 2)
        or any((_pixels(declared.get(side, "")) or 0.0) <= -_OFF_SCREEN for side in _OFFSETS)
        or (boxed and any(_pixels(declared.get(side, "")) == 0 for side in _SIZES))
        or ("scale(0" in transform and "scale(0." not in transform)
    ):
        return 1.0
    clip = declared.get("clip", "") + declared.get("clip-path", "")
    if clip.startswith(("rect(0", "rect(1px", "inset(50%", "inset(100%", "circle(0")):
        return 0.6  # for screen readers, mostly
    return _vanishes(declared, behind)


def _vanishes(declared: dict[str, str], behind: tuple[int, int, int] | None) -> float:
    """Return how sure it is that text has the colour of what is behind it, [0, 1]."""
    colour, picture = declared.get("color", ""), declared.get("background", "")
    if colour == "transparent" or _NO_ALPHA.search(colour):
        return 1.0
    front = _colour(colour)
    if front is None or "url(" in picture or "gradient" in picture:
        return 0.0
    # Without a colour behind it that we know of, the page is likely white, but not surely.
    distance = sum(abs(a - b) for a, b in zip(front, behind or (255, 255, 255), strict=True))
    return (1.0 if behind else 0.6) if distance <= 24 else 0.0


_COLOURS = {
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "snow": (255, 250, 250),
    "ivory": (255, 255, 240),
    "ghostwhite": (248, 248, 255),
    "whitesmoke": (245, 245, 245),
    "floralwhite": (255, 250, 240),
    "red": (255, 0, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "gray": (128, 128, 128),
    "grey": (128, 128, 128),
}
_RGB = re.compile(r"rgba?\(([0-9]{1,3})[, ]{1,3}([0-9]{1,3})[, ]{1,3}([0-9]{1,3})")
_HEX = re.compile(r"#([0-9a-f]{3,8})")


def _colour(value: str) -> tuple[int, int, int] | None:
    if value in _COLOURS:
        return _COLOURS[value]
    if match := _HEX.match(value):
        digits = match[1]
        if len(digits) in (3, 4):
            digits = "".join(2 * c for c in digits)
        if len(digits) in (6, 8):
            return int(digits[:2], 16), int(digits[2:4], 16), int(digits[4:6], 16)
    if value.startswith("hsl") and value.endswith(",100%)"):
        return _COLOURS["white"]
    if match := _RGB.match(value):
        return int(match[1]), int(match[2]), int(match[3])
    return None


# Characters that any of the finders above looks for; most texts hold none of them.
_ODD = re.compile(
    f"[{_INVISIBLE}\u202b\u202e\u2066-\u2069\ufe00-\ufe0f{_FOREIGN}{_STYLED_LETTER}"
    "\U0001f1e6-\U0001f1ff\U000e0000-\U000e0fff]"
)
