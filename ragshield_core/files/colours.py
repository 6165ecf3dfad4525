"""Unreadable letters: too small, or of the colour behind them."""

from __future__ import annotations

Colour = tuple[float, float, float]

WHITE: Colour = (1.0, 1.0, 1.0)
# Largest sum of the differences of red, green and blue; the same as for hidden HTML.
_ALIKE = 24 / 255
# Largest size of letters that nobody can read, in points.
TINY = 2.0

SAME_COLOUR = "letters of the colour behind them"
SMALL = "letters too small to read"


def alike(front: Colour, behind: Colour) -> bool:
    """Return whether letters of one colour are invisible on another."""
    return sum(abs(a - b) for a, b in zip(front, behind, strict=True)) <= _ALIKE


def from_hex(value: str | None) -> Colour | None:
    """Return the colour of six hexadecimal digits, with or without a number sign."""
    digits = (value or "").removeprefix("#")
    if len(digits) != 6:  # noqa: PLR2004
        return None
    try:
        red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    except ValueError:
        return None
    return red, green, blue
