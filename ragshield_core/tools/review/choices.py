"""Choices of people, on pages and in commands: decisions on held entries, orders of cases."""

from __future__ import annotations

from enum import StrEnum

from ragshield_core.quarantine.status import Status


class Action(StrEnum):
    """A decision about held entries, or the reopening of decided ones.

    Values are the log's names of actions.
    """

    RELEASE = "release"
    CONFIRM = "confirm"
    KEEP = "keep"
    REOPEN = "reopen"

    @property
    def of(self) -> tuple[Status, ...]:
        """Statuses of the entries that it applies to."""
        return (Status.RELEASED, Status.CONFIRMED) if self is Action.REOPEN else (Status.HELD,)


class CaseOrder(StrEnum):
    """Order of cases."""

    SEVERITY = "severity"  # the worst effect, then the rarest finding, then the most waiting
    AGE = "age"  # the oldest first
    SIZE = "size"  # the most waiting entries first
