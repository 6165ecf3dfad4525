"""Monitor of canary queries, which asks them repeatedly and compares with a baseline."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    from ragshield_core.tools.contradictions import ContradictionChecker

# Ids and counts only: queries and answers may be confidential, retrieved texts hostile.
logger = logging.getLogger("ragshield")

# Name in the log of the holder of suspects, by default.
BY = "ragshield canary"
# Cosine of a vector to its earlier one. A rebuilt model or another processor stays far closer;
# another model is nowhere near.
SAME_MODEL = 0.999
# Canaries that each check embeds again for this comparison.
PROBED = 3
# Multiple of k down to which the baseline remembers passages: those below the k places are not new
# when others leave and they move up.
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
        returns documents, nodes, passages, dicts or pairs of an id and a text. Prefer a store or an
        index to its retriever: LlamaIndex's retrievers miss entries inserted after their creation,
        and with their fixed k no other passage takes a held one's place.
    answerer
        A LangChain ``Runnable``, a LlamaIndex query engine, or a function of a query (and of the
        retrieved texts). Without one, only retrieval is compared.
    embedder
        Embeds queries and answers: a model of LangChain or LlamaIndex, or a function from texts to
        vectors. Default: the model that the retriever carries, if any.
    k
        Number of compared places.
    weights
        Of the anomaly score.
    contradictions
        A calibrated :class:`~ragshield_core.tools.contradictions.ContradictionChecker`: each check
        compares newcomers at flagged canaries with other passages, and reports contradictions.
    quarantine
        Keeps suspects, baselines and checks. Default: that of the guarded store, else
        ``ragshield.db`` in the working directory.

    Notes
    -----
    Held entries are deleted from a guarded store or index, a LangChain store, or a
    :class:`KnowledgeBase` that supports it. From other retrievers, they are only left out of the
    comparison, and checks name them in ``still_served`` until the application deletes them.

    A check flags a canary if its anomaly score reaches the threshold; if newcomers have taken over
    its head (:func:`~ragshield_core.tools.canary.figures.takeover`, together with their coverage of
    the query compared with the baseline's); if its answer drifted and follows a new entry; or if
    its expectations are broken. Growth is the share of added entries, if the retriever knows the
    size; otherwise it is estimated from the canaries without those that changed least and most.

    Canaries watch their own neighbourhood only and miss poison that targets other questions. A text
    that replaces another in its place is found by its hash.

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
        contradictions: ContradictionChecker | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        check_type("weights", weights, AnomalyWeights, "AnomalyWeights(...)")
        check_type("contradictions", contradictions, ["check_drift"], "a ContradictionChecker(...)")
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
        self._contradictions = contradictions
        self._given_quarantine = quarantine
        self._suspicions = Suspicions()
        self._vectors: dict[str, Vectors] = {}  # of queries

    @cached_property
    def store(self) -> CanaryStore:
        """The store of baselines and checks."""
        return CanaryStore(self.quarantine_store)

    @cached_property
    def quarantine_store(self) -> Quarantine:
        """The quarantine that holds suspects."""
        from ragshield_core.quarantine import Quarantine  # noqa: PLC0415 - slow to import

        if self._given_quarantine is not None:
            return self._given_quarantine
        found = self._knowledge_base.quarantine
        return Quarantine() if found is None else found

    def record_baseline(self) -> int:
        """Ask every canary and keep the results as the suite's next baseline.

        Returns
        -------
        int
            The version of the baseline.

        Raises
        ------
        CanaryError
            If no canary retrieves anything.
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
            Version of the baseline; default: the latest.

        Raises
        ------
        EmbedderChangedError
            If the baseline is of another embedder, or of another k.
        CanaryError
            If there is no baseline.
        """
        return self.keep(self.compare(baseline=baseline))

    def keep(self, report: DriftReport) -> DriftReport:
        """Keep the outcome of :meth:`compare` as a check, with contradictions of newcomers."""
        if self._contradictions is not None:
            found = self._contradictions.check_drift(report)
            report = replace(report, contradictions=found)
        self.store.save_check(report)
        if report.flagged:
            n = len(report.canaries)
            logger.warning("canaries: %d of %d flagged", len(report.flagged), n)
        if report.still_served:
            n = len(report.still_served)
            logger.warning("canaries: %d held entries are still retrieved", n)
        return report

    def compare(self, *, baseline: int | None = None) -> DriftReport:
        """Compare as :meth:`check` does, but keep nothing."""
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
            # Deeper than the compared places: passages that would move up without the suspects.
            passages={c.name: passages for c, passages in zip(self.suite, deep, strict=True)},
        )

    def history(self, limit: int = 100) -> list[DriftReport]:
        """Return the latest checks, oldest first."""
        return self.store.checks(self.suite.name, limit)

    def watch(self, guard: Guard, on_drift: Callable[[DriftReport], object]) -> None:
        """Check after every ingest of a guard, and call ``on_drift`` with a report that flags.

        A release from quarantine writes entries before the release is on record. No check runs
        then, since it could not be kept and would not see the released entries; the next one does.
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
        """Return the entries to blame for the drift, most responsible first.

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
        """Return the entries to blame for one wrong answer; needs no baseline.

        Parameters
        ----------
        query, wrong_answer
            As a user reports them.
        depth
            Number of retrieved entries to consider.
        since
            A time when the answer was still right: entries whose metadata have an earlier time of
            ingestion are not to blame. Use it only if your own pipeline writes that time.

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
            Name of the person or program that holds them, for the log.

        Returns
        -------
        tuple[str, ...]
            The ids that are held now. Entries that a person has released stay, and so do entries
            with another text in the store by now: deleting them would lose that text.

        Notes
        -----
        Nothing can be deleted from an unguarded index or retriever: a warning says so, and checks
        name the entries in ``still_served``.
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

        It stops when there are no suspects: a person has to look at the candidates then.

        Parameters
        ----------
        max_entries
            Largest number of entries to quarantine.
        by
            Name of the person or program that holds them, for the log.

        Returns
        -------
        Remediation
            The held ids and both checks; ``clean`` is False if the drift remains or held entries
            are still retrieved.
        """
        before = report = self.check()
        held: list[str] = []
        seen: set[str] = set()  # including entries that a person has released
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
        """Return retrieved passages without held ones, and held ids that are still retrieved."""
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
        # Cosines of unit vectors; a text without a word that the model knows has a zero vector.
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
        """Return the canaries' answers now, and the answers' vectors."""
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
    """Outcome of :meth:`CanaryMonitor.remediate`.

    Attributes
    ----------
    quarantined
        Ids that were put into quarantine.
    before, after
        The checks at the start and at the end. ``after.still_served`` names held entries that are
        still retrieved: delete them from the knowledge base.
    """

    quarantined: tuple[str, ...]
    before: DriftReport
    after: DriftReport

    @property
    def clean(self) -> bool:
        """Whether no canary is flagged any more and no held entry is retrieved."""
        return not (self.after.flagged or self.after.still_served)
