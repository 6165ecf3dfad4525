"""A guard for retrieved passages, which also sees the query: for stores filled unguarded.

It writes nothing, and passages that it drops stay in the store. An ingestion guard is the better
place to stop poison: it sees more, and reviewers can check its findings and undo them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core import state
from ragshield_core.detectors.base import (
    Detector,
    Need,
    Scope,
    judged_scores,
    learns,
)
from ragshield_core.detectors.base.retrieved import RetrievalDetector, RetrievedSet
from ragshield_core.detectors.groups.consensus import ConsensusDetector
from ragshield_core.detectors.hidden.detector import HiddenTextDetector
from ragshield_core.detectors.instruction.detector import InstructionDetector
from ragshield_core.detectors.question.query_echo import QueryEchoDetector
from ragshield_core.detectors.registry import (
    OF_RETRIEVAL_GUARD,
    AnyDetector,
    check_detectors,
    check_loadable,
    detectors_from,
    learned_of,
    saved_detectors,
)
from ragshield_core.hooks import excused, screening, tools
from ragshield_core.model.arguments import check_names
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CalibrationError, InvalidBatchError, QuarantineError
from ragshield_core.model.findings import Decision, Report, Skipped, Unjudged, Verdict
from ragshield_core.model.p_values import Calibration, JointCalibration
from ragshield_core.model.policy import Policy, Thresholds
from ragshield_core.origin import Origin, Origins, Tier, corroborated
from ragshield_core.screening.screening import (
    InForce,
    Outcome,
    Tally,
    checked,
    explained,
    failure,
    findings_of,
    in_time,
    judged,
    overruled,
)
from ragshield_core.time_budget import TimeBudget

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine

logger = logging.getLogger("ragshield")  # ids and scores, never text

Embed = Callable[[list[str]], ArrayLike]

# Passages per calibration set: more than most prompts need.
K = 10
# Queries per search: 256 rows against 100,000 entries are 100 MB.
CHUNK = 256


class RetrievalGuard:
    """Judge retrieved passages by the query and by each other, and decide which to drop.

    Parameters
    ----------
    detectors
        Detectors of retrieved sets, and any of single entries
        (:attr:`~ragshield_core.detectors.base.Scope.ENTRY`). Default:
        :class:`~ragshield_core.detectors.question.query_echo.QueryEchoDetector`,
        :class:`~ragshield_core.detectors.ConsensusDetector`,
        :class:`~ragshield_core.detectors.InstructionDetector` and
        :class:`~ragshield_core.detectors.HiddenTextDetector`: no guard has looked for
        instructions in the passages of a store that was filled unguarded.
    policy
        Accepted share of clean passages dropped (``quarantine_at``); used by :meth:`fit`. Before
        that, detectors use their default thresholds.
    quarantine
        Its held entries never pass, and entries released by a reviewer always pass. If the new
        revision of an entry is held, the older one passes.
    origins
        The keys that may vouch for passages; ``None``, the default, for none.
    least_tier
        Passages of a lower tier are dropped, unless others corroborate them, see
        :func:`ragshield_core.origin.corroborated`; the default drops none.

    Notes
    -----
    ``screen`` changes nothing and may be called from any number of threads.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> vectors = rng.normal(size=(10, 64)) + 0.5
    >>> vectors[:3] = rng.normal(size=64) + 0.5 + 0.2 * rng.normal(size=(3, 64))
    >>> passages = Batch.of(ids=list("abcdefghij"), texts=[f"text {i}" for i in range(10)],
    ...                     embeddings=vectors)
    >>> report = RetrievalGuard().screen("any question", passages, vectors[:3].mean(axis=0))
    >>> [decision.entry_id for decision in report.quarantined]
    ['a', 'b', 'c']
    """

    def __init__(
        self,
        detectors: Sequence[AnyDetector] | None = None,
        *,
        policy: Policy | None = None,
        quarantine: Quarantine | None = None,
        origins: Origins | None = None,
        least_tier: Tier | str = Tier.UNKNOWN,
    ) -> None:
        if detectors is None:
            detectors = (
                *(QueryEchoDetector(), ConsensusDetector()),
                *(InstructionDetector(), HiddenTextDetector()),
            )
        check_detectors(detectors, OF_RETRIEVAL_GUARD)
        self.detectors: tuple[AnyDetector, ...] = tuple(detectors)
        check_names([detector.name for detector in self.detectors])
        for detector in self.detectors:
            if detector.traits.scope not in (Scope.ENTRY, Scope.RETRIEVAL):
                msg = (
                    f"{detector.name} is of scope {str(detector.traits.scope)!r}: it needs more "
                    "than a retrieved set; expected 'retrieval' or 'entry'. Use it in a Guard."
                )
                raise ValueError(msg)
        self.policy = policy if policy is not None else Policy()
        self.quarantine = quarantine
        self.origins = Origins() if origins is None else origins
        self.least_tier = Tier.named(least_tier)
        self._budget = TimeBudget()
        rules = {detector.name: detector.default_threshold for detector in self.detectors}
        self._calibration = _Calibration(self.policy.thresholds(rules))

    @property
    def calibrated(self) -> bool:
        """Whether thresholds come from clean retrieved sets; otherwise they are the defaults."""
        return bool(self._calibration.scores)

    @property
    def thresholds(self) -> dict[str, float]:
        """The score above which a passage is dropped, by detector."""
        return {
            name: threshold.quarantine for name, threshold in self._calibration.thresholds.items()
        }

    def fit(
        self,
        knowledge_base: Batch,
        queries: Sequence[str],
        query_vectors: ArrayLike | None = None,
        *,
        embed: Embed | None = None,
        fpr: float | None = None,
        k: int = K,
        seed: int = 0,
    ) -> Self:
        """Set thresholds from the passages retrieved for ordinary queries.

        Parameters
        ----------
        knowledge_base
            Mostly clean entries with vectors. Detectors of single entries are fitted on them.
        queries
            Ordinary queries, for example of the last weeks; the more similar to future ones, the
            better. At least 99 for a rate of 1 %.
        query_vectors
            Shape (n_queries, dim), of ``queries``.
        embed
            Function from texts to vectors, used if ``query_vectors`` is not given.
        fpr
            Accepted share of clean passages dropped, by all detectors together, (0, 1); replaces
            ``policy.quarantine_at``. It limits the share of *first-ranked* passages dropped as
            well: the best answer stands out, and losing it costs more than losing the tenth.
        k
            Passages per query. Use as many as will be screened together.
        seed
            Seed of the random parts in which detectors of single entries hold out entries to score.

        Raises
        ------
        CalibrationError
            If there are too few queries for the rate; states the number needed. The guard stays
            unchanged, except that detectors of single entries are fitted.
        ValueError
            If queries have no vectors and ``embed`` is missing.
        """
        policy = self.policy if fpr is None else self.policy.accepting(fpr)
        searched = _searched(knowledge_base, queries, _embedded(queries, query_vectors, embed), k)
        held_out: dict[str, NDArray[np.float64]] = {}
        for detector in self.detectors:
            if not isinstance(detector, Detector):
                continue
            detector.fit(knowledge_base)
            if detector.traits.exchangeable and learns(detector):
                held_out[detector.name] = detector.held_out_scores(knowledge_base, seed)
            elif detector.traits.exchangeable:  # score only found entries: texts take long
                found = np.unique([row for _, _, rows in searched for row in rows.tolist()])
                rows = found.astype(np.intp)
                column = np.full(len(knowledge_base), np.nan)
                column[rows] = judged_scores(detector, knowledge_base.take(rows))
                held_out[detector.name] = column
        columns: dict[str, list[NDArray[np.float64]]] = {d.name: [] for d in self.detectors}
        for query, vector, rows in searched:
            retrieved = RetrievedSet.of(query, knowledge_base.take(rows), vector)
            for detector in self.detectors:
                if detector.name in held_out:
                    scores = held_out[detector.name][rows]
                elif isinstance(detector, Detector) or detector.skip_reason(retrieved) is not None:
                    scores = np.full(len(rows), np.nan)
                else:
                    scores = detector.score(retrieved)
                columns[detector.name].append(scores)
        scored = {name: np.concatenate(parts) for name, parts in columns.items() if parts}
        first = np.array([rank == 0 for *_, rows in searched for rank in range(len(rows))], bool)
        self._calibration = _calibrated(self.detectors, policy, scored, first)
        self.policy = policy
        return self

    def screen(
        self,
        query: str | None,
        passages: Batch,
        vector: ArrayLike | None = None,
        *,
        has_vectors: bool = True,
    ) -> Report:
        """Judge the passages that were retrieved for a query; changes nothing.

        Parameters
        ----------
        query
            The query's text; without it, passages that repeat the query are not detected.
        passages
            In the order of retrieval, best first.
        vector
            The query's vector, shape (dim,), any length; without it, groups are not detected.
        has_vectors
            False if the passages' vectors are unknown and mere placeholders.

        Returns
        -------
        Report
            One decision per passage; ``report.admitted`` says which to pass on, and
            ``report.skipped`` lists the detectors that could not run.
        """
        store = None if self.quarantine is None else self.quarantine.store
        with screening("retrieval", len(passages), store) as told:
            report = self._screened(query, passages, vector, has_vectors=has_vectors)
            for one in told:
                one.found(report)
        tools().decided(stage="retrieval", report=report)
        return report

    def _screened(
        self, query: str | None, passages: Batch, vector: ArrayLike | None, *, has_vectors: bool
    ) -> Report:
        quarantine, masked = self.filled_quarantine, dict[str, str]()
        if quarantine is not None and len(passages):
            masked = dict(quarantine.confirmed_among(passages))
            held = quarantine.held_ids(passages.ids)
            for entry_id, text, context in zip(
                passages.ids, passages.texts, passages.contexts, strict=True
            ):
                if entry_id in held and self.masks(entry_id, text, context):
                    masked.setdefault(entry_id, "held in the quarantine")
        if self.least_tier > Tier.UNKNOWN:
            columns = zip(passages.ids, passages.texts, passages.metadatas, strict=True)
            origins = [
                Origin() if entry_id in masked else self.origins.of(text, metadata)
                for entry_id, text, metadata in columns
            ]
            # A title may turn the sense of a text around, so others have to state it, too.
            parts = zip(passages.contexts, passages.texts, strict=True)
            tiers = corroborated(["\n".join(filter(None, some)) for some in parts], origins)
            for entry_id, origin, tier in zip(passages.ids, origins, tiers, strict=True):
                if tier < self.least_tier:
                    note = f"its origin is {origin.tier} ({origin.why}), expected {self.least_tier}"
                    masked.setdefault(entry_id, f"{note} at least")
        free = np.array([i not in masked for i in passages.ids], dtype=np.bool_)
        judged_passages = passages.take(free) if masked else passages
        retrieved = RetrievedSet.of(query, judged_passages, vector, has_vectors=has_vectors)
        report = self._judged(retrieved)
        if quarantine is not None:
            left = excused(quarantine, report.batch, report.remarkable, self.policy)
            report = replace(report, remarkable=left)
            if report.quarantined:
                released = quarantine.released_among(judged_passages, report.decisions)
                report = overruled(report, released, Verdict.ADMIT)
        return _with_masked(report, passages, free, masked) if masked else report

    def save(
        self, path: str | Path, *, detectors: Sequence[AnyDetector | type[AnyDetector]] = ()
    ) -> None:
        """Write configuration and calibration into a folder: JSON and npz, never pickle.

        Parameters
        ----------
        path, detectors
            As of :meth:`ragshield_core.Guard.save`, which raises the same errors.
        """
        check_loadable(self.detectors, detectors, OF_RETRIEVAL_GUARD)
        values: dict[str, Any] = {
            "policy": self.policy.model_dump(mode="json"),
            "calibrated": sorted(self._calibration.scores),
        }
        values["detectors"], arrays = saved_detectors(self.detectors)
        for number, detector in enumerate(self.detectors):
            if detector.name in self._calibration.scores:
                arrays[f"clean.{number}"] = self._calibration.scores[detector.name]
        arrays["first"] = self._calibration.first
        state.write(Path(path), values, arrays)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        quarantine: Quarantine | None = None,
        detectors: Sequence[AnyDetector | type[AnyDetector]] = (),
    ) -> Self:
        """Return the guard that :meth:`save` wrote.

        Parameters
        ----------
        path
            The folder.
        quarantine
            As for the constructor; it is not saved with the guard.
        detectors
            As of :meth:`ragshield_core.Guard.load`.

        Raises
        ------
        StateError
            If files are missing, damaged, changed by hand, or of another format; or if a detector
            is neither registered nor given.
        """
        check_detectors(detectors, OF_RETRIEVAL_GUARD, classes=True)
        with state.opened(Path(path)) as (values, arrays):
            scores = {}
            built: list[AnyDetector] = detectors_from(
                values["detectors"], detectors, OF_RETRIEVAL_GUARD
            )
            for number, (detector, saved) in enumerate(
                zip(built, values["detectors"], strict=True)
            ):
                if isinstance(detector, Detector):
                    detector.restore(saved["learned"], learned_of(number, arrays))
                if detector.name in values["calibrated"]:
                    scores[detector.name] = arrays[f"clean.{number}"]
            policy = Policy.model_validate(values["policy"])
            guard = cls(built, policy=policy, quarantine=quarantine)
            if scores:
                guard._calibration = _calibrated(built, policy, scores, arrays["first"])
        return guard

    def _judged(self, retrieved: RetrievedSet) -> Report:
        passages, tally = retrieved.passages, Tally(retrieved.passages)
        skipped, timings = list[Skipped](), dict[str, float]()
        seconds = self.policy.time_for(len(passages))
        for detector in self.detectors:
            start, reason = time.perf_counter(), None
            outcome: Outcome | Skipped
            try:
                if isinstance(detector, RetrievalDetector):
                    reason = detector.skip_reason(retrieved)
                elif Need.EMBEDDING in detector.needs and not retrieved.has_vectors:
                    reason = "needs the vectors of the passages, which are not known"
                if reason is None:
                    run = partial(self._run, detector, retrieved)
                    outcome = in_time(detector, passages, seconds, self._budget, run)
                else:
                    outcome = Skipped(detector=detector.name, reason=reason)
            except Exception as error:  # noqa: BLE001 - a detector may crash in any way
                outcome = failure(detector.name, passages, error)
            if isinstance(outcome, Skipped):
                skipped.append(outcome)
                continue
            tally.add(detector.name, outcome)
            timings[detector.name] = time.perf_counter() - start
        return Report(
            batch=passages,
            remarkable=tally.decisions(self.policy),
            scores=tally.scores,
            skipped=tuple(skipped),
            timings=timings,
        )

    def _run(
        self, detector: AnyDetector, retrieved: RetrievedSet, passages: Batch
    ) -> Outcome | Skipped:
        """Return one detector's scores, findings and unjudged passages."""
        name, ids, calibration = detector.name, passages.ids, self._calibration
        if isinstance(detector, Detector):
            in_force = InForce(calibration.thresholds, calibration.clean, {})
            return judged(detector, in_force, passages)
        if passages is not retrieved.passages:
            retrieved = replace(retrieved, passages=passages)
        column = checked(name, detector.score(retrieved), len(passages), partial=True)
        thresholds = calibration.thresholds[name]
        hits = np.flatnonzero(column > thresholds.flag)
        found = findings_of(
            detector,
            [ids[hit] for hit in hits],
            column[hits],
            thresholds.quarantine,
            explained(name, detector.explain, retrieved, hits.tolist()),
            calibration.clean.get(name),
        )
        reason = "it is ranked too low to be looked at"
        unjudged = [
            (row, Unjudged(detector=name, entry_id=ids[row], reason=reason))
            for row in np.flatnonzero(np.isnan(column)).tolist()
        ]
        return Outcome(column, list(zip(hits.tolist(), found, strict=True)), unjudged)

    @property
    def filled_quarantine(self) -> Quarantine | None:
        """The quarantine if its database exists: a query would create an SQLite file."""
        quarantine = self.quarantine
        return quarantine if quarantine is not None and quarantine.exists() else None

    def masks(self, entry_id: str, text: str, context: str | None = None) -> bool:
        """Return whether the quarantine holds this text, in this context, under this id.

        If it holds a rejected update, with another text or context under the id, the retrieved
        passage is the older revision, and passes.
        """
        quarantine = self.filled_quarantine
        if quarantine is None or not quarantine.held_ids([entry_id]):
            return False
        try:
            held = quarantine.show(entry_id)
        except QuarantineError:  # purged since
            return True
        same = held.entry.text == text and held.entry.context in (None, context)
        return str(held.status) != "held" or same


