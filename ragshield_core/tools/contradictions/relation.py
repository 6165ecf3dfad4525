"""Dates and versions that tell a newer statement from a contradiction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from ragshield_core.model.findings import printable

# Metadata keys under which programs keep the time or the version of a document.
DATE_KEYS = (
    "updated_at",
    "updated",
    "modified",
    "last_modified",
    "published",
    "date",
    "valid_from",
)
VERSION_KEYS = ("version", "revision")
# Characters of a text and of a value that are searched.
MOST, LONGEST = 4_000, 100

_DATE = re.compile(r"(?<!\d)(\d{4})-(\d{2})-(\d{2})(?!\d)")
_VERSION = re.compile(
    r"(?<!\w)(?:v|version|release|fassung|versión|версия|版本)[ .:]{0,2}"
    r"(\d{1,6}(?:\.\d{1,6}){0,4})(?![\w.]*\d)",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,4}")

Stamp = tuple[int, ...]
Relation = Literal["conflicts", "supersedes"]


def relation(
    claim: str, metadata: Mapping[str, Any], passage: str, other: Mapping[str, Any]
) -> tuple[Relation, str]:
    """Return ``"supersedes"`` or ``"conflicts"``, and the dates or versions that tell.

    An entry supersedes a passage if a date or a version of the same kind is known of both and the
    entry's is later. These are claims of whoever wrote the texts: an alert is told either way.

    Examples
    --------
    >>> relation("Since version 3.10 the port is 80.", {}, "In version 3.9 the port is 81.", {})
    ('supersedes', 'version 3.10 after 3.9')
    >>> relation("The port is 80.", {"date": "2024-01-05"}, "It is 81.", {"date": "2025-01-01"})
    ('conflicts', 'date 2024-01-05 before 2025-01-01')
    """
    theirs = {kind: (stamp, shown) for kind, stamp, shown in _stamps(passage, other)}
    for kind, stamp, shown in _stamps(claim, metadata):
        if kind in theirs and stamp != theirs[kind][0]:
            later = stamp > theirs[kind][0]
            why = f"{kind} {shown} {'after' if later else 'before'} {theirs[kind][1]}"
            return ("supersedes" if later else "conflicts"), why
    return "conflicts", ""


def _stamps(text: str, metadata: Mapping[str, Any]) -> Iterator[tuple[str, Stamp, str]]:
    """Yield each kind of stamp with its value and with its form to show, the surest kind first."""
    for keys, pattern in ((VERSION_KEYS, _NUMBERS), (DATE_KEYS, _DATE)):
        for key in keys:
            if found := pattern.search(str(metadata.get(key, ""))[:LONGEST]):
                yield key, _stamp(found), printable(found.group(), LONGEST)
    for kind, pattern in (("version", _VERSION), ("date", _DATE)):
        if found := max(pattern.finditer(text[:MOST]), key=_stamp, default=None):
            yield kind, _stamp(found), printable(found[1] if kind == "version" else found[0])


def _stamp(found: re.Match[str]) -> Stamp:
    """Return the numbers of a date or version; a version's zeros at the end do not count."""
    numbers = [int(number) for number in re.findall(r"\d+", found.group())]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
