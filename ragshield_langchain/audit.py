"""Audit of a live store: what it holds read back, judged, and findings taken out if asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragshield_core import Batch, Guard
from ragshield_core.scan import ScanReport
from ragshield_langchain.convert import MetadataKeys, to_batch
from ragshield_langchain.inner import InnerStore


def read_back(access: InnerStore, ids: Sequence[str], keys: MetadataKeys) -> Batch:
    """Return documents of a store as entries, with their stored vectors; missing ones are left out.

    Raises
    ------
    InvalidBatchError
        If metadata holds a label or lineage that is no scalar; names the document.
    """
    documents, vectors = access.read(ids)
    return to_batch(
        [str(document.id) for document in documents],
        [document.page_content for document in documents],
        [document.metadata for document in documents],
        vectors,
        keys,
    )


def take_out(
    report: ScanReport, access: InnerStore, keys: MetadataKeys, guard: Guard
) -> ScanReport:
    """Move findings from a store into quarantine, durably before they are deleted.

    What a person has released before stays in the store, and so does what is no longer the revision
    that was judged: the report returned says so.

    Parameters
    ----------
    report
        An audit of the store.
    access, keys, guard
        Of the store; nobody else may write to it meanwhile.
    """
    decision_of = {decision.entry_id: decision for decision in report.found}
    judged = report.batch.take([row for row in report.ranking if not report.kept[row]])
    fingerprints = {entry.id: entry.fingerprint for entry in judged}
    present = read_back(access, list(decision_of), keys)
    unchanged = present.take(
        np.array([e.fingerprint == fingerprints[e.id] for e in present], dtype=np.bool_)
    )
    decisions = [decision_of[entry_id] for entry_id in unchanged.ids]
    gone = set(guard.recall(unchanged, decisions, access.delete, by="scan"))
    staying = {i: "released by a person before" for i in unchanged.ids if i not in gone}
    changed = decision_of.keys() - set(unchanged.ids)
    return report.overruled(
        staying | dict.fromkeys(changed, "changed or deleted while it was audited")
    )
