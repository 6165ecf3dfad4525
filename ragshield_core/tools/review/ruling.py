"""Rules that say for good what a release says of a few entries."""

from __future__ import annotations

from collections.abc import Sequence

from ragshield_core.quarantine import HeldEntry
from ragshield_core.tools.rules.rule import HOSTILE, HOSTILE_BY_NAME, LOCAL, Kind

# For how long a rule counts that is made beside a release.
RULE_DAYS = 90
# Characters of a phrase: longer ones come back in no other text.
LONGEST_PHRASE = 200


def rulable(held: Sequence[HeldEntry]) -> dict[Kind, str]:
    """Return the rules that would excuse all findings of some entries: each kind with its value."""
    findings = [finding for one in held for finding in one.findings]
    if not findings:
        return {}
    found: dict[Kind, str] = {}
    sources = {one.entry.lineage for one in held}
    hostile = any(
        one.detector in HOSTILE_BY_NAME or not HOSTILE.isdisjoint(one.taxonomy) for one in findings
    )
    if len(sources) == 1 and not hostile and (source := sources.pop()):
        found[Kind.TRUSTED_SOURCE] = source
    phrases = {
        one.entry.text[slice(*finding.span)]
        for one in held
        for finding in one.findings
        if finding.detector in LOCAL and finding.span is not None and not finding.beside
    }
    local = all(finding.detector in LOCAL and finding.span is not None for finding in findings)
    if local and len(phrases) == 1 and len(phrase := phrases.pop()) <= LONGEST_PHRASE:
        found[Kind.OWN_PHRASE] = phrase
    return found
