"""Readers of documents in files: their text, its places, and text that people do not see.

Audits and the loaders of both frameworks read files with this package.
"""
