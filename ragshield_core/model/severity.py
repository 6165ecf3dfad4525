"""How much harm entries do to answers, if they are an attack: by what was found, and by numbers."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

# Places of a retrieval that a model reads, by what frameworks retrieve by default, and how many of
# them are most.
TOP = 5
MOST = TOP // 2 + 1
# Detectors by whose findings the effect is told. A group's evidence names its members, whichever
# detector has found them.
GROUP, ORDER, HIDDEN, QUESTION = "clique", "instruction", "hidden_text", "leading_question"


class Severity(StrEnum):
    """How much harm a case does to answers, worst first."""

    CRITICAL = "critical"  # hidden orders, or most of what is retrieved for a topic
    HIGH = "high"  # orders, hidden text, or the first answer to its question
    MEDIUM = "medium"  # part of what is retrieved for a topic
    LOW = "low"  # one entry with no such effect
    UNKNOWN = "unknown"  # nothing is calibrated that speaks against it


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
        Names of those that have found any of them.
    n
        How many entries there are.
    places
        How many of the first :data:`TOP` places on their topic are theirs. ``None`` where nobody
        has looked: members of a group are near to each other, so that each takes a place.

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
