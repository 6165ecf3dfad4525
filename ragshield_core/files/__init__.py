"""Documents in files: their text, where it stands, and what in it people do not see.

Audits and the loaders of both frameworks read files through here.
"""
