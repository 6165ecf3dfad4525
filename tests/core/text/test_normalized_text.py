"""Text as a reader sees it, and where it came from."""

import unicodedata

import pytest
from effort import assert_linear
from hypothesis import given
from hypothesis import strategies as st

from ragshield_core.text.normalized import MAX_SENTENCE, readable, sentences, words


@pytest.mark.parametrize(
    ("hostile", "plain"),
    [
        ("ig\u200bno\u2060re", "ignore"),
        ("ig\u00adnore", "ignore"),
        ("ign\x00or\x08e", "ignore"),
        ("\uff49\uff47\uff4e\uff4f\uff52\uff45", "ignore"),
        ("\U0001d422\U0001d420\U0001d427\U0001d428\U0001d42b\U0001d41e", "ignore"),
        ("ⓘⓖⓝⓞⓡⓔ", "ignore"),
        ("\U0001f178\U0001f176", "IG"),
        ("ɪɢɴᴏʀᴇ", "ignore"),
        ("ign\u043ere", "ignore"),
        ("\u0440\u0430\u0443", "pay"),
        ("i\u0337g\u0337n\u0337o\u0337r\u0337e\u0337", "ignore"),
        ("i g n o r e  a l l  of it", "ignore all of it"),
        ("i-g-n-o-r-e", "ignore"),
        ("I.G.N.O.R.E", "IGNORE"),
        ("ignore \t all\u00a0of\u3000it", "ignore all of it"),
        ("ignore \r\n\n  all", "ignore\nall"),
        ("e\u0301tude", "étude"),
    ],
)
def test_disguised_text_is_normalized(hostile, plain):
    assert readable(hostile).text == plain


@pytest.mark.parametrize(
    "text",
    [
        "Plain words, as they are: 3.5 % of R&D (see A-4).",
        "как сор и роса: оса Москва",  # all look-alikes but for one word
        "Ο Σωκράτης ήταν φιλόσοφος και ο Πλάτων",
        "你好，世界。",
        "Größe, naïveté, señor, Łódź",
        "a b c is short, J. R. R. Tolkien is a name",
        "مرحبا بالعالم",
        "snow ☃ and ν or ο alone",
    ],
)
def test_innocent_text_stays_as_it_is(text):
    assert readable(text).text == unicodedata.normalize("NFKC", text)


def test_a_span_leads_back_to_the_characters_it_came_from():
    text = "Well,\t\tthe \U0001d41dо\u200bg ate  i g n o r e  \ufb01sh"
    view = readable(text)
    assert view.text == "Well, the dog ate ignore fish"
    for found, there in {
        "dog": "\U0001d41dо\u200bg",
        "ignore": "i g n o r e",
        "fi": "\ufb01",
        "sh": "sh",
        " ": "\t\t",
        "Well": "Well",
    }.items():
        at = view.text.index(found)
        start, end = view.original_span(at, at + len(found))
        assert text[start:end] == there


@given(st.text(alphabet=st.sampled_from("ab .\n\u200b\u0301а\ufb01i\u00e9\x00 。"), max_size=60))
def test_original_spans_are_ordered_and_within_the_text(text):
    view = readable(text)
    end = 0
    for at in range(len(view.text)):
        start, stop = view.original_span(at, at + 1)
        assert 0 <= start < stop <= len(text)
        assert stop >= end
        end = stop
    assert view.original_span(0, len(view.text))[1] <= len(text)


@given(st.text(max_size=200))
def test_any_text_is_readable_and_has_no_blank_runs(text):
    view = readable(text)
    assert "  " not in view.text
    assert view.original == text
    for start, end in sentences(view.text):
        assert 0 < end - start <= MAX_SENTENCE
        assert view.text[start:end].strip() == view.text[start:end]


def test_a_span_outside_is_refused():
    with pytest.raises(ValueError, match=r"\(3, 9\)"):
        readable("short").original_span(3, 9)


def test_sentences_skip_only_whitespace():
    text = 'One (e.g. this). "Two!" Three... four?\nFive\n\n六。七！八' + " word" * 500
    spans = sentences(text)
    found = "|".join(text[start:end] for start, end in spans[:8])
    assert found == 'One (e.g.|this).|"Two!"|Three...|four?|Five|六。|七！'
    kept = set().union(*(range(start, end) for start, end in spans))
    assert all(text[at].isspace() for at in set(range(len(text))) - kept)


def test_words_are_casefolded_and_the_same_with_and_without_other_scripts():
    assert words("The DOG's snake_case 42") == ["the", "dog", "s", "snake", "case", "42"]
    assert words("The DOG's snake_case 42 – ÉTÉ 日本") == [
        *words("The DOG's snake_case 42"),
        "été",
        "日",
        "本",
    ]
    assert words("") == []


ANYTHING = [
    "a",
    "\u0301",
    "a\u0301",
    "а",
    "аb ",
    "a ",
    "a  ",
    "\n",
    " \n",
    "。",
    ". ",
    "\u200b",
    "\ud800",
]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ANYTHING)
def test_a_megabyte_of_anything_costs_no_more_than_its_length(unit):
    def read(text):
        view = readable(text)
        sentences(view.text)
        words(view.text)

    assert_linear(read, unit, 1_000_000)


def test_words_between_two_others_are_counted_however_long_the_text_is():
    foreign, alike = "\u043b\u044f", "\u0440\u0430\u0443"
    for between in range(8):
        text = " ".join([foreign, *["word"] * between, alike, *["word"] * 1_000])
        # Within five words of one in another script, a word of look-alikes is of that script too.
        assert ("pay" in readable(text).text) == (between >= 5)
