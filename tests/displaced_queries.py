"""A knowledge base, known queries near its entries, and groups that would displace them."""

import numpy as np
from support import PASSAGE_DIM, UNIT, passages, prose

from ragshield_core import Batch
from ragshield_core.detectors.question.canary_displacement import CanaryDisplacementDetector

RNG = np.random.default_rng(5)
KNOWN, CLEAN = passages(600, seed=1), passages(60, seed=2, prefix="new")
VECTORS = KNOWN.embeddings[RNG.choice(600, 30, replace=False)] + RNG.normal(
    scale=0.7 * UNIT, size=(30, PASSAGE_DIM)
)
QUERIES = [f"where is {prose(RNG, 4)} kept" for _ in VECTORS]


def make(k=6):
    """Return the detector of these queries."""
    return CanaryDisplacementDetector(QUERIES, VECTORS, k=k)


def crafted(n_targets=4, size=5):
    """Return groups of entries, each near one of the queries."""
    rng = np.random.default_rng(6)
    targets = VECTORS[:n_targets] / np.linalg.norm(VECTORS[:n_targets], axis=1, keepdims=True)
    vectors = np.repeat(targets, size, axis=0)
    return Batch.of(
        ids=[f"bad-{row}" for row in range(len(vectors))],
        texts=[prose(rng) for _ in vectors],
        embeddings=vectors + rng.normal(scale=0.25 * UNIT, size=vectors.shape),
    )
