"""All that is planted, with its vectors, and what is refused before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError, SourceError
from ragshield_core.tools.audit.embedding_cache import by_length
from ragshield_core.tools.evaluate.attacks import LABEL_FLIPS, Attack, Planted
from ragshield_core.tools.evaluate.figures import CLEAN

# Texts of the corpus that are embedded again, to see whether the model is the corpus's.
PROBES = 8
# Cosine of their new vectors and those that came, half of them. Prefixes, titles and metadata that
# were embedded with a text leave more than that; two models have nothing in common.
SAME_MODEL = 0.5


class Poison:
    """All planted texts, with their vectors, and which belong together; ids are none of the corpus.

    Texts, questions and some of the corpus are embedded, each once.

    Parameters
    ----------
    planted
        Texts by target, more than published where larger groups are asked for.
    corpus
        Of which the first texts are embedded again, to know the model.
    embed
        Returns unit vectors.
    published
        Of each recipe, how many texts of a target come where nothing else is asked for; texts
        of one's own come all.
    """

    def __init__(
        self,
        planted: Sequence[Planted],
        corpus: Batch,
        embed: Callable[[list[str]], NDArray[np.float32]],
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
        distinct = list(dict.fromkeys([*texts, *questions, *again]))
        vectors = dict(zip(distinct, embed(distinct), strict=True))
        _check_model([vectors[text] for text in again], corpus.embeddings[probes])
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
        """Return how many texts of a target come where nothing else is asked for."""
        return self._published.get(name) or self._most(name)

    def sizes_of(self, name: str, asked: Sequence[int]) -> list[int]:
        """Return the sizes of groups that there are, of those that are asked for, and its own."""
        return sorted({self.size_of(name), *(size for size in asked if size <= self._most(name))})

    def rows_of(self, number: int, size: int | None = None) -> NDArray[np.intp]:
        """Return the rows of a target's first texts; by default of as many as :meth:`size_of`."""
        most = self.size_of(self.planted[number].attack) if size is None else size
        return self._rows[number][:most]

    def _most(self, name: str) -> int:
        return max(len(self.planted[number].texts) for number in self.of_attack(name))


def check_names(own: Sequence[Planted], attacks: Sequence[Attack]) -> None:
    """Refuse texts whose figures would be mixed with others.

    Raises
    ------
    SourceError
        Names the attack.
    """
    taken = {CLEAN, LABEL_FLIPS, *(attack.name for attack in attacks)}
    for planted in own:
        if planted.attack in taken:
            msg = (
                f"own attack texts are named {planted.attack!r}, as "
                f"{'clean entries are' if planted.attack == CLEAN else 'a recipe is'}, so that "
                'their figures would be mixed; give them another name under "attack".'
            )
            raise SourceError(msg)


def _check_model(again: Sequence[NDArray[np.float32]], came: NDArray[np.float32]) -> None:
    """Refuse a model that gives texts of the corpus quite other vectors.

    Raises
    ------
    InvalidBatchError
        If half of the cosines are lower than of any one model.
    """
    cosines = [float(one @ other) for one, other in zip(again, came, strict=True)]
    if cosines and np.median(cosines) < SAME_MODEL:
        msg = (
            f"the model gives texts of the corpus other vectors than they came with (cosine "
            f"{np.median(cosines):.3f}, expected about 1.000): attacks must be embedded with the "
            "model that made the corpus's; choose that one, or leave the vectors out."
        )
        raise InvalidBatchError(msg)


def embedded(
    embed: Callable[[list[str]], ArrayLike],
    texts: list[str],
    dim: int,
    tell: Callable[[str, int, int], object],
) -> NDArray[np.float32]:
    """Return unit vectors of texts.

    Raises
    ------
    InvalidBatchError
        If they are not one per text, or not of the corpus's length.
    """
    tell("embedding the attacks", 0, len(texts))
    order = by_length(texts)
    vectors = np.asarray(embed([texts[row] for row in order.tolist()]), dtype=np.float32)
    if vectors.shape != (len(texts), dim):
        msg = (
            f"the model returned vectors of shape {vectors.shape} for {len(texts)} texts, expected "
            f"({len(texts)}, {dim}): attacks are embedded with the model that made the corpus's."
        )
        raise InvalidBatchError(msg)
    tell("embedding the attacks", len(texts), len(texts))
    vectors = vectors[np.argsort(order)]
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
