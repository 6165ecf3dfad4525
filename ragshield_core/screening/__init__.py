"""Screening of a batch by detectors, and their knowledge of the knowledge base."""
