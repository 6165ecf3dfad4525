"""The report of an audit by partitions: it knows the entries that were found, and counts others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ragshield_core.tools.audit.partitioned.plan import LOOKED_INTO
from ragshield_core.tools.audit.report import ScanReport


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionedReport(ScanReport):
    """The outcome of an audit by partitions.

    ``batch`` holds the ids of the entries that were found, without texts and vectors, and
    ``scores`` theirs.

    Attributes
    ----------
    entries
        Number of entries of the knowledge base.
    judged_by_none
        Number of entries about which no detector had an opinion.
    judged
        Per detector, the number of entries about which it had one.
    high
        Per detector, all scores above its threshold, ascending, those of trusted entries included.
    texts
        Whether any entry has a text.
    n_partitions
        How many partitions there are; each entry was compared with those of the
        :data:`~ragshield_core.tools.audit.partitioned.plan.LOOKED_INTO` that it is nearest to.
    neighbors_found
        Share of the nearest neighbours that were found so, by how many of them are meant, measured
        on entries drawn at random.
    """

    entries: int = 0
    judged_by_none: int = 0
    judged: Mapping[str, int] = field(default_factory=dict)
    high: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    texts: bool = True
    n_partitions: int = 1
    neighbors_found: Mapping[int, float] = field(default_factory=dict)

    @property
    def n_audited(self) -> int:
        """Number of entries of the knowledge base."""
        return self.entries

    @property
    def n_unjudged(self) -> int:
        """Number of entries about which no detector had an opinion."""
        return self.judged_by_none

    @property
    def has_texts(self) -> bool:
        """Whether any entry has a text."""
        return self.texts

    @property
    def note(self) -> str:
        """What the findings are worth, and what the partitions miss."""
        if not self.neighbors_found or self.n_partitions <= LOOKED_INTO:
            return super().note
        shares = " and ".join(
            f"{share:.1%} of the {k} nearest" for k, share in self.neighbors_found.items()
        )
        return (
            f"{super().note} Each entry was compared with those of {LOOKED_INTO} of "
            f"{self.n_partitions} partitions: {shares} neighbours were found so, by a sample."
        )

    def share_as_high(self, detector: str, score: float) -> float:
        """Return the share of the entries judged by a detector that score as high, in (0, 1]."""
        scores = self.high[detector]
        return (len(scores) - int(np.searchsorted(scores, score))) / self.judged[detector]
