"""Signed statements on the results of audits, which others can check."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.tools.attest.keyless import Identity
    from ragshield_core.tools.attest.statement import (
        PREDICATE_TYPE,
        Statement,
        Verified,
        statement_of,
        verify,
    )

__all__ = [
    "PREDICATE_TYPE",
    "Identity",
    "Statement",
    "Verified",
    "statement_of",
    "verify",
]

# Module of each name: the help of commands imports none of them.
_HOMES = {
    "Identity": "keyless",
    **dict.fromkeys(
        ("PREDICATE_TYPE", "Statement", "Verified", "statement_of", "verify"), "statement"
    ),
}

__getattr__ = attributes(__name__, _HOMES)
