"""Of what an audit is: which entries and files, by their hashes, when, and by what."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ragshield_core.files.folder import Coverage, shown_name
from ragshield_core.model.entries import Batch
from ragshield_core.tools.audit.knowledge_base import KnowledgeBase
from ragshield_core.tools.audit.readers.source import Columns, Rows, reading

# The name of the entries as a whole, among the subjects of an audit; no path in a folder begins so.
ENTRIES = "/entries"

Columned = Batch | Rows


def provenance_of(
    data: Path,
    columns: Columns,
    settings: Mapping[str, Any],
    knowledge: KnowledgeBase | None,
) -> dict[str, Any]:
    """Return of what an audit is, JSON-ready, as ``ragshield attest`` signs it.

    Whoever reads the same entries again needs the columns; settings decide what is found. Files
    count alone where the knowledge base was in no single memory.
    """
    entries = {} if knowledge is None else {ENTRIES: digest_of_entries([knowledge.batch])}
    listed = entries | files_of(data, None if knowledge is None else knowledge.coverage)
    return {
        "tool": {"name": "ragshield", "version": version("ragshield")},
        "scanned_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "source": data.resolve().name,  # "." has none
        "columns": asdict(columns),
        "settings": dict(settings),
        "subjects": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in listed.items()
        ],
    }


def manifest(parts: Iterable[Columned]) -> str:
    """Return one line for each entry, sorted: the SHA-256 of what is judged of it.

    A line hashes the JSON list of id, text, label, lineage and context, in ASCII and without
    spaces, so that anybody can make the manifest again, in any language and any order. Vectors are
    left out: another machine makes slightly other ones.

    >>> rows = Rows(ids=["a"], texts=["calm"], labels=[None], lineages=[None])
    >>> manifest([rows])[:16]
    '986cf2506203aa13'
    """
    return "".join(sorted(f"{line}\n" for part in parts for line in _lines(part)))


def digest_of_entries(parts: Iterable[Columned]) -> str:
    """Return the SHA-256 of the manifest."""
    return hashlib.sha256(manifest(parts).encode()).hexdigest()


def files_of(data: Path, coverage: Coverage | None) -> dict[str, str]:
    """Return the SHA-256 of each file, by its path within the folder; of documents, of those read.

    Raises
    ------
    SourceError
        If a file cannot be read.
    """
    if not data.is_dir():
        return {shown_name(data.name): _digest_of_file(data)}
    named = {shown_name(path.relative_to(data).as_posix()): path for path in _below(data)}
    if coverage is not None:
        read = {file.name for file in coverage.of("read")}
        named = {name: path for name, path in named.items() if name in read}
    return {name: _digest_of_file(path) for name, path in sorted(named.items())}


def _lines(part: Columned) -> Iterator[str]:
    n = len(part)
    contexts = part.contexts or [None] * n
    columns = (part.ids, part.texts, part.labels, part.lineages, contexts)
    for judged in zip(*columns, strict=True):
        exact = json.dumps(judged, ensure_ascii=True, separators=(",", ":"))
        yield hashlib.sha256(exact.encode()).hexdigest()


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _digest_of_file(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return digest.hexdigest()
