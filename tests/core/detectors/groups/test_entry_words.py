"""Words of entries, compared with a plain list of arrays."""

import numpy as np
import pytest
from hypothesis import strategies as st

from ragshield_core.detectors.groups import words as module
from ragshield_core.detectors.groups.words import SHARE_STEPS, SLACK, EntryWords, Words
from ragshield_core.text.copies import containment, word_hashes

TEXT = st.lists(st.integers(0, 2**32 - 1), max_size=8).map(lambda words: np.array(words, np.uint32))


def assert_same(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == np.uint32
        np.testing.assert_array_equal(mine, theirs)


def floored(shares):
    return np.floor(shares * np.float32(SHARE_STEPS) + np.float32(SLACK)) / np.float32(SHARE_STEPS)


def words_of(texts):
    words = EntryWords()
    words.append(texts)
    return words


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a.update(ends=a["ends"] + 1),
        lambda a: a.update(ends=a["ends"][::-1].copy()),
        lambda a: a.update(words=a["words"][1:]),
    ],
)
def test_words_that_do_not_fit_together_are_refused(damage):
    arrays = words_of([np.arange(7, dtype=np.uint32), np.ones(4, dtype=np.uint32)]).state()
    damage(arrays)
    with pytest.raises(ValueError, match="expected them to fill"):
        EntryWords.restored(arrays)


def test_pairs_are_compared_across_standing_and_new_entries():
    seven, six = "one two three four five six seven", "one two three four five six"
    texts = [
        word_hashes(text) for text in (seven, "a b c d e f g h", "five six three two one four")
    ]
    everything = [*texts, texts[0], word_hashes(six)]
    words = Words(words_of(texts), everything[3:])
    first, second = np.array([0, 3, 0, 4, 0]), np.array([3, 0, 4, 0, 2])
    expected = containment(everything, first, second)
    np.testing.assert_array_equal(words.copied(first, second), floored(expected))
    assert_same(words.take(np.array([-1, 4, 1])), [word_hashes(""), word_hashes(six), texts[1]])


def test_a_pair_is_compared_once(monkeypatch):
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, 99, rng.integers(3, 40)).astype(np.uint32) for _ in range(30)]
    pairs = []

    def comparing(words, a, b):
        pairs.append(len(a))
        return containment(words, a, b)

    monkeypatch.setattr(module, "containment", comparing)
    words = Words(words_of(texts[:20]), texts[20:])
    asked = [rng.integers(0, 30, (2, 40)) for _ in range(5)]
    for first, second in [*asked, *asked[::-1], asked[0][::-1]]:
        alone = Words(words_of(texts), [])._copied(np.stack([first, second]))
        np.testing.assert_array_equal(words.copied(first, second), floored(alone))
    distinct = {
        tuple(sorted(pair)) for first, second in asked for pair in zip(first, second, strict=True)
    }
    assert sum(pairs) - 11 * 40 == len(distinct)


def test_comparing_texts_in_parts_gives_the_same_result(monkeypatch):
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 99, rng.integers(20, 40)).astype(np.uint32) for _ in range(60)]
    first, second = rng.integers(0, 60, (2, 500))
    expected = containment(texts, first, second)
    held = []

    def comparing(words, a, b):
        held.append(sum(map(len, words)))
        return containment(words, a, b)

    monkeypatch.setattr(module, "containment", comparing)
    monkeypatch.setattr(module, "WORDS_AT_ONCE", 100)
    words = Words(words_of(texts[:40]), texts[40:])
    np.testing.assert_array_equal(words.copied(first, second), floored(expected))
    assert max(held) <= 100  # however many texts there are
    assert len(held) > 20
