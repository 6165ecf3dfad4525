"""A step of an ingestion job that vouches for nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode, TransformComponent
from pydantic import PrivateAttr

from ragshield_core.model.claims import STAMP_KEY
from ragshield_core.origin import Origin, OriginKey
from ragshield_llamaindex.convert import text_of, with_unread
from ragshield_llamaindex.stable_ids import is_random


class OriginStamper(TransformComponent):
    """Stamp nodes, so that a guarded index or store knows who vouches for them.

    Put it behind the node parser and all extractors: a guard holds entries that are changed
    after they were stamped. No model reads the stamp.

    Parameters
    ----------
    key
        The key of this job or connector.
    source
        Where the nodes come from, for people; default: the name of the key.
    bind_ids
        Whether a stamp counts for the id of its node only, unless that is random: then nobody can
        put a stamped node in another's place. Put :class:`StableIds` in front, if anything.
    derived_from
        For summaries and the like: the verified origins of their inputs, see
        :meth:`ragshield_core.origin.OriginKey.stamp`.

    Examples
    --------
    >>> from llama_index.core.schema import TextNode
    >>> stamper = OriginStamper(OriginKey("wiki", secret=b"sixteen bytes or more"))
    >>> list(stamper([TextNode(id_="1", text="Open at nine.")])[0].metadata)
    ['ragshield_stamp']
    """

    _key: OriginKey = PrivateAttr()
    _bind: bool = PrivateAttr()
    _how: dict[str, Any] = PrivateAttr()

    def __init__(
        self,
        key: OriginKey,
        *,
        source: str | None = None,
        bind_ids: bool = True,
        derived_from: Sequence[Origin] | None = None,
    ) -> None:
        super().__init__()
        self._key, self._bind = key, bind_ids
        self._how = {"source": source, "derived_from": derived_from}

    @classmethod
    def class_name(cls) -> str:
        """Name of the component."""
        return "OriginStamper"

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Return copies of the nodes with stamps; raise if metadata is not fit for JSON."""
        del kwargs
        stamped = []
        for node in nodes:
            entry_id = node.node_id if self._bind and not is_random(node.node_id) else None
            stamp = self._key.stamp(text_of(node), node.metadata, entry_id=entry_id, **self._how)
            stamped.append(with_unread(node, {STAMP_KEY: stamp}))
        return stamped

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        """Return copies of the nodes with stamps."""
        return self(nodes, **kwargs)
