"""LangChain documents to entries and back."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, Self

import numpy as np
from langchain_core.documents import Document

from ragshield_core import Batch, Entry, Report
from ragshield_core.model.claims import HIDDEN_KEY, claim_of, lineage_of, tell_lineages
from ragshield_core.model.entries import concatenate, unfit
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import Decision
from ragshield_core.store.malformed import Columns, Vectors
from ragshield_langchain.checks import expect

logger = logging.getLogger("ragshield")  # ids and counts, never text

# The one scalar metadata key that a flagged document gains: the detectors that flagged it.
FLAG_KEY = "ragshield_flag"

# So many words of metadata at least say something to a model that reads them.
SENTENCE = 3
# How deep lists and mappings in metadata are looked into.
DEPTH = 4

IMMUTABLE = frozenset({str, int, float, bool, NoneType})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataKeys:
    """Where a document's metadata says what is claimed about it.

    A ``lineage`` of ``None`` is found where readers put it, see
    :func:`ragshield_core.model.claims.lineage_of`.
    """

    label: str
    lineage: str | None = None
    prompt: tuple[str, ...] | None = None  # what prompts print; None: whatever reads like a text

    @classmethod
    def of(cls, label: str, lineage: str | None, prompt: Sequence[str] | None) -> Self:
        """Return the keys that a user gives.

        Raises
        ------
        TypeError
            If one is of another type; names it.
        """
        for which, key in (("label_key", label), ("lineage_key", lineage)):
            if key is not None or which == "label_key":
                expect(which, key, str, "the name of a metadata key, which need not be there")
        if isinstance(prompt, str):
            msg = f"prompt_keys is the str {prompt!r}, expected a list of metadata keys."
            raise TypeError(msg)
        return cls(label=label, lineage=lineage, prompt=None if prompt is None else tuple(prompt))

    def claims(
        self, metadatas: Sequence[Mapping[str, Any]], ids: Sequence[str]
    ) -> dict[str, list[str | None]]:
        """Return columns of a batch: what is claimed of documents past the guard, if it can be."""
        return {
            "labels": self.tolerant("label", metadatas, ids),
            "lineages": self.tolerant("lineage", metadatas, ids),
            "contexts": self.contexts(metadatas),
        }

    def contexts(self, metadatas: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Return what prompts may print of each document beside its text; None for nothing."""
        return [self._context(metadata) for metadata in metadatas]

    def _context(self, metadata: Mapping[str, Any]) -> str | None:
        if self.prompt is None and not any(map(_may_be_text, metadata.values())):  # mostly
            return None
        # Sorted, since databases keep keys in an order of their own.
        keys = sorted(metadata, key=str) if self.prompt is None else (*self.prompt, HIDDEN_KEY)
        found = [
            text
            for key in keys
            if key in metadata and key != FLAG_KEY
            for text in _texts_in(metadata[key], DEPTH)
            if self.prompt is not None or _reads_like_text(text)
        ]
        return "\n\n".join(found) or None

    def lineages(
        self, metadatas: Sequence[Mapping[str, Any]], ids: Sequence[str]
    ) -> list[str | None]:
        """Return what every document was cut from, or None where nothing says so; logs which key.

        Raises
        ------
        InvalidBatchError
            As of :meth:`read`.
        """
        if self.lineage is not None:
            return self.read(self.lineage, metadatas, ids)
        found = [lineage_of(m, entry_id) for m, entry_id in zip(metadatas, ids, strict=True)]
        tell_lineages(key for _, key in found)
        return [lineage for lineage, _ in found]

    def read(
        self, key: str, metadatas: Sequence[Mapping[str, Any]], ids: Sequence[str]
    ) -> list[str | None]:
        """Return that key of every document as a str, or None where it is not there.

        Raises
        ------
        InvalidBatchError
            If a value is neither a string, a number nor a boolean; names the entry.
        """
        values = [metadata.get(key) for metadata in metadatas]
        if set(map(type, values)) <= {str, NoneType}:
            return values
        return [claim_of(key, entry_id, value) for entry_id, value in zip(ids, values, strict=True)]

    def tolerant(
        self,
        what: Literal["label", "lineage"],
        metadatas: Sequence[Mapping[str, Any]],
        ids: Sequence[str],
    ) -> list[str | None]:
        """Return labels or lineages of documents past the guard; None where it could not be."""
        claims: list[str | None] = []
        for metadata, entry_id in zip(metadatas, ids, strict=True):
            try:
                if what == "label":
                    claim = claim_of(self.label, entry_id, metadata.get(self.label))
                else:
                    claim, _ = lineage_of(metadata, entry_id, self.lineage)
            except InvalidBatchError:
                claim = None
            claims.append(None if claim is None or unfit(claim) else claim)
        return claims


def _texts_in(value: Any, depth: int) -> Iterator[str]:
    """Yield the strings of a value and of what it holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and depth:
        for key in sorted(value, key=str):
            yield from _texts_in(value[key], depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for item in value:
            yield from _texts_in(item, depth - 1)


def _may_be_text(value: Any) -> bool:
    """Return whether a value reads like a text, or may hold what does."""
    return _reads_like_text(value) if type(value) is str else type(value) not in IMMUTABLE


def _reads_like_text(value: str) -> bool:
    """Return whether a string could say something: no name, number, date, path or id."""
    return not value.isascii() or len(value.split()) >= SENTENCE


def parts(n: int, batch_size: int | None) -> list[slice]:
    """Return the parts of one write: at least one, and without a size a single one.

    Raises
    ------
    ValueError
        If the size is not a positive number.
    """
    if batch_size is None:
        return [slice(0, n)]
    if batch_size < 1:
        msg = f"batch_size is {batch_size}, expected at least 1, or None for a single batch."
        raise ValueError(msg)
    return [slice(start, start + batch_size) for start in range(0, max(n, 1), batch_size)]


def to_document(entry: Entry) -> Document:
    """Return an entry as a document."""
    return Document(id=entry.id, page_content=entry.text, metadata=copied(entry.metadata))


def copied(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that shares nothing with the original which could be changed."""
    if IMMUTABLE.issuperset(map(type, metadata.values())):  # nearly always, and much quicker
        return dict(metadata)
    return copy.deepcopy(dict(metadata))


