"""LangChain's indexing API over a guarded store, with a record manager that is told the truth.

``langchain_core.indexing.index`` records every document that it hands to the store, whatever
became of it: one that is held in quarantine would count as added, be skipped for ever after, and
cleanup would delete the good version that it was to replace; a guarded store therefore refuses it.
Here the same function runs between two go-betweens:

- a document is recorded if, and only if, the store holds it;
- a new version of a source goes in whole, in place of the one before, or not at all: where one of
  its documents is held, or taken back, all of them wait in quarantine, and the earlier ones stay;
- what a cleanup is going to delete is no evidence against what replaces it.
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
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn

from langchain_core.document_loaders import BaseLoader
from langchain_core.documents import Document
from langchain_core.indexing import IndexingResult, RecordManager, aindex, index
from langchain_core.vectorstores import VectorStore

from ragshield_core import Report
from ragshield_core.adapters.malformed import taken
from ragshield_core.adapters.steps import Step, Steps, adone, asked, done, own
from ragshield_core.adapters.updates import NewVersion
from ragshield_core.arguments import expect_ids
from ragshield_core.claims import lineage_of
from ragshield_core.errors import InvalidBatchError, MalformedEntriesError, QuarantineError
from ragshield_core.findings import Verdict, printable
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_langchain.audit import NO_ENTRIES
from ragshield_langchain.checks import expect, expect_records
from ragshield_langchain.vectorstore import GuardedVectorStore

SourceIdKey = str | Callable[[Document], str] | None
KeyEncoder = Literal["sha1", "sha256", "sha512", "blake2b"] | Callable[[Document], str]
Cleanup = Literal["incremental", "full", "scoped_full"] | None


class GuardedIndexingResult(IndexingResult):
    """What one run of :func:`guarded_index` did.

    LangChain's counts tell of what the store took: ``num_added`` and ``num_updated`` are without
    those that are held, ``num_deleted`` without those that were recalled.
    """

    num_quarantined: int
    """Documents of this run that are held in quarantine; neither added nor updated."""
    num_recalled: int
    """Documents indexed earlier, in this run or before, that were taken back into quarantine."""
    num_rejected_updates: int
    """Out-of-date documents that cleanup left, because their update is held."""
    quarantined: list[str]
    """The ids of those ``num_quarantined``."""
    recalled: list[str]
    """The ids of those ``num_recalled``."""
    reports: list[Report]
    """One per batch that was written, in order. Entries that were plainly admitted are counted in
    their summaries, and left out otherwise (:attr:`ragshield_core.Report.n_left_out`)."""


def guarded_index(  # noqa: PLR0913 - LangChain's own arguments
    docs_source: BaseLoader | Iterable[Document],
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
) -> GuardedIndexingResult:
    """Index documents into a guarded store; a drop-in for ``langchain_core.indexing.index``.

    Parameters
    ----------
    docs_source
        A loader, or documents; generators are read batch by batch.
    record_manager
        Remembers what is in the store; one that LangChain's own ``index`` has filled will do.
    vector_store
        The store. Documents are held under the ids that ``key_encoder`` gives them.
    batch_size
        Documents that are screened and written together.
    cleanup
        Which out-of-date documents are deleted, always at the end of the run, when all of a source
        has come. So ``"incremental"`` does here what ``"scoped_full"`` does.
    source_id_key
        Metadata key of, or function for, what a document was cut from. Needed for
        ``"incremental"`` and ``"scoped_full"``. With ``"full"`` it says which earlier documents
        are kept when one is held; without it, that is decided by the store's lineage key, and
        where a held document has neither, nothing is deleted in that run. With it, and any cleanup,
        new documents of a source that is recorded are judged and written at the end of the run, all
        together: they are its new version, against which the earlier ones are no evidence. Without
        it, nobody knows beforehand what replaces what.
    cleanup_batch_size
        Documents that are deleted together.
    force_update
        Write documents that are recorded already.
    key_encoder
        As of LangChain, its default included, so that existing records stay valid; a new index
        should use ``"blake2b"`` or ``"sha256"``, against which no collision can be made. Qdrant
        takes UUIDs only: pass a function that returns one.
    upsert_kwargs
        Handed to ``vector_store.add_documents``.

    Returns
    -------
    GuardedIndexingResult
        LangChain's counts and those of the guard.

    Raises
    ------
    TypeError
        If the store is not a guarded one.
    ragshield_core.errors.MalformedEntriesError
        At the end, if documents could not be taken in: all others are written and recorded, and
        what these were to replace stays.
    PoisonedEntryError
        If documents are suspicious and the policy says ``on_detect="raise"``: the batches before
        are written and recorded, nothing is cleaned up.

    Notes
    -----
    A run that was cut short can be repeated: whatever the store holds is durable before it is
    recorded, and a record without a document in the store does not count as one. Held documents
    that the source still brings stay held, without another look, until a person decides;
    :func:`release_indexed` releases and records in one go. What ``store.release`` has put back
    instead is recorded when the next run begins, and cleaned up like any other: the quarantine
    keeps the namespace of the record manager by which it came.

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
    options = {
        "batch_size": batch_size,
        "cleanup_batch_size": cleanup_batch_size,
        "force_update": force_update,
        "key_encoder": key_encoder,
        "upsert_kwargs": upsert_kwargs,
    }
    among = docs_source, record_manager, vector_store
    return done(_indexing(*among, cleanup, source_id_key, options))


