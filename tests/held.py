"""Decisions and held entries, for tests of cases and of what people do with them."""

import numpy as np

from ragshield_core import Batch
from ragshield_core.model.findings import Decision, Finding, Verdict


def found(entry_id, related=(), detector="clique", p_value=0.001, span=None):
    """Return the decision to hold an entry for one finding, which names some others."""
    finding = Finding(
        detector=detector,
        entry_id=entry_id,
        score=9.0,
        threshold=6.9,
        p_value=p_value,
        evidence="one of a group",
        related_ids=tuple(related),
        span=span,
    )
    return Decision(entry_id=entry_id, verdict=Verdict.QUARANTINE, findings=(finding,))


def hold(quarantine, *decisions, texts=None, lineages=None):
    """Hold an entry for each decision; return them."""
    ids = [decision.entry_id for decision in decisions]
    batch = Batch.of(
        ids=ids,
        texts=texts or [f"a text about {entry_id} and nothing else" for entry_id in ids],
        embeddings=np.eye(len(ids), max(8, len(ids))),
        lineages=lineages or [None] * len(ids),
    )
    quarantine.hold(batch, decisions)
    return batch
