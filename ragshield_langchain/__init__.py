"""RAGShield for LangChain: a vector store that keeps poisoned documents out."""

from ragshield_langchain.inner import InnerStore
from ragshield_langchain.vectorstore import GuardedVectorStore

__all__ = ["GuardedVectorStore", "InnerStore"]
