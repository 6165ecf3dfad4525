"""Flipped labels on a real corpus, through the guarded store, as the README promises it."""

import os
from pathlib import Path

import numpy as np
import pytest
from corpora import ROOT, load
from label_flipping import flip
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from rates import DetectionRates

from ragshield_core import Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_langchain import GuardedVectorStore


@pytest.fixture(scope="module")
def enron():
    folder = Path(os.environ.get("RAGSHIELD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir() and os.environ.get("CI") != "true":
        pytest.skip(f"no corpora at {folder}; set RAGSHIELD_DATA")
    return load("enron1_spam")


@pytest.mark.slow
def test_flipped_mails_stay_out_of_the_store_and_few_clean_ones_do(enron):
    rng = np.random.default_rng(7)
    order = rng.permutation(len(enron))
    half = len(enron) // 2
    known, (new, flipped) = enron.take(order[:half]), flip(enron.take(order[half:]), 0.1, rng)
    guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    guard.fit(known).calibrate(fpr=0.01)
    store = GuardedVectorStore(
        InMemoryVectorStore(DeterministicFakeEmbedding(size=384)), guard=guard
    )
    ids = store.add_embeddings(
        list(zip(new.texts, new.vectors, strict=True)),
        metadatas=[{"label": label} for label in new.labels],
        ids=new.ids,
    )
    assert ids == list(new.ids)
    stored = {document.id for document in store.get_by_ids(ids)}
    held = np.array([entry_id not in stored for entry_id in ids])
    assert {entry.id for entry in store.quarantine.list()} == set(ids) - stored
    rates = DetectionRates.of(flipped, held)
    assert rates.recall >= 0.7
    assert rates.fpr <= 0.015
