"""Audit of a whole knowledge base: every entry judged against all the others, worst first."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.detectors.base import Detector, Evidence, Need, explained_audit, skip_reason
from ragshield_core.detectors.base import audited as audited_by
from ragshield_core.detectors.registry import check_detectors
from ragshield_core.hooks import answered, tools
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import Skipped
from ragshield_core.model.policy import Policy
from ragshield_core.screening.screening import checked, crash, explained
from ragshield_core.store.keeper import Progress
from ragshield_core.tools.audit.groups import with_groups
from ragshield_core.tools.audit.judging import DetectorScores, limits_of, report_of, unknown_ids
from ragshield_core.tools.audit.partitioned.audit import audit
from ragshield_core.tools.audit.partitioned.engines import Engine
from ragshield_core.tools.audit.partitioned.plan import Parts
from ragshield_core.tools.audit.report import ScanReport

if TYPE_CHECKING:
    from ragshield_core.tools.alerts import Checked

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# Maximum number of attacks of each form. Eight give a share of forty texts to within about .15.
MOST = 8
# Number of texts of all forms together, one attack each.
TEXTS = 10
# A larger share of planted texts would change the usual values of the knowledge base.
SHARE = 0.03
# Larger knowledge bases are not measured, since their vectors would be copied.
LARGEST = 100_000


def scan(  # noqa: PLR0913 - each has a default
    batch: Batch | Parts,
    detectors: Sequence[Detector],
    *,
    fpr: float = 0.01,
    clean_ids: Iterable[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    engine: str | Engine | None = None,
    embed: Callable[[list[str]], ArrayLike] | None = None,
    contradictions: Any = None,
) -> ScanReport:
    """Judge every entry of a knowledge base against the others.

    Parameters
    ----------
    batch
        The knowledge base; some of it may be poisoned. Pass one that does not fit in memory as
        :class:`~ragshield_core.tools.audit.Parts`: its groups are then searched by partitions.
    detectors
        They are fitted anew, so pass none that a guard uses. Detectors whose needs are not met
        are skipped, and the report names them.
    fpr
        Accepted share of clean entries among the findings, for all detectors together; without
        ``clean_ids`` each detector gets an equal part.
    clean_ids
        Entries of the batch that are known to be clean, drawn like the others. Thresholds come from
        their scores, and they are never findings. If they are a quarter of all entries or more,
        groups among the other entries are compared with them. Without them, thresholds are
        estimates.
    seed
        Seed of random choices.
    progress
        Called before each detector, and once at the end.
    engine
        Engine of an audit by partitions: ``"ray"``, ``"local"`` (the default: one task after the
        other, in this process), or an :class:`~ragshield_core.tools.audit.Engine`.
    embed
        The embedding model of the knowledge base: from a list of texts to a vector each. With it,
        the audit also measures how much of an attack it would find here: it plants synthetic
        attacks among the entries and audits again, which doubles the time. ``None`` skips this.
    contradictions
        ``True``, or a :class:`~ragshield_core.tools.contradictions.ContradictionModel`: each entry
        is compared with those nearest to it as well, and ``contradictions`` of the report quotes
        up to twenty pairs that contradict each other. They are no findings. ``None``, the default,
        compares nothing.

    Returns
    -------
    ScanReport
        Findings with their evidence, worst first in ``ranking``.

    Raises
    ------
    TypeError
        If an argument in ``detectors`` is a class or no detector at all, an engine is given
        for entries in memory, or contradictions are asked of entries that are not in memory.
    InvalidBatchError
        If one of ``clean_ids`` is not in the batch.
    CalibrationError
        If the trusted entries are too few for the rate; names the number needed.

    Notes
    -----
    With ``clean_ids`` the rate is that of split-conformal p-values: it holds in expectation if
    trusted and other clean entries are exchangeable, with or without poison among the others,
    since all are scored in the presence of the same entries.

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
    clean = None if clean_ids is None else tuple(dict.fromkeys(clean_ids))
    if isinstance(batch, Parts):
        if contradictions:
            msg = (
                "contradictions compare whole entries, expected a batch in place of Parts(...); "
                "leave the argument out for entries that are not in memory."
            )
            raise TypeError(msg)
        return audit(batch, detectors, policy, clean, engine=engine, seed=seed, progress=tell)
    if engine is not None:
        msg = (
            f"the engine {engine!r} reads parquet files itself, expected Parts(path=...) in place "
            "of a batch; entries that are in memory are audited without an engine."
        )
        raise TypeError(msg)
    trusted = None
    if clean is not None:
        row_of = {entry_id: row for row, entry_id in enumerate(batch.ids)}
        if unknown := [entry_id for entry_id in clean if entry_id not in row_of]:
            raise unknown_ids(unknown, len(clean))
        trusted = np.array(sorted(row_of[entry_id] for entry_id in clean), dtype=np.intp)
    timings: dict[str, float] = {}
    judges, skipped, failed = _judges(batch, detectors, trusted, seed, tell, timings)
    report = report_of(
        judges,
        policy,
        trusted,
        lambda rows: [batch.ids[row] for row in rows],
        batch=batch,
        skipped=skipped,
        failed=tuple(failed),
        timings=timings,
        n_audited=len(batch),
        has_texts=any(batch.texts),
    )
    tell("auditing", len(detectors), len(detectors))
    if contradictions:  # before attacks are planted, which detectors audit in place of the batch
        tell("comparing statements", 0, 1)
        model = None if contradictions is True else contradictions
        report = replace(report, contradictions=_contradictions(batch, trusted, judges, model))
        tell("comparing statements", 1, 1)
    acting = [detector for detector in detectors if detector.name in report.scores]
    labelled = any(label is not None for label in batch.labels)
    idle = [
        detector.name
        for detector in detectors
        if len(batch)
        and detector not in acting
        and Need.QUERY not in detector.needs
        and (labelled or Need.LABEL not in detector.needs)
    ]
    report = replace(report, idle=tuple(idle))
    if embed is None or not acting:
        return report
    tell("auditing planted attacks", 0, 1)

    def found_in(entries: Batch) -> NDArray[np.bool_]:
        again = _judges(entries, acting, trusted, seed, lambda *_: None, {})[0]
        limits = limits_of(again, policy, report.thresholds)
        found = [judge.scores > limits[judge.name] for judge in again]
        return np.asarray(np.logical_or.reduce(found))

    try:
        report = replace(report, power=_power_of(batch, embed, found_in))
    except Exception as error:  # noqa: BLE001 - a model that fails costs no finding
        logger.warning("the power against planted attacks is unknown: %s", crash(error))
    tell("auditing planted attacks", 1, 1)
    return report


