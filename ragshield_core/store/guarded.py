"""Operations that guarded stores and indexes of both frameworks share: release, recall, scan.

A keeper runs them one at a time, after recovery from those that crashed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from ragshield_core.model.arguments import expect_ids
from ragshield_core.store import recalling, reviewing
from ragshield_core.store.inner import in_thread
from ragshield_core.store.keeper import Keeper
from ragshield_core.store.reconciling import Chosen, Reconciliation, reconciled

if TYPE_CHECKING:
    from ragshield_core.guard import Guard
    from ragshield_core.model.entries import Batch
    from ragshield_core.model.findings import Decision, Report
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


class AnswersSources:
    """Answers to the questions that a guard asks about sources."""

    @property
    @abstractmethod
    def guard(self) -> Guard:
        """The guard."""

    @abstractmethod
    def release(self, *args: Any, **kwargs: Any) -> tuple[HeldEntry, ...]:
        """Put held entries back."""

    def adopt_source(
        self, source: str | None, *, by: str = "ragshield", note: str | None = None, **how: Any
    ) -> tuple[HeldEntry, ...]:
        """Take thresholds for a source that a person has found to be good; release entries below.

        The most suspicious share of its entries, as large as the accepted rate, stays held. Later
        entries of the source are judged by the same thresholds.

        Parameters
        ----------
        source
            Its name, as ``guard.sources.questions()`` has it; ``None`` for entries that name none.
        by, note, **how
            As of :meth:`release`.

        Returns
        -------
        tuple[HeldEntry, ...]
            The released entries; empty if nothing comes free.

        Raises
        ------
        ValueError
            If nothing of such a source is held. Other errors are those of :meth:`release`; then the
            thresholds are taken, and a second call releases.
        """
        free = self.guard.sources.adopt(source, by=by)
        return self.release(free, by=by, note=note, **how) if free else ()

    def keep_holding(self, source: str | None, *, by: str = "ragshield") -> None:
        """Close the question about a source, see ``guard.sources.keep_holding``."""
        self.guard.sources.keep_holding(source, by=by)


class Guarded(AnswersSources):
    """Release, recall, audit and the like, of documents or nodes, here called entries.

    A store or index has a keeper, which does the work step by step; every method has an async twin.
    """

    _keeper: Keeper[Any]

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self._keeper.guard

    @property
    def quarantine(self) -> Quarantine:
        """Where held entries are."""
        return self.guard.quarantine

    @property
    def last_report(self) -> Report:
        """What was decided at the latest write."""
        return self._keeper.last_report

    def __repr__(self) -> str:  # counts and kinds only: it ends up in logs
        guard, kind = self.guard, type(self._keeper.access.inner).__name__
        return (
            f"<{type(self).__name__} over {kind}: {guard.n_known} entries known, "
            f"{'calibrated' if guard.calibrated else 'not calibrated'}; {self.quarantine!r}>"
        )

    def __str__(self) -> str:
        return repr(self)

    @classmethod
    async def aadopt(cls, inner: Any, **options: Any) -> Self:
        """Do as ``adopt`` does, without blocking the event loop."""
        return await in_thread(partial(cls.adopt, inner, **options))  # type: ignore[attr-defined]

    def standing(self, ids: Sequence[str]) -> Batch:
        """Return entries as the store has them; missing ones are left out.

        Hidden entries are among them, since reviewers read held entries.
        """
        expect_ids(ids)
        return self._keeper.run(self._keeper.stored, ids).entries

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
            Of held entries, or, in LlamaIndex, of documents: all nodes of theirs that are held.
            They replace the live entries under the same ids.
        by, note
            Who decided, and why; kept in the quarantine's log.
        embed_model
            For entries that were held without a vector. An index, and LangChain's stores, have
            their own.

        Raises
        ------
        ragshield_core.model.errors.QuarantineError
            If one of them is not held, needs a vector, or cannot be kept by the store; nothing is
            released then, as with the following.
        ragshield_core.model.errors.InvalidBatchError
            If vectors are of another dimension than the store's.
        ValueError
            If an entry was held without a vector, and there is no embedding model.
        """
        expect_ids(ids)
        keeper, embed = self._keeper, self._embedder(embed_model)
        return keeper.run(reviewing.release, keeper, ids, by, note, embed)

    arelease = in_worker(release)

    aadopt_source = in_worker(AnswersSources.adopt_source)  # type: ignore[arg-type]

    def restore(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Put back entries that texts of another lineage have replaced.

        Parameters
        ----------
        ids
            Of replaced entries, see ``quarantine.list("replaced")``, or, in LlamaIndex, of
            documents: all nodes of the version that was replaced last. What took their place, under
            the same ids or as parts of another lineage of the same document, goes into quarantine,
            as by :meth:`recall`.
        by, note
            As of :meth:`release`.

        Raises
        ------
        ragshield_core.model.errors.QuarantineError
            If nothing was replaced under one of the ids; nothing is put back then.
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
        """Take entries out and into quarantine; :meth:`release` puts them back.

        They are held as they are stored, durably before they are deleted; where the store inside
        cannot delete, reads hide them. The guard forgets them, and takes them for suspicious.

        Parameters
        ----------
        ids
            Of stored entries; those that are not there are ignored.
        decisions
            Why, one per id. Entries that a person has released before then stay; without decisions
            they leave as well, since a person decides again.
        by, note
            Who decided, and why, where no decisions are given; kept in the quarantine.

        Returns
        -------
        tuple[str, ...]
            The ids that left.

        Raises
        ------
        ragshield_core.model.errors.InvalidBatchError
            If a node's metadata holds a label or lineage that is no scalar; names it, and nothing
            left.
        ValueError
            If there are decisions, but not one per id.

        Notes
        -----
        The quarantine may not be able to keep all metadata of a document that came past the guard.
        Such a document is hidden, and not deleted, so that nothing of it gets lost.
        """
        expect_ids(ids)
        return self._keeper.run(recalling.recall, self._keeper, ids, decisions, by, note)

    arecall = in_worker(recall)

    def purge(self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None) -> int:
        """Delete held entries for good; live entries under the same ids stay.

        Parameters
        ----------
        ids
            Of held entries, or, in LlamaIndex, of documents: all nodes of theirs that are held.
            Others are ignored.
        by, note
            Who decided, and why; kept in the quarantine's log.

        Returns
        -------
        int
            How many revisions were deleted.

        Raises
        ------
        NotImplementedError
            If one of them is still in the store inside, hidden, and that cannot delete.
        """
        expect_ids(ids)
        return self._keeper.run(reviewing.purge, self._keeper, ids, by, note)

    apurge = in_worker(purge)

    def recover(self) -> int:
        """Finish or undo writes that crashed workers have left; every write begins with it.

        Only a guard that was opened on a database has such writes, see
        :meth:`ragshield_core.Guard.open`. The store inside is asked which entries it has.

        Returns
        -------
        int
            How many events of the journal were recovered; 0 where nothing is shared.
        """
        self._keeper.ready()
        return self._keeper.recover()

    arecover = in_worker(recover)

    def rescreen(self) -> int:
        """Screen entries that were let in although a detector failed; recall suspicious ones.

        There are some where the policy fails open, see :class:`ragshield_core.Policy`. Operations
        do so by themselves once the detector works again;
        :meth:`ragshield_core.learning.writes.Writes.unscreened` names the entries that wait.

        Returns
        -------
        int
            How many entries are screened now.
        """
        return self._keeper.run(recalling.rescreen, self._keeper)

    arescreen = in_worker(rescreen)

    def reconcile(self, *, adopt: Chosen = False, forget: Chosen = False) -> Reconciliation:
        """Compare the whole store with its guard, and repair the chosen differences.

        They differ after writes past the guard, a restored backup, or the loss of a store. Every
        entry is read, part by part; nothing changes unless it is asked for.

        Parameters
        ----------
        adopt
            Entries that the guard screens, as if they were written now, and learns: True for all
            that it does not know or knows otherwise, or ids of some. Suspicious ones are held.
        forget
            Entries that the guard forgets: True for all that the store lacks, or ids of some.

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

        You need it only if another process, or a person working in the quarantine itself, holds or
        judges entries that stay in the store inside. A guard that was opened on a database looks
        before every read.
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
        """Audit all that is stored, each entry judged against the others.

        The guard's detectors are built anew for it, so the guard itself does not change. Writes may
        go on while the audit runs.

        Parameters
        ----------
        fpr, clean_ids, seed
            As of :func:`ragshield_core.tools.audit.scan`.
        quarantine
            Whether findings are held, durably before they are deleted; :meth:`release` puts them
            back. By default nothing changes.

        Returns
        -------
        ScanReport
            Findings, worst first. With ``quarantine=True``, those that stayed, because a person has
            released them before or they changed meanwhile, are admitted with a note.
        """
        keeper = self._keeper
        keeper.ready()
        report = recalling.scan(keeper, fpr, clean_ids, seed)
        if quarantine and report.found:
            report = keeper.run(recalling.take_out, keeper, report)
        return report

    ascan = in_worker(scan)

    # Hooks that differ by framework

    def _embedder(self, model: Any) -> Any:
        """Return the model that embeds entries which were held without vectors."""
        return model

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:
        """Note that documents are as they were, as an index does."""
