"""Model of the words of a knowledge base and of pairs of neighbouring words."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# Counts are in one table: slots for words and kinds of words, then slots for pairs, 40 MiB. 100,000
# passages fill some 0.3 and 3 million of them. If two share a slot, an unknown word or pair counts
# as known: evidence gets weaker, but is never forged.
SINGLES, PAIRS = 1 << 21, 1 << 23
# Texts are read in pieces of at most this many characters, which bounds the memory. A window across
# a cut is missed; gibberish of two windows always has a whole window.
PIECE = 1 << 18
# Weight of a word's rarity, relative to its association with the word before. A new topic also has
# rare words; the weight is a compromise between random pieces of words (found by rarity) and prose
# of another source, whose words are rare here but follow each other.
RARITY = 0.5
# Bits: two frequent tokens that never meet in the knowledge base add at most this much. Code and
# tables have many such pairs in a row; sentences in random order have few of them.
ESTRANGED = 4.0
# Bits: the greatest rarity is 2**-19, about one word in half a million. Most capitalised words are
# names, and new names never end: 2**-17. Two of them side by side, or with one word between, belong
# to a name, a title, a menu or a list, in which unrelated words follow each other: 2**-10.
RAREST, RAREST_NAME, RAREST_AMONG_NAMES = 19.0, 17.0, 10.0
# A word that recurs within its entry is the topic of the entry, or a function word of another
# language: each recurrence counts as this share of the knowledge base.
RECURRENCE = 1.5e-4
# A word with a larger share than this is not rare anyway.
FREQUENT = 1e-3
# Number of tokens that count in a chain without white space (paths, keys, encoded bytes).
CHAIN = 6
# Bits of a token that the chain rule leaves out, and of a text without tokens.
NEUTRAL = 0.0

# In the type of the counts: NumPy adds a number of another type seventy times as slowly.
_ONE = np.int32(1)

_SPACE, _LOWER, _UPPER, _DIGIT, _MARK, _IDEOGRAPH = range(6)
_BMP, _ASCII = 0x10000, 0x7F
_CLASS = 17  # bits for a place in the basic plane, and one more place
_LOWERED = (1 << _CLASS) - 1
# Radicals, kana and unified ideographs; compatibility ideographs.
_IDEOGRAPHS = (range(0x2E80, 0xA000), range(0xF900, 0xFB00))
_STEM = 3  # each word up to this length is its own kind: most are function words

_M1, _M2, _M3, _M4 = (
    np.uint64(m)
    for m in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
)
_29, _32 = np.uint64(29), np.uint64(32)
_PRIME = 0x100000001B3

Value = TypeVar("Value", np.uint64, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The words, numbers and punctuation marks of several texts, in order.

    A change from lower to upper case starts a new token, and so does every ideograph; a run of one
    punctuation mark is one token.
    """

    owner: NDArray[np.intp]  # (n_tokens,), position of the text
    start: NDArray[np.intp]  # (n_tokens,), character of the text
    end: NDArray[np.intp]
    word: NDArray[np.uint64]  # hash of the word without case, or of a number's length
    kind: NDArray[np.uint64]  # hash of the form: ending, length, case, white space in front
    capital: NDArray[np.bool_]
    letters: NDArray[np.bool_]  # True for a word or ideograph, False for a number or mark
    chain: NDArray[np.intp]  # number of tokens directly before it, without white space
    first: NDArray[np.uint32]  # its first character, in lower case
    accented: NDArray[np.bool_]  # True if it has a character beyond ASCII

    def __len__(self) -> int:
        return len(self.owner)


