"""The two adapters have the same verbs; exceptions are listed here with their reasons."""

import inspect

import pytest

import ragshield_langchain
import ragshield_llamaindex

VERBS = (
    *("adopt", "scan", "release", "recall", "restore", "purge"),
    *("guard", "quarantine", "last_report", "refresh_quarantine"),
)
# Of these, a twin that does not block an event loop.
WITH_ASYNC = ("adopt", "scan", "release", "recall", "restore", "purge")
GUARDED = {
    "LangChain": ragshield_langchain.GuardedVectorStore,
    "LlamaIndex, store": ragshield_llamaindex.GuardedVectorStore,
    "LlamaIndex, index": ragshield_llamaindex.GuardedVectorStoreIndex,
}
# Names that both packages export, or one of them only.
ONLY_LANGCHAIN = {
    "FolderLoader": "FolderReader in LlamaIndex, after the names of their bases",
    "GuardedIndexingResult": "of LangChain's indexing API",
    "GuardedStore": "of the memory of LangGraph's agents",
    "MemoryOriginMiddleware": "of its agents, which write into that memory",
    "PoisonGuardMiddleware": "of its agents; guarded_tools in LlamaIndex",
    "Stored": "documents carry no vectors; nodes do",
    "aguarded_index": "of its indexing API; GuardedIngestionPipeline in LlamaIndex",
    "aingest": "of loaders and splitters; GuardedIngestionPipeline in LlamaIndex",
    "areport_detection": "LlamaIndex reports through its dispatcher: PoisonDetectedEvent",
    "guarded_index": "of its indexing API",
    "ingest": "of loaders and splitters",
    "report_detection": "LlamaIndex reports through its dispatcher",
}
ONLY_LLAMAINDEX = {
    "FolderReader": "FolderLoader in LangChain",
    "NOTHING_LEFT": "what its tools answer where no passage is left",
    "WITHHELD": "the same, of any other text",
    "GuardedIngestionPipeline": "ingest and guarded_index in LangChain",
    "GuardedMemory": "of its memories of messages; GuardedStore for LangGraph's",
    "GuardedVectorStoreIndex": "LangChain has no index beside the store",
    "HeldTextElsewhereWarning": "of its docstores",
    "PipelineResult": "of GuardedIngestionPipeline",
    "PoisonDetectedEvent": "of its dispatcher",
    "PoisonFilterOrderWarning": "of its postprocessors, which have an order",
    "PoisonGuardOrderWarning": "of its transformations, which have an order",
    "StableIds": "its splitters give random ids",
    "adopt": "of any index that exists; GuardedVectorStore.adopt in LangChain",
    "check_order": "of its postprocessors",
    "check_transformations": "of its transformations",
    "guarded_tools": "PoisonGuardMiddleware in LangChain",
}


@pytest.mark.parametrize("kind", GUARDED)
@pytest.mark.parametrize("verb", VERBS)
def test_every_guarded_class_has_every_verb(kind, verb):
    assert hasattr(GUARDED[kind], verb), f"{kind} lacks {verb}"
    if verb in WITH_ASYNC:
        assert hasattr(GUARDED[kind], f"a{verb}"), f"{kind} lacks a{verb}"


@pytest.mark.parametrize("verb", ["scan", "release", "recall", "restore", "purge"])
def test_verbs_take_the_same_parameters(verb):
    def taken(cls):
        parameters = inspect.signature(getattr(cls, verb)).parameters.values()
        return {p.name: p.default for p in parameters}

    langchain, *others = [taken(cls) for cls in GUARDED.values()]
    for other in others:
        assert other == langchain


def test_exports_match_except_for_the_listed_ones():
    langchain, llamaindex = set(ragshield_langchain.__all__), set(ragshield_llamaindex.__all__)
    assert langchain - llamaindex == set(ONLY_LANGCHAIN)
    assert llamaindex - langchain == set(ONLY_LLAMAINDEX)
