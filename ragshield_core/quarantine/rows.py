"""Conversion of held entries to database rows and back; conditions by namespace and store."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from ragshield_core.database import chunks
from ragshield_core.database.tables import ANY_STORE, CaseRow, HeldRow
from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import QuarantineError, TamperedError
from ragshield_core.model.findings import (
    Decision,
    Finding,
    finding_from_dict,
    finding_to_dict,
    printable,
)
from ragshield_core.quarantine import metadata_json
from ragshield_core.quarantine.entries import SHOWN_ID, HeldEntry
from ragshield_core.quarantine.status import Status

if TYPE_CHECKING:
    from ragshield_core.quarantine.quarantine import Quarantine

# Paths to the document in metadata, as the adapters write it: a node of LlamaIndex as
# ``ragshield_llamaindex.convert`` packs it (its relationship 1 is the source), or a part in
# LangChain's retrievers of whole documents.
DOCUMENT_PATHS = (
    ("_ragshield_node", "content", "relationships", "1", "node_id"),
    ("doc_id",),
)
# Longer document ids are stored as digests: databases limit the length of indexed texts.
LONGEST_DOCUMENT = 200

# Which rows


def seen_by(
    quarantine: Quarantine, kind: type[HeldRow | CaseRow] = HeldRow
) -> list[ColumnElement[bool]]:
    """Return conditions on rows of the quarantine's namespace, and of its store or any."""
    conditions = [kind.namespace == quarantine.namespace]
    if quarantine.store is not None:
        conditions.append(kind.store.in_((quarantine.store, ANY_STORE)))
    return conditions


def revisions(
    session: Session, quarantine: Quarantine, ids: Sequence[str], status: Status | None = None
) -> dict[str, list[HeldRow]]:
    """Return the revisions under each id, oldest first; only those of ``status``, if given."""
    if isinstance(ids, str):
        msg = f"ids is one str, expected a list: [{printable(ids, SHOWN_ID)!r}]."
        raise TypeError(msg)
    found: dict[str, list[HeldRow]] = {}
    query = select(HeldRow).where(*seen_by(quarantine)).order_by(HeldRow.number)
    for some in chunks(ids):
        for row in session.scalars(query.where(HeldRow.entry_id.in_(some))):
            # Compared here: SQLite would read all rows of a status instead of looking up these ids
            # (9 ms against .3 ms with 20,000 held).
            if status is None or row.status == status:
                found.setdefault(row.entry_id, []).append(row)
    return found


def check_one_store(quarantine: Quarantine, rows: Sequence[HeldRow]) -> None:
    """Refuse a decision on one id of two stores: the texts may differ."""
    names = sorted({row.store for row in rows} - {ANY_STORE})
    if len(names) > 1:
        msg = (
            f"entry {printable(rows[0].entry_id, SHOWN_ID)!r} of {quarantine!r} is of several "
            f"stores ({', '.join(repr(printable(name, SHOWN_ID)) for name in names)}), nothing "
            "was done; name one: Quarantine.for_store(name), or --store."
        )
        raise QuarantineError(msg)


# To rows


def columns_of(
    quarantine: Quarantine, entry: Entry, vector: Any, decision: Decision | None, by: str
) -> dict[str, Any]:
    """Return the columns of a newly held entry."""
    try:
        metadata = _metadata_text(entry.metadata)
    except QuarantineError as error:
        msg = f"entry {entry.id!r} cannot be held, and nothing was: {error}"
        raise QuarantineError(msg) from None
    document = document_of(entry.metadata)
    findings = () if decision is None else decision.findings
    notes = []
    if decision is not None:
        notes = [f"{item.detector}: {item.reason}" for item in decision.unjudged]
        notes += [decision.note] if decision.note else []
    return {
        "namespace": quarantine.namespace,
        "store": ANY_STORE if quarantine.store is None else quarantine.store,
        "entry_id": entry.id,
        "fingerprint": entry.fingerprint,
        "status": Status.HELD,
        "text": encoded(entry.text),
        "vector": np.asarray(vector, dtype="<f4").tobytes(),
        "label": entry.label,
        "lineage": entry.lineage,
        "entry_metadata": metadata,
        "document": None if document is None else document_key(document),
        "context": None if entry.context is None else encoded(entry.context),
        "findings": json.dumps([finding_to_dict(finding) for finding in findings]),
        "note": storable("; ".join(notes)) or None,
        "held_at": now(),
        "held_by": by,
        "reviewed_at": None,
        "reviewed_by": None,
    }


def now() -> str:
    """Return the current time in the stored format."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


def unkeepable(batch: Batch) -> dict[int, str]:
    """Return the rows that :meth:`.Quarantine.hold` would refuse, each with the reason.

    Call this before entries are written: an admitted entry that cannot be held could not be
    recalled when later entries make it suspicious.

    Parameters
    ----------
    batch
        Any entries, with or without vectors.

    Returns
    -------
    dict[int, str]
        One sentence per row; names the key of the metadata and the type, never a value. Opens no
        database.

    Examples
    --------
    >>> batch = Batch.of(ids=["a", "b"], texts=["x", "y"], embeddings=None,
    ...                  metadatas=[{"page": 1}, {"page": 1j}])
    >>> list(unkeepable(batch))
    [1]
    """
    reasons = {}
    for row, metadata in enumerate(batch.metadatas):
        if not metadata_json.is_plain(metadata):
            try:
                _metadata_text(metadata)
            except QuarantineError as error:
                reasons[row] = str(error)
    return reasons


def _metadata_text(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON.

    Raises
    ------
    QuarantineError
        If a value is of a type that cannot be stored.
    """
    try:
        return metadata_json.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise QuarantineError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - values of custom classes may raise anything
        # Their message may quote the value.
        msg = f"metadata cannot be read ({type(error).__name__}); use strings, numbers or dates."
        raise QuarantineError(msg) from None


def storable(text: str) -> str:
    """Return text that any database can store: a plug-in's remark may quote hostile text."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def document_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the id of an entry's document, if the metadata has it.

    Examples
    --------
    >>> document_of({"doc_id": "manual"})
    'manual'
    """
    path = next((path for path in DOCUMENT_PATHS if path[0] in metadata), ())
    value: Any = metadata
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if path and isinstance(value, str) else None


def document_key(document: str) -> str:
    """Return a document's id in the form for storage and look-up."""
    if len(document) <= LONGEST_DOCUMENT and document.isprintable():
        return document
    return f"sha256:{hashlib.sha256(document.encode('utf-8', 'surrogatepass')).hexdigest()}"


def encoded(text: str) -> bytes:
    """Return a text as stored bytes."""
    return text.encode("utf-8", "surrogatepass")


# From rows


def decoded(data: bytes) -> str:
    """Return a text from its stored bytes."""
    return data.decode("utf-8", "surrogatepass")


def to_held(row: HeldRow) -> HeldEntry:
    """Return a row as a held entry.

    Raises
    ------
    TamperedError
        If a column cannot be read; names the entry.
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
            # Empty, with norm 0, if the entry was held without a vector.
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
    """Return findings from their stored JSON."""
    return tuple(finding_from_dict(values) for values in json.loads(written))
