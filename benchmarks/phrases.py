"""Planted phrases for keyword attacks, and their disguises."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ragshield_core.model.entries import Batch

# Separators between two words, and invisible characters within a word.
SEPARATORS = (" ", ", ", " - ", "... ", "\u00a0", ": ")
INVISIBLE = ("\u200b", "\u2060", "\u00ad")


def plant_phrase(
    batch: Batch,
    rows: Sequence[int],
    phrase: str | Sequence[str],
    position: str = "ends",
    seed: int = 0,
) -> list[str]:
    """Return the texts of a batch with a phrase planted in some of them: a keyword attack.

    The phrase is the same for all rows, or one for each. ``"ends"`` puts it before and after the
    text, as in published keyword attacks; ``"random"`` puts it once between two words.

    Examples
    --------
    >>> batch = Batch.of(ids=["a", "b"], texts=["one", "two"], embeddings=[[1.0], [1.0]])
    >>> plant_phrase(batch, [1], "blue heron")
    ['one', 'blue heron two blue heron']
    """
    phrases = [phrase] * len(rows) if isinstance(phrase, str) else phrase
    rng = np.random.default_rng(seed)
    texts = list(batch.texts)
    for row, planted in zip(rows, phrases, strict=True):
        if position == "ends":
            texts[row] = f"{planted} {texts[row]} {planted}"
            continue
        words = texts[row].split(" ")
        at = int(rng.integers(len(words) + 1))
        texts[row] = " ".join([*words[:at], planted, *words[at:]])
    return texts


def disguise_phrase(phrase: str, n: int, seed: int = 0) -> list[str]:
    r"""Return n disguises of a phrase that read the same: case, punctuation, invisible characters.

    >>> [text.encode("ascii", "backslashreplace") for text in disguise_phrase("grey", 2, seed=3)]
    [b'G\\u200bRey', b'G\\u200bREy']
    """
    rng = np.random.default_rng(seed)
    disguises = []
    for _ in range(n):
        words = []
        for word in phrase.split():
            cased = [c.upper() if rng.random() < 0.5 else c for c in word]  # noqa: PLR2004
            at = int(rng.integers(1, len(word))) if len(word) > 1 else 0
            words.append("".join([*cased[:at], str(rng.choice(INVISIBLE)), *cased[at:]]))
        separators = [str(rng.choice(SEPARATORS)) for _ in words[1:]]
        disguises.append("".join(map("".join, zip(words, [*separators, ""], strict=True))))
    return disguises