class Fluency:
    """Counts of words, of kinds of words, and of neighbouring pairs of both.

    Attributes
    ----------
    n_tokens
        Number of learned tokens, without forgotten ones.

    Notes
    -----
    The surprise of a token, in bits, is ``RARITY`` times its rarity, minus its association with
    the token before it. The association is the logarithm of the ratio between the count of the pair
    and the count expected by chance (pointwise mutual information [1]_). The expected count is a
    Bayesian prior, so that unknown pairs of rare words have no association. It is computed for
    kinds of words, and for the words themselves with the kinds as their prior. Fluent text in an
    unknown vocabulary keeps the association of its kinds; words in random order lose both.

    References
    ----------
    .. [1] Church and Hanks, "Word association norms, mutual information, and lexicography",
       Computational Linguistics 16(1), 1990.
    """

    def __init__(self) -> None:
        self.n_tokens = 0
        self._counts: NDArray[np.int32] = np.zeros(SINGLES + PAIRS, dtype=np.int32)

    def learn(self, texts: Sequence[str]) -> None:
        """Add texts to the counts."""
        for _, tokens in tokenized(texts):
            for slots in _used(tokens):
                np.add.at(self._counts, slots, _ONE)
            self.n_tokens += len(tokens)

    def forget(self, texts: Sequence[str]) -> list[Sequence[str]]:
        """Subtract learned texts from the counts, and return these texts.

        Texts that cannot have been learned are ignored: the texts that another process has learned
        also arrive here when they leave the knowledge base.
        """
        if self._take_off(texts):
            return [texts]
        return [[text] for text in texts if self._take_off([text])]

    def _take_off(self, texts: Sequence[str]) -> bool:
        """Subtract all of the texts or none of them; return True if it did."""
        done: list[NDArray[np.intp]] = []
        n_tokens, negative = 0, False
        for _, tokens in tokenized(texts):
            for slots in _used(tokens):
                np.subtract.at(self._counts, slots, _ONE)
                negative |= bool((self._counts[slots] < 0).any())
                done.append(slots)
            n_tokens += len(tokens)
        for slots in done if negative else ():
            np.add.at(self._counts, slots, _ONE)
        self.n_tokens -= 0 if negative else n_tokens
        return not negative

    def surprise(self, tokens: Tokens) -> NDArray[np.float64]:
        """Return how unusual each token is in its place, in bits, shape (n_tokens,).

        Random words have about 5 on average, running text 1 to 3.
        """
        if not len(tokens):
            return np.empty(0)
        n = float(max(1, self.n_tokens))
        words, kinds, word_pairs, kind_pairs = (self._counts[slots] for slots in _slots(tokens))
        alone = np.flatnonzero(~_paired(tokens))
        kind = (kind_pairs + 1.0) / (_expected(kinds, n) + 1.0)
        kind[alone] = 1.0
        word = (word_pairs + kind) / (_expected(words, n) + 1.0)
        word[alone] = 1.0
        word *= kind
        association = np.maximum(0.5 * np.log2(word), -ESTRANGED)
        # A pair that recurs in the entry (list items, table cells) is no accident of order.
        low = np.flatnonzero(association < 0.0)
        pairs = _pair(tokens.word[low - 1], tokens.word[low], _M2)
        again = low[_recurrences(pairs, tokens.owner[low]) > 0]
        association[again] = 0.0
        seen = words + 1.0
        rare = np.flatnonzero(words < FREQUENT * n)
        seen[rare] += RECURRENCE * n * _recurrences(tokens.word[rare], tokens.owner[rare])
        rarest = np.where(tokens.capital, RAREST_NAME, RAREST)
        rarest[_among_capitals(tokens)] = RAREST_AMONG_NAMES
        rarity = np.minimum(np.log2((n + 1.0) / seen), rarest)
        surprise: NDArray[np.float64] = RARITY * rarity - association
        surprise[tokens.chain >= CHAIN] = NEUTRAL
        return surprise

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts that are not zero, 8 bytes each: about 1 MiB for 1,000 passages."""
        slots = np.flatnonzero(self._counts)
        arrays = {"slots": slots.astype(np.uint32), "counts": self._counts[slots]}
        return {"n_tokens": self.n_tokens}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned."""
        self.n_tokens = int(values["n_tokens"])
        self._counts = np.zeros(SINGLES + PAIRS, dtype=np.int32)
        self._counts[arrays["slots"]] = arrays["counts"]


def tokenized(texts: Sequence[str]) -> Iterator[tuple[int, Tokens]]:
    """Yield the tokens of texts, block by block; a long text is cut into pieces.

    Each block comes with the position of its first text, to which owners are relative.
    """
    first, size = 0, 0
    block: list[tuple[int, int, str]] = []  # owner, offset, piece of text
    for row, text in enumerate(texts):
        for offset in range(0, max(1, len(text)), PIECE):
            piece = text[offset : offset + PIECE]
            if block and size + len(piece) > PIECE:
                yield first, _tokens(tuple(block))
                block, size = [], 0
            if not block:
                first = row
            block.append((row - first, offset, piece))
            size += len(piece) + 1
    if block:
        yield first, _tokens(tuple(block))


