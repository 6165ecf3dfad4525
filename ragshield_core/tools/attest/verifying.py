"""Whether a statement is signed, and whether data is what it is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ragshield_core.model.errors import AttestationError
from ragshield_core.tools.attest.envelope import opened
from ragshield_core.tools.attest.keys import PublicKey
from ragshield_core.tools.attest.reading import bytes_of
from ragshield_core.tools.attest.statement import Statement, statement_from
from ragshield_core.tools.audit.provenance import ENTRIES, digest_of_entries, files_of
from ragshield_core.tools.audit.readers.kinds import open_source
from ragshield_core.tools.audit.readers.source import Columns


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of a check.

    Attributes
    ----------
    statement
        What is stated; ``None`` where the key has not signed it, since then nobody vouches for it.
    differences
        In what the data is not what the statement is about, a sentence each.
    """

    statement: Statement | None
    differences: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the statement is signed, and about this data."""
        return self.statement is not None and not self.differences


def verify(path: Path, key: PublicKey, data: Path | None = None) -> Verified:
    """Check the signature of a statement and, if data is given, whether it is about these data.

    Parameters
    ----------
    path
        Of the statement.
    key
        Whose signature is expected.
    data
        The file or folder that was audited, as it is now. Names of single files do not count.

    Raises
    ------
    AttestationError
        If the file is no signed statement of an audit.
    SourceError
        If the data cannot be read.
    """
    payload = opened(bytes_of(path), key, str(path))
    if payload is None:
        return Verified(None)
    statement = statement_from(payload, f"the statement in {path}")
    return Verified(statement, () if data is None else _differences(statement, data))


def _differences(statement: Statement, data: Path) -> tuple[str, ...]:
    stated = {one.name: one.digest.sha256 for one in statement.subject}
    entries = stated.pop(ENTRIES, None)
    found: list[str] = []
    coverage = None
    if entries is not None:
        source = open_source(
            data,
            _columns(statement),
            include=_globs(statement, "include"),
            exclude=_globs(statement, "exclude"),
        )
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


def _globs(statement: Statement, name: str) -> list[str]:
    """Return the globs of one of the options that say which files of a folder are looked at."""
    globs = statement.predicate.settings.options.get(name)
    return globs if isinstance(globs, list) else []


def _columns(statement: Statement) -> Columns:
    try:
        return Columns(**statement.predicate.settings.columns)
    except TypeError:
        msg = (
            "the statement names columns that this version of ragshield does not know; verify "
            f"with version {statement.predicate.tool.version}."
        )
        raise AttestationError(msg) from None
