"""RAGShield for LangChain: keeps poison out of stores, indexes, retrievers and agents."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes
from ragshield_core.model.errors import (
    MalformedEntriesWarning,
    SharedFolderWarning,
    SharedQuarantineWarning,
    StoreDiffersWarning,
    UnfittedGuardWarning,
)

if TYPE_CHECKING:
    from ragshield_langchain.events import areport_detection, report_detection
    from ragshield_langchain.files import FolderLoader
    from ragshield_langchain.indexing import GuardedIndexingResult, aguarded_index, guarded_index
    from ragshield_langchain.ingestion import aingest, ingest
    from ragshield_langchain.inner import InnerStore, Stored, check_inner_store
    from ragshield_langchain.memory import GuardedStore
    from ragshield_langchain.memory_origin import MemoryOriginMiddleware
    from ragshield_langchain.middleware import PoisonGuardMiddleware
    from ragshield_langchain.origin import OriginStamper
    from ragshield_langchain.retrieval import GuardedRetriever, PoisonFilter
    from ragshield_langchain.transformer import PoisonGuard
    from ragshield_langchain.vectorstore import GuardedVectorStore

__all__ = [
    "FolderLoader",
    "GuardedIndexingResult",
    "GuardedRetriever",
    "GuardedStore",
    "GuardedVectorStore",
    "InnerStore",
    "MalformedEntriesWarning",
    "MemoryOriginMiddleware",
    "OriginStamper",
    "PoisonFilter",
    "PoisonGuard",
    "PoisonGuardMiddleware",
    "SharedFolderWarning",
    "SharedQuarantineWarning",
    "StoreDiffersWarning",
    "Stored",
    "UnfittedGuardWarning",
    "aguarded_index",
    "aingest",
    "areport_detection",
    "check_inner_store",
    "guarded_index",
    "ingest",
    "report_detection",
]

# Module of each name. Agents and their memory are extras; a command's help needs none of them.
_HOMES = {
    **dict.fromkeys(("areport_detection", "report_detection"), "events"),
    "FolderLoader": "files",
    **dict.fromkeys(("GuardedIndexingResult", "aguarded_index", "guarded_index"), "indexing"),
    **dict.fromkeys(("aingest", "ingest"), "ingestion"),
    **dict.fromkeys(("InnerStore", "Stored", "check_inner_store"), "inner"),
    "GuardedStore": "memory",
    "MemoryOriginMiddleware": "memory_origin",
    "PoisonGuardMiddleware": "middleware",
    "OriginStamper": "origin",
    **dict.fromkeys(("GuardedRetriever", "PoisonFilter"), "retrieval"),
    "PoisonGuard": "transformer",
    "GuardedVectorStore": "vectorstore",
}

__getattr__ = attributes(__name__, _HOMES)
