"""Entries on topics, each of which has words of its own, and campaigns on some of them."""

import numpy as np

from ragshield_core import Batch

DIM, TOPICS = 32, 60
CENTRES = np.random.default_rng(99).normal(size=(TOPICS, DIM))


def on_topics(rng, topics, vectors, prefix, claims=None):
    """Return entries in words of their topics, with claims if any."""
    texts = [
        " ".join([f"t{topic}word{w}" for w in rng.integers(12, size=8)])
        + (f" {claims[row]} " if claims else " ")
        + " ".join(f"any{w}" for w in rng.integers(3_000, size=10))
        for row, topic in enumerate(topics)
    ]
    ids = [f"{prefix}-{i}" for i in range(len(texts))]
    return Batch.of(ids=ids, texts=texts, embeddings=vectors)


def clean(n, seed, prefix="kb"):
    """Return entries on topics, in random order."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(TOPICS, size=n)
    return on_topics(rng, topics, CENTRES[topics] + 0.6 * rng.normal(size=(n, DIM)), prefix)
