"""The statement of an audit, an in-toto Statement v1, and the check of data against it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from ragshield_core.model.errors import AttestationError
from ragshield_core.model.severity import Severity
from ragshield_core.signing import bytes_of, checked, json_of, opened
from ragshield_core.tools.attest.keyless import Identity, opened_by_identity
from ragshield_core.tools.audit.provenance import ENTRIES, digest_of_entries, files_of
from ragshield_core.tools.audit.readers.kinds import open_source
from ragshield_core.tools.audit.readers.source import ColumnNames

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:ragshield:scan:v1"

Count = Annotated[int, Field(ge=0)]


class _Value(BaseModel):
    """A part of a file; unknown names are ignored, as in-toto requires."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)


class Digest(_Value):
    """A hash of a file, or of the manifest of all entries."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Subject(_Value):
    """One of the things that a statement is about."""

    name: str
    digest: Digest


class Predicate(_Value):
    """Time, tool, settings and result of an audit.

    The values are those of the report under the same names, without findings; ``cases`` counts the
    cases by severity, and ``report`` is the hash of the whole report.
    """

    # Data, tool and settings
    scanned_at: str
    source: str
    tool: dict[Literal["name", "version"], str]
    columns: dict[str, str | None]
    settings: dict[str, str | int | list[str] | None]
    fpr: FiniteFloat
    trusted_entries: Count
    detectors: list[str]
    thresholds: dict[str, FiniteFloat | None]
    # Result
    verdict: str
    enough: bool
    entries: Count
    judged: Count
    cases: dict[str, Count]
    power: dict[str, FiniteFloat]
    failed: list[str]
    skipped: list[dict[str, str]]
    unread: list[str]
    files: list[str]
    report: Digest


class Statement(_Value):
    """The signed statement."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[list[Subject], Field(min_length=1)]
    predicate_type: Literal["urn:ragshield:scan:v1"] = Field(alias="predicateType")
    predicate: Predicate

    def to_bytes(self) -> bytes:
        """Return the statement as JSON, with sorted names."""
        values = self.model_dump(by_alias=True)
        return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


class _Case(_Value):
    severity: Severity = Field(strict=False)


class _Report(_Value):
    """Fields of a scan's report that a statement has in another form."""

    cases: list[_Case]
    provenance: dict[str, Any]


def statement_of(report: bytes, where: str = "the report") -> Statement:
    """Return the statement of a scan's JSON report.

    Parameters
    ----------
    report
        The exact bytes that ``ragshield scan --output report.json`` wrote: their hash is part of
        the statement.
    where
        Name of the report, for errors.

    Raises
    ------
    AttestationError
        If the bytes are not such a report.
    """
    way_out = (
        "expected a report of this version; write it with ragshield scan DATA --output FILE.json."
    )
    values = json_of(report, where, way_out)
    found = checked(values, _Report, where, way_out)
    counts = Counter(case.severity for case in found.cases)
    predicate = {
        **values,
        **found.provenance,
        "cases": {str(severity): counts[severity] for severity in Severity},
        "report": {"sha256": hashlib.sha256(report).hexdigest()},
    }
    statement = {
        "_type": STATEMENT_TYPE,
        "predicateType": PREDICATE_TYPE,
        "subject": found.provenance.get("subjects"),
        "predicate": predicate,
    }
    return checked(statement, Statement, where, way_out)


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a check."""

    # The statement; `None` if the signer has not signed it, since nobody vouches for it then
    statement: Statement | None
    # Differences between the data and the statement, a sentence each
    differences: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the statement is signed and matches the data."""
        return self.statement is not None and not self.differences


def verify(path: Path, signer: Ed25519PublicKey | Identity, data: Path | None = None) -> Verified:
    """Check the signature of a statement and, if data is given, that the data matches it.

    Parameters
    ----------
    path
        File of the statement.
    signer
        The expected signer: a public key, or an identity for Sigstore.
    data
        The audited file or folder, in its present state. Names of single files do not count.

    Raises
    ------
    AttestationError
        If the file is no signed statement of an audit.
    SourceError
        If the data cannot be read.
    """
    content = bytes_of(path)
    if isinstance(signer, Identity):
        payload = opened_by_identity(content, signer, str(path))
    else:
        payload = opened(content, signer, str(path))
    if payload is None:
        return Verified(None)
    where = f"the statement in {path}"
    way_out = f"expected an in-toto Statement v1 with the predicate {PREDICATE_TYPE!r}."
    statement = checked(json_of(payload, where, way_out), Statement, where, way_out)
    names = [one.name for one in statement.subject]
    if len({*names}) < len(names):
        msg = f"{where} names a subject twice, expected each once; get it anew from its author."
        raise AttestationError(msg)
    return Verified(statement, () if data is None else _differences(statement, data))


def _differences(statement: Statement, data: Path) -> tuple[str, ...]:
    about = statement.predicate
    stated = {one.name: one.digest.sha256 for one in statement.subject}
    entries, found, coverage = stated.pop(ENTRIES, None), [], None
    if entries is not None:
        try:
            columns = ColumnNames(**about.columns)
        except TypeError:
            msg = (
                "the statement names columns that this version of ragshield does not know; verify "
                f"with version {about.tool.get('version')}."
            )
            raise AttestationError(msg) from None
        given = (about.settings.get(name) for name in ("include", "exclude"))
        include, exclude = (globs if isinstance(globs, list) else [] for globs in given)
        source = open_source(data, columns, include=include, exclude=exclude)
        if digest_of_entries(source.chunks()) != entries:
            found.append("the entries are not those that were scanned")
        coverage = source.coverage
    there = files_of(data, coverage)
    if not data.is_dir() and len(stated) == 1:  # one file may have been renamed
        there = dict(zip(stated, there.values(), strict=True))
    changed = [name for name in stated if there.get(name) != stated[name]]
    found += [f"{name} is {'changed' if name in there else 'missing'}" for name in changed]
    found += [f"{name} is new" for name in there if name not in stated]
    return tuple(found)
