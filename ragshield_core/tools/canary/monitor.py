"""Canary queries, asked again and again, and compared with a baseline."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ragshield_core.model.arguments import check_type
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError, EmbedderChangedError
from ragshield_core.tools.canary.compare import compared
from ragshield_core.tools.canary.drift import AnomalyWeights, DriftReport
from ragshield_core.tools.canary.figures import Suspicions, coverage, word_weights
from ragshield_core.tools.canary.knowledge_base import (
    Embedder,
    Passage,
    Vectors,
    as_answerer,
    as_knowledge_base,
    batch_of,
    search,
    unit_vectors,
)
from ragshield_core.tools.canary.storage import Baseline, CanaryStore, Observation
from ragshield_core.tools.canary.suite import CanarySuite
from ragshield_core.tools.canary.traceback import (
    Suspect,
    Traceback,
    trace_answer,
    trace_drift,
)

if TYPE_CHECKING:
    from ragshield_core.guard import Guard
    from ragshield_core.quarantine import Quarantine

# Ids and counts only: queries and answers may be confidential, retrieved texts hostile.
logger = logging.getLogger("ragshield")

# Who holds suspects where nobody says so.
BY = "ragshield canary"
# What a rebuilt model, or another processor, changes in a vector is far below; another model is
# nowhere near.
SAME_MODEL = 0.999
# Canaries that are embedded anew at each check to see that.
PROBED = 3
# The baseline remembers what stood below the k places, down to so many times k: it is not new when
# others leave and it moves up.
DEPTH = 3


class CanaryMonitor:
    """Ask canary queries, compare with a baseline, trace drift to entries, and undo it.

    Parameters
    ----------
    suite
        The queries; or a list of them.
    retriever
        A LangChain vector store or retriever, a LlamaIndex index or retriever, a
        :class:`KnowledgeBase` of your own, a batch, or a function of a query (and of k) that
        returns documents, nodes, passages, dicts or pairs of an id and a text. Better a store or an
        index than its retriever: LlamaIndex's retrievers do not see what is inserted after they
        were made, and k is fixed, so that nothing takes the place of what is held.
    answerer
        A LangChain ``Runnable``, a LlamaIndex query engine, or a function of a query (and of the
        retrieved texts). Without one, only retrieval is compared.
    embedder
        Embeds queries and answers: a model of LangChain or LlamaIndex, or a function from texts to
        vectors. Default: the model that the retriever carries, if any.
    k
        Places that are compared.
    weights
        Of the anomaly score.
    quarantine
        Where suspects are held and where baselines and checks are kept. Default: that of the
        guarded store, else ``ragshield.db`` in the working directory.

    Notes
    -----
    What is held is taken out of a guarded store or index, a LangChain store, or a
    :class:`KnowledgeBase` that can do so. Of anything else it is left out of the comparison only,
    and checks name it in ``still_served`` until the application has taken it out.

    A check flags a canary whose anomaly score reaches the threshold; whose head newcomers
    have taken over (:func:`~ragshield_core.tools.canary.figures.takeover`, with how much of the
    query they hold in one place, compared with what the baseline's passages do); whose answer
    drifted and follows an entry that is new; or that breaks what was expected of it. Growth is what
    was added in all, where the retriever can tell, else it is estimated from the canaries that
    changed least.

    What poison can do that nobody asks about is not seen: canaries watch their own neighbourhood.
    Text that replaces the answer without leaving the baseline's place is seen by its hash.

    References
    ----------
    MP Aghababa, "Detecting RAG Poisoning via Canary Queries and Retrieval Drift", public notebook.

    Examples
    --------
    >>> from ragshield_core import Batch, Quarantine
    >>> def embed(texts):
    ...     return [[text.count("refund") + 0.1, text.count("ship") + 0.1] for text in texts]
    >>> kb = Batch.of(ids=["a", "b"], texts=["refund in 14 days", "ships in 3 days"],
    ...               embeddings=embed(["refund in 14 days", "ships in 3 days"]))
    >>> monitor = CanaryMonitor(["refund?"], kb, embedder=embed, k=1,
    ...                         quarantine=Quarantine("sqlite://"))
    >>> monitor.record_baseline()
    1
    >>> monitor.check().summary()
    "suite 'default' against baseline 1: 0 of 1 canaries flagged"
    """

    def __init__(
        self,
        suite: CanarySuite | Sequence[str],
        retriever: Any,
        *,
        answerer: Any = None,
        embedder: Any = None,
        k: int = 6,
        weights: AnomalyWeights | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        check_type("weights", weights, AnomalyWeights, "AnomalyWeights(...)")
        check_type("quarantine", quarantine, ["hold"], "a Quarantine: Quarantine(url)")
        if k < 1:
            msg = f"k is {k}, expected at least 1."
            raise ValueError(msg)
        self.suite = suite if isinstance(suite, CanarySuite) else CanarySuite(suite)
        self.k = k
        self.weights = weights if weights is not None else AnomalyWeights()
        self._knowledge_base = as_knowledge_base(retriever)
        self._answerer = None if answerer is None else as_answerer(answerer)
        model = embedder if embedder is not None else self._knowledge_base.embedder
        self._embedder = None if model is None else Embedder.of(model)
        self._given_quarantine = quarantine
        self._suspicions = Suspicions()
        self._vectors: dict[str, Vectors] = {}  # of queries

    @cached_property
    def store(self) -> CanaryStore:
        """Where baselines and checks are kept."""
        return CanaryStore(self.quarantine_store)

    @cached_property
    def quarantine_store(self) -> Quarantine:
        """The quarantine."""
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - slow to import

        if self._given_quarantine is not None:
            return self._given_quarantine
        found = self._knowledge_base.quarantine
        return Quarantine() if found is None else found

    def record_baseline(self) -> int:
        """Ask every canary and keep what it gives as the suite's next baseline.

        Returns
        -------
        int
            The version of the baseline.

        Raises
        ------
        CanaryError
            If nothing at all is retrieved.
        """
        deep, _ = self._search(self.suite.queries, DEPTH * self.k)
        if not any(deep):
            msg = (
                f"the retriever returns nothing for any of {len(self.suite)} canaries, so there is "
                "nothing to compare with later; check that it asks a filled knowledge base."
            )
            raise CanaryError(msg)
        found = [passages[: self.k] for passages in deep]
        self._suspicions.judge(p for passages in found for p in passages)
        answers, vectors = self._answers(found)
        weights = word_weights(self.suite.queries)
        baseline = Baseline(
            suite=self.suite.name,
            k=self.k,
            size=self._knowledge_base.size(),
            observations={
                canary.name: Observation(
                    query=canary.query,
                    ids=tuple(p.id for p in head),
                    revisions=tuple(p.revision for p in head),
                    suspicions=tuple(self._suspicions(p) for p in head),
                    coverages=tuple(coverage(canary.query, p.text, weights) for p in head),
                    answer=answer,
                    below=tuple((p.id, p.revision) for p in passages[self.k :]),
                )
                for canary, passages, head, answer in zip(
                    self.suite, deep, found, answers, strict=True
                )
            },
            queries=self._query_vectors(self.suite.queries),
            answers=vectors,
        )
        return self.store.save_baseline(baseline)

    def check(self, *, baseline: int | None = None) -> DriftReport:
        """Ask every canary again, compare with a baseline, and keep the outcome in the database.

        Parameters
        ----------
        baseline
            Its version; default: the latest.

        Raises
        ------
        EmbedderChangedError
            If the baseline is of another embedder, or of another k.
        CanaryError
            If there is no baseline.
        """
        report = self.compare(baseline=baseline)
        self.store.save_check(report)
        if report.flagged:
            n = len(report.canaries)
            logger.warning("canaries: %d of %d flagged", len(report.flagged), n)
        if report.still_served:
            n = len(report.still_served)
            logger.warning("canaries: %d held entries are still retrieved", n)
        return report

    def compare(self, *, baseline: int | None = None) -> DriftReport:
        """Do as :meth:`check` does; nothing is kept."""
        then = self.store.baseline(self.suite.name, baseline)
        self._check_same(then)
        if then.queries is not None:  # the baseline's model is this one: no need to ask it again
            self._vectors.update(zip(then.asked.values(), then.queries, strict=True))
        # As deep as for the baseline: approximate indexes may rank otherwise when asked for fewer.
        deep, still_served = self._search(self.suite.queries, DEPTH * self.k)
        for observation in then.observations.values():
            judged = zip(observation.revisions, observation.suspicions, strict=True)
            self._suspicions.known.update(judged)
        found = [passages[: self.k] for passages in deep]
        self._suspicions.judge(p for passages in found for p in passages)
        answers, vectors = self._answers(found)
        growth, canaries = compared(
            self.suite.canaries,
            then,
            deep,
            answers,
            vectors,
            weights=self.weights,
            size=self._knowledge_base.size(),
            suspicion=self._suspicions,
        )
        return DriftReport(
            suite=self.suite.name,
            baseline=then.version,
            k=self.k,
            checked_at=dt.datetime.now(dt.UTC),
            growth=growth,
            canaries=canaries,
            still_served=still_served,
            # Deeper than what is compared: what would move up, were suspects left out.
            passages={c.name: passages for c, passages in zip(self.suite, deep, strict=True)},
        )

    def history(self, limit: int = 100) -> list[DriftReport]:
        """Return the latest checks, oldest first."""
        return self.store.checks(self.suite.name, limit)

    def watch(self, guard: Guard, on_drift: Callable[[DriftReport], object]) -> None:
        """Check after every ingest of a guard, and call ``on_drift`` with a report that flags.

        What is released from quarantine is written before the release is on record, so no check can
        be kept yet, nor would it see what comes back: the next one does.
        """
        check_type("guard", guard, ["writes"], "a Guard, such as store.guard")
        check_type("on_drift", on_drift, ["__call__"], "a function of a DriftReport")

        def after(_entries: Batch) -> None:
            if self.store.busy:
                return
            report = self.check()
            if report.flagged:
                on_drift(report)

        guard.writes.on_learned.append(after)

    def traceback(self, report: DriftReport | None = None) -> Traceback:
        """Return who is to blame for the drift, most responsible first.

        Parameters
        ----------
        report
            From :meth:`check`; default: a new check, which is not kept.

        See Also
        --------
        ragshield_core.tools.canary.traceback.trace_drift : How responsibility is found.
        """
        report = self.compare() if report is None else report
        names = {drift.name for drift in report.flagged}
        canaries = [canary for canary in self.suite if canary.name in names]
        if any(canary.name not in report.passages for canary in canaries):
            queries = [canary.query for canary in canaries]
            found, _ = self._search(queries, DEPTH * report.k)
        else:
            found = [list(report.passages[canary.name]) for canary in canaries]
        passages = {c.name: listed for c, listed in zip(canaries, found, strict=True)}
        then = self.store.baseline(self.suite.name, report.baseline)
        return trace_drift(report, passages, then, canaries, self._suspicions, weights=self.weights)

    def trace_answer(
        self, query: str, wrong_answer: str, *, depth: int = 50, since: dt.datetime | None = None
    ) -> Traceback:
        """Return which entries are to blame for one wrong answer; needs no baseline.

        Parameters
        ----------
        query, wrong_answer
            As a user reports them.
        depth
            Retrieved entries that are looked at.
        since
            When the answer was still right: entries with an older time of ingestion in their
            metadata are not to blame. Only where your own pipeline writes that time.

        See Also
        --------
        ragshield_core.tools.canary.traceback.trace_answer : How responsibility is found.
        """
        ((passages,), _) = self._search([query], depth)
        self._suspicions.judge(passages)
        return trace_answer(
            query,
            wrong_answer,
            passages,
            embedder=self._embedder,
            suspicion=self._suspicions,
            since=since,
        )

    def quarantine(self, suspects: Sequence[Suspect], *, by: str = BY) -> tuple[str, ...]:
        """Put suspects into quarantine and take them out of retrieval.

        Parameters
        ----------
        suspects
            From a traceback.
        by
            Who holds them, for the record.

        Returns
        -------
        tuple[str, ...]
            The ids that are held now; what a person has released before stays, and so does what
            a store says to have another text of by now: deleting it would lose that text.

        Notes
        -----
        From an index or retriever that is not guarded, nothing can be taken out: a warning says so,
        and checks name it in ``still_served``.
        """
        there = self._knowledge_base.texts([s.entry_id for s in suspects])
        suspects = [s for s in suspects if there.get(s.entry_id, s.passage.text) == s.passage.text]
        # Retrievers may give one id to several texts; the first suspect is the most responsible.
        suspects = [*{s.entry_id: s for s in reversed(suspects)}.values()][::-1]
        if not suspects:
            return ()
        decisions = [suspect.decision() for suspect in suspects]
        guarded = self._knowledge_base.guarded
        if guarded is not None:
            return guarded.recall([s.entry_id for s in suspects], decisions, by=by)
        passages = [suspect.passage for suspect in suspects]
        vectors: Any = [p.vector for p in passages]
        if any(vector is None for vector in vectors):
            texts = [p.text for p in passages]
            vectors = None if self._embedder is None else self._embedder.documents(texts)
        batch = batch_of(passages, vectors)
        released = self.quarantine_store.hold(batch, decisions, by=by)
        gone = tuple(i for i in batch.ids if i not in released)
        if left := self._knowledge_base.remove(gone):
            logger.warning(
                "%d held entries could not be deleted from the knowledge base: delete them, or "
                "guard the index",
                len(left),
            )
        return gone

    def restore(self, ids: Sequence[str], *, by: str = BY, note: str | None = None) -> None:
        """Judge quarantined entries good and put them back."""
        from ragshield_core.quarantine import Status, batches_of  # noqa: PLC0415 - slow

        if not ids:
            return
        if self._knowledge_base.guarded is not None:
            self._knowledge_base.guarded.release(list(ids), by=by, note=note)
            return
        for batch in batches_of(self.quarantine_store.vouched(ids, Status.HELD)):
            self._knowledge_base.restore(batch)
        self.quarantine_store.release(ids, by=by, note=note)

    def remediate(self, max_entries: int = 20, *, by: str = BY) -> Remediation:
        """Check, quarantine the suspects, and check again, until the drift is gone.

        Where nobody is a suspect, nothing more is taken out: a person looks at the candidates.

        Parameters
        ----------
        max_entries
            How many may be taken out at most.
        by
            For the record.

        Returns
        -------
        Remediation
            What was done; ``clean`` is False where the drift did not go, or where what is held is
            retrieved nevertheless.
        """
        before = report = self.check()
        held: list[str] = []
        seen: set[str] = set()  # with those that a person has released
        while report.flagged and len(held) < max_entries:
            fresh = [s for s in self.traceback(report).suspects if s.entry_id not in seen]
            some = fresh[: max_entries - len(held)]
            if not some:
                break
            seen.update(s.entry_id for s in some)
            held += self.quarantine(some, by=by)
            report = self.compare(baseline=before.baseline)
        return Remediation(
            quarantined=tuple(held),
            before=before,
            after=self.check(baseline=before.baseline) if seen else before,
        )

    def _search(
        self, queries: Sequence[str], k: int
    ) -> tuple[list[list[Passage]], tuple[str, ...]]:
        """Return what is retrieved, but for what is held."""
        vectors = self._query_vectors(queries)
        return search(
            self._knowledge_base, self.quarantine_store, queries, vectors, k, shown=self.k
        )

    def _query_vectors(self, queries: Sequence[str]) -> Vectors | None:
        """Return the vectors of queries, each embedded once."""
        if self._embedder is None:
            return None
        missing = [q for q in dict.fromkeys(queries) if q not in self._vectors]
        if missing:
            self._vectors.update(
                zip(missing, self._embedder.queries(missing, unit=False), strict=True)
            )
        return np.stack([self._vectors[q] for q in queries])

    def _check_same(self, then: Baseline) -> None:
        """Refuse a comparison that would show drift everywhere."""
        where = f"baseline {then.version} of suite {then.suite!r}"
        again = "record a new baseline once the knowledge base is known to be clean."
        if then.k != self.k:
            msg = (
                f"{where} is of k={then.k}, this monitor of k={self.k}; use k={then.k}, or {again}"
            )
            raise EmbedderChangedError(msg)
        if (self._embedder is None) != (then.queries is None):
            which = "without" if then.queries is None else "with"
            msg = f"{where} was recorded {which} an embedder; do the same here, or {again}"
            raise EmbedderChangedError(msg)
        if self._embedder is None or then.queries is None:
            return
        asked = list(then.asked.values())[:PROBED]
        now = self._embedder.queries(asked)
        before = unit_vectors(then.queries[:PROBED], len(asked))
        same = now.shape == before.shape
        # Cosines of unit vectors; of a text that a model knows no word of, the vector is zero.
        squares = np.sum((now - before) ** 2, axis=1) if same else np.array([2.0])
        similarity = 1.0 - float(np.max(squares)) / 2.0
        if similarity < SAME_MODEL:
            dims = "" if same else f", {before.shape[1]} dimensions then, {now.shape[1]} now"
            msg = (
                f"{where} is of another embedder (its first canaries have a cosine of "
                f"{similarity:.3f} to their vectors then, expected {SAME_MODEL} or more{dims}): "
                "rankings would differ. "
                f"Embed the knowledge base and the canaries with one model, and {again}"
            )
            raise EmbedderChangedError(msg)

    def _answers(
        self, found: Sequence[Sequence[Passage]]
    ) -> tuple[list[str | None], Vectors | None]:
        """Return what the canaries are answered now, and the answers' vectors."""
        if self._answerer is None:
            return [None] * len(found), None
        answers = [
            self._answerer(canary.query, [p.text for p in passages])
            for canary, passages in zip(self.suite, found, strict=True)
        ]
        vectors = None if self._embedder is None else self._embedder.documents(answers)
        return [*answers], vectors


@dataclass(frozen=True, kw_only=True)
class Remediation:
    """What :meth:`CanaryMonitor.remediate` did.

    Attributes
    ----------
    quarantined
        Ids that were put into quarantine.
    before, after
        The checks at the start and at the end. What ``after.still_served`` names is held, and
        retrieved nevertheless: take it out of the knowledge base.
    """

    quarantined: tuple[str, ...]
    before: DriftReport
    after: DriftReport

    @property
    def clean(self) -> bool:
        """Whether no canary is flagged any more, and nothing that is held is retrieved."""
        return not (self.after.flagged or self.after.still_served)
