"""A small corpus and its model, for tests of evaluations."""

import re
import zlib
from functools import cache

import numpy as np

from ragshield_core import Batch
from ragshield_core.tools.evaluate import evaluate
from ragshield_core.tools.evaluate.attacks import BY_NAME, Target
from ragshield_core.tools.evaluate.help_desk import help_desk

TARGET = Target(
    question="how long does a refund take?",
    wrong_answer="Ada Quill",
    answer="five days",
    carriers=("One sentence. Another one.", "A third. And a fourth."),
)
HOSTILE = '<script>alert(1)</script>\x1b[31m\u202e"'


@cache
def direction(seed):
    return np.random.default_rng(seed).normal(size=48)


def embed(texts):
    """Return bags of words, each word in its own random direction."""
    rows = []
    for text in texts:
        seeds = [zlib.crc32(word.encode()) for word in re.findall(r"\w+", text.lower())]
        rows.append(np.sum([direction(seed) for seed in seeds or [0]], axis=0))
    return np.array(rows, dtype=np.float32)


def corpus(texts=None, lineages=None):
    texts = [row["text"] for row in help_desk()] if texts is None else texts
    return Batch.of(
        ids=[f"e{i}" for i in range(len(texts))],
        texts=texts,
        embeddings=embed(texts),
        lineages=lineages,
    )


def small(**settings):
    chosen = ("PoisonedRAG, question in front", "hidden instructions", "clones")
    attacks = [*(BY_NAME[name] for name in chosen), BY_NAME["instructions"].at("blended")]
    options = {"attacks": attacks, "n_targets": 3, "stream": 60}
    return evaluate(corpus(), embed, fpr=0.1, **options | settings)
