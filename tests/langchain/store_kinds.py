"""Kinds of stores for tests of every kind: the fast suite takes two, the whole suite all."""

from unittest.mock import patch

from support import CountingEmbeddings, slowly

SLOW = ("faiss", "qdrant", "postgres", "pgvectorstore", "milvus", "lancedb")
KINDS = ["memory", "chroma", *slowly(*SLOW)]


def hybrid(mode="hybrid"):
    """Return a store of Qdrant that searches for words as well."""
    from langchain_qdrant import QdrantVectorStore, RetrievalMode, SparseVector  # noqa: PLC0415
    from langchain_qdrant.sparse_embeddings import SparseEmbeddings  # noqa: PLC0415

    class Words(SparseEmbeddings):
        def embed_query(self, text):
            return SparseVector(indices=[len(text), 100 + int(text[-1])], values=[1.0, 0.5])

        def embed_documents(self, texts):
            return [self.embed_query(text) for text in texts]

    return QdrantVectorStore.construct_instance(
        CountingEmbeddings(),
        sparse_embedding=Words(),
        retrieval_mode=RetrievalMode(mode),
        vector_name="dense",
        client_options={"location": ":memory:"},
    )


def scan_in_place(store):
    """Hold the findings of an audit as if the inner store could not delete; return the report."""
    with patch.object(store._keeper, "delete_entries", side_effect=NotImplementedError):
        return store.scan(quarantine=True)
