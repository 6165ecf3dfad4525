"""A knowledge base, queries about its entries that share a form, and entries near to that form."""

import numpy as np
from support import PASSAGE_DIM, passages, prose

from ragshield_core import Batch
from ragshield_core.detectors import HubDetector

RNG = np.random.default_rng(5)
KNOWN, CLEAN = passages(600, seed=1), passages(60, seed=2, prefix="new")
# Questions are alike in their form, and passages do not have it.
FORM = RNG.normal(size=PASSAGE_DIM)
FORM /= np.linalg.norm(FORM)
ASKED = KNOWN.embeddings[RNG.choice(600, 200, replace=False)]
VECTORS = ASKED + 0.8 * FORM
QUERIES = [f"where is {prose(RNG, 4)} kept" for _ in VECTORS]


def make(k=10):
    """Return the detector of these queries."""
    return HubDetector(QUERIES, VECTORS, k=k)


def planted(n=4):
    """Return entries near to the form of all questions."""
    rng = np.random.default_rng(6)
    vectors = FORM + rng.normal(scale=0.2 / np.sqrt(PASSAGE_DIM), size=(n, PASSAGE_DIM))
    return Batch.of(
        ids=[f"bad-{row}" for row in range(n)],
        texts=[prose(rng) for _ in vectors],
        embeddings=vectors,
    )
