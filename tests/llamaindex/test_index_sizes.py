"""Canaries know how many entries indexes hold, and see them taken over as a whole."""

import pytest
from canary_llama import LlamaWords
from canary_world import knowledge, poison, questions
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_support import KINDS
from support import DIM

from ragshield_core import Quarantine
from ragshield_core.tools.canary import CanaryMonitor
from ragshield_core.tools.canary.interfaces import as_knowledge_base

IDS = [f"0d706099-6dd9-412a-9df6-a71043e020d{n}" for n in range(3)]


def nodes(batch):
    return [TextNode(id_=entry.id, text=entry.text) for entry in batch]


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_an_index_is_known(kind, make_store, model):
    context = StorageContext.from_defaults(vector_store=make_store(kind, DIM))
    some = [TextNode(id_=i, text=f"billing {n}") for n, i in enumerate(IDS)]
    index = VectorStoreIndex(some, storage_context=context, embed_model=model)
    assert as_knowledge_base(index).size() == 3
    assert as_knowledge_base(index.as_retriever()).size() == 3
    index.insert_nodes([TextNode(text="delivery")])
    assert as_knowledge_base(index).size() == 4


@pytest.mark.parametrize("size", [3, 5])
def test_an_index_whose_canaries_are_all_attacked_is_flagged(size):
    index = VectorStoreIndex(nodes(knowledge()), embed_model=LlamaWords())
    asked = questions()[::3]
    monitor = CanaryMonitor(asked, index, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    for number, query in enumerate(asked):
        index.insert_nodes(nodes(poison(query, size, prefix=f"bad{number}")))
    report = monitor.check()
    assert {drift.query for drift in report.flagged} == set(asked)
    added = size * len(asked)
    assert report.growth == pytest.approx(added / (200 + added))
