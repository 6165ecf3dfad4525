"""Round cosines, shares and figures.

They are rounded where they are made, so that all that is told from them is the same in a process
that has made them, in one that has read them, and in one that has learned the same entries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Of shares that are thresholds somewhere, such as nine tenths, all are whole numbers of steps; a
# product in float32 may fall this far short of one.
SLACK = 1e-3


class Scale(NamedTuple):
    """Rounds numbers to whole numbers of steps.

    Attributes
    ----------
    steps
        To one.
    least, most
        Numbers of steps within which numbers stay.
    down
        Whether numbers are rounded down, so that they stay on their side of what is a whole number
        of steps; else to the nearest.
    """

    steps: int
    least: int
    most: int
    down: bool = False

    def __call__(self, values: NDArray[Any] | float) -> NDArray[np.float32]:
        """Return what is left of numbers; what is out of reach is as far as can be."""
        scaled = np.asarray(values, dtype=np.float32) * np.float32(self.steps)
        scaled = np.floor(scaled + np.float32(SLACK)) if self.down else np.rint(scaled)
        return np.asarray(np.clip(scaled, self.least, self.most) / np.float32(self.steps))


# Cosines in [0, 1]: off by 8e-6 at the most. Entries that are less alike than by chance are no
# neighbours, so that it does not matter how much less.
COSINES = Scale(2**16 - 1, 0, 2**16 - 1)
# Shares of copied words, off by 4e-3 at the most; 0.35, 0.5 and 0.9 are thresholds.
SHARES = Scale(240, 0, 255, down=True)
# Figures of groups are nearness and differences of it, within -5.4 and 5.4; see
# ragshield_core.detectors.groups.evidence. Off by 8e-5 at the most.
FIGURES = Scale(6_000, -(2**15), 2**15 - 1)
