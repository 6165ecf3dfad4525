"""Operations that guarded stores and indexes of both frameworks share: release, recall, scan.

A keeper runs them one at a time, after recovery from those that crashed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from ragshield_core.model.arguments import expect_ids
from ragshield_core.store import recalling, reviewing
from ragshield_core.store.inner import in_thread
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.outranked import origins_in
from ragshield_core.store.reconciling import Chosen, Reconciliation, reconciled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ragshield_core.guard import Guard
    from ragshield_core.model.entries import Batch
    from ragshield_core.model.findings import Decision, Report
    from ragshield_core.origin import Origin
    from ragshield_core.quarantine import HeldEntry, Quarantine
    from ragshield_core.tools.audit import ScanReport

P = ParamSpec("P")
T = TypeVar("T")


def in_worker(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method's asynchronous twin: it runs in the thread of a store's writes."""

    @wraps(method)
    async def twin(self: Guarded, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(method, self, *args, **kwargs)
        return await in_thread(work, self._keeper.worker)

    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = f"{method.__qualname__.removesuffix(method.__name__)}{twin.__name__}"
    twin.__doc__ = f"Do as :meth:`{method.__name__}` does, without blocking the event loop."
    return twin


class NewRows(NamedTuple):
    """Rows of a table to write, in columns."""

    ids: Sequence[str]
    texts: Sequence[str]
    metadatas: Sequence[Mapping[str, Any]]
    embeddings: NDArray[np.float32] | None  # (n_rows, dim)


class Adoptable:
    """A guarded store or index that ``adopt`` makes of an inner one."""

    @classmethod
    async def aadopt(cls, inner: Any, **options: Any) -> Self:
        """Do as ``adopt`` does, without blocking the event loop."""
        return await in_thread(partial(cls.adopt, inner, **options))  # type: ignore[attr-defined]


class Guarded:
    """Release, recall, audit and the like for documents or nodes, here called entries.

    The keeper of a store or index does the work step by step; every method has an async twin.
    """

    _keeper: Keeper[Any]

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self._keeper.guard

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of held entries."""
        return self.guard.quarantine

    @property
    def last_report(self) -> Report:
        """The report of the latest write."""
        return self._keeper.last_report

    def __repr__(self) -> str:  # counts and kinds only: it ends up in logs
        guard, kind = self.guard, type(self._keeper.access.inner).__name__
        return (
            f"<{type(self).__name__} over {kind}: {guard.n_known} entries known, "
            f"{'calibrated' if guard.calibrated else 'not calibrated'}; {self.quarantine!r}>"
        )

    def __str__(self) -> str:
        return repr(self)

    def standing(self, ids: Sequence[str]) -> Batch:
        """Return entries as they are stored; missing ids are left out.

        Hidden entries are included, since reviewers read held entries.
        """
        expect_ids(ids)
        return self._keeper.run(self._keeper.stored, ids).entries

    def add_rows(
        self,
        ids: Sequence[str],
        texts: Sequence[str],
        metadatas: Sequence[Mapping[str, Any]],
        embeddings: NDArray[np.float32] | None = None,
    ) -> Report:
        """Screen the rows of a table, and store those that are admitted, as documents or nodes.

        ``ragshield guard ingest`` writes whole files by it.

        Parameters
        ----------
        ids, texts, metadatas
            One per row. A row with an existing id replaces the older revision.
        embeddings
            Shape (n_rows, dim). ``None`` embeds the texts by the store's own model; a vector store
            of LlamaIndex has none.

        Returns
        -------
        Report
            The decisions.
        """
        return self._write_rows(NewRows(ids, texts, metadatas, embeddings))

    async def aadd_rows(
        self,
        ids: Sequence[str],
        texts: Sequence[str],
        metadatas: Sequence[Mapping[str, Any]],
        embeddings: NDArray[np.float32] | None = None,
    ) -> Report:
        """Do as :meth:`add_rows` does, without blocking the event loop."""
        return await asyncio.to_thread(self.add_rows, ids, texts, metadatas, embeddings)

    def release(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: Any = None,
    ) -> tuple[HeldEntry, ...]:
        """Put held entries back, under their own ids and with their stored vectors.

        Entries that were released elsewhere (``ragshield quarantine release`` writes to no store)
        are put back as well. Once no part of a document is held any more, it replaces the stored
        parts of the version before.

        Parameters
        ----------
        ids
            Ids of held entries; in LlamaIndex also of documents, for all their held nodes. The
            released entries replace live entries under the same ids.
        by, note
            The reviewer and the reason, for the quarantine's log.
        embed_model
            Embeds entries that were held without a vector. An index and LangChain's stores have
            models of their own.

        Raises
        ------
        ragshield_core.model.errors.QuarantineError
            If an entry is not held, needs a vector, or cannot be kept by the store. After this
            error and those below, no entry is released.
        ragshield_core.model.errors.InvalidBatchError
            If vectors are of another dimension than the store's.
        ValueError
            If an entry was held without a vector, and there is no embedding model.
        """
        expect_ids(ids)
        keeper, embed = self._keeper, self._embedder(embed_model)
        return keeper.run(reviewing.release, keeper, ids, by, note, embed)

    arelease = in_worker(release)

    def adopt_source(
        self, source: str | None, *, by: str = "ragshield", note: str | None = None, **how: Any
    ) -> tuple[HeldEntry, ...]:
        """Set thresholds for a source that a person has found good; release entries below them.

        The most suspicious share of its entries, as large as the accepted rate, stays held. Later
        entries of the source are judged by the same thresholds.

        Parameters
        ----------
        source
            The name, as in ``guard.sources.questions()``; ``None`` for entries without a source.
        by, note, **how
            As in :meth:`release`.

        Returns
        -------
        tuple[HeldEntry, ...]
            The released entries; empty if none can be released.

        Raises
        ------
        ValueError
            If no entry of the source is held. Other errors are those of :meth:`release`; by then
            the thresholds are set, and a second call releases the entries.
        """
        free = self.guard.sources.adopt(source, by=by)
        return self.release(free, by=by, note=note, **how) if free else ()

    aadopt_source = in_worker(adopt_source)  # type: ignore[arg-type]

    def keep_holding(self, source: str | None, *, by: str = "ragshield") -> None:
        """Close the question about a source, see ``guard.sources.keep_holding``."""
        self.guard.sources.keep_holding(source, by=by)

    def restore(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Put back entries that texts of another lineage have replaced.

        Parameters
        ----------
        ids
            Ids of replaced entries, see ``quarantine.list("replaced")``; in LlamaIndex also of
            documents, for all nodes of the version that was replaced last. Entries that took their
            place, under the same ids or as parts of another lineage of the same document, move to
            quarantine, as in :meth:`recall`.
        by, note
            As in :meth:`release`.

        Raises
        ------
        ragshield_core.model.errors.QuarantineError
            If no entry was replaced under one of the ids; then no entry is put back.
        """
        expect_ids(ids)
        restored = self._keeper.run(reviewing.restore, self._keeper, ids, by, note)
        self._note_restored(restored)
        return restored

    arestore = in_worker(restore)

    def recall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
        note: str | None = None,
    ) -> tuple[str, ...]:
        """Move entries to quarantine; :meth:`release` puts them back.

        They are held as they are stored, durably, before they are deleted. If the store inside
        cannot delete, reads hide them. The guard forgets them and treats them as suspicious.

        Parameters
        ----------
        ids
            Ids of stored entries; missing ids are ignored.
        decisions
            The reasons, one per id. With decisions, entries that a person has released before stay;
            without them these leave too, since a person decides again.
        by, note
            The reviewer and the reason, if no decisions are given; kept in the quarantine.

        Returns
        -------
        tuple[str, ...]
            The ids of the recalled entries.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If a node's metadata holds a label or lineage that is no scalar. The error names it, and
            no entry has left.
        ValueError
            If there are decisions, but not one per id.

        Notes
        -----
        The quarantine may be unable to keep all metadata of a document that bypassed the guard.
        Such a document is hidden instead of deleted, so that nothing is lost.
        """
        expect_ids(ids)
        return self._keeper.run(recalling.recall, self._keeper, ids, decisions, by, note)

    arecall = in_worker(recall)

    def origins(self, ids: Sequence[str] | None = None) -> dict[str, Origin]:
        """Return who vouches for stored entries, by the keys in ``guard.origins``.

        Parameters
        ----------
        ids
            Ids of stored entries; missing and held ones are left out. ``None`` reads the whole
            store, part by part.
        """
        if ids is not None:
            expect_ids(ids)
        return self._keeper.run(origins_in, self._keeper, ids)

    aorigins = in_worker(origins)

    def vouched_by(self, key: str) -> tuple[str, ...]:
        """Return the ids of all stored entries that a key vouches for, directly or not.

        A revoked key vouches for nothing any more, and its entries are still listed:
        ``store.recall(store.vouched_by("wiki"))`` takes them out. Entries that were made from those
        of the key are among them. The whole store is read.

        Parameters
        ----------
        key
            Its name in ``guard.origins``.
        """
        return tuple(i for i, origin in self.origins().items() if key in origin.keys)

    avouched_by = in_worker(vouched_by)

    def purge(self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None) -> int:
        """Delete held entries for good; live entries under the same ids stay.

        Parameters
        ----------
        ids
            Ids of held entries; in LlamaIndex also of documents, for all their held nodes. Other
            ids are ignored.
        by, note
            The reviewer and the reason, for the quarantine's log.

        Returns
        -------
        int
            Number of deleted revisions.

        Raises
        ------
        NotImplementedError
            If the store inside still has a hidden entry and cannot delete.
        """
        expect_ids(ids)
        return self._keeper.run(reviewing.purge, self._keeper, ids, by, note)

    apurge = in_worker(purge)

    def recover(self) -> int:
        """Finish or undo writes of crashed workers; every write begins with this.

        Only a guard that was opened on a database has such writes, see
        :meth:`ragshield_core.Guard.open`. The store inside is asked which entries it has.

        Returns
        -------
        int
            Number of recovered journal events; 0 if the guard is not shared.
        """
        self._keeper.ready()
        return self._keeper.recover()

    arecover = in_worker(recover)

    def rescreen(self) -> int:
        """Screen entries that were admitted although a detector failed; recall suspicious ones.

        Such entries exist only if the policy fails open, see :class:`ragshield_core.Policy`.
        Operations rescreen them once the detector works again;
        :meth:`ragshield_core.learning.writes.Writes.unscreened` names the waiting entries.

        Returns
        -------
        int
            Number of entries that are screened now.
        """
        return self._keeper.run(recalling.rescreen, self._keeper)

    arescreen = in_worker(rescreen)

    def reconcile(self, *, adopt: Chosen = False, forget: Chosen = False) -> Reconciliation:
        """Compare the whole store with its guard, and repair the chosen differences.

        They differ after writes that bypassed the guard, a restored backup, or the loss of a store.
        Every entry is read, part by part. By default nothing changes.

        Parameters
        ----------
        adopt
            Entries to screen as if they were written now, and to learn: True for all that the guard
            does not know or knows in another revision, or ids of some. Suspicious ones are held.
        forget
            Entries to forget: True for all that the store lacks, or ids of some.

        Returns
        -------
        Reconciliation
            Ids of entries that differed before, and of those that were repaired.

        Raises
        ------
        NotImplementedError
            If the store inside cannot name its entries.
        """
        return self._keeper.run(reconciled, self._keeper, adopt=adopt, forget=forget)

    areconcile = in_worker(reconcile)

    def refresh_quarantine(self) -> None:
        """Ask the quarantine again which entries are held.

        This is needed only if another process, or a person working in the quarantine itself, holds
        or judges entries that stay in the store inside. A guard opened on a database checks the
        quarantine before every read.
        """
        self._keeper.refresh()

    def scan(
        self,
        fpr: float = 0.01,
        clean_ids: Iterable[str] | None = None,
        *,
        quarantine: bool = False,
        seed: int = 0,
    ) -> ScanReport:
        """Audit all stored entries, each judged against the others.

        The audit builds the guard's detectors anew, so the guard itself does not change. Writes may
        go on while the audit runs.

        Parameters
        ----------
        fpr, clean_ids, seed
            As in :func:`ragshield_core.tools.audit.scan`.
        quarantine
            Whether to hold the findings, durably, before they are deleted; :meth:`release` puts
            them back. By default nothing changes.

        Returns
        -------
        ScanReport
            Findings, worst first. With ``quarantine=True``, entries that stayed, because a person
            has released them before or they changed meanwhile, are admitted with a note.
        """
        keeper = self._keeper
        keeper.ready()
        report = recalling.scan(keeper, fpr, clean_ids, seed)
        if quarantine and report.found:
            report = keeper.run(recalling.take_out, keeper, report)
        return report

    ascan = in_worker(scan)

    # Hooks that differ by framework

    def _write_rows(self, rows: NewRows) -> Report:
        """Write rows as documents or nodes."""
        raise NotImplementedError

    def _embedder(self, model: Any) -> Any:
        """Return the model that embeds entries which were held without vectors."""
        return model

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:
        """Note that documents are restored; an index overrides this."""
