"""Groups of a knowledge base that no memory holds, found by tasks elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.evidence import Channel
from ragshield_core.detectors.groups.graph import Lists


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundGroups:
    """What takes the vectors of a whole knowledge base, found elsewhere.

    Attributes
    ----------
    words
        Of the n entries, in their order; see :func:`ragshield_core.text.copies.word_hashes`.
    lists
        Their neighbours, n lists, which name entries by their place.
    unrelated
        See :func:`.graph.unrelated_distance`.
    tightness
        How tight the groups of each entry are, by channel; shape (n, len(SIZES)), float32.
    """

    words: list[NDArray[np.uint32]]
    lists: Lists
    unrelated: float
    tightness: Mapping[Channel, NDArray[np.float32]]
