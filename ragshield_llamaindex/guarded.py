"""What a guarded store and a guarded index have in common: how a user asks for decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from llama_index.core.base.embeddings.base import BaseEmbedding

from ragshield_core import Batch, Guard, Quarantine, Report
from ragshield_core.adapters.reconciling import Chosen, Reconciliation, reconciled
from ragshield_core.findings import Decision
from ragshield_core.quarantine import HeldEntry
from ragshield_llamaindex.events import dispatcher
from ragshield_llamaindex.held_nodes import Embed, embedding_with
from ragshield_llamaindex.keeper import NodeKeeper

if TYPE_CHECKING:
    from ragshield_core.tools.audit import ScanReport


class Guarded:
    """What a guarded store and a guarded index have in common: a keeper, and how it is asked."""

    _keeper: NodeKeeper

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self._keeper.guard

    @property
    def quarantine(self) -> Quarantine:
        """Where held nodes are."""
        return self.guard.quarantine

    @property
    def last_report(self) -> Report:
        """What was decided at the latest write."""
        return self._keeper.last_report

    @dispatcher.span
    def release(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Put held nodes back, under their own ids and with their stored vectors.

        Nodes that were released elsewhere (``ragshield quarantine release`` writes to no store) are
        put back as well. A document of which nothing is held any more replaces what stayed of the
        version before.

        Parameters
        ----------
        ids
            Of held nodes, or of documents: all nodes of theirs that are held. They replace what is
            live under the same ids.
        by, note
            Who decided, and why; kept in the quarantine's log.
        embed_model
            For nodes that were held without a vector, by a step in front of the embedding. An index
            has its own.

        Raises
        ------
        ragshield_core.errors.QuarantineError
            If one of them is not held, needs a vector, or cannot be kept by the store; nothing is
            released then.
        """
        steps = self._keeper.release(ids, by, note, self._embed(embed_model))
        released = self._keeper.run(steps)
        self._record()
        return released

    def standing(self, ids: Sequence[str]) -> Batch:
        """Return nodes as the store has them, as entries; missing ones are left out.

        What is hidden, since it is held, is among them: this is for those who review it.
        """
        return self._keeper.run(self._keeper.stored(ids)).entries

    @dispatcher.span
    async def arelease(
        self,
        ids: Sequence[str],
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Do as :meth:`release` does, by async methods."""
        steps = self._keeper.release(ids, by, note, self._embed(embed_model))
        released = await self._keeper.arun(steps)
        self._record()
        return released

    @dispatcher.span
    def adopt_source(
        self,
        source: str | None,
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Take thresholds for a source that a person has found to be good; release what comes free.

        The most suspicious share of its nodes, as large as the accepted rate, stays held. Later
        nodes of the source are judged by the same thresholds.

        Parameters
        ----------
        source
            Its name, as ``guard.questions()`` has it; ``None`` for nodes that name none.
        by, note, embed_model
            As of :meth:`release`.

        Returns
        -------
        tuple[HeldEntry, ...]
            What was released; empty if nothing comes free.

        Raises
        ------
        ValueError
            If nothing of such a source is held. Other errors are those of :meth:`release`; then the
            thresholds are taken, and a second call releases.
        """
        free = self.guard.adopt_source(source, by=by)
        return self.release(free, by=by, note=note, embed_model=embed_model) if free else ()

    @dispatcher.span
    async def aadopt_source(
        self,
        source: str | None,
        *,
        by: str = "ragshield",
        note: str | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> tuple[HeldEntry, ...]:
        """Do as :meth:`adopt_source` does, by async methods."""
        free = await asyncio.to_thread(self.guard.adopt_source, source, by=by)
        if not free:
            return ()
        return await self.arelease(free, by=by, note=note, embed_model=embed_model)

    def keep_holding(self, source: str | None, *, by: str = "ragshield") -> None:
        """Close the question about a source: it is an attack, or not wanted here.

        Its nodes stay held, and later ones are judged as before. The question is asked again once
        twice as many are held.

        Parameters
        ----------
        source, by
            As of :meth:`adopt_source`.
        """
        self.guard.keep_holding(source, by=by)

    @dispatcher.span
    def restore(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Put back nodes that texts of another lineage have replaced.

        Parameters
        ----------
        ids
            Of replaced nodes, see ``quarantine.list("replaced")``, or of documents: all nodes of
            the version that was replaced last. What took their place, under the same ids or as
            parts of another lineage of the same document, goes into quarantine, as by
            :meth:`recall`.
        by, note
            As of :meth:`release`.

        Raises
        ------
        ragshield_core.errors.QuarantineError
            If nothing was replaced under one of the ids; nothing is put back then.
        """
        restored = self._keeper.run(self._keeper.restore(ids, by, note))
        self._note_restored(restored)
        return restored

    @dispatcher.span
    async def arestore(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> tuple[HeldEntry, ...]:
        """Do as :meth:`restore` does, by async methods."""
        restored = await self._keeper.arun(self._keeper.restore(ids, by, note))
        self._note_restored(restored)
        return restored

    @dispatcher.span
    def recall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
        note: str | None = None,
    ) -> tuple[str, ...]:
        """Take nodes out and into quarantine; :meth:`release` puts them back.

        They are held as they are stored, durably before they are deleted; where the store inside
        cannot delete, reads hide them. The guard forgets them, and takes them for suspicious.

        Parameters
        ----------
        ids
            Of stored nodes; those that are not there are ignored.
        decisions
            Why, one per id. What a person has released before then stays; without decisions it
            leaves as well, since a person decides again.
        by, note
            Who decided, and why, where no decisions are given; kept in the quarantine.

        Returns
        -------
        tuple[str, ...]
            The ids that left.

        Raises
        ------
        ragshield_core.errors.InvalidBatchError
            If metadata holds a label or lineage that is no scalar; names the node, and nothing
            left.
        ValueError
            If there are decisions, but not one per id.
        """
        gone = self._keeper.run(self._keeper.recall(ids, decisions, by, note))
        self._record()
        return gone

    @dispatcher.span
    async def arecall(
        self,
        ids: Sequence[str],
        decisions: Sequence[Decision] | None = None,
        *,
        by: str = "ragshield",
        note: str | None = None,
    ) -> tuple[str, ...]:
        """Do as :meth:`recall` does, by async methods."""
        gone = await self._keeper.arun(self._keeper.recall(ids, decisions, by, note))
        self._record()
        return gone

    @dispatcher.span
    def purge(self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None) -> int:
        """Delete held nodes for good; what is live under the same ids stays.

        Parameters
        ----------
        ids
            Of held nodes, or of documents: all nodes of theirs that are held. Others are ignored.
        by, note
            Who decided, and why; kept in the quarantine's log.

        Returns
        -------
        int
            How many revisions were deleted.
        """
        deleted = self._keeper.run(self._keeper.purge(ids, by, note))
        self._record()
        return deleted

    @dispatcher.span
    async def apurge(
        self, ids: Sequence[str], *, by: str = "ragshield", note: str | None = None
    ) -> int:
        """Do as :meth:`purge` does, by async methods."""
        deleted = await self._keeper.arun(self._keeper.purge(ids, by, note))
        self._record()
        return deleted

    def recover(self) -> int:
        """Settle what workers have begun and cannot end any more; every write begins with it.

        Of a guard that was opened on a database, see :meth:`ragshield_core.Guard.open`: what a
        worker was about when it crashed is finished or undone, as far as the store inside says.

        Returns
        -------
        int
            How many events of the journal were settled; 0 where nothing is shared.
        """
        return self._keeper.run_recovery()

    async def arecover(self) -> int:
        """Do as :meth:`recover` does, in a thread."""
        return await asyncio.to_thread(self.recover)

    def rescreen(self) -> int:
        """Screen what was let in although a detector failed on it; recall what is suspicious.

        Where the policy fails open, see :class:`ragshield_core.Policy`. Operations do so by
        themselves once the detector works again; :meth:`ragshield_core.Guard.unscreened` says what
        waits.

        Returns
        -------
        int
            How many nodes are screened now.
        """
        return self._keeper.run(self._keeper.rescreen())

    async def arescreen(self) -> int:
        """Do as :meth:`rescreen` does, in a thread."""
        return await asyncio.to_thread(self.rescreen)

    @dispatcher.span
    def reconcile(self, *, adopt: Chosen = False, forget: Chosen = False) -> Reconciliation:
        """Compare all that is stored with what the guard knows, and mend what is asked for.

        They differ after writes past the guard, a restored backup, or the loss of a store. Every
        node is read, part by part; nothing changes unless it is asked for.

        Parameters
        ----------
        adopt
            What to screen, as if it was written now, and learn: True for all that the guard does
            not know or knows otherwise, or ids of some. What is suspicious goes into quarantine.
        forget
            What the guard is to forget: True for all that the store lacks, or ids of some.

        Returns
        -------
        Reconciliation
            Ids of what differed before, and of what was done.

        Raises
        ------
        NotImplementedError
            If the store inside cannot name its nodes.
        """
        found = self._keeper.run(reconciled(self._keeper, adopt=adopt, forget=forget))
        self._record()
        return found

    @dispatcher.span
    async def areconcile(self, *, adopt: Chosen = False, forget: Chosen = False) -> Reconciliation:
        """Do as :meth:`reconcile` does, by async methods."""
        found = await self._keeper.arun(reconciled(self._keeper, adopt=adopt, forget=forget))
        self._record()
        return found

    def refresh_quarantine(self) -> None:
        """Ask the quarantine what is held.

        Only needed where another process, or a reviewer, holds or judges nodes that stay in the
        store inside. What is held here is known at once; with a guard that was opened on a
        database, every read looks.
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
        """Audit all that is stored, each node judged against the others.

        The guard's detectors are built anew for it, so that what the guard has learned stays as it
        is. Writes may go on while the audit runs.

        Parameters
        ----------
        fpr, clean_ids, seed
            As of :func:`ragshield_core.tools.audit.scan`.
        quarantine
            Whether findings are held, durably, and deleted; :meth:`release` puts them back. By
            default nothing changes.

        Returns
        -------
        ScanReport
            Findings, worst first. With ``quarantine=True``, those that stayed, because a person has
            released them before or they changed meanwhile, are admitted with a note.
        """
        report = self._keeper.scan(fpr, clean_ids, seed)
        if quarantine and report.found:
            report = self._keeper.run(self._keeper.take_out(report))
            self._record()
        return report

    async def ascan(
        self,
        fpr: float = 0.01,
        clean_ids: Iterable[str] | None = None,
        *,
        quarantine: bool = False,
        seed: int = 0,
    ) -> ScanReport:
        """Do as :meth:`scan` does, in a thread; findings are deleted by async methods."""
        report = await asyncio.to_thread(self._keeper.scan, fpr, clean_ids, seed)
        if quarantine and report.found:
            report = await self._keeper.arun(self._keeper.take_out(report))
            self._record()
        return report

    @classmethod
    async def aadopt(cls, inner: Any, **options: Any) -> Self:
        """Do as ``adopt`` does, in a thread."""
        return await asyncio.to_thread(partial(cls.adopt, inner, **options))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        # Of counts and kinds only: it ends up in logs.
        guard, kind = self.guard, type(self._keeper.access.inner).__name__
        return (
            f"<{type(self).__name__} over {kind}: {len(guard.detectors)} detectors, "
            f"{guard.n_known} entries known, "
            f"{'calibrated' if guard.calibrated else 'not calibrated'}; {self.quarantine!r}>"
        )

    def __str__(self) -> str:
        return repr(self)

    def _embed(self, model: BaseEmbedding | None) -> Embed | None:
        """Return how nodes get vectors, if there is a model."""
        return None if model is None else embedding_with(model)

    def _record(self) -> None:
        """Note what is stored now, where that is not the store's own business."""

    def _note_restored(self, restored: Sequence[HeldEntry]) -> None:  # noqa: ARG002 - for an index
        """Note that documents are as they were."""
        self._record()
