"""Schedule of calibrations: at a first size, then whenever the knowledge base has grown."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration.calibrator import Calibrator, Measured, Usuals
from ragshield_core.calibration.clean_sample import CleanSample, first_size, latest
from ragshield_core.detectors.base import DoubtsSample, GroupDetector, lacking_in
from ragshield_core.model.entries import NO_ENTRIES, Batch
from ragshield_core.model.errors import CalibrationError, NotFittedError
from ragshield_core.model.findings import Finding, Skipped, finding_from_dict, finding_to_dict
from ragshield_core.model.p_values import TIE
from ragshield_core.screening.knowledge import Knowledge
from ragshield_core.screening.screening import crash, explained, findings_of
from ragshield_core.state import part_of
from ragshield_core.text.readings import keep_readings

logger = logging.getLogger("ragshield")

# Growth of the knowledge base after which it is calibrated again: neighbours are then nearer by a
# few hundredths. Of sixteen clean streams of 7,000 to 9,000 entries at a rate of 0.01, 0.0082 were
# held, with a tenth 0.0079; a tenth takes a third more time while a knowledge base grows.
REFRESH_AFTER = 0.2
# Old revisions and entries that have left are dropped from the collected entries once these are
# this multiple of the known entries.
MOST_COLLECTED = 2


class Recalibration:
    """Decides when to calibrate, and on which entries; the calibrator sets the thresholds.

    Only a guard that began empty calibrates on arrivals. A guard that adopted a small store keeps
    the sample of that store: otherwise, unreviewed arrivals would set the thresholds.
    """

    def __init__(self, knowledge: Knowledge, calibrator: Calibrator) -> None:
        self._knowledge, self._calibrator = knowledge, calibrator
        self.collecting = True  # there are too few entries for thresholds of its own
        # Findings against entries that were admitted while collecting, by id.
        self.pending: dict[str, list[Finding]] = {}
        self._collected: list[Batch] = []
        self._held_meanwhile: list[Batch] = []
        # The requested rate, if the adopted store was too small for it.
        self.wanted_rate: float | None = None

    @property
    def next_at(self) -> int | None:
        """Size of the knowledge base at the next calibration; ``None`` if none will follow."""
        if self.collecting:
            return first_size(self._rate)
        calibrated = self._calibrator.calibration is not None
        return self._due if calibrated and self._calibrator.sample is not None else None

    def waiting(self) -> dict[str, Skipped]:
        """Return the detectors that take no part, before or after the calibration, by name."""
        waiting, known = {}, self._calibrator.clean
        collecting = self.collecting and self._calibrator.borrowed is None
        for detector in self._knowledge.detectors:
            if collecting and not detector.traits.acts_unfitted:
                reason = (
                    f"collecting: it acts once the knowledge base has {first_size(self._rate)} "
                    f"entries ({len(self._knowledge)} now)"
                )
            elif detector.name in self._calibrator.thresholds:
                continue
            elif (lacking := lacking_in(detector)) is not None:
                reason = lacking
            elif detector.name in known:
                judged = len(known[detector.name])
                reason = f"not calibrated: it could judge {judged} of the clean entries, too few"
            else:
                reason = "not calibrated: it could judge none of the clean entries"
            by_itself = collecting and not detector.traits.acts_unfitted
            skipped = Skipped(detector=detector.name, reason=reason, waiting=by_itself)
            waiting[detector.name] = skipped
        return waiting

    def fit(self, batch: Batch) -> None:
        """Learn a knowledge base that is believed to be clean, and forget everything else."""
        with self._reading_once():
            self._fit(batch)
            self._calibrator.sample = self._calibrator.draw(batch, vetted=True)
            self._calibrator.hold_out(batch)

    def calibrate(
        self,
        clean: Batch | None,
        fpr: float | None,
        at_most: float | None,
        confirmed: Sequence[str],
    ) -> None:
        """Calibrate now; see :meth:`ragshield_core.Guard.calibrate`."""
        calibrator = self._calibrator
        collected = self.collecting and bool(self._collected)
        known = bool(calibrator.held_out) or calibrator.sample is not None or collected
        if self._knowledge.dim is None or (clean is None and not known):
            msg = (
                "the guard was not fitted on a knowledge base; call fit first, or pass clean "
                "entries once it has learned some."
            )
            raise NotFittedError(msg)
        before = calibrator.policy, calibrator.sample
        try:
            if fpr is not None:
                calibrator.policy = calibrator.policy.accepting(fpr)
                self.wanted_rate = None
            if not calibrator.possible:
                return
            if clean is not None:
                calibrator.by_clean(clean, at_most)
            elif calibrator.held_out:
                calibrator.by_held_out(at_most)
            elif calibrator.sample is not None:
                calibrator.by_sample(calibrator.sample, confirmed, at_most)
            else:
                self._begin(confirmed, at_most)
        except Exception as error:
            rate, (calibrator.policy, calibrator.sample) = self._rate, before
            began_with_nothing = clean is None and not calibrator.held_out and before[1] is None
            if not began_with_nothing or not isinstance(error, CalibrationError):
                raise
            msg = (
                f"{error} This guard began with nothing and has {len(self._knowledge)} entries;"
                f" it calibrates itself at {first_size(rate)}. Pass "
                "at_most= for the smallest rate that they justify."
            )
            raise CalibrationError(msg) from None

    def borrow(self, lender: Calibrator, confirmed: Sequence[str]) -> None:
        """Use the calibration of another guard until this guard has enough entries of its own."""
        calibrator = self._calibrator
        if calibrator.calibration is not None and calibrator.borrowed is None:
            msg = (
                f"this guard is calibrated on entries of its own, at {calibrator.calibrated_at} of "
                "them, and has no use for the calibration of another; refresh() takes its own anew."
            )
            raise CalibrationError(msg)
        calibrator.borrow(lender)
        self._measure_collected(confirmed)

    def adopt(self, batch: Batch, at_most: float | None, confirmed: Sequence[str]) -> None:
        """Learn an unvetted knowledge base, and calibrate on it."""
        with self._reading_once():
            self._adopt(batch, at_most, confirmed)

    def _adopt(self, batch: Batch, at_most: float | None, confirmed: Sequence[str]) -> None:
        calibrator, wanted = self._calibrator, self.wanted_rate or self._rate
        calibrator.policy = calibrator.policy.accepting(wanted)
        self._fit(batch)
        if not calibrator.possible:
            return  # all thresholds are default ones
        try:
            whole = CleanSample.of(batch, vetted=False)
            scores = calibrator.by_sample(whole, confirmed, at_most)
        except CalibrationError as error:
            logger.warning("not calibrated yet: %s", error)
            calibrator.sample, self.collecting, self._collected = None, True, [batch]
            return  # wait for more entries
        watched: set[str] = set()
        for detector in self._knowledge.detectors:
            if detector.name in scores and detector.name in calibrator.thresholds:
                high = scores[detector.name] > calibrator.thresholds[detector.name].quarantine
                if isinstance(detector, DoubtsSample):
                    high |= detector.outliers(batch)
                ids = [batch.ids[row] for row in np.flatnonzero(high)]
                if isinstance(detector, GroupDetector):
                    detector.distrust(ids)
                watched.update(ids)
        logger.info(
            "adopted %d entries; %d of them look as suspicious as what will be held, and an "
            "audit says why (scan)",
            *(len(batch), len(watched)),
        )
        calibrator.sample = calibrator.draw(batch, vetted=False)
        self.wanted_rate = wanted if self._rate > wanted else None

    def refresh(self, confirmed: Sequence[str]) -> None:
        """Set thresholds from the current scores of the clean sample."""
        self._calibrator.by_sample(self._sample(), confirmed)

    def measured(self, confirmed: Sequence[str]) -> Measured:
        """Return the sample's current scores, for :meth:`take_measured` of another copy."""
        try:
            return self._calibrator.scored(self._sample(), confirmed)[0]
        except CalibrationError as error:
            return Measured({}, why_not=str(error))
        except Exception as error:  # noqa: BLE001 - the entries are written already
            return Measured({}, why_not=crash(error))

    def usual_of(self, copy: Recalibration) -> Usuals:
        """Return the usual values that an earlier copy has measured, for all processes."""
        return self._calibrator.usual_of(copy._calibrator)

    def take_measured(self, measured: Measured, confirmed: Sequence[str]) -> None:
        """Set thresholds from the scores measured by a copy; on failure, they do not change."""
        if measured.why_not:
            self._thresholds_stay(CalibrationError(measured.why_not))
            return
        try:
            self._sample()
            self._calibrator.take_measured(measured, confirmed)
        except Exception as error:  # noqa: BLE001 - every process fails in the same way
            self._thresholds_stay(error)

    def _sample(self) -> CleanSample:
        """Return the clean sample without entries that have left."""
        calibrator = self._calibrator
        if calibrator.sample is None or calibrator.calibration is None:
            msg = "there is nothing to refresh; fit the guard and calibrate it first."
            raise NotFittedError(msg)
        inside = calibrator.sample.inside.ids
        left = calibrator.sample.without({*inside}.difference(self._knowledge.among(inside)))
        calibrator.sample = left
        return left

    def note_learned(self, entries: Batch, again: Sequence[str]) -> None:
        """Record entries that were just learned.

        ``again`` are the ids among them that were known before: a new revision leaves the
        sample.
        """
        self._calibrator.leave_out(again)
        if self.collecting:
            self._collected.append(entries)
            n = sum(map(len, self._collected))
            if n > MOST_COLLECTED * max(len(self._knowledge), first_size(self._rate)):
                self._collected = [self._standing]

    @property
    def due(self) -> bool:
        """Whether the knowledge base has grown enough for the first or next calibration."""
        calibrator, n_known = self._calibrator, len(self._knowledge)
        if self.collecting:
            first, wanted = first_size(self._rate), self._due
            if calibrator.borrowed is None:
                wanted = max(wanted, first)
            elif calibrator.calibrated_at < first:  # usual values are measured on the way
                wanted = min(wanted, first)
            return bool(self._collected) and n_known >= wanted
        return (
            calibrator.calibration is not None and n_known >= self._due and bool(calibrator.sample)
        )

    def take_anew(self, confirmed: Sequence[str]) -> None:
        """Calibrate if due; on failure, the thresholds do not change."""
        if not self.due:
            return
        try:
            if self.collecting and len(self._knowledge) >= first_size(self._rate):
                self._begin(confirmed)
            elif self.collecting:
                self._measure_collected(confirmed)
            else:
                self.refresh(confirmed)
        except Exception as error:  # noqa: BLE001 - the entries are written already
            self._thresholds_stay(error)

    def _thresholds_stay(self, error: Exception) -> None:
        """Try again when the knowledge base has grown further."""
        self._calibrator.calibrated_at = len(self._knowledge)
        if isinstance(error, CalibrationError):
            logger.warning("thresholds stay as they were: %s", error)
        else:
            logger.error("thresholds stay as they were: %s", crash(error))

    def note_held(self, entries: Batch, accused: Mapping[str, Collection[str]]) -> None:
        """Remember held or recalled entries; ``accused`` has the accusing detectors by id."""
        # Entries without vectors cannot serve as a sample for detectors that need vectors.
        if self.collecting and self._knowledge.complete(entries):
            self._held_meanwhile.append(entries)
        self.drop_pending(entries.ids)
        self._knowledge.note_held(entries, accused)

    def drop_pending(self, ids: Sequence[str]) -> None:
        """Drop unreported findings against entries that were held or judged good."""
        for entry_id in ids:
            self.pending.pop(entry_id, None)

    def overdue(self) -> dict[str, list[Finding]]:
        """Return the findings against known entries that the next report must name."""
        return {i: list(found) for i, found in self.pending.items() if i in self._knowledge}

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        values: dict[str, Any] = {
            "collecting": self.collecting,
            "wanted_rate": self.wanted_rate,
            "pending": {
                entry_id: [finding_to_dict(finding) for finding in found]
                for entry_id, found in self.pending.items()
            },
        }
        if not self._collected and not self._held_meanwhile:
            return values, {}
        collected = CleanSample(
            inside=self._standing,
            outside=latest([NO_ENTRIES, *self._held_meanwhile]),
            vetted=False,
        )
        values["collected"], arrays = collected.state()
        return values, {f"collected.{key}": array for key, array in arrays.items()}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the result of :meth:`state`, after the knowledge was restored."""
        self.collecting = values["collecting"]
        self.wanted_rate = values["wanted_rate"]
        self.pending = {
            entry_id: [finding_from_dict(finding) for finding in found]
            for entry_id, found in values["pending"].items()
        }
        if "collected" in values:
            collected = CleanSample.restored(values["collected"], part_of(arrays, "collected."))
            self._collected = [collected.inside] if len(collected.inside) else []
            self._held_meanwhile = [collected.outside] if len(collected.outside) else []

    @property
    def _standing(self) -> Batch:
        """Collected entries that are still known, each in its latest revision."""
        return latest([NO_ENTRIES, *self._collected], self._knowledge.known)

    @property
    def _rate(self) -> float:
        return self._calibrator.policy.quarantine_at

    @property
    def _due(self) -> int:
        """Size of the knowledge base at which to calibrate again."""
        size = self._calibrator.calibrated_at
        return size + math.ceil(size * REFRESH_AFTER - 1e-9)

    def _reading_once(self) -> AbstractContextManager[None]:
        """Keep what detectors read in texts: a fit looks at each text several times."""
        detectors = self._knowledge.detectors
        return keep_readings([reader for one in detectors for reader in one.traits.reads])

    def _fit(self, batch: Batch) -> None:
        self._knowledge.fit(batch)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._calibrator.reset()
        self.collecting, self._collected, self._held_meanwhile = False, [], []
        self.wanted_rate, self.pending = None, {}

    def _measure_collected(self, confirmed: Sequence[str]) -> None:
        """Measure the usual values of the collected entries; thresholds stay borrowed."""
        self._calibrator.measure(CleanSample.of(self._standing, vetted=False), confirmed)
        self._calibrator.calibrated_at = len(self._knowledge)

    def _begin(self, confirmed: Sequence[str], at_most: float | None = None) -> None:
        """Calibrate a guard that began empty for the first time, and judge its entries again."""
        calibrator = self._calibrator
        collected = self._standing
        held = latest([NO_ENTRIES, *self._held_meanwhile])
        self._fit(collected)
        if not calibrator.possible:
            return
        calibrator.sample = sample = calibrator.draw(collected, vetted=False)
        try:
            scores = calibrator.by_sample(sample, confirmed, at_most)
        except CalibrationError:
            calibrator.sample, self.collecting, self._collected = None, True, [collected]
            raise  # wait for more entries
        finally:
            if len(held):  # held without thresholds of its own: every detector remembers them
                names = [detector.name for detector in self._knowledge.detectors]
                self.note_held(held, dict.fromkeys(held.ids, names))
        self._judge_again(sample.inside, scores)

    def _judge_again(self, entries: Batch, scores: Mapping[str, NDArray[np.float64]]) -> None:
        """Record findings against fitted entries; the next report names them."""
        thresholds = self._calibrator.thresholds
        for detector in self._knowledge.detectors:
            if detector.name not in scores or detector.name not in thresholds:
                continue
            threshold, mine = thresholds[detector.name].recall, scores[detector.name]
            # Poisoned entries influence the scores of the sample: outliers are therefore named
            # at any threshold.
            high, explain = mine > threshold, detector.explain
            if isinstance(detector, DoubtsSample):
                high |= detector.outliers(entries)
            rows = np.flatnonzero(high)
            if not rows.size:
                continue
            if isinstance(detector, GroupDetector):
                rows = rows[detector.distrust([entries.ids[row] for row in rows])]
                explain = detector.explain_held_out
            ids = [entries.ids[row] for row in rows]
            why = explained(detector.name, explain, entries, rows.tolist())
            calibration = self._calibrator.clean.get(detector.name)
            for finding in findings_of(detector, ids, mine[rows], threshold, why, calibration):
                below = min(threshold, finding.score - TIE)
                self.pending.setdefault(finding.entry_id, []).append(
                    replace(finding, threshold=below)
                )
        if self.pending:
            logger.warning(
                "calibrated for the first time: %d of the %d entries before look poisoned",
                *(len(self.pending), len(entries)),
            )
