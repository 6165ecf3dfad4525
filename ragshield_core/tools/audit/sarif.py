"""The findings of an audit as SARIF 2.1.0, which code hosts and dashboards read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ragshield_core.detectors.registry import BUILT_IN
from ragshield_core.model.entries import Batch
from ragshield_core.model.findings import Finding, printable
from ragshield_core.model.severity import Severity
from ragshield_core.tools.audit.report import ScanReport

if TYPE_CHECKING:
    from ragshield_core.tools.alerts import Alert

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
# Maximum length of a message, longer than any evidence.
MESSAGE = 4_000
LEVELS: dict[str, str] = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "note",
}
# Description of alerts, which no detector gives.
CONTRADICTION = {"contradiction": "Statements of two entries that contradict each other."}
HELP = (
    "Read the entry. If it is poison, delete it from the knowledge base, and look for others of "
    "its source. If it is good, name it among the trusted entries (--clean), or have a rule excuse "
    "it (ragshield rules)."
)


def to_sarif(report: ScanReport, source: str) -> str:
    """Return findings, worst first: ids, numbers and evidence, and contradictions as notes.

    Texts are in quotations of contradictions only.

    Parameters
    ----------
    report
        The report of :func:`~ragshield_core.tools.audit.scan`.
    source
        Path of the audited data, with forward slashes; results are located in it.

    Notes
    -----
    A result's fingerprint is made of detector and id, so that a finding keeps its identity in the
    next audit, whatever its score.
    """
    level = {i: LEVELS[case.severity] for case in report.cases for i in case.entry_ids}
    rows = {report.batch.ids[row]: row for row in report.remarkable}
    notes = [
        ("error" if one.detector in report.failed else "note", f"{one.detector}: {one.reason}")
        for one in report.skipped
    ]
    notes += [("error", sentence) for sentence in report.unread]
    said = report.contradictions
    alerts = () if said is None else said.alerts
    ids = {alert.entry_id for alert in alerts}
    rows |= {i: row for row, i in enumerate(report.batch.ids) if i in ids}
    return document_of(
        [
            Located(
                finding,
                level[finding.entry_id],
                _location(report.batch, rows[finding.entry_id], finding, source),
            )
            for decision in report.found
            for finding in decision.findings
        ]
        + [
            alerted(
                alert,
                lambda finding: _location(report.batch, rows[finding.entry_id], finding, source),
            )
            for alert in alerts
        ],
        notes=notes,
        successful=report.audited and not report.failed and not report.unread,
        properties={
            "entries": report.n_audited,
            "fpr": report.fpr,
            "verdict": report.verdict,
            "note": report.note,
        },
        said=CONTRADICTION,
    )


class Located(NamedTuple):
    """A finding, with its level and location in SARIF."""

    finding: Finding
    level: str
    location: Mapping[str, Any]
    what: str = "entry"  # kind of thing that the finding is about
    mark: str = ""  # identity in later runs; from detector and id by default
    more: Mapping[str, Any] = MappingProxyType({})  # properties


def alerted(alert: Alert, locate: Callable[[Finding], Mapping[str, Any]]) -> Located:
    """Return an alert about a contradiction as a note: it is no finding."""
    finding = Finding(
        detector="contradiction",
        entry_id=alert.entry_id,
        score=alert.score,
        threshold=math.nan,
        p_value=alert.p_value,
        evidence=str(alert),
        related_ids=(alert.passage_id,),
    )
    return Located(finding, "note", locate(finding), mark=alert.pair)


def document_of(
    found: Sequence[Located],
    *,
    notes: Sequence[tuple[str, str]],
    successful: bool,
    properties: Mapping[str, Any],
    said: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return findings as a whole file of one run.

    Parameters
    ----------
    found
        Findings.
    notes
        Level and text of each remark on the run.
    successful
        Whether the run was complete.
    properties
        SARIF properties of the run.
    said
        Descriptions of finders that are not detectors, by name.
    """
    firsts: dict[str, Finding] = {}
    for one in found:
        firsts.setdefault(one.finding.detector, one.finding)
    kinds = list(firsts)
    run = {
        "tool": {
            "driver": {
                "name": "RAGShield",
                "semanticVersion": version("ragshield"),
                "rules": [_rule(finding, said) for finding in firsts.values()],
            }
        },
        "invocations": [
            {
                "executionSuccessful": successful,
                "toolExecutionNotifications": [
                    {"level": level, "message": {"text": printable(text, MESSAGE)}}
                    for level, text in notes
                ],
            }
        ],
        "results": [_result(one, kinds.index(one.finding.detector)) for one in found],
        "properties": properties,
    }
    values = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def entry_location(entry_id: str, source: str, kind: str = "entry") -> dict[str, Any]:
    """Return the location of an entry: its source, a path with forward slashes, and its id."""
    return {
        "physicalLocation": {"artifactLocation": {"uri": quote(source)}},
        "logicalLocations": [{"fullyQualifiedName": printable(entry_id, MESSAGE), "kind": kind}],
    }


def _location(batch: Batch, row: int, finding: Finding, source: str) -> dict[str, Any]:
    """Return the location of a finding: its file in a folder and its line, if they are known."""
    metadata = batch.metadatas[row]
    name, line = metadata.get("source"), metadata.get("line")
    known = isinstance(name, str) and finding.entry_id.startswith(f"{name}#")
    location = entry_location(finding.entry_id, f"{source.rstrip('/')}/{name}" if known else source)
    if known and isinstance(line, int) and line > 0:
        start = finding.span[0] if finding.span and not finding.beside else 0
        begins = line + batch.texts[row].count("\n", 0, start)
        location["physicalLocation"]["region"] = {"startLine": begins}
    return location


def _rule(first: Finding, said: Mapping[str, str]) -> dict[str, Any]:
    kind = first.detector
    what = said.get(kind, kind)
    if kind in BUILT_IN:
        what = (BUILT_IN[kind].__doc__ or kind).strip().partition("\n")[0]
    # Code hosts read tags, not SARIF's taxonomies; they recognise weaknesses by these tags.
    weaknesses = [f"external/cwe/{name.lower()}" for name in first.taxonomy if name[:4] == "CWE-"]
    return {
        "id": kind,
        "shortDescription": {"text": what},
        "help": {"text": HELP},
        "properties": {"tags": ["security", *first.taxonomy, *weaknesses]},
    }


def _result(one: Located, rule: int) -> dict[str, Any]:
    finding = one.finding
    exact = f"{len(finding.detector)}:{finding.detector}{finding.entry_id}"
    mark = hashlib.blake2b(exact.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    mark = one.mark or mark
    name = printable(finding.entry_id, MESSAGE)
    numbers = {"score": finding.score, "threshold": finding.threshold, "pValue": finding.p_value}
    return {
        "ruleId": finding.detector,
        "ruleIndex": rule,
        "level": one.level,
        "locations": [one.location],
        "message": {"text": f"{one.what} {name}: {printable(finding.evidence, MESSAGE)}"},
        "partialFingerprints": {"detectorAndEntry/v1": mark},
        "properties": {
            **{k: v for k, v in numbers.items() if v is not None and math.isfinite(v)},
            "relatedIds": [printable(related, MESSAGE) for related in finding.related_ids],
            **one.more,
        },
    }
