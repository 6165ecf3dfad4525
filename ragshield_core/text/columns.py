"""Texts as columns: the letters of a batch in one array, its words as numbers in others.

Looking at words one by one is work of the interpreter, and takes it a hundred times as long as to
look at letters. Here the texts of a batch are joined, and where words start and end, and which of
them stand in a list, is found for all of them by a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# Letters of a word that its key tells; of longer ones, it tells the first of them and how many
# there are. No word of a list is as long.
LONGEST = 64
# Characters looked up at a time, which bounds the memory.
_AT_A_TIME = 1 << 16
_N_CODES = 0x110000

# A word of so few letters has a key that no other word has.
EXACT = 8
_EIGHT = EXACT  # letters in a number of 64 bits
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_EIGHT + 1)], dtype=np.uint64)
_ONE, _63 = np.uint64(1), np.uint64(63)
_MIX, _ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(29)


class Alphabet:
    """One byte for each character, of many texts at once.

    Parameters
    ----------
    byte_of
        The byte that stands for a character, asked once for each that is met.
    """

    def __init__(self, byte_of: Callable[[str], int]) -> None:
        self._byte_of = byte_of
        self._ascii = bytes(byte_of(chr(code)) for code in range(128)) + bytes(128)
        # Not filled but where characters are met, and no more memory than that; 0 is not known.
        self._bytes: NDArray[np.uint8] = np.zeros(_N_CODES, dtype=np.uint8)

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """Return each text with one byte for each character, so that positions stay."""
        joined = "".join(text for text in texts if not text.isascii())
        pieces = [
            self._looked_up(joined[at : at + _AT_A_TIME])
            for at in range(0, len(joined), _AT_A_TIME)
        ]
        others, found, at = b"".join(pieces), [], 0
        for text in texts:
            if text.isascii():
                found.append(text.encode().translate(self._ascii))
            else:
                found.append(others[at : at + len(text)])
                at += len(text)
        return found

    def _looked_up(self, text: str) -> bytes:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        found = self._bytes[codes]
        if not found.all():
            for code in np.unique(codes[found == 0]).tolist():
                self._bytes[code] = self._byte_of(chr(code))
            found = self._bytes[codes]
        read: bytes = found.tobytes()
        return read


@dataclass(frozen=True)
class Words:
    """Words, by where they lie.

    Attributes
    ----------
    start, end
        Shape (n_words,): places among the letters; ends are excluded.
    """

    start: NDArray[np.intp]
    end: NDArray[np.intp]
    _eights: NDArray[np.uint64]  # (n_letters / 8 + 2,), the letters, eight in a number

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def length(self) -> NDArray[np.intp]:
        """Letters of each word, shape (n_words,)."""
        return self.end - self.start

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """A number for each word, shape (n_words,): that of :func:`key`."""
        return self._keys(self.start, self.length)

    def only(self, words: NDArray[np.intp]) -> Words:
        """Return some of the words, by number."""
        some = Words(self.start[words], self.end[words], self._eights)
        some.__dict__["keys"] = self.keys[words]
        return some

    def beginnings(
        self, words: NDArray[np.intp], n_letters: NDArray[np.intp] | int
    ) -> NDArray[np.uint64]:
        """Return the keys of what words begin with.

        Parameters
        ----------
        words
            Which words, by number, shape (n,).
        n_letters
            How many letters, each or all; at most as many as the word has.
        """
        return self._keys(self.start[words], np.zeros_like(words) + n_letters)

    def _keys(self, start: NDArray[np.intp], length: NDArray[np.intp]) -> NDArray[np.uint64]:
        found = self.letters_at(start, np.minimum(length, _EIGHT))
        at = np.flatnonzero(length > _EIGHT)
        found[at] = found[at] * _MIX + length[at].astype(np.uint64)
        for done in range(_EIGHT, LONGEST, _EIGHT):
            if not len(at):
                break
            more = self.letters_at(start[at] + done, np.minimum(length[at] - done, _EIGHT))
            known = found[at]
            found[at] = (known ^ (known >> _HALF)) * _MIX + more * _ODD
            at = at[length[at] > done + _EIGHT]
        return found

    def letters_at(self, at: NDArray[np.intp], n: NDArray[np.intp]) -> NDArray[np.uint64]:
        """Return up to eight letters from some places on, as numbers, the first the lowest."""
        place, bit = at >> 3, ((at & 7) << 3).astype(np.uint64)
        low: NDArray[np.uint64] = self._eights[place] >> bit
        # In two steps: shifting by all of 64 bits is not defined.
        low |= (self._eights[place + 1] << _ONE) << (_63 - bit)
        low &= _MASKS[n]
        return low


@dataclass(frozen=True)
class Columns(Words):
    """The words of several texts, in order.

    Attributes
    ----------
    joined
        All texts, as bytes, a zero before, between and behind them.
    begin
        Shape (n_texts + 1,): where each text begins in ``joined``; the next one begins a byte
        behind its end.
    first
        Shape (n_texts + 1,): the number of the first word of each text; the words of a text end
        where those of the next one begin.
    """

    joined: bytes
    begin: NDArray[np.intp]
    first: NDArray[np.intp]

    @property
    def letters(self) -> NDArray[np.uint8]:
        """The letter that each byte of ``joined`` is, zero where it is of no word; (n_bytes,)."""
        return self._eights.view(np.uint8)[: len(self.joined)]

    @cached_property
    def text(self) -> NDArray[np.intp]:
        """The text that each word stands in, shape (n_words,)."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def columns_of(texts: Sequence[bytes], table: bytes) -> Columns:
    """Return the words of texts.

    Parameters
    ----------
    texts
        As bytes: of one byte for each character, or in UTF-8.
    table
        Of 256 bytes: the letter that each byte is, or zero where it is part of no word.
    """
    joined = b"\0".join([b"", *texts, b""])
    whole = joined.translate(table)
    eights = np.frombuffer(whole + bytes(3 * _EIGHT - len(whole) % _EIGHT), dtype="<u8")
    is_letter = np.frombuffer(whole, dtype=np.uint8) != 0
    edges = np.flatnonzero(is_letter[1:] != is_letter[:-1]) + 1
    start, end = edges[::2].copy(), edges[1::2].copy()
    lengths = np.fromiter(map(len, texts), np.intp, len(texts))
    begin = np.ones(len(texts) + 1, dtype=np.intp)
    begin[1:] += np.cumsum(lengths + 1)
    return Columns(start, end, eights, joined, begin, np.searchsorted(start, begin))


