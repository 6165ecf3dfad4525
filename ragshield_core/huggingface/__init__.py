"""Models of sentence-transformers and transformers, loaded on demand."""
