"""Checks of namespaces, the names of tenants: stored and compared unchanged, or refused."""

from __future__ import annotations

import unicodedata

from ragshield_core.model.arguments import kind_of
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import printable

# Most characters of a name, as in the columns, and most that a message shows.
LONGEST = 200
SHOWN = 60
# Control characters, halves of surrogate pairs, and unassigned characters.
UNKEPT = frozenset({"Cc", "Cs", "Cn"})


def checked_namespace(name: object) -> str:
    """Return the name of a tenant, if every database stores it unchanged.

    Two names belong to one tenant only if they are equal to the bit: names that only look alike,
    because they differ in case or in the encoding of an accent, are different tenants.

    Raises
    ------
    QuarantineError
        If it is empty, like a forgotten setting; too long; or holds control characters, halves of
        surrogate pairs or unassigned characters.

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
