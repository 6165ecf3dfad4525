"""P-values and thresholds from the scores of known-clean entries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.errors import CalibrationError

# The product of the same two vectors differs in its last bits with the shape of the matrix; this
# difference alone must not condemn an entry that equals a clean one.
TIE = 1e-9


def clean_entries_needed(alpha: float) -> int:
    """Return how many clean entries can justify acting at p <= ``alpha``.

    >>> clean_entries_needed(0.01)
    99
    """
    return max(1, math.ceil(1.0 / alpha - 1e-9) - 1)


def rounded_up(scores: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Return scores in float32, rounded up; scores that fit into float32 stay the same.

    This way no clean entry scores above a threshold that was taken from its own score.

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
        """Build from scores in any order, shape (n_clean,); float32 scores stay float32."""
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
        """Return how many clean entries score at least as high, shape (n_entries,)."""
        # In the type of the clean scores: another type would copy all of them.
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

    Every detector acts on the same share of clean entries, the largest that keeps all detectors
    together within the accepted rate: detectors that suspect the same entries, or next to none,
    leave their part of it to the others. A Bonferroni correction would waste that part.
    :class:`~ragshield_core.model.support.Support` adds up the weak evidence of several detectors.

    Parameters
    ----------
    scores
        Per detector, shape (n_clean,); the same entry has the same row, NaN where the detector
        could not judge it.
    floors
        Per detector, the score up to which it never acts. A detector that is left out has no floor.
    n_doubtful
        Number of entries that the sample leaves out because they are far from everything usual and
        may or may not be clean. They count as clean up to half of the accepted rate: if all of them
        are clean, the rate is exceeded by their share less that half; if none is, half of the rate
        is lost.

    spent
        Shape (n_clean,): True for entries that were beyond a threshold of :meth:`recall_thresholds`
        in an earlier calibration; ``None`` if there are none.

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
    Take the rarest of an entry's scores, as the share of clean entries that reach it. This share is
    itself a score whose ranks are symmetric in clean and new entries, so that the reasoning behind
    conformal p-values holds for it.

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

        The result is not kept: for a million entries it is as large as all scores of a detector,
        and only new thresholds need it.
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
        """Return the score above which each detector acts, for those that judged enough entries.

        Parameters
        ----------
        alpha
            Accepted share of clean entries that all detectors together act on, (0, 1).
        confidence
            Probability, over the draw of the clean sample, of keeping the rate.

        Raises
        ------
        CalibrationError
            If the sample is too small to justify ``alpha`` even in expectation; names a sufficient
            size.

        Notes
        -----
        The share of clean entries above the m-th largest of n clean values is distributed as
        Beta(m, n + 1 - m), with mean m / (n + 1). The largest m that keeps the mean within alpha is
        lowered until the share is within alpha with the wanted confidence, as long as every
        detector keeps a clean score to compare with: a sample that is large enough in expectation
        is not refused for the confidence.
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
        if first > largest:  # many entries tie with the highest score: only a threshold above works
            share = float(shares[0]) - 0.5 / self._most
        else:
            share = float(shares[max(0, int(np.searchsorted(reached, sure, side="right")) - 1)])
        return self._at(share)  # never empty: at least one entry of the detector that judged most

    def recall_thresholds(
        self, alpha: float, confidence: float, recalled: float | None = None
    ) -> dict[str, float]:
        """Return the score above which each detector may recall admitted entries, over a lifetime.

        Parameters
        ----------
        alpha, confidence
            As of :meth:`thresholds`.
        recalled
            Accepted share of clean entries that are ever beyond these thresholds, (0, 1). ``None``
            for the part of ``alpha`` that the confidence leaves over.

        Notes
        -----
        An entry is judged when it comes, and again whenever a new entry is near to it: each look
        may be wrong. Alpha is therefore spent (Lan and DeMets, "Discrete sequential boundaries for
        clinical trials", Biometrika 70, 1983): every calibration sets its thresholds so high that
        at most the accepted share of the sample was ever beyond the thresholds of any calibration,
        this one included. In expectation, other clean entries of the same age are recalled as often
        as the sample would have been, since they are exchangeable with it. A threshold is at most
        the highest score, so that a sample too small for the share recalls only entries that are
        more unusual than all of it.
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
        """Return whether each clean entry is beyond a threshold, shape (n_clean,)."""
        found = np.zeros(len(self.spent), dtype=np.bool_)
        for name, threshold in thresholds.items():
            if name in self.scores:
                found |= np.nan_to_num(self.scores[name], nan=-np.inf) > threshold
        return found

    @property
    def _n_clean(self) -> int:
        return self._n_judged + self.n_doubtful

    def ranks(self, alpha: float, confidence: float) -> tuple[int, int]:
        """Return the largest ranks that keep the rate in expectation, and with confidence."""
        from scipy.special import betainc  # noqa: PLC0415 - keeps `import ragshield_core` quick

        n = self._n_clean
        largest = math.floor(alpha * (n + 1) + 1e-9)
        ranks = np.arange(1, largest + 1)
        sure = int(np.count_nonzero(betainc(ranks, n + 1 - ranks, alpha) >= confidence))
        return self._beside_doubtful(largest), self._beside_doubtful(sure)

    def _at(self, share: float) -> dict[str, float]:
        """Return, for each detector, the threshold that this share of its scores reaches."""
        thresholds = {}
        for name, calibration in self.calibrations.items():
            if rank := math.floor(share * len(calibration) + 1e-6):
                reached = float(calibration.clean_scores[len(calibration) - rank])
                thresholds[name] = max(self.floors[name], reached) + TIE
        return thresholds

    def _beside_doubtful(self, rank: int) -> int:
        return max(math.ceil(rank / 2), rank - self.n_doubtful)

    def _rank_for(self, left: int) -> int:
        """Return the least rank of which ``left`` remain after the doubtful entries."""
        return min(2 * left - 1, left + self.n_doubtful)

    @property
    def smallest_rate(self) -> float:
        """The smallest rate, for all detectors together, that the sample can justify."""
        rarest = self._rarest()
        first = 1 if self._tied(rarest) else int(np.count_nonzero(rarest == rarest[0]))
        return self._rank_for(first) / (len(rarest) + 1)

    def _tied(self, rarest: NDArray[np.float64]) -> bool:
        """Return whether many entries tie with the highest score: a threshold may be above it."""
        return bool(rarest[0] * self._most >= 1.5)  # noqa: PLR2004 - one, or more than one
