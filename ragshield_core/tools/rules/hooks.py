"""Hook of the rules: it excuses findings of a guard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ragshield_core.hooks import hookimpl

if TYPE_CHECKING:
    from ragshield_core.model.entries import Batch
    from ragshield_core.model.findings import Decision
    from ragshield_core.model.policy import Policy
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.tools.rules.register import Rules

# One object per quarantine: it reads its rules again only when the database has changed.
_rules: WeakKeyDictionary[Quarantine, Rules] = WeakKeyDictionary()


@hookimpl
def excuse(
    quarantine: Quarantine, batch: Batch, decisions: Mapping[int, Decision], policy: Policy
) -> Mapping[int, Decision]:
    """Return the decisions that change by the rules of a quarantine."""
    from ragshield_core.tools.rules.register import Rules  # noqa: PLC0415 - SQLAlchemy

    if quarantine not in _rules:
        _rules[quarantine] = Rules(quarantine)
    return _rules[quarantine].excuse(batch, decisions, policy)
