"""What passages have in common: with a baseline, with a query, with each other."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base.retrieved import _INVISIBLE, RetrievedSet
from ragshield_core.detectors.question.query_echo import QueryEchoDetector
from ragshield_core.model.entries import Batch
from ragshield_core.text.characters import COMBINING
from ragshield_core.tools.canary.embedder import Vectors
from ragshield_core.tools.canary.passages import Passage

if TYPE_CHECKING:
    from ragshield_core.tools.canary.storage import Observation

# Entries as close to each other as this say much the same: they are left out together. Texts made
# for one question are; chunks of one document, as a rule, are less. Where a model puts ordinary
# passages closer than .5, so much of the way from there to equality; but copies stay copies.
SAME, WAY, NEARLY_EQUAL = 0.7, 0.4, 0.98
# Fewer passages do not tell how close ordinary ones are.
FEW = 4
# Characters and words of a text that are looked at: more than chunks have, and of a text that was
# made to be slow, no more than takes milliseconds.
MAX_CHARACTERS, MAX_WORDS = 16_000, 2_500

_WORD = re.compile(rf"[\w{COMBINING}]+")
# Scripts without spaces between words (Thai to Lao, Burmese, Khmer, kana, Han), and Hangul, whose
# words carry their particles.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+"
)


def newcomers_of(passages: Sequence[Passage], before: Observation) -> list[bool]:
    """Return, per passage, whether it was not there at the baseline, or had another text.

    What stood just below the baseline's top k, and moved up because others left, is not new. Nor is
    a known text under another id, as many times as it was known: a store that was built again gives
    new ids to all, but a copy takes a place that was another's.
    """
    known = {*zip(before.ids, before.revisions, strict=True), *before.below}
    texts = Counter(revision for _, revision in known)
    stayed = [(passage.id, passage.revision) in known for passage in passages]
    texts.subtract(p.revision for p, known_here in zip(passages, stayed, strict=True) if known_here)
    fresh = []
    for passage, known_here in zip(passages, stayed, strict=True):
        renamed = not known_here and texts[passage.revision] > 0
        texts[passage.revision] -= renamed
        fresh.append(not (known_here or renamed))
    return fresh


def echoes_of(query: str, passages: Sequence[Passage]) -> NDArray[np.float64]:
    """Return how much of a query each passage repeats, in [0, 1], shape (n_passages,)."""
    batch = Batch.of(
        ids=[str(row) for row in range(len(passages))],
        texts=[_segmented(passage.text) for passage in passages],
        embeddings=None,
    )
    return QueryEchoDetector().repeated(
        RetrievedSet.of(_segmented(query), batch, has_vectors=False)
    )


def alike(passages: Sequence[Passage], ordinary: Sequence[Passage]) -> NDArray[np.bool_]:
    """Return which passages say much the same, themselves included, shape (n, n).

    By vectors where they are known, else by their words.

    Parameters
    ----------
    passages
        Which are compared.
    ordinary
        Retrieved for the same query, of which most are no copies of each other. Embedding models
        differ in how close they put texts that have no more than a subject in common.
    """
    vectors = matrix(passages)
    if vectors is not None:
        same = vectors @ vectors.T >= _bar(matrix(ordinary))
    else:
        sets = [set(words(passage.text)) for passage in passages]
        same = np.zeros((len(sets), len(sets)), dtype=np.bool_)
        for row, first in enumerate(sets):
            for column, second in enumerate(sets[:row]):
                shared = len(first & second)
                both = max(1, len(first) + len(second) - shared)
                same[row, column] = same[column, row] = shared >= SAME * both
    np.fill_diagonal(same, val=True)
    return np.asarray(same, dtype=np.bool_)


def _bar(ordinary: Vectors | None) -> float:
    """Return the similarity from which on two texts say much the same."""
    if ordinary is None or len(ordinary) < FEW:
        return SAME
    between = (ordinary @ ordinary.T)[np.triu_indices(len(ordinary), 1)]
    usual = float(np.median(between))
    return min(NEARLY_EQUAL, max(SAME, usual + WAY * (1.0 - usual)))


def matrix(passages: Sequence[Passage]) -> Vectors | None:
    """Return the vectors of passages, shape (n, dim); None where one of them is not known."""
    vectors = [passage.vector for passage in passages if passage.vector is not None]
    return np.stack(vectors) if vectors and len(vectors) == len(passages) else None


def words(text: str) -> list[str]:
    """Return the words of a text's beginning, as they read to a person, in order.

    Of scripts without spaces between words, pairs of characters stand for words, as is usual in
    retrieval.

    Examples
    --------
    >>> words("Zu\u0308rich, naturally")
    ['zürich', 'naturally']
    >>> words("首都是北京。")
    ['首都', '都是', '是北', '北京']
    """
    return _WORD.findall(_segmented(text).casefold())[:MAX_WORDS]


def _segmented(text: str) -> str:
    """Return a text's beginning with spaces between all words, and nothing invisible."""
    cut = text[:MAX_CHARACTERS]
    if cut.isascii():
        return cut
    shown = unicodedata.normalize("NFKC", cut)[:MAX_CHARACTERS]  # one sign can become 18 letters
    return _UNSPACED.sub(_in_pairs, _INVISIBLE.sub("", shown))


def _in_pairs(run: re.Match[str]) -> str:
    characters = [character for character in run[0] if character.isalnum()]
    pairs = [first + second for first, second in pairwise(characters)]
    return f" {' '.join(pairs or characters)} "


def says(text: str, part: str) -> bool:
    """Return whether a text holds another one, as both read to a person.

    Case, white space, invisible characters and the width of letters make no difference.
    """
    wanted = _plain(part)
    return bool(wanted) and wanted in _plain(text)


def _plain(text: str) -> str:
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    return " ".join(text.casefold().split())
