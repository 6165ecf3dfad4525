"""Rules about sources, made by people: listed, scoped, expiring, and never learned.

A rule excuses findings of detectors on entries of one source. A person makes or revokes it, with a
line in the audit log, and every process applies the change at its next read or write.
"""

from ragshield_core.tools.rules.register import CAUTION, HOSTILE, NEVER, Rule, Rules

__all__ = ["CAUTION", "HOSTILE", "NEVER", "Rule", "Rules"]
