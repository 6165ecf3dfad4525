"""How much of an attack an audit would find: made-up attacks are audited among the entries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.hooks import tools
from ragshield_core.model.entries import Batch, concatenate
from ragshield_core.model.errors import InvalidBatchError

# Attacks of each form at the most. Eight tell a share of forty texts to within about .15.
MOST = 8
# Texts of one attack of each form.
TEXTS = 10
# More planted texts than such a share would change what is usual.
SHARE = 0.03
# The vectors of more entries are not copied.
LARGEST = 100_000


def power_of(
    batch: Batch,
    embed: Callable[[list[str]], ArrayLike],
    found_in: Callable[[Batch], NDArray[np.bool_]],
) -> dict[str, float]:
    """Return the share of planted texts that an audit finds, by the form of the attack.

    Parameters
    ----------
    batch
        The knowledge base.
    embed
        Its embedding model.
    found_in
        Returns which entries an audit of the knowledge base finds by the thresholds that it has,
        with the planted ones at its end; shape (n_entries,).

    Returns
    -------
    dict[str, float]
        Shares in [0, 1]; empty where there are too few or too many entries, or no texts that an
        attack can be made of.
    """
    n_each = min(MOST, int(SHARE * len(batch) / TEXTS))
    if not n_each or len(batch) > LARGEST or not batch.dim:
        return {}
    attacks = tools().plant(sample=batch, n_targets=n_each)
    if not attacks:
        return {}
    forms = [form for form, texts in attacks for _ in texts]
    texts = [text for _, texts in attacks for text in texts]
    ids = [f"ragshield-planted-{number}" for number in range(len(texts))]
    vectors = np.asarray(embed(texts), dtype=np.float32)
    if vectors.shape != (len(texts), batch.dim):
        msg = f"the embedding model returns shape {vectors.shape}, not {(len(texts), batch.dim)}."
        raise InvalidBatchError(msg)
    planted = Batch.of(
        ids=ids,
        texts=texts,
        embeddings=vectors,
        lineages=ids if any(batch.lineages) else None,
    )
    found = found_in(concatenate([batch, planted]))[len(batch) :]
    by_form: dict[str, list[bool]] = defaultdict(list)
    for form, one in zip(forms, found.tolist(), strict=True):
        by_form[form].append(one)
    return {form: sum(each) / len(each) for form, each in by_form.items()}
