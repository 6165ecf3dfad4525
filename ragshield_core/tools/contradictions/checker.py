"""Checker of contradictions: new entries against the standing passages nearest to them."""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.entries import Batch, Entry
from ragshield_core.model.errors import CalibrationError, NotFittedError, RAGShieldError
from ragshield_core.model.p_values import Calibration, clean_entries_needed
from ragshield_core.tools.alerts import (
    PER_DAY,
    QUOTED,
    Alert,
    Checked,
    DailyBudget,
    pair_of,
    within,
)
from ragshield_core.tools.canary.knowledge_base import (
    Embedder,
    MatrixRetriever,
    Passage,
    Vectors,
    as_knowledge_base,
    batch_of,
)
from ragshield_core.tools.contradictions.altered_copies import AlteredCopies
from ragshield_core.tools.contradictions.pairs import (
    MAX_TEXT,
    ContradictionModel,
    Pair,
    pairs_of,
)
from ragshield_core.tools.contradictions.relation import relation
from ragshield_core.tools.contradictions.watching import Watcher

if TYPE_CHECKING:
    from ragshield_core.guard import Guard
    from ragshield_core.tools.canary.drift import DriftReport
    from ragshield_core.tools.contradictions.storage import KeptAlerts

# Ids and counts only: the text of an entry is hostile and stays out of logs.
logger = logging.getLogger("ragshield")

# Passages beyond k that are searched: the entry itself and its copies are among the nearest.
SPARE = 2
# Comparisons of an entry by words, and by a model, whose calls cost.
MOST_PAIRS, MOST_ASKED = 64, 16
# Passages of which a reader's question shows the first ones to a model.
SHOWN = 6
# Note on a knowledge base that calibrates itself.
BY_ITSELF = (
    "No entry is known to be clean: a share of about {:g} has an alert in a clean knowledge base "
    "as well. Name trusted entries."
)


class _Compared(NamedTuple):
    """The strongest contradiction of one entry; ``fault`` says what was not compared."""

    score: float = 0.0
    pair: Pair | None = None
    sentence: str = ""
    passage: Passage | None = None
    fault: str = ""


