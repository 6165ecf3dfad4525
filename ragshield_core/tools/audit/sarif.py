"""The findings of an audit as SARIF 2.1.0, which code hosts and dashboards read."""

from __future__ import annotations

import hashlib
import json
import math
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from ragshield_core.detectors.registry import BUILT_IN
from ragshield_core.model.findings import Finding, printable
from ragshield_core.tools.audit.report import ScanReport

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
# Longer than any evidence.
MESSAGE = 4_000


def to_sarif(report: ScanReport, source: str) -> str:
    """Return findings, worst first: ids, numbers and evidence, never texts.

    Parameters
    ----------
    report
        Of :func:`~ragshield_core.tools.audit.scan`.
    source
        What was audited, as a path with forward slashes; results lie in it.

    Notes
    -----
    A result's fingerprint is made of detector and id, so that a finding that is still there in the
    next audit is the same one, whatever its score.
    """
    findings = [finding for decision in report.found for finding in decision.findings]
    kinds = list(dict.fromkeys(finding.detector for finding in findings))
    run = {
        "tool": {
            "driver": {
                "name": "RAGShield",
                "semanticVersion": version("ragshield"),
                "rules": [_rule(kind, findings) for kind in kinds],
            }
        },
        "invocations": [
            {
                "executionSuccessful": report.audited and not report.failed,
                "toolExecutionNotifications": [
                    {
                        "level": "error" if skipped.detector in report.failed else "note",
                        "message": {
                            "text": printable(f"{skipped.detector}: {skipped.reason}", MESSAGE)
                        },
                    }
                    for skipped in report.skipped
                ],
            }
        ],
        "results": [
            _result(finding, kinds.index(finding.detector), source) for finding in findings
        ],
        "properties": {"entries": report.n_audited, "fpr": report.fpr, "note": report.note},
    }
    values = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def _rule(kind: str, findings: list[Finding]) -> dict[str, Any]:
    first = next(finding for finding in findings if finding.detector == kind)
    said = (BUILT_IN[kind].__doc__ or kind).strip().partition("\n")[0] if kind in BUILT_IN else kind
    return {
        "id": kind,
        "shortDescription": {"text": said},
        "properties": {"tags": ["security", *first.taxonomy]},
    }


def _result(finding: Finding, rule: int, source: str) -> dict[str, Any]:
    exact = f"{len(finding.detector)}:{finding.detector}{finding.entry_id}"
    mark = hashlib.blake2b(exact.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    name = printable(finding.entry_id, MESSAGE)
    numbers = {
        "score": finding.score,
        "threshold": finding.threshold,
        "pValue": finding.p_value,
    }
    return {
        "ruleId": finding.detector,
        "ruleIndex": rule,
        "level": "warning",
        "message": {"text": f"entry {name}: {printable(finding.evidence, MESSAGE)}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": quote(source)}},
                "logicalLocations": [{"fullyQualifiedName": name, "kind": "entry"}],
            }
        ],
        "partialFingerprints": {"detectorAndEntry/v1": mark},
        "properties": {
            **{k: v for k, v in numbers.items() if v is not None and math.isfinite(v)},
            "relatedIds": [printable(related, MESSAGE) for related in finding.related_ids],
        },
    }