def _judges(
    batch: Batch,
    detectors: Sequence[Detector],
    trusted: NDArray[np.intp] | None,
    seed: int,
    tell: Progress,
    timings: dict[str, float],
) -> tuple[list[DetectorScores], list[Skipped], list[str]]:
    """Run each detector's audit; return the judges, the skipped detectors and those that crashed.

    A crash loses the findings of that detector only. ``timings`` gets the seconds of each detector,
    including the time for explanations.
    """
    judges, skipped, failed = [], [], []

    def explain(detector: Detector, rows: NDArray[np.int64]) -> Sequence[Evidence]:
        start = time.perf_counter()
        why = partial(explained_audit, detector)
        told = explained(detector.name, why, batch, rows.tolist())
        timings[detector.name] += time.perf_counter() - start
        return told

    for number, detector in enumerate(detectors):
        name, start = detector.name, time.perf_counter()
        tell(f"auditing: {name}", number, len(detectors))
        reason = _skip_reason(detector, batch)
        if reason is None:
            try:
                scores = checked(name, audited_by(detector, batch, seed), len(batch), partial=True)
                if np.isnan(scores).all():
                    why = next(iter(detector.unjudged(batch).values()), "no reason given")
                    reason = f"it could judge none of the entries: {why}"
            except NotImplementedError:
                reason = "it cannot audit a knowledge base"
            except Exception as error:  # noqa: BLE001 - any crash, of any detector
                reason = crash(error)
                logger.error("%s, auditing: %s", name, reason)  # noqa: TRY400
                failed.append(name)
        if reason is not None:
            skipped.append(Skipped(detector=name, reason=reason))
            continue
        judge = DetectorScores(detector=detector, scores=scores, explain=partial(explain, detector))
        try:
            judge = with_groups(judge, batch, trusted)
        except Exception as error:  # noqa: BLE001 - it costs no finding of the audit
            logger.error("%s, judging groups: %s", name, crash(error))  # noqa: TRY400
        judges.append(judge)
        timings[name] = time.perf_counter() - start
    return judges, skipped, failed


def _contradictions(
    batch: Batch, trusted: NDArray[np.intp] | None, judges: Sequence[DetectorScores], model: Any
) -> Checked:
    """Return the pairs of entries that contradict each other, near ones as detectors found them."""
    near = (getattr(judge.detector, "audited_neighbors", None) for judge in judges)
    checked: Checked | None = tools().contradictions(
        batch=batch,
        clean_rows=trusted,
        neighbors=next((one for one in near if one is not None), None),
        model=model,
    )
    return cast("Checked", answered(checked, "scan(contradictions=...)"))


def _skip_reason(detector: Detector, batch: Batch) -> str | None:
    if not len(batch):
        return "there are no entries"
    if Need.QUERY in detector.needs:
        return "needs queries, and an audit has none"
    return skip_reason(detector, batch)


def _power_of(
    batch: Batch,
    embed: Callable[[list[str]], ArrayLike],
    found_in: Callable[[Batch], NDArray[np.bool_]],
) -> dict[str, float]:
    """Return the share of planted texts that an audit finds, by the form of the attack.

    ``found_in`` returns which entries an audit finds at the existing thresholds; the planted texts
    are the last entries. The result is empty if there are too few or too many entries, or no texts
    to build an attack from.
    """
    n_each = min(MOST, int(SHARE * len(batch) / TEXTS))
    if not n_each or len(batch) > LARGEST or not batch.dim:
        return {}
    attacks = tools().plant(sample=batch, n_targets=n_each)
    if not attacks:
        return {}
    forms = [form for form, texts in attacks for _ in texts]
    texts = [text for _, texts in attacks for text in texts]
    ids = [f"ragshield-planted-{number}" for number in range(len(texts))]
    vectors = np.asarray(embed(texts), dtype=np.float32)
    if vectors.shape != (len(texts), batch.dim):
        msg = f"the embedding model returns shape {vectors.shape}, not {(len(texts), batch.dim)}."
        raise InvalidBatchError(msg)
    planted = Batch.of(
        ids=ids,
        texts=texts,
        embeddings=vectors,
        lineages=ids if any(batch.lineages) else None,
    )
    found = found_in(concatenate([batch, planted]))[len(batch) :]
    by_form: dict[str, list[bool]] = defaultdict(list)
    for form, one in zip(forms, found.tolist(), strict=True):
        by_form[form].append(one)
    return {form: sum(each) / len(each) for form, each in by_form.items()}
