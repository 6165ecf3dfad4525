"""The guard: detectors, their calibration, a policy and a quarantine, put together."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core import state
from ragshield_core.calibration import TIE, Calibration, JointCalibration
from ragshield_core.detectors.base import Detector, Need
from ragshield_core.detectors.registry import (
    built_in_detectors,
    check_detectors,
    check_loadable,
    detectors_from,
    learned_of,
    saved_detectors,
)
from ragshield_core.entries import Batch
from ragshield_core.errors import (
    CalibrationError,
    InvalidBatchError,
    NotFittedError,
    PoisonedEntryError,
)
from ragshield_core.findings import (
    Decision,
    Finding,
    Report,
    Skipped,
    Unjudged,
    Verdict,
    finding_from_dict,
    finding_to_dict,
    printable,
)
from ragshield_core.growth.arrivals import Arrivals, Status
from ragshield_core.growth.clean_sample import CleanSample, first_size, latest
from ragshield_core.neighbors.known import Borrower, Lender
from ragshield_core.policy import Policy, Thresholds
from ragshield_core.screening import NOTHING as NO_OUTCOME
from ragshield_core.screening import (
    Outcome,
    Tally,
    checked,
    crash,
    explained,
    findings_of,
    isolated,
    overruled,
)

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# Share by which a knowledge base grows until thresholds are taken anew: neighbours come nearer by a
# few hundredths then, and a rate of one in a hundred stays one.
REFRESH_AFTER = 0.1

NOTHING = Batch.of(ids=[], texts=[], embeddings=None)


class Guard:
    """Screen entries on their way into a knowledge base.

    Parameters
    ----------
    detectors
        At least one; names must differ.
    policy
        Thresholds and actions; the default quarantines at an expected 1 % of clean entries once
        calibrated, and by the published rules before.
    quarantine
        Where held entries go; the default is the SQLite file ``ragshield.db`` in the working
        directory, made when the first entry is held.
    seed
        Of the parts held out by :meth:`fit`.

    Examples
    --------
    >>> from ragshield_core import Batch, Quarantine
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> guard = Guard([LabelCentroidDetector(min_entries=1)], quarantine=Quarantine("sqlite://"))
    >>> knowledge_base = Batch.of(ids=["a", "b"], texts=["hi", "win!"], labels=["ham", "spam"],
    ...                           embeddings=[[1, 0], [0, 1]])
    >>> new = Batch.of(ids=["c"], texts=["hello"], labels=["spam"], embeddings=[[1, 0.1]])
    >>> report = guard.fit(knowledge_base).screen(new)
    >>> report.decisions[0].verdict
    <Verdict.QUARANTINE: 'quarantine'>
    """

    def __init__(
        self,
        detectors: Sequence[Detector],
        *,
        policy: Policy | None = None,
        quarantine: Quarantine | None = None,
        seed: int = 0,
    ) -> None:
        check_detectors(detectors)
        _check_parts(policy, quarantine)
        names = [detector.name for detector in detectors]
        if not names:
            msg = "detectors is empty, expected at least one; try [LabelCentroidDetector()]."
            raise ValueError(msg)
        if len(set(names)) != len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            msg = f"detector name {repeated!r} stands more than once; names must differ."
            raise ValueError(msg)
        self.detectors = tuple(detectors)
        # Who lends its index learns first, so that those who borrow it find there what they learn.
        self._learners = sorted(self.detectors, key=lambda d: not isinstance(d, Lender))
        if isinstance(lender := self._learners[0], Lender):
            for detector in self._learners[1:]:
                if isinstance(detector, Borrower):
                    detector.borrow(lender.neighbors())
        self._policy = policy if policy is not None else Policy()
        self.quarantine = quarantine if quarantine is not None else _default_quarantine()
        self.seed = seed
        self._known: dict[str, str | None] = {}  # id -> label of what was learned
        self._dim: int | None = None
        self._held_out: dict[str, NDArray[np.float64]] = {}
        self._calibration: JointCalibration | None = None
        self._thresholds: dict[str, Thresholds] = self._rules()
        self._left_out: tuple[Skipped, ...] = ()
        # What thresholds are taken from whenever the knowledge base has grown; None if they are
        # not, because nobody has asked for a calibration, or none was possible.
        self._sample: CleanSample | None = None
        self._sample_scores: dict[str, NDArray[np.float64]] = {}  # of what is inside
        self._calibrated_at = 0  # entries known at the latest calibration
        self._collecting = True  # until there are enough entries for a first one
        self._collected: list[Batch] = []
        self._ever_beyond: set[str] = set()  # of the sample, a threshold of recalls
        self._wanted_rate: float | None = None  # where a small sample justifies a larger one only
        self._held_meanwhile: list[Batch] = []
        self._fixed: dict[str, dict[str, float]] = {}  # scores of the sample that never change
        self._arrivals = Arrivals()
        self._told = False  # that it is not calibrated
        self._pending: dict[str, list[Finding]] = {}  # against entries admitted while collecting
        self._lock = threading.RLock()
        self._on_admit: list[Callable[[Batch], object]] = []

    def __repr__(self) -> str:
        state = "calibrated" if self.calibrated else "not calibrated"
        names = ", ".join(detector.name for detector in self.detectors)
        return f"<Guard {len(self._known)} entries known, {state}: {names}; {self.quarantine!r}>"

    @classmethod
    def default(
        cls, fpr: float = 0.01, *, quarantine: Quarantine | None = None, seed: int = 0
    ) -> Self:
        """Return a guard with every built-in detector.

        A detector takes part where it has what it needs; one that lacks labels, or a package, is
        named among :attr:`Report.skipped`, with the reason.

        Parameters
        ----------
        fpr
            Accepted share of clean entries that are quarantined, by all detectors together. In
            force once the guard is calibrated, see :meth:`calibrate`; before, each detector goes
            by its published rule.
        quarantine, seed
            As for the constructor.

        Examples
        --------
        >>> from ragshield_core import Quarantine
        >>> guard = Guard.default(fpr=0.01, quarantine=Quarantine("sqlite://"))
        >>> "clique" in [detector.name for detector in guard.detectors]
        True
        """
        detectors, missing = built_in_detectors()
        guard = cls(detectors, policy=Policy(quarantine_at=fpr), quarantine=quarantine, seed=seed)
        guard._left_out = tuple(missing)
        return guard

    @property
    def policy(self) -> Policy:
        """Thresholds and actions; :meth:`calibrate` replaces it when given another rate."""
        return self._policy

    @property
    def dim(self) -> int | None:
        """Length of the vectors of the knowledge base; ``None`` before there are any."""
        return self._dim or None

    @property
    def calibrated(self) -> bool:
        """Whether thresholds come from clean entries rather than from published rules."""
        return self._calibration is not None

    def status(self) -> Status:
        """Return how the guard stands: what it is calibrated on, what of the rate it has spent."""
        with self._lock:
            rate = self.policy.quarantine_at
            sample = self._sample
            if self._collecting:
                next_at = first_size(rate)
            elif sample is not None and self._calibration is not None:
                next_at = self._due
            else:
                next_at = None
            return Status(
                n_known=len(self._known),
                calibrated=self.calibrated,
                calibrated_at=self._calibrated_at if self.calibrated else None,
                next_at=next_at,
                n_sample=0 if sample is None else len(sample),
                vetted=sample is not None and sample.vetted,
                rate=rate,
                spent=self._arrivals.of(),
                by_detector={d.name: self._arrivals.of(d.name) for d in self.detectors},
                by_source=self._arrivals.of_sources(self._arrivals.sources),
                abstaining=dict(self._arrivals.abstaining),
                shifts=tuple(self._arrivals.shifts()),
                topics=tuple(self._arrivals.topics()),
            )

    @property
    def thresholds(self) -> dict[str, float]:
        """Per detector, the score above which an entry is quarantined."""
        return {name: threshold.quarantine for name, threshold in self._thresholds.items()}

    def fit(self, batch: Batch) -> Self:
        """Learn the knowledge base as it stands; replaces what was learned before.

        Entries are also scored while held out in turn, so that :meth:`calibrate` needs no
        other sample.

        Parameters
        ----------
        batch
            The knowledge base, believed to be clean.
        """
        with self._lock:
            self._fit(batch)
            self._sample = CleanSample.drawn(
                batch, self.policy.quarantine_at, seed=self.seed, vetted=True
            )
            self._held_out = self._held_out_scores(batch)
        return self

    def _fit(self, batch: Batch) -> None:
        self._calibration, self._sample, self._held_out, self._fixed = None, None, {}, {}
        self._collecting, self._collected, self._held_meanwhile = False, [], []
        self._wanted_rate, self._ever_beyond = None, set()
        self._arrivals.refitted()
        self._pending = {}
        self._dim = None
        self._check_learnable(batch)
        self._dim = batch.dim if len(batch) else None
        self._known = dict(zip(batch.ids, batch.labels, strict=True))
        for detector in self._learners:
            detector.fit(batch)
        self._thresholds = self._rules()  # a detector may take its rule's threshold from the fit

    def _held_out_scores(self, fitted: Batch) -> dict[str, NDArray[np.float64]]:
        return {  # one detector may look into what another has learned
            detector.name: self._unchanging(detector, fitted)
            if not detector.learns
            else detector.held_out_scores(fitted, self.seed)
            for detector in self.detectors
            if detector.exchangeable and len(fitted)
        }

    def _unchanging(self, detector: Detector, fitted: Batch) -> NDArray[np.float64]:
        """Return scores that do not depend on the knowledge base, each taken once."""
        known = self._fixed.get(detector.name, {})
        new = [row for row, entry_id in enumerate(fitted.ids) if entry_id not in known]
        scores = detector.held_out_scores(fitted.take(new), self.seed) if new else np.empty(0)
        known = known | {fitted.ids[row]: float(s) for row, s in zip(new, scores, strict=True)}
        self._fixed[detector.name] = {entry_id: known[entry_id] for entry_id in fitted.ids}
        return np.array([known[entry_id] for entry_id in fitted.ids], dtype=np.float64)

    def calibrate(
        self,
        clean: Batch | None = None,
        fpr: float | None = None,
        *,
        at_most: float | None = None,
    ) -> Self:
        """Take thresholds from clean entries and the false-positive rate that is accepted.

        Parameters
        ----------
        clean
            Entries known to be clean that the guard was not fitted on. ``None`` uses the
            fitted entries, each scored while it was held out; where nothing was fitted, what the
            guard has learned so far, which nobody has vouched for.
        fpr
            Accepted share of clean entries to be quarantined, by all detectors together; replaces
            ``policy.quarantine_at``. ``None`` keeps that.
        at_most
            Where there are too few clean entries for the rate, the smallest rate that they can
            justify is taken instead, with a warning in the log, if it is not larger than this; it
            stays the policy's until another ``fpr`` is given. ``None`` refuses.

        Raises
        ------
        NotFittedError
            If nothing was fitted.
        CalibrationError
            If there are too few clean entries to honour the rate; names how many would do. The
            guard stays as it was.

        Notes
        -----
        A detector that judged too few of the entries for its share of the rate is left out; every
        report names it among the skipped.
        """
        with self._lock:
            collected = self._collecting and bool(self._collected)
            known = bool(self._held_out) or self._sample is not None or collected
            if self._dim is None or (clean is None and not known):
                msg = (
                    "the guard was not fitted on a knowledge base; call fit first, or pass clean "
                    "entries once it has learned some."
                )
                raise NotFittedError(msg)
            policy = self.policy if fpr is None else self.policy.accepting(fpr)
            if not self._exchangeable:
                self._policy = policy
                return self
            if clean is None and collected and not self._held_out and self._sample is None:
                before, self._policy = self._policy, policy
                try:
                    self._begin(at_most)
                except CalibrationError as error:
                    self._policy = before
                    msg = (
                        f"{error} This guard began with nothing and has {len(self._known)} entries;"
                        f" it calibrates itself at {first_size(policy.quarantine_at)}. Pass "
                        "at_most= for the smallest rate that they justify."
                    )
                    raise CalibrationError(msg) from None
                return self
            if clean is None and not self._held_out and self._sample is not None:
                before, self._policy = self._policy, policy
                try:
                    self._recalibrate(self._sample, at_most)
                except CalibrationError:
                    self._policy = before
                    raise
                return self
            scores = self._held_out if clean is None else self._clean_scores(clean)
            self._check_judged(scores)
            if clean is not None:
                nothing = clean.take([])
                self._sample = CleanSample(inside=nothing, outside=clean, vetted=True)
            self._calibrate(scores, policy, at_most)
        return self

    def adopt(self, batch: Batch, *, at_most: float | None = None) -> Self:
        """Learn and calibrate on a knowledge base that nobody has vouched for.

        As :meth:`fit` and :meth:`calibrate`, but a few per cent of the entries may be poisoned:
        what is usual is measured so that they hardly move it, and entries that are far from
        everything usual do not count as clean, and are watched instead of trusted. They stay where
        they are until a reviewer looks, see :func:`ragshield_core.scan.scan`, or the rest of their
        group comes.

        Parameters
        ----------
        batch
            The knowledge base.
        at_most
            As of :meth:`calibrate`.

        Notes
        -----
        With too few entries for a calibration the guard begins as it does with nothing: detectors
        that have to know first what is usual wait until the knowledge base has grown.
        """
        with self._lock:
            wanted = self.policy.quarantine_at
            self._fit(batch)
            if not self._exchangeable:
                return self  # published rules are all there is
            whole = CleanSample.of(batch, vetted=False)
            try:
                self._recalibrate(whole, at_most)
            except CalibrationError as error:
                logger.warning("not calibrated yet: %s", error)
                self._sample, self._collecting, self._collected = None, True, [batch]
                return self
            watched: set[str] = set()
            for detector in self.detectors:
                if detector.name in self._sample_scores and detector.name in self._thresholds:
                    threshold = self._thresholds[detector.name].quarantine
                    high = np.flatnonzero(self._sample_scores[detector.name] > threshold)
                    ids = [batch.ids[row] for row in high]
                    detector.distrust(ids)
                    watched.update(ids)
            logger.info(
                "adopted %d entries; %d of them look as suspicious as what will be held, and an "
                "audit says why (scan)",
                *(len(batch), len(watched)),
            )
            self._sample = CleanSample.drawn(
                batch, self.policy.quarantine_at, seed=self.seed, vetted=False
            )
            if len(batch) < first_size(wanted):  # a sample for now
                self._collected, self._wanted_rate = [batch], wanted
        return self

    def refresh(self) -> Self:
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
        with self._lock:
            if self._sample is None or self._calibration is None:
                msg = "there is nothing to refresh; fit the guard and calibrate it first."
                raise NotFittedError(msg)
            gone = [i for i in self._sample.inside.ids if i not in self._known]
            if gone:
                self._sample = self._sample.without(gone)
            self._recalibrate(self._sample)
        return self

    def _calibrate(
        self,
        scores: dict[str, NDArray[np.float64]],
        policy: Policy,
        at_most: float | None = None,
        n_doubtful: int = 0,
        ids: Sequence[str] = (),
    ) -> None:
        """Take thresholds from scores of clean entries; with ids if they are looked at again."""
        floors = {detector.name: detector.floor for detector in self.detectors}
        spent = np.array([i in self._ever_beyond for i in ids], dtype=np.bool_) if ids else None
        calibration = JointCalibration(scores, floors, n_doubtful, spent)
        try:
            smallest = calibration.smallest_rate
            if at_most is not None and policy.quarantine_at < smallest <= at_most:
                logger.warning(
                    "too few clean entries for a false-positive rate of %g: calibrated at %.3g",
                    *(policy.quarantine_at, smallest),
                )
                policy = policy.accepting(smallest)
            thresholds = self._calibrated(policy, calibration)
        except CalibrationError as error:
            msg = (
                f"{', '.join(calibration.calibrations)} together, at "
                f"fpr={policy.quarantine_at:g}: {error}"
            )
            raise CalibrationError(msg) from None
        self._policy, self._calibration, self._thresholds = policy, calibration, thresholds
        if ids:
            beyond = calibration.beyond(
                {name: threshold.recall for name, threshold in thresholds.items()}
            )
            self._ever_beyond.update(ids[row] for row in np.flatnonzero(beyond).tolist())
        self._calibrated_at = len(self._known)
        self._arrivals.calibrated()
        logger.info(
            "calibrated at %d entries, on %d of them", len(self._known), len(self._sample or ())
        )

    @staticmethod
    def _check_judged(scores: Mapping[str, NDArray[np.float64]]) -> None:
        if all(np.isnan(column).all() for column in scores.values()):
            msg = (
                f"none of the clean entries can be judged by {', '.join(scores)}; pass entries "
                "that carry what these detectors need (labels known to the knowledge base, for "
                "label detectors)."
            )
            raise CalibrationError(msg)

    def _recalibrate(self, sample: CleanSample, at_most: float | None = None) -> None:
        """Measure what is usual now, score the clean sample by that, and take thresholds."""
        confirmed = self.quarantine.confirmed_ids()
        for detector in self.detectors if confirmed else ():
            detector.confirm(confirmed)
        doubtful = np.zeros(len(sample.inside), dtype=np.bool_)
        if not sample.vetted:
            for detector in self.detectors:
                doubtful |= detector.outliers(sample.inside)
        reference = sample.inside.take(~doubtful) if doubtful.any() else sample.inside
        for detector in self._learners if len(reference) else ():
            detector.refresh(reference)
        scores = self._held_out_scores(sample.inside)
        if len(sample.outside):
            outside = self._clean_scores(sample.outside)
            nothing = np.empty(0)
            scores = {
                name: np.concatenate([scores.get(name, nothing), column])
                for name, column in outside.items()
            }
        counting = np.concatenate([~doubtful, np.ones(len(sample.outside), dtype=np.bool_)])
        counted = {name: column[counting] for name, column in scores.items()}
        self._check_judged(counted)
        n_doubtful = int(np.count_nonzero(doubtful))
        entries = (*sample.inside.ids, *sample.outside.ids)
        ids = [entry_id for entry_id, counts in zip(entries, counting, strict=True) if counts]
        self._calibrate(counted, self.policy, at_most, n_doubtful, ids)
        self._sample_scores = {
            name: column[: len(sample.inside)] for name, column in scores.items()
        }

    def _grow(self, entries: Batch) -> None:
        """Calibrate, or do so again, if the knowledge base has grown enough for it."""
        due = self._due
        try:
            if self._collecting:
                self._collected.append(entries)
                if len(self._known) >= max(due, first_size(self.policy.quarantine_at)):
                    self._begin()
            elif self._renewing and self._renew(entries):
                pass
            elif self._calibration is not None and len(self._known) >= due and self._sample:
                self.refresh()
        except CalibrationError as error:
            self._calibrated_at = len(self._known)  # again when it has grown further
            logger.warning("thresholds stay as they were: %s", error)
        except Exception as error:  # noqa: BLE001 - the entries are written already
            self._calibrated_at = len(self._known)
            logger.error("thresholds stay as they were: %s", crash(error))  # noqa: TRY400

    @property
    def _due(self) -> int:
        """Size of the knowledge base at which thresholds are taken anew."""
        return self._calibrated_at + math.ceil(self._calibrated_at * REFRESH_AFTER - 1e-9)

    def _begin(self, at_most: float | None = None) -> None:
        """Calibrate for the first time what began with nothing, and judge again what came in."""
        collected, held = latest(self._collected, self._known), self._held_meanwhile
        self._fit(collected)
        if self._exchangeable:
            sample = CleanSample.drawn(
                collected, self.policy.quarantine_at, seed=self.seed, vetted=False
            )
            try:
                self._sample = sample
                self._recalibrate(sample, at_most)
            except CalibrationError:
                self._sample, self._collecting, self._collected = None, True, [collected]
                raise
            finally:
                for entries in held:
                    self._remember_held(entries)
            self._judge_again(sample.inside, self._sample_scores)

    @property
    def _renewing(self) -> bool:
        """Whether a larger clean sample is to be had than the one there is, or any at all.

        A small store was adopted, or an early version saved this guard without its sample.
        """
        if self._calibration is None:
            return False
        return bool(self._collected) or (self._sample is None and bool(self._held_out))

    def _renew(self, entries: Batch) -> bool:
        """Take a new clean sample from what has come, once there is enough; return whether so."""
        self._collected.append(entries)
        rate = self.policy.quarantine_at if self._wanted_rate is None else self._wanted_rate
        if sum(map(len, self._collected)) + sum(map(len, self._held_meanwhile)) < first_size(rate):
            return False
        inside = latest(self._collected, self._known)
        outside = latest([NOTHING, *self._held_meanwhile])
        outside = outside.take([r for r, i in enumerate(outside.ids) if i not in self._known])
        self._collected, self._held_meanwhile, self._wanted_rate = [], [], None
        self._sample = CleanSample(inside=inside, outside=outside, vetted=False)
        self._policy = self.policy.accepting(rate)
        self.refresh()
        return True

    def _judge_again(self, entries: Batch, scores: Mapping[str, NDArray[np.float64]]) -> None:
        """Note findings against fitted entries; the next report names them."""
        for detector in self.detectors:
            if detector.name not in scores or detector.name not in self._thresholds:
                continue
            threshold, mine = self._thresholds[detector.name].recall, scores[detector.name]
            # What is poisoned has a part in how the sample scores: what is far off all that is
            # usual is named whatever the threshold is.
            rows = np.flatnonzero((mine > threshold) | detector.outliers(entries))
            if not rows.size:
                continue
            detector.distrust([entries.ids[row] for row in rows])
            rows = rows[detector.latecomers([entries.ids[row] for row in rows])]
            ids = [entries.ids[row] for row in rows]
            why = explained(detector.name, detector.explain_held_out, entries, rows.tolist())
            calibration = self._clean.get(detector.name)
            for finding in findings_of(detector, ids, mine[rows], threshold, why, calibration):
                below = min(threshold, finding.score - TIE)
                self._pending.setdefault(finding.entry_id, []).append(
                    replace(finding, threshold=below)
                )
        if self._pending:
            logger.warning(
                "calibrated for the first time: %d of the %d entries before look poisoned",
                *(len(self._pending), len(entries)),
            )

    def overdue(self) -> tuple[Decision, ...]:
        """Return decisions against admitted entries that wait for the next report to name them.

        There are some after the first calibration of a guard that began with nothing, which judges
        again what came in before. Whoever writes may :meth:`recall` them at once; the next
        report's ``retroactive`` has them, too.
        """
        with self._lock:
            found = [(i, f) for i, f in self._pending.items() if i in self._known]
            return tuple(self.policy.decide(entry_id, findings) for entry_id, findings in found)

    def screen(self, batch: Batch, *, replacing: Collection[str] = ()) -> Report:
        """Judge entries; changes nothing.

        Parameters
        ----------
        batch
            New entries, or new revisions of known ones.
        replacing
            Ids of known entries that will leave once the batch is written, e.g. the chunks of an
            earlier version of a document. What a new version resembles them by is no evidence
            against it, nor is it against them; an id that the batch has itself need not be named.

        Returns
        -------
        Report
            One decision per entry, in the order of the batch.

        Raises
        ------
        InvalidBatchError
            If the vectors are of another dimension than those of the knowledge base.
        """
        with self._lock, self._overlooking(replacing):
            self._check_dim(batch)
            tally, outcomes = Tally(batch), dict[str, Outcome]()
            skipped, timings = list(self._left_out), dict[str, float]()
            for detector in self.detectors:
                start = time.perf_counter()
                try:
                    reason = self._skip_reason(detector, batch)
                    if reason is not None:
                        waiting = self._collecting and not detector.acts_unfitted
                        skipped.append(
                            Skipped(detector=detector.name, reason=reason, waiting=waiting)
                        )
                        continue
                    outcome = self._run(detector, batch)
                    why = self._arrivals.abstaining.get(detector.name)
                    if why is not None:
                        skipped.append(Skipped(detector=detector.name, reason=why, waiting=True))
                except Exception as error:  # noqa: BLE001 - any crash, of any detector
                    again = partial(self._run_unless_skipped, detector)
                    outcome = isolated(detector.name, batch, error, again)
                outcomes[detector.name] = outcome
                tally.add(detector.name, outcome)
                timings[detector.name] = time.perf_counter() - start
            remarkable = tally.decisions(self.policy)
            condemned = np.zeros(len(batch), dtype=np.bool_)
            rows = [r for r, d in remarkable.items() if d.verdict is Verdict.QUARANTINE]
            condemned[rows] = True
            leaving = {*batch.ids, *replacing}
            earlier = self._against_earlier(outcomes, condemned, leaving, skipped, timings)
        return Report(
            batch=batch,
            remarkable=remarkable,
            scores=tally.scores,
            skipped=tuple(skipped),
            timings=timings,
            retroactive=tuple(self.policy.decide(i, found) for i, found in earlier.items()),
            calibrated_at=self._calibrated_at if self.calibrated else None,
        )

    @contextmanager
    def _overlooking(self, ids: Collection[str]) -> Iterator[None]:
        """Have detectors leave entries out of account meanwhile."""
        if not ids:
            yield
            return
        for detector in self.detectors:
            detector.overlook(ids)
        try:
            yield
        finally:
            for detector in self.detectors:
                detector.overlook(())

    def hold(self, report: Report, *, by: str = "ragshield") -> Report:
        """Put the quarantined entries of a report into the quarantine, durably.

        The step between :meth:`screen` and the write of the admitted entries. What a person has
        decided before stands: an entry that was released, under the same id and unchanged, is
        admitted, and one that was confirmed as poisoned, unchanged under any id, is quarantined.

        Parameters
        ----------
        report
            From :meth:`screen`.
        by
            Who holds them, for the record.

        Returns
        -------
        Report
            The report, with earlier decisions of people in it.

        Raises
        ------
        PoisonedEntryError
            If entries are to be quarantined and the policy says ``on_detect="raise"``.
        """
        self._say_what_is_not_guarded(report)
        confirmed = self.quarantine.confirmed_among(report.batch)
        report = overruled(report, confirmed, Verdict.QUARANTINE)
        if report.retroactive and self.policy.on_detect == "raise":
            raise PoisonedEntryError(report)
        rows = np.flatnonzero(~report.kept).tolist()
        if not rows:
            return self._counted(report)
        suspects = report.batch.take(rows)
        if self.policy.on_detect == "raise":
            decisions = [report.remarkable[row] for row in rows]
            released = self.quarantine.released_among(suspects, decisions)
            report = overruled(report, released, Verdict.ADMIT)
            if report.quarantined:
                raise PoisonedEntryError(report)
            return report
        decisions = [report.remarkable[row] for row in rows]
        released = self.quarantine.hold(suspects, decisions, by=by)
        report = overruled(report, released, Verdict.ADMIT)
        held = report.quarantined
        with self._lock:
            self._remember_held(report.batch.take(~report.kept))
            report = self._counted(report)
        logger.warning("quarantined %d of %d entries", len(held), len(report.batch))
        if logger.isEnabledFor(logging.INFO):
            for entry, row in zip(suspects, rows, strict=True):
                decision = report.remarkable[row]
                evidence = [f"{f.detector} {f.score:.4f}" for f in decision.findings]
                logger.info(
                    "%s %r (revision %s): %s",
                    decision.verdict,
                    entry.id,
                    entry.fingerprint,
                    ", ".join(evidence) or decision.note or "not judged",
                )
        return report

    def _say_what_is_not_guarded(self, report: Report) -> None:
        if missing := report.not_judged():
            logger.warning(
                "%d of %d entries, such as %r, were judged by no detector; the report says why",
                *(len(missing), len(report.batch), printable(missing[0], 80)),
            )
        if self._known and not (self._told or self._collecting or self.calibrated):
            self._told = True
            if self._exchangeable:
                logger.warning(
                    "not calibrated: detectors go by their published rules, and the accepted rate "
                    "of %g is not in force; call calibrate(), or adopt() on what the store holds",
                    self.policy.quarantine_at,
                )

    def recall(
        self,
        entries: Batch,
        decisions: Sequence[Decision],
        delete: Callable[[Sequence[str]], object],
        *,
        by: str = "ragshield",
    ) -> tuple[str, ...]:
        """Quarantine entries that were admitted earlier; see :attr:`Report.retroactive`.

        Parameters
        ----------
        entries
            As they are in the store.
        decisions
            Why, one per entry.
        delete
            Called with the ids that are to leave the store, once they are held durably.
        by
            Who recalls them, for the record.

        Returns
        -------
        tuple[str, ...]
            The ids that left; what a person has released before stays.
        """
        released = self.quarantine.hold(entries, decisions, by=by)
        gone = entries.take(np.array([i not in released for i in entries.ids], dtype=np.bool_))
        if len(gone):
            delete(gone.ids)
            with self._lock:
                left = set(gone.ids)
                accused = [d for d in decisions if d.entry_id in left and d.findings]
                self._arrivals.recalled([f.detector for f in d.findings] for d in accused)
                if self._sample is not None and not self._sample.vetted:
                    self._sample = self._sample.after_holding({d.entry_id for d in accused})
                self.forget(gone)
                self._remember_held(gone)
            logger.warning("quarantined %d entries that were admitted earlier", len(gone))
        return gone.ids

    @property
    def _exchangeable(self) -> bool:
        """Whether any detector can be calibrated."""
        return any(detector.exchangeable for detector in self.detectors)

    @property
    def _clean(self) -> Mapping[str, Calibration]:
        """Scores of the clean sample, by detector; none before the calibration."""
        return {} if self._calibration is None else self._calibration.calibrations

    def _counted(self, report: Report) -> Report:
        """Take note of what was decided, and of detectors whose calibration no longer holds."""
        with self._lock:
            if self._calibration is None:
                return report
            rate = self.policy.quarantine_at
            measuring = {d.name for d in self.detectors if d.learns}
            clean = {name: found for name, found in self._clean.items() if name in measuring}
            for name in self._arrivals.count(report, self.thresholds, clean, rate):
                why = self._arrivals.abstaining.get(name)
                if why is None:
                    logger.warning("%s acts again: what comes is as usual", name)
                else:
                    logger.warning("%s: %s", name, why)
            for topic in self._arrivals.new_topics():
                logger.warning("topic: %s", topic)
            names = [d.name for d in self.detectors if self._arrivals.of(d.name).judged]
            sources = self._arrivals.of_sources(filter(None, report.batch.lineages))
            return replace(
                report,
                spent=self._arrivals.of().share,
                spent_by_detector={name: self._arrivals.of(name).share for name in names},
                spent_by_source={source: spent.share for source, spent in sources.items()},
            )

    def _remember_held(self, entries: Batch) -> None:
        # Entries without vectors are no sample for detectors that need them.
        complete = entries.dim or all(Need.EMBEDDING not in d.needs for d in self.detectors)
        if complete and (self._collecting or self._renewing):
            self._held_meanwhile.append(entries)
        for entry_id in entries.ids:
            self._pending.pop(entry_id, None)
        for detector in self.detectors:
            if entries.dim or Need.EMBEDDING not in detector.needs:
                detector.hold(entries)

    def forget_held(self, ids: Sequence[str]) -> None:
        """Say that held entries were released, or deleted for good."""
        with self._lock:
            for detector in self.detectors:
                detector.forget_held(ids)

    def trust(self, ids: Sequence[str]) -> None:
        """Say that a person has judged entries good: no later batch condemns them."""
        with self._lock:
            for entry_id in ids:
                self._pending.pop(entry_id, None)
            for detector in self.detectors:
                detector.trust(ids)

    def admit(self, report: Report) -> None:
        """Learn the entries that a report admits; costs O(batch).

        Call it once per report, after they are written. Of a new revision of a known entry,
        :meth:`forget` the old one first.
        """
        kept = report.kept
        self.learn(report.batch if kept.all() else report.batch.take(kept))

    def known(self, ids: Sequence[str]) -> list[str]:
        """Return which of the ids were learned, each once."""
        return [entry_id for entry_id in dict.fromkeys(ids) if entry_id in self._known]

    def learn(self, entries: Batch) -> None:
        """Learn entries that are in the knowledge base."""
        if not len(entries):
            return
        with self._lock:
            self._check_learnable(entries)
            for detector in self._learners:
                detector.learn(entries)
            if self._sample is not None:  # a new revision is no longer what was drawn
                again = [i for i in entries.ids if i in self._known]
                self._sample = self._sample.without(again) if again else self._sample
            self._known.update(zip(entries.ids, entries.labels, strict=True))
            self._dim = entries.dim
            self._grow(entries)
        for callback in self._on_admit:
            try:
                callback(entries)
            except Exception as error:  # noqa: BLE001 - the entries are written already
                logger.error("a callback of on_admit failed: %s", type(error).__name__)  # noqa: TRY400

    def on_admit(self, callback: Callable[[Batch], object]) -> None:
        """Have ``callback`` called with the entries after each :meth:`admit` and :meth:`learn`.

        They are in the knowledge base by then: what the callback raises is logged, by its type, and
        stops nothing. Callbacks are not saved with the guard.
        """
        self._on_admit.append(callback)

    def forget(self, entries: Batch) -> None:
        """Forget entries that have left the knowledge base.

        Parameters
        ----------
        entries
            With their vectors as they were learned; those never learned are ignored. Their
            labels the guard remembers, since those of a live document may have been edited.
        """
        with self._lock:
            known = entries.take(np.array([i in self._known for i in entries.ids], dtype=np.bool_))
            if not len(known):
                return
            known = replace(known, labels=tuple(self._known[i] for i in known.ids))
            self._check_dim(known)
            for detector in self._learners:
                detector.forget(known)
            for entry_id in known.ids:
                del self._known[entry_id]

    def save(
        self, path: str | Path, *, detectors: Sequence[Detector | type[Detector]] = ()
    ) -> None:
        """Write what was learned into a folder, as JSON and npz with checksums, never pickle.

        The quarantine is a database of its own and is not part of it. An existing state in the
        folder is replaced in one step: a crash leaves the old one.

        Parameters
        ----------
        path
            The folder.
        detectors
            What :meth:`load` will be given: detectors that are not registered, or that hold
            something that cannot be saved.

        Raises
        ------
        StateError
            If a detector could not be loaded again; nothing is written then.
        """
        check_detectors(detectors, classes=True)
        check_loadable(self.detectors, detectors)
        with self._lock:
            values: dict[str, Any] = {
                "policy": self.policy.model_dump(mode="json"),
                "seed": self.seed,
                "dim": self._dim,
                "known": self._known,
                "calibrated": [] if self._calibration is None else sorted(self._calibration.scores),
                "held_out": sorted(self._held_out),
                "calibrated_at": self._calibrated_at,
                "collecting": self._collecting,
                "wanted_rate": self._wanted_rate,
                "n_doubtful": 0 if self._calibration is None else self._calibration.n_doubtful,
                "ever_beyond": sorted(self._ever_beyond),
                "pending": {
                    entry_id: [finding_to_dict(finding) for finding in found]
                    for entry_id, found in self._pending.items()
                },
            }
            arrays: dict[str, NDArray[Any]] = {}
            if self._calibration is not None:
                arrays["spent"] = self._calibration.spent
            parts: dict[str, CleanSample | Arrivals] = {"arrivals": self._arrivals}
            if self._sample is not None:
                parts["sample"] = self._sample
            if self._collected:
                parts["collected"] = CleanSample(
                    inside=latest(self._collected),
                    outside=latest([NOTHING, *self._held_meanwhile]),
                    vetted=False,
                )
            for name, part in parts.items():
                values[name], columns = part.state()
                arrays |= {f"{name}.{key}": array for key, array in columns.items()}
            values["detectors"], columns = saved_detectors(self.detectors)
            arrays |= columns
            for number, detector in enumerate(self.detectors):
                if detector.name in self._held_out:
                    arrays[f"held_out.{number}"] = self._held_out[detector.name]
                if self._calibration is not None and detector.name in self._calibration.scores:
                    arrays[f"clean.{number}"] = self._calibration.scores[detector.name]
            state.write(Path(path), values, arrays)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        quarantine: Quarantine | None = None,
        detectors: Sequence[Detector | type[Detector]] = (),
    ) -> Self:
        """Return the guard that :meth:`save` wrote.

        Parameters
        ----------
        path
            The folder.
        quarantine
            As for the constructor; it is not saved with the guard.
        detectors
            Classes of detectors that are not registered, and detectors, with the same options as
            when the guard was saved, that hold something that is not saved, such as a classifier.

        Raises
        ------
        StateError
            If files are missing, damaged, changed by hand, or of a newer format; or if a detector
            is neither registered nor given.
        """
        check_detectors(detectors, classes=True)
        values, arrays = state.read(Path(path))
        with state.reading(Path(path)):
            detectors = detectors_from(values["detectors"], detectors)
            guard = cls(
                detectors,
                policy=Policy.model_validate(values["policy"]),
                quarantine=quarantine,
                seed=values["seed"],
            )
            for detector in guard._learners:
                number = detectors.index(detector)
                learned = learned_of(number, arrays)
                detector.restore(values["detectors"][number]["learned"], learned)
            guard._dim = values["dim"]
            guard._known = dict(values["known"])
            numbers = {detector.name: n for n, detector in enumerate(detectors)}
            guard._held_out = {
                name: arrays[f"held_out.{numbers[name]}"] for name in values["held_out"]
            }
            guard._thresholds = guard._rules()
            if values["calibrated"]:
                guard._calibration = JointCalibration(
                    {name: arrays[f"clean.{numbers[name]}"] for name in values["calibrated"]},
                    {detector.name: detector.floor for detector in detectors},
                    values.get("n_doubtful", 0),
                    arrays.get("spent"),
                )
                guard._thresholds = guard._calibrated(guard.policy, guard._calibration)
            guard._restore_growth(values, arrays)
        return guard

    def _restore_growth(
        self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        def part(prefix: str) -> dict[str, NDArray[Any]]:
            found = (key for key in arrays if key.startswith(prefix))
            return {key.removeprefix(prefix): arrays[key] for key in found}

        # Early versions wrote none of this: what was fitted stays fitted.
        self._collecting = values.get("collecting", not self._known)
        self._wanted_rate = values.get("wanted_rate")
        self._ever_beyond = set(values.get("ever_beyond", ()))
        self._calibrated_at = values.get("calibrated_at", len(self._known))
        self._pending = {
            entry_id: [finding_from_dict(finding) for finding in found]
            for entry_id, found in values.get("pending", {}).items()
        }
        if "arrivals" in values:
            self._arrivals = Arrivals.restored(values["arrivals"], part("arrivals."))
        if "sample" in values:
            self._sample = CleanSample.restored(values["sample"], part("sample."))
        if "collected" in values:
            collected = CleanSample.restored(values["collected"], part("collected."))
            self._collected = [collected.inside]
            self._held_meanwhile = [collected.outside] if len(collected.outside) else []

    def _rules(self) -> dict[str, Thresholds]:
        """Return the thresholds of the published rules."""
        return self._policy.thresholds({d.name: d.rule_threshold for d in self.detectors})

    def _calibrated(self, policy: Policy, calibration: JointCalibration) -> dict[str, Thresholds]:
        """Return thresholds after calibration; none for a detector that judged too few for it."""
        rules = {d.name: d.rule_threshold for d in self.detectors if not d.exchangeable}
        return policy.thresholds(rules, calibration)

    def _check_learnable(self, entries: Batch) -> None:
        needing = [d.name for d in self.detectors if Need.EMBEDDING in d.needs]
        if len(entries) and not entries.dim and needing:
            msg = (
                f"entry {entries.ids[0]!r} has no vector, and {', '.join(needing)} cannot learn it "
                "without; pass its embedding, or use a guard without these detectors."
            )
            raise InvalidBatchError(msg)
        self._check_dim(entries)

    def _check_dim(self, batch: Batch) -> None:
        if batch.dim and self._dim and batch.dim != self._dim:
            msg = (
                f"embeddings of entry {batch.ids[0]!r} and its batch have {batch.dim} dimensions, "
                f"expected {self._dim} as in the knowledge base; embed them with the same model."
            )
            raise InvalidBatchError(msg)

    def _clean_scores(self, clean: Batch) -> dict[str, NDArray[np.float64]]:
        self._check_dim(clean)
        return {
            detector.name: detector.judged_scores(clean)
            for detector in self.detectors
            if detector.exchangeable
        }

    def _skip_reason(self, detector: Detector, batch: Batch) -> str | None:
        if self._collecting and not detector.acts_unfitted:
            return (
                f"collecting: it acts once the knowledge base has "
                f"{first_size(self.policy.quarantine_at)} entries ({len(self._known)} now)"
            )
        if detector.name not in self._thresholds:
            known = self._clean
            if detector.name not in known:
                return "not calibrated: it could judge none of the clean entries"
            judged = len(known[detector.name])
            return f"not calibrated: it could judge {judged} of the clean entries, too few"
        return detector.skip_reason(batch)

    def _run(self, detector: Detector, batch: Batch) -> Outcome:
        """Return one detector's scores, findings and what it could not judge, by row."""
        reasons = detector.unjudged(batch)
        missing = [
            (row, Unjudged(detector=detector.name, entry_id=batch.ids[row], reason=reason))
            for row, reason in reasons.items()
        ]
        rows = np.array([row for row in range(len(batch)) if row not in reasons], dtype=np.intp)
        column = np.full(len(batch), np.nan)
        if rows.size == 0:
            return Outcome(column, [], missing)
        part = batch.take(rows) if reasons else batch
        scores = checked(detector.name, detector.score(part), len(part))
        column[rows] = scores
        thresholds = self._thresholds[detector.name]
        if detector.name in self._arrivals.abstaining:
            return Outcome(column, [], missing)
        hits = np.flatnonzero(scores > thresholds.flag)
        found = findings_of(
            detector,
            [part.ids[hit] for hit in hits],
            scores[hits],
            thresholds.quarantine,
            explained(detector.name, detector.explain, part, hits.tolist()),
            self._clean.get(detector.name),
        )
        listed = list(zip(rows[hits].tolist(), found, strict=True))
        return Outcome(column, listed, missing, part, rows)

    def _run_unless_skipped(self, detector: Detector, batch: Batch) -> Outcome | None:
        return (
            None if self._skip_reason(detector, batch) is not None else self._run(detector, batch)
        )

    def _against_earlier(
        self,
        outcomes: Mapping[str, Outcome],
        condemned: NDArray[np.bool_],
        leaving: Collection[str],
        skipped: list[Skipped],
        timings: dict[str, float],
    ) -> dict[str, list[Finding]]:
        """Return findings against entries admitted earlier, by their ids, unless these leave."""
        earlier: dict[str, list[Finding]] = {}
        for entry_id, found in self._pending.items():
            if entry_id in self._known and entry_id not in leaving:
                earlier.setdefault(entry_id, []).extend(found)
        for detector in self.detectors:
            outcome = outcomes.get(detector.name, NO_OUTCOME)
            if outcome.part is None:
                continue
            start = time.perf_counter()
            try:
                found = self._earlier(detector, outcome.part, condemned[outcome.rows])
            except Exception as error:  # noqa: BLE001 - any crash, of any detector
                reason = f"of entries admitted earlier it knows nothing: {crash(error)}"
                logger.error("%s: %s", detector.name, reason)  # noqa: TRY400
                skipped.append(Skipped(detector=detector.name, reason=reason))
                continue
            for finding in found:
                if finding.entry_id not in leaving:  # a new revision is judged by itself
                    earlier.setdefault(finding.entry_id, []).append(finding)
            timings[detector.name] += time.perf_counter() - start
        return earlier

    def _earlier(
        self, detector: Detector, batch: Batch, condemned: NDArray[np.bool_]
    ) -> list[Finding]:
        """Return findings against entries admitted earlier that the batch lifts above it."""
        threshold = self._thresholds[detector.name].recall
        ids, scores = detector.retroactive(batch, condemned)
        rows = np.flatnonzero(scores > threshold)
        names = [ids[row] for row in rows]
        why = explained(detector.name, detector.explain_retroactive, batch, names)
        return findings_of(
            detector, names, scores[rows], threshold, why, self._clean.get(detector.name)
        )


def _check_parts(policy: object, quarantine: object) -> None:
    """Refuse what would fail only when something is to be held.

    Raises
    ------
    TypeError
        If one is of another type; says what to pass.
    """
    if policy is not None and not isinstance(policy, Policy):
        msg = f"policy is a {type(policy).__name__}, expected a Policy, such as Policy()."
        raise TypeError(msg)
    if quarantine is None:
        return
    if isinstance(quarantine, str):
        msg = "quarantine is a str, expected a Quarantine: Quarantine(url)."
        raise TypeError(msg)
    needed = ("hold", "held_ids", "released_among", "confirmed_among")
    if isinstance(quarantine, type) or not all(hasattr(quarantine, name) for name in needed):
        msg = f"quarantine is {_kind_of(quarantine)}, expected a Quarantine, such as Quarantine()."
        raise TypeError(msg)


def _kind_of(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _default_quarantine() -> Quarantine:
    from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - SQLAlchemy is slow to import

    return Quarantine()
