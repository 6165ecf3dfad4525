"""Models of sentence-transformers and transformers, loaded when asked for."""
