"""Provenance of an audit: hashes of its entries and files, the time, and the tool."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ragshield_core.files.folder import Coverage, shown_name
from ragshield_core.model.entries import Batch
from ragshield_core.tools.audit.knowledge_base import KnowledgeBase
from ragshield_core.tools.audit.readers.source import ColumnNames, Rows, reading

# Name of all entries together among the subjects of an audit; no path in a folder begins so.
ENTRIES = "/entries"

Columned = Batch | Rows


def provenance_of(
    data: Path,
    columns: ColumnNames,
    settings: Mapping[str, Any],
    knowledge: KnowledgeBase | None,
) -> dict[str, Any]:
    """Return the provenance of an audit, JSON-ready, as ``ragshield attest`` signs it.

    The columns are needed to read the same entries again; the settings affect the findings. Only
    the files are listed if memory could not hold the knowledge base.
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
    """Return one line for each entry, sorted: the SHA-256 of its judged fields.

    A line hashes the JSON list of id, text, label, lineage and context, in ASCII and without
    spaces, so that the manifest can be made again in any language and any order. Vectors are left
    out, since they differ slightly between machines.

    >>> rows = Rows(ids=["a"], texts=["calm"], labels=[None], lineages=[None])
    >>> manifest([rows])[:16]
    '986cf2506203aa13'
    """
    lines = []
    for part in parts:
        contexts = part.contexts or [None] * len(part)
        columns = (part.ids, part.texts, part.labels, part.lineages, contexts)
        for judged in zip(*columns, strict=True):
            exact = json.dumps(judged, ensure_ascii=True, separators=(",", ":"))
            lines.append(f"{hashlib.sha256(exact.encode()).hexdigest()}\n")
    return "".join(sorted(lines))


def digest_of_entries(parts: Iterable[Columned]) -> str:
    """Return the SHA-256 of the manifest."""
    return hashlib.sha256(manifest(parts).encode()).hexdigest()


def files_of(data: Path, coverage: Coverage | None) -> dict[str, str]:
    """Return each file's SHA-256 by its path in the folder; of documents, only the read ones."""
    named = {data.name: data}
    if data.is_dir():
        below = (path for path in data.rglob("*") if path.is_file())
        named = {path.relative_to(data).as_posix(): path for path in below}
        if coverage is not None:
            read = {file.name for file in coverage.of("read")}
            named = {name: path for name, path in named.items() if shown_name(name) in read}
    digests = {}
    for name, path in sorted(named.items()):
        with reading(path), path.open("rb") as file:
            digests[shown_name(name)] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
