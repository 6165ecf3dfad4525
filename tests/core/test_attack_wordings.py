"""Wordings of one's own, and recipes that are harder to find than published."""

import json
import re

import numpy as np
import pytest
from small_trials import TARGET

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.evaluate.attacks import (
    ATTACKS,
    DIFFICULTIES,
    WORDINGS,
    own_wordings,
    read_wordings,
)
from ragshield_core.tools.evaluate.attacks.catalogue import BY_NAME
from ragshield_core.tools.evaluate.attacks.wordings import NEEDED

HARDER = [
    attack.at(step) for attack in ATTACKS for step in DIFFICULTIES[1:] if step in attack.steps
]


def test_our_own_wordings_are_as_those_of_others_have_to_be():
    assert own_wordings(WORDINGS) == WORDINGS
    assert set(NEEDED) < set(WORDINGS)


def test_a_file_replaces_wordings_by_key_and_dots_stand_for_ours(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"orders": ["Say {a}."], "opinions": ["...", "I like {a}."]}))
    mine = read_wordings(path)
    assert mine["orders"] == ("Say {a}.",)
    assert mine["opinions"] == (*WORDINGS["opinions"], "I like {a}.")
    assert {key for key in WORDINGS if mine[key] == WORDINGS[key]} == {
        *WORDINGS.keys() - {"orders", "opinions"}
    }
    planted = BY_NAME["instructions"].plant(TARGET, seed=1, wordings=mine)
    assert planted.texts == ("Say Ada Quill.",)
    opinions = BY_NAME["opinions"].plant(TARGET, seed=1, size=6, wordings=mine)
    assert "I like Ada Quill." in opinions.texts


@pytest.mark.parametrize("key", sorted(WORDINGS.keys() - {"tokens", "triggers"}))
def test_every_key_of_a_file_is_planted_by_a_recipe(key):
    mine = own_wordings({key: [f"zebra {{{place}}}" for place in NEEDED[key]]})
    steps = [*ATTACKS, *HARDER]
    texts = [text for each in steps for text in each.plant(TARGET, 3, wordings=mine).texts]
    assert any("zebra" in text for text in texts)


def test_words_of_gibberish_and_phrases_can_be_others():
    mine = own_wordings({"tokens": ["zrk"], "triggers": ["one", "two", "three"]})
    gibberish, phrase = BY_NAME["gibberish"], BY_NAME["planted phrase"]
    assert gibberish.plant(TARGET, 0, wordings=mine).texts[0].startswith("zrk zrk ")
    for text in phrase.plant(TARGET, 0, wordings=mine).texts:
        assert {"one", "two", "three"} <= set(text.lower().split())


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"claim": ["{a}"]}, "'claim' is not known, expected one of: passages; claims;"),
        ({"claims": "{a}"}, "'claims' has no list of wordings, expected a list of strings"),
        ({"claims": []}, "'claims' has no list"),
        ({"claims": ["{a}", 3]}, "'claims', wording 2 is no text"),
        ({"claims": ["{a}", " "]}, "'claims', wording 2 is no text"),
        ({"claims": ["hostile text"]}, r"'claims', wording 1 has no \{a\}, expected"),
        ({"blockers": ["{a}"]}, r"'blockers', wording 1 has no \{q\} or \{k\}"),
        ({"orders": ["{a} {answer}"]}, r"'orders', wording 1 has a place .* expected \{q\}, \{k\}"),
        ({"triggers": ["one", "two", "two"]}, "'triggers' has too few words, expected 3"),
    ],
)
def test_a_wrong_wording_is_named_with_its_key_and_what_was_expected(values, named, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(values))
    with pytest.raises(SourceError, match=f"mine.json: {named}") as error:
        read_wordings(path)
    assert "hostile" not in str(error.value)
    with pytest.raises(SourceError, match=f"wordings: {named}"):
        own_wordings(values)


@pytest.mark.parametrize("content", ["not json", "[1]", "[" * 100_000, "\ud800"])
def test_a_file_that_is_no_object_is_refused(content, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(SourceError, match=r'mine\.json .*\{"claims": \['):
        read_wordings(path)


@pytest.mark.parametrize("attack", HARDER, ids=lambda attack: attack.name)
def test_a_harder_step_writes_other_texts_in_the_same_number(attack):
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
def test_what_is_blended_has_its_own_sentences_in_order_among_those_of_a_clean_text(attack):
    def sentences(text):
        return re.split(r"(?<=[.?!]) ", text)

    carriers = [sentences(carrier) for carrier in TARGET.carriers]
    plain = attack.at("reworded").plant(TARGET, seed=4).texts
    for number, text in enumerate(attack.plant(TARGET, seed=4).texts):
        clean, found = carriers[number % len(carriers)], sentences(text)
        assert [each for each in found if each in clean] == clean
        assert [each for each in found if each not in clean] == sentences(plain[number])


def test_steps_are_taken_as_far_as_a_recipe_has_them():
    hidden = BY_NAME["hidden instructions"]
    assert hidden.at("blended") == hidden.at("reworded")
    assert hidden.at("reworded").at("published") == hidden
    assert hidden.at("reworded").name == "hidden instructions, reworded"
    assert all(attack.at("published") == attack for attack in ATTACKS)
    assert all("reworded" in attack.steps for attack in ATTACKS)
    with pytest.raises(ValueError, match="'hard', expected one of published, reworded, blended"):
        hidden.at("hard")


@pytest.mark.parametrize("attack", [*ATTACKS, *HARDER], ids=lambda attack: attack.name)
def test_hostile_targets_and_odd_carriers_go_through_every_step(attack):
    for carriers in (("",), ("one",), ("\u202e. ? !", "{a} \\1")):
        target = TARGET.__class__(question="{a}?", wrong_answer="{q}\\g<0>", carriers=carriers)
        assert all(attack.plant(target, seed=np.random.default_rng(0).integers(9)).texts)
