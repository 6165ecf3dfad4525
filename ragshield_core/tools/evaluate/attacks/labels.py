"""Clean entries under a label that is not theirs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.tools.evaluate.attacks.catalogue import Planted

# As reports have it; no recipe of :data:`ATTACKS`, since it is aimed at entries, not at a question.
LABEL_FLIPS = "label flips"


def flip_labels(entries: Batch, n: int, seed: int = 0) -> tuple[list[Planted], NDArray[np.intp]]:
    """Return entries with another label of the batch, and which rows they were made of.

    Parameters
    ----------
    entries
        Clean ones. Those without a text or a label are left alone.
    n
        How many, at most; none where there are fewer than two labels.
    seed
        Of the draw of entries and labels, each label as likely as any other.

    Returns
    -------
    tuple[list[Planted], NDArray[np.intp]]
        Each alone, for no question; and their rows, shape (n_flipped,).

    Examples
    --------
    >>> batch = Batch.of(ids=["a", "b"], texts=["one", "two"], embeddings=[[1.0], [1.0]],
    ...                  labels=["ham", "spam"])
    >>> [(each.texts, each.labels) for each in flip_labels(batch, 2)[0]]
    [(('one',), ('spam',)), (('two',), ('ham',))]
    """
    rng = np.random.default_rng(seed)
    labels = sorted({label for label in entries.labels if label is not None})
    fit = [row for row in range(len(entries)) if entries.labels[row] and entries.texts[row].strip()]
    if len(labels) < 2:  # noqa: PLR2004 - there is no other one
        fit = []
    rows = rng.permutation(np.array(fit, dtype=np.intp))[:n]
    planted = []
    for row in rows:
        others = [label for label in labels if label != entries.labels[row]]
        wrong = others[int(rng.integers(len(others)))]
        planted.append(
            Planted(attack=LABEL_FLIPS, question=None, texts=(entries.texts[row],), labels=(wrong,))
        )
    return planted, rows
