"""Words of texts, and their verbatim overlap, which explains why two texts are alike."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.text.characters import COMBINING
from ragshield_core.text.readings import Remembered

# Three words in a row rarely repeat by chance; generated paraphrases share few of them.
GRAM = 3
# A text with fewer grams than this is compared by single words: one changed word removes three
# grams, half of those in a text of eight words.
FEW_GRAMS = 6
# A table of texts by items with up to this many cells is dense: for the ten texts of a retrieval,
# sparse matrices take ten times as long.
DENSE = 1 << 18
# Number of bits of a hash that identify an item.
COLUMN_BITS = 24
# Pairs that are compared at once; pairs of passages take 20 MB.
PAIRS = 1 << 14

_WORD, _OTHER = re.compile(r"\w+"), re.compile(rf"[^\w{COMBINING}]+")
# Every ASCII character outside of words becomes a space.
_ASCII_WORDS = bytes(
    code if chr(code).isascii() and _WORD.match(chr(code)) else ord(" ") for code in range(256)
)
# Fences of front matter. A field of fewer words than a statement has, such as a title, a date or a
# tag, has no content.
_FENCES, _STATEMENT = ("---", "+++"), 6
_NO_WORDS = np.empty(0, dtype=np.uint32)
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # odd, for mixing


def word_hashes(text: str) -> NDArray[np.uint32]:
    """Return a hash of each word of a text, in order, without regard to case and punctuation.

    The hashes are the same in every process.
    """
    if not text:
        return _NO_WORDS
    if text.isascii():  # the same words, three times as fast
        quick = text.lower().encode().translate(_ASCII_WORDS).split()
        return np.fromiter(map(zlib.crc32, quick), np.uint32, len(quick))
    # The text is encoded as a whole: no word character contains a byte of white space in UTF-8.
    words = _OTHER.sub(" ", text.lower()).encode("utf-8", "surrogatepass").split()
    return np.fromiter(map(zlib.crc32, words), np.uint32, len(words))


def content(text: str) -> str:
    r"""Return a text, or the statements in it if it is front matter alone.

    Pages of one site have the same fields, which does not make them a group.

    Examples
    --------
    >>> content("---\ntitle: The mill\nweight: 3\n---")
    ''
    >>> content("---\nnote: The mill is closed on all days of May.\n---")
    'The mill is closed on all days of May.'
    """
    if not text[:40].lstrip().startswith(_FENCES):
        return text
    whole = text.strip()
    fence = f"\n{whole[:3]}"
    if not whole.endswith(fence) or whole.count(fence) > 1:
        return text
    values = (line.replace(" = ", ": ", 1).partition(": ") for line in whole.split("\n")[1:-1])
    said = (value if mark else key for key, mark, value in values)
    return "\n".join(value for value in said if len(value.split()) >= _STATEMENT)


def _content_words(text: str) -> NDArray[np.uint32]:
    """Return the :func:`word_hashes` of the :func:`content` of a text."""
    return word_hashes(content(text))


content_words = Remembered(_content_words)


def spelling(text: str) -> dict[int, str]:
    """Return the words of a text in lower case, by their hash; see :func:`word_hashes`."""
    words = _OTHER.sub(" ", text.lower()).split()
    return dict(zip(word_hashes(text).tolist(), words, strict=True))


def containment(
    words: Sequence[NDArray[np.uint32]], first: NDArray[np.intp], second: NDArray[np.intp]
) -> NDArray[np.float32]:
    """Return the share of the shorter text of each pair that the longer one contains, (n_pairs,).

    The share counts distinct word 3-grams, or distinct words if the shorter text has fewer than
    :data:`FEW_GRAMS` 3-grams. ``words`` has the :func:`word_hashes` of each text, ``first`` and
    ``second`` are positions in it.

    Examples
    --------
    >>> texts = ["one two three four five six seven eight", "ONE two three four, five six seven!"]
    >>> containment([word_hashes(text) for text in texts], np.array([0]), np.array([1]))
    array([1.], dtype=float32)
    """
    if len(first) == 0:
        return np.zeros(0, dtype=np.float32)
    rows, positions = np.unique(np.concatenate([first, second]), return_inverse=True)
    a, b = positions[: len(first)], positions[len(first) :]
    chosen = [words[row] for row in rows.tolist()]
    shared, smaller = _shared(*_grams(chosen), a, b)
    few = np.flatnonzero(smaller < FEW_GRAMS)
    if few.size:
        short, places = np.unique(np.concatenate([a[few], b[few]]), return_inverse=True)
        joined = _joined([chosen[row] for row in short.tolist()])
        shared[few], smaller[few] = _shared(*joined, *np.split(places, 2))
    return (shared / np.maximum(smaller, 1)).astype(np.float32)


def borrowed(text: NDArray[np.uint32], model: NDArray[np.uint32]) -> float:
    """Return the share of a text's distinct words that a model text contains; 0 for no words."""
    distinct = np.unique(text)
    return float(np.isin(distinct, model).mean()) if distinct.size else 0.0


