"""What a rule says, and which findings it can concern."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ragshield_core.model.findings import Finding, printable

SHOWN = 60  # characters of names


class Kind(StrEnum):
    """What a rule is about."""

    TRUSTED_SOURCE = "trusted_source"  # entries of one lineage
    OWN_PHRASE = "own_phrase"  # what is found within one phrase


class Standing(StrEnum):
    """Whether a rule counts."""

    IN_FORCE = "in force"
    EXPIRED = "expired"
    REVOKED = "revoked"
    BROKEN = "broken"  # its row is not as the audit log says


# Findings that a trusted source is not excused for unless the rule names the detector: indirect
# prompt injection and obfuscation. Resemblance, templates and labels are what an honest source may
# be unusual by; orders to a model and text that no reader sees are not written by honest authors
# but by who got into their pages, and one such text is enough for an attack.
HOSTILE = frozenset({"AML.T0051.001", "AML.T0068"})
# The same detectors by their names: findings need not have a taxonomy.
HOSTILE_BY_NAME = frozenset({"instruction", "hidden_text"})
# Detectors whose evidence is a place in the text, so that it can be said to lie within a phrase.
LOCAL = frozenset({"trigger_phrase", "instruction"})

# What to know before a rule is made.
CAUTIONS: Mapping[Kind, str] = {
    Kind.TRUSTED_SOURCE: (
        "the lineage of an entry is a claim of whoever brings it: trust only a source whose name "
        "nobody else can write into metadata"
    ),
    Kind.OWN_PHRASE: (
        "whoever knows the phrase can use it as well: what is found within it is excused in "
        "everybody's entries"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule as it is kept.

    Attributes
    ----------
    number
        Its name; of the whole database, without gaps.
    kind, value
        What it is about: a lineage, to the bit, or a phrase.
    namespace, store
        Where it counts; a store of ``None`` stands for all of the namespace.
    detectors
        Whose findings it excuses. ``None`` for the usual ones: all but those of hidden text and
        instructions (``HOSTILE``) for a source; trigger phrases and instructions for a phrase.
    reason, made_by, made_at
        Why, who and when.
    expires_at
        When it stops counting; ``None`` for never.
    revoked_at, revoked_by
        Who has taken it back, if somebody has.
    vouched
        Whether the row is as the audit log says. ``False`` for one that was changed, or slipped in,
        past RAGShield: it does not count.
    """

    number: int
    kind: Kind
    value: str
    namespace: str
    store: str | None
    detectors: tuple[str, ...] | None
    reason: str
    made_by: str
    made_at: dt.datetime
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None = None
    revoked_by: str | None = None
    vouched: bool = True

    def standing(self, now: dt.datetime) -> Standing:
        """Return whether it counts at a time."""
        if not self.vouched:
            return Standing.BROKEN
        if self.revoked_at is not None:
            return Standing.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return Standing.EXPIRED
        return Standing.IN_FORCE

    def concerns(self, finding: Finding) -> bool:
        """Return whether it is about findings of that detector."""
        if self.detectors is not None:
            return finding.detector in self.detectors
        if self.kind is Kind.OWN_PHRASE:
            return finding.detector in LOCAL
        return finding.detector not in HOSTILE_BY_NAME and HOSTILE.isdisjoint(finding.taxonomy)

    def told(self) -> str:
        """Return the rule in a few words, without its value: that may be hostile."""
        until = "without an end" if self.expires_at is None else f"until {self.expires_at:%Y-%m-%d}"
        return f"rule {self.number} ({self.kind}, by {printable(self.made_by, SHOWN)!r}, {until})"

    def to_dict(self, now: dt.datetime) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        values = asdict(self)
        del values["vouched"]
        for name in ("made_at", "expires_at", "revoked_at"):
            values[name] = values[name] and values[name].isoformat()
        return {"number": self.number, "standing": str(self.standing(now)), **values}
