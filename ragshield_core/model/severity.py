"""How much harm entries do to answers, if they are an attack: by what was found, and by numbers."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

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


def severity_by(detectors: Collection[str], n: int, *, most: bool) -> Severity:
    """Return the severity of entries that belong together.

    Parameters
    ----------
    detectors
        Names of those that have found any of them.
    n
        How many entries there are.
    most
        Whether they are most of what is retrieved for their topic.
    """
    names = set(detectors)
    if most or names >= {ORDER, HIDDEN}:
        return Severity.CRITICAL
    if names & {ORDER, HIDDEN, QUESTION}:
        return Severity.HIGH
    return Severity.MEDIUM if n > 1 else Severity.LOW
