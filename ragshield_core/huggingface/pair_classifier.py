"""A cross-encoder of ``transformers`` that classifies pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ragshield_core.huggingface.sequence_classifier import LoadedClassifier


class PairClassifier(LoadedClassifier):
    """A model for natural language inference: the probability that two texts contradict each other.

    Parameters are those of
    :class:`~ragshield_core.huggingface.sequence_classifier.SequenceClassifier`. ``label`` is
    optional if exactly one label is called contradiction. A pair longer than the model's input is
    cut at the end of its longer text.

    Examples
    --------
    ::

        model = CrossEncoder(PairClassifier("cross-encoder/nli-deberta-v3-small"))
        checker = ContradictionChecker(store, model)
    """

    MEANT: ClassVar = frozenset({"contradiction", "contradictory", "contradicts"})

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the probability of a contradiction for each premise and hypothesis, in [0, 1]."""
        columns = [[pair[side] for pair in pairs] for side in (0, 1)]
        return self._highest(columns, len(pairs), truncation="longest_first")
