"""What makes an evaluation fail, and what it says in SARIF."""

import json
from dataclasses import replace

import pytest
from small_trials import HOSTILE, corpus, small

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.evaluate import Rate, read_bounds, targets_of, worse_than
from ragshield_core.tools.evaluate.attacks import BY_NAME
from ragshield_core.tools.evaluate.page import to_sarif
from ragshield_core.tools.evaluate.trial import halves

FRONT, QUIET = "PoisonedRAG, question in front", "instructions, blended"


@pytest.fixture(scope="module")
def found():
    chosen = [BY_NAME[name] for name in (FRONT, "hidden instructions", "clones")]
    return small(attacks=[*chosen, BY_NAME["instructions"].at("blended")])


def changed(found, name, held):
    """Return an evaluation in which the recall of an attack that counts is another one."""
    (main,) = (r for r in found.main_recalls if r.attack == name)
    recalls = tuple(replace(r, held=held) if r is main else r for r in found.recalls)
    return replace(found, recalls=recalls)


@pytest.mark.slow
def test_what_counts_of_an_attack_is_the_stream_or_the_single_text(found):
    assert {(r.attack, r.regime, r.size) for r in found.main_recalls} == {
        (FRONT, "stream", 5),
        ("clones", "stream", 5),
        ("hidden instructions", "alone", 1),
        (QUIET, "alone", 1),
    }


def test_bounds_are_held_by_attack_and_the_narrowest_counts(found):
    low = changed(changed(found, FRONT, Rate(9, 10)), "clones", Rate(5, 10))
    low = changed(changed(low, "hidden instructions", Rate(8, 10)), QUIET, Rate(10, 10))

    def worse(*texts):
        lines = worse_than(low, bounds=read_bounds(texts))
        return [line.partition(",")[0] for line in lines]

    assert worse("recall=.5") == worse() == []
    assert worse("recall=.85") == ["hidden instructions", "clones"]
    assert worse("recall=.95", "recall.clones=.5") == ["PoisonedRAG", "hidden instructions"]
    assert worse("recall.clones=.5", "recall.Hidden Instructions=.81") == ["hidden instructions"]
    assert worse("recall.poisonedrag=.95") == ["PoisonedRAG"]
    assert worse("recall.poisonedrag=.95", "recall.poisonedrag-question=.9") == []
    with pytest.raises(SourceError, match=r"recall\.poisoned is not .*poisonedrag-question"):
        worse("recall.poisoned=.1")


def test_upper_bounds_are_of_clean_entries_reached_questions_and_lost_ones(found):
    rates = {"alone": Rate(1, 10), "stream": Rate(2, 10), "batch": Rate(3, 10)}
    clones = next(each for each in found.reached if each.attack == "clones")
    reached = (replace(clones, after=Rate(1, 10)),)
    now = replace(found, false_positives=rates, reached=reached, lost=Rate(4, 10))

    def worse(*texts):
        return worse_than(now, bounds=read_bounds(texts))

    assert worse("fpr=.3", "reached=.1", "lost=.4") == []
    assert [line.partition(":")[0] for line in worse("fpr=.15")] == [
        "clean entries held, stream",
        "clean entries held, batch",
    ]
    (line,) = worse("reached=.05")
    assert line.startswith("questions that clones reaches: 0.100")
    assert worse("reached=.05", "reached.clones=.1") == []
    (line,) = worse("lost=.3")
    assert line.startswith("questions about clean entries that miss one: 0.400")


@pytest.mark.parametrize(
    "text",
    [
        *("recall=2", "recall=nan", "recall", "recall.=.5", "", ".8", "precision=.5"),
        *("fpr.clones=.5", "time=3", "\x1b[31m=1"),
    ],
)
def test_what_is_no_bound_is_refused_with_what_would_be_one(text):
    with pytest.raises(SourceError, match="expected one of: recall=SHARE; fpr=SHARE;"):
        read_bounds([text])


