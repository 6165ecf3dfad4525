"""Decode what a text hides: base64, hexadecimal, percent, entities, escapes."""

from __future__ import annotations

import binascii
import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

from ragshield_core.detectors.hidden.detector import payloads
from ragshield_core.text.linear import Hint

# Blobs decoded in one text, and characters of each.
MAX_BLOBS = 20
MAX_BLOB = 20_000
# The shortest blob that holds an instruction; words are hardly ever as long.
MIN_BLOB = 24
_BASE64 = re.compile(rf"(?<![\w+/=-])[A-Za-z0-9+/_-]{{{MIN_BLOB},{MAX_BLOB}}}={{0,2}}")
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:(?:0x|\\x)?[0-9A-Fa-f]{2}[ :,]?){12,5000}(?![0-9A-Za-z])")
_HEX_DIGITS = re.compile(r"0x|\\x|[ :,]")
_PERCENT = re.compile(rf"[^\s%]{{0,200}}%[0-9A-Fa-f]{{2}}\S{{6,{MAX_BLOB}}}")
_ENTITIES = re.compile(r"&(?:#\d{2,7}|#x[0-9A-Fa-f]{2,6});\S{12,5000}")
_ESCAPES = re.compile(r"(?:\\u[0-9A-Fa-f]{4}){6,4000}")


def concealed_in(text: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield what is hidden or encoded in a text: how, what it says, and where it lies."""
    if not text.isascii() or "<" in text:
        for payload in payloads(text):
            if payload.decoded:
                yield payload.kind, payload.decoded, payload.span
    # Most texts have no word so long; looking for blobs costs more.
    if not _LONG(text):
        return
    found = 0
    for encoding in _ENCODINGS:
        if not encoding.hint(text):
            continue
        for match in encoding.pattern.finditer(text):
            decoded = encoding.decode(match.group())
            if decoded is None:
                continue
            yield encoding.name, decoded, match.span()
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
    """Return bytes as text if that is what they are."""
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        return None
    return text if text.replace("\n", " ").replace("\t", " ").isprintable() else None


_LONG = Hint(rf"\S{{{MIN_BLOB}}}")


class _Encoding(NamedTuple):
    """How it is called, a quick look for it, where it lies, what it says."""

    name: str
    hint: Hint
    pattern: re.Pattern[str]
    decode: Callable[[str], str | None]


_ENCODINGS = (
    _Encoding("base64", Hint(rf"[A-Za-z0-9+/_-]{{{MIN_BLOB}}}"), _BASE64, _from_base64),
    _Encoding("hexadecimal", Hint(r"(?:(?:0x|\\x)?[0-9A-Fa-f]{2}[ :,]?){12}"), _HEX, _from_hex),
    _Encoding("percent encoding", Hint(r"%[0-9A-Fa-f]{2}\S{6}"), _PERCENT, _from_percent),
    _Encoding("character entities", Hint("&#"), _ENTITIES, _from_entities),
    _Encoding("character escapes", Hint(r"\\u"), _ESCAPES, _from_escapes),
)
