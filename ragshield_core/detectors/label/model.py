"""Detect entries whose label is implausible under a model of the knowledge base."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS, Evidence
from ragshield_core.detectors.label.neighbors import (
    RELATED,
    WIDTHS,
    KnowsLabels,
    count_votes,
    kernel,
    shown,
    unjudged_labels,
)
from ragshield_core.model.entries import Batch
from ragshield_core.neighbors.known import (
    KnownNeighbors,
    LabelledEntries,
)
from ragshield_core.neighbors.threads import one_thread
from ragshield_core.state import part_of

# Numbers of neighbours that vote beside the regression: the nearest few judge near-duplicates
# better, many judge rare entries better. Both votes together did better than either on all three
# corpora of benchmarks/label_flipping.py.
NEAREST, K = 5, 16
# Size of the random sample, stratified by label, from which the regression is learned; more adds
# little, because the neighbours know all entries.
MAX_ENTRIES = 15_000
# Landmarks of the kernel, and the most work (entries * labels * landmarks) of one pass of the
# optimiser: 512 landmarks for 15,000 entries of up to 39 labels, and 259 for 77.
LANDMARKS, LEAST_LANDMARKS, PASS = 512, 256, 300_000_000
# Directions of the kernel matrix below this share of the largest eigenvalue are noise.
NO_DIRECTION = 1e-6
# Inverse strength of the penalty when everything is learned (10 and 100 do nearly as well), and
# stopping criteria of the optimiser: 30 to 60 rounds are usual; a tolerance of 1e-3 stops far too
# early with 77 labels.
PENALTY, MAX_ITERATIONS, TOLERANCE = 30.0, 300, 1e-4
# Entries on which three weights, one per kind of evidence, are fitted.
STACKED = 2_000
# Share and number of entries that come or go before the regression is learned again.
REFIT_AT, FEWEST_CHANGES = 0.1, 50
# Growth of the knowledge base at which everything is learned again, not the regression alone.
GROWTH = 2.0
SEED = 0  # of samples and parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """The learned model; probabilities need no scikit-learn."""

    codes: NDArray[np.int64]  # (n_classes,), of labels, ascending
    landmarks: NDArray[np.float32]  # (m, dim)
    bandwidth: float  # of the kernel, cosine distance
    usual: float  # distance of the last neighbour
    coefficients: NDArray[np.float64]  # (n_features, n_classes)
    intercepts: NDArray[np.float64]  # (n_classes,)
    trust: NDArray[np.float64]  # (3,): in the regression, the nearest few and all neighbours
    penalty: float  # C times the number of entries that it was chosen for
    projection: NDArray[np.float64]  # (m, n_features): whitens the kernel; follows from landmarks

    def features(self, embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return whitened similarities to the landmarks, shape (n, n_features)."""
        return _kernel(embeddings, self.landmarks, self.bandwidth) @ self.projection

    def logits(self, embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return log-probabilities by the regression, shape (n, n_classes)."""
        # Two small products instead of a large one; in float64, because large coefficients amplify
        # rounding errors, which differ with the shape of a batch.
        weights = self.projection @ self.coefficients
        return _log_softmax(
            _kernel(embeddings, self.landmarks, self.bandwidth) @ weights + self.intercepts
        )


class LabelModelDetector(KnowsLabels):
    """Judge each label by a model of the labels in the knowledge base.

    The score is the log-odds of the most plausible other label against the entry's own, under
    three kinds of evidence: a logistic regression on the vectors, the votes of the five nearest
    known entries, and the votes of sixteen. Their weights are learned from the knowledge base, so
    that the weighted sum predicts the labels of held-out entries best. By default a score above 0
    is suspicious: another label is more plausible. Any number of labels.

    Needs scikit-learn, for learning only: ``pip install 'ragshield[labels]'``.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.

    Notes
    -----
    Confident learning [1]_: a label is doubtful if out-of-sample probabilities speak against it,
    here by the normalised margin, as log-odds. The regression sees the vectors through a Gaussian
    kernel to landmarks (Nyström's method [2]_), whose width is the mean distance of two entries,
    so it is not linear. The evidence is combined by stacking [3]_.

    The regression is learned again once the number of entries learned and forgotten since the last
    time exceeds 50 and a tenth of the entries known then. Once the knowledge base has doubled,
    everything is learned again. A label that is new to the model is reported as not judged until it
    is learned again. Learning from 15,000 entries of 384 dimensions takes about 3 seconds on one
    core for two labels, and 20 for 77. The state has weights, landmarks and, unless it is borrowed,
    the index.

    References
    ----------
    .. [1] Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset
       Labels", Journal of Artificial Intelligence Research 70, 2021.
    .. [2] Williams and Seeger, "Using the Nyström Method to Speed Up Kernel Machines", NIPS 2000.
    .. [3] Wolpert, "Stacked generalization", Neural Networks 5, 1992.
    """

    name: str = "label_model"
    min_entries = 5  # of a label; one for each of the parts that are held out in turn

    def __init__(self) -> None:
        if find_spec("sklearn") is None:
            msg = "LabelModelDetector needs scikit-learn; pip install 'ragshield[labels]'."
            raise ImportError(msg)
        self._known = LabelledEntries()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._known.reset()
        self._model: _Model | None = None
        self._known_then = 0  # known entries when everything was learned
        self._known_last = 0  # known entries when the regression was learned
        self._changes = 0  # entries learned and forgotten since
        # Out-of-fold log-probabilities of the entries that the regression was learned from.
        self._held_out: tuple[dict[str, int], NDArray[np.float64]] | None = None

    def learn(self, entries: Batch) -> None:
        """Add entries and their labels; learn the model again when that is due."""
        if not len(entries):
            return
        self._known.learn(entries)
        self._changed(entries, len(entries))

    def forget(self, entries: Batch) -> None:
        """Remove entries; learn the model again when that is due."""
        before = len(self._known)
        self._known.forget(entries.ids)
        self._changed(entries.take([]), before - len(self._known))

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return rows without a label, with a rare one, or with one that is too new."""
        reasons = super().unjudged(batch)
        if self._model is not None:
            late = ~np.isin(self._known.codes_of_labels(batch.labels), self._model.codes)
            for row in np.flatnonzero(late).tolist():
                left = int(self._allowed()) + 1 - self._changes
                reasons.setdefault(
                    row,
                    f"label {shown(batch.labels[row])} is new; the model is learned again when "
                    f"{left} more entries have come or gone",
                )
        return reasons

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the log-odds of the best other label against the own, shape (n_entries,)."""
        evidence, _ = self._evidence(batch)
        return self._margins(batch, evidence)[0]

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:
        """Return scores by regressions that did not learn the entry, without its own vote."""
        scores = np.full(len(fitted), np.nan)
        model = self._model
        skipped = unjudged_labels(self._known, fitted, self.min_entries)
        rows = np.array([row for row in range(len(fitted)) if row not in skipped], dtype=np.intp)
        if model is None or not rows.size:
            return scores
        part = fitted.take(rows)
        row_of, by_fold = self._held_out or ({}, np.empty((0, len(model.codes))))
        out_of_fold = np.array([row_of.get(entry_id, -1) for entry_id in part.ids])
        if row_of:  # entries outside the sample are new to the model anyway
            regression = model.logits(part.embeddings)
            regression[out_of_fold >= 0] = by_fold[out_of_fold[out_of_fold >= 0]]
        else:
            with one_thread():
                regression = self._cross_validated(
                    model.features(part.embeddings), self._classes(part), model, seed
                )
        found = self._known.source.standing_neighbors(part.ids, K)
        scores[rows] = self._margins(part, self._combined(model, regression, found))[0]
        return scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return both probabilities, and the votes of the neighbours."""
        if not len(rows):
            return []
        batch = batch.take(rows)
        evidence, found = self._evidence(batch)
        _, best = self._margins(batch, evidence)
        probability = np.exp(_log_softmax(evidence))
        model = self._fitted()
        own = self._classes(batch)
        codes = self._known.codes_of(found.ids)
        explained = []
        for row, label in enumerate(batch.labels):
            mine, theirs = int(own[row]), int(best[row])
            name, other = shown(label), shown(self._known.names[int(model.codes[theirs])])
            agree = codes[row] == model.codes[theirs]
            n, n_own = int((codes[row] >= 0).sum()), int((codes[row] == model.codes[mine]).sum())
            sentence = (
                f"it is labelled {name}, but reads like {other}: of the {n} most similar labelled "
                f"entries {n_own} are {name} and {int(agree.sum())} {other} (probability of {name} "
                f"{probability[row, mine]:.4f}, of {other} {probability[row, theirs]:.4f})"
            )
            related = tuple(found.ids[row][agree].tolist()[:RELATED])
            explained.append(Evidence(sentence=sentence, related_ids=related))
        return explained

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return labels, weights, landmarks and the index, unless the index is borrowed."""
        known, arrays = self._known.state()
        values: dict[str, Any] = {
            "known": known,
            "then": self._known_then,
            "last": self._known_last,
            "changes": self._changes,
            "model": None,
        }
        if self._model is not None:
            kept = {one.name: getattr(self._model, one.name) for one in fields(self._model)}
            del kept["projection"]
            values["model"] = {k: kept.pop(k) for k in ("bandwidth", "usual", "penalty")}
            arrays |= {f"model.{name}": array for name, array in kept.items()}
        return values, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        self.reset()
        self._known.restore(values["known"], arrays)
        self._known_then, self._known_last = int(values["then"]), int(values["last"])
        self._changes = int(values["changes"])
        if values["model"] is not None:
            # Products differ with the memory layout.
            found: dict[str, Any] = {
                k: array.copy(order="K") for k, array in part_of(arrays, "model.").items()
            }
            with one_thread():
                projection = _projection(found["landmarks"], values["model"]["bandwidth"])
            self._model = _Model(**found, **values["model"], projection=projection)

    # Learning

    def _changed(self, entries: Batch, n: int) -> None:
        """Learn the due parts again; ``entries`` are those that have just come."""
        if not n:
            return
        self._changes += n
        self._held_out = None
        counts = self._known.counts
        codes = np.flatnonzero(counts >= self.min_entries)
        if len(codes) < 2:  # noqa: PLR2004
            return
        if self._model is None or len(self._known) >= GROWTH * self._known_then:
            with one_thread():
                self._learn_all(codes, entries)
            self._known_then = len(self._known)
        elif self._changes > self._allowed():
            with one_thread():
                self._model = self._learned_again(self._model, codes, entries)
        else:
            return
        self._known_last, self._changes = len(self._known), 0

    def _allowed(self) -> float:
        """Return how many entries may come and go before the regression is learned again."""
        return max(FEWEST_CHANGES, REFIT_AT * self._known_last)

    def _learn_all(self, codes: NDArray[np.int64], entries: Batch) -> None:
        """Choose landmarks and scales, learn the regression and the weight of each evidence."""
        rng = np.random.default_rng(SEED)
        ids, classes = self._sample(codes, rng)
        vectors = self._vectors(ids, entries)
        n, n_classes = len(ids), len(codes)
        size = min(n, LANDMARKS, max(LEAST_LANDMARKS, PASS // (n * n_classes)))
        landmarks = vectors[np.sort(rng.permutation(n)[:size])]
        mean = vectors.mean(axis=0, dtype=np.float64)
        bandwidth = float(max(0.05, 1.0 - mean @ mean))  # the mean distance of two rows
        projection = _projection(landmarks, bandwidth)
        features = _kernel(vectors, landmarks, bandwidth) @ projection
        coefficients, intercepts = _regression(features, classes, n_classes, PENALTY)
        model = _Model(
            codes=codes,
            landmarks=landmarks,
            bandwidth=bandwidth,
            usual=self._known.usual_distance(K),
            coefficients=coefficients,
            intercepts=intercepts,
            trust=np.ones(3),
            penalty=PENALTY * n,
            projection=projection,
        )
        by_fold = self._cross_validated(features, classes, model, SEED)
        stacked = np.sort(rng.permutation(n)[:STACKED])
        found = self._known.source.standing_neighbors([ids[row] for row in stacked.tolist()], K)
        trust = _stacked(np.stack([by_fold[stacked], *self._votes(model, found)]), classes[stacked])
        self._model = replace(model, trust=trust)
        self._held_out = ({entry_id: row for row, entry_id in enumerate(ids)}, by_fold)

    def _learned_again(self, model: _Model, codes: NDArray[np.int64], entries: Batch) -> _Model:
        """Return the model with a new regression on the present features."""
        ids, classes = self._sample(codes, np.random.default_rng(SEED))
        features = model.features(self._vectors(ids, entries))
        coefficients, intercepts = _regression(
            features, classes, len(codes), model.penalty / len(ids)
        )
        return replace(model, codes=codes, coefficients=coefficients, intercepts=intercepts)

    def _sample(
        self, codes: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[list[str], NDArray[np.int64]]:
        """Return ids to learn from and their classes: numbers of ``codes``."""
        ids, all_codes = self._known.ids, self._known.codes
        rows = np.flatnonzero(np.isin(all_codes, codes))
        classes = np.searchsorted(codes, all_codes[rows])
        if len(rows) > MAX_ENTRIES:
            order = rng.permutation(len(rows))
            rank = _rank_within(classes[order])
            counts = np.bincount(classes)
            quota = np.maximum(self.min_entries, counts * MAX_ENTRIES // len(rows))
            chosen = np.sort(order[rank < quota[classes[order]]])
            rows, classes = rows[chosen], classes[chosen]
        return [ids[row] for row in rows.tolist()], classes

    def _vectors(self, ids: Sequence[str], entries: Batch) -> NDArray[np.float32]:
        """Return vectors of known entries, some of which may just have come."""
        row_of = {entry_id: row for row, entry_id in enumerate(entries.ids)}
        rows = np.array([row_of.get(entry_id, -1) for entry_id in ids], dtype=np.intp)
        standing = rows < 0
        if not standing.any():
            return entries.embeddings[rows]
        wanted = [ids[row] for row in np.flatnonzero(standing).tolist()]
        old = self._known.source.vectors(wanted)
        vectors = np.empty((len(ids), old.shape[1]), dtype=np.float32)
        vectors[standing] = old
        if not standing.all():
            vectors[~standing] = entries.embeddings[rows[~standing]]
        return vectors

    def _cross_validated(
        self,
        features: NDArray[np.float64],
        classes: NDArray[np.int64],
        model: _Model,
        seed: int,
    ) -> NDArray[np.float64]:
        """Return log-probabilities of entries, each by a regression on the other folds."""
        order = np.random.default_rng(seed).permutation(len(classes))
        fold = np.empty(len(classes), dtype=np.int64)
        fold[order] = _rank_within(classes[order]) % N_FOLDS
        logits = np.empty((len(classes), len(model.codes)))
        for number in range(N_FOLDS):
            out = fold == number
            if out.any():
                coefficients, intercepts = _regression(
                    features[~out],
                    classes[~out],
                    len(model.codes),
                    # In proportion to the entries, so that scores keep their scale.
                    model.penalty / int(np.count_nonzero(~out)),
                )
                logits[out] = _log_softmax(features[out] @ coefficients + intercepts)
        return logits

    # Judging

    def _fitted(self) -> _Model:
        if self._model is None:  # unreachable: check_judged has refused every entry
            msg = f"{self.name} has no model yet."
            raise RuntimeError(msg)
        return self._model

    def _classes(self, batch: Batch) -> NDArray[np.int64]:
        """Return the class of each entry; each must have one."""
        return np.searchsorted(self._fitted().codes, self._known.codes_of_labels(batch.labels))

    def _evidence(self, batch: Batch) -> tuple[NDArray[np.float64], KnownNeighbors]:
        """Return all evidence together, shape (n, n_classes), and the neighbours."""
        found = self._asked(batch, K)
        if not len(batch):
            return np.empty((0, 0)), found
        model = self._fitted()
        return self._combined(model, model.logits(batch.embeddings), found), found

    def _combined(
        self, model: _Model, regression: NDArray[np.float64], found: KnownNeighbors
    ) -> NDArray[np.float64]:
        few, many = self._votes(model, found)
        return np.asarray(np.tensordot(model.trust, np.stack([regression, few, many]), 1))

    def _votes(
        self, model: _Model, found: KnownNeighbors
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the log of the votes of the nearest few and of all neighbours, by class."""
        codes = self._known.codes_of(found.ids)
        place = np.minimum(np.searchsorted(model.codes, codes), len(model.codes) - 1)
        classes = np.where(model.codes[place] == codes, place, -1)
        weights = kernel(found.similarities, model.usual)
        doubt = np.exp(-WIDTHS)  # one vote from the usual distance
        few, many = (
            np.log(count_votes(classes[:, :k], weights[:, :k], len(model.codes)) + doubt)
            for k in (NEAREST, K)
        )
        return few, many

    def _margins(
        self, batch: Batch, evidence: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the lead of the best other label over the own one, and its class."""
        if not len(batch):
            return np.empty(0), np.empty(0, dtype=np.intp)
        rows, own = np.arange(len(batch)), self._classes(batch)
        mine = evidence[rows, own]
        others = evidence.copy()
        others[rows, own] = -np.inf
        others[:, self._known.counts[self._fitted().codes] < self.min_entries] = -np.inf
        best = others.argmax(axis=1)
        return others[rows, best] - mine, best


def _regression(
    features: NDArray[np.float64],
    classes: NDArray[np.int64],
    n_classes: int,
    inverse_penalty: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coefficients, shape (n_features, n_classes), and intercepts, (n_classes,)."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - optional, and slow
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    regression = LogisticRegression(C=inverse_penalty, max_iter=MAX_ITERATIONS, tol=TOLERANCE)
    with warnings.catch_warnings():  # the budget may end before the optimum, which is acceptable
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(features.astype(np.float32), classes)
    coefficients = regression.coef_.T.astype(np.float64)
    intercepts = regression.intercept_.astype(np.float64)
    if n_classes == 2:  # noqa: PLR2004
        return np.hstack([-coefficients, coefficients]) / 2, np.hstack(
            [-intercepts, intercepts]
        ) / 2
    return coefficients, intercepts


def _stacked(evidence: NDArray[np.float64], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weight of each kind of evidence with which the sum predicts the classes best.

    At least 0, shape (n_kinds,), for log evidence of shape (n_kinds, n, n_classes).
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - slow to import

    rows = np.arange(len(classes))
    given = evidence[:, rows, classes]

    def loss(trust: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = _log_softmax(np.tensordot(trust, evidence, 1))
        expected = np.einsum("ij,kij->k", np.exp(logits), evidence) / len(rows)
        # A small penalty bounds the weights if the classes are perfectly separable.
        value = -float(logits[rows, classes].mean()) + 1e-3 * float(trust @ trust)
        return value, expected - given.mean(axis=1) + 2e-3 * trust

    start = np.full(len(evidence), 0.5)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * len(start))
    return np.asarray(found.x, dtype=np.float64)


def _kernel(
    embeddings: NDArray[np.float32], landmarks: NDArray[np.float32], bandwidth: float
) -> NDArray[np.float64]:
    """Return exp(-distance / bandwidth): a Gaussian kernel, since rows have unit length."""
    cosine = embeddings.astype(np.float64) @ landmarks.T.astype(np.float64)
    return np.asarray(np.exp((cosine - 1.0) / bandwidth))


def _projection(landmarks: NDArray[np.float32], bandwidth: float) -> NDArray[np.float64]:
    """Return the inverse root of the kernel matrix, without its noise directions."""
    values, vectors = np.linalg.eigh(_kernel(landmarks, landmarks, bandwidth))
    kept = values > NO_DIRECTION * values[-1]
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    if not logits.size:
        return logits
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _rank_within(classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each row among the rows of its class, from 0."""
    order = np.argsort(classes, kind="stable")
    ordered = classes[order]
    rank = np.empty(len(classes), dtype=np.int64)
    rank[order] = np.arange(len(classes)) - np.searchsorted(ordered, ordered)
    return rank
