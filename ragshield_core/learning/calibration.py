"""What people decide on thresholds: other ways to come by them, and sources to adopt."""

from __future__ import annotations

from itertools import chain

from ragshield_core.calibration.arrivals import Question
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.judge import Judge
from ragshield_core.learning.writes import Writes
from ragshield_core.model.arguments import check_type
from ragshield_core.model.findings import printable


class CalibrationInForce:
    """Thresholds as they are, and other ways to come by them than to calibrate."""

    def __init__(self, state: GuardState, writes: Writes) -> None:
        self._state, self._writes = state, writes

    @property
    def thresholds(self) -> dict[str, float]:
        """Per detector, the score above which an entry is quarantined."""
        thresholds = self._state.calibrator.thresholds
        return {name: threshold.quarantine for name, threshold in thresholds.items()}

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
        confirmed = self._writes.quarantine.confirmed_ids()
        with self._writes.replaced():
            self._state.recalibration.borrow(other._state.calibrator, confirmed)

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


class Sources:
    """Sources of which far more is held than accepted, and what people decide on them."""

    def __init__(self, state: GuardState, writes: Writes, judge: Judge) -> None:
        self._state, self._writes, self._judge = state, writes, judge

    def questions(self) -> tuple[Question, ...]:
        """Return the sources of which far more is held than accepted: new ones, or attacks.

        No statistics tell the two apart. Until a person decides, entries of such a source are held
        by the thresholds of everybody else, or as ``Policy(on_shift=...)`` says.

        Examples
        --------
        >>> from ragshield_core import Guard, Quarantine
        >>> from ragshield_core.detectors import CliqueDetector
        >>> Guard([CliqueDetector()], quarantine=Quarantine("sqlite://")).sources.questions()
        ()
        """
        with self._state.lock:
            return self._state.calibrator.arrivals.questions(
                self._state.calibrator.policy.quarantine_at
            )

    def adopt(self, source: str | None, *, by: str = "ragshield") -> tuple[str, ...]:
        """Take thresholds for a source that a person has found to be good.

        Its held entries are judged again. Of all its entries, the accepted share stays held: the
        most suspicious ones by each detector that objects to the source. Later entries of the
        source are judged by the same thresholds, which are never lower than those of others.

        Parameters
        ----------
        source
            Its name, as :meth:`questions` has it; ``None`` for entries that name none.
        by
            Who decided, for the log.

        Returns
        -------
        tuple[str, ...]
            Ids of the held entries that come free: release them next. Guarded stores have a method
            of the same name, which does both.

        Raises
        ------
        ValueError
            If nothing of such a source is held.
        """
        from ragshield_core.quarantine.entries import batches_of  # noqa: PLC0415 - SQLAlchemy

        with self._state.lock:
            self._writes.catch_up()
            count = self._state.calibrator.arrivals.sources.get(source)
            ids = [] if count is None else list(count.held_ids)
        waiting = self._writes.quarantine.list(ids=ids) if ids else ()
        if count is None or not waiting:
            msg = (
                f"nothing of the source {printable(str(source), 80)!r} waits in quarantine; "
                "questions() names the sources that are asked about."
            )
            raise ValueError(msg)
        parts = [(batch, self._judge.screen(batch).scores) for batch in batches_of(waiting)]
        with self._writes.replaced():
            freed = [
                batch.take(self._state.calibrator.adopt_source(source, scores, count.judged)).ids
                for batch, scores in parts
            ]
        ids = list(chain.from_iterable(freed))
        named = printable(str(source), 80)
        note = f"source {named!r}: {len(ids)} of {len(waiting)} held entries come free"
        self._writes.quarantine.log.record("adopt", by=by, note=note)
        return tuple(ids)

    def keep_holding(self, source: str | None, *, by: str = "ragshield") -> None:
        """Close the question about a source: it is an attack, or not wanted here.

        Its entries stay held, and later ones are judged as before. The question is asked again once
        twice as many are held.

        Parameters
        ----------
        source, by
            As of :meth:`adopt`.

        Raises
        ------
        ValueError
            If nothing has come from such a source.
        """
        if source not in self._state.calibrator.arrivals.sources:
            msg = (
                f"nothing has come from the source {printable(str(source), 80)!r} since the "
                "calibration; questions() names the sources that are asked about."
            )
            raise ValueError(msg)
        with self._writes.replaced():
            self._state.calibrator.arrivals.decide(source, "keep holding")
        note = f"source {printable(str(source), 80)!r}: what is held of it stays held"
        self._writes.quarantine.log.record("keep", by=by, note=note)
