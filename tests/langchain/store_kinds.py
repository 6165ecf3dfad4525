"""Kinds of stores for tests of every kind: the fast suite takes two, the whole suite all."""

from unittest.mock import patch

from support import slowly

KINDS = ["memory", "chroma", *slowly("faiss", "qdrant", "postgres", "pgvectorstore")]


def scan_in_place(store):
    """Hold what an audit finds, as if the store inside could not delete; return the report."""
    with patch.object(store._keeper, "delete_entries", side_effect=NotImplementedError):
        return store.scan(quarantine=True)
