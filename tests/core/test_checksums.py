"""Checksums of the words of a batch are those of zlib: they stand in databases and saved guards."""

import zlib

import numpy as np
import pytest

from ragshield_core.text.checksums import checksums
from ragshield_core.text.columns import columns_of

# All bytes but white space and control characters are letters.
TABLE = bytes(33) + bytes(range(33, 256))


def words_of(seed, lengths, n=200):
    rng = np.random.default_rng(seed)
    return [bytes(rng.integers(33, 256, rng.choice(lengths)).tolist()) for _ in range(n)]


@pytest.mark.parametrize(
    "lengths",
    [range(1, 9), (7, 8, 9, 15, 16, 17, 23, 24, 25), (31, 32, 33, 40, 64, 65, 1_000), range(1, 80)],
)
def test_words_of_any_length_have_the_checksum_of_zlib(lengths):
    words = words_of(len(lengths), lengths)
    texts = [b" ".join(words[:70]), b"", b"  ", b"\0".join(words[70:])]
    found = checksums(columns_of(texts, TABLE))
    assert found.dtype == np.uint32
    assert found.tolist() == [zlib.crc32(word) for word in words]


@pytest.mark.parametrize("texts", [[], [b""], [b" \n"]])
def test_no_word_has_none(texts):
    assert checksums(columns_of(texts, TABLE)).shape == (0,)
