"""Phrases to plant in many entries, and disguises of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ragshield_core.model.entries import Batch

# Ordinary words to take the place of another, or to stand between two.
FILLERS = ("new", "old", "small", "other", "nice", "recent", "simple", "local", "usual", "whole")
# What punctuation and typesetting put between two words, or hide within one.
SEPARATORS = (" ", ", ", " - ", "... ", "\u00a0", ": ")
INVISIBLE = ("\u200b", "\u2060", "\u00ad")


def plant_phrase(
    batch: Batch,
    rows: Sequence[int],
    phrase: str | Sequence[str],
    position: Literal["ends", "random"] = "ends",
    seed: int = 0,
) -> list[str]:
    """Return the texts of a batch with a phrase planted in some of them: a keyword attack.

    Parameters
    ----------
    batch
        Entries; stays as it is.
    rows
        Which of them get the phrase.
    phrase
        The same for all, or one for each row, as :func:`vary_phrase` and :func:`disguise_phrase`
        make them.
    position
        ``"ends"`` puts it in front of the text and behind it, as published keyword attacks do;
        ``"random"`` once, between two words drawn at random.
    seed
        Of the random places.

    Returns
    -------
    list[str]
        One text per entry of the batch, in order.

    Raises
    ------
    ValueError
        If the position is unknown, or phrases and rows differ in number.

    Examples
    --------
    >>> batch = Batch.of(ids=["a", "b"], texts=["one", "two"], embeddings=[[1.0], [1.0]])
    >>> plant_phrase(batch, [1], "blue heron")
    ['one', 'blue heron two blue heron']
    """
    if position not in ("ends", "random"):
        msg = f"position is {position!r}, expected 'ends' or 'random'."
        raise ValueError(msg)
    phrases = [phrase] * len(rows) if isinstance(phrase, str) else list(phrase)
    if len(phrases) != len(rows):
        msg = f"{len(phrases)} phrases for {len(rows)} rows, expected one phrase, or one per row."
        raise ValueError(msg)
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


def vary_phrase(phrase: str, n: int, seed: int = 0) -> list[str]:
    """Return n variations of a phrase, each with one word replaced, added or (of three) dropped.

    >>> vary_phrase("the grey heron waits", 3, seed=2)
    ['the heron waits', 'the nice heron waits', 'the heron waits']
    """
    rng = np.random.default_rng(seed)
    variations = []
    for _ in range(n):
        words = phrase.split()
        change = rng.choice(["replace", "add", "drop"] if len(words) > 2 else ["replace", "add"])  # noqa: PLR2004
        at = int(rng.integers(len(words) + (change == "add")))
        filler = [] if change == "drop" else [str(rng.choice(FILLERS))]
        variations.append(" ".join([*words[:at], *filler, *words[at + (change != "add") :]]))
    return variations


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
