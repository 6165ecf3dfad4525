"""Words in two bytes each, against the list of arrays that they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import passages

from ragshield_core.detectors.groups import words as module
from ragshield_core.detectors.groups.words import NO_CONTENT, EntryWords, FixedWords, Words
from ragshield_core.text.copies import containment, word_hashes

# Few different words, the lowest and the highest hash among them.
WORDS = st.sampled_from([0, 1, 2, 3, 2**32 - 1]) | st.integers(0, 2**32 - 1)
TEXT = st.lists(WORDS, max_size=8).map(lambda words: np.array(words, dtype=np.uint32))


def assert_same(found, expected):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == np.uint32
        np.testing.assert_array_equal(mine, theirs)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("aaakws"), st.lists(TEXT, max_size=5))),
    st.sampled_from([1, 3, 2**16 - 2]),
    st.randoms(use_true_random=False),
)
def test_words_are_those_of_a_list_whatever_comes_and_goes(steps, n_common, random):
    words, expected, wiped = EntryWords(), [], set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "N_COMMON", n_common)
        patch.setattr(module, "ENTRIES_AT_ONCE", 2)
        for step, texts in steps:
            slots = np.array([n for n in range(len(expected)) if random.random() < 0.6], dtype=int)
            if step == "a":
                words.append(texts)
                expected += texts
            elif step == "k":
                words.keep(slots)
                wiped = {new for new, old in enumerate(slots.tolist()) if old in wiped}
                expected = [expected[slot] for slot in slots.tolist()]
            elif step == "w":
                words.wipe(slots[:1])
                wiped |= set(slots[:1].tolist())
            else:
                words = EntryWords.restored(words.state())
            left = np.array([n for n in range(len(expected)) if n not in wiped], dtype=int)
            assert len(words) == len(expected)
            assert_same(words.take(left[::-1]), [expected[n] for n in left[::-1].tolist()])


def test_nothing_is_left_of_words_that_were_wiped(monkeypatch):
    monkeypatch.setattr(module, "N_COMMON", 2)
    words = EntryWords()
    secret = np.array([5, 5, 6, 6, 77, 88], dtype=np.uint32)
    words.append([secret, np.array([5, 6, 99], dtype=np.uint32)])
    words.wipe(np.array([0]))
    assert not np.isin(words[0], secret).any()
    assert_same([words[1]], [np.array([5, 6, 99], dtype=np.uint32)])


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: a.update(ends=a["ends"] + 1),
        lambda a: a.update(ends=a["ends"][::-1].copy()),
        lambda a: a.update(rare_ends=a["rare_ends"][:1]),
        lambda a: a.update(common=a["common"][:1]),
        lambda a: a.update(rare=a["rare"][1:]),
        lambda a: a.update(codes=np.maximum(a["codes"], 2)),
    ],
)
def test_words_that_do_not_fit_together_are_refused(damage, monkeypatch):
    monkeypatch.setattr(module, "N_COMMON", 3)
    words = EntryWords()
    words.append([np.array([1, 2, 3, 3, 2, 1, 9], dtype=np.uint32), np.ones(4, dtype=np.uint32)])
    arrays = words.state()
    damage(arrays)
    with pytest.raises(ValueError, match="do not fit together"):
        EntryWords.restored(arrays)


def test_words_of_texts_take_little_more_than_two_bytes():
    texts = [word_hashes(text) for text in passages(2_000, 1).texts]
    words = EntryWords()
    for text in texts:  # one by one, so that it is told again which are common
        words.append([text])
    assert_same(words.take(np.arange(len(texts))), texts)
    n_words = sum(map(len, texts))
    taken = sum(array.nbytes for name, array in words.state().items() if "ends" not in name)
    assert taken < 2.5 * n_words + 4 * 2**16


@pytest.mark.parametrize("grown", [False, True])
def test_pairs_are_compared_across_standing_and_new_entries(grown):
    seven, six = "one two three four five six seven", "one two three four five six"
    texts = [
        word_hashes(text) for text in (seven, "a b c d e f g h", "five six three two one four")
    ]
    standing = FixedWords(texts)
    if grown:
        standing = EntryWords()
        standing.append(texts)
    everything = [*texts, texts[0], word_hashes(six)]
    words = Words(standing, everything[3:])
    first, second = np.array([0, 3, 0, 4, 0]), np.array([3, 0, 4, 0, 2])
    expected = containment(everything, first, second)
    np.testing.assert_array_equal(words.copied(first, second), expected)
    assert_same(words.take(np.array([-1, 4, 1])), [word_hashes(""), word_hashes(six), texts[1]])


def test_texts_are_compared_part_by_part_as_they_are_all_at_once(monkeypatch):
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 99, rng.integers(20, 40)).astype(np.uint32) for _ in range(60)]
    standing = EntryWords()
    standing.append(texts[:40])
    first, second = rng.integers(0, 60, (2, 500))
    expected = containment(texts, first, second)
    held = []

    def comparing(words, a, b):
        held.append(sum(map(len, words)))
        return containment(words, a, b)

    monkeypatch.setattr(module, "containment", comparing)
    monkeypatch.setattr(module, "WORDS_AT_ONCE", 100)
    for words in (Words(standing, texts[40:]), Words(FixedWords(texts[:40]), texts[40:])):
        np.testing.assert_array_equal(words.copied(first, second), expected)
    assert max(held) <= 100  # however many texts there are
    assert len(held) > 20


def test_what_has_next_to_no_words_has_no_content():
    pairs = {
        ("- 1", "- 2"): NO_CONTENT,
        ("one one one", "one two three four five six"): NO_CONTENT,
        ("one two three four five six", "one two three four five six"): 1.0,
    }
    for texts, expected in pairs.items():
        words = Words(FixedWords([word_hashes(text) for text in texts]))
        found = words.copied(np.array([0]), np.array([1]))[0]
        assert found == pytest.approx(expected), texts
