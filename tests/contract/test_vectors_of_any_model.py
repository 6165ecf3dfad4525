"""Decisions about groups do not depend on a direction that a model gives to all of its vectors."""

from dataclasses import replace

import numpy as np
import pytest
from support import UNIT, passages, prose

from ragshield_core import Batch, Guard, Policy, Quarantine
from ragshield_core.detectors import CliqueDetector

KNOWN, FRESH = passages(800, 1), passages(300, 2, "fresh")
CHANGED = 0.01


def crafted(seed):
    """Return five texts for what an entry of the knowledge base answers."""
    rng = np.random.default_rng([5, seed])
    near = KNOWN.embeddings[20 * seed] + rng.normal(scale=0.2 * UNIT, size=(5, KNOWN.dim))
    return Batch.of(
        ids=[f"bad{seed}-{i}" for i in range(5)],
        texts=[prose(rng) for _ in range(5)],
        embeddings=near,
        lineages=[f"bad{seed}-{i}" for i in range(5)],
    )


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def shifted(vectors, cosine):
    """Add a direction in common, so that unrelated vectors have about this cosine."""
    common = np.full((len(vectors), 1), np.sqrt(cosine / (1.0 - cosine)))
    return unit(np.hstack([vectors, common]))


def eight_bits(vectors):
    return unit(np.round(vectors / np.abs(vectors).max() * 127.0))


WAYS = {
    "as they are": lambda vectors: vectors,
    "cosines of .85": lambda vectors: shifted(vectors, 0.85),
    "cosines of .95": lambda vectors: shifted(vectors, 0.95),
    "eight bits": eight_bits,
}


def held(way):
    """Return the ids that are held when all comes as this model would embed it."""

    def embedded(batch):
        return replace(batch, embeddings=WAYS[way](batch.embeddings))

    guard = Guard(
        [CliqueDetector()], policy=Policy(quarantine_at=0.01), quarantine=Quarantine("sqlite://")
    )
    guard.fit(embedded(KNOWN)).calibrate()
    arriving = [crafted(seed) for seed in range(30)]
    arriving += [FRESH.take(range(start, start + 50)) for start in range(0, 300, 50)]
    reports = [guard.screen(embedded(batch)) for batch in arriving]
    return {decision.entry_id for report in reports for decision in report.quarantined}


@pytest.fixture(scope="module")
def before():
    found = held("as they are")
    assert len([i for i in found if i.startswith("bad")]) >= 140
    return found


@pytest.mark.parametrize("way", [way for way in WAYS if way != "as they are"])
def test_decisions_are_the_same(way, before):
    assert len(held(way) ^ before) <= CHANGED * 450
