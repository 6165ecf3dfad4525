"""Words of texts, found by columns, are those that a pattern finds."""

import re

import numpy as np
import pytest

from ragshield_core.text.columns import LONGEST, Alphabet, Dictionary, columns_of, key

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
TABLE = bytes(ord(chr(code).lower()) if chr(code).lower() in LETTERS else 0 for code in range(256))
TEXTS = [
    b"The mill of Brill, built in 1790.",
    b"",
    b"...",
    b"\0a\0b",
    b"internationalisation and " + b"a" * 7 + b" " + b"a" * 8 + b" " + b"a" * 9,
    b"a" * 100 + b" " + b"b" * 1_000,
    b"ends with a word",
]


def found_in(text):
    return re.findall(rb"[a-z0-9]+", text.lower())


def random_texts(seed, n=200):
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"abAB19  ,.\0\xff", dtype=np.uint8)
    return [bytes(rng.choice(letters, size=rng.integers(0, 60))) for _ in range(n)]


@pytest.mark.parametrize("texts", [TEXTS, random_texts(1), [], [b""]])
def test_words_lie_where_a_pattern_finds_them(texts):
    columns = columns_of(texts, TABLE)
    for n, text in enumerate(texts):
        words = slice(columns.first[n], columns.first[n + 1])
        assert [
            columns.joined[start:end].lower()
            for start, end in zip(columns.start[words], columns.end[words], strict=True)
        ] == found_in(text)
        assert columns.joined[columns.begin[n] : columns.begin[n + 1] - 1] == text
    assert len(columns) == sum(len(found_in(text)) for text in texts)
    assert columns.text.tolist() == [n for n, text in enumerate(texts) for _ in found_in(text)]


def test_a_word_has_one_key_wherever_it_stands():
    texts = [*TEXTS, *random_texts(2)]
    columns = columns_of(texts, TABLE)
    words = [word for text in texts for word in found_in(text)]
    assert columns.keys.tolist() == [key(word) for word in words]
    # Of up to eight letters, they are the letters themselves.
    assert key(b"ab") == ord("a") + 256 * ord("b")
    short = {word for word in words if len(word) <= LONGEST}
    assert len(set(map(key, short))) == len(short)


def test_longer_words_differ_in_their_first_letters_and_their_length():
    long = b"a" * (LONGEST + 1)
    assert key(long + b"b") == key(long + b"c") != key(long)
    assert key(b"b" + long) != key(b"c" + long)


def test_letters_that_words_begin_with_have_the_key_of_a_word():
    columns = columns_of([b"instructions given", b"instructional"], TABLE)
    words = np.array([0, 2])
    for n in (3, 8, 9):
        assert columns.beginnings(words, n).tolist() == [key(b"instructions"[:n])] * 2
    lengths = np.array([2, 1, 10])
    keys = [key(b"in"), key(b"g"), key(b"instructio")]
    assert columns.beginnings(np.arange(3), lengths).tolist() == keys


def test_a_dictionary_finds_its_words_and_no_others():
    listed = [f"word{n}".encode() for n in range(3_000)] + [b"a", b"b" * LONGEST]
    columns = columns_of([b" ".join([*listed, b"word3000", b"aa", b"b" * 63])], TABLE)
    places = Dictionary(listed)(columns.keys)
    assert places.tolist() == [*range(1, len(listed) + 1), 0, 0, 0]
    assert not Dictionary([])(columns.keys).any()


def test_a_dictionary_says_which_words_it_cannot_tell_apart():
    with pytest.raises(ValueError, match="2 words have 1 keys"):
        Dictionary([b"a" * 70 + b"b", b"a" * 70 + b"c"])


def test_an_alphabet_has_one_byte_for_each_character():
    asked = []

    def byte_of(character):
        asked.append(character)
        return ord(character) if character.isascii() else 0xFF

    alphabet = Alphabet(byte_of)
    texts = ["abc", "", "na\u00efve \U0001f600 \ud800", "\0a\u00ef" * 100_000]
    for _ in range(2):
        assert alphabet(texts) == [
            bytes(ord(c) if c.isascii() else 0xFF for c in text) for text in texts
        ]
    asked = [character for character in asked if not character.isascii()]
    assert sorted(asked) == sorted({*"\u00ef\U0001f600\ud800"})
