"""The statement of an audit: an in-toto Statement v1 with a predicate of RAGShield's own."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from pydantic.alias_generators import to_camel

from ragshield_core.model.errors import AttestationError
from ragshield_core.model.severity import Severity
from ragshield_core.tools.attest.reading import parsed

STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["urn:ragshield:scan:v1"] = "urn:ragshield:scan:v1"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class _Value(BaseModel):
    """A part of a file; names that it does not know are ignored, as in-toto asks."""

    model_config = ConfigDict(
        frozen=True, strict=True, populate_by_name=True, alias_generator=to_camel
    )


class Digest(_Value):
    """A hash of a file, or of the manifest of all entries."""

    sha256: Sha256


class Subject(_Value):
    """One of the things that a statement is about."""

    name: str
    digest: Digest


class Tool(_Value):
    """Who has audited."""

    name: str
    version: str


class Skipped(_Value):
    """A detector that has not judged."""

    detector: str
    reason: str


class Result(_Value):
    """What was found, and how much that means."""

    verdict: str
    enough: bool
    entries: Count
    judged: Count
    cases: dict[str, Count]  # by severity
    power: dict[str, FiniteFloat]
    failed: list[str]
    skipped: list[Skipped]
    unread: list[str]
    files: list[str]


class Settings(_Value):
    """What decides which entries there are, and what is found among them."""

    fpr: FiniteFloat
    trusted_entries: Count
    thresholds: dict[str, FiniteFloat | None]
    columns: dict[str, str | None]
    options: dict[str, str | int | list[str] | None]


class Predicate(_Value):
    """When a knowledge base was audited, by what, and with what result."""

    scanned_at: str
    source: str
    tool: Tool
    detectors: list[str]
    settings: Settings
    result: Result
    report: Digest  # of the report as a whole


class Statement(_Value):
    """What is signed."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(
        validation_alias="_type", serialization_alias="_type"
    )
    subject: Annotated[list[Subject], Field(min_length=1)]
    predicate_type: Literal["urn:ragshield:scan:v1"]
    predicate: Predicate

    def to_bytes(self) -> bytes:
        """Return it as JSON, in one order."""
        values = self.model_dump(by_alias=True)
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


class _Case(_Value):
    severity: Severity = Field(strict=False)


class _Provenance(_Value):
    tool: Tool
    scanned_at: str
    source: str
    columns: dict[str, str | None]
    settings: dict[str, str | int | list[str] | None]
    subjects: Annotated[list[Subject], Field(min_length=1)]


class _Report(_Value):
    """As much of a scan's report as a statement repeats."""

    entries: Count
    judged: Count
    detectors: list[str]
    fpr: FiniteFloat
    trusted_entries: Count
    thresholds: dict[str, FiniteFloat | None]
    verdict: str
    enough: bool
    power: dict[str, FiniteFloat]
    cases: list[_Case]
    skipped: list[Skipped]
    failed: list[str]
    unread: list[str]
    files: list[str]
    provenance: _Provenance


def statement_of(report: bytes, where: str = "the report") -> Statement:
    """Return the statement of a scan's JSON report.

    Parameters
    ----------
    report
        As ``ragshield scan --output report.json`` has written it, to the byte: its hash is part of
        the statement.
    where
        Its name, for errors.

    Raises
    ------
    AttestationError
        If it is none.
    """
    way_out = (
        "expected a report of this version; write it with ragshield scan DATA --output FILE.json."
    )
    found = parsed(report, _Report, where=where, way_out=way_out)
    counts = Counter(case.severity for case in found.cases)
    return Statement(
        type_=STATEMENT_TYPE,
        predicate_type=PREDICATE_TYPE,
        subject=found.provenance.subjects,
        predicate=Predicate(
            scanned_at=found.provenance.scanned_at,
            source=found.provenance.source,
            tool=found.provenance.tool,
            detectors=found.detectors,
            settings=Settings(
                fpr=found.fpr,
                trusted_entries=found.trusted_entries,
                thresholds=found.thresholds,
                columns=found.provenance.columns,
                options=found.provenance.settings,
            ),
            result=Result(
                cases={str(severity): counts[severity] for severity in Severity},
                **_same(found),
            ),
            report=Digest(sha256=hashlib.sha256(report).hexdigest()),
        ),
    )


def statement_from(payload: bytes, where: str) -> Statement:
    """Return the statement that a payload is.

    Raises
    ------
    AttestationError
        If it is none of an audit.
    """
    way_out = f"expected an in-toto Statement v1 with the predicate {PREDICATE_TYPE!r}."
    found = parsed(payload, Statement, where=where, way_out=way_out)
    names = [one.name for one in found.subject]
    if len({*names}) < len(names):
        msg = f"{where} names a subject twice, expected each once; get it anew from its author."
        raise AttestationError(msg)
    return found


def _same(report: _Report) -> dict[str, Any]:
    """Return what a result repeats of a report, by name."""
    return {name: getattr(report, name) for name in Result.model_fields if name != "cases"}