def _joined(
    texts: Sequence[NDArray[np.uint32]],
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the words of all texts, one text after the other, and the number of words of each."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return np.concatenate(texts, dtype=np.uint64), lengths


def _grams(
    texts: Sequence[NDArray[np.uint32]],
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the grams of all texts, one text after the other, and the number of grams of each."""
    sequence, lengths = _joined(texts)
    grams = sequence[: 1 - GRAM] * _FIRST
    grams += sequence[1 : 2 - GRAM] * _SECOND
    grams += sequence[2:]
    # A gram starts at every word that two more words of the same text follow.
    owner = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
    inside = owner[: 1 - GRAM] == owner[GRAM - 1 :]
    return grams[inside], np.maximum(lengths - (GRAM - 1), 0)


def _shared(
    items: NDArray[np.uint64],
    lengths: NDArray[np.int64],
    a: NDArray[np.intp],
    b: NDArray[np.intp],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return, per pair of owners, the number of shared items and the smaller number of items.

    Both count distinct items. ``lengths`` are the numbers of items, one owner after the other.
    """
    n_owners = len(lengths)
    owner = np.repeat(np.arange(n_owners, dtype=np.uint32), lengths)
    if n_owners * max(n_owners, len(items)) <= DENSE:
        kinds, place = np.unique(items, return_inverse=True)
        present = np.zeros((n_owners, len(kinds)), dtype=np.float32)
        present[owner, place] = 1.0
        few = present.sum(axis=1, dtype=np.float64)
        return (present @ present.T)[a, b].astype(np.float64), np.minimum(few[a], few[b])
    from scipy.sparse import csr_array  # noqa: PLC0415 - keeps `import ragshield_core` quick

    # The upper bits of a product select the column, which avoids sorting a million items to number
    # them: two items share a column by chance once in 2 ** 24.
    cells = items * _FIRST
    cells >>= np.uint64(64 - COLUMN_BITS)
    cells |= owner.astype(np.uint64) << np.uint64(COLUMN_BITS)
    # NumPy sorts numbers many times faster than a sparse matrix sorts its rows. They ascend already
    # by owner: a stable sort takes a third of the time of a quick one.
    cells.sort(kind="stable")
    distinct = np.ones(len(cells), dtype=np.bool_)
    np.not_equal(cells[1:], cells[:-1], out=distinct[1:])
    cells = cells[distinct]
    ends = np.searchsorted(cells, np.arange(n_owners + 1, dtype=np.uint64) << COLUMN_BITS)
    column = (cells & np.uint64((1 << COLUMN_BITS) - 1)).astype(np.int32)
    matrix = csr_array(
        (np.ones(len(column), dtype=np.int8), column, ends), shape=(n_owners, 1 << COLUMN_BITS)
    )
    sizes = np.diff(ends).astype(np.float64)
    shared = np.empty(len(a))
    for start in range(0, len(a), PAIRS):
        part = slice(start, start + PAIRS)
        # A cell of the product of two rows of ones is filled where both rows have the item.
        shared[part] = np.diff(matrix[a[part]].multiply(matrix[b[part]]).indptr)
    return shared, np.minimum(sizes[a], sizes[b])
