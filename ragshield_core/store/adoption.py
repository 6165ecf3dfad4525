"""A guard fitted on what a live store holds already."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ragshield_core.guard import Guard
from ragshield_core.hooks import tools
from ragshield_core.learning.status import said
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# A store that holds too little for the accepted rate is calibrated at the smallest rate that it
# justifies, up to this, until it is adopted again.
AT_MOST = 0.05


def learn_store(guard: Guard, batch: Batch, trusted: Iterable[str] | None) -> None:
    """Fit and calibrate a guard on what a store holds.

    Where it holds too little for the accepted rate, the smallest that it justifies is taken, up to
    ``AT_MOST``; where it holds too little for that, the guard begins as it does with nothing,
    and the log says so.

    Parameters
    ----------
    guard
        Fitted anew, unless there is nothing to learn.
    batch
        All that the store holds.
    trusted
        Ids of entries known to be clean: half of them, whole documents, are held out while the
        guard is fitted, and thresholds come from them alone. ``None`` takes all entries, each held
        out in turn.

    Raises
    ------
    InvalidBatchError
        If a trusted id is not in the store.
    CalibrationError
        If there are trusted ids, but too few.
    """
    if not len(batch):
        return
    if trusted is not None:
        held_out = _half(batch, trusted)
        guard.fit(batch.take(~held_out))
        clean = batch.take(held_out)
        guard.calibrate(clean)
        guard.learn(clean)
        guard.trust(clean.ids)
    else:
        guard.adopt(batch, at_most=AT_MOST)
    measure_power(guard)


def measure_power(guard: Guard) -> None:
    """Note in a guard's status how much of a planted attack it would hold.

    Nothing is noted where the guard is not calibrated, or where no embedding model is at hand:
    planted texts need vectors.
    """
    sample, embed = guard.state.calibrator.sample, guard.connections.embedder
    if sample is None or embed is None or not guard.calibrated:
        return
    try:
        power = tools().power(guard=guard, sample=sample.inside, embed=embed)
    except Exception as error:  # noqa: BLE001 - the store is adopted all the same
        logger.warning("what an attack would look like is not known: %s", type(error).__name__)
        return
    if power:
        with guard.state.replaced():
            guard.state.power = dict(power)
        logger.info("%s", said(power))


def _half(batch: Batch, trusted: Iterable[str]) -> NDArray[np.bool_]:
    """Return which entries to hold out: half of the trusted ones, never half a document."""
    rows = {entry_id: row for row, entry_id in enumerate(batch.ids)}
    wanted = list(dict.fromkeys(trusted))
    unknown = [entry_id for entry_id in wanted if entry_id not in rows]
    if unknown:
        msg = (
            f"{len(unknown)} of {len(wanted)} clean_ids are not in the store ({unknown[0]!r}), "
            "expected ids of entries that it holds."
        )
        raise InvalidBatchError(msg)
    documents: dict[str, list[int]] = {}
    for entry_id in wanted:
        row = rows[entry_id]
        lineage = batch.lineages[row]
        documents.setdefault(f"id {entry_id}" if lineage is None else f"of {lineage}", []).append(
            row
        )
    held_out = np.zeros(len(batch), dtype=np.bool_)
    groups = list(documents.values())
    for number in np.random.default_rng(0).permutation(len(groups)):
        if 2 * int(held_out.sum()) >= len(wanted):
            break
        held_out[groups[number]] = True
    return held_out
