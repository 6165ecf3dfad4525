"""LangChain's indexing API over a guarded store, with correct records.

``langchain_core.indexing.index`` records every document that it passes to the store, even a held
one. That one would count as added and be skipped ever after, and cleanup would delete the good
version that it was to replace. A guarded store therefore refuses that function.
Here the same function runs over a go-between:

- a document is recorded if, and only if, the store has it;
- a new version of a source is stored whole, in place of the one before, or not at all: if one of
  its documents is held or recalled, all of them wait in quarantine, and the earlier ones stay;
- documents that a cleanup is going to delete are no evidence against their replacements.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NoReturn

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document
from langchain_core.indexing import IndexingResult, RecordManager, aindex, index
from langchain_core.vectorstores import VectorStore

from ragshield_core import Report
from ragshield_core.model.entries import NO_ENTRIES
from ragshield_core.model.errors import MalformedEntriesError, QuarantineError
from ragshield_core.model.findings import Verdict, printable
from ragshield_core.quarantine import Status
from ragshield_core.store.keys import expect
from ragshield_core.store.malformed import lacks_vector, taken
from ragshield_core.store.steps import Step, Steps, asked, asynchronous, own, synchronous
from ragshield_core.store.updates import NewVersion, is_part
from ragshield_core.store.writing import hold_back
from ragshield_langchain.convert import to_document
from ragshield_langchain.vectorstore import GuardedVectorStore

SourceIdKey = str | Callable[[Document], str] | None
KeyEncoder = Literal["sha1", "sha256", "sha512", "blake2b"] | Callable[[Document], str]
Cleanup = Literal["incremental", "full", "scoped_full"] | None


class GuardedIndexingResult(IndexingResult):
    """Result of one run of :func:`guarded_index`.

    LangChain's counts cover the store only: ``num_added`` and ``num_updated`` exclude held
    documents, ``num_deleted`` excludes recalled ones.
    """

    num_quarantined: int
    """Documents of this run that are held in quarantine; neither added nor updated."""
    num_recalled: int
    """Documents indexed earlier, in this run or before, that were recalled to quarantine."""
    num_rejected_updates: int
    """Out-of-date documents that cleanup left, because their update is held."""
    quarantined: list[str]
    """Ids of the ``num_quarantined`` documents."""
    recalled: list[str]
    """Ids of the ``num_recalled`` documents."""
    reports: list[Report]
    """One per written batch, in order. Entries that were plainly admitted are counted in the
    summaries, and left out otherwise (:attr:`ragshield_core.Report.n_left_out`)."""


@synchronous
def guarded_index(  # noqa: PLR0913 - LangChain's own arguments
    docs_source: BaseLoader | Iterable[Document] | AsyncIterator[Document],
    record_manager: RecordManager,
    vector_store: GuardedVectorStore,
    *,
    batch_size: int = 100,
    cleanup: Cleanup = None,
    source_id_key: SourceIdKey = None,
    cleanup_batch_size: int = 1_000,
    force_update: bool = False,
    key_encoder: KeyEncoder = "sha1",
    upsert_kwargs: dict[str, Any] | None = None,
) -> Steps[GuardedIndexingResult]:
    """Index documents into a guarded store; a drop-in for ``langchain_core.indexing.index``.

    Parameters
    ----------
    docs_source
        A loader, or documents; generators are read batch by batch, asynchronous ones by
        :func:`aguarded_index`.
    record_manager
        Records the documents in the store; LangChain's own ``index`` may have filled it.
    vector_store
        The store. Documents are held under the ids that ``key_encoder`` gives them.
    batch_size
        Documents that are screened and written together.
    cleanup
        Which out-of-date documents are deleted, always at the end of the run, when every source is
        complete. So ``"incremental"`` works here as ``"scoped_full"`` does.
    source_id_key
        Metadata key of, or function for, the source that a document was cut from. Needed for
        ``"incremental"`` and ``"scoped_full"``. With ``"full"`` it says which earlier documents
        are kept when one is held; without it, the store's lineage key does, and if a held
        document has no lineage, nothing is deleted in that run. With it, and any cleanup,
        new documents of a recorded source are judged and written together at the end of the run:
        they are its new version, against which the earlier ones are no evidence. Without it,
        replacements are not known beforehand.
    cleanup_batch_size
        Documents that are deleted together.
    force_update
        Write documents that are recorded already.
    key_encoder
        As in LangChain, its default included, so that existing records stay valid; a new index
        should use ``"blake2b"`` or ``"sha256"``, for which nobody can make a collision. Qdrant
        takes UUIDs only: pass a function that returns one.
    upsert_kwargs
        Passed to ``vector_store.add_documents``.

    Returns
    -------
    GuardedIndexingResult
        LangChain's counts and those of the guard.

    Raises
    ------
    TypeError
        If the store is not a guarded one.
    ragshield_core.model.errors.MalformedEntriesError
        At the end, if documents were refused: all others are written and recorded, and the
        documents that the refused ones were to replace stay.
    PoisonedEntryError
        If documents are suspicious and the policy says ``on_detect="raise"``: the batches before
        are written and recorded, nothing is cleaned up.

    Notes
    -----
    An interrupted run can be repeated: a stored document is durable before it is recorded, and a
    record without a document in the store does not count. Held documents that the source still has
    stay held, without another screening, until a person decides.
    Documents that ``store.release`` has put back are recorded when the next run begins, and cleaned
    up like any other: the quarantine keeps the namespace of their record manager.

    Examples
    --------
    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> from langchain_core.indexing import InMemoryRecordManager
    >>> from langchain_core.vectorstores import InMemoryVectorStore
    >>> from ragshield_core import Guard, Quarantine
    >>> from ragshield_core.detectors import LabelCentroidDetector
    >>> guard = Guard([LabelCentroidDetector()], quarantine=Quarantine("sqlite://"))
    >>> inner = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    >>> store = GuardedVectorStore(inner, guard=guard)
    >>> records = InMemoryRecordManager("example")
    >>> documents = [Document(page_content="thud", metadata={"source": "a.txt"})]
    >>> done = guarded_index(documents, records, store, cleanup="full", source_id_key="source",
    ...                      key_encoder="blake2b")
    >>> done["num_added"], done["num_quarantined"]
    (1, 0)
    """
    remembers = "what LangChain's indexing remembers documents by, e.g. an SQLRecordManager"
    expect("record_manager", record_manager, RecordManager, remembers)
    way_out = "an unguarded store only needs langchain_core.indexing.index"
    expect("vector_store", vector_store, GuardedVectorStore, way_out)
    run = _Run(record_manager, vector_store, source_id_key, batch_size)
    run.replaces = cleanup is not None and source_id_key is not None
    yield own(vector_store.refresh_quarantine)  # a person may have released documents since
    yield from _record_released(record_manager, vector_store, source_id_key)
    options = {
        "batch_size": batch_size,
        # All out-of-date documents are deleted at the end, when every source is complete.
        "cleanup": "scoped_full" if cleanup == "incremental" else cleanup,
        "source_id_key": source_id_key,
        "cleanup_batch_size": cleanup_batch_size,
        "force_update": force_update,
        "key_encoder": key_encoder,
        "upsert_kwargs": upsert_kwargs,
    }
    counts = yield Step(
        partial(index, docs_source, run, run, **options),  # type: ignore[arg-type]
        partial(aindex, docs_source, run, run, **options),  # type: ignore[arg-type]
    )
    return run.result(counts)


aguarded_index = asynchronous(guarded_index)


def _known(groups: Iterable[str | None]) -> list[str]:
    return [source for source in dict.fromkeys(groups) if source is not None]


def _record_released(
    records: RecordManager, store: GuardedVectorStore, source_id_key: SourceIdKey
) -> Steps[None]:
    """Record the documents that a person has released since the last run."""
    noted = yield own(store.quarantine.indexes.ids, records.namespace)
    if noted:
        live = yield asked(store, "get_by_ids", noted)
        recorded = (yield asked(records, "exists", _ids(live))) if live else []
        new = [one for one, known in zip(live, recorded, strict=True) if not known]
        if new:
            yield asked(records, "update", _ids(new), group_ids=_groups(new, source_id_key))
        yield own(_forget_decided, noted, live, records, store)


def _forget_decided(
    noted: Sequence[str],
    live: Sequence[Document],
    records: RecordManager,
    store: GuardedVectorStore,
) -> None:
    """Remove notes on documents that need no decision: recorded, or judged poisoned."""
    undecided = (Status.HELD, Status.RELEASED)  # a released one may wait for others
    some = store.quarantine.prints(ids=noted)
    waiting = {one.id for one in some if one.status in undecided}.difference(_ids(live))
    waiting |= store.quarantine.held_ids(noted)
    decided = [entry_id for entry_id in noted if entry_id not in waiting]
    store.quarantine.indexes.forget(decided, records.namespace)


def _of_records(name: str) -> Any:
    """Return an attribute that is a method of the record manager inside."""
    return property(attrgetter(f"records.{name}"))


class _Run(RecordManager, VectorStore):
    """Go-between for one run: LangChain sees it as both the record manager and the store.

    Only documents in the store are recorded or deleted; held documents are noted in the
    quarantine.
    """

    def __init__(
        self,
        records: RecordManager,
        store: GuardedVectorStore,
        source_id_key: SourceIdKey,
        batch_size: int,
    ) -> None:
        super().__init__(records.namespace)
        self.records = records
        self.store = store
        self.source_id_key = source_id_key
        self.batch_size = batch_size
        self.replaces = False  # whether earlier documents of a source are cleaned up
        # Of the batch at hand:
        self.recorded: set[str] = set()  # whether or not the store still holds them
        self.existing: set[str] = set()  # recorded, and in the store
        self.absent: set[str] = set()  # passed to the store, but not in it
        self.recalled: dict[str, Document] = {}  # recalled because of the batch
        # Of the whole run:
        self.held_new: dict[str, None] = {}  # in the order in which they came
        self.held_updates: dict[str, None] = {}
        self.taken_back: list[str] = []
        self.n_rejected = 0
        self.reports: list[Report] = []
        self.held_of: dict[str, str | None] = {}  # id of a held document -> its source
        self.written: dict[str, Document] = {}
        self.refused: dict[int, str] = {}  # why documents were refused
        # Whether sources are recorded, and the documents of recorded ones, written at the end.
        self.recorded_sources: dict[str, bool] = {}
        self.later: dict[str, dict[str, Document]] = {}
        self.updated: set[str] = set()  # those of the latter that are in the store
        self.how: dict[str, Any] = {}  # arguments of a write
        self.stale: list[str] | None = None  # keys that cleanup still has to delete, once begun

    # Interface of a record manager; mypy expects a twin to fit any record manager

    create_schema, acreate_schema = _of_records("create_schema"), _of_records("acreate_schema")
    get_time, aget_time = _of_records("get_time"), _of_records("aget_time")
    delete_keys, adelete_keys = _of_records("delete_keys"), _of_records("adelete_keys")

    @synchronous
    def exists(self, keys: Sequence[str]) -> Steps[list[bool]]:
        """Begin a batch; return for each key whether it is recorded, and in the store."""
        known = yield asked(self.records, "exists", keys)
        recorded = [key for key, yes in zip(keys, known, strict=True) if yes]
        present = (yield asked(self.store, "get_by_ids", recorded)) if recorded else []
        self.recorded, self.existing = set(recorded), set(_ids(present))
        self.absent, self.recalled = set(), {}
        return [key in self.existing for key in keys]

    aexists = asynchronous(exists)  # type: ignore[arg-type]

    @synchronous
    def update(
        self,
        keys: Sequence[str],
        *,
        group_ids: Sequence[str | None] | None = None,
        time_at_least: float | None = None,
    ) -> Steps[None]:
        """Record the documents in the store, and delete the records of those that left it."""
        left: list[str] = []
        if self.recalled:  # those that a person has released are in the store
            there = _ids((yield asked(self.store, "get_by_ids", list(self.recalled))))
            left = [key for key in self.recalled if key not in there]
        known = (yield asked(self.records, "exists", left)) if left else []
        ours = [key for key, recorded in zip(left, known, strict=True) if recorded]
        self.taken_back += ours
        for key in ours:
            self.held_of[key] = self.source_of(self.recalled[key])
        if gone := [*ours, *(self.absent & self.recorded)]:
            yield own(self.note, gone)
            yield asked(self.records, "delete_keys", gone)
        self.recalled = {}
        rows = [row for row, key in enumerate(keys) if key not in self.absent]
        if rows:
            groups = None if group_ids is None else [group_ids[row] for row in rows]
            how = {"group_ids": groups, "time_at_least": time_at_least}
            yield asked(self.records, "update", [keys[row] for row in rows], **how)

    aupdate = asynchronous(update)  # type: ignore[arg-type]

    @synchronous
    def list_keys(
        self,
        *,
        before: float | None = None,
        after: float | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> Steps[list[str]]:
        """Return the keys that cleanup deletes next; LangChain asks until there are no more."""
        where = {"before": before, "after": after, "group_ids": group_ids}
        if not (self.held_of or self.later):  # nearly always: nothing to decide
            found: list[str] = yield asked(self.records, "list_keys", **where, limit=limit)
            return found
        if self.stale is None:
            self.stale = yield from self._decided(where)
        size = len(self.stale) if limit is None else limit
        part, self.stale = self.stale[:size], self.stale[size:]
        return part

    alist_keys = asynchronous(list_keys)  # type: ignore[arg-type]

    # Interface of a store

    @synchronous
    def add_documents(self, documents: list[Document], **kwargs: Any) -> Steps[list[str]]:
        """Write documents, except those of a source's new version, which waits for all of them."""
        self.how = {**kwargs, "ids": None}  # documents have their own ids
        groups = _groups(documents, self.source_id_key)
        unknown = _known(groups) if self.replaces else []
        unknown = [source for source in unknown if source not in self.recorded_sources]
        self.recorded_sources |= dict.fromkeys(unknown, False)
        if unknown and (yield asked(self.records, "list_keys", group_ids=unknown)):
            for name in unknown:
                known = yield asked(self.records, "list_keys", group_ids=[name])
                self.recorded_sources[name] = bool(known)
        now: list[Document] = []
        for document, source in zip(documents, groups, strict=True):
            if source is None or not self.recorded_sources.get(source):
                now.append(document)
                continue
            entry_id = str(document.id)
            self.later.setdefault(source, {})[entry_id] = document
            self.absent.add(entry_id)
            if entry_id in self.existing:
                self.updated.add(entry_id)
        before: set[str] = yield own(self._held_before, now)
        now = [document for document in now if document.id not in before]
        if now:
            yield from self._write(now, self.how)
        return list(kwargs["ids"])

    aadd_documents = asynchronous(add_documents)  # type: ignore[arg-type]

    @synchronous
    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> Steps[bool | None]:
        """Delete stored documents: held ones wait for a person, not for a cleanup."""
        present = _ids((yield asked(self.store, "get_by_ids", ids or [])))
        if present:
            yield asked(self.store, "delete", present, **kwargs)
        return True

    adelete = asynchronous(delete)  # type: ignore[arg-type]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> NoReturn:
        raise NotImplementedError

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError

    # Outcomes of documents

    def _write(self, documents: Sequence[Document], how: dict[str, Any]) -> Steps[None]:
        """Write documents; go on if some were refused, unless the policy raises."""
        ids, reports = _ids(documents), list[Report]()

        def on_report(report: Report) -> None:
            reports.append(report)
            if how.get("on_report") is not None:
                how["on_report"](report)

        try:
            writing = {**how, "on_report": on_report}
            yield asked(self.store, "add_documents", documents, **writing)
        except MalformedEntriesError as error:
            if self.store.guard.policy.on_detect == "raise":
                raise
            self.refused |= {
                len(self.refused) + n: f"{printable(ids[row], 80)!r}: {reason}"
                for n, (row, reason) in enumerate(error.reasons.items())
            }
        live = yield asked(self.store, "get_by_ids", ids)
        report = reports[0] if reports else Report(batch=NO_ENTRIES)  # if all were refused
        yield own(self._wrote, documents, set(_ids(live)), report)

    def _wrote(self, documents: Sequence[Document], live: set[str], report: Report) -> None:
        """Note the outcomes of documents that were passed to the store."""
        self.reports.append(_remarkable(report))
        ids = _ids(documents)
        absent = set(ids) - live
        self.absent = self.absent.difference(ids) | absent
        # A document that is missing there was not stored, even if the report admits it.
        held = absent | {decision.entry_id for decision in report.quarantined}
        for entry_id, document in zip(ids, documents, strict=True):
            if entry_id in held:
                self._is_held(entry_id, document)
            else:
                self.written[entry_id] = document
        self.note(sorted(held))
        for decision in report.retroactive:
            with suppress(QuarantineError):  # deleted for good since
                entry = self.store.quarantine.show(decision.entry_id).entry
                self.recalled[entry.id] = to_document(entry)

    def _held_before(self, documents: Sequence[Document]) -> set[str]:
        """Return the ids of documents that an earlier run has held unchanged: not judged again.

        Documents that waited for a vector, or for other parts of their version, are judged again.
        """
        quarantine, given = self.store.quarantine, {str(one.id): one for one in documents}
        noted = quarantine.indexes.of(list(given)) if given else {}
        ids = [i for i, names in noted.items() if self.namespace in names]
        stands: dict[str, bool] = {}
        for one in quarantine.list(None, ids=ids) if ids else ():
            kept, came = to_document(one.entry), given[one.id]
            if (kept.page_content, kept.metadata) == (came.page_content, came.metadata):
                held = one.status in (Status.HELD, Status.CONFIRMED)
                waits = lacks_vector(one) or is_part(one)
                stands[one.id] = stands.get(one.id, True) and held and not waits
        found = {entry_id for entry_id, unchanged in stands.items() if unchanged}
        for entry_id in found:
            self._is_held(entry_id, given[entry_id])
        self.absent |= found
        return found

    def _is_held(self, entry_id: str, document: Document) -> None:
        known = entry_id in self.existing or entry_id in self.updated
        (self.held_updates if known else self.held_new)[entry_id] = None
        self.held_of[entry_id] = self.source_of(document)

    def note(self, keys: Sequence[str]) -> None:
        """Note the namespace of held documents, by which they are recorded after a release."""
        self.store.quarantine.indexes.note(keys, self.namespace)

    def source_of(self, document: Document) -> str | None:
        """Return the source of a document: its lineage, if there is no key of sources."""
        if self.source_id_key is not None:
            return _groups([document], self.source_id_key)[0]
        return self.store.keys.claims(document.metadata, str(document.id))[1]

    # Documents that cleanup deletes

    def _decided(self, where: dict[str, Any]) -> Steps[list[str]]:
        """Write postponed documents; return the keys to delete, without those that must stay."""
        for sources in list(self._parts()):
            yield from self._write_later(sources, where["before"])
        stale = yield asked(self.records, "list_keys", **where)
        older = yield from self._older(stale, where["before"])
        # If a part of a source was recalled after it was written, the rest leaves as well.
        if versions := self._in_part(older):
            keeper = self.store._keeper  # noqa: SLF001 - one operation of it
            gone = yield keeper.step(hold_back, keeper, versions)
            self.held_new |= dict.fromkeys(gone)
            yield own(self.note, gone)
            yield asked(self.records, "delete_keys", gone)
        kept = set[str]().union(*older.values())
        if None in self.held_of.values():  # the source of that one is unknown
            kept.update(stale)
        self.n_rejected = len(set(stale) & kept)
        return [key for key in stale if key not in kept]

    def _older(self, stale: Sequence[str], before: float) -> Steps[dict[str, set[str]]]:
        """Return the earlier documents of sources that have held documents, by source."""
        older = {name: set[str]() for name in self.held_of.values() if name is not None}
        if self.source_id_key is not None:
            for name, keys in older.items():
                keys.update(
                    (yield asked(self.records, "list_keys", before=before, group_ids=[name]))
                )
            return older
        for start in range(0, len(stale) if older else 0, self.batch_size):
            part = stale[start : start + self.batch_size]
            for document in (yield asked(self.store, "get_by_ids", part)):
                source = self.source_of(document)
                if source is not None and source in older:
                    older[source].add(str(document.id))
        return older

    def _parts(self) -> Iterator[list[str]]:
        """Yield groups of postponed sources, whose new versions are written together."""
        some: list[str] = []
        n = 0
        for source, documents in self.later.items():
            if some and n + len(documents) > self.batch_size:
                yield some
                some, n = [], 0
            some.append(source)
            n += len(documents)
        if some:
            yield some

    def _write_later(self, sources: Sequence[str], before: float) -> Steps[None]:
        """Write new versions of sources, whole; record the stored documents."""
        documents: dict[str, Document] = {}
        groups: list[str] = []
        versions = []
        for source in sources:
            of = self.later[source]
            older = yield asked(self.records, "list_keys", before=before, group_ids=[source])
            versions.append(NewVersion(source, frozenset(of), frozenset(older)))
            documents |= of
            groups += [source] * len(of)
        ids = list(documents)
        known = yield asked(self.records, "exists", ids)
        self.recorded |= {key for key, recorded in zip(ids, known, strict=True) if recorded}
        how = {**self.how, "batch_size": None, "versions": versions}
        yield from self._write(list(documents.values()), how)
        yield asked(self, "update", ids, group_ids=groups, time_at_least=before)

    def _in_part(self, older: Mapping[str, Collection[str]]) -> list[NewVersion]:
        """Return new versions that are written in part; ``older`` has the rest that stays."""
        parts: dict[str, set[str]] = {}
        for entry_id, document in self.written.items():
            if older.get(name := self.source_of(document) or ""):
                parts.setdefault(name, set()).add(entry_id)
        for entry_id, held_of in self.held_of.items():
            if held_of in parts:
                parts[held_of].add(entry_id)
        return [
            NewVersion(name, frozenset(ids), frozenset(older[name])) for name, ids in parts.items()
        ]

    def result(self, counts: IndexingResult) -> GuardedIndexingResult:
        """Return the counts, corrected for held documents, which LangChain counts as stored."""
        if self.refused:
            raise MalformedEntriesError(self.refused)
        return {
            "num_added": counts["num_added"] - len(self.held_new),
            "num_updated": counts["num_updated"] - len(self.held_updates),
            "num_skipped": counts["num_skipped"],
            "num_deleted": counts["num_deleted"],
            "num_quarantined": len(self.held_new | self.held_updates),
            "num_recalled": len(self.taken_back),
            "num_rejected_updates": self.n_rejected,
            "quarantined": list(self.held_new | self.held_updates),
            "recalled": list(self.taken_back),
            "reports": self.reports,
        }


def _ids(documents: Iterable[Document]) -> list[str]:
    return [str(document.id) for document in documents]


def _groups(documents: Iterable[Document], source_id_key: SourceIdKey) -> list[str | None]:
    """Return the source of each document, or None."""
    if source_id_key is None:
        return [None for _ in documents]
    if isinstance(source_id_key, str):
        return [document.metadata.get(source_id_key) for document in documents]
    return [source_id_key(document) for document in documents]


def _remarkable(report: Report) -> Report:
    """Return a report without the entries that were plainly admitted."""
    rows = [
        row
        for row, decision in sorted(report.remarkable.items())
        if decision.verdict is not Verdict.ADMIT or decision.note
    ]
    return replace(taken(report, rows), n_left_out=len(report.batch) - len(rows))
