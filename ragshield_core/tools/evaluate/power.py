"""Share of planted groups that a fitted guard would hold, with its knowledge base and model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ragshield_core.hooks import hookimpl
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import SourceError
from ragshield_core.tools.evaluate.attacks.passages import craft_passages

if TYPE_CHECKING:
    from ragshield_core.model.findings import Report
    from ragshield_core.tools.evaluate.attacks import Target

# Number of targets of planted texts. Twenty give a share to within about .2.
N_TARGETS = 20
# Sizes of groups; PoisonedRAG plants five texts for each question.
SIZES = (5, 3, 2)
QUESTION = "single texts that repeat their question"
# Forms of the attacks that are planted into an audit, and their numbers of texts.
FORMS = (("groups of five", 5), ("groups of three", 3), (QUESTION, 1), ("single statements", 1))
# Running text without the question: the form that only resemblance and agreement reveal.
STYLES = ("statements", "news", "anecdotes", "press releases")


@hookimpl
def power(
    screen: Callable[[Batch], Report], sample: Batch, embed: Callable[[list[str]], ArrayLike]
) -> dict[str, float] | None:
    """Return the share of planted groups' texts that a guard would hold, by size.

    The groups are about the topics of a sample of clean entries. The guard screens them and learns
    nothing. The embedding model gets 100 short texts. ``None`` if the texts of the sample are too
    short to make questions of them.
    """
    targets = _targets(sample, N_TARGETS)
    if not targets:
        return None
    planted = [
        craft_passages(target.question, target.wrong_answer, style=STYLES[number % len(STYLES)])
        for number, target in enumerate(targets)
    ]
    flat = [text for each in planted for text in each]
    vectors = np.asarray(embed(flat), dtype=np.float32).reshape(len(planted), max(SIZES), -1)
    shares: dict[str, float] = {}
    for size in SIZES:
        ids = [f"ragshield-planted-{number}" for number in range(size)]
        held = [
            ~screen(Batch.of(ids=ids, texts=texts[:size], embeddings=own[:size])).admitted
            for texts, own in zip(planted, vectors, strict=True)
        ]
        shares[f"groups of {size}"] = float(np.mean(held))
    return shares


@hookimpl
def plant(sample: Batch, n_targets: int) -> list[tuple[str, list[str]]]:
    """Return synthetic attacks on topics of clean entries: the form and the texts of each.

    There are ``n_targets`` of each form, each on a topic of its own; none if the texts of the
    sample are too short.
    """
    planted = []
    for number, target in enumerate(_targets(sample, n_targets * len(FORMS))):
        (form, size), style = FORMS[number % len(FORMS)], STYLES[number // len(FORMS) % len(STYLES)]
        texts = craft_passages(target.question, target.wrong_answer, size, style=style)
        asked = form == QUESTION
        planted.append((form, [f"{target.question} {texts[0]}"] if asked else texts))
    return planted


def _targets(sample: Batch, n: int) -> Sequence[Target]:
    """Return targets made of a sample; none if its texts are too short."""
    from ragshield_core.tools.evaluate.targets import targets_of  # noqa: PLC0415 - only when asked

    try:
        return targets_of(sample, n)
    except SourceError:
        return ()
