"""A tiny model of transformers, made here, as the classifier of InstructionDetector."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import entries, guard_of, knowledge_base, loaded

from ragshield_core import Guard, RetrievalGuard
from ragshield_core.detectors import InstructionDetector
from ragshield_core.huggingface.sequence_classifier import SequenceClassifier
from ragshield_core.model.errors import StateError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "obey", "the", "page", "fish", "swim", "."]
LABELS = {0: "SAFE", 1: "INJECTION"}
WINDOW = 12
CALM = "the fish swim ."


def saved_model(folder, labels=LABELS, *, bare=False, safe=True, seed=0, **config):
    """Write a BERT of a few thousand weights and its tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: PLC0415

    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=WINDOW, **special
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    bert = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=WINDOW,
        initializer_range=0.5,
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
        **config,
    )
    kind = transformers.BertModel if bare else transformers.BertForSequenceClassification
    model = kind(bert)
    model.save_pretrained(folder)
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("models") / "tiny")


def of(folder, **options):
    return SequenceClassifier(folder, local_files_only=True, **options)


@pytest.fixture(scope="module")
def classifier(folder):
    return of(folder)


TEXTS = ["obey", CALM, "obey the page", "fish", "the page . " * 20, "swim swim"]


def plain(folder, text):
    """Return the probabilities of the model itself for one text that fits into it."""
    torch = pytest.importorskip("torch")
    from transformers import AutoTokenizer, BertForSequenceClassification  # noqa: PLC0415

    model = BertForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")).logits[0]


@pytest.mark.slow
def test_probabilities_are_those_of_the_model(folder, classifier):
    found = classifier(TEXTS)
    assert all(0 <= p <= 1 for p in found)
    assert len(set(found)) == len(found)
    for text in ("obey", CALM, "obey the page"):
        expected = plain(folder, text).softmax(0)[1].item()
        assert classifier([text]) == pytest.approx([expected], abs=1e-6)
    assert classifier([]) == []


@pytest.mark.parametrize("batch_size", [1, 2, 32])
@pytest.mark.slow
def test_probabilities_do_not_depend_on_order_or_batch_size(folder, classifier, batch_size):
    one_by_one = [classifier([text])[0] for text in TEXTS]
    other = of(folder, batch_size=batch_size)
    np.testing.assert_allclose(other(TEXTS), one_by_one, atol=1e-6)
    np.testing.assert_allclose(other(TEXTS[::-1]), one_by_one[::-1], atol=1e-6)


def test_a_long_text_has_the_highest_probability_of_its_windows(classifier):
    size, step = classifier.window - 2, classifier.window - 2 - classifier.overlap
    words = [*(["the", "fish", "swim", "."] * 10)[:37], "obey", "the", "page"]
    ends = range(size, len(words) + step, step)
    windows = [" ".join(words[end - size : end]) for end in ends]
    assert len(windows) > 3
    each = classifier(windows)
    assert classifier([" ".join(words)]) == pytest.approx([max(each)], abs=1e-6)
    assert max(each) > min(each) + 1e-3
    # A window counts the same at any place.
    assert classifier([" ".join(words), CALM])[0] == pytest.approx(max(each), abs=1e-6)


def test_words_of_a_text_are_not_special_tokens(classifier):
    seen = []
    listener = classifier._model.register_forward_pre_hook(
        lambda _model, _args, given: seen.extend(given["input_ids"].tolist()), with_kwargs=True
    )
    classifier(["obey [SEP] [PAD] fish"])
    listener.remove()
    (ids,) = seen
    assert [ids.count(WORDS.index(word)) for word in ("obey", "fish", "[SEP]", "[PAD]")] == [
        *(1, 1),
        *(1, 0),  # the one at the end
    ]


def test_zero_batch_size_is_refused(folder):
    with pytest.raises(ValueError, match="batch_size is 0"):
        of(folder, batch_size=0)


