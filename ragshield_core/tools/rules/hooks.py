"""What rules add to a guard: findings that they excuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ragshield_core.hooks import Quiet, hookimpl

if TYPE_CHECKING:
    from ragshield_core.entries import Batch
    from ragshield_core.findings import Decision
    from ragshield_core.policy import Policy
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.tools.rules.excusing import Excusing

# Rules that are in force are read again only when the database has changed.
_excusing: WeakKeyDictionary[Quarantine, Excusing] = WeakKeyDictionary()


@hookimpl
def excuse(
    quarantine: Quarantine,
    batch: Batch,
    decisions: Mapping[int, Decision],
    policy: Policy,
    quiet: Quiet,
) -> Mapping[int, Decision]:
    """Return decisions by the rules of a quarantine."""
    from ragshield_core.tools.rules.excusing import Excusing  # noqa: PLC0415 - SQLAlchemy

    if quarantine not in _excusing:
        _excusing[quarantine] = Excusing(quarantine)
    return _excusing[quarantine].decisions(batch, decisions, policy, quiet)
