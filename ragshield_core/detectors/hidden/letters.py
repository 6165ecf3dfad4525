"""Finders of disguised letters: reversed order, look-alikes, styled letters."""

# ruff: noqa: PLR2004 - code points, widths of encodings, lengths of words

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from math import log2

from ragshield_core.detectors.hidden.payload import BIDI, LOOK_ALIKES, STYLED, Payload, smuggled
from ragshield_core.detectors.hidden.symbols import grouped
from ragshield_core.text.characters import LETTERS, RIGHT_TO_LEFT

# Bidirectional controls

_BIDI_CONTROL = re.compile("[\u202a-\u202e\u2066-\u2069\n\u2029]")
_OPENS = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
_LRO, _RLO = "\u202d", "\u202e"
_RIGHT_TO_LEFT = re.compile(f"[{RIGHT_TO_LEFT}]")
_LEFT_TO_RIGHT = re.compile(f"(?![{RIGHT_TO_LEFT}])[{LETTERS}0-9]")
# "Trojan Source" (CVE-2021-42574) puts left-to-right pieces in right-to-left order.
_LEFT_TO_RIGHT_PIECE = re.compile("[\u202a\u2066]")
_BIDI_CONTROLS = {ord(c): None for c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}


def overrides(text: str) -> Iterator[Payload]:
    """Yield stretches whose displayed order differs from their logical order."""
    for opener, start, end in _bidi_stretches(text):
        inner = text[start:end]
        plain = inner.translate(_BIDI_CONTROLS)
        shown = plain[::-1]
        if opener in (_RLO, _LRO):
            turned = _LEFT_TO_RIGHT if opener == _RLO else _RIGHT_TO_LEFT
            n = len(turned.findall(plain))
        elif opener in "\u202b\u2067" and not _RIGHT_TO_LEFT.search(inner):
            pieces = [piece for piece in _BIDI_CONTROL.split(inner) if piece.strip()]
            n = len(plain) if len(_LEFT_TO_RIGHT_PIECE.findall(inner)) > 1 else 0
            shown = " ".join(reversed(pieces))
        else:
            n = 0
        if n >= 2:
            yield smuggled(BIDI, shown, (start - 1, end), n)


