"""Put entries into the graph, and take them out again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration import rounded_up
from ragshield_core.detectors.groups.judging import judge
from ragshield_core.detectors.groups.known import Known
from ragshield_core.detectors.groups.usual import Judgement
from ragshield_core.entries import Batch


def insert(known: Known, keys: Sequence[str], entries: Batch, *, held: bool = False) -> None:
    """Put entries into the graph under keys, and note what they change around them."""
    graph = known.graph
    remove(known, graph.index.among(keys))  # a write that is repeated
    overlay = graph.overlay(entries)
    judgement = judge(known, overlay)
    start = graph.n_slots
    graph.learn(keys, overlay)
    known.make_room()
    known.sources.put(np.arange(start, graph.n_slots), entries.sources)
    known.books.n_come += len(entries)
    known.books.held_at[start : graph.n_slots] = known.books.n_come if held else np.nan
    _note(known, overlay.numbers, judgement)


def remove(known: Known, keys: Sequence[str]) -> None:
    """Take keys out of the graph, and judge again the entries that had them as neighbours."""
    if not keys:
        return
    graph = known.graph
    gone = graph.index.slots_of(keys)
    if known.ready:  # what was released, or deleted for good, no longer counts as held
        known.books.held_at[gone] = np.nan
    rows = graph.remove(keys)
    if known.ready and rows.size:
        _note(known, rows, judge(known, graph.part(rows)))
    if graph.index.sparse:
        known.compact()


def _note(known: Known, slots: NDArray[np.int64], judgement: Judgement) -> None:
    """Keep the evidence and the scores of known entries."""
    for channel, evidence in judgement.evidence.items():
        known.tight[channel][slots] = evidence.raw.tight
    known.books.scores[slots] = rounded_up(judgement.scores)
