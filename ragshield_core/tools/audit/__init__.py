"""The audit of a whole knowledge base: readers, the audit itself, and its command."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.tools.audit.audit import scan
    from ragshield_core.tools.audit.knowledge_base import load
    from ragshield_core.tools.audit.partitioned.engines import Engine, RayEngine
    from ragshield_core.tools.audit.partitioned.plan import Parts
    from ragshield_core.tools.audit.readers.kinds import open_source
    from ragshield_core.tools.audit.report import ScanReport

__all__ = [
    "Engine",
    "Parts",
    "RayEngine",
    "ScanReport",
    "load",
    "open_source",
    "scan",
]

# A guard imports the hooks of this package, and need not import the audit.
_HOMES = {
    **dict.fromkeys(("Engine", "RayEngine"), "partitioned.engines"),
    "Parts": "partitioned.plan",
    "ScanReport": "report",
    "load": "knowledge_base",
    "open_source": "readers.kinds",
    "scan": "audit",
}

__getattr__ = attributes(__name__, _HOMES)
