"""Languages of a knowledge base: a made-up one that it holds, and others that it lacks."""

import numpy as np
import pytest
from made_up_language import (
    ADJECTIVES,
    FOREIGN,
    NOUNS,
    VERBS,
    article,
    salad,
)

from ragshield_core.detectors.gibberish.fluency import tokenized
from ragshield_core.detectors.gibberish.language import Languages, script_of

RUSSIAN = "мельница стоит на реке и старый мельник живёт в ней один уже много лет"
CHINESE = "磨坊在河边老磨坊主一个人住了很多年"
THAI = "โรงสีตั้งอยู่ริมแม่น้ำ และคนสีข้าวชราอาศัยอยู่คนเดียวมาหลายปี"


def texts(n, seed, **options):
    rng = np.random.default_rng(seed)
    return [article(rng, 4, **options) for _ in range(n)]


def fitted(known, *more):
    languages = Languages()
    sample, rest = known[:100], [*known[100:], *more]
    languages.learn(rest)
    languages.refresh(sample)
    languages.learn(sample)
    return languages


@pytest.fixture(scope="module")
def languages():
    return fitted(texts(600, 1))


def foreign(n, seed):
    words = tuple([word[::-1] for word in words] for words in (NOUNS, VERBS, ADJECTIVES))
    return texts(n, seed, frames=FOREIGN, lexicons=words)


def test_new_texts_in_a_language_of_the_knowledge_base_are_judged(languages):
    assert languages.unheld(texts(100, 2)) == {}


@pytest.mark.parametrize("text", [RUSSIAN, CHINESE, THAI, RUSSIAN[:8], CHINESE[:4]])
def test_another_script_is_not_judged_and_the_reason_names_it(languages, text):
    (reason,) = languages.unheld([text]).values()
    assert "script (" in reason


def test_recurring_words_reveal_another_language_in_the_same_script(languages):
    reasons = languages.unheld(foreign(50, 3))
    assert len(reasons) == 50
    assert "recur" in reasons[0]


def test_rare_letters_reveal_the_language_of_a_short_text(languages):
    words = [*salad(np.random.default_rng(4), 14).split(), "übergroß", "für", "Straße", "völlig"]
    (reason,) = languages.unheld([" ".join(words)]).values()
    assert "letters" in reason


def test_salad_of_known_words_is_judged_alone_and_beside_a_text(languages):
    rng = np.random.default_rng(5)
    pieces = [salad(rng, 30) for _ in range(50)]
    both = [f"{text} {piece}" for text, piece in zip(texts(50, 6), pieces, strict=True)]
    assert len(languages.unheld(pieces)) <= 1
    assert languages.unheld(both) == {}


@pytest.mark.parametrize("disguise", ["accents", "repeated", "letters"])
def test_disguised_gibberish_beside_a_text_of_the_knowledge_base_is_judged(languages, disguise):
    rng = np.random.default_rng(7)
    piece = salad(rng, 20)
    if disguise == "accents":
        piece = piece.translate(str.maketrans("aeiou", "àéíöü"))
    elif disguise == "repeated":
        piece = " ".join([piece, *piece.split()[:8]])
    else:
        letters = list("abcdefghijklmnopqrstuvwxyz")
        piece = " ".join("".join(rng.choice(letters, 6)) for _ in range(20))
    text = article(rng, 5)
    assert languages.unheld([f"{text} {piece}", f"{piece} {text}"]) == {}


def test_a_language_that_a_part_of_the_knowledge_base_is_written_in_is_judged():
    both = fitted(texts(600, 1), *foreign(200, 8), *[RUSSIAN] * 200)
    assert both.unheld([*foreign(20, 9), RUSSIAN]) == {}


def test_alternating_scripts_are_not_a_quotation(languages):
    ((_, quotation),) = tokenized([f"the mill {RUSSIAN}"])
    assert languages.quoted(quotation).sum() > 8
    mixed = " ".join(f"{a} {b}" for a, b in zip(RUSSIAN.split(), THAI.split(), strict=False))
    ((_, mixture),) = tokenized([mixed])
    assert not languages.quoted(mixture).any()


def test_reasons_do_not_depend_on_the_texts_around(languages):
    found = [*foreign(5, 11), RUSSIAN, "", "?!", *texts(5, 12), CHINESE]
    together = languages.unheld(found)
    alone = {row: languages.unheld([text]).get(0) for row, text in enumerate(found)}
    assert together == {row: reason for row, reason in alone.items() if reason is not None}


def test_texts_without_words_are_judged(languages):
    assert languages.unheld(["", "1234 ?!", "\x00"]) == {}


def test_scripts_mixed_by_one_language_count_as_one():
    ((_, tokens),) = tokenized(["東 かな カタ"])
    assert len(set(script_of(tokens).tolist())) == 1
