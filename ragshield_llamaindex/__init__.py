"""RAGShield for LlamaIndex: stores, indexes and pipelines that keep poisoned nodes out.

Install ``ragshield[llamaindex]``, and the package of your vector store.
"""

from ragshield_core.model.errors import (
    HeldTextElsewhereWarning,
    MalformedEntriesWarning,
    PoisonFilterOrderWarning,
    PoisonGuardOrderWarning,
    SharedFolderWarning,
    SharedQuarantineWarning,
    StoreDiffersWarning,
    UnfittedGuardWarning,
)
from ragshield_llamaindex.events import PoisonDetectedEvent
from ragshield_llamaindex.files import FolderReader
from ragshield_llamaindex.index import GuardedVectorStoreIndex, adopt
from ragshield_llamaindex.inner import InnerStore, check_inner_store
from ragshield_llamaindex.memory import GuardedMemory
from ragshield_llamaindex.origin import OriginStamper
from ragshield_llamaindex.pipeline import GuardedIngestionPipeline, PipelineResult
from ragshield_llamaindex.retrieval import (
    GuardedRetriever,
    PoisonFilter,
    check_order,
)
from ragshield_llamaindex.stable_ids import StableIds
from ragshield_llamaindex.tools import NOTHING_LEFT, WITHHELD, guarded_tools
from ragshield_llamaindex.transformer import (
    PoisonGuard,
    check_transformations,
)
from ragshield_llamaindex.vectorstore import GuardedVectorStore

__all__ = [
    "NOTHING_LEFT",
    "WITHHELD",
    "FolderReader",
    "GuardedIngestionPipeline",
    "GuardedMemory",
    "GuardedRetriever",
    "GuardedVectorStore",
    "GuardedVectorStoreIndex",
    "HeldTextElsewhereWarning",
    "InnerStore",
    "MalformedEntriesWarning",
    "OriginStamper",
    "PipelineResult",
    "PoisonDetectedEvent",
    "PoisonFilter",
    "PoisonFilterOrderWarning",
    "PoisonGuard",
    "PoisonGuardOrderWarning",
    "SharedFolderWarning",
    "SharedQuarantineWarning",
    "StableIds",
    "StoreDiffersWarning",
    "UnfittedGuardWarning",
    "adopt",
    "check_inner_store",
    "check_order",
    "check_transformations",
    "guarded_tools",
]
