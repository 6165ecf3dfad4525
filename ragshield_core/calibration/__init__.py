"""Thresholds from clean entries, updated while the knowledge base grows."""
