"""Text copied word for word into another text, against sets of Python strings."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragshield_core.text import copies
from ragshield_core.text.copies import FEW_GRAMS, containment, content, word_hashes

# Few words, so that texts share grams and repeat their own; case and punctuation vary.
WORD = st.sampled_from(["alpha", "Beta", "GAMMA", "delta", "straße", "naïve", "数据"])
GLUE = st.sampled_from([" ", ", ", "... ", "\n", " - ", '" ', "!"])
TEXT = st.lists(st.tuples(WORD, GLUE), max_size=24).map(lambda p: "".join(w + g for w, g in p))


def grams(words, n):
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def naive(one, other):
    """Return the share of the shorter text in the longer, by sets of strings."""
    one, other = (re.findall(r"\w+", text.lower()) for text in (one, other))
    for n in (3, 1):
        a, b = grams(one, n), grams(other, n)
        if min(len(a), len(b)) >= (FEW_GRAMS if n == 3 else 1):
            return len(a & b) / min(len(a), len(b))
    return 0.0


def shares(texts, pairs):
    first, second = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return containment([word_hashes(text) for text in texts], first, second)


@given(st.lists(TEXT, min_size=1, max_size=6), st.data())
@example(["", "", "alpha"], None)
@pytest.mark.slow
def test_containment_is_that_of_sets(texts, data):
    row = st.integers(0, len(texts) - 1)
    pairs = [(0, 0), (0, len(texts) - 1), (0, len(texts) - 1)]  # itself, and one pair twice
    if data is not None:
        pairs += data.draw(st.lists(st.tuples(row, row), max_size=12))
    expected = [naive(texts[a], texts[b]) for a, b in pairs]
    np.testing.assert_allclose(shares(texts, pairs), expected, rtol=1e-6)
    mirrored = shares(texts, [(b, a) for a, b in pairs])
    np.testing.assert_array_equal(mirrored, shares(texts, pairs))


@given(st.lists(TEXT, min_size=1, max_size=6))
@pytest.mark.slow
def test_large_and_small_tables_agree(texts):
    pairs = [(a, b) for a in range(len(texts)) for b in range(len(texts))]
    small = shares(texts, pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "DENSE", -1)
        np.testing.assert_array_equal(shares(texts, pairs), small)


SENTENCE = "the quick brown fox jumps over the lazy dog near a river bank"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (SENTENCE.upper().replace(" ", ", ") + "!", 1.0),
        (f"somebody said: {SENTENCE} -- and left for good", 1.0),
        (" ".join(reversed(SENTENCE.split())), 0.0),
        ("the quick brown fox jumps over a fence and then leaves", 4 / 9),
        ("dog fox zebra", 2 / 3),  # short: by words
        ("", 0.0),
        ("?!", 0.0),
    ],
    ids=["case", "framed", "reversed", "beginning", "short", "empty", "no words"],
)
def test_known_shares(other, expected):
    assert shares([SENTENCE, other], [(0, 1)])[0] == pytest.approx(expected)


def test_no_pairs_and_lone_surrogates_are_no_error():
    assert shares([SENTENCE], []).shape == (0,)
    assert shares(["bad \ud800 text", "bad \ud800 text"], [(0, 1)]).tolist() == [1.0]


@pytest.mark.slow
def test_many_texts_without_words_are_not_compared_in_a_table_of_all_by_all():
    n = 300_000  # 360 GB of float32
    shares = containment([word_hashes("")] * n, np.arange(n - 1), np.arange(1, n))
    assert not shares.any()


def test_hashes_are_the_same_in_every_process():
    assert word_hashes("One, TWO").tolist() == [2053932785, 298486374]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("---\ntitle: The mill\nweight: 3\n---", ""),
        (' \n+++\ntitle = "The mill"\n+++\n', ""),
        ("---\nnote: >\n  The mill is closed all of May.\n---", "  The mill is closed all of May."),
        ("---\ntitle: The mill\n---\nIt is closed.", None),
        ("---\ntitle: The mill\n---\nIt is closed.\n---", None),
        ("--- The mill ---", None),
        ("---", None),
    ],
)
def test_content_is_all_but_short_fields_of_front_matter(text, left):
    assert content(text) == (text if left is None else left)
