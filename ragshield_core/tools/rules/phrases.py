"""Where a phrase stands in texts, as a reader sees it, and texts without it."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ragshield_core.text.characters import IGNORABLE
from ragshield_core.text.normalized import readable, word_spans, words

Span = tuple[int, int]

# Characters between two words of the phrase: punctuation and spaces, and no room for anything else.
MAX_GAP = 4
# A phrase is spelled with at most so many times the characters that are seen: marks on letters are.
MAX_SPELLING = 2
_INVISIBLE = re.compile(f"[{IGNORABLE}]")


class Phrase:
    """A phrase, compared as detectors compare words: readable, casefolded, without punctuation.

    Parameters
    ----------
    value
        As a person gave it.

    Attributes
    ----------
    words
        What is compared.

    Examples
    --------
    >>> text = "Ask the ACME  service-line today."
    >>> [text[start:end] for start, end in Phrase("Acme service line").spans(text)]
    ['ACME  service-line']
    """

    def __init__(self, value: str) -> None:
        self.words = tuple(words(readable(value).text))
        self._joined = _joined(self.words)

    def spans(self, text: str) -> list[Span]:
        """Return where it stands, in characters of the text, ends excluded.

        Where characters that nobody sees stand in it, or more between its words than punctuation,
        it is not this phrase: an order could hide in there.
        """
        if not self.words:
            return []
        view = readable(text)
        listed = words(view.text)
        joined = _joined(listed)
        at = joined.find(self._joined)
        if at < 0:
            return []
        places = word_spans(view.text)
        starts = list(accumulate((len(word) + 1 for word in listed), initial=0))
        found = []
        while at >= 0:
            first = bisect_right(starts, at) - 1
            mine = places[first : first + len(self.words)]
            span = view.original_span(mine[0][0], mine[-1][1])
            if _is_plain(mine) and _is_spelled_out(text[slice(*span)], mine):
                found.append(span)
            at = joined.find(self._joined, at + 1)
        return found


def without(text: str, spans: Sequence[Span], name: str | None = None) -> str:
    """Return a text with parts taken out, and what is around them side by side.

    Parameters
    ----------
    text, spans
        Of the text; spans may overlap.
    name
        Of the entry: each part is replaced by a word that no other text has, so that what was
        apart stays apart. ``None`` replaces them by a space.
    """
    pieces: list[str] = []
    end = 0
    for number, (start, stop) in enumerate(_united(spans)):
        pieces += text[end:start], " " if name is None else f" {_word_of_its_own(name, number)} "
        end = stop
    return "".join((*pieces, text[end:]))


def lies_within(span: Span, spans: Sequence[Span]) -> bool:
    """Return whether a span lies within one of others."""
    return any(start <= span[0] and span[1] <= end for start, end in spans)


def _joined(listed: Sequence[str]) -> str:
    """Return words so that a search for some finds whole ones only."""
    return "\0" + "".join(f"{word}\0" for word in listed)


def _is_plain(places: Sequence[Span]) -> bool:
    gaps = zip(places[1:], places[:-1], strict=True)
    return all(later[0] - earlier[1] <= MAX_GAP for later, earlier in gaps)


def _is_spelled_out(original: str, places: Sequence[Span]) -> bool:
    seen = places[-1][1] - places[0][0]
    return not _INVISIBLE.search(original) and len(original) <= MAX_SPELLING * seen


def _united(spans: Sequence[Span]) -> list[Span]:
    united: list[Span] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((start, end))
    return united


def _word_of_its_own(name: str, number: int) -> str:
    code = zlib.crc32(f"{number} {name}".encode("utf-8", "surrogatepass"))
    return "q" + "".join(chr(ord("a") + (code >> shift & 15)) for shift in range(0, 32, 4))
