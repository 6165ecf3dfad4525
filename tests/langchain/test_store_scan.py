"""The audit of a live guarded store: found, taken out, and put back."""

from unittest.mock import patch

import faiss
import numpy as np
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.vectorstores import InMemoryVectorStore
from support import DIM, LENGTH, CountingEmbeddings, Scripted, saved, slowly

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import Evidence, LabelCentroidDetector
from ragshield_core.detectors.base import Audits
from ragshield_langchain import GuardedVectorStore
from ragshield_langchain.inner import access_to


class AtAudit(Scripted, Audits):
    """Finds nothing at ingestion; an audit reads scores out of texts."""

    name = "at_audit"

    def __init__(self, name="at_audit"):
        super().__init__(name)

    def score(self, batch):
        return np.full(len(batch), -1.0)

    def audit(self, entries, seed=0):  # noqa: ARG002
        self.learned = -999
        return super().score(entries)

    def audit_threshold(self, fpr):  # noqa: ARG002
        return 0.0

    def explain_audit(self, entries, rows):
        return [Evidence(sentence=f"{entries.ids[row]} says so") for row in rows]


def empty(cls):
    if cls is FAISS:
        index = faiss.IndexFlatL2(DIM)
        return FAISS(CountingEmbeddings(), index, InMemoryDocstore(), {})
    return cls(CountingEmbeddings())


TEXTS = [f"billing {i}" for i in range(120)] + ["shipping score=3", "shipping score=5"]
IDS = [f"e{i}" for i in range(122)]


@pytest.fixture(params=[InMemoryVectorStore, *slowly(FAISS)])
def store(request, on_file):
    guard = Guard([AtAudit()], quarantine=Quarantine(on_file))
    guarded = GuardedVectorStore(empty(request.param), guard=guard)
    metadatas = [{"label": "l", "source": f"doc{i}", "page": i} for i in range(len(TEXTS))]
    guarded.add_texts(TEXTS, metadatas, ids=IDS)
    guarded.embeddings.calls.clear()
    return guarded


def found(report):
    return [decision.entry_id for decision in report.found]


def live(store):
    return sorted(access_to(store.inner).ids())


def test_scan_reads_stored_entries_and_changes_nothing(store, tmp_path):
    before = saved(store.guard, tmp_path / "before")
    report = store.scan()
    assert found(report) == ["e121", "e120"]
    assert report.batch.ids == tuple(IDS)
    assert report.batch.texts == tuple(TEXTS)
    assert report.batch.labels[7] == "l"
    assert report.batch.lineages[7] == "doc7"
    np.testing.assert_allclose(np.linalg.norm(report.batch.vectors, axis=1), LENGTH, rtol=1e-5)
    assert live(store) == sorted(IDS)
    assert store.quarantine.count() == 0
    assert saved(store.guard, tmp_path / "after") == before
    assert store.embeddings.calls == []


def test_with_quarantine_findings_leave_the_store_and_release_restores_them(store):
    document = store.get_by_ids(["e121"])[0]
    report = store.scan(quarantine=True)
    assert found(report) == ["e121", "e120"]
    assert live(store) == sorted(IDS[:120])
    assert store.quarantine.held_ids(IDS) == {"e120", "e121"}
    held = store.quarantine.show("e121")
    assert held.findings[0].evidence == "e121 says so"
    assert held.held_by == "scan"
    assert store.guard.writes.known(IDS) == IDS[:120]
    assert all(d.id not in {"e120", "e121"} for d in store.similarity_search("shipping", k=122))

    store.release(["e121"])
    assert store.get_by_ids(["e121"]) == [document]
    assert store.guard.writes.known(["e121"]) == ["e121"]
    assert store.embeddings.texts == []  # nothing was embedded a second time
    again = store.scan(quarantine=True)  # entries that a person released stay
    assert found(again) == []
    assert again.decisions[-1].note == "released by a person before"
    assert "e121" in live(store)


def test_entries_changed_during_the_audit_are_left_alone(store):
    audit = AtAudit.audit

    def meanwhile(self, entries, seed=0):
        store.add_texts(["billing anew"], ids=["e120"])
        store.delete(["e121"])
        return audit(self, entries, seed)

    with patch.object(AtAudit, "audit", meanwhile):
        report = store.scan(quarantine=True)
    assert found(report) == []
    assert store.get_by_ids(["e120"])[0].page_content == "billing anew"
    assert store.quarantine.count() == 0
    notes = {decision.note for decision in report.decisions[-2:]}
    assert notes == {"changed or deleted while it was audited"}


def test_an_empty_store_has_nothing_to_find():
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    for cls in (InMemoryVectorStore, FAISS):
        report = GuardedVectorStore(empty(cls), guard=guard).scan(quarantine=True)
        assert len(report.batch) == 0
        assert report.found == ()
