"""Peers that find entries with flipped labels."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from corpora import load
from ingestion import chunks, guard_of, held, split
from label_flipping import BATCH_SIZE, TARGETED, flip, flip_neighborhood
from numpy.typing import NDArray
from peer_tables import FPR, Counts, Judgement, embedding_cost, threshold_at, timed
from rich.progress import track

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import Detector, LabelCentroidDetector
from ragshield_core.detectors.label.model import LabelModelDetector
from ragshield_core.detectors.label.neighbors import LabelNeighborDetector

CORPORA, SPLITS = ("sms_spam", "enron1_spam", "banking77"), 3
FOLDS = 5

HEAD = """
## 4. Flipped labels

A random half of the corpus is the knowledge base, its labels are right; the rest comes in batches
of {batch}, in which a share of the labels is flipped. Targeted: only the entries of one label that
are nearest to one of them, {targeted:.0%} of the label, all to the same other label. {splits}
splits, pooled as if independent. "At 1 %": the threshold that 1 % of the knowledge base exceeds,
each entry scored while held out. Datalab is given class probabilities as its documentation asks,
out of sample: of a logistic regression on the vectors, by {folds}-fold cross-validation within the
knowledge base, and fitted on all of it for what is new; knowledge base and all new entries are one
data set to it. The guard keeps its rate with 90 % confidence. "Clean": no label is flipped;
"beside": clean entries of batches with flipped ones.
"""


class LabelPeer(ABC):
    """A method that learns a labelled knowledge base and judges new entries."""

    own_name = "as it comes"

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def fit(self, known: Batch) -> NDArray[np.float64] | None:
        """Learn the knowledge base; return its held-out scores, if the method has any."""

    @abstractmethod
    def judge(self, new: Batch) -> Judgement:
        """Return the judgement of new entries."""


class Centroids(LabelPeer):
    """unguard's strategies: the centroid of another label is nearer than the own one."""

    def __init__(self, name: str, detector: LabelCentroidDetector) -> None:
        super().__init__(name)
        self._detector = detector
        self._tuned = detector.level == "entry"

    def fit(self, known: Batch) -> NDArray[np.float64] | None:
        """Learn the centroids."""
        self._detector.fit(known)
        return self._detector.held_out_scores(known, 0) if self._tuned else None

    def judge(self, new: Batch) -> Judgement:
        """Compare entries with the centroids, batch by batch."""
        scores = np.concatenate([self._detector.score(part) for part in chunks(new, BATCH_SIZE)])
        own = scores > self._detector.default_threshold
        return Judgement(own, scores if self._tuned else None)