async def aguarded_index(  # noqa: PLR0913 - as above
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
) -> GuardedIndexingResult:
    """Do as :func:`guarded_index` does, with asynchronous sources, records and writes."""
    options = {
        "batch_size": batch_size,
        "cleanup_batch_size": cleanup_batch_size,
        "force_update": force_update,
        "key_encoder": key_encoder,
        "upsert_kwargs": upsert_kwargs,
    }
    among = docs_source, record_manager, vector_store
    return await adone(_indexing(*among, cleanup, source_id_key, options))


def _indexing(
    docs_source: Any,
    records: RecordManager,
    store: GuardedVectorStore,
    cleanup: Cleanup,
    source_id_key: SourceIdKey,
    options: dict[str, Any],
) -> Steps[GuardedIndexingResult]:
    expect_records(records)
    run = _Run(store, records, source_id_key, replaces=cleanup is not None)
    yield own(store.refresh_quarantine)  # a person may have released documents since
    yield from _record_released(records, store, source_id_key)
    between = _Records(records, run, options["batch_size"]), _Destination(run, records)
    options = {**options, "source_id_key": source_id_key}
    # All out-of-date documents are deleted at the end, when all of a source has come.
    options["cleanup"] = "scoped_full" if cleanup == "incremental" else cleanup
    counts = yield Step(
        partial(index, docs_source, *between, **options),
        partial(aindex, docs_source, *between, **options),
    )
    return run.result(counts)


def release_indexed(
    ids: Sequence[str],
    record_manager: RecordManager,
    vector_store: GuardedVectorStore,
    *,
    source_id_key: SourceIdKey = None,
    by: str = "ragshield",
    note: str | None = None,
) -> tuple[HeldEntry, ...]:
    """Release documents that :func:`guarded_index` has held, and record them as indexed.

    The next run then takes them for what they are: it skips them while the source brings them,
    deletes the versions that they replace, and deletes them once the source has others.

    Parameters
    ----------
    ids
        Of held documents. Those that are in the store already are recorded only, so that a call
        that was cut short can be repeated.
    record_manager, vector_store, source_id_key
        As of :func:`guarded_index`.
    by, note
        Who decided, and why; kept in the quarantine's log.

    Returns
    -------
    tuple[HeldEntry, ...]
        What was released.

    Raises
    ------
    ragshield_core.errors.QuarantineError
        If one of them is neither held nor in the store; nothing is released then.
    """
    return done(_releasing(ids, record_manager, vector_store, source_id_key, by, note))


async def arelease_indexed(
    ids: Sequence[str],
    record_manager: RecordManager,
    vector_store: GuardedVectorStore,
    *,
    source_id_key: SourceIdKey = None,
    by: str = "ragshield",
    note: str | None = None,
) -> tuple[HeldEntry, ...]:
    """Do as :func:`release_indexed` does, with an asynchronous record manager."""
    return await adone(_releasing(ids, record_manager, vector_store, source_id_key, by, note))