def test_a_baseline_names_what_has_left_its_interval_for_the_worse(found):
    assert worse_than(found, found) == []
    now = changed(replace(found, recalls=found.recalls[1:]), "clones", Rate(0, 50))
    reached = tuple(replace(each, after=Rate(50, 50)) for each in found.reached)
    now = replace(now, reached=reached, lost=Rate(200, 200))
    now = replace(now, false_positives={"batch": Rate(200, 207)})
    lines = worse_than(now, found)
    assert any(line.startswith(f"{FRONT}, alone, 1 of a target: not measured") for line in lines)
    assert any(line.startswith("clones, stream, 5 of a target: 0.000") for line in lines)
    assert any(line.startswith("clean entries held, batch: 0.966") for line in lines)
    assert any(line.startswith(f"questions that {FRONT} reaches: 1.000") for line in lines)
    assert any(line.startswith("questions about clean entries that miss one") for line in lines)
    assert worse_than(found, now) == []  # better is not worse


@pytest.mark.parametrize(("name", "other"), [("fpr", 0.01), ("top_k", 6), ("embedder", "other")])
def test_a_baseline_of_other_settings_is_refused(name, other, found):
    now = replace(found, settings={**found.settings, "embedder": "mine"})
    before = replace(found, settings={**now.settings, name: other})
    with pytest.raises(SourceError, match=f"measured with {name}"):
        worse_than(now, before)
    assert worse_than(now, replace(found, settings={**now.settings, "seed": 9})) == []


def test_sarif_has_missed_poison_as_errors_and_held_clean_entries_as_warnings(found):
    missed = (*found.missed, replace(found.missed[0], entry_id=HOSTILE, attack=HOSTILE))
    content = to_sarif(replace(found, missed=missed), "my corpus/kb.jsonl")
    assert "\\u001b" not in content
    assert "\x1b" not in content
    document = json.loads(content)
    assert document["version"] == "2.1.0"
    (trial,) = document["runs"]
    rules = trial["tool"]["driver"]["rules"]
    levels = {"missed-poison": "error", "clean-entry-held": "warning"}
    for result in trial["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == levels[result["ruleId"]]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert place == "my%20corpus/kb.jsonl"
        assert result["partialFingerprints"]
    errors = [r for r in trial["results"] if r["level"] == "error"]
    assert [r["properties"]["attack"] for r in errors[:-1]] == [m.attack for m in found.missed]
    clean = [r["locations"][0]["logicalLocations"][0] for r in trial["results"][len(errors) :]]
    assert [place["fullyQualifiedName"] for place in clean] == list(found.wrongly_held)
    assert trial["invocations"][0]["executionSuccessful"] is True
    notes = trial["invocations"][0]["toolExecutionNotifications"]
    assert len(notes) == len(found.idle) > 0


def test_missed_and_wrongly_held_are_the_complement_of_what_the_rates_count(found):
    for r in found.main_recalls:
        missed = [each for each in found.missed if each.attack == r.attack]
        assert len(missed) == r.held.n - r.held.hits
        assert {each.regime for each in missed} <= {r.regime}
    assert {each.attack for each in found.missed} == {QUIET}
    assert len(found.wrongly_held) == found.false_positives["batch"].hits > 0
    assert len({each.entry_id for each in found.missed}) == len(found.missed)
    said = to_sarif(found, "kb.jsonl") + found.to_json()
    answers = [target.wrong_answer for target in targets_of(halves(corpus())[0], 3)]
    assert not any(text in said for text in (*answers, *corpus().texts))


def test_a_text_that_is_missed_again_is_the_same_finding_whatever_its_id(found):
    fewer = small(attacks=[BY_NAME["instructions"].at("blended")], n_targets=2)
    again = {each.mark: each.entry_id for each in fewer.missed}
    before = {each.mark: each.entry_id for each in found.missed}
    assert again
    assert all(before[mark] != entry_id for mark, entry_id in again.items())
