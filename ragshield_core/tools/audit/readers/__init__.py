"""Knowledge bases in files and folders, a module for each format."""

from ragshield_core.tools.audit.readers.kinds import open_source, read_ids
from ragshield_core.tools.audit.readers.source import Columns, Rows, Source, Vectors

__all__ = ["Columns", "Rows", "Source", "Vectors", "open_source", "read_ids"]