def _bidi_stretches(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the opening character and the inside of each outermost override or embedding."""
    depth, opener, start = 0, "", 0
    for match in _BIDI_CONTROL.finditer(text):
        control, place = match[0], match.start()
        if control in "\n\u2029":  # the end of a paragraph closes all
            if depth:
                yield opener, start, place
            depth = 0
        elif control in _OPENS:
            # An override within an isolate or embedding takes precedence.
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

_SCRIPTS = {  # foreign letters, and the Latin letters that they resemble
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
FOREIGN = "".join(map(chr, _LOOK_ALIKE))
_HAS_FOREIGN = re.compile(f"[{FOREIGN}]")
# A word with a letter beyond the Latin scripts.
_WORD_BEYOND_LATIN = re.compile(
    r"(?<![^\W\d_])(?:(?![\W\d_])[\x00-\u024f])*+(?![\W\d_])[^\x00-\u024f][^\W\d_]*"
)
# Foreign letters in a Latin word: before, after or between its letters.
_DISGUISED = re.compile(
    f"[a-zA-Z][{FOREIGN}]{{1,40}}[a-z]|^[{FOREIGN}]{{1,40}}[a-z]{{2}}"
    f"|[a-z]{{2}}[{FOREIGN}]{{1,40}}$|[A-Z]{{2}}[{FOREIGN}]{{1,40}}[A-Z]"
)
# Small capitals and other letters that phonetic transcriptions use too. Transcriptions contain
# stress marks or letters without a look-alike.
_PHONETIC_LETTERS = frozenset("ɪɡɑʙɢʜʟɴʀʏ")
_PHONETIC = re.compile("[ˈˌːəʃŋðθʒɔɛʊʌɹʁɾʔ]")
# Letters similar enough within a Latin word, but not for a word of such letters alone.
_LOOSE = frozenset("ьгкмнпитвѵηωχγειυκτςգզա")
_SYMBOLS = frozenset("αγεηικνορτυχω")  # symbols of science, before or after Latin letters
_FUNCTIONS = frozenset({"sin", "cos", "tan", "cot", "log", "exp", "lim", "max", "min", "det"})


def look_alikes(text: str) -> Iterator[Payload]:
    """Yield words in which letters of another script stand for Latin letters."""
    if not _HAS_FOREIGN.search(text):
        return
    mixed, whole, proper = _foreign_words(text)
    if proper > 2:  # a text with other foreign words has slips of the keyboard, too
        each, whole = 0.08, []
    else:
        each = 0.4
    weights = {text[start:end].lower(): 0.15 for start, end in whole}
    for start, end in mixed:
        word = text[start:end].lower()
        in_science = _SYMBOLS.issuperset(_HAS_FOREIGN.findall(word))
        weights[word] = 0.5 * each if in_science else each
    for group in grouped(sorted(mixed + whole)):
        start, end = group[0][0], group[-1][1]
        # A repeated word counts once.
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
    """Return words with disguised letters, words of look-alikes only, and a number of words.

    The number counts the genuine words of scripts beyond Latin.
    """
    phonetic = bool(_PHONETIC.search(text))
    mixed: list[tuple[int, int]] = []
    whole: list[tuple[int, int]] = []
    proper = 0
    for match in _WORD_BEYOND_LATIN.finditer(text):
        word = match[0]
        foreign = _HAS_FOREIGN.findall(word)
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
    """Return whether a word of Latin and look-alike letters is not just a term of science."""
    if len(word) < 4 or not _DISGUISED.search(word):
        return False
    if len(foreign) == 1 and foreign[0] in _SYMBOLS:
        return foreign[0] not in (word[0], word[-1])
    return word.strip(FOREIGN).lower() not in _FUNCTIONS


# Letters that NFKC turns into other letters

STYLED_LETTER = (
    "\u24b6-\u24e9\u02b0-\u02b8\u02e1-\u02e3\u1d9c-\u1dbf\u249c-\u24b5\uff21-\uff3a\uff41-\uff5a\u1d2c-\u1d6a\u2071\u207f\u2090-\u209c"
    "\u2102\u210a-\u2115\u2119-\u211d\u2124\u2128\u212c-\u2134\u2145-\u2149"
    "\U0001d400-\U0001d6a3\U0001f110-\U0001f12f\U0001f130-\U0001f189"
)
_STYLED_RUN = re.compile(f"[{STYLED_LETTER}](?:[{STYLED_LETTER}]|[ '’.,!?-](?=[{STYLED_LETTER}]))+")
_FULL_WIDTH = re.compile("[\uff21-\uff3a\uff41-\uff5a]")
_EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FLAG_RUN = re.compile("[\U0001f1e6-\U0001f1ff](?:\\s?[\U0001f1e6-\U0001f1ff])*")
# Negative circled and squared letters and regional indicators have no NFKC form; the form of
# letters in parentheses includes the parentheses.
_ENCLOSED = {
    first + i: chr(ord("a") + i) for first in (0x1F150, 0x1F170, 0x1F1E6, 0x249C) for i in range(26)
}


def styled_letters(text: str) -> Iterator[Payload]:
    """Yield runs of letters that normalise to other letters."""
    places = []
    east_asian = _FULL_WIDTH.search(text) and _EAST_ASIAN.search(text)
    for match in _STYLED_RUN.finditer(text):
        run = match[0]
        if east_asian and _FULL_WIDTH.search(run):
            continue
        words = [word for word in _plain(run).lower().split() if len(word) > 2]
        if len(words) == 1 and (words[0] in _FUNCTIONS or len(words[0]) < 4):
            continue
        if words:
            places.append((match.start(), match.end()))
    for group in grouped(places):
        start, end = group[0][0], group[-1][1]
        decoded = _plain(text[start:end])
        n = sum(map(len, re.findall(f"[{STYLED_LETTER}]+", text[start:end])))
        # A heading in bold mathematical letters is a fashion; whole sentences are suspicious.
        yield Payload(
            kind=STYLED,
            decoded=decoded,
            span=(start, end),
            n_hidden=n,
            weight=0.3 * log2(1 + n / 3),
        )


def flags(text: str) -> Iterator[Payload]:
    """Yield rows of flags that belong to no country and spell a word."""
    for match in _FLAG_RUN.finditer(text):
        # Flags are pairs of letters in a row; a row with pairs of no country spells a word.
        letters = "".join(match[0].translate(_ENCLOSED).split())
        pairs = [letters[i : i + 2] for i in range(0, len(letters), 2)]
        odd = sum(pair not in _COUNTRIES for pair in pairs)
        if odd >= 2 and len(letters) >= 5:
            yield smuggled(STYLED, letters, match.span(), len(letters))


# ISO 3166-1 alpha-2 and the few other codes with a flag.
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
