"""How many of planted groups a fitted guard would hold, with its knowledge base and its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.hooks import hookimpl
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.evaluate.attacks.passages import craft_passages

if TYPE_CHECKING:
    from ragshield_core.model.findings import Report

# Targets of which texts are planted. Twenty tell a share to within about .2.
N_TARGETS = 20
# Sizes of groups; PoisonedRAG plants five texts for each question.
SIZES = (5, 3, 2)
QUESTION = "single texts that repeat their question"
# What is planted into an audit: the form, and how many texts it has.
FORMS = (("groups of five", 5), ("groups of three", 3), (QUESTION, 1), ("single statements", 1))
# Running text without the question: the form that only resemblance and agreement betray.
STYLES = ("statements", "news", "anecdotes", "press releases")


@hookimpl
def power(
    screen: Callable[[Batch], Report], sample: Batch, embed: Callable[[list[str]], ArrayLike]
) -> dict[str, float] | None:
    """Return the share of planted groups' texts that a guard would hold, by size.

    The groups are about the topics of a sample of clean entries. The guard screens them and learns
    nothing. The embedding model gets 100 short texts. ``None`` where no questions can be made of
    the sample: its texts are too short.
    """
    from ragshield_core.tools.evaluate.targets import targets_of  # noqa: PLC0415 - only when asked

    try:
        targets = targets_of(sample, N_TARGETS)
    except SourceError:
        return None
    planted = [
        craft_passages(target.question, target.wrong_answer, style=STYLES[number % len(STYLES)])
        for number, target in enumerate(targets)
    ]
    texts = [text for each in planted for text in each]
    vectors = np.asarray(embed(texts), dtype=np.float32).reshape(len(planted), max(SIZES), -1)
    return {
        f"groups of {size}": float(
            np.mean(
                [
                    _held(screen, texts[:size], own[:size])
                    for texts, own in zip(planted, vectors, strict=True)
                ]
            )
        )
        for size in SIZES
    }


@hookimpl
def plant(sample: Batch, n_targets: int) -> list[tuple[str, list[str]]]:
    """Return made-up attacks on topics of clean entries: the form and the texts of each.

    There are ``n_targets`` of each form, each on a topic of its own; none where the texts of the
    sample are too short.
    """
    from ragshield_core.tools.evaluate.targets import targets_of  # noqa: PLC0415 - only when asked

    try:
        targets = targets_of(sample, n_targets * len(FORMS))
    except SourceError:
        return []
    planted = []
    for number, target in enumerate(targets):
        (form, size), style = FORMS[number % len(FORMS)], STYLES[number // len(FORMS) % len(STYLES)]
        texts = craft_passages(target.question, target.wrong_answer, size, style=style)
        asked = form == QUESTION
        planted.append((form, [f"{target.question} {texts[0]}"] if asked else texts))
    return planted


def _held(
    screen: Callable[[Batch], Report], texts: list[str], vectors: NDArray[np.float32]
) -> float:
    """Return the share of some texts that the guard would hold if they came at once."""
    ids = [f"ragshield-planted-{number}" for number in range(len(texts))]
    batch = Batch.of(ids=ids, texts=texts, embeddings=vectors)
    return float(np.mean(~screen(batch).admitted))
