"""Sentences of a readable text, with leetspeak undone, and the hidden parts of a text."""

from __future__ import annotations

import binascii
import html
import re
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

from ragshield_core.detectors.hidden.detector import payloads
from ragshield_core.detectors.instruction.rules import needed_words
from ragshield_core.text.lexicon import plain_letters
from ragshield_core.text.linear import hint
from ragshield_core.text.normalized import Readable, sentences

# Longest line that counts as a single word, and longest run of them: a sentence may be set so.
MAX_LINE = 15
MAX_JOINED_LINES = 300

_LEET = str.maketrans("0134578@$", "oieastbas")
_LEET_SIGN = re.compile(r"[0134578@$][a-z]")  # a faster first test
_LEET_HINT = re.compile(r"[a-z][0134578@$][a-z]")
# A word that does not consist of letters alone.
_LEET_WORD = re.compile(r"(?<![\w@$])(?=[a-z]*+[0134578@$])[a-z0134578@$]{4,24}(?![\w@$])")

# A tag with quoted values, which may contain a ">"; otherwise it ends at the first ">".
_TAG = re.compile(
    r"(?<!/)<(/?)([A-Za-z][A-Za-z0-9:-]{0,40})"
    r"((?:\s(?:(?:[^<>\"']|\"[^\"<]{0,1000}\"|'[^'<]{0,1000}')*+(?=>)|[^<>]{0,2000}))?)>"
)
# Elements inside a line; other elements begin a new line.
_INLINE = frozenset(
    re.split(
        " ",
        "a abbr b cite code del em font i ins kbd mark q s small span strong sub sup tt u wbr",
    )
)
_BLOCKS = frozenset(
    re.split(
        " ",
        "address article aside blockquote body br button caption center dd details dialog div dl "
        "dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 head header hr html label "
        "legend li main meta nav noscript ol option p pre section select summary table tbody td "
        "template textarea tfoot th thead title tr ul",
    )
)
# A text of three words or more in an attribute: of a picture, a title, a description.
_ATTRIBUTE_TEXT = re.compile(
    r"\s(?:alt|title|content|summary|label|placeholder|caption|value|description|aria-[a-z]{1,20}"
    r"|data-[a-z-]{1,20})=(?:\"([^\"]{12,1000})\"|'([^']{12,1000})')",
    re.IGNORECASE,
)
# Texts of pictures and titles of links in Markdown; quoted values on lines of their own, as in
# front matter, and text in triple quotes.
_VALUE = re.compile(
    r"!\[([^\][\n]{12,1000})\](?:\([^\s()]{0,500})?"
    r"|\](?:\(|:[ ]{1,4})[^\s()]{1,500}\s{1,4}(?:\"([^\"\n]{12,1000})\"|'([^\"'\n]{12,1000})')\)?"
    r"|(?<=\n)[ \t-]{0,8}\"?[A-Za-z_-]{1,40}\"?:[ ]{1,4}"
    r"(?:\"([^\"\n]{12,1000})\"|'([^'\n]{12,1000})'),?(?=\n)"
    r"|\"\"\"([^\"]{12,1000})\"\"\""
)
# Beginning of a comment after code, and lines of a block comment; all blanks are single by now.
_COMMENT = re.compile(r"(?<=[^\s#/*])[ ](?://|#)[ ]")
_COMMENT_LINE = re.compile(r"\n\*[ ]")
# A key of front matter.
_KEY = re.compile(r"\n[A-Za-z_-]{1,40}:[ ](?=[^\"'\n]{12})")


def without_markup(view: Readable) -> Readable:
    """Return a text as its reader sees it, with the texts of attributes on lines of their own."""
    if '"' in view.text or "![" in view.text or " '" in view.text:
        view = view.replaced(_VALUE, lambda match: f"\n{match[match.lastindex or 0]}\n")
    if view.text.startswith("---\n"):
        view = view.replaced(_KEY, lambda _: "\n")
    if " # " in view.text or " // " in view.text:
        view = view.replaced(_COMMENT, lambda _: "\n")
    if "/*" in view.text:
        view = view.replaced(_COMMENT_LINE, lambda _: "\n")
    return view.replaced(_TAG, _shown_tag) if ">" in view.text else view


def _shown_tag(match: re.Match[str]) -> str:
    name = match[2].lower()
    if name not in _INLINE and name not in _BLOCKS and not match[3]:
        return match[0]  # a placeholder, or a mark of a template
    texts = [one or other for one, other in _ATTRIBUTE_TEXT.findall(match[3])] if match[3] else ()
    if texts:
        return "\n{}\n".format("\n".join(texts))
    return "" if name in _INLINE else "\n"


def sentences_of(view: Readable) -> tuple[Readable, str, list[tuple[int, int]]]:
    """Return readable text without leetspeak, the same in lower case, and its sentences."""
    plain = plain_letters(view.text)
    if _LEET_SIGN.search(plain) and _LEET_HINT.search(plain):
        leet = _without_leet(view)
        if leet is not view:
            view, plain = leet, plain_letters(leet.text)
    return view, plain, _joined_lines(plain, sentences(plain))