def _releasing(
    ids: Sequence[str],
    records: RecordManager,
    store: GuardedVectorStore,
    source_id_key: SourceIdKey,
    by: str,
    note: str | None,
) -> Steps[tuple[HeldEntry, ...]]:
    expect_ids(ids)
    expect_records(records)
    _expect_guarded(store)
    present = yield asked(store, "get_by_ids", ids)
    held = yield own(_still_held, ids, store, present)
    released: tuple[HeldEntry, ...] = ()
    if held:
        released = yield asked(store, "release", held, by=by, note=note)
    parts = yield own(_with_parts, ids, records, store)
    documents = yield asked(store, "get_by_ids", parts)
    if documents:
        groups = _groups(documents, source_id_key)
        yield asked(records, "update", _ids(documents), group_ids=groups)
        if sources := _known(groups):  # the version before has left with the release
            recorded = yield asked(records, "list_keys", group_ids=sources)
            there = yield asked(store, "get_by_ids", recorded)
            yield asked(records, "delete_keys", sorted(set(recorded).difference(_ids(there))))
    return released


def _with_parts(ids: Sequence[str], records: RecordManager, store: GuardedVectorStore) -> list[str]:
    """Return ids with all that this index has held: parts come in with others of their version."""
    return list(dict.fromkeys([*ids, *store.quarantine.indexes.ids(records.namespace)]))


def _known(groups: Iterable[str | None]) -> list[str]:
    return [source for source in dict.fromkeys(groups) if source is not None]


def _record_released(
    records: RecordManager, store: GuardedVectorStore, source_id_key: SourceIdKey
) -> Steps[None]:
    """Record what a person has released since, other than by :func:`release_indexed`."""
    noted = yield own(store.quarantine.indexes.ids, records.namespace)
    if noted:
        live = yield asked(store, "get_by_ids", noted)
        recorded = (yield asked(records, "exists", _ids(live))) if live else []
        if new := _not_recorded(live, recorded):
            yield asked(records, "update", _ids(new), group_ids=_groups(new, source_id_key))
        yield own(_settle, noted, live, records, store)


def _settle(
    noted: Sequence[str],
    live: Sequence[Document],
    records: RecordManager,
    store: GuardedVectorStore,
) -> None:
    """Note no longer what nobody has to decide about: it is recorded, or was judged poisoned."""
    open_still = (Status.HELD, Status.RELEASED)  # a released one may wait for others
    some = store.quarantine.prints(ids=noted)
    waiting = {one.id for one in some if one.status in open_still}.difference(_ids(live))
    waiting |= store.quarantine.held_ids(noted)
    decided = [entry_id for entry_id in noted if entry_id not in waiting]
    store.quarantine.indexes.forget(decided, records.namespace)


def _not_recorded(documents: Sequence[Document], recorded: Sequence[bool]) -> list[Document]:
    return [d for d, known in zip(documents, recorded, strict=True) if not known]


