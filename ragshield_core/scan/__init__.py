"""The audit of a whole knowledge base: readers, the audit itself, and its command."""

from ragshield_core.scan.audit import scan
from ragshield_core.scan.knowledge_base import load
from ragshield_core.scan.readers.kinds import open_source
from ragshield_core.scan.report import ScanReport

__all__ = ["ScanReport", "load", "open_source", "scan"]
