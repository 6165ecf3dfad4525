"""Notices: ids, counts and names of detectors, never a text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Kind of a notice."""

    GROUP_HELD = "group_held"  # a case has as many waiting entries as somebody wants to hear of
    QUEUE_LONG = "queue_long"  # more entries wait than somebody wants to
    SOURCE_ASKED = "source_asked"  # a new source or a mass attack: a person has to decide
    DETECTOR_FAILING = "detector_failing"
    CANARY_DRIFTED = "canary_drifted"
    LOG_BROKEN = "log_broken"  # the log of a quarantine, or its entries, were changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A notice to people.

    Attributes
    ----------
    id
        The same in every process that tells of the same, so that a receiver can drop doubles.
    kind
        What has happened.
    namespace, store
        Where; a store of ``None`` for none in particular.
    at
        When it was noticed, UTC.
    data
        JSON-ready: ids, counts, names of detectors.
    """

    id: str
    kind: Kind
    namespace: str
    store: str | None = None
    at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {
            "type": f"ragshield.{self.kind}",
            "timestamp": self.at.isoformat(),
            "data": {
                "id": self.id,
                "namespace": self.namespace,
                "store": self.store,
                **self.data,
            },
        }
