"""The thresholds that a guard goes by, beside those that its own entries give it."""

from __future__ import annotations

from collections.abc import Callable

from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.writes import Writes
from ragshield_core.model.arguments import check_type
from ragshield_core.model.p_values import Released


class CalibrationInForce:
    """Thresholds as they are, and other ways to come by them than to calibrate.

    Parameters
    ----------
    state
        Of the guard.
    writes
        Of the guard: they know its quarantine, and what other processes have learned.
    """

    def __init__(self, state: GuardState, writes: Writes) -> None:
        self._state, self._writes = state, writes

    @property
    def thresholds(self) -> dict[str, float]:
        """Per detector, the score above which an entry is quarantined."""
        thresholds = self._state.calibrator.thresholds
        return {name: threshold.quarantine for name, threshold in thresholds.items()}

    def thresholds_with(self, released: Released | None) -> dict[str, float]:
        """Return what :attr:`thresholds` are if what people found to be clean counts; see there.

        Parameters
        ----------
        released
            As :func:`ragshield_core.tools.review.feedback.preview` takes it from the quarantine.

        Raises
        ------
        CalibrationError
            If the guard is not calibrated.
        """
        with self._state.lock:
            thresholds = self._state.calibrator.thresholds_with(released)
        return {name: threshold.quarantine for name, threshold in thresholds.items()}

    @property
    def released(self) -> Released | None:
        """What people found to be clean, as far as somebody has decided that it counts."""
        return self._state.calibrator.released

    def count_released(
        self, released: Released | None, decided: Callable[[], object] = lambda: None
    ) -> None:
        """Have what people found to be clean count, here and in all processes, from now on.

        Also whenever thresholds are taken anew, until the guard is fitted again or calibrated by
        other clean entries. A person decides so:
        :func:`ragshield_core.tools.review.feedback.apply`.

        Parameters
        ----------
        released
            ``None`` for nothing any more.
        decided
            Called while no other process changes the guard, before anything is: it may raise, or
            write down who decided.

        Raises
        ------
        CalibrationError
            If the guard is not calibrated.
        """
        with self._writes.replaced():
            self._state.calibrator.thresholds_with(released)  # raises before anything is decided
            decided()
            self._state.calibrator.count_released(released)

    def borrow(self, other: CalibrationInForce) -> None:
        """Go by the calibration of another guard, as it is now, until this one has its own.

        For a tenant with few entries among others like it. What is taken over is how clean entries
        score there, as numbers: no entry, id, text or vector. The rate is that of this guard's
        policy. What is usual is measured among its own entries, again and again as these grow; as
        soon as there are enough of them, or :meth:`ragshield_core.Guard.calibrate` is called, it is
        calibrated by them and goes by nothing else any more. Later calibrations of the other are
        taken over when this is called again.

        Parameters
        ----------
        other
            Of a guard with the same detectors, and vectors of the same model.

        Raises
        ------
        CalibrationError
            If the other is not calibrated, has other detectors or vectors, or too few clean entries
            for the rate; or if this one is calibrated by its own entries.
        """
        expected = "the calibration of another guard: other.calibration"
        check_type("other", other, CalibrationInForce, expected)
        other._writes.catch_up()
        with other._state.lock:
            lent = other._state.calibrator.lend()
        confirmed = self._writes.quarantine.confirmed_ids()
        with self._writes.replaced():
            self._state.recalibration.borrow(lent, confirmed)

    def refresh(self) -> None:
        """Measure anew what is usual in the knowledge base as it is now, and calibrate by that.

        A calibrated guard does this by itself whenever the knowledge base has grown by a tenth;
        call it after entries were deleted on a large scale. The clean sample stays the one that was
        drawn when the guard was fitted, scored among what the knowledge base holds now.

        Raises
        ------
        NotFittedError
            If there is no clean sample: fit the guard first, and calibrate it.
        CalibrationError
            If too little of the clean sample is left for the accepted rate. Thresholds stay as they
            were.
        """
        confirmed = self._writes.quarantine.confirmed_ids()
        with self._writes.replaced():
            self._state.recalibration.refresh(confirmed)