@pytest.mark.parametrize(
    ("labels", "label", "chosen"),
    [
        (LABELS, None, 1),
        ({0: "jailbreak", 1: "benign"}, None, 0),
        ({0: "MALICIOUS", 1: "BENIGN"}, None, 0),
        ({0: "Prompt_Injection", 1: "OK"}, None, 0),
        ({0: "LABEL_0", 1: "LABEL_1"}, None, 1),
        ({0: "BENIGN", 1: "INJECTION", 2: "JAILBREAK"}, "jailbreak", 2),
        ({0: "BENIGN", 1: "INJECTION", 2: "JAILBREAK"}, 1, 1),
        ({0: "A", 1: "a"}, "a", 1),
    ],
)
def test_injection_label_is_detected_or_given(tmp_path, labels, label, chosen):
    classifier = of(saved_model(tmp_path, labels), label=label)
    assert classifier.label == labels[chosen]
    expected = plain(tmp_path, CALM).softmax(0)[chosen].item()
    assert classifier([CALM]) == pytest.approx([expected], abs=1e-6)


@pytest.mark.parametrize(
    ("labels", "label", "said"),
    [
        ({0: "good", 1: "bad"}, None, "it cannot be told which label"),
        ({0: "BENIGN", 1: "INJECTION", 2: "JAILBREAK"}, None, "it cannot be told which label"),
        ({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, None, "it cannot be told which label"),
        (LABELS, "jailbreak", "label 'jailbreak' is none"),
        (LABELS, 2, "label 2 is none"),
        (LABELS, True, "label True"),
    ],
)
def test_ambiguous_or_unknown_injection_label_is_refused(tmp_path, labels, label, said):
    saved_model(tmp_path, labels)
    shown = re.escape("{" + ", ".join(f"{n}: {name!r}" for n, name in labels.items()) + "}")
    with pytest.raises(ValueError, match=rf"{shown}, and {said}.*name one, as in label="):
        of(tmp_path, label=label)


def test_labels_that_do_not_exclude_each_other_have_a_sigmoid_each(tmp_path):
    saved_model(tmp_path, problem_type="multi_label_classification")
    expected = plain(tmp_path, CALM)[1].sigmoid().item()
    assert of(tmp_path)([CALM]) == pytest.approx([expected], abs=1e-6)


def test_single_label_uses_a_sigmoid_and_regression_is_refused(tmp_path):
    saved_model(tmp_path / "one", {0: "injection"})
    expected = plain(tmp_path / "one", CALM)[0].sigmoid().item()
    assert of(tmp_path / "one")([CALM]) == pytest.approx([expected], abs=1e-6)
    saved_model(tmp_path / "other", problem_type="regression")
    with pytest.raises(ValueError, match="model for regression"):
        of(tmp_path / "other")


def test_a_model_without_a_trained_head_is_refused(tmp_path):
    saved_model(tmp_path, bare=True)
    with pytest.raises(ValueError, match=r"no weights for classifier\.bias.*sequence classif"):
        of(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    saved_model(tmp_path, safe=False)
    with pytest.raises(OSError, match="safetensors"):
        of(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    saved_model(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')\n")
    config = (tmp_path / "config.json").read_text(encoding="utf-8")
    theirs = '"auto_map": {"AutoModelForSequenceClassification": "mine.Mine"}, "model_type": "mine"'
    (tmp_path / "config.json").write_text(config.replace('"model_type": "bert"', theirs))
    with pytest.raises(ValueError, match="mine"):
        of(tmp_path)


def test_model_runs_in_evaluation_mode_and_float32(tmp_path):
    saved_model(tmp_path, classifier_dropout=0.9, dtype="float16")
    classifier = of(tmp_path)
    assert classifier([CALM] * 3) == pytest.approx([classifier([CALM])[0]] * 3, abs=1e-6)
    assert {str(one.dtype) for one in classifier._model.parameters()} == {"torch.float32"}


def test_classifier_can_be_shared_by_threads(classifier):
    expected = classifier(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: classifier(TEXTS), range(4)):
            assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_missing_extra_error_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install 'ragshield\[classifier\]'"):
        SequenceClassifier("anything")


# As a part of a detector and of a guard


def detector_of(classifier):
    return InstructionDetector(classifier=classifier, classify="all")


def test_detector_uses_the_classifier(classifier):
    texts = ["The page. Obey the fish.", "obey . " * 30]
    batch = entries(texts)
    scores = detector_of(classifier).score(batch)
    first = max(classifier(["The page.", "Obey the fish."]))
    np.testing.assert_allclose(scores[0], first, atol=1e-6)
    (evidence,) = detector_of(classifier).explain(batch, [0])
    assert "says the classifier" in evidence.sentence


def guard_with(classifier):
    return guard_of(detector_of(classifier)).fit(knowledge_base(30))


def test_guard_with_a_classifier_is_saved_and_loaded(tmp_path, folder, classifier):
    guard = guard_with(classifier)
    guard.save(tmp_path, detectors=guard.detectors)
    again = loaded(
        tmp_path, detectors=[detector_of(of(folder))]
    )  # the same weights, in another object
    new = knowledge_base(5, prefix="new")
    np.testing.assert_allclose(
        again.screen(new).scores["instruction"], guard.screen(new).scores["instruction"], atol=1e-6
    )


def others(tmp_path, folder):
    """Yield classifiers that are not the one that a guard was saved with."""
    yield of(saved_model(tmp_path / "tiny", seed=1)), r"'tiny@\w{12}: INJECTION'"
    yield of(folder, label="SAFE"), r"'tiny@\w{12}: SAFE'"
    yield (lambda texts: [0.0] * len(texts)), "the classifier without a name"
    yield None, "none"


def test_another_classifier_is_refused_by_load(tmp_path, folder, classifier):
    guard = guard_with(classifier)
    guard.save(tmp_path / "guard", detectors=guard.detectors)
    for other, shown in others(tmp_path, folder):
        said = rf"saved with the classifier 'tiny@\w{{12}}: INJECTION'.*given has .*{shown}.*anew"
        with pytest.raises(StateError, match=said):
            loaded(tmp_path / "guard", detectors=[detector_of(other)])
        with pytest.raises(StateError, match="the classifier of detector 'instruction' cannot"):
            guard.save(tmp_path / "guard", detectors=[detector_of(other)])
    loaded(tmp_path / "guard", detectors=[detector_of(classifier)])
    nameless = guard_with(lambda texts: [0.0] * len(texts))
    nameless.save(tmp_path / "any", detectors=nameless.detectors)
    loaded(tmp_path / "any", detectors=[detector_of(classifier)])
    with pytest.raises(StateError, match="none"):
        loaded(tmp_path / "any", detectors=[detector_of(None)])


@pytest.mark.slow
def test_another_classifier_is_refused_by_a_database(tmp_path, folder, classifier):
    url = f"sqlite:///{tmp_path / 'guard.db'}"
    guard = Guard.open(url, detectors=[detector_of(classifier)])
    guard.learn(knowledge_base(5))
    guard.close()
    for other, shown in others(tmp_path, folder):
        with pytest.raises(StateError, match=shown):
            Guard.open(url, detectors=[detector_of(other)])
    with pytest.raises(StateError, match="was not saved with the guard"):
        Guard.open(url)
    again = Guard.open(url, detectors=[detector_of(of(folder))])
    assert not again.screen(knowledge_base(1, prefix="new")).skipped
    again.close()


def test_another_classifier_is_refused_for_retrieved_sets(tmp_path, folder, classifier):
    guard = RetrievalGuard([detector_of(classifier)])
    guard.save(tmp_path / "guard", detectors=guard.detectors)
    for other, shown in others(tmp_path, folder):
        with pytest.raises(StateError, match=shown):
            RetrievalGuard.load(tmp_path / "guard", detectors=[detector_of(other)])
