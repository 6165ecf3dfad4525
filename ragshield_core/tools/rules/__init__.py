"""Rules that people make about sources: listed, scoped, expiring, and never learned.

A rule excuses findings of detectors on entries of one source. It is made and revoked by a person,
each with a line in the audit log, and is in force in every process at its next read or write.
"""

from ragshield_core.tools.rules.register import CAUTION, HOSTILE, NEVER, Rule, Rules

__all__ = ["CAUTION", "HOSTILE", "NEVER", "Rule", "Rules"]
