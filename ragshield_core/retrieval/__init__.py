"""Guarding what is retrieved: a set of passages and the query that found them."""

from ragshield_core.retrieval.guard import RETRIEVAL_KINDS, RetrievalGuard, screen_retrieved

__all__ = ["RETRIEVAL_KINDS", "RetrievalGuard", "screen_retrieved"]
