"""A hostile text as it can be looked at: evidence marked, what is invisible made visible."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from ragshield_core.detectors.hidden.payloads import payloads
from ragshield_core.files.html_text import shown_in
from ragshield_core.model.findings import Finding, printable

# Characters of a text that are shown at once.
SHOWN = 4_000
# Characters in which hidden text is looked for: a reviewer waits.
READ = 200_000
# Words of each of two texts that are compared: the comparison grows with their product at worst.
COMPARED = 1_500
# Control characters that are no disguise.
HARMLESS = "\n\t\r"

# Of control and format characters, surrogates, private and unassigned ones, separators.
GLYPHLESS = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))

Kind = Literal["plain", "evidence", "hidden", "invisible"]


class Piece(NamedTuple):
    """A part of a text, shown in one way.

    Attributes
    ----------
    kind
        ``"invisible"`` for what has no glyph, shown by its code point.
    text
        To be escaped.
    title
        What there is to say of it; empty for nothing.
    """

    kind: Kind
    text: str
    title: str = ""


class Change(NamedTuple):
    """A run of words that two revisions share, or that one of them has."""

    kind: Literal["same", "added", "removed"]
    text: str


def pieces(text: str, findings: Sequence[Finding] = (), start: int = 0) -> list[Piece]:
    """Return how a part of a text is shown.

    Parameters
    ----------
    text
        Of any length.
    findings
        Their spans are marked.
    start
        Of the part, in characters; it is at most ``SHOWN`` long.
    """
    stop = min(len(text), start + SHOWN)
    kinds: list[Kind] = ["plain"] * (stop - start)
    titles = [""] * (stop - start)

    def mark(span: tuple[int, int], kind: Kind, title: str) -> None:
        first, last = max(span[0], start) - start, min(span[1], stop) - start
        if first < last:
            kinds[first:last] = [kind] * (last - first)
            titles[first:last] = [title] * (last - first)

    for finding in findings:
        if finding.span is not None and not finding.beside:
            mark(finding.span, "evidence", finding.detector)
    if start < READ:
        for found in payloads(text[:READ]):
            reads = f": a machine reads {printable(found.decoded, 200)!r}" if found.decoded else ""
            mark(found.span, "hidden", f"{found.kind}{reads}")
    return list(_merged(text[start:stop], kinds, titles))


def _merged(text: str, kinds: Sequence[Kind], titles: Sequence[str]) -> Iterator[Piece]:
    """Yield runs of characters that are shown alike."""
    run: list[str] = []
    before: tuple[Kind, str] = ("plain", "")
    for character, kind, title in zip(text, kinds, titles, strict=True):
        here: tuple[Kind, str] = (kind, title)
        if invisible(character):
            code = f"U+{ord(character):04X}"
            if run:
                yield Piece(before[0], "".join(run), before[1])
                run = []
            name = unicodedata.name(character, "control character").lower()
            yield Piece("invisible", code, "; ".join(filter(None, (name, title))))
            continue
        if here != before and run:
            yield Piece(before[0], "".join(run), before[1])
            run = []
        before = here
        run.append(character)
    if run:
        yield Piece(before[0], "".join(run), before[1])


def invisible(character: str) -> bool:
    """Return whether a character has no glyph, or turns the direction of others."""
    if character in HARMLESS:
        return False
    return unicodedata.category(character) in GLYPHLESS or character in SELECTORS


def rendered(text: str) -> str | None:
    """Return the text as the page renders it, or ``None`` if that is the same.

    Without what is hidden, without tags and comments, without characters that have no glyph.
    """
    begin = text[:READ]
    kept, last = [], 0
    for found in payloads(begin):
        first, end = found.span
        if first >= last and found.kind != "look-alike letters":
            kept.append(begin[last:first])
            last = end
    kept.append(begin[last:])
    shown = "".join(c for c in shown_in("".join(kept)) if not invisible(c)).strip()
    return None if shown.split() == begin.split() else shown[:SHOWN]


def changes(older: str, newer: str) -> list[Change]:
    """Return the changes of a new revision, in runs of words; of long texts the beginning only."""
    before, after = older.split()[:COMPARED], newer.split()[:COMPARED]
    found: list[Change] = []
    matcher = SequenceMatcher(None, before, after, autojunk=True)
    for what, i, j, k, m in matcher.get_opcodes():
        if what == "equal":
            found.append(Change("same", visible(" ".join(before[i:j]))))
            continue
        if j > i:
            found.append(Change("removed", visible(" ".join(before[i:j]))))
        if m > k:
            found.append(Change("added", visible(" ".join(after[k:m]))))
    return found


def visible(text: str) -> str:
    """Return text with what is invisible as code points, lines as they are."""
    return "".join(f"<U+{ord(c):04X}>" if invisible(c) else c for c in text)