def key(word: bytes) -> int:
    """Return the number that stands for a word in columns: for up to eight letters, themselves.

    Notes
    -----
    Of longer words, two share a key by chance once in 2**64, and so do those beyond
    :data:`LONGEST` letters that begin alike and are of one length. Who makes a word that shares the
    key of one in a list has written, for all that is looked for here, the one in the list: which
    he could have done anyway.
    """
    lone = columns_of([word], bytes(range(256)))
    return int(lone.keys[0])


class Dictionary:
    """Finds the words of a list in columns.

    Parameters
    ----------
    words
        Distinct, none empty; each is known by its place here, counted from 1.

    Raises
    ------
    ValueError
        If two words share a key, which then have to be told apart in another way.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        known = columns_of(words, bytes(range(256))).keys
        if len(np.unique(known)) != len(words):
            msg = f"{len(words)} words have {len(np.unique(known))} keys, expected as many: each "
            msg += "word once, and without a zero byte."
            raise ValueError(msg)
        self._keys = np.concatenate([np.zeros(1, dtype=np.uint64), known])
        # Eight places for each word or more, so that few share one.
        self._shift = np.uint64(64 - max(3, (8 * len(words)).bit_length()))
        self._tables: list[tuple[np.uint64, NDArray[np.int32]]] = []
        left = np.arange(1, len(words) + 1, dtype=np.int32)
        odd = _MIX
        while len(left):
            table = np.zeros(1 << (64 - int(self._shift)), dtype=np.int32)
            places = (self._keys[left] * odd) >> self._shift
            table[places] = left  # of those that share one, the last
            self._tables.append((odd, table))
            left = left[table[places] != left]
            odd = np.uint64(int(odd) * int(_ODD) & ((1 << 64) - 1) | 1)

    def __call__(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the place of each word in the list, from 1 on, 0 if it is not there; (n_words,).

        Parameters
        ----------
        keys
            Of columns, shape (n_words,).
        """
        found = np.zeros(len(keys), dtype=np.int32)
        left: NDArray[np.intp] | slice = slice(None)
        for odd, table in self._tables:
            asked = keys[left]
            at = table[(asked * odd) >> self._shift]
            same = self._keys[at] == asked
            found[left] = at * same
            # Only where another word is may one of the next table be meant.
            other = np.flatnonzero((at > 0) & ~same)
            left = other if isinstance(left, slice) else left[other]
        return found
