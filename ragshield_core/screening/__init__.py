"""Detectors at work on a batch, and what they have learned of the knowledge base."""