class ContradictionChecker:
    """Compare new entries with the standing passages nearest to them; alert, and hold nothing.

    Parameters
    ----------
    knowledge_base
        As the retriever of :class:`~ragshield_core.tools.canary.CanaryMonitor`: a guarded or bare
        store or index of LangChain or LlamaIndex, a batch with vectors, or a function.
    model
        A :class:`ContradictionModel`. Default: :class:`AlteredCopies`, which needs no model.
    rate
        Accepted share of clean entries with an alert, in (0, 1). The default, one in a hundred,
        takes 99 clean entries.
    per_day
        Maximum number of alerts of a day in UTC, the most consequential first. Twenty are about as
        many as a person reads.
    kept
        Keeps alerts in a database, where people list and close them. The budget of the day is then
        that of all processes, and pairs of entries that a person has closed raise no alert again.
        Default: alerts are only returned.
    canaries, questions
        Canary questions and readers' questions, word for word. An alert counts those for which both
        entries are among the first six passages, if the knowledge base has the new entry by then.
    embedder
        Embeds the questions. Default: the model of the knowledge base, if it has one.
    k
        Number of passages for each entry.
    most_pairs
        Maximum number of comparisons of an entry: its claims with the passages, those that share
        most words first. Default: 64 without a model, 16 with one.
    clean_scores
        Scores of clean entries from an earlier :meth:`calibrate` with the same model: see
        :attr:`clean_scores`.
    now
        Clock, for tests.

    Notes
    -----
    The score of an entry is that of its strongest pair; its p-value is the rank among clean entries
    that were compared in the same way (split conformal). So the rate is kept with any model, if
    clean new entries are like those of the sample. Calibrate with entries of all your
    sources: a source with many near copies scores higher.

    A hostile text can talk a language model out of an alert about itself, and copies of it can take
    the places of the nearest passages. Neither makes anything worse than without the checker.

    Examples
    --------
    >>> def embed(texts):
    ...     return [[text.count("ferr") + 0.1, text.count("shop") + 0.1] for text in texts]
    >>> texts = [f"Item {i}: the shops of the {i % 9} quays open on {i % 6 + 1} days of each week."
    ...          for i in range(120)]
    >>> texts.append("The ferries to Norrholm leave the east pier at seven on every weekday.")
    >>> standing = Batch.of(ids=[f"e{i}" for i in range(121)], texts=texts, embeddings=embed(texts))
    >>> checker = ContradictionChecker(standing, rate=0.02).calibrate(standing)
    >>> new = [texts[-1].replace("Norrholm", "Utby"), "Some ferries have a shop on the upper deck."]
    >>> checked = checker.check(Batch.of(ids=["n1", "n2"], texts=new, embeddings=embed(new)))
    >>> [(alert.entry_id, alert.passage_id, alert.relation) for alert in checked.alerts]
    [('n1', 'e120', 'conflicts')]
    """

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        knowledge_base: Any,
        model: ContradictionModel | None = None,
        *,
        rate: float = 0.01,
        per_day: int = PER_DAY,
        kept: KeptAlerts | None = None,
        canaries: Sequence[str] = (),
        questions: Sequence[str] = (),
        embedder: Any = None,
        k: int = 4,
        most_pairs: int | None = None,
        clean_scores: ArrayLike | None = None,
        now: Callable[[], dt.datetime] | None = None,
    ) -> None:
        if most_pairs is None:
            most_pairs = MOST_PAIRS if model is None else MOST_ASKED
        for name, value in (("k", k), ("most_pairs", most_pairs)):
            if value < 1:
                msg = f"{name} is {value}, expected at least 1."
                raise ValueError(msg)
        if not 0.0 < rate < 1.0:
            msg = f"rate is {rate:g}, expected a share in (0, 1), such as 0.01."
            raise ValueError(msg)
        self.model: ContradictionModel = AlteredCopies() if model is None else model
        self.rate, self.k, self.most_pairs = rate, k, most_pairs
        self._knowledge_base = as_knowledge_base(knowledge_base)
        found = embedder if embedder is not None else self._knowledge_base.embedder
        self._embedder = None if found is None else Embedder.of(found)
        self._canaries, self._questions = tuple(canaries), tuple(questions)
        self._asked: Vectors | None = None  # vectors of both
        self.per_day, self._kept, self._budget = per_day, kept, DailyBudget(per_day, now)
        self._calibration: Calibration | None = None
        if clean_scores is not None:
            self._calibrated(np.asarray(clean_scores, dtype=np.float64))

    @property
    def clean_scores(self) -> list[float]:
        """Scores of the clean entries, ascending, to be kept for ``clean_scores=``."""
        return [] if self._calibration is None else self._calibration.clean_scores.tolist()

    def calibrate(self, clean: Batch) -> Self:
        """Learn how clean entries score.

        Parameters
        ----------
        clean
            Clean entries, drawn like new ones. They may stand in the knowledge base: an entry is
            not compared with itself.

        Raises
        ------
        CalibrationError
            If too few of them could be compared for the rate; names the number needed.
        """
        self._calibrated(self.scores(clean))
        return self

    def scores(self, batch: Batch) -> NDArray[np.float64]:
        """Return the score of each entry, shape (n_entries,), NaN where a comparison is missing."""
        return _scores(self._compare(batch))

    def check(self, batch: Batch) -> Checked:
        """Compare new entries with the knowledge base, which may contain them already.

        A fault of the model or of the search is reported in ``unchecked``, and never raised.

        Raises
        ------
        NotFittedError
            Before :meth:`calibrate`.
        """
        if self._calibration is None:
            msg = (
                "the checker was not calibrated, so it cannot tell a high score; call "
                "calibrate(clean) with clean entries."
            )
            raise NotFittedError(msg)
        return self._checked(batch, self._compare(batch), self._calibration)

    def check_all(
        self,
        batch: Batch,
        clean_rows: NDArray[np.intp] | None = None,
        neighbors: NDArray[np.integer[Any]] | None = None,
    ) -> Checked:
        """Compare every entry of a knowledge base with the others, each once.

        Clean entries calibrate, and the others are checked.

        Parameters
        ----------
        batch
            The whole knowledge base, which is the checker's own as well.
        clean_rows
            Rows of known-clean entries. Default: all rows calibrate and all are checked, so that
            the share of alerts is the rate in a clean knowledge base as well.
        neighbors
            Rows of the nearest entries of each entry, if they are known: shape (n_entries, k),
            nearest first, padded with -1. Default: they are searched for.

        Raises
        ------
        CalibrationError
            As :meth:`calibrate`.
        """
        compared = self._compare(batch, neighbors)
        rows, clean = np.arange(len(batch)), slice(None) if clean_rows is None else clean_rows
        calibration = self._calibrated(_scores(compared)[clean])
        if clean_rows is not None:
            rows = np.delete(rows, clean_rows)
        checked = self._checked(batch.take(rows), [compared[row] for row in rows], calibration)
        if clean_rows is None:
            checked = replace(checked, note=BY_ITSELF.format(self.rate))
        return checked

    def check_drift(self, report: DriftReport) -> Checked:
        """Compare the newcomers at flagged canaries with the other passages.

        Parameters
        ----------
        report
            From :meth:`CanaryMonitor.check`, which retrieved the passages.
        """
        new: dict[str, Passage] = {}
        for canary in report.flagged:
            ids = set(canary.newcomers)
            new |= {one.id: one for one in report.passages.get(canary.name, ()) if one.id in ids}
        passages = list(new.values())
        vectors: Any = [one.vector for one in passages]
        try:
            if self._embedder is not None and passages:
                vectors = self._embedder.documents([one.text for one in passages])
        except Exception as error:  # noqa: BLE001 - of any model; the check of canaries goes on
            why = f"the embedding model failed: {type(error).__name__}"
            return Checked(n_entries=len(passages), unchecked=dict.fromkeys(new, why))
        known = passages and not any(vector is None for vector in vectors)
        return self.check(batch_of(passages, vectors if known else None))

    def watch(
        self, guard: Guard, on_checked: Callable[[Checked], object] = lambda _checked: None
    ) -> Watcher:
        """Check the entries of each write of a guarded store, in a thread behind the write.

        Parameters
        ----------
        guard
            Of the store; it may be shared: every process checks its own writes.
        on_checked
            Called in that thread with each outcome that has alerts or unchecked entries. Default:
            nothing, for a checker with ``kept``.

        Returns
        -------
        Watcher
            Its ``wait()`` returns when nothing is left to do.
        """
        watcher = Watcher(self.check, on_checked)
        guard.writes.on_learned.append(watcher.put)
        return watcher

    def _calibrated(self, scores: NDArray[np.float64]) -> Calibration:
        scores = scores[~np.isnan(scores)]
        needed = clean_entries_needed(self.rate)
        if len(scores) < needed:
            msg = (
                f"{len(scores)} clean entries were compared, expected at least {needed} for a rate "
                f"of {self.rate:g}; pass more, or accept a higher rate."
            )
            raise CalibrationError(msg)
        self._calibration = Calibration.of(scores)
        return self._calibration

    def _checked(
        self, batch: Batch, compared: Sequence[_Compared], calibration: Calibration
    ) -> Checked:
        """Return the outcome of the comparisons of a batch."""
        p_values = calibration.p_values(np.array([one.score for one in compared]))
        found: dict[str, Alert] = {}  # once if two new entries contradict each other
        for entry, one, p_value in zip(batch, compared, p_values.tolist(), strict=True):
            if p_value <= self.rate and one.pair is not None and one.passage is not None:
                passage = one.passage
                how, why = relation(entry.text, entry.metadata, passage.text, passage.metadata)
                alert = Alert(
                    entry_id=entry.id,
                    claim=one.pair.claim[:QUOTED],
                    passage_id=passage.id,
                    passage=one.sentence[:QUOTED],
                    score=float(one.score),
                    p_value=p_value,
                    relation=how,
                    why=why,
                    model=self.model.name,
                    pair=pair_of((entry.id, entry.text), (passage.id, passage.text)),
                )
                found.setdefault(alert.pair, alert)
        alerts, over = self._within_budget(self._with_questions([*found.values()]))
        outcome = Checked(
            n_entries=len(batch),
            alerts=tuple(alerts),
            over_budget=tuple(over),
            unchecked={
                i: one.fault for i, one in zip(batch.ids, compared, strict=True) if one.fault
            },
        )
        if found or outcome.unchecked:
            logger.warning("contradictions: %s", outcome.summary())
        return outcome

    def _within_budget(self, alerts: Sequence[Alert]) -> tuple[Sequence[Alert], Sequence[Alert]]:
        """Return the alerts to tell, and those beyond the budget, most consequential first."""
        if self._kept is not None and alerts:
            try:
                return self._kept.add(alerts, self.per_day)
            except RAGShieldError as error:  # an alert that cannot be kept is still told
                kind = type(error).__name__
                logger.error("contradictions: alerts cannot be kept: %s", kind)  # noqa: TRY400
        return within(alerts, self._budget)

    def _compare(
        self, batch: Batch, neighbors: NDArray[np.integer[Any]] | None = None
    ) -> list[_Compared]:
        """Return the strongest contradiction of each entry."""
        try:
            near = self._near(batch) if neighbors is None else self._among(batch, neighbors)
        except Exception as error:  # noqa: BLE001 - of any store; the entries are written already
            fault = f"the nearest passages were not found: {type(error).__name__}"
            return [_Compared(fault=fault)] * len(batch)
        return [self._strongest(entry, one) for entry, one in zip(batch, near, strict=True)]

    def _near(self, batch: Batch) -> list[list[Passage]]:
        texts = [text[:MAX_TEXT] for text in batch.texts]
        vectors = batch.vectors if batch.dim else None
        found = self._knowledge_base.search(texts, vectors, self.k + SPARE) if texts else []
        return self._others(batch, found)

    def _among(self, batch: Batch, neighbors: NDArray[np.integer[Any]]) -> list[list[Passage]]:
        """Return the passages in these rows of the batch."""
        passages = MatrixRetriever(batch).passages()
        found = [[passages[row] for row in rows if row >= 0] for rows in neighbors.tolist()]
        return self._others(batch, found)

    def _others(self, batch: Batch, found: Sequence[Sequence[Passage]]) -> list[list[Passage]]:
        """Return the first k passages of each entry that are neither itself nor a copy."""
        return [
            [one for one in passages if one.id != entry.id and one.text != entry.text][: self.k]
            for entry, passages in zip(batch, found, strict=True)
        ]

    def _strongest(self, entry: Entry, near: Sequence[Passage]) -> _Compared:
        pairs = pairs_of(entry.text, [one.text for one in near], self.most_pairs)
        best, faults, n_compared = _Compared(), [], 0
        if len(entry.text) > MAX_TEXT:
            faults.append(f"only its first {MAX_TEXT} characters were compared")
        try:
            answers = self.model([pair for _, pair in pairs]) if pairs else ()
            for (number, pair), answer in zip(pairs, answers, strict=False):
                if answer is not None and 0.0 <= answer.score <= 1.0:  # NaN is no score either
                    n_compared += 1
                    if best.pair is None or answer.score > best.score:
                        best = _Compared(answer.score, pair, answer.sentence, near[number])
        except Exception as error:  # noqa: BLE001 - of any model; the entry is written already
            faults.append(f"the model failed: {type(error).__name__}")
        if n_compared < len(pairs):
            faults.append(f"{len(pairs) - n_compared} of {len(pairs)} comparisons are missing")
        return best._replace(fault="; ".join(faults))

    def _with_questions(self, alerts: Sequence[Alert]) -> Sequence[Alert]:
        """Return the alerts with the number of questions that both entries would answer."""
        texts = [*self._canaries, *self._questions]
        if not alerts or not texts:
            return alerts
        try:
            if self._asked is None and self._embedder is not None:
                self._asked = self._embedder.queries(texts)
            answers = self._knowledge_base.search(texts, self._asked, SHOWN)
        except Exception as error:  # noqa: BLE001 - an alert without its rank is still an alert
            kind = type(error).__name__
            logger.error("contradictions: questions cannot be searched: %s", kind)  # noqa: TRY400
            return alerts
        shown = [{one.id for one in passages} for passages in answers]
        n = len(self._canaries)
        counted = []
        for alert in alerts:
            both = [{alert.entry_id, alert.passage_id} <= ids for ids in shown]
            counted.append(replace(alert, canaries=sum(both[:n]), questions=sum(both[n:])))
        return counted


def _scores(compared: Sequence[_Compared]) -> NDArray[np.float64]:
    """Return the score of each entry, NaN where a comparison is missing."""
    return np.array([math.nan if one.fault else one.score for one in compared], dtype=np.float64)