@functools.cache
def _characters() -> NDArray[np.uint32]:
    """Return the class and the lower case of each character of the basic plane, and one more.

    The class is above the :data:`_CLASS` bits of the lower case. The last place stands for all
    characters beyond the plane: rare ideographs and pictures.
    """
    classes = np.full(_BMP + 1, _MARK, dtype=np.uint32)
    lower = np.arange(_BMP + 1, dtype=np.uint32)
    for code in range(_BMP):
        character = chr(code)
        category = unicodedata.category(character)
        if character.isspace() or category in ("Cc", "Zs", "Zl", "Zp"):
            classes[code] = _SPACE
        elif category == "Lo" and any(code in block for block in _IDEOGRAPHS):
            classes[code] = _IDEOGRAPH
        elif category in ("Lu", "Lt"):
            classes[code] = _UPPER
        elif category[0] in "LM" or category == "Cf":
            classes[code] = _LOWER  # also letters without case, and joiners of letters
        elif category[0] == "N":
            classes[code] = _DIGIT
        small = character.lower()
        if len(small) == 1:
            lower[code] = ord(small)
    classes[_BMP] = _IDEOGRAPH
    return (classes << np.uint32(_CLASS)) | lower


# A batch is read to find the entries that can be judged, again for scores, and again for evidence.
# A block takes about 3 MiB.
@functools.lru_cache(maxsize=8)
def _tokens(pieces: tuple[tuple[int, int, str], ...]) -> Tokens:
    owners, offsets, texts = zip(*pieces, strict=True)
    joined = "\n".join(texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    packed = np.take(_characters(), characters, mode="clip")  # others count as the last place
    low = packed & np.uint32(_LOWERED)
    classes = (packed >> np.uint32(_CLASS)).astype(np.uint8)
    _join_apostrophes(characters, classes)
    groups = classes - (classes == _UPPER)  # upper case counts as lower case
    # True at the beginning of each token or white space.
    edge = np.ones(len(classes), dtype=np.bool_)
    edge[1:] = (groups[1:] != groups[:-1]) | (groups[1:] == _IDEOGRAPH)
    edge[1:] |= (groups[1:] == _MARK) & (characters[1:] != characters[:-1])
    edge[1:] |= (classes[1:] == _UPPER) & (classes[:-1] == _LOWER)
    edges = np.flatnonzero(edge)
    is_token = np.flatnonzero(classes[edges])  # without white space
    start = edges[is_token]
    if not len(start):
        none = np.empty(0, dtype=np.intp)
        hashes, flags = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.bool_)
        return Tokens(none, none, none, hashes, hashes, flags, flags, none, low[:0], flags)
    end = np.append(edges[1:], len(classes))[is_token]
    length = end - start
    sums = _sums(low, start, end)
    group = groups[start]
    word = _mixed(sums + length.astype(np.uint64))
    digits = group == _DIGIT
    word[digits] = _mixed(np.minimum(length[digits], 5).astype(np.uint64) + _M3)

    capital = classes[start] == _UPPER
    shouted = capital & (length > 1) & (classes[np.minimum(start + 1, len(classes) - 1)] == _UPPER)
    # The new line between two texts separates the first token of a text from the text before.
    glued = np.concatenate([[False], start[1:] == end[:-1]])
    loose = np.flatnonzero(~glued)
    chain = np.arange(len(start)) - np.repeat(loose, np.diff(np.append(loose, len(start))))
    form = capital.astype(np.uint64) + shouted + np.uint64(4) * glued
    letters = (group == _LOWER) | (group == _IDEOGRAPH)
    ending = low[end - 1].astype(np.uint64) * _M1
    ending += low[np.maximum(end - 2, 0)].astype(np.uint64) * _M2
    ending += (np.minimum(length, 12) // 3).astype(np.uint64)
    long = letters & (length > _STEM)
    kind = _mixed(np.where(long, _mixed(ending), word) + (form + np.uint64(1)) * _M2)

    lengths = np.fromiter(map(len, texts), np.intp, len(texts)) + 1
    begins = np.cumsum(lengths) - lengths
    sizes = np.diff(np.append(np.searchsorted(start, begins), len(start)))
    text = np.repeat(np.arange(len(texts)), sizes)
    shift = (np.array(offsets, dtype=np.intp) - begins)[text]
    owner = np.array(owners, dtype=np.intp)[text]
    at = start + shift, end + shift
    beyond = np.concatenate([[0], np.cumsum(low > _ASCII)])
    accented = beyond[end] > beyond[start]
    return Tokens(owner, *at, word, kind, capital, letters, chain, low[start], accented)


def _sums(
    low: NDArray[np.uint32], start: NDArray[np.intp], end: NDArray[np.intp]
) -> NDArray[np.uint64]:
    """Return the sum of the letters of each token, each times a power for its place."""
    powers, inverse = _powers()
    # Sums over all letters so far, as if in one token; the inverse power shifts each token back.
    so_far = np.zeros(len(low) + 1, dtype=np.uint64)
    np.multiply(low, powers[: len(low)], out=so_far[1:])
    np.cumsum(so_far, out=so_far)
    return np.asarray((so_far[end] - so_far[start]) * inverse[start], dtype=np.uint64)


@functools.cache
def _powers() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return powers of a prime modulo 2**64, and their inverses, for each place of a block."""
    found = np.ones((2, PIECE + 2), dtype=np.uint64)
    found[:, 1:] = np.array([[_PRIME], [pow(_PRIME, -1, 1 << 64)]], dtype=np.uint64)
    powers, inverse = np.cumprod(found, axis=1)
    return powers, inverse


def _join_apostrophes(characters: NDArray[np.uint32], classes: NDArray[np.uint8]) -> None:
    """Make an apostrophe between two letters a letter: "don't" is one word."""
    marks = np.flatnonzero((characters == ord("'")) | (characters == ord("’")))
    marks = marks[(marks > 0) & (marks < len(characters) - 1)]
    letter = (classes == _LOWER) | (classes == _UPPER)
    classes[marks[letter[marks - 1] & letter[marks + 1]]] = _LOWER


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return values in which every bit depends on every bit of the given values."""
    values = values * _M1
    values ^= values >> _29
    values *= _M4
    values ^= values >> _32
    return values


def slot(hashes: NDArray[np.uint64], size: int) -> NDArray[np.intp]:
    """Return the place of each hash in a table of ``size``, a power of two."""
    return ((hashes >> np.uint64(20)) & np.uint64(size - 1)).astype(np.intp)


def _slots(tokens: Tokens) -> tuple[NDArray[np.intp], ...]:
    """Return the slots of words, kinds, pairs of words, pairs of kinds; each (n_tokens,).

    A pair is a token and the one before it, which belongs to another text for the first of a text.
    """
    singles = slot(tokens.word, SINGLES), slot(tokens.kind, SINGLES)
    pairs = (
        slot(_pair(_before(hashes), hashes, odd), PAIRS)
        for hashes, odd in ((tokens.word, _M2), (tokens.kind, _M3))
    )
    return *singles, *(SINGLES + pair for pair in pairs)


def _pair(
    first: NDArray[np.uint64], second: NDArray[np.uint64], odd: np.uint64
) -> NDArray[np.uint64]:
    """Return hashes of pairs."""
    return _mixed(first * odd + second)


def _before(values: NDArray[Value]) -> NDArray[Value]:
    """Return the value before each value; the last value is before the first."""
    before = np.empty_like(values)
    before[1:], before[:1] = values[:-1], values[-1:]
    return before


def _used(tokens: Tokens) -> tuple[NDArray[np.intp], ...]:
    """Return the slots to count; pairs only within one text."""
    words, kinds, word_pairs, kind_pairs = _slots(tokens)
    paired = _paired(tokens)
    return words, kinds, word_pairs[paired], kind_pairs[paired]


def _paired(tokens: Tokens) -> NDArray[np.bool_]:
    """Return the mask of tokens with another token of the same text before them."""
    paired = np.zeros(len(tokens), dtype=np.bool_)
    paired[1:] = tokens.owner[1:] == tokens.owner[:-1]
    return paired


def _among_capitals(tokens: Tokens) -> NDArray[np.intp]:
    """Return the places of capitalised words next to another one, or with one word between.

    Marks and numbers between two words do not count.
    """
    words = np.flatnonzero(tokens.letters)
    capital, owner = tokens.capital[words], tokens.owner[words]
    among = np.zeros(len(words), dtype=np.bool_)
    for apart in (1, 2):
        both = capital[apart:] & capital[:-apart] & (owner[apart:] == owner[:-apart])
        among[apart:] |= both
        among[:-apart] |= both
    return words[among]


def _expected(counts: NDArray[np.int32], n: float) -> NDArray[np.float64]:
    """Return how often each token would follow the one before it by chance."""
    counted = counts.astype(np.float64)
    expected = _before(counted)
    expected *= counted
    expected /= n
    return expected


def recurrences(tokens: Tokens) -> NDArray[np.intp]:
    """Return the number of further occurrences of each word in its text, shape (n_tokens,)."""
    return _recurrences(tokens.word, tokens.owner)


def _recurrences(hashes: NDArray[np.uint64], owner: NDArray[np.intp]) -> NDArray[np.intp]:
    keys = _mixed(hashes + owner.astype(np.uint64) * _M2)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] - 1, dtype=np.intp)
