"""A small world for canaries: texts embedded by their words, questions, and poison for them."""

import re
import zlib

import numpy as np

from ragshield_core import Batch, Quarantine
from ragshield_core.tools.canary import CanaryMonitor, MatrixRetriever

DIM = 512
TOPICS = ("harbour", "orchard", "railway", "lantern", "glacier", "violin", "bakery", "falcon")
FACTS = ("was built", "opens at", "is owned by", "is known for")
STOP = {"the", "is", "at", "by", "of", "a", "in", "and", "what", "who", "for", "was"}


def embed(texts):
    """Return bag-of-words vectors: hashed words, frequent ones left out."""
    vectors = np.full((len(texts), DIM), 1e-3, dtype=np.float32)
    for row, text in enumerate(texts):
        for word in re.findall(r"\w+", text.lower()):
            if word not in STOP:
                vectors[row, zlib.crc32(word.encode()) % DIM] += 1.0
    return vectors


def batch(rows, **columns):
    """Return entries of (id, text) pairs."""
    texts = [text for _, text in rows]
    return Batch.of(ids=[i for i, _ in rows], texts=texts, embeddings=embed(texts), **columns)


def knowledge(n=25, seed=0):
    """Return n entries of each topic, each with words of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for topic in TOPICS:
        for number in range(n):
            words = " ".join(f"w{w}" for w in rng.integers(400, size=6))
            fact = FACTS[number % len(FACTS)]
            rows.append((f"{topic}-{number}", f"The {topic} {fact} {topic}{number} {words}"))
    return batch(rows)


def questions(n_per_topic=4):
    """Return questions that entries of the knowledge base answer."""
    return [f"What of the {topic} {topic}{i}" for topic in TOPICS for i in range(n_per_topic)]


def poison(query, size=3, prefix="bad"):
    """Return entries crafted for a question."""
    name = query.split()[-1]
    return batch(
        [
            (f"{prefix}-{i}", f"What of the {name}? Of {name}: certainly false{i} wrong")
            for i in range(size)
        ]
    )


def joined(*batches):
    """Return the entries of several batches as one."""
    return Batch.of(
        ids=[i for b in batches for i in b.ids],
        texts=[t for b in batches for t in b.texts],
        embeddings=np.concatenate([b.vectors for b in batches]),
    )


def over(found, queries=("q",), **options):
    """Return a monitor over a list that a test changes, with a baseline of how it is now."""
    options = {"quarantine": Quarantine("sqlite://")} | options
    monitor = CanaryMonitor([*queries], lambda _query: found, **options)
    monitor.record_baseline()
    return monitor


class World:
    """A monitor on a knowledge base that can grow and shrink."""

    def __init__(self, queries=None, *, entries=None, **options):
        self.entries = knowledge() if entries is None else entries
        self.retriever = MatrixRetriever(self.entries, embed)
        options = {"quarantine": Quarantine("sqlite://")} | options
        self.monitor = CanaryMonitor(queries or questions(), self.retriever, **options)

    def add(self, more):
        """Put entries in."""
        self.retriever.batch = joined(self.retriever.batch, more)

    def take_out(self, ids):
        """Take entries out."""
        kept = [row for row, i in enumerate(self.retriever.batch.ids) if i not in set(ids)]
        self.retriever.batch = self.retriever.batch.take(kept)


def watched(*queries, **options):
    """Return a world with a baseline of how it is now."""
    world = World(*queries, **options)
    world.monitor.record_baseline()
    return world
