"""Hostile text, in a form that is safe to show."""


def printable(text: str, limit: int = 300) -> str:
    """Return hostile text in a form that is safe to show: one line of at most ``limit`` characters.

    Control and format characters (terminal escapes, bidirectional overrides, zero-width characters)
    are shown as code points, so that they hide nothing. Bytes, which a text column of SQLite may
    contain, are shown as Python writes them.
    """
    text = text if isinstance(text, str) else repr(text)
    shown = "".join(
        character if character.isprintable() else f"\\u{{{ord(character):x}}}"
        for character in text[: limit + 1]
    )
    return shown if len(text) <= limit else shown[: max(0, limit - 3)] + "..."
