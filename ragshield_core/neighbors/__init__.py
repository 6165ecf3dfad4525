"""Nearest entries: an index, passes over a whole corpus, and what detectors share."""
