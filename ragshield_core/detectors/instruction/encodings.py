"""What is hidden or encoded in a text, decoded: base64, hexadecimal, percent, entities, escapes."""

from __future__ import annotations

import binascii
import html
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from ragshield_core.text.columns import columns_of
from ragshield_core.text.hidden.payload import Payload
from ragshield_core.text.hidden.payloads import payloads_in
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


def concealed(
    texts: Sequence[str],
) -> Iterator[tuple[int, Iterator[tuple[str, str, tuple[int, int]]]]]:
    """Yield what is hidden or encoded in texts, of those where it may be.

    Yields
    ------
    tuple
        The place of the text, and, one by one: how it is hidden, what it says, and where it lies.
    """
    marked = [n for n, text in enumerate(texts) if not text.isascii() or "<" in text]
    payloads = dict(zip(marked, payloads_in([texts[n] for n in marked]), strict=True))
    # Most texts have no word so long; looking for blobs costs more.
    runs = _runs(texts)
    long = list(runs)
    found: dict[int, list[_Encoding]] = {}
    encoded = [texts[n].encode("utf-8", "replace") for n in long]
    for encoding in _ENCODINGS:
        rows = encoding.hint.likely(encoded) if encoding.hint else range(len(long))
        for row in rows:
            found.setdefault(long[row], []).append(encoding)
    for n in sorted({n for n in marked if payloads[n]} | found.keys()):
        hidden = _hidden(payloads.get(n, ()))
        blobs = _encoded(texts[n], found[n], runs[n]) if n in found else ()
        yield n, chain(hidden, blobs)


def _runs(texts: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
    """Return, by text, where there are long runs of other characters than blanks."""
    # One byte for each character; a zero stands between texts and is no blank within one.
    letters = [text.encode("latin-1", "replace").replace(b"\0", b"?") for text in texts]
    words = columns_of(letters, _NO_BLANKS)
    long = np.flatnonzero(words.length >= MIN_BLOB)
    owner = np.searchsorted(words.first, long, side="right") - 1
    begin = words.begin[owner]
    spans = zip(
        (words.start[long] - begin).tolist(), (words.end[long] - begin).tolist(), strict=True
    )
    found: dict[int, list[tuple[int, int]]] = {}
    for n, span in zip(owner.tolist(), spans, strict=True):
        found.setdefault(n, []).append(span)
    return {
        n: runs
        for n, runs in found.items()
        # Blanks beyond that alphabet are not seen there.
        if texts[n].isascii() or max(map(len, texts[n].split()), default=0) >= MIN_BLOB
    }


def _hidden(payloads: Sequence[Payload]) -> Iterator[tuple[str, str, tuple[int, int]]]:
    for payload in payloads:
        if payload.decoded:
            yield payload.kind, payload.decoded, payload.span


def _encoded(
    text: str, encodings: Sequence[_Encoding], runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, str, tuple[int, int]]]:
    found = 0
    for encoding in encodings:
        # What holds no blanks lies in one of the runs.
        for match in chain.from_iterable(
            encoding.pattern.finditer(text, *span)
            for span in ([(0, len(text))] if encoding.hint else runs)
        ):
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


_NO_BLANKS = bytes(0 if not code or chr(code).isspace() else code for code in range(256))


class _Encoding(NamedTuple):
    """How it is called, a quick look for it, where it lies, what it says.

    Without the quick look, it lies in a long run of other characters than blanks.
    """

    name: str
    hint: Hint | None
    pattern: re.Pattern[str]
    decode: Callable[[str], str | None]


_ENCODINGS = (
    _Encoding("base64", None, _BASE64, _from_base64),
    _Encoding("hexadecimal", Hint(r"(?:(?:0x|\\x)?[0-9A-Fa-f]{2}[ :,]?){12}"), _HEX, _from_hex),
    _Encoding("percent encoding", Hint(r"%[0-9A-Fa-f]{2}\S{6}"), _PERCENT, _from_percent),
    _Encoding("character entities", Hint("&#"), _ENTITIES, _from_entities),
    _Encoding("character escapes", Hint(r"\\u"), _ESCAPES, _from_escapes),
)
