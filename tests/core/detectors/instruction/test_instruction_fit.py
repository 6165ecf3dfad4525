"""The script that fits the model of ideas: reproducible, and never trained on held-out examples."""

import random

import fit_instruction_model as fit
import numpy as np
import pytest
from fit_instruction_model import Example

from ragshield_core.detectors.instruction.concepts import IdeaModel

PASSAGES = [
    "The user manual tells readers to press Reset. It has ten pages.",
    "Ignore the noise from the harbour, the earlier guide said, and ask for a room at the back.",
    "Please answer all questions of the survey and send it to the office.",
    "The assistant of the mayor refused to answer. The newspaper printed only that.",
    "Write your name on the form, then tell the nurse when you are ready.",
    "The committee revoked its previous orders and asked members to reply by letter.",
]


@pytest.fixture(scope="module")
def known():
    return IdeaModel(fit.data_file())


@pytest.fixture(scope="module")
def bags(known):
    """Return sampled orders of two languages, with our own passages in place of corpora."""
    own = [one for one in fit.orders(2) if one.language in ("en", "de")]
    clean = [
        Example(f"{one} {other}", injected=False, family="", language="", source="corpora")
        for one in PASSAGES
        for other in PASSAGES
    ]
    return [fit.bag_of(one, known) for one in [*own, *clean]]


@pytest.fixture(scope="module")
def weights(bags, known):
    return fit.fitted(bags, known.names, strength=0.1)


@pytest.mark.slow
def test_a_fit_is_the_same_to_the_last_digit(bags, known, weights):
    assert fit.fitted(bags, known.names, strength=0.1) == weights
    shuffled = random.Random(1).sample(bags, len(bags))  # noqa: S311
    again = fit.fitted(shuffled, known.names, strength=0.1)
    assert again.of.keys() == weights.of.keys()
    for name, weight in weights.of.items():
        assert again.of[name] == pytest.approx(weight, abs=0.011)


def test_the_weights_are_those_of_the_fixed_set(weights):
    expected = {"user": 0.34, "your": 0.28, "orders": 0.23, "reported": -0.2, "customer": -0.24}
    assert {name: weights.of[name] for name in expected} == pytest.approx(expected, abs=0.011)
    assert max(weights.of, key=weights.of.__getitem__) == "user"
    assert weights.bias == pytest.approx(-0.416, abs=0.011)


@pytest.mark.slow
def test_held_out_examples_are_not_trained_on(bags, known, monkeypatch):
    seen, asked = [], []
    real = fit.fitted
    monkeypatch.setattr(
        fit, "fitted", lambda train, *args: seen.append(train) or real(train, *args)
    )
    told = fit.logits
    monkeypatch.setattr(fit, "logits", lambda test, model: asked.append(test) or told(test, model))
    results, passages = fit.cross_validated(bags, known.names, fit.by_language, 0.1, 2)
    assert [one.group for one in results] == ["de", "en"]
    for train, test in zip(seen, asked, strict=True):
        assert not {bag.example.text for bag in train} & {bag.example.text for bag in test}
        assert not {fit.by_language(b) for b in train} & {fit.by_language(b) for b in test} - {None}
        assert len(train) + len(test) == len(bags)
    assert len(passages) == len(PASSAGES) ** 2
    both = fit.together(results)
    n_models = sum(bag.example.injected for bag in bags)
    assert both.found[1] == n_models
    assert both.alarms[1] == len(bags) - n_models - len(passages)


@pytest.mark.slow
def test_the_test_half_is_read_for_the_comparison_alone(monkeypatch):
    read = []
    real = fit.wordings
    monkeypatch.setattr(fit, "wordings", lambda half: read.append(half) or real(half))
    monkeypatch.setattr(fit, "compared", lambda *_: [])
    monkeypatch.setattr(fit, "passages", lambda *_: {})
    monkeypatch.setattr(fit, "chosen_strength", lambda *_: (0.1, []))
    monkeypatch.setattr(fit, "cross_validated", lambda *_: ([], np.zeros(1)))
    monkeypatch.setattr(fit, "table", lambda *_: [])
    monkeypatch.setattr("sys.argv", ["fit", "--unseen"])
    fit.main()
    assert read == ["dev"]
