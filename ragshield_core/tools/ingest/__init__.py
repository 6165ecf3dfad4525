"""``ragshield ingest``: write parquet files into a guarded store, in any number of processes."""

from ragshield_core.tools.ingest.ingest import Ingested, ingest

__all__ = ["Ingested", "ingest"]
