"""Recipes that are harder to find than published."""

import re

import numpy as np
import pytest
from small_trials import TARGET

from ragshield_core.tools.evaluate.attacks import ATTACKS, BY_NAME, DIFFICULTIES

HARDER = [
    attack.at(step) for attack in ATTACKS for step in DIFFICULTIES[1:] if step in attack.steps
]


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
