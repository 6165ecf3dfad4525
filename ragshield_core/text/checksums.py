"""CRC-32 of each word of many texts: hashes that stand in databases and saved guards.

The checksum of a message is the exclusive or of what each of its bytes adds where it stands, and of
what the length adds: tables of both give the checksums of all words of a batch in a few operations
on arrays.
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ragshield_core.text.columns import Columns

# Words of more bytes are few, and left to zlib.
_LONGEST = 32
_EIGHT = 8  # bytes of a word that are looked at at a time, two by two


def checksums(words: Columns) -> NDArray[np.uint32]:
    """Return what ``zlib.crc32`` does of the letters of each word, shape (n_words,).

    Examples
    --------
    >>> from ragshield_core.text.columns import columns_of
    >>> words = columns_of([b"the mill", b"a mill"], bytes(33) + bytes(range(33, 256)))
    >>> checksums(words)[1] == checksums(words)[3] == zlib.crc32(b"mill")
    np.True_
    """
    added, of_length = _tables()
    found = of_length[np.minimum(words.length, _LONGEST)]
    which = np.arange(len(words))
    for behind in range(0, _LONGEST, _EIGHT):
        if behind:
            which = which[words.length[which] > behind]
        if not len(which):
            break
        end = words.end[which] - behind
        n = np.minimum(words.length[which] - behind, _EIGHT)
        # Its last letters, with zeros before them where there are not as many.
        letters = words.letters_at(end - n, n) << (np.uint64(8) * (_EIGHT - n).astype(np.uint64))
        pairs = letters.astype("<u8", copy=False).view("<u2").reshape(-1, _EIGHT // 2)
        for pair in range(_EIGHT // 2):
            found[which] ^= added[behind // 2 + _EIGHT // 2 - 1 - pair][pairs[:, pair]]
    for word in np.flatnonzero(words.length > _LONGEST).tolist():
        found[word] = zlib.crc32(words.letters[words.start[word] : words.end[word]].tobytes())
    return found


@cache
def _tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return what two bytes add, by how many pairs stand behind them, and what the length adds."""
    of_length = np.array([zlib.crc32(bytes(n)) for n in range(_LONGEST + 1)], dtype=np.uint32)
    added = np.array(
        [
            [zlib.crc32(bytes([byte]) + bytes(behind)) for byte in range(256)]
            for behind in range(_LONGEST)
        ],
        dtype=np.uint32,
    )
    added ^= of_length[1:, None]
    # The first of two is the lower half of a number.
    return (added[::2, :, None] ^ added[1::2, None, :]).reshape(-1, 1 << 16), of_length
