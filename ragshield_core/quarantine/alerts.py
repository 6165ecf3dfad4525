"""Number of open alerts about contradictions, which every status names."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ragshield_core.database.tables import ContradictionRow


def n_open_alerts(session: Session, namespace: str) -> int:
    """Return the number of alerts of a namespace that nobody has closed."""
    query = select(func.count()).where(
        ContradictionRow.namespace == namespace, ContradictionRow.closed_at.is_(None)
    )
    return int(session.scalar(query) or 0)
