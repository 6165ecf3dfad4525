"""Names of tenants: kept and compared as they are, or refused."""

from __future__ import annotations

import unicodedata

from ragshield_core.model.arguments import kind_of
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable

# Characters: those of the columns.
LONGEST = 200
SHOWN = 60
# Control characters, halves of pairs, and what no standard assigns.
UNKEPT = frozenset({"Cc", "Cs", "Cn"})


def checked_namespace(name: object) -> str:
    """Return the name of a tenant, if every database keeps it as it is.

    Two names are one tenant's if they are the same to the bit: those that only look alike are
    tenants of their own, whether they differ in case or in how an accent is written.

    Raises
    ------
    QuarantineError
        If it is empty, as a setting is that was forgotten; too long; or holds control characters,
        halves of surrogate pairs or unassigned ones.

    Examples
    --------
    >>> checked_namespace("Müller & Söhne; DROP TABLE x --")
    'Müller & Söhne; DROP TABLE x --'
    """
    expected = f"expected a str of 1 to {LONGEST} characters that are printed, such as 'default'."
    if not isinstance(name, str):
        msg = f"the namespace is {kind_of(name)}, {expected}"
        raise QuarantineError(msg)
    bad = next((c for c in name if unicodedata.category(c) in UNKEPT), None)
    if not name or len(name) > LONGEST or bad is not None:
        why = (
            f"of {len(name)} characters" if bad is None else f"with the character U+{ord(bad):04X}"
        )
        msg = f"the namespace {printable(name, SHOWN)!r} is {why}, {expected}"
        raise QuarantineError(msg)
    return name
