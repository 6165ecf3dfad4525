"""Detector of orders by meaning, with a head over the knowledge base's own embedding model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import (
    N_FOLDS,
    Detector,
    Evidence,
    JudgesTexts,
    Need,
    Traits,
    UsesEmbedder,
)
from ragshield_core.detectors.instruction.gate import candidates, moods
from ragshield_core.detectors.instruction.head import (
    TELLS,
    Embed,
    Head,
    OrderModel,
    embedded,
    made_of,
    sums_of,
)
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import NotFittedError, StateError
from ragshield_core.model.findings import printable
from ragshield_core.model.taxonomy import CRAFTED, INJECTION

QUOTED = 80
# Entries of the knowledge base whose candidates define the usual sentences; more change nothing.
MOST_KNOWN = 3_000
# Sentences embedded in one call, and rows that are cached: templates repeat their sentences.
PART, MOST_REMEMBERED = 512, 4_000
# A text whose vector identifies a model, and the least similarity of two vectors of one model.
PROBE, SAME_MODEL = "Answer every question of the user with the text above.", 0.98


class OrderDetector(JudgesTexts, Detector, UsesEmbedder):
    """Find orders to the model by their meaning, in any wording.

    A cheap gate chooses sentences that may be orders, about one in ten of clean text. They are
    embedded with the knowledge base's own model and judged by a head: linear discriminants over
    vector and mood, fitted with the guard. The head separates the orders of a corpus, which comes
    with the package, from near misses of the same corpus (manuals, mails, policies, texts about
    prompts) and from usual sentences of the knowledge base. The score of a text is that of its most
    suspicious sentence, near 1 for an order.

    Guarded stores hand over their embedding model; elsewhere call
    :meth:`ragshield_core.Guard.use_embedder`. Without a model, or in languages in which its vectors
    cannot separate the orders of the corpus from near misses, the detector judges nothing and
    reports say so; the rules of :class:`InstructionDetector` still work.

    Parameters
    ----------
    embed
        The model, for a guard without a store: any callable from a list of texts to their vectors.
        It is not saved: give this detector to ``Guard.save`` and a like one to ``Guard.load``, as
        ``detectors=``. The default leaves it to the store.

    Notes
    -----
    Scores of entries of the knowledge base come from heads fitted without them. A text is compared
    with its knowledge base: if people write orders to people there, as in mails, more orders look
    usual, and fewer are found.

    Examples
    --------
    >>> from ragshield_core import Guard, Quarantine
    >>> guard = Guard([OrderDetector()], quarantine=Quarantine("sqlite://"))
    >>> OrderDetector().lacks()
    'needs the embedding model of the knowledge base; give it by Guard.use_embedder'
    """

    name: str = "order"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEXT})
    default_threshold = 0.8
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0051.001", *INJECTION, CRAFTED, "CWE-1427"),
        # Near misses score 0 on average and orders 1; lower scores are usual in some corpus.
        floor=0.6,
        acts_unfitted=False,
        reads_contexts=True,
        on_request=True,
    )

    def __init__(self, embed: Embed | None = None) -> None:
        self._embed = embed
        if embed is not None:  # a callable, which only pickle could save
            self.traits = replace(self.traits, unsaved="embed")
        self.reset()

    def config(self) -> dict[str, Any]:
        """Return no arguments: the model is not saved."""
        return {}

    def reset(self) -> None:
        """Forget the knowledge base, and the head that was fitted to it."""
        self._model: OrderModel | None = None
        self._head: Head | None = None
        self._probe: NDArray[np.float32] | None = None
        self._folds: dict[str, int] = {}
        self._held_out: list[Head] = []
        self._rows: dict[tuple[str, str | None], NDArray[np.float32]] = {}
        self._same = False  # whether the model at hand is the one that the head was fitted to

    def use_embedder(self, embed: Embed | None) -> None:
        """Use the embedding model of the knowledge base; raise if the head belongs to another."""
        if embed is not None:
            self._check_same(embed)
        self._embed, self._rows = embed, {}

    @property
    def embedder(self) -> Embed | None:
        """The embedding model at hand."""
        return self._embed

    def _check_same(self, embed: Embed) -> None:
        """Refuse a model other than the one that the head was fitted to."""
        if self._probe is None:
            return
        probe = embedded(embed, [PROBE])[0]
        if len(probe) != len(self._probe):
            what = f"gives vectors of {len(probe)} dimensions, expected {len(self._probe)}: another"
        elif float(probe @ self._probe) < SAME_MODEL:
            what = f"gives other vectors (cosine {float(probe @ self._probe):.2f}): it is another"
        else:
            self._same = True
            return
        msg = (
            f"the embedding model {what} than the one that {self.name} was fitted to; give that "
            "one, or fit the guard anew, with a knowledge base that the new model embedded."
        )
        raise StateError(msg)

    def lacks(self) -> str | None:
        """Return the reason if the detector can judge nothing yet, else None."""
        if self._embed is None:
            return "needs the embedding model of the knowledge base; give it by Guard.use_embedder"
        if self._model is not None and self._head is None:
            return (
                "the embedding model does not tell orders from other sentences (area under the "
                f"curve {self._model.told:.2f}, at least {TELLS} is needed)"
            )
        return None

    def learn(self, entries: Batch) -> None:
        """Do nothing: :meth:`refresh` measures the usual sentences."""

    def forget(self, entries: Batch) -> None:
        """Do nothing: single entries do not change the usual sentences."""

    def fit(self, reference: Batch) -> Self:
        """Fit the head to the embedding model and the usual sentences of a knowledge base."""
        self.reset()
        self.refresh(reference)
        return self

    def refresh(self, reference: Batch) -> None:
        """Fit the head anew to the usual sentences of the current knowledge base."""
        if self._embed is None:
            return
        if self._model is None:
            self._model = OrderModel.of(self._embed)
            self._probe, self._same = embedded(self._embed, [PROBE])[0], True
        self._head, self._folds, self._held_out = None, {}, []
        if not self._model.languages:
            return
        rng = np.random.default_rng(0)
        texts = [reference.texts[row] for row in rng.permutation(len(reference))[:MOST_KNOWN]]
        texts = list(dict.fromkeys(texts))
        fold = rng.integers(0, N_FOLDS, len(texts))
        owners, rows, *_ = self._candidates(texts)
        parts = [sums_of(rows[fold[owners] == part]) for part in range(N_FOLDS)]
        known = np.sum(parts, axis=0)
        self._folds = dict(zip(texts, fold.tolist(), strict=True))
        self._held_out = [self._model.fitted(known - part) for part in parts]
        self._head = self._model.fitted(known)

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return scores of fitted entries, each by a head that was fitted without it."""
        scores = np.full(len(fitted), np.nan)
        unjudged, head = self.unjudged(fitted), self._head
        folds = np.array([self._folds.get(text, N_FOLDS) for text in fitted.texts])
        folds[list(unjudged)] = -1
        try:
            for number, one in enumerate([*self._held_out, head]):
                rows = np.flatnonzero(folds == number)
                self._head = one
                scores[rows] = self.score(fitted.take(rows)) if len(rows) else []
        finally:
            self._head = head
        return scores

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row without a fitted model, else the rows in languages it cannot judge."""
        lacking = self.lacks()
        if lacking is None and self._head is None:
            lacking = "it was not fitted with the embedding model; fit the guard, or refresh it"
        if lacking is not None:
            return dict.fromkeys(range(len(batch)), lacking)
        found = {}
        for row, text in enumerate(batch.texts):
            language = candidates(text).language
            if language is not None and language not in self._languages:
                found[row] = f"the embedding model does not tell orders apart in {language!r}"
        return found

    @property
    def _languages(self) -> Mapping[str, float]:
        return {} if self._model is None else self._model.languages

    @property
    def _fitted(self) -> Head:
        if self._head is None:
            msg = f"{self.name} has no head yet; fit it with the embedding model before scoring."
            raise NotFittedError(msg)
        return self._head

    def scores_of(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the score of each text's most suspicious sentence, 0 without a candidate."""
        head, scores = self._fitted, np.zeros(len(texts))
        owners, rows, languages, _ = self._candidates(texts)
        np.maximum.at(scores, owners, head.scores(rows, languages))
        return scores

    def evidence_of(self, texts: Sequence[str]) -> list[Evidence]:
        """Return the most suspicious sentence of each text."""
        head = self._fitted
        owners, rows, languages, spans = self._candidates(texts)
        scores = head.scores(rows, languages)
        found = [Evidence(sentence="no sentence of it may be an order, score 0.00")] * len(texts)
        for at in np.argsort(scores):
            row = int(owners[at])
            quoted = printable(texts[row][slice(*spans[at])], QUOTED)
            found[row] = Evidence(
                sentence=f'by its meaning, "{quoted}" is an order to a model (score '
                f"{scores[at]:.2f}; orders have about 1, other sentences about 0)",
                span=spans[at],
            )
        return found

    def _candidates(
        self, texts: Sequence[str]
    ) -> tuple[NDArray[np.intp], NDArray[np.float32], list[str | None], list[tuple[int, int]]]:
        """Return the text, the row for the head, the language and the span of each candidate."""
        owners, sentences, languages, spans = [], [], [], []
        for row, text in enumerate(texts):
            found = candidates(text)
            for at in found.chosen:
                owners.append(row)
                sentences.append(found.text(at))
                languages.append(found.language)
                spans.append(found.view.original_span(*found.sentences[at]))
        rows = self._rows_of(sentences, languages)
        return np.array(owners, dtype=np.intp), rows, languages, spans

    def _rows_of(
        self, sentences: Sequence[str], languages: Sequence[str | None]
    ) -> NDArray[np.float32]:
        """Return the rows of sentences; each is embedded once."""
        assert self._model is not None  # noqa: S101 - callers check it
        if self._embed is None:
            raise NotFittedError(self.lacks())
        if not self._same:
            self._check_same(self._embed)
        wanted = list(zip(sentences, languages, strict=True))
        fresh: dict[tuple[str, str | None], NDArray[np.float32]] = {}
        # Sorted by length, because models pad the sentences of a batch to the longest.
        new = sorted(
            {one for one in wanted if one not in self._rows}, key=lambda one: (len(one[0]), one[0])
        )
        for start in range(0, len(new), PART):
            part = new[start : start + PART]
            listed, spoken = [one for one, _ in part], [name for _, name in part]
            rows = self._model.joined(embedded(self._embed, listed), moods(listed), spoken)
            fresh |= dict(zip(part, rows, strict=True))
        found = [fresh[one] if one in fresh else self._rows[one] for one in wanted]
        if len(self._rows) + len(fresh) > MOST_REMEMBERED:
            self._rows = {}
        self._rows |= dict(list(fresh.items())[:MOST_REMEMBERED])
        width = self._model.rows.shape[1]
        return np.array(found, dtype=np.float32).reshape(len(found), width)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the head, and the vectors of the corpus for fitting the next head."""
        if self._model is None or self._probe is None:
            return {}, {}
        values: dict[str, Any] = {
            "made_of": made_of(),
            "told": self._model.told,
            "languages": self._model.languages,
        }
        arrays: dict[str, NDArray[Any]] = {"probe": self._probe, "corpus": self._model.vectors}
        if self._head is not None:
            values["above"] = self._head.above
            arrays |= {"english": self._head.english, "others": self._head.others}
        return values, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the head; one of another corpus, as in another version, is fitted anew."""
        self.reset()
        if values.get("made_of") != made_of():
            return
        self._probe = np.asarray(arrays["probe"], dtype=np.float32)
        self._model = OrderModel(arrays["corpus"], values["languages"], float(values["told"]))
        if "above" in values:
            self._head = Head(arrays["english"], arrays["others"], dict(values["above"]))
