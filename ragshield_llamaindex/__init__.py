"""RAGShield for LlamaIndex; see the roadmap in the README."""