class DatalabLabels(LabelPeer):
    """cleanlab's Datalab: confident learning."""

    def fit(self, known: Batch) -> NDArray[np.float64]:
        """Fit the classifier, and predict each entry by cross-validation."""
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - slow to import
        from sklearn.model_selection import cross_val_predict  # noqa: PLC0415

        self._known = known
        model = LogisticRegression(max_iter=1_000)
        self._held_out = cross_val_predict(
            model, known.embeddings, list(known.labels), cv=FOLDS, method="predict_proba"
        )
        self._model = model.fit(known.embeddings, list(known.labels))
        return self._issues(list(known.labels), self._held_out)[1]

    def judge(self, new: Batch) -> Judgement:
        """Look for issues in knowledge base and new entries together."""
        labels = [*self._known.labels, *new.labels]
        probabilities = np.concatenate([self._held_out, self._model.predict_proba(new.embeddings)])
        own, scores = self._issues(labels, probabilities)
        first = len(self._known)
        return Judgement(own[first:], scores[first:])

    def _issues(
        self, labels: list[str | None], probabilities: NDArray[np.float64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        from cleanlab import Datalab  # noqa: PLC0415 - an extra

        lab = Datalab(data={"label": labels}, label_name="label", verbosity=0)
        lab.find_issues(pred_probs=probabilities, issue_types={"label": {}})
        issues = lab.get_issues("label")
        return issues["is_label_issue"].to_numpy(), -issues["label_score"].to_numpy()


class Ours(LabelPeer):
    """A guard with one detector or with all, calibrated on the knowledge base."""

    own_name = "at 1 %"

    def __init__(self, name: str, detector: type[Detector] | None = None) -> None:
        super().__init__(f"**{name}**")
        self._detector = detector

    def fit(self, known: Batch) -> None:
        """Fit and calibrate."""
        if self._detector is not None:
            self._guard = guard_of([self._detector()], known, FPR)
        else:
            guard = Guard.default(FPR, quarantine=Quarantine("sqlite://"))
            self._guard = guard.fit(known).calibrate()

    def judge(self, new: Batch) -> Judgement:
        """Screen, batch by batch."""
        return Judgement(own=held(self._guard, new, BATCH_SIZE))


def peers() -> list[LabelPeer]:
    """Return every method."""
    return [
        Centroids("unguard, entries", LabelCentroidDetector()),
        Centroids("unguard, batches", LabelCentroidDetector(level="batch")),
        DatalabLabels("Datalab, label issues"),
        Ours("`LabelNeighborDetector`", LabelNeighborDetector),
        Ours("`LabelModelDetector`", LabelModelDetector),
        Ours("default guard"),
    ]


def flipped_batches(rest: Batch, seed: int) -> dict[str, tuple[Batch, NDArray[np.bool_]]]:
    """Return the new entries with shares of their labels flipped, and masks of the flips."""
    rng = np.random.default_rng(seed)
    found = {"clean": (rest, np.zeros(len(rest), dtype=np.bool_))}
    for share in (0.1, 0.4):
        parts = [flip(part, share, rng) for part in chunks(rest, BATCH_SIZE)]
        everything = Batch.of(
            ids=rest.ids,
            texts=rest.texts,
            embeddings=rest.embeddings,
            labels=[label for part, _ in parts for label in part.labels],
        )
        found[f"{share:.0%} flipped"] = everything, np.concatenate([bad for _, bad in parts])
    found["targeted"] = flip_neighborhood(rest, TARGETED, rng)
    return found


def labels(*, quick: bool = False) -> tuple[list[str], dict[str, object]]:
    """Return the tables, and all counts."""
    splits = 1 if quick else SPLITS
    lines = [HEAD.format(batch=BATCH_SIZE, targeted=TARGETED, splits=splits, folds=FOLDS)]
    counted: dict[str, object] = {}
    for name in CORPORA[:1] if quick else CORPORA:
        corpus, counts, costs = load(name), Counts(), []
        if quick:
            corpus = corpus.take(range(2_000))
        for seed in track(range(splits), description=f"labels, {name}"):
            known, rest = split(corpus, seed, 0.5)
            costs.append(embedding_cost(rest.texts[: 50 if quick else None]))
            cases = flipped_batches(rest, seed)
            for peer in peers():
                clean = peer.fit(known)
                threshold = None if clean is None else threshold_at(clean)
                for column, (batch, bad) in cases.items():
                    judged, seconds = timed(lambda: peer.judge(batch))
                    rows = {f"{peer.name}, {peer.own_name}": judged.own}
                    if threshold is not None and judged.scores is not None:
                        rows[f"{peer.name}, at 1 %"] = judged.scores > threshold
                    for row, found in rows.items():
                        assert found is not None  # noqa: S101 - every method has a default
                        if column == "clean":
                            counts.add(row, column, found)
                            counts.took(row, seconds, len(batch))
                        else:
                            counts.add(row, column, found[bad])
                            counts.add(row, f"beside {column}", found[~bad])
        cost = float(np.mean(costs))
        columns = ["clean", "beside 10% flipped", "beside 40% flipped"]
        columns += ["10% flipped", "40% flipped", "targeted"]
        lines += [f"\n### {name}\n", f"Embedding a text takes {cost:.1f} ms.\n"]
        lines += counts.table(columns, cost)
        counted[name] = counts.to_dict()
    return lines, counted
