"""Say why an entry has its score: its group, and what is usual here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Evidence
from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.agreement import Agreed
from ragshield_core.detectors.groups.books import HELD
from ragshield_core.detectors.groups.evidence import CROWD, SIZES, Channel, cosine_of
from ragshield_core.detectors.groups.graph import Overlay
from ragshield_core.detectors.groups.known import Known
from ragshield_core.detectors.groups.usual import (
    CHANNEL_OF,
    COPIES,
    GROUPS_OF,
    WHYS,
    Judgement,
    copies_in,
)
from ragshield_core.model.findings import printable
from ragshield_core.text.copies import spelling


def explained(known: Known, overlay: Overlay, judgement: Judgement, row: int) -> Evidence:
    """Return the group of a row, its size and mean similarity, and what is usual."""
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
        return _of_clique(known, judgement.edges, int(overlay.numbers[row]), names)
    if why in COPIES:
        lists = overlay.lists.take(np.array([row]))
        copies = names(lists.slots[copies_in(overlay, lists, COPIES[why])].tolist())
        what = f"text ({len(copies)} near-exact copies)"
        if why == "parts":
            what = f"words (at least {COPIES[why].copied:.0%} of the text, {len(copies)} times)"
        return Evidence(
            sentence=(
                f"flooding: the same {what}, new to the knowledge base, came under "
                f"{judgement.lineages[why][row]} other lineages"
            ),
            related_ids=copies,
        )
    channel = cast("Channel", str(CHANNEL_OF[judgement.why[row]]))
    size = CROWD + 1 if why == "crowd" else SIZES[column]
    members = judgement.evidence[channel].members[row, : size - 1]
    numbers = np.concatenate([[overlay.numbers[row]], members[members >= 0]])
    vectors = overlay.vectors(numbers)
    alike = (vectors @ vectors.T)[np.triu_indices(len(numbers), 1)]
    where = GROUPS_OF[channel]
    sentence = (
        f"one of a group of {'at least ' if why == 'crowd' else ''}{len(numbers)} {where} that "
        f"are alike in meaning (mean cosine {float(alike.mean()):.3f}) beyond what copied "
        "words or their surroundings explain"
    )
    if why != "crowd":
        assert known.usual is not None  # noqa: S101 - by which this was scored
        reference = known.usual.references[channel]
        usual = known.graph.absolute(cosine_of(reference.usual_tightness[column]))
        share = reference.usual_share
        sentence += f"; {share:.0%} of the groups of this size here stay below {usual:.3f}"
        if agreed := judgement.evidence[channel].agreed(row, size):
            sentence += _agreement(overlay, row, agreed)
    return Evidence(sentence=sentence, related_ids=names(members[members >= 0].tolist()))


def _of_clique(
    known: Known,
    edges: NDArray[np.int64],
    own: int,
    names: Callable[[Sequence[int]], tuple[str, ...]],
) -> Evidence:
    """Return the largest clique of an entry, by the reference rule."""
    import networkx as nx  # noqa: PLC0415 - slow to import, and for this sentence only

    around = np.unique(edges[(edges == own).any(axis=1)])
    around = around[around != own]
    threshold, reachable = known.edge_threshold
    if len(around) > cleanbase.CLIQUE_CAP:
        size = f"three or more (it has {len(around)} neighbours, too many to enumerate)"
        group = around.tolist()
    else:
        near = np.isin(edges[:, 0], around)
        near[near] = np.isin(edges[near, 1], around)
        graph = nx.Graph(edges[near].tolist())
        cliques: list[list[int]] = [sorted(clique) for clique in nx.find_cliques(graph)]
        group = max(cliques, key=len)
        size = str(len(group) + 1)
    sentence = (
        f"one of a clique of {size} entries, each two of them more similar than "
        f"{threshold:.3f} (mean + {known.rule.alpha:g} * std of all edges)"
    )
    if not reachable:
        sentence += f"; {cleanbase.UNREACHABLE.format(known.rule.alpha)}"
    return Evidence(sentence=sentence, related_ids=names(group))


def _agreement(overlay: Overlay, row: int, agreed: Agreed) -> str:
    """Return the words on which an entry and its new neighbours agree, where texts are at hand."""
    start = overlay.graph.n_slots
    mine = [n - start for n in (overlay.numbers[row], *agreed.numbers) if n >= start]
    spelled = spelling(overlay.batch.texts[mine[0]]) if mine else {}
    words = [spelled[word] for word in agreed.words.tolist() if word in spelled]
    if not words:
        return ""
    shown = ", ".join(repr(printable(word, 40)) for word in words)
    count = f"{agreed.n_having} of" if agreed.n_having else "none of"
    return (
        f"; it shares {shown} with {len(agreed.numbers)} other new ones, and {count} the "
        f"{agreed.n_around} earlier ones around it says so"
    )
