"""Hook that gives guarded stores the method ``scan()``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragshield_core.hooks import hookimpl

if TYPE_CHECKING:
    from ragshield_core.detectors.base import Detector
    from ragshield_core.model.entries import Batch
    from ragshield_core.tools.audit.report import ScanReport


@hookimpl
def scan(batch: Batch, detectors: Sequence[Detector], options: Mapping[str, Any]) -> ScanReport:
    """Judge every entry of a knowledge base against the others."""
    from ragshield_core.tools import audit  # noqa: PLC0415 - only when asked for

    return audit.scan(batch, detectors, **options)
