"""Revisions in quarantine: their columns, and which of them a namespace or store sees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from ragshield_core.database import chunks
from ragshield_core.database.tables import ANY_STORE, CaseRow, HeldRow
from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import Decision, finding_to_dict, printable
from ragshield_core.quarantine import metadata_json
from ragshield_core.quarantine.changes import now
from ragshield_core.quarantine.documents import document_key, document_of
from ragshield_core.quarantine.entries import SHOWN_ID, Status
from ragshield_core.quarantine.rows import encoded


class Scope(Protocol):
    """A namespace of a database, and perhaps one store in it."""

    namespace: str
    store: str | None


def seen_by(scope: Scope, kind: type[HeldRow | CaseRow] = HeldRow) -> list[ColumnElement[bool]]:
    """Return the conditions on rows of a scope: of its namespace, and of its store or of any."""
    conditions = [kind.namespace == scope.namespace]
    if scope.store is not None:
        conditions.append(kind.store.in_((scope.store, ANY_STORE)))
    return conditions


def revisions(
    session: Session, scope: Scope, ids: Sequence[str], status: Status | None = None
) -> dict[str, list[HeldRow]]:
    """Return the revisions under each id, oldest first; ``status`` leaves out all others."""
    if isinstance(ids, str):
        msg = f"ids is one str, expected a list: [{printable(ids, SHOWN_ID)!r}]."
        raise TypeError(msg)
    found: dict[str, list[HeldRow]] = {}
    query = select(HeldRow).where(*seen_by(scope)).order_by(HeldRow.number)
    for some in chunks(ids):
        for row in session.scalars(query.where(HeldRow.entry_id.in_(some))):
            # Compared here: SQLite would rather read all rows of a status than look these ids up
            # (9 ms against .3 ms with 20,000 held).
            if status is None or row.status == status:
                found.setdefault(row.entry_id, []).append(row)
    return found


def check_one_store(scope: Scope, rows: Sequence[HeldRow]) -> None:
    """Refuse to decide about one id for two stores: the texts need not be the same."""
    names = sorted({row.store for row in rows} - {ANY_STORE})
    if len(names) > 1:
        msg = (
            f"entry {printable(rows[0].entry_id, SHOWN_ID)!r} of {scope!r} is of several stores "
            f"({', '.join(repr(printable(name, SHOWN_ID)) for name in names)}), nothing was "
            "done; name one: Quarantine.for_store(name), or --store."
        )
        raise QuarantineError(msg)


def columns_of(
    scope: Scope, entry: Entry, vector: Any, decision: Decision | None, by: str
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
        "namespace": scope.namespace,
        "store": ANY_STORE if scope.store is None else scope.store,
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


def unkeepable(batch: Batch) -> dict[int, str]:
    """Return the rows that :meth:`.Quarantine.hold` would refuse, each with the reason.

    Ask before entries are written: one that is admitted and cannot be held later, when others
    show it in another light, could not be recalled.

    Parameters
    ----------
    batch
        Any entries, with or without vectors.

    Returns
    -------
    dict[int, str]
        One sentence per row; names the key of the metadata and the type, never a value. No
        database is opened for it.

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
    except Exception as error:  # noqa: BLE001 - values of classes of their own may do anything
        # What they say may quote them.
        msg = f"metadata cannot be read ({type(error).__name__}); use strings, numbers or dates."
        raise QuarantineError(msg) from None


def storable(text: str) -> str:
    """Return text that any database keeps: a plug-in's remark may quote hostile text."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
