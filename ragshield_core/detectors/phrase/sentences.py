"""Say why an entry has its score: its phrase, and how many hold it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ragshield_core.detectors.base import Evidence
from ragshield_core.detectors.phrase.counts import places_of
from ragshield_core.detectors.phrase.judging import Judgement
from ragshield_core.model.findings import printable
from ragshield_core.text.normalized import readable, word_spans, words

QUOTED = 80  # characters


def explained(
    judgement: Judgement,
    n_known: int,
    why: int,
    entry_id: str,
    text: str,
    *,
    of_entry: bool = True,
) -> Evidence:
    """Return what is said of an entry, of ``n_known``; ``of_entry`` if the text is its own."""
    if why < 0:
        return Evidence(sentence="no phrase of it is more frequent than usual (score below 0.0)")
    phrase = judgement.phrases[why]
    view = readable(text)
    quote, span = _quote(view.text, phrase.hashes)
    quoted = printable(quote, QUOTED)
    known = f"about {phrase.n_known:.0f}" if math.isfinite(phrase.n_known) else "very many"
    return Evidence(
        sentence=(
            f"{phrase.n_recent} of the {judgement.n_recent} newest entries say {quoted!r}, of the "
            f"{n_known:,} older ones {known} (by chance {phrase.expected:.1f} of the newest would; "
            f"so many do in one batch of 10^{phrase.score:.1f})"
        ),
        related_ids=tuple(i for i in phrase.ids if i != entry_id),
        span=view.original_span(*span) if of_entry and span is not None else None,
    )


def _quote(text: str, hashes: Sequence[int]) -> tuple[str, tuple[int, int] | None]:
    """Return the words around the first n-gram that belong to the others, and where they lie."""
    listed = words(text)
    core = np.flatnonzero(places_of(listed, hashes[:1]))
    if not core.size:
        return "", None
    marked = places_of(listed, hashes)
    marked = marked | np.append(marked[1:], False) & np.insert(marked[:-1], 0, False)  # gaps of one
    low = high = int(core[0])
    while low > 0 and marked[low - 1]:
        low -= 1
    while high + 1 < len(listed) and marked[high + 1]:
        high += 1
    spans = word_spans(text)
    return " ".join(listed[low : high + 1]), (spans[low][0], spans[high][1])