def columns_of(
    ids: Sequence[Any],
    texts: Sequence[Any],
    metadatas: Sequence[Any],
    vectors: Vectors | None,
    keys: MetadataKeys,
) -> Columns:
    """Return columns of documents with what cannot be read of them; metadata is copied.

    Raises
    ------
    InvalidBatchError
        If there is not one of everything.
    """
    if len(metadatas) != len(ids):
        msg = f"{len(metadatas)} metadatas for {len(ids)} entries, expected one each."
        raise InvalidBatchError(msg)
    if vectors is not None and len(vectors) != len(ids):
        msg = f"{len(vectors)} vectors for {len(ids)} entries, expected one each."
        raise InvalidBatchError(msg)
    reasons: dict[int, list[str]] = {}
    copies = []
    for row, metadata in enumerate(metadatas):
        copy, reason = _copied_or_not(metadata)
        copies.append(copy)
        if reason is not None:
            reasons[row] = [reason]
    named = [str(entry_id) for entry_id in ids]
    columns = {
        "label": _each(lambda *some: keys.read(keys.label, *some), copies, named),
        "lineage": _each(keys.lineages, copies, named),
        "metadata": _each(lambda some, _: keys.contexts(some), copies, named),
    }
    for what, (_, errors) in columns.items():
        for row, error in errors.items():
            own = isinstance(error, InvalidBatchError)  # others may quote values
            said = str(error) if own else f"its {what} cannot be read ({type(error).__name__})"
            reasons.setdefault(row, []).append(said)
    return Columns(
        ids=ids,
        texts=texts,
        vectors=vectors,
        labels=columns["label"][0],
        lineages=columns["lineage"][0],
        metadatas=copies,
        contexts=columns["metadata"][0],
        reasons={row: "; ".join(listed) for row, listed in reasons.items()},
    )


def _each(
    read: Callable[[list[dict[str, Any]], list[str]], list[str | None]],
    metadatas: list[dict[str, Any]],
    ids: list[str],
) -> tuple[list[str | None], dict[int, Exception]]:
    """Return what is read of all at once, or of each where that fails, and the failures."""
    try:
        return read(metadatas, ids), {}
    except Exception:  # noqa: BLE001 - values of classes of their own may do anything
        found: list[str | None] = []
        errors: dict[int, Exception] = {}
        for row, one in enumerate(zip(metadatas, ids, strict=True)):
            try:
                found += read([one[0]], [one[1]])
            except Exception as error:  # noqa: BLE001 - as above
                found.append(None)
                errors[row] = error
        return found, errors


def _copied_or_not(metadata: Any) -> tuple[dict[str, Any], str | None]:
    """Return a copy of metadata, or nothing and why it is none."""
    if metadata is None:
        return {}, None
    try:
        if isinstance(metadata, Mapping):
            return copied(metadata), None
    except Exception as error:  # noqa: BLE001 - values of classes of their own may do anything
        return _shallow(metadata), f"metadata cannot be copied ({type(error).__name__})"
    return {}, f"metadata is of type {type(metadata).__name__}, expected a mapping"


def _shallow(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return those items that can be copied."""
    kept = {}
    for key in metadata:
        with suppress(Exception):
            kept[key] = copy.deepcopy(metadata[key])
    return kept


def stored_metadatas(batch: Batch, flagged: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return what the store keeps as metadata; of flagged entries it says so."""
    metadatas = [copied(metadata) for metadata in batch.metadatas]
    for decision in flagged:
        names = sorted({finding.detector for finding in decision.findings})
        metadatas[batch.ids.index(decision.entry_id)][FLAG_KEY] = ",".join(names)
    return metadatas


def joined(reports: Sequence[Report]) -> Report:
    """Return the reports of consecutive parts of one write as one."""
    if len(reports) == 1:
        return reports[0]
    sizes = [len(report.batch) for report in reports]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    names = dict.fromkeys(name for report in reports for name in report.scores)
    return Report(
        batch=concatenate([report.batch for report in reports]),
        remarkable={
            start + row: decision
            for start, report in zip(starts, reports, strict=True)
            for row, decision in report.remarkable.items()
        },
        scores={
            name: np.concatenate(
                [
                    report.scores.get(name, np.full(size, np.nan))
                    for size, report in zip(sizes, reports, strict=True)
                ]
            )
            for name in names
        },
        skipped=tuple(dict.fromkeys(item for report in reports for item in report.skipped)),
        timings={
            name: sum(report.timings.get(name, 0.0) for report in reports)
            for name in dict.fromkeys(name for report in reports for name in report.timings)
        },
        # A later part may take back what an earlier one let in, and say more of the same entry.
        retroactive=tuple(
            {d.entry_id: d for report in reports for d in report.retroactive}.values()
        ),
        spent=reports[-1].spent if reports else None,
        calibrated_at=reports[-1].calibrated_at if reports else None,
    )


def without_nothing(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without keys whose value is None: Chroma does not keep these."""
    return {key: value for key, value in metadata.items() if value is not None}
