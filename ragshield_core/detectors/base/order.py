"""Tell whether entries are suspicious only because of the order in which they came.

In which order clean entries came says little about them: in a random order they agree with those
that came with them as often. The texts of a campaign agree because they came together. So the
evidence about each entry is gathered in both orders, and what is suspicious in its own order only
is told from what is suspicious by chance by the other kind: entries that are as suspicious in a
random order only, of which there are as many, if the order says nothing. The random order is a
knockoff of the true one (Barber and Candès, "Controlling the false discovery rate via knockoffs",
Annals of Statistics 43, 2015).

Documents that come topic by topic are not clean of this, but they are many: the order says
something about most of what has neighbours then, and poison is a small part of what came.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Accepted share of chance among what is named.
FALSE_DISCOVERIES = 0.2
# Members of a group are suspicious together: by chance, so many more than were seen to be.
GROUP = 5
# An entry counts as one about which the order says something if scores differ by more than so many
# of their units, nats or decimal digits: by chance as often in one direction as in the other.
SAYS_SOMETHING = 1.0
# Fewer entries do not show what came together.
FEWEST = 2_000
# If it says something about more of all entries than so many, it is topics that came together. Up
# to a twentieth may be poisoned, and who lies beside a group may seem to have come with it.
MOST_TOGETHER = 0.1


def came_together(
    ordered: NDArray[np.float64], shuffled: NDArray[np.float64], least: float
) -> NDArray[np.bool_]:
    """Return which entries are suspicious in their own order, and would not be in a random one.

    Surprisals in the order in which entries came, and in a random one, are in nats, as those of
    groups, or in decimal digits, as those of planted phrases. Scores up to ``least`` are those of
    usual entries, and it does not matter how they differ. None is named where chance would explain
    more than :data:`FALSE_DISCOVERIES` of them, or where the order says something about more than
    :data:`MOST_TOGETHER` of all entries.

    Examples
    --------
    >>> shuffled = np.zeros(1_000)
    >>> ordered = np.where(np.arange(1_000) < 50, 9.0, 0.0)
    >>> int(came_together(ordered, shuffled, 3.0).sum())
    50
    >>> int(came_together(np.where(np.arange(1_000) < 400, 9.0, 0.0), shuffled, 3.0).sum())
    0
    """
    none = np.zeros(len(ordered), dtype=np.bool_)
    more = ordered - shuffled
    says = np.abs(more) > SAYS_SOMETHING
    share = np.sign(more[says]).sum() / max(1, len(more))
    if share > MOST_TOGETHER:
        return none
    more = np.where(np.maximum(ordered, shuffled) > least, more, 0.0)
    steps = np.unique(np.abs(more[more != 0.0]))
    upper, lower = np.sort(more[more > 0.0]), np.sort(-more[more < 0.0])
    found = len(upper) - np.searchsorted(upper, steps)
    by_chance = GROUP + len(lower) - np.searchsorted(lower, steps)
    good = np.flatnonzero(by_chance <= FALSE_DISCOVERIES * found)
    return more >= steps[good[0]] if good.size else none
