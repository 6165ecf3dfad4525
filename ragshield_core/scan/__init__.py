"""The audit of a whole knowledge base: readers, the audit itself, and its command."""

from ragshield_core.scan.audit import ScanReport, scan

__all__ = ["ScanReport", "scan"]
