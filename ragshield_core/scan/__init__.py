"""The audit of a whole knowledge base: readers, the audit itself, and its command."""

from ragshield_core.scan.audit import scan
from ragshield_core.scan.knowledge_base import load
from ragshield_core.scan.partitioned.engines import Engine, LocalEngine, RayEngine
from ragshield_core.scan.partitioned.parts import Parts
from ragshield_core.scan.readers.kinds import open_source
from ragshield_core.scan.report import ScanReport

__all__ = [
    "Engine",
    "LocalEngine",
    "Parts",
    "RayEngine",
    "ScanReport",
    "load",
    "open_source",
    "scan",
]
