"""What goes wrong with canaries."""

from __future__ import annotations

from ragshield_core.errors import RAGShieldError


class CanaryError(RAGShieldError, ValueError):
    """A suite, a baseline or a retriever cannot be used as given; the message names it."""


class EmbedderChangedError(CanaryError):
    """The embedder, or k, is not that of the baseline: a comparison would show drift everywhere."""
