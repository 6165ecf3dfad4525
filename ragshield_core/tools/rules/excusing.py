"""Findings that rules excuse are left out of decisions, which say so."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ragshield_core.hooks import Quiet
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import QuarantineError
from ragshield_core.model.findings import Decision, Finding
from ragshield_core.model.policy import Policy
from ragshield_core.tools.rules.phrases import Phrase, Span, lies_within, without
from ragshield_core.tools.rules.register import Rules
from ragshield_core.tools.rules.rule import Kind, Rule

logger = logging.getLogger("ragshield")  # ids and counts, never text


def by_rules(
    rules: Rules,
    batch: Batch,
    decisions: Mapping[int, Decision],
    policy: Policy,
    quiet: Quiet,
) -> Mapping[int, Decision]:
    """Return decisions as they are once the rules that are in force now have excused findings.

    Where rules cannot be read, none excuses anything.

    Parameters
    ----------
    rules
        Of several that excuse a finding, the oldest is named.
    batch
        Entries.
    decisions
        By row; others are plain admissions.
    policy
        Decides by the findings that are left.
    quiet
        Asks a detector again, of texts without the phrases: a text may hold a phrase of ours and
        one of somebody else's, and a finding names the most suspicious only.

    Returns
    -------
    Mapping[int, Decision]
        The same, but for those of which findings are excused: their notes say which, and by which
        rule.
    """
    if not any(decision.findings for decision in decisions.values()):
        return decisions
    try:
        found = rules.in_force()
    except QuarantineError as error:
        logger.warning("rules cannot be read, and none excuses anything: %s", error)
        return decisions
    by_row: dict[int, dict[int, Rule]] = {}  # row -> number of the finding -> rule
    sources = [rule for rule in found if rule.kind is Kind.TRUSTED_SOURCE]
    for row, decision in decisions.items() if sources else ():
        mine = [rule for rule in sources if rule.value == batch.lineages[row]]
        for number, finding in enumerate(decision.findings if mine else ()):
            if (rule := next((r for r in mine if r.concerns(finding)), None)) is not None:
                by_row.setdefault(row, {})[number] = rule
    phrases = [rule for rule in found if rule.kind is Kind.OWN_PHRASE]
    for (row, number), rule in _within_phrases(batch, decisions, phrases, quiet).items():
        by_row.setdefault(row, {}).setdefault(number, rule)
    if not by_row:
        return decisions
    n_findings = sum(map(len, by_row.values()))
    numbers = sorted({rule.number for excused in by_row.values() for rule in excused.values()})
    logger.info(
        "%d findings on %d entries are excused by rules %s", n_findings, len(by_row), numbers
    )
    return {
        row: _decided(decision, by_row[row], policy) if row in by_row else decision
        for row, decision in decisions.items()
    }


def _decided(decision: Decision, rules: Mapping[int, Rule], policy: Policy) -> Decision:
    """Return what is decided by the findings that no rule excuses."""
    left = [finding for n, finding in enumerate(decision.findings) if n not in rules]
    anew = policy.decide(decision.entry_id, left, decision.unjudged)
    notes = [decision.note, anew.note if anew.note != decision.note else None]
    notes += [
        f"{rule.told()} excuses {decision.findings[n].detector} {decision.findings[n].score:.4f}"
        for n, rule in rules.items()
    ]
    return replace(anew, note="; ".join(filter(None, notes)))


def _within_phrases(
    batch: Batch, decisions: Mapping[int, Decision], rules: Sequence[Rule], quiet: Quiet
) -> dict[tuple[int, int], Rule]:
    """Return by row and number the findings that lie within phrases, each with the rule."""
    found: dict[tuple[int, int], Rule] = {}
    if not rules:
        return found
    by_detector: dict[str, list[tuple[int, int, Finding]]] = {}
    for row, decision in decisions.items():
        for number, finding in enumerate(decision.findings):
            if finding.span is not None and not finding.beside:
                by_detector.setdefault(finding.detector, []).append((row, number, finding))
    phrases = {rule.number: Phrase(rule.value) for rule in rules}
    for name, findings in by_detector.items():
        mine = [rule for rule in rules if rule.concerns(findings[0][2])]
        covered: dict[tuple[int, int], Rule] = {}
        for row, number, finding in findings:
            text, span = batch.texts[row], finding.span
            assert span is not None  # noqa: S101 - those without were left out
            for rule in mine:
                if lies_within(span, phrases[rule.number].spans(text)):
                    covered.setdefault((row, number), rule)
        if covered:
            rows = sorted({row for row, _ in covered})
            silent = _silent_without(batch, [phrases[r.number] for r in mine], name, rows, quiet)
            found |= {place: rule for place, rule in covered.items() if silent[place[0]]}
    return found


def _silent_without(
    batch: Batch, phrases: Sequence[Phrase], name: str, rows: Sequence[int], quiet: Quiet
) -> dict[int, bool]:
    """Return for rows whether a detector finds nothing in them once phrases are taken out.

    Twice: with what is around a phrase side by side, so that it cannot be pushed between the words
    of an order; and with another word in its place, so that nothing else comes about.
    """
    spans: list[list[Span]] = [[s for p in phrases for s in p.spans(text)] for text in batch.texts]
    silent = np.ones(len(rows), dtype=np.bool_)
    for apart in (False, True):
        texts = tuple(
            without(text, some, entry_id if apart else None) if some else text
            for entry_id, text, some in zip(batch.ids, batch.texts, spans, strict=True)
        )
        silent &= quiet(name, replace(batch, texts=texts), rows)
    return dict(zip(rows, silent.tolist(), strict=True))
