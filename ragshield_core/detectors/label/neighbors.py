"""Detect entries whose nearest neighbours carry another label."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Audits, Detector, Evidence, Need, Overlooks, Traits
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.model.findings import printable
from ragshield_core.model.taxonomy import OUTLIERS, POISONING
from ragshield_core.neighbors.known import (
    Borrower,
    KnownNeighbors,
    LabelledEntries,
    NeighborSource,
)

# A vote loses a factor e with each fifth of the usual distance of the k-th neighbour: a distance
# kernel for k-NN whose width fits the knowledge base and the embedding model.
# Widths of a third and a tenth find fewer flipped labels on SMS or mails.
WIDTHS = 5.0
# Prior votes, spread over the labels by their frequency in the knowledge base: half of a vote from
# the usual distance.
DOUBT = 0.5 * math.exp(-WIDTHS)
# Most neighbours that evidence names, and most characters of a label.
RELATED, LABEL_SHOWN = 5, 60


class KnowsLabels(Audits, Overlooks, Borrower):
    """Base class of detectors that read the labels of neighbours."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.EMBEDDING, Need.LABEL})
    traits = Traits(taxonomy=("AML.T0070", "AML.T0020", *POISONING, OUTLIERS, "CWE-345"))
    min_entries: int
    _known: LabelledEntries

    def borrow(self, source: NeighborSource | None) -> None:
        """Use another index for neighbours and vectors, and keep labels only; before fitting."""
        self._known.borrow(source)

    def overlook(self, ids: Collection[str]) -> None:
        """Ignore the votes of entries that the batch replaces."""
        self._known.source.overlook(ids)

    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:
        """Fit a whole knowledge base and judge each label by the other entries."""
        self.fit(entries)
        return self.held_out_scores(entries, seed)

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return rows without a label, or with a rare one."""
        return unjudged_labels(self._known, batch, self.min_entries)

    def _asked(self, batch: Batch, k: int) -> KnownNeighbors:
        """Return the neighbours of entries that can be judged."""
        check_judged(self, batch, learned=bool(self._known.names))
        return self._known.source.known_neighbors(batch, k)


class LabelNeighborDetector(KnowsLabels):
    """Let the nearest known entries vote on the label of each new one, weighted by nearness.

    The score is the logarithm of the votes for the best other label over the votes for the entry's
    own. Before the neighbours vote, a fraction of a vote is spread over the labels by their
    frequency, so that scores stay finite and graded if all neighbours agree. By default a
    score above 0 is suspicious: the vote goes to another label. Any number of labels.

    Parameters
    ----------
    k
        Neighbours that vote, 16 by default: few enough to be near, and enough that one mislabelled
        entry in the knowledge base does not decide the vote.
    min_entries
        Entries whose label has fewer known entries are not judged: they could not win a vote. The
        default is 5.

    Notes
    -----
    Entries of the knowledge base without a label cast no vote. An older revision of an entry
    has no vote on the new one, and a known entry is scored as if it were left out.

    References
    ----------
    "Data Poisoning Detection Strategies", label consistency, RAG service of the project Dynatrace
    unguard, for the setting; Fix and Hodges, "Discriminatory analysis", 1951, and Dudani, "The
    distance-weighted k-nearest-neighbor rule", 1976, for the votes.

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> detector = LabelNeighborDetector(k=1, min_entries=1)
    >>> _ = detector.fit(Batch.of(ids=["a", "b"], texts=["", ""], labels=["ham", "spam"],
    ...                           embeddings=[[1, 0], [0, 1]]))
    >>> flipped = Batch.of(ids=["c"], texts=[""], labels=["spam"], embeddings=[[1, 0]])
    >>> detector.score(flipped).round(1)
    array([6.4])
    """

    name: str = "label_neighbors"

    def __init__(self, *, k: int = 16, min_entries: int = 5) -> None:
        for name, value in (("k", k), ("min_entries", min_entries)):
            if value < 1:
                msg = f"{name} is {value}, expected at least 1."
                raise ValueError(msg)
        self.k = k
        self.min_entries = min_entries
        self._known = LabelledEntries()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._known.reset()
        self._usual = 1.0  # distance of the k-th neighbour
        self._measured = 0  # known entries when it was measured

    def learn(self, entries: Batch) -> None:
        """Add entries and their labels."""
        self._known.learn(entries)
        if len(self._known) >= 2 * max(1, self._measured):
            self._measure()

    def refresh(self, reference: Batch) -> None:  # noqa: ARG002
        """Measure the usual distance of neighbours again."""
        self._measure()

    def _measure(self) -> None:
        if self._known.counts.any():  # without labels, no distance is needed
            self._usual, self._measured = self._known.usual_distance(self.k), len(self._known)

    def forget(self, entries: Batch) -> None:
        """Remove entries; unknown ones are ignored."""
        self._known.forget(entries.ids)

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the log ratio of votes, best other label over own, shape (n_entries,)."""
        return self._scores(batch, self._asked(batch, self.k))[0]

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the score of each fitted entry by its neighbours, which exclude the entry."""
        scores = np.full(len(fitted), np.nan)
        skipped = unjudged_labels(self._known, fitted, self.min_entries + 1)  # itself is left out
        rows = np.array([row for row in range(len(fitted)) if row not in skipped], dtype=np.intp)
        if not rows.size:
            return scores
        part = fitted.take(rows)
        found = self._known.source.standing_neighbors(part.ids, self.k)
        scores[rows] = self._scores(part, found)[0]
        return scores

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return counts of the neighbours' labels, and the nearest neighbours."""
        if not len(rows):
            return []
        batch = batch.take(rows)
        found = self._asked(batch, self.k)
        _, best, codes = self._scores(batch, found)
        own = self._known.codes_of_labels(batch.labels)
        evidence = []
        for row, label in enumerate(batch.labels):
            against = codes[row] == best[row]
            nearest = found.similarities[row][against if against.any() else codes[row] >= 0]
            sentence = (
                f"it is labelled {shown(label)}, but of the {int((codes[row] >= 0).sum())} most "
                f"similar labelled entries {int((codes[row] == own[row]).sum())} are, and "
                f"{int(against.sum())} are {shown(self._known.names[best[row]])}"
            )
            if len(nearest):
                sentence += f" (similarity up to {float(nearest[0]):.3f})"
            related = tuple(found.ids[row][against].tolist()[:RELATED])
            evidence.append(Evidence(sentence=sentence, related_ids=related))
        return evidence

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the labels and the index, unless the index is borrowed."""
        values, arrays = self._known.state()
        return {"known": values, "usual": self._usual, "measured": self._measured}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        self.reset()
        self._known.restore(values["known"], arrays)
        self._usual, self._measured = float(values["usual"]), int(values["measured"])

    def _scores(
        self, batch: Batch, found: KnownNeighbors
    ) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.int64]]:
        """Return scores, the code of the best other label, and the codes of neighbours' votes."""
        known = self._known
        codes = known.codes_of(found.ids)
        rows = np.arange(len(batch))
        others = np.tile(known.counts.astype(np.float64), (len(batch), 1))
        itself = known.codes_of(batch.ids)  # an older revision, or the held-out entry itself
        others[rows[itself >= 0], itself[itself >= 0]] -= 1.0
        np.maximum(others, 1.0, out=others)
        votes = count_votes(codes, kernel(found.similarities, self._usual), len(known.names))
        smooth = votes + DOUBT * others / others.sum(axis=1, keepdims=True)
        # A label of too few entries, or of none any more, is no alternative.
        smooth[:, known.counts < self.min_entries] = 0.0
        own = known.codes_of_labels(batch.labels)
        mine = smooth[rows, own]
        smooth[rows, own] = 0.0
        best = smooth.argmax(axis=1)
        return np.log(smooth[rows, best]) - np.log(mine), best, codes


