"""Texts from the tools of agents: suspicious parts are withheld, and the others passed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragshield_core.store.steps import Steps

# A part with fewer characters and words is a heading, a rule or a button, not a passage.
SHORT, FEW_WORDS = 40, 4
# At most so many runs of parts are taken out of a text; a text with more is withheld whole.
MOST_RUNS = 4


def good_parts(
    text: str, separator: str, good: Callable[[list[str]], Steps[Sequence[str]]]
) -> Steps[str | None]:
    """Return a text without the parts that are suspicious, alone or together.

    Parts of a text without the separator are its lines. Repeated parts, such as the rule below each
    section, are judged once, and headings as one: their likeness is no agreement of sources.
    ``good`` returns the texts that are not suspicious.
    Returns None if the whole text may be passed on.
    """
    if separator not in text:
        separator = "\n"
    parts = [part for part in text.split(separator) if part.strip()]
    passages: list[str] = []
    short: list[str] = []
    for part in dict.fromkeys(parts):
        few = len(part) < SHORT and len(part.split()) < FEW_WORDS
        (short if few else passages).append(part)

    def passes(some: Sequence[str]) -> Steps[bool]:
        return bool((yield from good([separator.join(some)])))

    kept = set((yield from good(passages)) if passages else ())
    if short and (yield from passes(short)):
        kept.update(short)
    left = yield from _good_together([part for part in parts if part in kept], passes)
    return None if len(left) == len(parts) else separator.join(left)


def _good_together(
    parts: list[str], passes: Callable[[Sequence[str]], Steps[bool]]
) -> Steps[list[str]]:
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
