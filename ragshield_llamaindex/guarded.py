"""What a guarded store and a guarded index have in common beside what people decide."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Self

from llama_index.core.base.embeddings.base import BaseEmbedding

from ragshield_core import Report
from ragshield_core.store import guarded
from ragshield_llamaindex.held_nodes import Embed, embedding_with
from ragshield_llamaindex.keeper import NodeKeeper


class Guarded(guarded.Guarded):
    """A keeper of nodes, which awaits the store's own async methods."""

    _keeper: NodeKeeper

    @property
    def last_report(self) -> Report:
        """What was decided at the latest write."""
        return self._keeper.last_report

    @classmethod
    async def aadopt(cls, inner: Any, **options: Any) -> Self:
        """Do as ``adopt`` does, in a thread."""
        return await asyncio.to_thread(partial(cls.adopt, inner, **options))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        # Of counts and kinds only: it ends up in logs.
        guard, kind = self.guard, type(self._keeper.access.inner).__name__
        return (
            f"<{type(self).__name__} over {kind}: {len(guard.detectors)} detectors, "
            f"{guard.n_known} entries known, "
            f"{'calibrated' if guard.calibrated else 'not calibrated'}; {self.quarantine!r}>"
        )

    def __str__(self) -> str:
        return repr(self)

    def _embedder(self, model: BaseEmbedding | None) -> Embed | None:
        """Return how nodes get vectors, if there is a model."""
        return None if model is None else embedding_with(model)
