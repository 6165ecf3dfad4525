"""Rows of held entries as entries."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np

from ragshield_core.database.tables import ANY_STORE, HeldRow
from ragshield_core.model.entries import Entry
from ragshield_core.model.errors import TamperedError
from ragshield_core.model.findings import Finding, finding_from_dict, printable
from ragshield_core.quarantine import metadata_json
from ragshield_core.quarantine.entries import SHOWN_ID, HeldEntry, Status


def to_held(row: HeldRow) -> HeldEntry:
    """Return a row as a held entry.

    Raises
    ------
    TamperedError
        If something in it cannot be read; names the entry.
    """
    try:
        return _read(row)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The error may quote the entry.
        msg = (
            f"row {row.number} of the quarantine, entry {printable(row.entry_id, SHOWN_ID)!r}, "
            f"cannot be read ({type(error).__name__}): it was damaged, or changed past ragshield. "
            "Restore it from a backup, or purge it."
        )
        raise TamperedError(msg) from None


def _read(row: HeldRow) -> HeldEntry:
    vector = np.frombuffer(row.vector, dtype="<f4").astype(np.float32)
    return HeldEntry(
        entry=Entry(
            id=row.entry_id,
            text=decoded(row.text),
            # Of no dimension, and no length, where it was held without a vector.
            embedding=vector / np.float32(np.linalg.norm(vector.astype(np.float64)) or 1.0),
            label=row.label,
            lineage=row.lineage,
            metadata=metadata_json.loads(row.entry_metadata),
            context=None if row.context is None else decoded(row.context),
        ),
        vector=vector,
        findings=findings_of(row.findings),
        note=row.note,
        status=Status(row.status),
        held_at=dt.datetime.fromisoformat(row.held_at),
        held_by=row.held_by,
        reviewed_at=None if row.reviewed_at is None else dt.datetime.fromisoformat(row.reviewed_at),
        reviewed_by=row.reviewed_by,
        number=row.number,
        store=None if row.store == ANY_STORE else row.store,
    )


def findings_of(written: str) -> tuple[Finding, ...]:
    """Return findings that were kept."""
    return tuple(finding_from_dict(values) for values in json.loads(written))


def encoded(text: str) -> bytes:
    """Return a text as it is kept."""
    return text.encode("utf-8", "surrogatepass")


def decoded(data: bytes) -> str:
    """Return a text that was kept."""
    return data.decode("utf-8", "surrogatepass")
