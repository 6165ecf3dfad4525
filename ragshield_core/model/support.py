"""Sum of the evidence of several detectors against one entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.p_values import TIE, Calibration, JointCalibration

# A score that fewer than one clean entry in twenty reaches supports the findings of other detectors
# on the same entry. More common scores are no evidence. With .02 and .1 the same attacks were
# found, give or take two in a hundred.
SUPPORTS = 0.05
# From this rank on, detectors may act on one more clean entry.
ENOUGH = 10
# Share of clean entries that detectors, taken together, find unusual.
UNUSUAL = 0.02


class Support:
    """Joint evidence: several detectors suspect an entry that none of them suspects by itself.

    An attack is often unusual in more than one way: it repeats a question, claims to be
    authoritative, resembles other entries of its kind. Clean entries seldom are. Surprise adds up
    (Fisher's product of p-values, of the small ones): a detector that would act on one clean entry
    in a thousand by itself acts on one in a hundred if another finds it as rare as one in 200.

    Detectors may act on ``rank`` of the clean entries in all, by themselves above ``thresholds`` or
    together. If the same clean entries are unusual in many ways, as when detectors look at the same
    thing, acting together takes more surprise, to keep to this rank.

    References
    ----------
    Zaykin et al., "Truncated product method for combining P-values", Genetic Epidemiology 22(2),
    2002.

    Examples
    --------
    >>> clean = {"a": np.arange(999.0), "b": np.roll(np.arange(999.0), 500)}
    >>> support = Support(JointCalibration(clean), {"a": 997.0, "b": 997.0}, 10)
    >>> scores = {"a": np.array([993.0, 993.0]), "b": np.array([993.0, 3.0])}
    >>> alone = {"a": np.array([997.0, 997.0]), "b": np.array([997.0, 997.0])}
    >>> (scores["a"] > support.limits(scores, alone)["a"]).tolist()
    [True, False]
    """

    def __init__(
        self, calibration: JointCalibration, thresholds: Mapping[str, float], rank: int
    ) -> None:
        self._known = {n: c for n, c in calibration.calibrations.items() if n in thresholds}
        self._floors = calibration.floors
        names = list(self._known)
        scores = {name: np.asarray(calibration.scores[name], dtype=np.float64) for name in names}
        limits = {name: np.full(len(scores[name]), thresholds[name]) for name in names}
        self._enough, self._unusual = np.inf, np.inf
        if len(names) > 1:  # it takes two
            says, alone, _ = self._says(names, scores, limits, itself=1)
            by_themselves = says.max(axis=0) >= alone - TIE
            together = np.sort(says.sum(axis=0)[~by_themselves])[::-1]
            # Ties leave part of the rate unused, and the confidence leaves room for one more entry.
            left = max(int(rank >= ENOUGH), rank - int(np.count_nonzero(by_themselves)))
            if left > 0:  # as with thresholds, detectors do not act on the last of them
                self._enough = float(together[left - 1]) if left <= len(together) else 0.0
            everything = np.sort(says.sum(axis=0))[::-1]
            self._unusual = float(everything[int(UNUSUAL * len(everything))])

    def limits(
        self, scores: Mapping[str, NDArray[np.float64]], alone: Mapping[str, NDArray[np.float64]]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the score above which each detector acts on each entry, beside the other scores.

        ``alone`` are the scores above which each detector acts by itself. The limits equal them,
        and are lower where several detectors suspect an entry: all of these exceed their limits
        then. All are by detector, shape (n_entries,); scores are NaN without an opinion.
        """
        names = [name for name in scores if name in self._known and name in alone]
        found = dict(alone)
        if len(names) < 2 or not len(scores[names[0]]):  # noqa: PLR2004 - it takes two
            return found
        says, most, own = self._says(names, scores, alone)
        together, enough = says.sum(axis=0), np.maximum(most, self._enough)
        joined = (together > enough + TIE) & (says.max(axis=0) < most - TIE)
        for name, mine, share in zip(names, says, own, strict=True):
            rows = np.flatnonzero(joined & (mine > 0.0))
            if rows.size:
                known = self._known[name].clean_scores
                others = (together - mine - enough + most)[rows]
                ranks = np.floor(share[rows] * np.exp(others) * (len(known) + 1) + TIE)
                lowered = known[len(known) - np.clip(ranks, 1, len(known)).astype(np.intp)] + TIE
                found[name] = alone[name].copy()
                found[name][rows] = np.minimum(lowered, alone[name][rows])
        return found

    def unusual(
        self, scores: Mapping[str, NDArray[np.float64]], alone: Mapping[str, NDArray[np.float64]]
    ) -> NDArray[np.bool_]:
        """Return whether detectors together find each entry unusual, even if too little to act.

        Parameters are those of :meth:`limits`.
        """
        names = [name for name in scores if name in self._known and name in alone]
        if not names:
            return np.zeros(max(map(len, scores.values()), default=0), dtype=np.bool_)
        says, _, _ = self._says(names, scores, alone)
        return np.asarray(says.sum(axis=0) > max(self._unusual, TIE))

    def _says(
        self,
        names: Sequence[str],
        scores: Mapping[str, NDArray[np.float64]],
        alone: Mapping[str, NDArray[np.float64]],
        itself: int = 0,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return each detector's surprise, the surprise that each entry needs, and acted-on shares.

        Surprise counts from the limit above which a detector acts by itself, which releases and
        adoptions raise. Shapes: (n_detectors, n_entries), (n_entries,), (n_detectors, n_entries).
        """
        own = np.stack([_share(self._known[name], alone[name]) for name in names])
        rare = np.stack(
            [
                _rarity(self._known[name], scores[name], self._floors.get(name, -np.inf), itself)
                for name in names
            ]
        )
        most = np.maximum(0.0, np.log(SUPPORTS / own.max(axis=0)))
        return np.maximum(0.0, most - np.log(rare / own)), most, own


def _share(calibration: Calibration, limits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of clean entries that a detector acts on by itself."""
    return np.maximum(1, calibration.as_high(limits)) / (len(calibration) + 1.0)


def _rarity(
    calibration: Calibration, scores: NDArray[np.float64], floor: float, itself: int
) -> NDArray[np.float64]:
    """Return p-values; 1 for scores up to the floor. Clean entries are not counted twice."""
    known = np.nan_to_num(scores, nan=-np.inf)
    p_values = calibration.p_values(known) - itself / (len(calibration) + 1.0)
    return np.where(known > floor, p_values, 1.0)
