"""Decisions of people on thresholds: borrow or refresh them, and adopt sources."""

from __future__ import annotations

from itertools import chain

from ragshield_core.calibration.arrivals import Question
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.judge import Judge
from ragshield_core.learning.writes import Writes
from ragshield_core.model.arguments import check_type
from ragshield_core.model.findings import printable


class CalibrationInForce:
    """Current thresholds, and ways to get them other than calibration."""

    def __init__(self, state: GuardState, writes: Writes) -> None:
        self._state, self._writes = state, writes

    @property
    def thresholds(self) -> dict[str, float]:
        """Per detector, the score above which an entry is quarantined."""
        thresholds = self._state.calibrator.thresholds
        return {name: threshold.quarantine for name, threshold in thresholds.items()}

    def borrow(self, other: CalibrationInForce) -> None:
        """Use the current calibration of another guard until this one has its own.

        For a tenant with few entries among similar tenants. The guard copies only the scores of the
        other's clean entries, as numbers: no entry, id, text or vector. The rate is that of this
        guard's policy. The guard measures the usual values among its own entries, and repeats this
        as they grow. Once it has enough of them, or :meth:`ragshield_core.Guard.calibrate` is
        called, it is calibrated by its own entries alone. To copy a later calibration of the other
        guard, call this again.

        Parameters
        ----------
        other
            Calibration of a guard with the same detectors, and vectors of the same model.

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
        """Measure the usual values of the current knowledge base, and calibrate by them.

        A calibrated guard does this by itself whenever the knowledge base has grown by a fifth;
        call it after large deletions. The clean sample is still the one that was drawn when the
        guard was fitted, scored among the entries that the knowledge base holds now.

        Raises
        ------
        NotFittedError
            If there is no clean sample: fit the guard first, and calibrate it.
        CalibrationError
            If too little of the clean sample is left for the accepted rate. The thresholds do not
            change.
        """
        confirmed = self._writes.quarantine.confirmed_ids()
        with self._writes.replaced():
            self._state.recalibration.refresh(confirmed)


class Sources:
    """Sources with far more held entries than the accepted rate, and decisions on them."""

    def __init__(self, state: GuardState, writes: Writes, judge: Judge) -> None:
        self._state, self._writes, self._judge = state, writes, judge

    def questions(self) -> tuple[Question, ...]:
        """Return the sources with far more held entries than accepted: new sources, or attacks.

        Statistics cannot tell the two apart. Until a person decides, the thresholds of all other
        sources apply to entries of such a source, or the choice in ``Policy(on_shift=...)``.

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
        """Set thresholds for a source that a person has found to be good.

        The guard judges the held entries of the source again. The accepted share of all its entries
        stays held: the most suspicious ones by each detector that objects to the source. The same
        thresholds apply to its later entries, and are never lower than those of other sources.

        Parameters
        ----------
        source
            Its name, as in :meth:`questions`; ``None`` for entries that name no source.
        by
            The person who decided, for the log.

        Returns
        -------
        tuple[str, ...]
            Ids of the held entries to release next. Guarded stores have a method of the same name,
            which does both.

        Raises
        ------
        ValueError
            If the quarantine holds no entry of this source.
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
        """Close the question about a source: it is an attack, or unwanted.

        Its entries stay held, and later ones are judged as before. The guard asks again once twice
        as many entries are held.

        Parameters
        ----------
        source, by
            As in :meth:`adopt`.

        Raises
        ------
        ValueError
            If no entry has come from this source.
        """
        if source not in self._state.calibrator.arrivals.sources:
            msg = (
                f"nothing has come from the source {printable(str(source), 80)!r} since the "
                "calibration; questions() names the sources that are asked about."
            )
            raise ValueError(msg)
        with self._writes.replaced():
            self._state.calibrator.arrivals.decide(source, "keep holding")
        note = f"source {printable(str(source), 80)!r}: its held entries stay held"
        self._writes.quarantine.log.record("keep", by=by, note=note)
