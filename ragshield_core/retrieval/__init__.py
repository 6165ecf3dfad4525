"""Guarding what is retrieved: a set of passages and the query that found them."""

from ragshield_core.retrieval.guard import RetrievalGuard, screen_retrieved

__all__ = ["RetrievalGuard", "screen_retrieved"]
