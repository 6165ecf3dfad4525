"""Rules about sources, made by people: listed, scoped, expiring, and never learned.

A rule excuses findings of detectors on entries of one source. A person makes or revokes it, with a
line in the audit log, and every process applies the change at its next read or write.
"""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.tools.rules.register import CAUTION, HOSTILE, NEVER, Rule, Rules

__all__ = [
    "CAUTION",
    "HOSTILE",
    "NEVER",
    "Rule",
    "Rules",
]

# Module of each name: the help of commands imports no database.
_HOMES = {
    **dict.fromkeys(("CAUTION", "HOSTILE", "NEVER", "Rule", "Rules"), "register"),
}

__getattr__ = attributes(__name__, _HOMES)
