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
_N_BYTES = 256


def checksums(words: Columns) -> NDArray[np.uint32]:
    """Return what ``zlib.crc32`` does of the letters of each word, shape (n_words,).

    Examples
    --------
    >>> from ragshield_core.text.columns import columns_of
    >>> words = columns_of([b"the mill", b"a mill"], bytes(32) + bytes(1) + bytes(range(33, 256)))
    >>> checksums(words)[1] == checksums(words)[3] == zlib.crc32(b"mill")
    np.True_
    """
    if not len(words):
        return np.empty(0, dtype=np.uint32)
    added, of_length = _tables()
    start, end = words.start, words.end
    letters = words.letters[start[0] : end[-1]]
    # How many bytes of its word stand behind each; what is between words adds nothing anywhere.
    behind = np.repeat((end - 1).astype(np.int32), np.diff(start, append=end[-1]))
    behind -= np.arange(start[0], end[-1], dtype=np.int32)
    np.clip(behind, 0, _LONGEST - 1, out=behind)
    behind <<= 8
    behind |= letters
    found = np.bitwise_xor.reduceat(added[behind], start - start[0])
    found ^= of_length[np.minimum(words.length, _LONGEST)]
    for word in np.flatnonzero(words.length > _LONGEST).tolist():
        found[word] = zlib.crc32(words.letters[start[word] : end[word]].tobytes())
    return found


@cache
def _tables() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return what a byte adds, by how many stand behind it and its value, and what the length."""
    of_length = np.array([zlib.crc32(bytes(n)) for n in range(_LONGEST + 1)], dtype=np.uint32)
    added = np.array(
        [
            [zlib.crc32(bytes([byte]) + bytes(behind)) for byte in range(_N_BYTES)]
            for behind in range(_LONGEST)
        ],
        dtype=np.uint32,
    )
    added ^= of_length[1:, None]
    return added.ravel(), of_length
