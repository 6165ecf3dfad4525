"""Thresholds from the scores of clean entries, measured against the current usual values."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration.arrivals import Arrivals, Counted
from ragshield_core.calibration.clean_sample import CleanSample, drawn_rows
from ragshield_core.detectors.base import (
    Detector,
    DoubtsSample,
    GroupDetector,
    SharesUsual,
    StatelessDetector,
    judged_scores,
    learns,
)
from ragshield_core.detectors.registry import kind_of
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CalibrationError
from ragshield_core.model.p_values import TIE, Calibration, JointCalibration, rounded_up
from ragshield_core.model.policy import Policy, Thresholds
from ragshield_core.model.support import Support
from ragshield_core.screening.knowledge import Knowledge
from ragshield_core.state import part_of

logger = logging.getLogger("ragshield")


# Largest number of fitted entries that are scored held out: a rate of one in a hundred is then
# known to a thirtieth. More entries would take time, and eight bytes each for every detector in
# every worker for good, and move thresholds by less than that.
MOST_SCORED = 100_000


# Name of the column that has the outliers of a shared measurement.
OUTLIERS = "outliers"

Usuals = Mapping[str, tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]]
NO_USUAL: Usuals = MappingProxyType({})


class Measured(NamedTuple):
    """Scores of a clean sample, without its doubtful entries."""

    # By detector, shape (n_counting,); empty if calibration is impossible.
    scores: Mapping[str, NDArray[np.floating[Any]]]
    ids: tuple[str, ...] = ()  # of the entries that count as clean
    n_doubtful: int = 0  # entries that do not count
    n_known: int = 0  # entries of the knowledge base against which they were scored
    why_not: str = ""  # the reason if calibration is impossible
    # By detector, usual values that one process has measured for all; see SharesUsual.
    usual: Usuals = NO_USUAL

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        usual = {name: dict(values) for name, (values, _) in self.usual.items()}
        arrays: dict[str, NDArray[Any]] = {
            str(number): rounded_up(column) for number, column in enumerate(self.scores.values())
        }
        for name, (_, parts) in self.usual.items():
            arrays |= {f"usual.{name}.{key}": array for key, array in parts.items()}
        return {**self._asdict(), "scores": list(self.scores), "usual": usual}, arrays

    @classmethod
    def from_parts(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the value from the result of :meth:`to_parts`."""
        return cls(
            {name: arrays[str(number)] for number, name in enumerate(values["scores"])},
            ids=tuple(map(str, values["ids"])),
            n_doubtful=int(values["n_doubtful"]),
            n_known=int(values["n_known"]),
            why_not=str(values["why_not"]),
            usual={
                name: (of_it, part_of(arrays, f"usual.{name}."))
                for name, of_it in values["usual"].items()
            },
        )