class _Run:
    """What the two go-betweens of one run know of each other."""

    def __init__(
        self,
        store: GuardedVectorStore,
        records: RecordManager,
        source_id_key: SourceIdKey,
        *,
        replaces: bool,
    ) -> None:
        _expect_guarded(store)
        self.store = store
        self.name = records.namespace
        self.source_id_key = source_id_key
        self.replaces = replaces and source_id_key is not None  # earlier documents of a source
        self.start: float | None = None  # when the run began, by the clock of the records
        # Of the batch at hand:
        self.keys: set[str] = set()
        self.recorded: set[str] = set()  # whether or not the store still holds them
        self.existing: set[str] = set()  # recorded, and in the store
        self.updated: set[str] = set()  # the same, of all that was put off
        self.absent: set[str] = set()  # handed over, but not in the store
        self.recalled: dict[str, Document] = {}  # taken back because of it
        # Of the whole run:
        self.held_new: dict[str, None] = {}  # in the order in which they came
        self.held_updates: dict[str, None] = {}
        self.taken_back: list[str] = []
        self.n_rejected = 0
        self.reports: list[Report] = []
        self.sources: set[str] = set()  # that have held documents
        self.lineages: set[str | None] = set()  # of held documents
        self.held_of: dict[str, str] = {}  # id of a held document -> its source, or lineage
        self.written: dict[str, Document] = {}
        self.refused: dict[int, str] = {}  # why documents could not be taken in
        # Sources, whether they are recorded; and of those that are, what goes in at the end.
        self.recorded_sources: dict[str, bool] = {}
        self.later: dict[str, dict[str, Document]] = {}
        self.how: dict[str, Any] = {}  # arguments of a write

    def begin(self, keys: Sequence[str], recorded: Sequence[bool]) -> list[str]:
        """Start a batch; return the keys that are recorded."""
        self.keys = set(keys)
        self.recorded = {key for key, known in zip(keys, recorded, strict=True) if known}
        self.absent, self.recalled = set(), {}
        return [key for key in keys if key in self.recorded]

    def found(self, keys: Sequence[str], documents: Sequence[Document]) -> list[bool]:
        """Note what the store holds of the recorded keys; return for each key whether it does."""
        self.existing = set(_ids(documents))
        return [key in self.existing for key in keys]

    def wrote(
        self,
        documents: Sequence[Document],
        ids: Sequence[str],
        live: Sequence[Document],
        report: Report,
    ) -> None:
        """Note what became of documents that were handed to the store."""
        self.reports.append(_remarkable(report))
        absent = set(ids) - set(_ids(live))
        self.absent = self.absent.difference(ids) | absent
        # What is not there was not stored, whatever the report says.
        held = absent | {decision.entry_id for decision in report.quarantined}
        for entry_id, document in zip(ids, documents, strict=True):
            if entry_id in held:
                known = entry_id in self.existing or entry_id in self.updated
                (self.held_updates if known else self.held_new)[entry_id] = None
                self.protect(document)
            else:
                self.written[entry_id] = document
        self.note(sorted(held))
        for decision in report.retroactive:
            try:
                entry = self.store.quarantine.show(decision.entry_id).entry
            except QuarantineError:  # deleted for good since
                continue
            document = Document(id=entry.id, page_content=entry.text, metadata=dict(entry.metadata))
            self.recalled[decision.entry_id] = document

    def unknown(self, documents: Sequence[Document]) -> list[str]:
        """Return the sources of documents of which nobody has looked yet whether they are recorded.

        ``None`` is no source; and where nothing is cleaned up, nothing is a new version.
        """
        found = _known(_groups(documents, self.source_id_key)) if self.replaces else []
        return [source for source in found if source not in self.recorded_sources]

    def put_off(
        self, documents: Sequence[Document], ids: Sequence[str]
    ) -> tuple[list[Document], list[str]]:
        """Return what is written now: new versions of sources are, once all of them has come."""
        now: list[tuple[Document, str]] = []
        groups = _groups(documents, self.source_id_key)
        for document, entry_id, source in zip(documents, ids, groups, strict=True):
            if source is not None and self.recorded_sources.get(source):
                self.later.setdefault(source, {})[entry_id] = document
                self.absent.add(entry_id)
                if entry_id in self.existing:
                    self.updated.add(entry_id)
            else:
                now.append((document, entry_id))
        return [document for document, _ in now], [entry_id for _, entry_id in now]

    def parts(self, size: int) -> Iterator[list[str]]:
        """Yield sources whose new versions are written together, those put off until now."""
        some: list[str] = []
        n = 0
        for source, documents in self.later.items():
            if some and n + len(documents) > size:
                yield some
                some, n = [], 0
            some.append(source)
            n += len(documents)
        if some:
            yield some

    @contextmanager
    def refusing(self, ids: Sequence[str]) -> Iterator[None]:
        """Go on where documents could not be taken in, unless the policy raises."""
        try:
            yield
        except MalformedEntriesError as error:
            if self.store.guard.policy.on_detect == "raise":
                raise
            self.refused |= {
                len(self.refused) + n: f"{printable(ids[row], 80)!r}: {reason}"
                for n, (row, reason) in enumerate(error.reasons.items())
            }

    def left(self, present: Sequence[Document]) -> list[str]:
        """Return which of the recalled ones have really left: a person's release stands."""
        return [key for key in self.recalled if key not in set(_ids(present))]

    def forget(self, recalled: Sequence[str], known: Sequence[bool]) -> list[str]:
        """Return the keys whose records are to go, since the store does not hold them."""
        ours = [key for key, recorded in zip(recalled, known, strict=True) if recorded]
        self.taken_back += ours
        for key in ours:
            self.protect(self.recalled[key])
        return [*ours, *(self.absent & self.recorded)]

    def note(self, keys: Sequence[str]) -> None:
        """Note where held documents came from that are not recorded, for when they are released."""
        self.store.quarantine.indexes.note(keys, self.name)

    def protect(self, document: Document) -> None:
        """Keep what is in the store from the same source."""
        (source,) = _groups([document], self.source_id_key)
        lineage = self.lineage(document)
        if (name := lineage if source is None else source) is not None:
            self.held_of[str(document.id)] = name
        if source is not None:
            self.sources.add(source)
        if source is None or lineage is not None:
            self.lineages.add(lineage)

    def in_part(self, older: Mapping[str, Collection[str]]) -> list[NewVersion]:
        """Return the new versions that are written in part, of which the ones before stay.

        Parameters
        ----------
        older
            What stays, by source, or by lineage.
        """
        written: dict[str, set[str]] = {}
        of = _groups(self.written.values(), self.source_id_key)
        for (entry_id, document), source in zip(self.written.items(), of, strict=True):
            name = self.lineage(document) if source is None else source
            if name is not None and older.get(name):
                written.setdefault(name, set()).add(entry_id)
        parts: dict[str, set[str]] = {}
        for entry_id, name in self.held_of.items():
            parts.setdefault(name, set()).add(entry_id)
        return [
            NewVersion(name, frozenset(ids | parts.get(name, set())), frozenset(older[name]))
            for name, ids in written.items()
        ]

    @property
    def as_expected(self) -> bool:
        """Whether all that is out of date can go: nothing was held, nothing was put off."""
        return not (self.sources or self.lineages or self.later)

    def lineage(self, document: Document) -> str | None:
        """Return what the store takes for the document's lineage."""
        keys = self.store.keys
        try:
            return lineage_of(document.metadata, str(document.id), keys.lineage)[0]
        except InvalidBatchError:  # written past the guard, which would have refused it
            return None

    def result(self, counts: IndexingResult) -> GuardedIndexingResult:
        """Return the counts, of which LangChain takes the held ones for stored.

        Raises
        ------
        MalformedEntriesError
            If documents could not be taken in.
        """
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


