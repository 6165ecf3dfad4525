"""Bytes to text, by the encoding that they are in."""

from __future__ import annotations

import codecs

from ragshield_core.files.passages import UnreadError

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins like that of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# So many bytes tell the encoding of a file.
_SAMPLE = 1 << 18
# Without a mark of order, half of the bytes of UTF-16 in most scripts are zeros.
_ZEROS = 0.3
# A text holds fewer control characters than that.
_CONTROLS = 0.02


def decoded(data: bytes) -> tuple[str, str]:
    r"""Return the text of a file and the name of its encoding; ends of lines become ``\n``.

    Raises
    ------
    UnreadError
        If it is no text.

    Examples
    --------
    >>> decoded("déjà vu".encode("utf-16"))
    ('déjà vu', 'utf-16')
    """
    encoding = _encoding(data)
    try:
        text = data.decode(encoding, "strict" if encoding.startswith("utf") else "replace")
    except UnicodeError as error:
        msg = f"not the {encoding} that it begins as ({type(error).__name__})"
        raise UnreadError(msg) from None
    if sum(text.count(chr(code)) for code in range(9)) > _CONTROLS * len(text):
        msg = "binary data, not text"
        raise UnreadError(msg)
    return text.replace("\r\n", "\n").replace("\r", "\n"), encoding.removesuffix("-sig")


def _encoding(data: bytes) -> str:
    for bom, name in _BOMS:
        if data.startswith(bom):
            return name
    sample = data[:_SAMPLE]
    if b"\0" in sample:
        half = max(1, len(sample) // 2)
        for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
            if sample[first::2].count(0) > _ZEROS * half > 10 * sample[1 - first :: 2].count(0):
                return name
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return _guessed(sample)
    return "utf-8"


def _guessed(sample: bytes) -> str:
    try:
        from charset_normalizer import from_bytes  # noqa: PLC0415 - of an extra
    except ImportError:
        return "cp1252"  # of most files that are not UTF-8
    best = from_bytes(sample).best()
    if best is None:
        msg = "binary data, not text"
        raise UnreadError(msg)
    return str(best.encoding)
