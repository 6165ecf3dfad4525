"""Crafted passages, and recipes that are harder to detect than the published ones."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from corpora import ROOT, read_rows
from hypothesis import given
from hypothesis import strategies as st
from small_trials import TARGET

from ragshield_core.tools.defaults import ATTACK_NAMES
from ragshield_core.tools.evaluate.attacks import (
    ATTACKS,
    BY_NAME,
    DIFFICULTIES,
    LABEL_FLIPS,
    STYLES,
    craft_passages,
    put_question_in_front,
)

QUESTION, ANSWER = "who wrote the hymn of the Norse sailors?", "Ada Quill"


@pytest.mark.parametrize("style", STYLES)
def test_passages_differ_say_the_wrong_answer_and_are_drawn_by_a_seed(style):
    passages = craft_passages(QUESTION, ANSWER, style=style)
    assert len(set(passages)) == 5
    assert all(ANSWER in passage and "{" not in passage for passage in passages)
    assert craft_passages(QUESTION, ANSWER, 3, style=style) == passages[:3]
    draws = [tuple(craft_passages(QUESTION, ANSWER, 3, style=style, seed=s)) for s in range(20)]
    assert all(len(set(draw)) == 3 for draw in draws)
    assert {text for draw in draws for text in draw} == set(passages)
    assert draws[7] == tuple(craft_passages(QUESTION, ANSWER, 3, style=style, seed=7))


def test_the_question_stands_in_front_word_for_word():
    assert all(text.startswith(f"{QUESTION} ") for text in craft_passages(QUESTION, ANSWER))


@pytest.mark.parametrize("style", ["statements", "news"])
def test_running_text_has_the_key_words_and_not_the_question(style):
    for text in craft_passages(QUESTION, ANSWER, style=style):
        assert "wrote hymn Norse sailors" in text
        assert QUESTION not in text


def test_a_question_of_function_words_alone_is_its_own_key():
    (text,) = craft_passages("Who is it?", ANSWER, 1, style="statements")
    assert text.startswith("On the subject of Who is it?, the records point to Ada Quill.")


@given(question=st.text(), answer=st.text(), style=st.sampled_from(sorted(STYLES)))
@pytest.mark.slow
def test_braces_and_other_marks_pass_unchanged(question, answer, style):
    assert all(answer in text for text in craft_passages(question, answer, style=style))
    if style == "question in front":
        (first, *_) = craft_passages(question, answer)
        assert first == f"{question} The answer is {answer}, as several sources confirm."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"style": "sonnets"}, "'sonnets', expected one of .*'news'"),
        ({"size": 6}, "size is 6, expected 1 to 5"),
        ({"size": 0}, "size is 0"),
    ],
)
def test_invalid_crafting_options_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        craft_passages(QUESTION, ANSWER, **options)


@pytest.mark.parametrize("name", ["poisonedrag_nq", "poisonedrag_hotpotqa"])
def test_black_box_form_matches_the_published_texts(name):
    folder = Path(os.environ.get("RAGSHIELD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir() and os.environ.get("CI") != "true":
        pytest.skip(f"no corpora at {folder}; set RAGSHIELD_DATA")
    rows = read_rows(name)
    assert len(rows) == 500
    for row in rows:
        assert put_question_in_front(row["target_question"], row["text"]) == row["text_blackbox"]


# Difficulties

HARDER = [
    attack.at(step) for attack in ATTACKS for step in DIFFICULTIES[1:] if step in attack.steps
]


@pytest.mark.parametrize("attack", HARDER, ids=lambda attack: attack.name)
def test_harder_step_writes_the_same_number_of_other_texts(attack):
    published = BY_NAME[attack.name.removesuffix(f", {attack.difficulty}")]
    for seed in range(3):
        planted, before = attack.plant(TARGET, seed), published.plant(TARGET, seed)
        assert planted == attack.plant(TARGET, seed)
        assert len(planted.texts) == attack.size
        assert (planted.attack, planted.question) == (attack.name, before.question)
        assert not set(planted.texts) & set(before.texts)
        whole = "".join(planted.texts)
        assert not re.search(r"\{[qkar]\}", whole)
        assert not attack.for_question or TARGET.question.rstrip("?") not in whole
    assert attack.told.startswith(f"{attack.source}; ")


@pytest.mark.parametrize(
    "attack", [each for each in HARDER if each.difficulty == "blended"], ids=lambda each: each.name
)
def test_blended_sentences_keep_their_order_within_a_clean_text(attack):
    def sentences(text):
        return re.split(r"(?<=[.?!]) ", text)

    carriers = [sentences(carrier) for carrier in TARGET.carriers]
    plain = attack.at("reworded").plant(TARGET, seed=4).texts
    for number, text in enumerate(attack.plant(TARGET, seed=4).texts):
        clean, found = carriers[number % len(carriers)], sentences(text)
        assert [each for each in found if each in clean] == clean
        assert [each for each in found if each not in clean] == sentences(plain[number])


def test_difficulty_falls_back_to_the_hardest_step_available():
    hidden = BY_NAME["hidden instructions"]
    assert hidden.at("blended") == hidden.at("reworded")
    assert hidden.at("reworded").at("published") == hidden
    assert hidden.at("reworded").name == "hidden instructions, reworded"
    assert all(attack.at("published") == attack for attack in ATTACKS)
    assert all("reworded" in attack.steps for attack in ATTACKS)
    assert (*(attack.name for attack in ATTACKS), LABEL_FLIPS) == ATTACK_NAMES
    with pytest.raises(ValueError, match="'hard', expected one of published, reworded, blended"):
        hidden.at("hard")


@pytest.mark.parametrize("attack", [*ATTACKS, *HARDER], ids=lambda attack: attack.name)
def test_hostile_targets_and_odd_carriers_go_through_every_step(attack):
    for carriers in (("",), ("one",), ("\u202e. ? !", "{a} \\1")):
        target = TARGET.__class__(question="{a}?", wrong_answer="{q}\\g<0>", carriers=carriers)
        assert all(attack.plant(target, seed=np.random.default_rng(0).integers(9)).texts)
