"""A step of an ingestion job that vouches for documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import BaseDocumentTransformer, Document

from ragshield_core.model.claims import STAMP_KEY
from ragshield_core.origin import Origin, OriginKey
from ragshield_langchain.convert import copied


class OriginStamper(BaseDocumentTransformer):
    """Stamp documents, so that a guarded store knows who vouches for them.

    Put it last, after the splitter: a guard holds entries that are changed after they were
    stamped.

    Parameters
    ----------
    key
        The key of this job or connector.
    source
        Where the documents come from, for people; default: the name of the key.
    bind_ids
        Whether a stamp counts for the id of its document only, if it has one: then nobody can put
        a stamped document in another's place. LangChain's ``index`` gives documents new ids: pass
        False there.
    derived_from
        For summaries and the like: the verified origins of their inputs, see
        :meth:`ragshield_core.origin.OriginKey.stamp`.

    Examples
    --------
    >>> stamper = OriginStamper(OriginKey("wiki", secret=b"sixteen bytes or more"))
    >>> stamped = stamper.transform_documents([Document(id="1", page_content="Open at nine.")])
    >>> list(stamped[0].metadata)
    ['ragshield_stamp']
    """

    def __init__(
        self,
        key: OriginKey,
        *,
        source: str | None = None,
        bind_ids: bool = True,
        derived_from: Sequence[Origin] | None = None,
    ) -> None:
        self._key, self._bind = key, bind_ids
        self._how: dict[str, Any] = {"source": source, "derived_from": derived_from}

    def transform_documents(
        self,
        documents: Sequence[Document],
        **kwargs: Any,  # noqa: ARG002 - of the interface
    ) -> Sequence[Document]:
        """Return copies of the documents with stamps; raise if metadata is not fit for JSON."""
        stamped = []
        for one in documents:
            metadata = copied(one.metadata)
            entry_id = one.id if self._bind else None
            stamp = self._key.stamp(one.page_content, metadata, entry_id=entry_id, **self._how)
            stamped.append(one.model_copy(update={"metadata": {**metadata, STAMP_KEY: stamp}}))
        return stamped

    async def atransform_documents(
        self, documents: Sequence[Document], **kwargs: Any
    ) -> Sequence[Document]:
        """Do as :meth:`transform_documents` does."""
        return self.transform_documents(documents, **kwargs)
