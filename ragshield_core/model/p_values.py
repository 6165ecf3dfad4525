"""Scores of known-clean entries turn into p-values and thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import CalibrationError

# A product of the same two vectors differs in its last bits with the shape of the matrix that it
# stands in; an entry must not be condemned for being equal to a clean one but for that.
TIE = 1e-9


def clean_entries_needed(alpha: float) -> int:
    """Return how many clean entries can justify acting at p <= ``alpha``.

    >>> clean_entries_needed(0.01)
    99
    """
    return max(1, math.ceil(1.0 / alpha - 1e-9) - 1)


def rounded_up(scores: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return scores in float32, none of them lower than it was; what is that already as it is.

    So that no clean entry is beyond what is taken from its own score.

    >>> rounded_up(np.array([0.1, 0.3, 0.5])).tolist()
    [0.10000000149011612, 0.30000001192092896, 0.5]
    """
    given = np.asarray(scores)
    nearest = given.astype(np.float32, copy=False)
    lower = nearest < given
    if not lower.any():
        return nearest
    return np.where(lower, np.nextafter(nearest, np.float32(np.inf)), nearest)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Scores that one detector gave to known-clean entries it was not fitted on.

    Examples
    --------
    >>> Calibration.of(np.array([0.1, 0.2, 0.3])).p_values(np.array([0.0, 0.9]))
    array([1.  , 0.25])
    """

    clean_scores: NDArray[np.floating[Any]]  # (n_clean,), ascending

    @classmethod
    def of(cls, clean_scores: NDArray[np.floating[Any]]) -> Self:
        """Build from scores in any order, shape (n_clean,); float32 stays what it is."""
        given = np.asarray(clean_scores)
        ordered = np.sort(given if given.dtype == np.float32 else given.astype(np.float64))
        if ordered.size == 0:
            msg = "clean_scores is empty, expected the scores of at least one clean entry."
            raise CalibrationError(msg)
        if not np.isfinite(ordered).all():
            msg = "clean_scores holds NaN or infinite values, expected finite scores of a detector."
            raise CalibrationError(msg)
        return cls(ordered)

    def __len__(self) -> int:
        return len(self.clean_scores)

    def as_high(self, scores: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Return how many clean entries score as high, shape (n_entries,)."""
        # Of their type, or all clean ones would be copied.
        given = (np.asarray(scores) - TIE).astype(self.clean_scores.dtype)
        below = np.searchsorted(self.clean_scores, given, side="left")
        return np.asarray(len(self.clean_scores) - below, dtype=np.int64)

    def p_values(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how surprising scores are among those of clean entries, each in [1/(n + 1), 1].

        If clean and new entries are exchangeable, ``p <= alpha`` flags at most a share alpha of the
        clean ones in expectation (Bates et al., "Testing for outliers with conformal p-values",
        Annals of Statistics 51(1), 2023).
        """
        p_values = (1.0 + self.as_high(scores)) / (len(self.clean_scores) + 1.0)
        return np.asarray(p_values, dtype=np.float64)


class JointCalibration:
    """Scores of several detectors for the same known-clean entries.

    Every detector acts on the same share of clean entries, which is as large as the rate accepted
    for all of them together allows: detectors that suspect the same entries, or next to none,
    leave their part of it to the others. Adding up (Bonferroni) would waste it.
    :class:`~ragshield_core.model.support.Support` adds up what several find a little unusual.

    Parameters
    ----------
    scores
        Per detector, shape (n_clean,); the same entry has the same row, NaN where the detector
        could not judge it.
    floors
        Per detector, the score up to which it never acts; none where it is left out.
    n_doubtful
        How many entries were left out of the sample because they are far from everything usual,
        and nobody can say whether they are clean. They count as clean up to half of the accepted
        rate: if all of them were, the rate is exceeded by their share less that half; if none, half
        of it is lost.

    spent
        Shape (n_clean,): which entries were beyond a threshold of :meth:`recall_thresholds` before,
        in an earlier calibration; ``None`` for none.

    Attributes
    ----------
    scores, floors
        As given.
    spent
        As given, or all ``False``.
    calibrations
        One per detector that judged any of the entries.

    Raises
    ------
    CalibrationError
        If no detector judged any entry.

    Notes
    -----
    The rarest of an entry's scores, as the share of clean entries that reach it, is itself a score
    whose ranks are symmetric in clean and new entries, so that the reasoning behind conformal
    p-values holds for it.

    Examples
    --------
    >>> shy, bold = np.zeros(199), np.arange(199.0)
    >>> joint = JointCalibration({"shy": shy, "bold": bold}, {"shy": 0.0})
    >>> round(joint.thresholds(0.05, confidence=0.5)["bold"])  # nothing is left to the shy one
    189
    """

    def __init__(
        self,
        scores: Mapping[str, NDArray[np.floating[Any]]],
        floors: Mapping[str, float] | None = None,
        n_doubtful: int = 0,
        spent: NDArray[np.bool_] | None = None,
    ) -> None:
        self.scores = dict(scores)
        self.n_doubtful = n_doubtful
        self.calibrations: dict[str, Calibration] = {}
        self.floors = {name: (floors or {}).get(name, -math.inf) for name in self.scores}
        anywhere = np.zeros(max(map(len, self.scores.values()), default=0), dtype=np.bool_)
        for name, column in self.scores.items():
            judged = ~np.isnan(column)
            if judged.any():
                self.calibrations[name] = Calibration.of(column[judged])
                anywhere |= judged
        if not self.calibrations:
            msg = "no detector judged any of the clean entries, expected at least one score."
            raise CalibrationError(msg)
        self.spent = np.zeros(len(anywhere), dtype=np.bool_) if spent is None else spent
        self._n_judged = int(np.count_nonzero(anywhere))
        self._most = max(len(calibration) for calibration in self.calibrations.values())

    def _rarest(self, *, unspent: bool = False) -> NDArray[np.float64]:
        """Return the share that reaches the rarest score of each clean entry, ascending.

        Of a million entries it is as large as all scores of a detector, and asked for when
        thresholds are taken: it is not kept.
        """
        rarest = np.full(len(self.spent), np.nan)  # of all detectors that judged an entry
        for name, calibration in self.calibrations.items():
            column = self.scores[name]
            share = np.where(np.isnan(column), np.nan, 1.0)
            acted_on = np.flatnonzero(column > self.floors[name])
            share[acted_on] = calibration.as_high(column[acted_on]) / len(calibration)
            np.fmin(rarest, share, out=rarest)
        return np.sort(rarest[~np.isnan(rarest) & ~(self.spent & unspent)])

    def thresholds(self, alpha: float, confidence: float) -> dict[str, float]:
        """Return the score above which a detector acts, for each that judged enough entries.

        Parameters
        ----------
        alpha
            Accepted share of clean entries acted on, by all detectors together, (0, 1).
        confidence
            Probability, over the draw of the clean sample, that the rate is kept.

        Raises
        ------
        CalibrationError
            If the sample is too small to justify ``alpha`` even in expectation; names the size
            that would do.

        Notes
        -----
        Above the m-th largest of n clean values lies a share of clean entries that is distributed
        as Beta(m, n + 1 - m), with mean m / (n + 1). The largest m that keeps the mean within
        alpha is lowered until the share is within alpha with the wanted confidence, but only as
        far as every detector keeps a clean score to compare with: a sample that is large enough
        in expectation is not refused for the confidence.
        """
        n = self._n_clean
        largest, sure = self.ranks(alpha, confidence)
        rarest = self._rarest()
        shares, counts = np.unique(rarest, return_counts=True)
        reached = np.cumsum(counts)  # clean entries acted on at each share
        first = int(reached[0])
        if largest < 1 or (first > largest and not self._tied(rarest)):
            needed = clean_entries_needed(alpha / (1 if largest < 1 else self._rank_for(first)))
            msg = f"{n} clean entries can never justify p <= {alpha:g}; pass at least {needed}."
            raise CalibrationError(msg)
        if first > largest:  # many entries tie with the highest score: nothing below them will do
            share = float(shares[0]) - 0.5 / self._most
        else:
            share = float(shares[max(0, int(np.searchsorted(reached, sure, side="right")) - 1)])
        return self._at(share)  # never empty: one entry or more of those that most were judged by

    def recall_thresholds(
        self, alpha: float, confidence: float, recalled: float | None = None
    ) -> dict[str, float]:
        """Return the score above which a detector may recall what was admitted, over a lifetime.

        Parameters
        ----------
        alpha, confidence
            As of :meth:`thresholds`.
        recalled
            Accepted share of clean entries that are ever beyond these thresholds, (0, 1). ``None``
            for what the confidence leaves of ``alpha``.

        Notes
        -----
        An entry is judged once when it comes, and again whenever something comes near to it: each
        look has its chance to be wrong. Alpha is therefore spent (Lan and DeMets, "Discrete
        sequential boundaries for clinical trials", Biometrika 70, 1983): with every calibration
        the thresholds stand so high that no more of the sample than the accepted share were ever
        beyond those of any calibration, this one included. What the sample would have suffered is
        what other clean entries of its age suffer, in expectation, as the one is exchangeable with
        the others. At least the highest score is a threshold, so that a sample too small for the
        share recalls nothing that is less unusual than all of it.
        """
        largest, sure = self.ranks(alpha, confidence)
        rank = largest - sure
        if recalled is not None:
            rank = math.floor(recalled * (self._n_clean + 1) + 1e-9)
        rank = max(1, rank - int(np.count_nonzero(self.spent)))
        unspent = self._rarest(unspent=True)
        if not len(unspent):
            return self._at(float(self._rarest()[0]))
        return self._at(float(unspent[min(rank, len(unspent)) - 1]))

    def beyond(self, thresholds: Mapping[str, float]) -> NDArray[np.bool_]:
        """Return which clean entries are beyond a threshold, shape (n_clean,)."""
        found = np.zeros(len(self.spent), dtype=np.bool_)
        for name, threshold in thresholds.items():
            if name in self.scores:
                found |= np.nan_to_num(self.scores[name], nan=-np.inf) > threshold
        return found

    @property
    def _n_clean(self) -> int:
        return self._n_judged + self.n_doubtful

    def ranks(self, alpha: float, confidence: float) -> tuple[int, int]:
        """Return which of the largest values keeps the rate in expectation, and which surely."""
        from scipy.special import betainc  # noqa: PLC0415 - keeps `import ragshield_core` quick

        n = self._n_clean
        largest = math.floor(alpha * (n + 1) + 1e-9)
        ranks = np.arange(1, largest + 1)
        sure = int(np.count_nonzero(betainc(ranks, n + 1 - ranks, alpha) >= confidence))
        return self._beside_doubtful(largest), self._beside_doubtful(sure)

    def _at(self, share: float) -> dict[str, float]:
        """Return the thresholds that so large a share of the scores of each detector reaches."""
        thresholds = {}
        for name, calibration in self.calibrations.items():
            if rank := math.floor(share * len(calibration) + 1e-6):
                reached = float(calibration.clean_scores[len(calibration) - rank])
                thresholds[name] = max(self.floors[name], reached) + TIE
        return thresholds

    def _beside_doubtful(self, rank: int) -> int:
        return max(math.ceil(rank / 2), rank - self.n_doubtful)

    def _rank_for(self, left: int) -> int:
        """Return the least rank of which doubtful entries leave as many."""
        return min(2 * left - 1, left + self.n_doubtful)

    @property
    def smallest_rate(self) -> float:
        """The smallest share, accepted for all detectors together, that the sample can justify."""
        rarest = self._rarest()
        first = 1 if self._tied(rarest) else int(np.count_nonzero(rarest == rarest[0]))
        return self._rank_for(first) / (len(rarest) + 1)

    def _tied(self, rarest: NDArray[np.float64]) -> bool:
        """Return whether many entries tie with the highest score: one may stand above them all."""
        return bool(rarest[0] * self._most >= 1.5)  # noqa: PLR2004 - one, or more than one
