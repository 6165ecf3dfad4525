"""Audit of a whole knowledge base: every entry judged against all the others, worst first."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base import Detector, Evidence, Need, skip_reason
from ragshield_core.detectors.base.abilities import audited as audited_by
from ragshield_core.detectors.base.abilities import explained_audit
from ragshield_core.detectors.base.pieces import Progress
from ragshield_core.detectors.registry import check_detectors
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.screening.screening import checked, crash, explained
from ragshield_core.tools.audit.held_out_groups import with_groups
from ragshield_core.tools.audit.judging import Judge, found_by, limits_of, unjudged, unknown_ids
from ragshield_core.tools.audit.partitioned.audit import audit
from ragshield_core.tools.audit.partitioned.engines import Engine
from ragshield_core.tools.audit.partitioned.parts import Parts
from ragshield_core.tools.audit.power import power_of
from ragshield_core.tools.audit.report import ScanReport

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")


def scan(
    batch: Batch | Parts,
    detectors: Sequence[Detector],
    *,
    fpr: float = 0.01,
    clean_ids: Iterable[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    engine: str | Engine | None = None,
    embed: Callable[[list[str]], ArrayLike] | None = None,
) -> ScanReport:
    """Judge every entry of a knowledge base against the others.

    Parameters
    ----------
    batch
        The knowledge base; some of it may be poisoned. One that no memory holds is given as
        :class:`~ragshield_core.tools.audit.Parts`: its groups are looked for by partitions.
    detectors
        Are fitted anew, so pass none that guard something. Those whose needs are not met are
        skipped and named.
    fpr
        Accepted share of clean entries among the findings, of all detectors together; without
        ``clean_ids`` each gets an equal part.
    clean_ids
        Entries of the batch that are known to be clean, drawn like the others: thresholds come from
        their scores, and they are no findings themselves. Without them thresholds are estimates.
    seed
        Of random choices.
    progress
        Told before each detector, and when all are done.
    engine
        Who runs the tasks of an audit by partitions: ``"ray"``, ``"local"`` (the default: one after
        the other, in this process), or an :class:`~ragshield_core.tools.audit.Engine`.
    embed
        The embedding model of the knowledge base: from a list of texts to a vector each. With it
        the audit says how much of an attack it would find here: made-up attacks are audited in the
        midst of the entries, which takes as long again as the audit. ``None`` leaves that out.

    Returns
    -------
    ScanReport
        Findings with their evidence, worst first in ``ranking``.

    Raises
    ------
    TypeError
        If a class, or anything else, is given in place of a detector, or an engine together with
        entries that are in memory.
    InvalidBatchError
        If one of ``clean_ids`` is not in the batch.
    CalibrationError
        If the trusted entries are too few for the rate; names how many would do.

    Notes
    -----
    With ``clean_ids`` the rate is that of split-conformal p-values: it holds in expectation if
    trusted and other clean entries are exchangeable, poison among the others or not, since all are
    scored in the presence of the same entries.

    Examples
    --------
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> rng = np.random.default_rng(0)
    >>> labels = ["ham", "spam"] * 50
    >>> axes = np.array([[1.0, 0.0], [0.0, 1.0]] * 50)
    >>> labels[7] = "ham"
    >>> batch = Batch.of(ids=[f"e{i}" for i in range(100)], texts=[""] * 100, labels=labels,
    ...                  embeddings=axes + rng.uniform(0, 0.2, (100, 2)))
    >>> report = scan(batch, [LabelCentroidDetector()])
    >>> [decision.entry_id for decision in report.found]
    ['e7']
    """
    check_detectors(detectors)
    policy, tell = Policy().accepting(fpr), progress or (lambda *_: None)
    if isinstance(batch, Parts):
        return audit(batch, detectors, policy, clean_ids, engine=engine, seed=seed, progress=tell)
    if engine is not None:
        msg = (
            f"the engine {engine!r} reads parquet files itself, expected Parts(path=...) in place "
            "of a batch; entries that are in memory are audited without an engine."
        )
        raise TypeError(msg)
    trusted = _rows_of(batch, clean_ids)
    report = _scanned(batch, detectors, policy, trusted, seed, tell)
    if embed is None:
        return report
    tell("auditing planted attacks", 0, 1)
    acting = [detector for detector in detectors if detector.name in report.scores]

    def found_in(entries: Batch) -> NDArray[np.bool_]:
        timings: dict[str, float] = {}
        judges = _judges(entries, acting, seed, lambda *_: None, timings)[0]
        judges = [_with_groups(judge, entries, timings) for judge in judges]
        limits = limits_of(judges, policy, report.thresholds)
        found = [judge.scores > limits[judge.name] for judge in judges]
        return np.asarray(np.logical_or.reduce(found))

    power: dict[str, float] = {}
    try:
        power = power_of(batch, embed, found_in) if acting else {}
    except Exception as error:  # noqa: BLE001 - a model that fails costs no finding
        logger.warning("what an attack would look like is not known: %s", crash(error))
    tell("auditing planted attacks", 1, 1)
    return replace(report, power=power)


def _scanned(
    batch: Batch,
    detectors: Sequence[Detector],
    policy: Policy,
    trusted: NDArray[np.intp] | None,
    seed: int,
    tell: Progress,
) -> ScanReport:
    """Judge every entry of a knowledge base that is in memory."""
    timings: dict[str, float] = {}
    judges, skipped, failed = _judges(batch, detectors, seed, tell, timings)
    judges = [_with_groups(judge, batch, timings) for judge in judges]
    found = found_by(judges, policy, trusted, lambda rows: [batch.ids[row] for row in rows])
    tell("auditing", len(detectors), len(detectors))
    acting = [judge for judge in judges if judge.name in found.thresholds]
    return ScanReport(
        batch=batch,
        remarkable={
            row: policy.decide(batch.ids[row], found.findings[row])
            for row in sorted(found.findings)
        },
        scores={judge.name: judge.scores for judge in acting},
        skipped=(*skipped, *found.skipped),
        timings={judge.name: timings[judge.name] for judge in acting},
        fpr=policy.quarantine_at,
        thresholds=found.thresholds,
        n_clean=0 if trusted is None else len(trusted),
        failed=tuple(failed),
        by_rule=found.by_rule,
        n_audited=len(batch),
        n_unjudged=unjudged(acting, len(batch)),
        has_texts=any(batch.texts),
        judged=found.judged,
        high=found.high,
        idle=_idle(detectors, batch, {judge.name for judge in acting}),
    )


def _with_groups(judge: Judge, batch: Batch, timings: dict[str, float]) -> Judge:
    """Return a judge that sees groups; what fails there costs no finding of the audit."""
    start = time.perf_counter()
    try:
        return with_groups(judge, batch)
    except Exception as error:  # noqa: BLE001 - any crash, of any detector
        logger.error("%s, judging groups: %s", judge.name, crash(error))  # noqa: TRY400
        return judge
    finally:
        timings[judge.name] += time.perf_counter() - start


def _idle(detectors: Sequence[Detector], batch: Batch, acting: Collection[str]) -> tuple[str, ...]:
    """Return the names of detectors that would judge these entries, were they more or whole."""
    labelled = any(label is not None for label in batch.labels)
    return tuple(
        detector.name
        for detector in detectors
        if len(batch)
        and detector.name not in acting
        and Need.QUERY not in detector.needs
        and (labelled or Need.LABEL not in detector.needs)
    )


def _judges(
    batch: Batch,
    detectors: Sequence[Detector],
    seed: int,
    tell: Progress,
    timings: dict[str, float],
) -> tuple[list[Judge], list[Skipped], list[str]]:
    """Let each detector audit; return those with opinions, those without, and those that crashed.

    A crash costs the findings of that detector, not those of the others. ``timings`` gets the
    seconds of each, which go on when it explains.
    """
    judges, skipped, failed = [], [], []

    def explain(detector: Detector, rows: NDArray[np.int64]) -> Sequence[Evidence]:
        start = time.perf_counter()
        why = partial(explained_audit, detector)
        told = explained(detector.name, why, batch, rows.tolist())
        timings[detector.name] += time.perf_counter() - start
        return told

    for number, detector in enumerate(detectors):
        tell(f"auditing: {detector.name}", number, len(detectors))
        start = time.perf_counter()
        reason = _skip_reason(detector, batch)
        if reason is None:
            try:
                scores = checked(
                    detector.name, audited_by(detector, batch, seed), len(batch), partial=True
                )
                if not np.isnan(scores).all():
                    timings[detector.name] = time.perf_counter() - start
                    why = partial(explain, detector)
                    judges.append(Judge(detector=detector, scores=scores, explain=why))
                    continue
                why_not = next(iter(detector.unjudged(batch).values()), "no reason given")
                reason = f"it could judge none of the entries: {why_not}"
            except NotImplementedError:
                reason = "it cannot audit a knowledge base"
            except Exception as error:  # noqa: BLE001 - any crash, of any detector
                reason = crash(error)
                logger.error("%s, auditing: %s", detector.name, reason)  # noqa: TRY400
                failed.append(detector.name)
        skipped.append(Skipped(detector=detector.name, reason=reason))
    return judges, skipped, failed


def _skip_reason(detector: Detector, batch: Batch) -> str | None:
    if not len(batch):
        return "there are no entries"
    if Need.QUERY in detector.needs:
        return "needs queries, and an audit has none"
    return skip_reason(detector, batch)


def _rows_of(batch: Batch, ids: Iterable[str] | None) -> NDArray[np.intp] | None:
    """Return the rows of trusted entries, each once."""
    if ids is None:
        return None
    wanted = dict.fromkeys(ids)
    row_of = {entry_id: row for row, entry_id in enumerate(batch.ids) if entry_id in wanted}
    unknown = [entry_id for entry_id in wanted if entry_id not in row_of]
    if unknown:
        raise unknown_ids(unknown, len(wanted))
    return np.array(sorted(row_of.values()), dtype=np.intp)
