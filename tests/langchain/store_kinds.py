"""Kinds of stores for tests of every kind: the fast suite takes two, the whole suite all."""

from support import slowly

KINDS = ["memory", "chroma", *slowly("faiss", "qdrant", "postgres", "pgvectorstore")]
