"""The kind of detector that judges entries together, across batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.abilities import DoubtsSample, Overlooks
from ragshield_core.detectors.base.detector import Detector
from ragshield_core.detectors.base.evidence import Evidence
from ragshield_core.model.entries import Batch


class GroupDetector(Overlooks, DoubtsSample, Detector):
    """Base class of detectors that find groups whose members come one by one.

    They remember held entries, since the rest of a group may follow, and recall members that came
    earlier.
    """

    @abstractmethod
    def remember_held(self, entries: Batch) -> None:
        """Remember entries that are held in quarantine: the rest of their group may follow."""

    @abstractmethod
    def forget_held(self, ids: Sequence[str]) -> None:
        """Forget held entries: they were released, or deleted for good."""

    @abstractmethod
    def retroactive(
        self, batch: Batch, condemned: NDArray[np.bool_], unusual: Collection[str] = ()
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Return entries learned earlier that ``batch`` shows in another light, with scores.

        Of an entry and its imitation, the one that came later is the suspect: name an earlier entry
        only on evidence that does not rest on a single newcomer.

        Parameters
        ----------
        batch
            New entries.
        condemned
            Shape (n_entries,): which of them are held, whichever detector it was.
        unusual
            Ids of entries learned earlier that were unusual by themselves when they came, as one
            clean entry in fifty is: newcomers that imitate an entry cannot have brought that about.
        """

    @abstractmethod
    def explain_retroactive(self, batch: Batch, ids: Sequence[str]) -> list[Evidence]:
        """Return why entries that :meth:`retroactive` named have the score they have now."""

    @abstractmethod
    def trust(self, ids: Sequence[str]) -> None:
        """Leave entries alone from now on: a person has judged them good."""

    def confirm(self, ids: Sequence[str]) -> None:
        """Let held entries count in full: a person has judged them poisoned."""

    def distrust(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Watch suspicious fitted entries, for which nobody has vouched.

        Returns
        -------
        NDArray[np.bool]
            Shape (n_ids,): which of them came after what speaks against them. Of an entry and its
            imitation, the newcomer is the suspect.
        """
        return np.ones(len(ids), dtype=np.bool_)

    def explain_held_out(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return why rows of fitted entries have the scores that they have while held out."""
        return self.explain(batch, rows)

    @abstractmethod
    def n_doubted(self) -> int:
        """Return how many learned entries it takes for poison that came with them."""
