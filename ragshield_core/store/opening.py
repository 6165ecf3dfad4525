"""Opening of a store: fit and calibrate its guard, or warn that the guard knows nothing of it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import learns
from ragshield_core.guard import Guard
from ragshield_core.hooks import tools
from ragshield_core.learning.status import said
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError, UnfittedGuardWarning
from ragshield_core.store.inner import PART
from ragshield_core.store.keeper import Keeper, Progress
from ragshield_core.store.reconciling import warn_if_different

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# If a store has too few entries for the accepted rate, its guard is calibrated at the smallest rate
# that they justify, up to this one, until the store is adopted again.
AT_MOST = 0.05


def adopt(
    keeper: Keeper[Any],
    trusted: Iterable[str] | None,
    part: int = PART,
    *,
    progress: bool = False,
) -> None:
    """Fit and calibrate a guard on its store, read part by part, unless it knows the store."""
    guard = keeper.guard
    with keeper.alone(), _progress_bar(progress) as tell:
        batch = keeper.everything(part, tell)
        if trusted is None and knows(guard, batch):
            logger.info("the guard knows all %d entries of the store already", len(batch))
            return
        tell("learning", 0, 0)
        learn_store(guard, batch, trusted)


@contextmanager
def _progress_bar(progress: bool) -> Iterator[Progress]:  # noqa: FBT001 - passed through
    """Yield a function that shows the progress on standard error."""
    if not progress:
        yield lambda *_: None
        return
    from rich.console import Console  # noqa: PLC0415 - only for a progress bar
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def tell(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of or None)
            bar.update(tasks[what], completed=done, total=of or None)

        yield tell


def knows(guard: Guard, batch: Batch) -> bool:
    """Return whether a guard is calibrated on exactly these entries, or on most of them.

    If it were fitted again at each restart, newer entries would count as clean each time, though
    nobody has vouched for them. Once enough new entries are stored for new thresholds, the store
    needs a new adoption.
    """
    guard.writes.catch_up()
    due = guard.state.recalibration.next_at
    if not guard.calibrated or due is None or len(batch) >= due:
        return False
    return guard.writes.known_ids() == set(batch.ids) and guard.writes.fingerprints(batch.ids) == {
        entry.id: entry.fingerprint for entry in batch
    }


def learn_store(guard: Guard, batch: Batch, trusted: Iterable[str] | None) -> None:
    """Fit and calibrate a guard on the entries of a store.

    If there are too few for the accepted rate, the guard takes the smallest rate that they
    justify, up to ``AT_MOST``. If there are too few for that as well, it starts as on an empty
    store, and the log says so. Half of the ``trusted`` entries, which are known to be clean, are
    held out as whole documents while the guard is fitted, and thresholds come from them alone.
    ``None`` takes all entries, each held out in turn.
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

    This needs a calibrated guard, and an embedding model, since planted texts need vectors.
    Otherwise the status stays as it is.
    """
    sample, embed = guard.state.calibrator.sample, guard.state.embedder
    if sample is None or embed is None or not guard.calibrated:
        return
    try:
        power = tools().power(screen=guard.judge.rehearse, sample=sample.inside, embed=embed)
    except Exception as error:  # noqa: BLE001 - the store is adopted anyway
        logger.warning("the power against planted attacks is unknown: %s", type(error).__name__)
        return
    if power:
        with guard.writes.replaced():
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


def look(keeper: Keeper[Any], count: Callable[[], int], what: str, way_out: str) -> None:
    """Warn of a guard that knows none of its store's entries, or other entries.

    ``count`` returns the number of stored entries, or raises if the store cannot be asked yet;
    ``what`` is the store in words, and ``way_out`` the call that adopts it.
    """
    guard = keeper.guard
    if guard.n_known or not any(learns(detector) for detector in guard.detectors):
        warn_if_different(keeper, what, stacklevel=4)
        return
    try:
        n = count()
    except Exception as error:  # noqa: BLE001 - any error of the store; the first write says more
        logger.warning("whether the %s holds entries is not known: %s", what, type(error).__name__)
        return
    if n:
        msg = (
            f"the {what} holds {n} entries, and the guard knows none of them: new ones are "
            f"compared with nothing. Use {way_out}, or, where the guard was saved, "
            "Guard.load(folder, quarantine=...)."
        )
        warnings.warn(msg, UnfittedGuardWarning, stacklevel=3)
