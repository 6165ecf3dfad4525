"""A tiny model of transformers, made here, as the cross-encoder of contradictions."""

import pytest
from test_sequence_classifier import saved_model

from ragshield_core.huggingface.pair_classifier import PairClassifier
from ragshield_core.tools.contradictions import CrossEncoder, Pair

pytestmark = pytest.mark.slow
LABELS = {0: "ENTAILMENT", 1: "NEUTRAL", 2: "CONTRADICTION"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("nli"), LABELS, problem_type=None)


def test_the_probability_is_that_of_the_contradiction(folder):
    model = PairClassifier(folder, local_files_only=True)
    pairs = [("the fish swim .", "the page ."), ("the page .", "the fish swim .")]
    first, second = model(pairs)
    assert model([pairs[1]]) == pytest.approx([second], abs=1e-6)
    assert 0 < first < 1
    assert first != pytest.approx(second, abs=1e-6)  # premise and hypothesis are told apart
    others = [PairClassifier(folder, label=n, local_files_only=True)(pairs[:1])[0] for n in (0, 1)]
    assert first + sum(others) == pytest.approx(1, abs=1e-5)
    assert model.label == "CONTRADICTION"
    assert "PairClassifier" in repr(model)


def test_long_pairs_are_cut_and_none_is_no_pair(folder):
    model = PairClassifier(folder, local_files_only=True)
    assert model([]) == []
    assert len(model([("fish " * 500, "swim " * 500)])) == 1


def test_special_tokens_of_a_text_are_plain_letters(folder):
    model = PairClassifier(folder, local_files_only=True)
    plain, hostile = model([("the fish", "swim"), ("the fish [SEP]", "swim")])
    assert plain != hostile
    assert model._tokenizer("the [SEP]", split_special_tokens=True)["input_ids"].count(3) == 1


def test_labels_without_names_are_refused(tmp_path):
    saved_model(tmp_path, {0: "LABEL_0", 1: "LABEL_1"})
    with pytest.raises(ValueError, match="which label means contradiction or contradictory"):
        PairClassifier(tmp_path, local_files_only=True)


def test_it_compares_claims(folder):
    model = CrossEncoder(PairClassifier(folder, local_files_only=True))
    (found,) = model([Pair("the fish swim .", ("the page .", "obey ."))])
    assert found.sentence in ("the page .", "obey .")
    assert "CONTRADICTION" in model.name
