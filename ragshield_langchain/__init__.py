"""RAGShield for LangChain: keeps poison out of stores, indexes, retrievers and agents."""

from typing import TYPE_CHECKING, Any

from ragshield_core.model.errors import (
    MalformedEntriesWarning,
    SharedFolderWarning,
    SharedQuarantineWarning,
    StoreDiffersWarning,
    UnfittedGuardWarning,
)
from ragshield_langchain.events import areport_detection, report_detection
from ragshield_langchain.files import FolderLoader
from ragshield_langchain.indexing import (
    GuardedIndexingResult,
    aguarded_index,
    guarded_index,
)
from ragshield_langchain.ingest import aingest, ingest
from ragshield_langchain.inner import InnerStore, Stored, check_inner_store
from ragshield_langchain.origin import OriginStamper
from ragshield_langchain.retrieval import GuardedRetriever, PoisonFilter
from ragshield_langchain.transformer import PoisonGuard
from ragshield_langchain.vectorstore import GuardedVectorStore

if TYPE_CHECKING:
    from ragshield_langchain.memory import GuardedStore
    from ragshield_langchain.middleware import PoisonGuardMiddleware

__all__ = [
    "FolderLoader",
    "GuardedIndexingResult",
    "GuardedRetriever",
    "GuardedStore",
    "GuardedVectorStore",
    "InnerStore",
    "MalformedEntriesWarning",
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


def __getattr__(name: str) -> Any:
    # Agents and their memory are extras: without them, everything else works.
    if name == "PoisonGuardMiddleware":
        from ragshield_langchain.middleware import PoisonGuardMiddleware  # noqa: PLC0415

        return PoisonGuardMiddleware
    if name == "GuardedStore":
        from ragshield_langchain.memory import GuardedStore  # noqa: PLC0415

        return GuardedStore
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
