"""Findings of a screening for callbacks and the log: ids, hashes and scores, never texts."""

from __future__ import annotations

from functools import partial

from langchain_core.callbacks import Callbacks, adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables.config import ensure_config, get_callback_manager_for_config

from ragshield_core import Report
from ragshield_core.hooks import Stage
from ragshield_core.store.events import told
from ragshield_core.store.steps import Step, Steps, asynchronous, synchronous

EVENT = "ragshield.detection"


@synchronous
def report_detection(
    report: Report, callbacks: Callbacks = None, *, stage: Stage = "retrieval"
) -> Steps[None]:
    """Tell callbacks that entries were flagged or quarantined; do nothing if none was.

    The current run gets a custom event ``ragshield.detection``, which handlers see in
    ``on_custom_event`` and ``astream_events`` passes on. Outside a run, no event is sent.

    Parameters
    ----------
    report
        The report of the screening.
    callbacks
        The run's callbacks, e.g. ``run_manager.get_child()``; ``None`` takes those of the runnable
        that is running in this context.
    stage
        At ``"retrieval"`` the log is written here; at ``"ingestion"`` the guard has written it when
        it held the entries.
    """
    data = told(report, stage)
    config = ensure_config(None if callbacks is None else {"callbacks": callbacks})
    # Checked first: without a run, dispatch_custom_event raises a RuntimeError, which looks like
    # the error of a handler, and that one must not get lost.
    if data is not None and get_callback_manager_for_config(config).parent_run_id is not None:
        yield Step(
            partial(dispatch_custom_event, EVENT, data, config=config),
            partial(adispatch_custom_event, EVENT, data, config=config),
        )


areport_detection = asynchronous(report_detection)
