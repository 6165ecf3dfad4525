"""Severity of a case: the harm that its entries would do to answers if they are an attack."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

# Number of retrieved entries that a model reads, the default of frameworks, and the smallest
# majority of them.
TOP = 5
MOST = TOP // 2 + 1
# Detectors whose findings decide the severity. A group's evidence names its members, whichever
# detector has found them.
GROUP, ORDER, HIDDEN, QUESTION = "clique", "instruction", "hidden_text", "leading_question"


class Severity(StrEnum):
    """How much harm a case does to answers, worst first."""

    CRITICAL = "critical"  # hidden orders, or most of the entries retrieved for a topic
    HIGH = "high"  # orders, hidden text, or the first answer to its question
    MEDIUM = "medium"  # some of the entries retrieved for a topic
    LOW = "low"  # one entry with no such effect
    UNKNOWN = "unknown"  # no calibrated detector has a finding against it


MEANINGS = {
    Severity.CRITICAL: "hidden orders, or most of what a question on the topic finds",
    Severity.HIGH: "orders, hidden text, or a question together with its answer",
    Severity.MEDIUM: "several entries, part of what a question on the topic finds",
    Severity.LOW: "one entry with no such effect",
}


def severity_by(detectors: Collection[str], n: int, places: int | None = None) -> Severity:
    """Return the severity of entries that belong together.

    Parameters
    ----------
    detectors
        Names of the detectors that found any of the entries.
    n
        Number of entries.
    places
        How many of the first :data:`TOP` results on their topic are theirs. ``None`` if unknown:
        members of a group are near to each other, so each is taken to be one of these results.

    Examples
    --------
    >>> str(severity_by(["clique"], 3)), str(severity_by(["clique"], 3, places=1))
    ('critical', 'medium')
    """
    names = set(detectors)
    if places is None:
        places = n if GROUP in names else 0
    if places >= MOST or names >= {ORDER, HIDDEN}:
        return Severity.CRITICAL
    if names & {ORDER, HIDDEN, QUESTION}:
        return Severity.HIGH
    return Severity.MEDIUM if n > 1 else Severity.LOW
