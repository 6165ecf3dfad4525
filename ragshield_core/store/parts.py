"""Texts that tools of agents return: suspicious parts are withheld, and the others handed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragshield_core.store.steps import Steps

# A part of fewer characters and words is a heading, a rule or a button, and no passage.
SHORT, FEW_WORDS = 40, 4
# So many runs of parts are taken out of a text; of one with more nothing is handed on.
MOST_RUNS = 4

# Judges parts as one text.
Passes = Callable[[Sequence[str]], Steps[bool]]


def parts_of(text: str, separator: str) -> list[str]:
    """Return the parts of a text that are not blank."""
    return [part for part in text.split(separator) if part.strip()]


def sorted_out(parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return passages to be judged one by one, and short parts, to be judged as one text.

    Each once: that rules below sections and headings are alike is no agreement of sources.
    """
    passages: list[str] = []
    short: list[str] = []
    for part in dict.fromkeys(parts):
        few = len(part) < SHORT and len(part.split()) < FEW_WORDS
        (short if few else passages).append(part)
    return passages, short


def good_together(parts: list[str], passes: Passes) -> Steps[list[str]]:
    """Return parts without the shortest runs of them that are suspicious as one text."""
    for _ in range(MOST_RUNS):
        if len(parts) < 2 or (yield from passes(parts)):  # noqa: PLR2004
            return parts
        # The first n parts pass, and one more does not; then the same from the other end.
        low, end = 0, len(parts)
        while end - low > 1:
            middle = (low + end) // 2
            low, end = (middle, end) if (yield from passes(parts[:middle])) else (low, middle)
        start, high = 0, end
        while high - start > 1:
            middle = (start + high) // 2
            passing = yield from passes(parts[middle:end])
            start, high = (start, middle) if passing else (middle, high)
        parts = parts[:start] + parts[end:]
    return []
