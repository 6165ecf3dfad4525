"""How suspicious retrieved texts look by themselves, each judged once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ragshield_core.model.entries import Batch
from ragshield_core.tools.canary.passages import Passage
from ragshield_core.tools.canary.rank_figures import Rule
from ragshield_core.tools.canary.text_figures import notebook_suspicion, saturated

if TYPE_CHECKING:
    from ragshield_core.detectors.base import Detector


class Suspicions:
    """Suspicions of texts by their hash, in [0, 1).

    Parameters
    ----------
    rule
        Whose: of the built-in text detectors, or the notebook's.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule: Rule = rule
        self._known: dict[str, float] = {}

    def __call__(self, passage: Passage) -> float:
        """Return how suspicious the text of a passage is."""
        self.judge([passage])
        return self._known[passage.revision]

    def judge(self, passages: Iterable[Passage]) -> None:
        """Judge texts that were not judged before, all at once."""
        new = {p.revision: p.text for p in passages if p.revision not in self._known}
        if new:
            texts = list(new.values())
            of_notebook = self._rule == "notebook"
            self.remember(
                new, map(notebook_suspicion, texts) if of_notebook else text_suspicions(texts)
            )

    def remember(self, revisions: Iterable[str], suspicions: Iterable[float]) -> None:
        """Take over what was judged before, as a baseline has it."""
        self._known.update(zip(revisions, suspicions, strict=True))


def text_suspicions(texts: Sequence[str]) -> list[float]:
    """Return suspicions by the built-in text detectors that need no knowledge base, in [0, 1)."""
    batch = Batch.of(ids=[str(row) for row in range(len(texts))], texts=texts, embeddings=None)
    hits = np.zeros(len(texts), dtype=np.intp)
    for detector in _text_detectors():
        hits += detector.score(batch) > detector.default_threshold
    return [saturated(int(n)) for n in hits]


def text_findings(passage: Passage) -> tuple[str, ...]:
    """Return what those detectors say of a passage, a sentence each."""
    batch = Batch.of(ids=["0"], texts=[passage.text], embeddings=None)
    return tuple(
        detector.explain(batch, [0])[0].sentence
        for detector in _text_detectors()
        if detector.score(batch)[0] > detector.default_threshold
    )


@cache
def _text_detectors() -> tuple[Detector, ...]:
    from ragshield_core.detectors.hidden.detector import HiddenTextDetector  # noqa: PLC0415 - slow
    from ragshield_core.detectors.instruction.detector import InstructionDetector  # noqa: PLC0415

    return InstructionDetector(), HiddenTextDetector()