def screen_retrieved(
    query: str | None,
    passages: Batch,
    vector: ArrayLike | None = None,
    *,
    has_vectors: bool = True,
    guard: RetrievalGuard | None = None,
) -> Report:
    """Judge retrieved passages; see :meth:`RetrievalGuard.screen`.

    Parameters
    ----------
    query, passages, vector, has_vectors
        As of :meth:`RetrievalGuard.screen`.
    guard
        Default: a new one, with default thresholds.
    """
    screener = RetrievalGuard() if guard is None else guard
    return screener.screen(query, passages, vector, has_vectors=has_vectors)


class _Calibration(NamedTuple):
    """Scores of clean passages, and the thresholds taken from them."""

    thresholds: dict[str, Thresholds]
    scores: Mapping[str, NDArray[np.float64]] = {}  # (n_passages,); NaN without an opinion
    first: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)  # which were ranked first
    clean: Mapping[str, Calibration] = {}


def _calibrated(
    detectors: Sequence[AnyDetector],
    policy: Policy,
    scores: Mapping[str, NDArray[np.float64]],
    first: NDArray[np.bool_],
) -> _Calibration:
    """Return the stricter of the thresholds that keep the rate among all and among first ranks.

    A detector that judged too few passages of either kind keeps its default threshold.
    """
    if not np.any(first):
        msg = "no query found any passage, expected a knowledge base and queries."
        raise CalibrationError(msg)
    needed = math.ceil(1.0 / policy.quarantine_at - 1e-9) - 1
    enough = {
        name: column
        for name, column in scores.items()
        if np.count_nonzero(~np.isnan(column[first])) >= max(1, needed)
    }
    if not enough:
        msg = (
            f"{np.count_nonzero(first)} queries cannot justify dropping a share of "
            f"{policy.quarantine_at:g} of first-ranked passages; pass at least {needed}."
        )
        raise CalibrationError(msg)
    floors = {detector.name: detector.traits.floor for detector in detectors}
    rules = {detector.name: detector.default_threshold for detector in detectors}
    best = {name: column[first] for name, column in enough.items()}
    joint = JointCalibration(enough, floors)
    thresholds = policy.thresholds(rules, joint)
    # If there are enough first ranks for each detector, but not for all together, drop none of
    # them.
    highest = {name: max(floors[name], float(np.nanmax(best[name]))) for name in best}
    try:
        of_first = policy.thresholds(highest, JointCalibration(best, floors))
    except CalibrationError:
        of_first = policy.thresholds(highest)
    for name, threshold in of_first.items():
        thresholds[name] = threshold.at_least(thresholds[name])
    return _Calibration(thresholds, dict(scores), first, joint.calibrations)