class _Records(RecordManager):
    """Between LangChain and the record manager: what is not in the store is not recorded."""

    def __init__(self, records: RecordManager, run: _Run, batch_size: int) -> None:
        super().__init__(records.namespace)
        self._records = records
        self._run = run
        self._size = batch_size
        self._listed = False  # whether cleanup has begun
        self._stale: list[str] = []  # what it is still to delete

    def create_schema(self) -> None:
        self._records.create_schema()

    async def acreate_schema(self) -> None:
        await self._records.acreate_schema()

    def get_time(self) -> float:
        now = self._records.get_time()
        self._run.start = now if self._run.start is None else self._run.start
        return now

    async def aget_time(self) -> float:
        now = await self._records.aget_time()
        self._run.start = now if self._run.start is None else self._run.start
        return now

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return done(self._existing(keys))

    async def aexists(self, keys: Sequence[str]) -> list[bool]:
        return await adone(self._existing(keys))

    def _existing(self, keys: Sequence[str]) -> Steps[list[bool]]:
        run = self._run
        recorded = run.begin(keys, (yield asked(self._records, "exists", keys)))
        present = (yield asked(run.store, "get_by_ids", recorded)) if recorded else []
        return run.found(keys, present)

    def update(
        self,
        keys: Sequence[str],
        *,
        group_ids: Sequence[str | None] | None = None,
        time_at_least: float | None = None,
    ) -> None:
        done(self._updating(keys, group_ids, time_at_least))

    async def aupdate(
        self,
        keys: Sequence[str],
        *,
        group_ids: Sequence[str | None] | None = None,
        time_at_least: float | None = None,
    ) -> None:
        await adone(self._updating(keys, group_ids, time_at_least))

    def _updating(
        self,
        keys: Sequence[str],
        group_ids: Sequence[str | None] | None,
        time_at_least: float | None,
    ) -> Steps[None]:
        run, records = self._run, self._records
        left: list[str] = []
        if run.recalled:
            left = run.left((yield asked(run.store, "get_by_ids", list(run.recalled))))
        known = (yield asked(records, "exists", left)) if left else []
        if gone := run.forget(left, known):
            yield own(run.note, gone)
            yield asked(records, "delete_keys", gone)
        run.recalled = {}
        present, groups = _without(run.absent, keys, group_ids)
        if present:
            how = {"group_ids": groups, "time_at_least": time_at_least}
            yield asked(records, "update", present, **how)

    def list_keys(
        self,
        *,
        before: float | None = None,
        after: float | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[str]:
        where = {"before": before, "after": after, "group_ids": group_ids}
        if self._run.as_expected:  # nearly always, and nothing to decide
            return self._records.list_keys(**where, limit=limit)  # type: ignore[arg-type]
        if not self._listed:
            done(self._decided(where, limit))
        return self._next(limit)

    async def alist_keys(
        self,
        *,
        before: float | None = None,
        after: float | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[str]:
        where = {"before": before, "after": after, "group_ids": group_ids}
        if self._run.as_expected:
            return await self._records.alist_keys(**where, limit=limit)  # type: ignore[arg-type]
        if not self._listed:
            await adone(self._decided(where, limit))
        return self._next(limit)

    def delete_keys(self, keys: Sequence[str]) -> None:
        self._records.delete_keys(keys)

    async def adelete_keys(self, keys: Sequence[str]) -> None:
        await self._records.adelete_keys(keys)

    def _decided(self, where: dict[str, Any], limit: int | None) -> Steps[None]:
        """Write what was put off; decide what cleanup is to delete, and what is to stay with it."""
        run, records, store = self._run, self._records, self._run.store
        before = where["before"]
        for sources in list(run.parts(self._size)):
            yield from self._write_later(sources, before)
        stale = yield asked(records, "list_keys", **where)
        older: dict[str, set[str]] = {}  # what stays, by source, or lineage
        for source in sorted(run.sources):
            keys = yield asked(records, "list_keys", before=before, group_ids=[source])
            older[source] = set(keys)
        kept = set[str]().union(*older.values())
        if run.lineages and where["group_ids"] is None:
            for keys in _parts([key for key in stale if key not in kept], limit):
                found = yield asked(store, "get_by_ids", keys)
                same = self._same_lineage(found)
                kept |= same
                for document in found:
                    lineage = run.lineage(document)
                    if lineage is not None and str(document.id) in same:
                        older.setdefault(lineage, set()).add(str(document.id))
        # Of a source of which a part was taken back after it was written, the rest leaves as well.
        versions = run.in_part(older)
        if versions:
            gone = yield store._hold_back(versions)  # noqa: SLF001
            run.held_new |= dict.fromkeys(gone)
            yield own(run.note, gone)
            yield asked(records, "delete_keys", gone)
        self._listed = True
        self._stale = [key for key in stale if key not in kept]
        run.n_rejected = len(stale) - len(self._stale)

    def _write_later(self, sources: Sequence[str], before: float) -> Steps[None]:
        """Write new versions of sources, whole; record what went in."""
        run, records, store = self._run, self._records, self._run.store
        documents: dict[str, Document] = {}
        groups: list[str] = []
        versions = []
        for source in sources:
            of = run.later[source]
            older = yield asked(records, "list_keys", before=before, group_ids=[source])
            versions.append(NewVersion(source, frozenset(of), frozenset(older)))
            documents |= of
            groups += [source] * len(of)
        ids = list(documents)
        reports, how = _reported({**run.how, "ids": ids, "batch_size": None, "versions": versions})
        with run.refusing(ids):
            yield asked(store, "add_documents", list(documents.values()), **how)
        live = yield asked(store, "get_by_ids", ids)
        run.recorded |= set((yield from self._recorded(ids)))
        yield own(run.wrote, list(documents.values()), ids, live, _first(reports))
        yield from self._updating(ids, groups, before)

    def _recorded(self, ids: Sequence[str]) -> Steps[list[str]]:
        known = yield asked(self._records, "exists", ids)
        return [key for key, recorded in zip(ids, known, strict=True) if recorded]

    def _same_lineage(self, documents: Sequence[Document]) -> set[str]:
        """Return the ids of documents that may be earlier versions of held ones."""
        lineages = self._run.lineages
        if None in lineages:  # of that one nobody knows where it belongs
            return set(_ids(documents))
        return {str(d.id) for d in documents if self._run.lineage(d) in lineages}

    def _next(self, limit: int | None) -> list[str]:
        """Return what is to be deleted next; LangChain asks until there is no more."""
        size = len(self._stale) if limit is None else limit
        part, self._stale = self._stale[:size], self._stale[size:]
        return part


class _Destination(VectorStore):
    """Between LangChain and the store: notes what was held, deletes only what is stored."""

    def __init__(self, run: _Run, records: RecordManager) -> None:
        self._run, self._records = run, records

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        return done(self._adding(documents, kwargs))

    async def aadd_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        return await adone(self._adding(documents, kwargs))

    def _adding(self, documents: list[Document], kwargs: dict[str, Any]) -> Steps[list[str]]:
        run, records, store = self._run, self._records, self._run.store
        run.how, given = kwargs, list(kwargs["ids"])
        unknown = run.unknown(documents)
        if unknown and (yield asked(records, "list_keys", group_ids=unknown)):
            for source in unknown:
                known = yield asked(records, "list_keys", group_ids=[source])
                run.recorded_sources[source] = bool(known)
        run.recorded_sources = dict.fromkeys(unknown, False) | run.recorded_sources
        documents, ids = run.put_off(documents, given)
        reports, kwargs = _reported({**kwargs, "ids": None})  # as documents have them
        if documents:
            with run.refusing(ids):
                yield asked(store, "add_documents", documents, **kwargs)
            live = yield asked(store, "get_by_ids", ids)
            yield own(run.wrote, documents, ids, live, _first(reports))
        return given

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        # A document that is only in quarantine waits for a person, not for a cleanup.
        present = _ids(self._run.store.get_by_ids(ids or []))
        return self._run.store.delete(present, **kwargs) if present else True

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        present = _ids(await self._run.store.aget_by_ids(ids or []))
        return await self._run.store.adelete(present, **kwargs) if present else True

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> NoReturn:
        raise NotImplementedError

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError


def _reported(kwargs: dict[str, Any]) -> tuple[list[Report], dict[str, Any]]:
    """Return a list that the report of a write goes into, and the arguments that see to it."""
    reports: list[Report] = []
    theirs = kwargs.get("on_report")

    def on_report(report: Report) -> None:
        reports.append(report)
        if theirs is not None:
            theirs(report)

    return reports, {**kwargs, "on_report": on_report}


def _first(reports: Sequence[Report]) -> Report:
    """Return the report of a write, of nothing where all was refused."""
    return reports[0] if reports else Report(batch=NO_ENTRIES)


def _expect_guarded(store: object) -> None:
    way_out = "what is not guarded needs no more than langchain_core.indexing.index"
    expect("vector_store", store, GuardedVectorStore, way_out)


def _ids(documents: Iterable[Document]) -> list[str]:
    return [str(document.id) for document in documents]


def _groups(documents: Iterable[Document], source_id_key: SourceIdKey) -> list[str | None]:
    """Return the source of each document, or None."""
    if source_id_key is None:
        return [None for _ in documents]
    if isinstance(source_id_key, str):
        return [document.metadata.get(source_id_key) for document in documents]
    return [source_id_key(document) for document in documents]


def _without(
    absent: set[str], keys: Sequence[str], group_ids: Sequence[str | None] | None
) -> tuple[list[str], list[str | None] | None]:
    rows = [row for row, key in enumerate(keys) if key not in absent]
    groups = None if group_ids is None else [group_ids[row] for row in rows]
    return [keys[row] for row in rows], groups


def _parts(keys: Sequence[str], size: int | None) -> Iterable[Sequence[str]]:
    step = size or max(1, len(keys))
    return (keys[start : start + step] for start in range(0, len(keys), step))


def _still_held(
    ids: Sequence[str], store: GuardedVectorStore, present: Sequence[Document]
) -> list[str]:
    """Return the ids to release: those that are held, and those that only an error can answer."""
    held = store.quarantine.held_ids(ids)
    done = set(_ids(present)) - held
    return [entry_id for entry_id in ids if entry_id not in done]


def _remarkable(report: Report) -> Report:
    """Return a report without the entries that were simply admitted."""
    rows = [
        row
        for row, decision in sorted(report.remarkable.items())
        if decision.verdict is not Verdict.ADMIT or decision.note
    ]
    return replace(taken(report, rows), n_left_out=len(report.batch) - len(rows))
