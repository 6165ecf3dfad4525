"""Accuse known entries on the evidence of held ones that came later."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    CROWD,
    OWN_BOND,
    SIZES,
    own_bond,
)
from ragshield_core.detectors.groups.graph import Overlay
from ragshield_core.detectors.groups.usual import (
    CHANNEL_OF,
    COPIES,
    CROWD_AT,
    WHYS,
    Judgement,
    copies_in,
)
from ragshield_core.text.copies import borrowed

# Held neighbours on which a standing entry is condemned, at least: one is its imitator, for all
# that anybody can tell.
ACCOMPLICES = 2
# What has so many of its words from an entry is an imitation of it, in whatever order they stand.
# Of texts that were crafted for one question, one in twenty has as many from another.
BORROWED = 0.75


def accused(
    overlay: Overlay,
    judgement: Judgement,
    rows: NDArray[np.intp],
    guilty: NDArray[np.bool_],
    unusual: Collection[str],
) -> NDArray[np.intp]:
    """Return the standing rows against which more speaks than imitators of them could.

    Parameters
    ----------
    rows
        Of standing entries.
    guilty
        By entry number, what is held.
    unusual
        Ids of entries that were unusual before the held ones came: that they lie in one group is
        enough.
    """
    why = judgement.why[rows]
    accused = np.zeros(len(rows), dtype=np.bool_)
    for channel in CHANNELS:
        widths = np.where(why == CROWD_AT, CROWD, SIZES[-1] - 1)
        mine = np.flatnonzero(CHANNEL_OF[why] == channel)
        group = judgement.evidence[channel].members[rows[mine], :CROWD]
        with_them = (group >= 0) & guilty[group]
        with_them &= np.arange(CROWD) < widths[mine, None]
        for place in np.flatnonzero(with_them.sum(axis=1) >= ACCOMPLICES).tolist():
            own = overlay.numbers[rows[mine[place]]]
            if overlay.graph.index.ids_of(np.array([own]))[0] in unusual:
                accused[mine[place]] = True
                continue
            model = overlay.words_of(own)
            others = [
                other
                for other in group[place, with_them[place]].tolist()
                if borrowed(overlay.words_of(other), model) < BORROWED
            ]
            if len(others) >= ACCOMPLICES:
                bond = own_bond(overlay.vectors(np.array([own, *others])))
                accused[mine[place]] = bond > OWN_BOND
    for place in np.flatnonzero(why > CROWD_AT).tolist():
        # Somebody's words came first: of copies, the oldest is the one that was copied.
        lists = overlay.lists.take(rows[place : place + 1])
        copies = lists.slots[copies_in(overlay, lists, COPIES[WHYS[why[place]][0]])]
        accused[place] = (copies < overlay.numbers[rows[place]]).any()
    return rows[accused]
