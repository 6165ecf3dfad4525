"""Sources of which far more is held than accepted, and what people decide on them."""

from __future__ import annotations

from itertools import chain

from ragshield_core.calibration.arrivals import Question
from ragshield_core.learning.guard_state import GuardState
from ragshield_core.learning.judge import Judge
from ragshield_core.learning.writes import Writes
from ragshield_core.model.findings import printable


class Sources:
    """The questions that a guard asks about sources, and the answers of people.

    Parameters
    ----------
    state
        Of the guard.
    writes
        Of the guard: they know its quarantine, and what other processes have learned.
    judge
        Judges held entries again.
    """

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
