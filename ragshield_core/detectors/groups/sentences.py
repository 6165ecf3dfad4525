"""Sentences that explain a score: the group of an entry, and the usual values here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from ragshield_core.detectors.base import Evidence
from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.agreement import Agreed
from ragshield_core.detectors.groups.evidence import CROWD, SIZES, Channel, cosine_of
from ragshield_core.detectors.groups.graph import Overlay
from ragshield_core.detectors.groups.known import HELD, Known
from ragshield_core.detectors.groups.usual import (
    CHANNEL_OF,
    COPIES,
    WHYS,
    Judgement,
    copies_in,
)
from ragshield_core.model.findings import printable
from ragshield_core.text.copies import spelling

GROUPS_OF: dict[Channel, str] = {
    "cross": "from different documents",
    "same": "from one document",
    "any": "from the same and from other documents",
}


def explained(known: Known, overlay: Overlay, judgement: Judgement, row: int) -> Evidence:
    """Return the group of a row, its size and mean similarity, and the usual values."""
    graph = known.graph
    why, column = WHYS[judgement.why[row]]

    def names(numbers: Sequence[int]) -> tuple[str, ...]:
        start, given = graph.n_slots, np.array(numbers, dtype=np.int64)
        standing = iter(graph.index.ids_of(given[given < start]))
        return tuple(
            overlay.batch.ids[n - start] if n >= start else next(standing).partition(HELD)[0]
            for n in numbers
        )

    if not known.by_groups:
        return cleanbase.explained(known, judgement.edges, int(overlay.numbers[row]), names)
    if why in COPIES:
        lists = overlay.lists.take(np.array([row]))
        copies = names(lists.slots[copies_in(overlay, lists, COPIES[why])].tolist())
        shared, how = "the same text", f"{len(copies)} other copies"
        if why == "parts":
            shared = "much of the same text"
            how = f"at least {COPIES[why].copied:.0%} of it, {len(copies)} times"
        return Evidence(
            sentence=(
                f"flooding: {judgement.lineages[why][row]} other documents bring {shared} at the "
                f"same time, and it is new here ({how})"
            ),
            related_ids=copies,
        )
    channel = cast("Channel", str(CHANNEL_OF[judgement.why[row]]))
    size = CROWD + 1 if why == "crowd" else SIZES[column]
    members = judgement.evidence[channel].members[row, : size - 1]
    numbers = np.concatenate([[overlay.numbers[row]], members[members >= 0]])
    vectors = overlay.vectors(numbers)
    alike = (vectors @ vectors.T)[np.triu_indices(len(numbers), 1)]
    more = "at least " if why == "crowd" else ""
    sentence = (
        f"it is one of {more}{len(numbers)} entries {GROUPS_OF[channel]} that say nearly the same "
        "in words of their own, more alike than entries on one topic are here"
    )
    figures = f"similarity {float(alike.mean()):.3f}"
    if why != "crowd":
        assert known.usual is not None  # noqa: S101 - it gave this score
        usual = known.graph.absolute(cosine_of(known.usual.tightness[channel][column]))
        figures += f"; {known.usual.share:.0%} of groups of {size} here stay below {usual:.3f}"
        if agreed := judgement.evidence.agreed(channel, row, size):
            sentence += _agreement(overlay, row, agreed)
    return Evidence(
        sentence=f"{sentence} ({figures})", related_ids=names(members[members >= 0].tolist())
    )


def _agreement(overlay: Overlay, row: int, agreed: Agreed) -> str:
    """Return the words on which an entry and its new neighbours agree, if texts are available."""
    start = overlay.graph.n_slots
    mine = [n - start for n in (overlay.numbers[row], *agreed.numbers) if n >= start]
    spelled = spelling(overlay.batch.texts[mine[0]]) if mine else {}
    words = [spelled[word] for word in agreed.words.tolist() if word in spelled]
    if not words:
        return ""
    shown = ", ".join(repr(printable(word, 40)) for word in words)
    others = len(agreed.numbers)
    return (
        f"; {others} other new {'entries say' if others > 1 else 'entry says'} {shown} as well, "
        f"{agreed.n_having or 'none'} of the {agreed.n_around} older entries on the topic "
        f"{'do' if agreed.n_having > 1 else 'does'}"
    )
