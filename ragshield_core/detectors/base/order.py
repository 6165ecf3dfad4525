"""Detection of entries that are suspicious only because of their order of arrival.

The order of arrival says little about clean entries: in a random order they agree with their
neighbours in time as often. The texts of a campaign agree because they came together. So the
evidence about each entry is gathered in both orders. Entries that are suspicious only in the true
order are compared with entries that are suspicious only in a random order: by chance, both kinds
are equally frequent. The random order is a knockoff of the true one (Barber and Candès,
"Controlling the false discovery rate via knockoffs", Annals of Statistics 43, 2015).

Documents that arrive topic by topic show the same effect, but they are many: the order then says
something about most entries with neighbours, while poison is a small part of all entries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Accepted share of false discoveries among the named entries.
FALSE_DISCOVERIES = 0.2
# Members of a group are suspicious together: chance may add this many to the number observed.
GROUP = 5
# The order says something about an entry if its two scores differ by more than this, in their
# units, nats or decimal digits; by chance, both directions are equally frequent.
SAYS_SOMETHING = 1.0
# Fewer entries do not show which of them came together.
FEWEST = 2_000
# If the order says something about a larger share of all entries, topics came together. Up to a
# twentieth may be poisoned, and an entry beside a group may seem to have come with it.
MOST_TOGETHER = 0.1


def came_together(
    ordered: NDArray[np.float64], shuffled: NDArray[np.float64], least: float
) -> NDArray[np.bool_]:
    """Return which entries are suspicious in their own order but not in a random one.

    Surprisals in the order of arrival and in a random order are in nats (groups) or in decimal
    digits (planted phrases). Scores up to ``least`` are usual, and their differences are ignored.
    No entry is named if chance would explain more than :data:`FALSE_DISCOVERIES` of them, or if
    the order says something about more than :data:`MOST_TOGETHER` of all entries.

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
