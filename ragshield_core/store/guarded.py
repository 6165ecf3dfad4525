"""Operations that guarded stores and indexes of both frameworks share: release, recall, scan.

A keeper runs them one at a time, after recovery from those that crashed.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ragshield_core.model.arguments import expect_ids
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.store import recalling, reviewing
from ragshield_core.store.adapter import PART, Adapter, recover
from ragshield_core.store.inner import InnerStore, in_thread
from ragshield_core.store.mask import Mask
from ragshield_core.store.reconciling import Chosen, Reconciliation, reconciled
from ragshield_core.store.steps import Step, Steps, asynchronous, done, synchronous

if TYPE_CHECKING:
    from ragshield_core.guard import Guard
    from ragshield_core.model.entries import Batch
    from ragshield_core.model.findings import Decision, Report
    from ragshield_core.quarantine import HeldEntry, Quarantine
    from ragshield_core.tools.audit import ScanReport

T = TypeVar("T")
Item = TypeVar("Item")

logger = logging.getLogger("ragshield")  # ids and counts, never text


class Keeper(Adapter[Item], Generic[Item]):
    """Keeps a store and a guard in step: one operation after the other."""

    access: InnerStore[Item]  # of adapters

    def __init__(self, guard: Guard, mask: Mask[Item]) -> None:
        super().__init__(guard, mask)
        # Async operations queue for a thread of their own, which no read ever waits for.
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="ragshield-writes")

    def run(self, steps: Steps[T]) -> T:
        """Do an operation by the store's synchronous methods, once no other is being done."""
        with self.turns.alone():
            return done(self._recovered(steps))

    def run_recovery(self) -> int:
        """Recover and do nothing else."""
        with self.turns.alone():
            return done(recover(self))

    async def arun(self, steps: Steps[T]) -> T:
        """Do an operation in a thread; once begun it is finished, whoever is cancelled."""
        return await in_thread(partial(self.run, steps), self.worker)

    def step(self, steps: Steps[Any]) -> Step:
        """Return an operation as one step of another, which does not keep others out between."""
        return Step(partial(self.run, steps), partial(self.arun, steps))

    def _recovered(self, steps: Steps[T]) -> Steps[T]:
        """Recover, do an operation, and screen entries that were let in unscreened, if possible."""
        if self.guard.writes.shared:
            yield from recover(self)
        try:
            answer = yield from steps
        except RAGShieldError:
            raise
        except Exception as error:
            # The error is the store's or its embedding model's, and keeps its type.
            error.add_note(
                "RAGShield: the store inside or its embedding model failed, and this operation on "
                f"it came to no end ({self.guard.quarantine!r}). What was judged suspicious is "
                "held; repeat the operation once they answer: what has the same ids is not there "
                "twice then."
            )
            raise
        if due := self.guard.writes.due_for_screening():
            try:
                yield from recalling.rescreen(self, due[:PART])
            except Exception as error:  # noqa: BLE001 - the operation itself is done
                kind = type(error).__name__
                logger.warning("what was let in unscreened could not be screened yet (%s)", kind)
        return answer


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
        return self._run(self._keeper.stored(ids)).entries

    @synchronous
    def release(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: Any = None,
    ) -> Steps[tuple[HeldEntry, ...]]:
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
        embed = self._embedder(embed_model)
        steps = reviewing.release(self._keeper, ids, by, note, embed)
        released: tuple[HeldEntry, ...] = yield self._in_turn(steps)
        return released

    arelease = asynchronous(release)

    async def aadopt_source(
        self, source: str | None, *, by: str = "ragshield", note: str | None = None, **how: Any
    ) -> tuple[HeldEntry, ...]:
        """Do as :meth:`adopt_source` does, off the event loop."""
        free = await self._in_thread(partial(self.guard.sources.adopt, source, by=by))
        return await self.arelease(free, by=by, note=note, **how) if free else ()

    @synchronous
    def restore(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> Steps[tuple[HeldEntry, ...]]:
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
        steps = reviewing.restore(self._keeper, ids, by, note)
        restored: tuple[HeldEntry, ...] = yield self._in_turn(steps)
        self._note_restored(restored)
        return restored

    arestore = asynchronous(restore)

    @synchronous
    def recall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
        note: str | None = None,
    ) -> Steps[tuple[str, ...]]:
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
        steps = recalling.recall(self._keeper, ids, decisions, by, note)
        gone: tuple[str, ...] = yield self._in_turn(steps)
        return gone

    arecall = asynchronous(recall)

    @synchronous
    def purge(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> Steps[int]:
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
        deleted: int = yield self._in_turn(reviewing.purge(self._keeper, ids, by, note))
        return deleted

    apurge = asynchronous(purge)

    @synchronous
    def recover(self) -> Steps[int]:
        """Finish or undo writes that crashed workers have left; every write begins with it.

        Only a guard that was opened on a database has such writes, see
        :meth:`ragshield_core.Guard.open`. The store inside is asked which entries it has.

        Returns
        -------
        int
            How many events of the journal were recovered; 0 where nothing is shared.
        """
        recovered: int = yield self._off_loop(self._keeper.run_recovery)
        return recovered

    arecover = asynchronous(recover)

    @synchronous
    def rescreen(self) -> Steps[int]:
        """Screen entries that were let in although a detector failed; recall suspicious ones.

        There are some where the policy fails open, see :class:`ragshield_core.Policy`. Operations
        do so by themselves once the detector works again;
        :meth:`ragshield_core.learning.writes.Writes.unscreened` names the entries that wait.

        Returns
        -------
        int
            How many entries are screened now.
        """
        screened: int = yield self._in_turn(recalling.rescreen(self._keeper))
        return screened

    arescreen = asynchronous(rescreen)

    @synchronous
    def reconcile(self, *, adopt: Chosen = False, forget: Chosen = False) -> Steps[Reconciliation]:
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
        steps = reconciled(self._keeper, adopt=adopt, forget=forget)
        found: Reconciliation = yield self._in_turn(steps)
        return found

    areconcile = asynchronous(reconcile)

    def refresh_quarantine(self) -> None:
        """Ask the quarantine again which entries are held.

        You need it only if another process, or a person working in the quarantine itself, holds or
        judges entries that stay in the store inside. A guard that was opened on a database looks
        before every read.
        """
        self._keeper.refresh()

    @synchronous
    def scan(
        self,
        fpr: float = 0.01,
        clean_ids: Iterable[str] | None = None,
        *,
        quarantine: bool = False,
        remove: bool = True,
        seed: int = 0,
    ) -> Steps[ScanReport]:
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
        remove
            Whether held findings are deleted from the store inside. Where they are not, reads hide
            them all the same, but others that use the store inside see them.

        Returns
        -------
        ScanReport
            Findings, worst first. With ``quarantine=True``, those that stayed, because a person has
            released them before or they changed meanwhile, are admitted with a note.
        """
        keeper = self._keeper
        audit = partial(recalling.scan, keeper, fpr, clean_ids, seed)
        report: ScanReport = yield self._off_loop(audit)
        if quarantine and report.found:
            report = yield self._in_turn(recalling.take_out(keeper, report, remove=remove))
        return report

    ascan = asynchronous(scan)

    # Hooks that differ by framework

    def _ready(self) -> None:
        """Prepare the store inside before it is used."""

    def _embedder(self, model: Any) -> Any:
        """Return the model that embeds entries which were held without vectors."""
        return model

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:
        """Note that documents are as they were, as an index does."""

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await in_thread(work, self._keeper.worker)

    async def _arun(self, steps: Steps[T]) -> T:
        return await self._in_thread(partial(self._run, steps))

    def _run(self, steps: Steps[T]) -> T:
        self._ready()
        return self._keeper.run(steps)

    def _off_loop(self, work: Callable[[], Any]) -> Step:
        """Return work of our own as a step."""

        def there() -> Any:
            self._ready()
            return work()

        return Step(there, partial(self._in_thread, there))

    def _in_turn(self, steps: Steps[Any]) -> Step:
        """Return an operation as a step, done when no other is being done."""
        return Step(partial(self._run, steps), partial(self._arun, steps))
