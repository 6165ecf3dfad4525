"""Nearest entries: an index, passes over a whole corpus, and a search that detectors share."""
