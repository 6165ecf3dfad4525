"""Detect entries whose vector is nearer to the centroid of another label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Evidence, Need, Scope, Traits
from ragshield_core.detectors.label.neighbors import check_judged
from ragshield_core.model.entries import Batch
from ragshield_core.model.taxonomy import OUTLIERS, POISONING

# A sum of unit vectors shorter than this has no meaningful direction: they cancel out.
NO_DIRECTION = 1e-6


class LabelCentroidDetector(Detector):
    """Compare each entry with the centroids of the labels in the knowledge base.

    The score is the cosine to the nearest centroid of another label minus the cosine to the
    centroid of the entry's own label, in [-2, 2]. By default a score above 0 is
    suspicious: the vector is closer to another label than to its own. Any number of labels.

    Parameters
    ----------
    level
        ``"entry"`` judges each entry by its own vector: for mixed batches, in which some entries
        are poisoned. ``"batch"`` judges, per label, the centroid of the batch's entries and
        condemns all of them together: robust against single outliers, for batches that come from
        one source and are poisoned as a whole; it misses a poisoned minority and holds the clean
        entries of a condemned label.
    min_entries
        A label with fewer entries in the knowledge base has no centroid, and its entries are
        reported as not judged. The default is 5: a mean of fewer vectors follows each of them.

    Notes
    -----
    Centroids are running sums: learning or forgetting costs O(batch) and the number of labels, not
    the size of the knowledge base. At batch level, scores of single clean entries say nothing about
    scores of clean batches, so a calibration does not apply and the default threshold stays in
    force.

    References
    ----------
    "Data Poisoning Detection Strategies", embedding space similarity, RAG service of the project
    Dynatrace unguard.

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> detector = LabelCentroidDetector(min_entries=1)
    >>> _ = detector.fit(Batch.of(ids=["a", "b"], texts=["", ""], labels=["ham", "spam"],
    ...                           embeddings=[[1, 0], [0, 1]]))
    >>> flipped = Batch.of(ids=["c"], texts=[""], labels=["spam"], embeddings=[[1, 0]])
    >>> detector.score(flipped)
    array([1.])
    """

    name: str = "label_centroid"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.EMBEDDING, Need.LABEL})
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0020", *POISONING, OUTLIERS, "CWE-345"),
    )

    def __init__(self, *, level: Literal["entry", "batch"] = "entry", min_entries: int = 5) -> None:
        if level not in ("entry", "batch"):
            msg = f"level is {level!r}, expected 'entry' or 'batch'."
            raise ValueError(msg)
        if min_entries < 1:
            msg = f"min_entries is {min_entries}, expected at least 1."
            raise ValueError(msg)
        self.level = level
        self.min_entries = min_entries
        if level == "batch":  # a guard may have both
            self.traits = replace(self.traits, scope=Scope.BATCH, exchangeable=False)
            self.name = f"{self.name}.batch"
        self.reset()

    def reset(self) -> None:
        """Forget every label."""
        self._codes: dict[str, int] = {}
        self._sums: NDArray[np.float64] = np.empty((0, 0))
        self._counts: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._centroids: NDArray[np.float64] | None = None

    def learn(self, entries: Batch) -> None:
        """Add labelled entries to the sums of their labels; others are ignored."""
        self._add(entries, 1)

    def forget(self, entries: Batch) -> None:
        """Subtract entries that were learned from the sums of their labels.

        Entries are ignored if their label has fewer entries than are to be forgotten, since they
        cannot have been learned, and if they have no vectors any more.
        """
        if entries.dim:
            self._add(entries, -1)

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return rows without a label, or with one that has no centroid or no other to compare."""
        reasons: dict[str | None, str] = {None: "it has no label"}
        usable = self._usable()
        names = {label for label, code in self._codes.items() if usable[code]}
        for label in set(batch.labels) - {None}:
            count = int(self._counts[self._codes[label]]) if label in self._codes else 0
            if count < self.min_entries:
                reasons[label] = (
                    f"label {label!r} has {count} entries in the knowledge base, "
                    f"{self.min_entries} are needed for a centroid"
                )
            elif label not in names:
                reasons[label] = (
                    f"the vectors of label {label!r} in the knowledge base cancel out, "
                    "so that it has no centroid"
                )
            elif len(names) == 1:
                reasons[label] = (
                    f"no label but {label!r} has a centroid in the knowledge base, two are needed"
                )
        if len(reasons) == 1 and None not in batch.labels:
            return {}
        return {row: reasons[label] for row, label in enumerate(batch.labels) if label in reasons}

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return best other similarity minus own similarity, shape (n_entries,)."""
        own, other, _ = self._similarities(batch)
        return other - own

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the two similarities and the label that fits better."""
        sizes = Counter(batch.labels)
        if self.level == "entry":  # only these rows are compared again
            batch, rows = batch.take(rows), range(len(rows))
        own, other, best = self._similarities(batch)
        labels = list(self._codes)
        evidence = []
        for row in rows:
            label = batch.labels[row]
            if self.level == "entry":
                subject = f"it is labelled {label!r}, but"
            else:
                subject = (
                    f"all {sizes[label]} entries labelled {label!r} in this batch are judged "
                    "together, not this one alone: their average"
                )
            how = "is closer to" if other[row] > own[row] else "is not much further from"
            evidence.append(
                Evidence(
                    sentence=(
                        f"{subject} {how} the average entry of {labels[best[row]]!r} than to that "
                        f"of {label!r} (similarity {other[row]:.3f}, {own[row]:.3f})"
                    )
                )
            )
        return evidence

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return labels, sums and counts."""
        return {"labels": list(self._codes)}, {"sums": self._sums, "counts": self._counts}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore labels, sums and counts."""
        self.reset()
        self._codes = {label: code for code, label in enumerate(values["labels"])}
        self._sums = np.asarray(arrays["sums"], dtype=np.float64)
        self._counts = np.asarray(arrays["counts"], dtype=np.int64)

    def _add(self, entries: Batch, sign: int) -> None:
        labelled = [row for row, label in enumerate(entries.labels) if label is not None]
        if not labelled:
            return
        labels = [label for label in entries.labels if label is not None]
        all_codes = dict(self._codes)
        for label in labels:
            all_codes.setdefault(label, len(all_codes))
        n_labels = len(all_codes)
        sums, counts = np.zeros((n_labels, entries.dim)), np.zeros(n_labels, dtype=np.int64)
        known = len(self._codes)
        if known:
            sums[:known], counts[:known] = self._sums, self._counts
        codes = np.fromiter((all_codes[label] for label in labels), np.intp, len(labels))
        counts += sign * np.bincount(codes, minlength=n_labels)
        if negative := {label for label, code in all_codes.items() if counts[code] < 0}:
            # More than were learned: entries that another process learned leave the knowledge base.
            known_here = [row for row in labelled if entries.labels[row] not in negative]
            self._add(entries.take(known_here), sign)
            return
        every = len(labels) == len(entries)
        vectors = entries.embeddings if every else entries.embeddings[labelled]
        sums += sign * _sum_by_code(codes, vectors, n_labels)
        sums[counts == 0] = 0.0  # exactly, without rounding errors
        self._codes, self._sums, self._counts, self._centroids = all_codes, sums, counts, None

    def _usable(self) -> NDArray[np.bool_]:
        """Return which labels have a centroid."""
        lengths = np.linalg.norm(self._sums, axis=1)
        usable: NDArray[np.bool_] = (self._counts >= self.min_entries) & (lengths > NO_DIRECTION)
        return usable

    def _unit_centroids(self) -> NDArray[np.float64]:
        """Return unit centroids, shape (n_labels, dim); a row is NaN if there is none."""
        if self._centroids is None:
            lengths = np.where(self._usable(), np.linalg.norm(self._sums, axis=1), np.nan)
            self._centroids = self._sums / lengths[:, None]
        return self._centroids

    def _similarities(
        self, batch: Batch
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
        """Return the cosines to the own and the best other centroid, and the code of the latter."""
        check_judged(self, batch, learned=bool(self._codes))
        if not len(batch):
            return np.empty(0), np.empty(0), np.empty(0, dtype=np.intp)
        codes = np.fromiter(
            (self._codes[label] for label in batch.labels if label is not None),
            np.intp,
            len(batch),
        )
        if self.level == "entry":
            # float64, so that a score does not depend on the other entries of the batch.
            similarity = batch.embeddings.astype(np.float64) @ self._unit_centroids().T
        else:
            sums = _sum_by_code(codes, batch.embeddings, len(self._codes))
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            # Vectors of a batch that cancel out have no direction: cosine 0 to everything.
            centroids = np.divide(
                sums, lengths, out=np.zeros_like(sums), where=lengths > NO_DIRECTION
            )
            similarity = (centroids @ self._unit_centroids().T)[codes]
        similarity[:, ~self._usable()] = -np.inf
        rows = np.arange(len(batch))
        own = similarity[rows, codes]
        similarity[rows, codes] = -np.inf
        best = np.argmax(similarity, axis=1)
        return own, similarity[rows, best], best


def _sum_by_code(
    codes: NDArray[np.intp], vectors: NDArray[np.float32], n_codes: int
) -> NDArray[np.float64]:
    """Sum the vectors of each code, shape (n_codes, dim)."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - keeps `import ragshield_core` quick

    rows = np.arange(len(codes))
    indicator = csr_array((np.ones(len(codes)), (codes, rows)), shape=(n_codes, len(codes)))
    sums: NDArray[np.float64] = np.asarray(indicator @ vectors)
    return sums
