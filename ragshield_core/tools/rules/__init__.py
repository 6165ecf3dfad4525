"""Rules that people make about what is found: listed, scoped, expiring, and never learned.

A rule excuses findings of detectors, on entries of one source or within one phrase. It is made and
revoked by a person, each with a line in the audit log, and is in force in every process at its next
read or write.
"""

from ragshield_core.tools.rules.register import NEVER, Rules
from ragshield_core.tools.rules.rule import CAUTIONS, HOSTILE, LOCAL, Kind, Rule, Standing

__all__ = ["CAUTIONS", "HOSTILE", "LOCAL", "NEVER", "Kind", "Rule", "Rules", "Standing"]
