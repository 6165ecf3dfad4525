"""Thresholds: taken from clean entries, and taken anew while the knowledge base grows."""