def kernel(similarities: NDArray[np.float32], usual: float) -> NDArray[np.float64]:
    """Return votes by nearness, in (0, 1]: 1 for a copy, exp(-5) at the usual distance."""
    known = np.where(np.isfinite(similarities), similarities, -1.0).astype(np.float64)
    return np.exp((known - 1.0) * (WIDTHS / usual))


def count_votes(
    codes: NDArray[np.int64], weights: NDArray[np.float64], n_labels: int
) -> NDArray[np.float64]:
    """Sum votes by label, (n, n_labels), of codes and weights of shape (n, k); -1 has no vote."""
    shape = (len(codes), n_labels)
    row, column = np.nonzero(codes >= 0)
    where = row * n_labels + codes[row, column]
    votes = np.bincount(where, weights=weights[row, column], minlength=shape[0] * n_labels)
    return votes.reshape(shape).astype(np.float64)


def unjudged_labels(known: LabelledEntries, batch: Batch, min_entries: int) -> dict[int, str]:
    """Return the rows whose labels cannot be judged, each with the reason."""
    counts = dict(zip(known.names, known.counts.tolist(), strict=True))
    enough = {label for label, n in counts.items() if n >= min_entries}
    reasons: dict[str | None, str] = {None: "it has no label"}
    for label in set(batch.labels).difference([None]):
        if label not in enough:
            reasons[label] = (
                f"label {shown(label)} has {counts.get(label or '', 0)} entries in the knowledge "
                f"base, {min_entries} are needed"
            )
        elif len(enough) == 1:
            reasons[label] = (
                f"no label but {shown(label)} has {min_entries} entries in the knowledge base, "
                "two are needed"
            )
    return {row: reasons[label] for row, label in enumerate(batch.labels) if label in reasons}


def check_judged(detector: Detector, batch: Batch, *, learned: bool) -> None:
    """Refuse to score before learning, and refuse entries that cannot be judged."""
    if not learned:
        msg = (
            f"{detector.name} has learned no labelled entry yet; fit it on the knowledge base "
            "before scoring."
        )
        raise NotFittedError(msg)
    if unjudged := detector.unjudged(batch):
        row, reason = next(iter(unjudged.items()))
        msg = (
            f"entry {batch.ids[row]!r} cannot be judged: {reason}; leave out what "
            "unjudged(batch) names."
        )
        raise InvalidBatchError(msg)


def shown(label: str | None) -> str:
    """Return a printable label, in quotes."""
    return f"'{printable(label or '', LABEL_SHOWN)}'"