class Calibrator:
    """Measures usual values, scores clean entries against them, and sets thresholds."""

    def __init__(self, knowledge: Knowledge, policy: Policy, seed: int) -> None:
        self._knowledge, self._seed = knowledge, seed
        self.policy = policy  # a small sample may only justify a larger rate
        # By detector; default thresholds until clean entries were scored.
        self.thresholds: dict[str, Thresholds] = self._rules()
        # The clean scores, and the number of known entries then; None for default thresholds.
        self.calibration: JointCalibration | None = None
        self.calibrated_at = 0
        # The calibration of another guard, in force until this guard has its own, and the length
        # of the scored vectors; 0 without vectors.
        self.borrowed: tuple[JointCalibration, int] | None = None
        # Held-out scores of fitted entries, kept for a later calibration.
        self.held_out: dict[str, NDArray[np.float32]] = {}
        self._support: tuple[dict[str, Thresholds], Support] | None = None
        # It sets the thresholds whenever the knowledge base has grown. None if no calibration was
        # requested or possible.
        self.sample: CleanSample | None = None
        self.arrivals = Arrivals()  # later entries, compared with the accepted rate
        # Thresholds of sources that a person has adopted, by source and detector.
        self.by_source: dict[str | None, dict[str, float]] = {}
        # By detector, outliers of the sample in the latest measurement, shape (n_inside,).
        self._outliers: dict[str, NDArray[np.bool_]] = {}
        self._ever_beyond: set[str] = set()  # sample ids that were ever above a recall threshold
        # Scores of the sample's revisions that never change, by detector, id and fingerprint.
        self._fixed: dict[str, dict[tuple[str, str], float]] = {}

    @property
    def clean(self) -> Mapping[str, Calibration]:
        """Scores of the clean sample, by detector; empty before the calibration."""
        return {} if self.calibration is None else self.calibration.calibrations

    @property
    def support(self) -> Support | None:
        """Joint suspicion of several detectors; ``None`` before the calibration."""
        if self.calibration is None:
            return None
        if self._support is None or self._support[0] is not self.thresholds:
            thresholds = {name: found.quarantine for name, found in self.thresholds.items()}
            _, rank = self.calibration.ranks(self.policy.quarantine_at, self.policy.confidence)
            self._support = self.thresholds, Support(self.calibration, thresholds, rank)
        return self._support[1]

    @property
    def possible(self) -> bool:
        """Whether any detector can be calibrated."""
        return any(detector.traits.exchangeable for detector in self._knowledge.detectors)

    def reset(self) -> None:
        """Return to default thresholds after a new fit of the detectors, which may change them."""
        self.calibration, self.sample, self.held_out, self._fixed = None, None, {}, {}
        self.by_source = {}
        self._ever_beyond = set()
        self.arrivals.refitted()
        self.thresholds = self._rules()
        if self.borrowed is not None:
            self._go_by(*self.borrowed)

    def borrow(self, lender: Calibrator) -> None:
        """Use the calibration of another guard, at the rate of this guard's policy.

        Only numbers are copied, and no part of an entry. The thresholds do not change if the lender
        has no calibration, other detectors or vectors, or too few entries for the rate.
        """
        lent, dim = lender.calibration, lender._knowledge.dim or 0
        if lent is None:
            msg = (
                "the guard whose calibration is to be taken over is not calibrated; calibrate it "
                "first, or let it grow until it calibrates itself."
            )
            raise CalibrationError(msg)
        mine, theirs = self._described(), lender._described()
        others = sorted(n for n in {*mine, *theirs} if mine.get(n) != theirs.get(n))
        if others:
            msg = (
                f"the calibration to take over is of other detectors: {', '.join(others)} is "
                "missing in one of both guards, or has other options; make both with the same "
                "detectors=, or calibrate this one by itself."
            )
            raise CalibrationError(msg)
        _check_dim(dim, self._knowledge.dim)
        # Sorted by the scores: the order of the sample would reveal that of the store.
        order = np.lexsort([*lent.scores.values(), lent.spent])
        scores = {name: column[order] for name, column in lent.scores.items()}
        calibration = JointCalibration(scores, self._floors, lent.n_doubtful, lent.spent[order])
        self._go_by(calibration, dim)
        self.arrivals.calibrated()

    def _described(self) -> dict[str, str]:
        """Return the kinds and options of the calibrated detectors, by name."""
        detectors = [d for d in self._knowledge.detectors if d.traits.exchangeable]
        return {d.name: json.dumps([kind_of(d), d.config()], sort_keys=True) for d in detectors}

    def _go_by(self, borrowed: JointCalibration, dim: int) -> None:
        self.thresholds = self._calibrated(borrowed)
        self.borrowed, self.calibration = (borrowed, dim), borrowed
        self.calibrated_at = len(self._knowledge)

    def check_dim(self, batch: Batch) -> None:
        """Refuse vectors whose length differs from those of the borrowed calibration."""
        if self.borrowed is not None:
            _check_dim(self.borrowed[1], batch.dim)

    def draw(self, fitted: Batch, *, vetted: bool) -> CleanSample:
        """Return a clean sample of a knowledge base, as large as the accepted rate needs."""
        rows = drawn_rows(fitted.lineages, self.policy.quarantine_at, self._seed)
        return CleanSample.of(fitted.take(rows), vetted=vetted)

    def hold_out(self, fitted: Batch) -> None:
        """Score fitted entries, each held out, for a later calibration.

        At most :data:`MOST_SCORED` entries are scored, drawn at random.
        """
        if len(fitted) > MOST_SCORED:
            fitted = fitted.take(self._some(len(fitted), MOST_SCORED))
        scores = self._held_out_scores(fitted, None if self.sample is None else self.sample.inside)
        self.held_out = {name: rounded_up(column) for name, column in scores.items()}

    def _some(self, n: int, most: int) -> NDArray[np.int64]:
        """Return the rows of ``most`` entries drawn from n, ascending."""
        return np.sort(np.random.default_rng(self._seed).permutation(n)[:most])

    def by_held_out(self, at_most: float | None = None) -> None:
        """Set thresholds from :attr:`held_out`."""
        self._check_judged(self.held_out)
        self._take(self.held_out, at_most)

    def by_clean(self, clean: Batch, at_most: float | None = None) -> None:
        """Set thresholds from clean entries that the knowledge base does not hold."""
        scores = self._clean_scores(clean)
        self._check_judged(scores)
        self.sample = CleanSample(inside=clean.take([]), outside=clean, vetted=True)
        self._take(scores, at_most)

    def by_sample(
        self, sample: CleanSample, confirmed: Sequence[str], at_most: float | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Measure the current usual values, score a clean sample by them, and set thresholds.

        ``confirmed`` are ids of held entries that a reviewer has confirmed as poisoned; here and
        below. Returns the scores of the entries inside, by detector.
        """
        measured, scores = self.scored(sample, confirmed)
        self._check_judged(measured.scores)
        self._take(measured.scores, at_most, measured.n_doubtful, measured.ids)
        return {name: column[: len(sample.inside)] for name, column in scores.items()}

    def take_measured(self, measured: Measured, confirmed: Sequence[str]) -> None:
        """Measure the current usual values, and set thresholds from scores measured by a copy."""
        assert self.sample is not None  # noqa: S101 - the copy scored it
        self.measure(self.sample, confirmed, measured.usual)
        self._check_judged(measured.scores)
        self._take(measured.scores, None, measured.n_doubtful, measured.ids)
        self.calibrated_at = measured.n_known  # it has grown since

    def scored(
        self, sample: CleanSample, confirmed: Sequence[str]
    ) -> tuple[Measured, dict[str, NDArray[np.float64]]]:
        """Measure the current usual values; return the counting and all scores of a sample."""
        outliers = self._outliers = self.measure(sample, confirmed)
        doubtful = np.logical_or.reduce([*outliers.values()])
        scores = self._held_out_scores(sample.inside)
        if len(sample.outside):
            outside = self._clean_scores(sample.outside)
            nothing = np.empty(0)
            scores = {
                name: np.concatenate([scores.get(name, nothing), column])
                for name, column in outside.items()
            }
            # A poisoned entry does not become clean by being held.
            out = np.zeros(len(sample.outside), dtype=np.bool_)
            for detector in () if sample.vetted else self._knowledge.detectors:
                if isinstance(detector, DoubtsSample) and detector.name in outside:
                    out |= detector.held_outliers(sample.outside, outside[detector.name])
            doubtful = np.concatenate([doubtful, out])
        # Inside and outside are tested together: an attacker whose entries were held or recalled
        # must not have them count as clean.
        held = np.arange(len(sample)) >= len(sample.inside)
        for detector in () if sample.vetted else self._knowledge.detectors:
            if isinstance(detector, StatelessDetector) and detector.name in scores:
                doubtful |= detector.doubtful(scores[detector.name], held)
        counting = np.flatnonzero(~doubtful).tolist()
        entries = (*sample.inside.ids, *sample.outside.ids)
        measured = Measured(
            {name: column[counting] for name, column in scores.items()},
            tuple(entries[row] for row in counting),
            int(np.count_nonzero(doubtful)),
            len(self._knowledge),
        )
        return measured, scores

    def usual_of(self, copy: Calibrator) -> Usuals:
        """Return the usual values that an earlier copy has measured, for all processes."""
        assert self.sample is not None and copy.sample is not None  # noqa: S101, PT018 - it was scored
        sampled, usual = copy.sample.inside.ids, {}
        present = self._knowledge.among(self.sample.inside.ids)  # some may have left since
        for detector, earlier in zip(
            self._knowledge.learners, copy._knowledge.learners, strict=True
        ):
            if isinstance(detector, SharesUsual):
                values, arrays = detector.usual(cast("Any", earlier))  # of the same class
                rows = np.flatnonzero(copy._outliers[detector.name]).tolist()
                found = {sampled[row] for row in rows}
                outliers = np.array([i in found for i in present], dtype=np.bool_)
                usual[detector.name] = values, arrays | {OUTLIERS: outliers}
        return usual

    def measure(
        self,
        sample: CleanSample,
        confirmed: Sequence[str],
        usual: Usuals = NO_USUAL,
    ) -> dict[str, NDArray[np.bool_]]:
        """Measure the current usual values from the entries inside a clean sample.

        ``usual`` has those that another process has measured, by detector.

        Returns, by detector, a mask of outliers, shape (n_inside,); a vetted sample has none.
        """
        detectors = self._knowledge.detectors
        for detector in detectors if confirmed else ():
            if isinstance(detector, GroupDetector):
                detector.confirm(confirmed)
        none = np.zeros(len(sample.inside), dtype=np.bool_)
        outliers = {detector.name: none for detector in detectors}
        for detector in () if sample.vetted else detectors:
            if detector.name in usual:
                outliers[detector.name] = usual[detector.name][1][OUTLIERS]
            elif isinstance(detector, DoubtsSample):
                outliers[detector.name] = detector.outliers(sample.inside)
        doubtful = np.logical_or.reduce([none, *outliers.values()])
        reference = sample.inside.take(~doubtful) if doubtful.any() else sample.inside
        for detector in self._knowledge.learners if len(reference) else ():
            if isinstance(detector, SharesUsual) and detector.name in usual:
                detector.take_usual(*usual[detector.name])
            else:
                detector.refresh(reference)
        return outliers

    def adopt_source(
        self,
        source: str | None,
        scores: Mapping[str, NDArray[np.float64]],
        n_entries: int,
    ) -> NDArray[np.bool_]:
        """Set thresholds for a source that a person has found to be good.

        ``scores`` are those of its held entries, ``n_entries`` the number of all its entries. The
        most suspicious ones stay held, as many as the accepted rate allows, because poison may hide
        among good entries. A detector without comparisons, such as one that finds orders, follows
        the source up to the score beyond which it has no doubt, if it has such a score. Returns a
        mask of the held entries to release.
        """
        objecting = {n: s for n, s in scores.items() if n in self.thresholds}
        objecting = {
            name: column
            for name, column in objecting.items()
            if (np.nan_to_num(column, nan=-np.inf) > self.thresholds[name].quarantine).any()
        }
        allowed = math.floor(self.policy.quarantine_at * n_entries / max(1, len(objecting)))
        own = self.by_source.setdefault(source, {})
        # A clear order or a hidden text is suspicious in any source; pages about prompts are not.
        most = {
            detector.name: np.inf if learns(detector) else detector.traits.beyond_doubt
            for detector in self._knowledge.detectors
            if learns(detector) or np.isfinite(detector.traits.beyond_doubt)
        }
        for name, column in objecting.items():
            highest = np.sort(column[~np.isnan(column)])[::-1]
            if name in most and len(highest) > allowed:
                follows = min(float(highest[allowed]) + TIE, most[name])
                own[name] = max(own.get(name, -np.inf), follows)
        free = np.ones(max(map(len, scores.values()), default=0), dtype=np.bool_)
        for name, column in objecting.items():
            threshold = max(self.thresholds[name].quarantine, own.get(name, -np.inf))
            free &= ~(np.nan_to_num(column, nan=-np.inf) > threshold)
        self.arrivals.decide(source, "adopt")
        return free

    def leave_out(self, ids: Collection[str]) -> None:
        """Remove entries from the sample that have left, or were replaced since the draw."""
        if self.sample is not None and ids:
            self.sample = self.sample.without(ids)

    def count(self, counted: Counted) -> None:
        """Count the decisions on a batch, once there is a calibration."""
        if self.calibration is None:
            return
        thresholds = {name: threshold.quarantine for name, threshold in self.thresholds.items()}
        measuring = {d.name for d in self._knowledge.detectors if learns(d)}
        clean = {name: found for name, found in self.clean.items() if name in measuring}
        self.arrivals.count(counted, thresholds, clean)
        scores = {name: s for name, s in counted.scores.items() if name in thresholds}
        unusual = np.zeros(len(counted.ids), dtype=np.bool_)
        if self.support is not None and scores:  # see Support.unusual
            alone = {name: np.full(len(counted.ids), thresholds[name]) for name in scores}
            # Entries of an adopted source never count as unusual.
            adopted = [source in self.by_source for source in counted.sources]
            unusual = self.support.unusual(scores, alone) & ~np.array(adopted, dtype=np.bool_)
        self.arrivals.note_unusual(counted, unusual)
        for question in self.arrivals.new_questions(self.policy.quarantine_at):
            logger.warning("%s", question)

    def recalled(self, entries: Batch, accused: Mapping[str, Sequence[str]]) -> None:
        """Record entries that were recalled; ``accused`` has the accusing detectors by id.

        Recalled entries of an unvetted sample stay in it.
        """
        self.arrivals.recalled(entries, accused)
        if self.sample is not None and not self.sample.vetted:
            self.sample = self.sample.after_holding(accused.keys())

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything except the policy, as JSON-ready values and arrays."""
        scores = {} if self.calibration is None else self.calibration.scores
        columns: dict[str, Mapping[str, NDArray[Any]]] = {
            "clean": scores,
            "held_out": self.held_out,
        }
        values: dict[str, Any] = {
            "calibrated": sorted(scores),
            "held_out": sorted(self.held_out),
            "calibrated_at": self.calibrated_at,
            "n_doubtful": 0 if self.calibration is None else self.calibration.n_doubtful,
            "ever_beyond": sorted(self._ever_beyond),
            "by_source": [[source, found] for source, found in self.by_source.items()],
        }
        if self.borrowed is not None:
            values["borrowed"] = {"dim": self.borrowed[1]}
        values["arrivals"], columns["arrivals"] = self.arrivals.state()
        if self.sample is not None:
            values["sample"], columns["sample"] = self.sample.state()
            # Scores that never change, of each detector that has them for the whole sample.
            revisions = list(_revisions(self.sample.inside))
            columns["fixed"] = {
                name: np.array([known[revision] for revision in revisions], dtype=np.float64)
                for name, known in self._fixed.items()
                if known and all(revision in known for revision in revisions)
            }
        arrays = {f"{part}.{key}": one for part, own in columns.items() for key, one in own.items()}
        if self.calibration is not None:
            arrays["spent"] = self.calibration.spent
        return values, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the result of :meth:`state`, after the detectors were restored."""
        self.held_out = {name: arrays[f"held_out.{name}"] for name in values["held_out"]}
        self.thresholds = self._rules()
        if values["calibrated"]:
            clean = {name: arrays[f"clean.{name}"] for name in values["calibrated"]}
            # After a calibration on held-out scores, the two are equal, and large: share them.
            for name in clean.keys() & self.held_out.keys():
                if np.array_equal(clean[name], self.held_out[name], equal_nan=True):
                    clean[name] = self.held_out[name]
            n_doubtful, spent = values["n_doubtful"], arrays["spent"]
            self.calibration = JointCalibration(clean, self._floors, n_doubtful, spent)
            self.thresholds = self._calibrated(self.calibration)
            if "borrowed" in values:
                self.borrowed = self.calibration, values["borrowed"]["dim"]
        self.calibrated_at = values["calibrated_at"]
        self._ever_beyond = set(values["ever_beyond"])
        self.by_source = {source: dict(found) for source, found in values["by_source"]}
        self.arrivals = Arrivals.restored(values["arrivals"], part_of(arrays, "arrivals."))
        if "sample" in values:
            self.sample = CleanSample.restored(values["sample"], part_of(arrays, "sample."))
            revisions = list(_revisions(self.sample.inside))
            for name, fixed in part_of(arrays, "fixed.").items():
                self._fixed[name] = dict(zip(revisions, fixed.tolist(), strict=True))

    def _take(
        self,
        scores: Mapping[str, NDArray[np.floating[Any]]],
        at_most: float | None,
        n_doubtful: int = 0,
        ids: Sequence[str] = (),
    ) -> None:
        """Set thresholds from scores of clean entries; with ids if these are scored repeatedly."""
        spent = np.array([i in self._ever_beyond for i in ids], dtype=np.bool_) if ids else None
        clean = {name: rounded_up(column) for name, column in scores.items()}
        calibration = JointCalibration(clean, self._floors, n_doubtful, spent)
        before = self.policy
        try:
            smallest = calibration.smallest_rate
            if at_most is not None and self.policy.quarantine_at < smallest <= at_most:
                logger.warning(
                    "too few clean entries for a false-positive rate of %g: calibrated at %.3g",
                    *(self.policy.quarantine_at, smallest),
                )
                self.policy = self.policy.accepting(smallest)
            thresholds = self._calibrated(calibration)
            # Updates can empty a sample, which says nothing about a detector.
            silent = self.clean.keys() & (self.thresholds.keys() - thresholds.keys())
            if ids and silent:
                names = ", ".join(name for name in self.clean if name in silent)
                msg = f"too few entries of the clean sample are left for {names}."
                raise CalibrationError(msg)  # noqa: TRY301 - the handler adds the rate
        except CalibrationError as error:
            msg = (
                f"{', '.join(calibration.calibrations)} together, at "
                f"fpr={self.policy.quarantine_at:g}: {error}"
            )
            self.policy = before
            raise CalibrationError(msg) from None
        self.calibration, self.thresholds, self.borrowed = calibration, thresholds, None
        if ids:
            beyond = calibration.beyond(
                {name: threshold.recall for name, threshold in thresholds.items()}
            )
            self._ever_beyond.update(ids[row] for row in np.flatnonzero(beyond).tolist())
        self.calibrated_at = len(self._knowledge)
        self.arrivals.calibrated()
        logger.info(
            "calibrated at %d entries, on %d of them", self.calibrated_at, len(self.sample or ())
        )

    def _held_out_scores(
        self, fitted: Batch, again: Batch | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """Return held-out scores; entries in ``again`` (default: all) will be scored again."""
        detectors = [d for d in self._knowledge.detectors if d.traits.exchangeable and len(fitted)]
        # The scores of all entries would take a third of the memory of their vectors.
        wanted = set((fitted if again is None else again).ids)
        rows = [row for row, entry_id in enumerate(fitted.ids) if entry_id in wanted]
        revisions = dict(zip(_revisions(fitted.take(rows)), rows, strict=True))
        return {  # a detector may read the knowledge of another one
            detector.name: detector.held_out_scores(fitted, self._seed)
            if learns(detector)
            else self._unchanging(detector, fitted, revisions)
            for detector in detectors
        }

    def _unchanging(
        self, detector: Detector, fitted: Batch, again: Mapping[tuple[str, str], int]
    ) -> NDArray[np.float64]:
        """Return scores that do not depend on the knowledge base, and remember some of them.

        ``again`` has the rows whose scores are remembered, by revision.
        """
        known = self._fixed.get(detector.name, {})
        scores = np.full(len(fitted), np.nan)
        new = np.ones(len(fitted), dtype=np.bool_)
        for revision in again.keys() & known.keys():
            row = again[revision]
            scores[row], new[row] = known[revision], False
        if new.any():
            # Avoids a copy of the vectors of a whole knowledge base.
            unknown = fitted if new.all() else fitted.take(new)
            scores[new] = detector.held_out_scores(unknown, self._seed)
        kept = scores[list(again.values())].tolist()
        self._fixed[detector.name] = dict(zip(again, kept, strict=True))
        return scores

    def _clean_scores(self, clean: Batch) -> dict[str, NDArray[np.float64]]:
        self._knowledge.check_dim(clean)
        return {
            detector.name: judged_scores(detector, clean)
            for detector in self._knowledge.detectors
            if detector.traits.exchangeable
        }

    @staticmethod
    def _check_judged(scores: Mapping[str, NDArray[np.floating[Any]]]) -> None:
        if all(np.isnan(column).all() for column in scores.values()):
            msg = (
                f"none of the clean entries can be judged by {', '.join(scores)}; pass entries "
                "that carry what these detectors need (labels known to the knowledge base, for "
                "label detectors)."
            )
            raise CalibrationError(msg)

    @property
    def _floors(self) -> dict[str, float]:
        return {detector.name: detector.traits.floor for detector in self._knowledge.detectors}

    def _rules(self) -> dict[str, Thresholds]:
        """Return the default thresholds, by detector."""
        return self.policy.thresholds(
            {d.name: d.default_threshold for d in self._knowledge.detectors}
        )

    def _calibrated(self, calibration: JointCalibration) -> dict[str, Thresholds]:
        """Return calibrated thresholds, except for detectors that judged too few entries."""
        detectors = self._knowledge.detectors
        rules = {d.name: d.default_threshold for d in detectors if not d.traits.exchangeable}
        return self.policy.thresholds(rules, calibration)


def _revisions(entries: Batch) -> Iterator[tuple[str, str]]:
    """Return the id and the fingerprint of each entry."""
    return zip(entries.ids, entries.fingerprints(), strict=True)


def _check_dim(lent: int, dim: int | None) -> None:
    """Refuse vectors whose length differs from that of the lender's, if both are known."""
    if lent and dim and lent != dim:
        msg = (
            f"the calibration that was taken over is of vectors with {lent} dimensions, and those "
            f"here have {dim}; embed with the same model, or calibrate this guard by itself."
        )
        raise CalibrationError(msg)
