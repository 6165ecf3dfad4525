"""All planted texts, with their vectors, and the streams of clean entries that contain them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError, SourceError
from ragshield_core.tools.audit.embedding_cache import by_length
from ragshield_core.tools.evaluate.attacks import LABEL_FLIPS, Attack, Planted

# Texts of the corpus that are embedded again, to check that the model is the corpus's.
PROBES = 8
# Minimum median cosine between their new and their given vectors. Prefixes, titles and metadata
# that were embedded with a text leave more than that; two models have nothing in common.
SAME_MODEL = 0.5
# Share of poison in a stream.
POISONED = 0.01


class Stream(NamedTuple):
    """An attack's stream: its targets, and rows in order; rows of poison follow all clean rows."""

    attack: str
    targets: tuple[int, ...]
    rows: NDArray[np.intp]


class Poison:
    """All planted texts by target, with their vectors, under ids that the corpus does not have.

    Texts, questions and some texts of the corpus are embedded once each; a model other than the
    corpus's is refused. ``published`` has the default number of texts of a target for each recipe;
    by default, all of your own texts are planted.
    """

    def __init__(
        self,
        planted: Sequence[Planted],
        corpus: Batch,
        embed: Callable[[list[str]], ArrayLike],
        published: Mapping[str, int],
    ) -> None:
        self.planted, self._published = planted, published
        self.attacks = tuple(dict.fromkeys(each.attack for each in planted))
        ends = np.cumsum([len(each.texts) for each in planted])
        self._rows = [
            np.arange(end - len(each.texts), end) for each, end in zip(planted, ends, strict=True)
        ]
        texts = [text for each in planted for text in each.texts]
        questions = list(dict.fromkeys(p.question for p in planted if p.question is not None))
        probes = [row for row, text in enumerate(corpus.texts) if text.strip()][:PROBES]
        again = [corpus.texts[row] for row in probes]
        vectors = _embedded(embed, list(dict.fromkeys([*texts, *questions, *again])), corpus.dim)
        cosines = [float(vectors[corpus.texts[row]] @ corpus.embeddings[row]) for row in probes]
        if cosines and np.median(cosines) < SAME_MODEL:
            msg = (
                f"the model gives texts of the corpus other vectors than they came with (cosine "
                f"{np.median(cosines):.3f}, expected about 1.000): attacks must be embedded with "
                "the model that made the corpus's; choose that one, or leave the vectors out."
            )
            raise InvalidBatchError(msg)
        self.questions = {question: vectors[question] for question in questions}
        mark = "planted-"
        while any(entry_id.startswith(mark) for entry_id in corpus.ids):
            mark += "-"
        self.batch = Batch.of(
            ids=[f"{mark}{number}" for number in range(len(texts))],
            texts=texts,
            embeddings=np.stack([vectors[text] for text in texts]),
            labels=[label for each in planted for label in each.labels or [None] * len(each.texts)],
        )

    def of_attack(self, name: str) -> list[int]:
        """Return the numbers of an attack's targets."""
        return [number for number, each in enumerate(self.planted) if each.attack == name]

    def size_of(self, name: str) -> int:
        """Return the default number of texts of a target."""
        return self._published.get(name) or self._most(name)

    def sizes_of(self, name: str, asked: Sequence[int]) -> list[int]:
        """Return the requested sizes of groups that are available, and the default size."""
        return sorted({self.size_of(name), *(size for size in asked if size <= self._most(name))})

    def rows_of(self, number: int, size: int | None = None) -> NDArray[np.intp]:
        """Return the rows of a target's first texts; by default :meth:`size_of` of them."""
        most = self.size_of(self.planted[number].attack) if size is None else size
        return self._rows[number][:most]

    def ids_of(self, number: int, size: int | None = None) -> list[str]:
        """Return the ids of a target's first texts."""
        return [self.batch.ids[row] for row in self.rows_of(number, size)]

    def _most(self, name: str) -> int:
        return max(len(self.planted[number].texts) for number in self.of_attack(name))

    def streams(self, n_clean: int, length: int, n_streams: int, seed: int) -> list[Stream]:
        """Return streams of each attack that has groups; a target is in one of them at most.

        An attack has fewer than ``n_streams`` if they include all its targets. Each stream draws
        other clean entries, and other places.
        """
        length = min(length, n_clean)
        found = []
        for number, name in enumerate(n for n in self.attacks if self.size_of(n) > 1):
            rng = np.random.default_rng([seed, number])
            n_texts = max(1, round(POISONED * length))
            shares: list[list[int]] = [[]]  # targets by stream, of about n_texts texts
            total = 0
            for target in self.of_attack(name):
                size = len(self.rows_of(target))
                if shares[-1] and total + size > n_texts:
                    shares.append([])
                    total = 0
                shares[-1].append(target)
                total += size
            for targets in shares[:n_streams]:
                planted = np.concatenate([self.rows_of(each) for each in targets]) + n_clean
                clean = rng.permutation(n_clean)[:length]
                rows = rng.permutation(np.concatenate([clean, planted]))
                found.append(Stream(name, tuple(targets), rows))
        return found


def check_names(own: Sequence[Planted], attacks: Sequence[Attack]) -> None:
    """Refuse own texts with the name of a recipe: their figures would be mixed."""
    taken = {LABEL_FLIPS, *(attack.name for attack in attacks)}
    for planted in own:
        if planted.attack in taken:
            msg = (
                f"own attack texts are named {planted.attack!r}, as a recipe is, so that their "
                'figures would be mixed; give them another name under "attack".'
            )
            raise SourceError(msg)


def _embedded(
    embed: Callable[[list[str]], ArrayLike], texts: list[str], dim: int
) -> dict[str, NDArray[np.float32]]:
    """Return unit vectors by text."""
    ordered = [texts[row] for row in by_length(texts).tolist()]
    vectors = np.asarray(embed(ordered), dtype=np.float32)
    if vectors.shape != (len(texts), dim):
        msg = (
            f"the model returned vectors of shape {vectors.shape} for {len(texts)} texts, expected "
            f"({len(texts)}, {dim}): attacks are embedded with the model that made the corpus's."
        )
        raise InvalidBatchError(msg)
    unit = np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return dict(zip(ordered, unit, strict=True))
