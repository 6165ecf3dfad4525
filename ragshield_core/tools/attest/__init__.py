"""Signed statements on the results of audits, which others can check."""

from ragshield_core.tools.attest.keyless import Identity
from ragshield_core.tools.attest.statement import (
    PREDICATE_TYPE,
    Statement,
    Verified,
    statement_of,
    verify,
)

__all__ = ["PREDICATE_TYPE", "Identity", "Statement", "Verified", "statement_of", "verify"]