def _without_leet(view: Readable) -> Readable:
    """Return a text with leetspeak undone, in words that rules look for."""
    vocabulary = needed_words()

    def word(match: re.Match[str]) -> str:
        given = match.group()
        if given.isdigit():
            return given
        folded = given.translate(_LEET)
        for candidate in (folded, given.replace("1", "l").translate(_LEET)):
            if candidate in vocabulary:
                return candidate
        return given

    lowered = Readable(plain_letters(view.text), view.original, view._steps)  # noqa: SLF001
    changed = lowered.replaced(_LEET_WORD, word)
    return view if changed is lowered else changed


def _joined_lines(plain: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sentences, joining words on lines of their own."""
    joined: list[tuple[int, int]] = []
    short = False  # whether the line before was short
    for start, end in spans:
        begin = joined[-1][0] if joined else start
        if short and end - start <= MAX_LINE and end - begin <= MAX_JOINED_LINES:
            joined[-1] = (begin, end)
        else:
            joined.append((start, end))
        short = end - start <= MAX_LINE and plain[end - 1].isalnum()
    return joined


# Encodings: base64, hexadecimal, percent, entities, escapes

# Most blobs to decode in one text, and most characters of each.
MAX_BLOBS = 20
MAX_BLOB = 20_000
# Length of the shortest blob that holds an instruction; words are rarely this long.
MIN_BLOB = 24
_BASE64 = re.compile(rf"(?<![\w+/=-])[A-Za-z0-9+/_-]{{{MIN_BLOB},{MAX_BLOB}}}={{0,2}}")
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:(?:0x|\\x)?[0-9A-Fa-f]{2}[ :,]?){12,5000}(?![0-9A-Za-z])")
_HEX_DIGITS = re.compile(r"0x|\\x|[ :,]")
_PERCENT = re.compile(rf"[^\s%]{{0,200}}%[0-9A-Fa-f]{{2}}\S{{6,{MAX_BLOB}}}")
_ENTITIES = re.compile(r"&(?:#\d{2,7}|#x[0-9A-Fa-f]{2,6});\S{12,5000}")
_ESCAPES = re.compile(r"(?:\\u[0-9A-Fa-f]{4}){6,4000}")


def concealed_in(text: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield the way of hiding, decoded text and span of the hidden or encoded parts of a text."""
    if not text.isascii() or "<" in text:
        for payload in payloads(text):
            if payload.decoded:
                yield payload.kind, payload.decoded, payload.span
    # Most texts have no word this long, and the search for blobs is slower.
    if not _LONG(text):
        return
    found = 0
    for name, may_have, pattern, decode in _ENCODINGS:
        for match in pattern.finditer(text) if may_have(text) else ():
            if (decoded := decode(match.group())) is not None:
                yield name, decoded, match.span()
                found += 1
                if found == MAX_BLOBS:
                    return


def _from_base64(blob: str) -> str | None:
    body = blob.rstrip("=").replace("-", "+").replace("_", "/")
    body = body[: len(body) // 4 * 4 + (len(body) % 4 if len(body) % 4 != 1 else 0)]
    try:
        return _as_prose(binascii.a2b_base64(body + "=" * (-len(body) % 4), strict_mode=True))
    except binascii.Error:
        return None


def _from_hex(blob: str) -> str | None:
    digits = _HEX_DIGITS.sub("", blob)
    return _as_prose(bytes.fromhex(digits[: len(digits) // 2 * 2]))


def _from_percent(blob: str) -> str | None:
    decoded = unquote(blob, errors="ignore").replace("+", " ")
    return decoded if " " in decoded else None


def _from_entities(blob: str) -> str | None:
    decoded = html.unescape(blob)
    return None if decoded == blob else decoded


def _from_escapes(blob: str) -> str | None:
    units = (int(code, 16) for code in blob.split("\\u")[1:])
    return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be", "replace")


def _as_prose(decoded: bytes) -> str | None:
    """Return bytes as text, None if they are not text."""
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", " ").replace("\t", " ").isprintable() else None


_LONG = hint(rf"\S{{{MIN_BLOB}}}")


# Name of each encoding, a fast first test, the pattern of a blob, the decoder.
_ENCODINGS: tuple[
    tuple[str, Callable[[str], bool], re.Pattern[str], Callable[[str], str | None]], ...
] = (
    ("base64", hint(rf"[A-Za-z0-9+/_-]{{{MIN_BLOB}}}"), _BASE64, _from_base64),
    ("hexadecimal", hint(r"(?:(?:0x|\\x)?[0-9A-Fa-f]{2}[ :,]?){12}"), _HEX, _from_hex),
    ("percent encoding", hint(r"%[0-9A-Fa-f]{2}\S{6}"), _PERCENT, _from_percent),
    ("character entities", hint("&#"), _ENTITIES, _from_entities),
    ("character escapes", hint(r"\\u"), _ESCAPES, _from_escapes),
)