def _with_masked(
    report: Report, passages: Batch, free: NDArray[np.bool_], masked: Mapping[str, str]
) -> Report:
    """Return a report on all passages, including those that were masked instead of judged."""
    rows = np.flatnonzero(free).tolist()
    remarkable = {rows[row]: decision for row, decision in report.remarkable.items()}
    for row in np.flatnonzero(~free).tolist():
        entry_id = passages.ids[row]
        remarkable[row] = Decision(
            entry_id=entry_id, verdict=Verdict.QUARANTINE, note=masked[entry_id]
        )
    scores = {}
    for name, column in report.scores.items():
        scores[name] = np.full(len(passages), np.nan)
        scores[name][free] = column
    return replace(report, batch=passages, remarkable=remarkable, scores=scores)


def _embedded(
    queries: Sequence[str], vectors: ArrayLike | None, embed: Embed | None
) -> NDArray[np.float32]:
    """Return the given query vectors, or embed the queries."""
    if vectors is None and embed is None:
        msg = "queries have no vectors; pass query_vectors, or embed= to make them."
        raise ValueError(msg)
    if vectors is None and embed is not None:
        vectors = embed(list(queries)) if queries else np.empty((0, 0))
    matrix = np.asarray(vectors, dtype=np.float32)
    if matrix.ndim != 2 or len(matrix) != len(queries):  # noqa: PLR2004
        msg = (
            f"query_vectors has shape {matrix.shape} for {len(queries)} queries, expected "
            f"({len(queries)}, dim)."
        )
        raise InvalidBatchError(msg)
    return matrix


def _searched(
    knowledge_base: Batch, queries: Sequence[str], vectors: NDArray[np.float32], k: int
) -> list[tuple[str, NDArray[np.float32], NDArray[np.intp]]]:
    """Return each query with its vector and the rows of its k nearest entries, best first."""
    if vectors.size and vectors.shape[1] != knowledge_base.dim:
        msg = (
            f"query vectors have {vectors.shape[1]} dimensions, expected "
            f"{knowledge_base.dim} as in the knowledge base; embed both with the same model."
        )
        raise InvalidBatchError(msg)
    found = []
    n = min(k, len(knowledge_base))
    for start in range(0, len(queries), CHUNK):
        part = vectors[start : start + CHUNK]
        norms = np.maximum(np.linalg.norm(part, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        similarity = (part / norms) @ knowledge_base.embeddings.T
        nearest = np.argpartition(-similarity, n - 1, axis=1)[:, :n] if n else np.empty((0, 0))
        for row, candidates in enumerate(nearest):
            best = candidates[np.argsort(-similarity[row, candidates], kind="stable")]
            best = best[np.isfinite(similarity[row, best])]
            found.append((queries[start + row], part[row], best))
    return found
