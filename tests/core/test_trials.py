"""Evaluations of a guard on the user's corpus: planting, counting, reports and bounds."""

import datetime as dt
import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from small_trials import HOSTILE, TARGET, corpus, embed, small
from typer.testing import CliRunner

from ragshield_core import Batch
from ragshield_core.cli import app
from ragshield_core.model.errors import CalibrationError, InvalidBatchError, SourceError
from ragshield_core.tools.case_report import markdown
from ragshield_core.tools.evaluate import (
    Evaluation,
    Rate,
    evaluate,
    read_bounds,
    targets_of,
    worse_than,
)
from ragshield_core.tools.evaluate.attacks import (
    ATTACKS,
    BY_NAME,
    LABEL_FLIPS,
    Planted,
    Target,
    flip_labels,
    read_attacks,
    read_targets,
)
from ragshield_core.tools.evaluate.help_desk import help_desk
from ragshield_core.tools.evaluate.page import case_report, html_page, to_sarif
from ragshield_core.tools.evaluate.poison import PROBES, Poison
from ragshield_core.tools.evaluate.trial import halves

FRONT, QUIET = "PoisonedRAG, question in front", "instructions, blended"


@pytest.fixture(scope="module")
def found():
    return small()


# Attacks


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_recipe_is_reproducible_and_writes_its_number_of_texts(attack):
    planted = attack.plant(TARGET, seed=1)
    assert planted == attack.plant(TARGET, seed=1)
    assert len(planted.texts) == attack.size
    assert len(attack.plant(TARGET, seed=1, size=7).texts) == 7
    assert not re.search(r"\{[qkar]\}", "".join(planted.texts))
    assert (planted.question == TARGET.question) is attack.for_question
    assert len({attack.plant(TARGET, seed=seed).texts for seed in range(6)}) > 1


def test_the_question_stands_where_the_recipe_says():
    def texts(place):
        return BY_NAME[f"PoisonedRAG, {place}"].plant(TARGET, seed=0).texts

    assert all(text.startswith(f"{TARGET.question}.") for text in texts("question in front"))
    assert all(text.endswith(TARGET.question) for text in texts("question at the end"))
    for text in texts("question in the middle"):
        assert 0 < text.index(TARGET.question) < len(text) - len(TARGET.question)
    assert not any(TARGET.question in text for text in texts("without the question"))


def test_own_attack_texts_are_read_by_target(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [
        {"text": "one", "target": "a", "question": "q?"},
        {"text": "two", "target": "a", "question": "q?"},
        {"text": "three", "attack": "other"},
        {"text": "four", "attack": "other"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert read_attacks(path) == [
        Planted(attack="mine", question="q?", texts=("one", "two")),
        Planted(attack="other", question=None, texts=("three",)),
        Planted(attack="other", question=None, texts=("four",)),
    ]


@pytest.mark.parametrize(
    "line", ["not json", '{"text": 3}', "[1]", '{"text": "a", "question": 4}', "{}"]
)
def test_a_wrong_line_of_attacks_or_targets_is_named(line, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(f'{{"text": "a"}}\n{line}')
    with pytest.raises(SourceError, match="line 2") as error:
        read_attacks(path)
    assert "not json" not in str(error.value)
    path.write_text(f'{{"question": "q?", "wrong_answer": "w"}}\n{line}')
    with pytest.raises(SourceError, match="line 2"):
        read_targets(path, ["one"])
    path.write_text("")
    with pytest.raises(SourceError, match="is empty"):
        read_attacks(path)
    path.write_text('{"question": "q?", "wrong_answer": "w", "answer": "a"}\n')
    (target,) = read_targets(path, ["one"])
    assert target == Target(question="q?", wrong_answer="w", answer="a", carriers=("one",))
    path.write_text('{"question": "q?", "wrong_answer": ""}')
    with pytest.raises(SourceError, match="line 1"):
        read_targets(path, ["one"])


# Targets


def test_targets_are_made_of_words_of_the_corpus():
    entries = corpus()
    targets = targets_of(entries, 5, seed=3)
    assert targets == targets_of(entries, 5, seed=3) != targets_of(entries, 5, seed=4)
    assert len({target.question for target in targets}) == 5
    words = set(re.findall(r"\w+", " ".join(entries.texts).lower()))
    for target in targets:
        assert set(target.carriers) <= set(entries.texts)
        assert not words & set(target.wrong_answer.lower().split())
    with pytest.raises(SourceError, match="--queries"):
        targets_of(corpus(["short", "texts"]), 1)


# Trials


def test_halves_do_not_share_a_document_and_stay_as_a_corpus_grows():
    names = [f"doc{i // 4}" for i in range(200)]
    known, rest = halves(corpus([f"text {i}" for i in range(200)], names))
    assert len(known) == len(rest) == 100
    assert not {*known.lineages} & {*rest.lineages}
    more = [f"new{i // 4}" for i in range(40)]
    again, _ = halves(corpus([f"text {i}" for i in range(240)], [*names, *more]))
    assert len({*again.lineages} & {*known.lineages}) >= 20


@pytest.mark.slow
def test_evaluation_counts_every_text_once_per_regime(found):
    counts = {(r.attack, r.regime, r.size): r.held for r in found.recalls}
    assert counts["PoisonedRAG, question in front", "batch", 5].n == 15
    assert counts["PoisonedRAG, question in front", "stream", 5].n == 15
    assert not any(name == "hidden instructions" and way == "stream" for name, way, _ in counts)
    assert counts["hidden instructions", "alone", 1] == Rate(3, 3)
    assert counts["PoisonedRAG, question in front", "alone", 1] == Rate(3, 3)
    assert counts["clones", "batch", 5].hits == 15
    by = {(r.attack, r.regime): r.by for r in found.recalls}
    assert by["hidden instructions", "alone"]["hidden_text"] == 3
    assert found.n_known + found.n_clean == len(help_desk())
    assert found.false_positives["batch"].n == found.n_clean
    # Six streams of sixty: of a clean entry, the first one that it is in counts.
    assert 60 < found.false_positives["stream"].n <= found.n_clean
    assert found.false_positives["batch"].share < 0.25


@pytest.mark.slow
def test_guard_keeps_poison_from_reaching_its_question(found):
    reached = {each.attack: each for each in found.reached}
    front = reached["PoisonedRAG, question in front"]
    assert (front.before.share, front.after.share) == (1.0, 0.0)
    assert front.before.n == 3
    assert "hidden instructions" not in reached  # for no question
    assert found.lost.n == 200


@pytest.mark.slow
def test_detectors_that_judged_nothing_are_named(found):
    assert set(found.idle) >= {"label_centroid"}
    assert "clique" not in found.idle
    few = evaluate(
        corpus([f"text {i} of a few words" for i in range(40)]),
        embed,
        fpr=0.3,
        own=[Planted(attack="mine", question=None, texts=("one text",))],
        attacks=[],
        targets=[],
    )
    assert "it could judge none" in few.idle["clique"]
    assert "100 are needed" in few.idle["clique"]  # the detector's own reason
    assert "it could judge none" in html_page(few)


@pytest.mark.slow
def test_evaluation_is_reproducible_across_processes(found):
    again = small(workers=2)
    same = replace(again, fit_seconds=found.fit_seconds, milliseconds=found.milliseconds)
    assert same.to_json() == found.to_json()


@pytest.mark.slow
def test_own_texts_all_take_part_and_are_embedded_once():
    asked = []

    def counted(texts):
        asked.extend(texts)
        return embed(texts)

    own = [  # of one target more than of the other
        Planted(attack="mine", question="how long?", texts=("same text", "same text", "three")),
        Planted(attack="mine", question=None, texts=("four", "five")),
    ]
    found = evaluate(corpus(), counted, attacks=[], own=own, fpr=0.1, stream=40)
    assert {"how long?", "same text"} < set(asked)
    assert len(asked) == len(set(asked)) == 5 + PROBES  # some of the corpus, to know the model
    counts = {(r.regime, r.size): r.held.n for r in found.recalls}
    assert {r.attack for r in found.recalls} == {"mine"}
    assert counts == {
        ("alone", 1): 2,
        ("alone", 2): 4,
        ("alone", 3): 5,
        ("stream", 3): 5,
        ("batch", 3): 5,
    }


@pytest.mark.slow
def test_a_corpus_that_is_too_small_or_another_model_is_refused():
    def never(_):
        raise AssertionError

    # An impossible rate is refused before anything is embedded, with a rate that would work.
    with pytest.raises(CalibrationError, match=r"0\.001: 3000 or more would do.*--fpr 0\.02"):
        evaluate(corpus(), never, fpr=0.001, attacks=ATTACKS[:1], n_targets=1)
    with pytest.raises(CalibrationError, match=r"pass at least .*--fpr 0\.02"):
        evaluate(corpus(), embed, fpr=0.005, attacks=ATTACKS[:1], n_targets=1)
    with pytest.raises(InvalidBatchError, match="model that made"):
        evaluate(corpus(), lambda texts: np.ones((len(texts), 3)), fpr=0.1, n_targets=1)
    with pytest.raises(InvalidBatchError, match="other vectors than they came with"):
        evaluate(corpus(), lambda texts: embed([text[::-1] for text in texts]), n_targets=1)


def labelled(n=200):
    """Return entries of two labels, each in its own half of the room, and their model."""
    texts = [f"text number {i} about {('bills', 'parcels')[i % 2]} and more" for i in range(n)]
    vectors = np.random.default_rng(0).normal(scale=0.05, size=(n, 48))
    vectors[np.arange(n), np.arange(n) % 2] += 1.0
    of_text = dict(zip(texts, vectors, strict=True))
    labels = [("billing", "delivery")[i % 2] for i in range(n)]
    ids = [f"e{i}" for i in range(n)]
    batch = Batch.of(ids=ids, texts=texts, embeddings=vectors, labels=labels)
    return batch, lambda asked: np.array([of_text[text] for text in asked])


@pytest.mark.slow
def test_labels_are_flipped_where_there_are_some_and_the_guard_sees_it():
    entries, model = labelled()
    options = {"attacks": [], "targets": [], "n_targets": 8, "fpr": 0.1}
    found = evaluate(entries, model, **options)
    held = {r.regime: r.held for r in found.recalls if r.attack == LABEL_FLIPS}
    assert found.recipes == {LABEL_FLIPS: "clean entries under another label"}
    assert held == {"alone": Rate(8, 8), "batch": Rate(8, 8)}
    assert found.n_clean == 100 - 8  # flipped entries do not count as clean as well
    own = [Planted(attack="mine", question=None, texts=(entries.texts[0],))]
    none = evaluate(entries, model, own=own, label_flips=False, **options)
    assert {r.attack for r in none.recalls} == {"mine"}
    assert none.n_clean == 100


def test_a_flipped_label_is_another_one_and_entries_without_are_left_alone():
    texts, labels = ["a", "b", "", "d", "e"], ["x", "y", "x", None, "z"]
    ids, vectors = list("12345"), np.ones((5, 2))
    batch = Batch.of(ids=ids, texts=texts, embeddings=vectors, labels=labels)
    planted, rows = flip_labels(batch, 9, seed=1)
    assert sorted(rows) == [0, 1, 4]
    for each, row in zip(planted, rows, strict=True):
        assert each.texts == (texts[row],)
        assert each.labels[0] in {"x", "y", "z"} - {labels[row]}
    assert planted == flip_labels(batch, 9, seed=1)[0]
    assert flip_labels(batch.take([0, 2, 3]), 9)[0] == []  # one label only


def test_evaluation_that_cannot_be_measured_is_refused():
    texts = [f"text {i} of one document" for i in range(40)]
    with pytest.raises(SourceError, match="too few documents"):
        evaluate(corpus(texts, ["one"] * 40), embed, fpr=0.3)
    with pytest.raises(ValueError, match="nothing to plant"):
        evaluate(corpus(), embed, fpr=0.1, attacks=[])
    for name in ("clones", "label flips"):  # figures would be mixed
        own = [Planted(attack=name, question=None, texts=("one text",))]
        with pytest.raises(SourceError, match="another name"):
            evaluate(corpus(), embed, own=own, fpr=0.1)


# Streams


def poison_of(sizes):
    """Return poison of one attack, with so many texts for each target."""
    texts = iter(f"text {number}" for number in range(1_000))
    planted = [
        Planted(attack="mine", question=None, texts=tuple(next(texts) for _ in range(size)))
        for size in sizes
    ]
    return Poison(planted, corpus(), embed, {})


def test_streams_have_one_percent_poison_and_separate_targets():
    poison = poison_of([5] * 7)
    found = poison.streams(n_clean=2_000, length=1_000, n_streams=3, seed=0)
    assert [each.targets for each in found] == [(0, 1), (2, 3), (4, 5)]
    for each in found:
        clean, planted = each.rows[each.rows < 2_000], each.rows[each.rows >= 2_000] - 2_000
        assert len(set(clean)) == 1_000
        assert sorted(planted) == sorted(np.concatenate([poison.rows_of(n) for n in each.targets]))
    assert set(found[0].rows) != set(found[1].rows)
    again = poison.streams(2_000, 1_000, 3, seed=0)
    assert all(np.array_equal(a.rows, b.rows) for a, b in zip(found, again, strict=True))
    many = poison.streams(2_000, length=100, n_streams=99, seed=0)
    assert [each.targets for each in many] == [(n,) for n in range(7)]  # one at least
    assert poison_of([1, 1]).streams(100, 50, 4, seed=0) == []  # attacks of one text


def test_planted_texts_are_no_revisions_of_entries_of_the_corpus():
    ids = [f"planted-{row}" for row in range(len(corpus()))]
    named = Batch.of(ids=ids, texts=corpus().texts, embeddings=corpus().embeddings)
    planted = [Planted(attack="mine", question=None, texts=("one text", "another one"))]
    assert not {*Poison(planted, named, embed, {}).batch.ids} & {*ids}


@pytest.mark.slow
def test_smaller_groups_are_the_first_texts_of_larger_ones_and_embedded_once():
    asked = []

    def counted(texts):
        asked.extend(texts)
        return embed(texts)

    attack = BY_NAME["opinions"]
    found = evaluate(
        corpus(), counted, attacks=[attack], n_targets=2, fpr=0.1, stream=40, sizes=(2, 3, 8)
    )
    assert len(asked) == len(set(asked))
    alone = {r.size: r.held.n for r in found.recalls if r.regime == "alone"}
    assert alone == {2: 4, 3: 6, 5: 10, 8: 16}
    assert {r.size for r in found.recalls if r.regime != "alone"} == {5}  # as published
    poison = poison_of([8])
    assert poison.rows_of(0, 3).tolist() == poison.rows_of(0, 8)[:3].tolist()


# Reports


def test_a_report_is_read_as_it_was_written_with_shares_beside_counts(found, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(found.to_json())
    assert Evaluation.read(path) == replace(found, settings=dict(found.settings))
    values = json.loads(path.read_text())
    front = values["recalls"][0]["held"]
    assert (front["hits"], front["n"], front["share"]) == (3, 3, 1.0)
    assert front["low"] == pytest.approx(0.2924, abs=1e-3)  # 0.025 ** (1 / 3)
    other = found.to_json().replace('"format": 2', '"format": 1')
    for damage in ("{}", "not json", '{"format": 2}', other):
        path.write_text(damage)
        with pytest.raises(SourceError, match="no report"):
            Evaluation.read(path)


@pytest.mark.slow
def test_report_begins_with_the_verdict_and_next_steps(found):
    page = html_page(found, ["clones: 0.2"], "wiki.jsonl")
    order = [
        "planted into",
        "wiki.jsonl, ",
        f"{dt.datetime.now(dt.UTC):%Y-%m-}",
        "What to do",
        "Poison that is held",
    ]
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    told = markdown(case_report(found, ["clones: 0.2"], "wiki.jsonl"))
    assert told.startswith("# How the guard does on this corpus")
    assert "| clean entries | 1 |" in told
    assert "## Questions that poison reaches" in told
    assert "Worse than it may be: clones: 0.2" in told


class Page(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.cells, self._cell = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._cell = tag == "td"

    def handle_endtag(self, tag):
        self._cell &= tag != "td"

    def handle_data(self, data):
        if self._cell:
            self.cells.append(data)


@pytest.mark.slow
def test_the_page_shows_the_figures_of_the_json_and_runs_nothing(found):
    page = html_page(found, ["clones, batch: <worse>"])
    read = Page(page)
    assert {tag for tag, _ in read.tags}.isdisjoint({"script", "img", "iframe", "link", "a"})
    assert not any(name.startswith("on") for _, attrs in read.tags for name in attrs)
    assert "default-src 'none'" in page
    assert "&lt;worse&gt;" in page
    assert page.count("<svg") == 1
    cells, values = "\n".join(read.cells), json.loads(found.to_json())

    def shown(rate):
        return f"{rate['share']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]"

    held = {(r["attack"], r["regime"], r["size"]): shown(r["held"]) for r in values["recalls"]}
    front, hidden = "PoisonedRAG, question in front", "hidden instructions"
    ways = [("alone", 1), ("stream", 5), ("batch", 5)]
    false = values["false_positives"]
    lines = [
        "\n".join([front, "5", *(held[front, *way] for way in ways)]),
        "\n".join([hidden, "1", held[hidden, "alone", 1], "–", held[hidden, "batch", 1]]),
        "\n".join(["clean entries", "1", *(shown(false[way]) for way, _ in ways)]),
        *(
            f"{each['attack']}\n{shown(each['before'])}\n{shown(each['after'])}"
            for each in values["reached"]
        ),
    ]
    for name, rates in found.groups_alone.items():
        assert {size: rate.n for size, rate in rates.items()} == {1: 3, 2: 6, 3: 9, 5: 15}
        lines.append("\n".join([name, *(f"{rate.share:.2f}" for rate in rates.values())]))
    assert len(lines) > 6
    assert [line for line in lines if line not in cells] == []
    sentences = (
        f"Of {values['lost']['n']} questions about clean entries, {values['lost']['hits']} miss",
        f"Fitting took {values['fit_seconds']:.1f} s, screening {values['milliseconds']:.2f} ms",
        f"{values['n_known']:,} entries known, {values['n_clean']:,} clean ones came",
        *(f"{name} {n}" for name, n in values["false_by"].items()),
        *(
            f"<td>{html.escape(name)}</td><td>{html.escape(what)}</td>"
            for name, what in values["recipes"].items()
        ),
    )
    assert all(sentence in page for sentence in sentences)


def test_hostile_texts_are_escaped_on_the_page(found):
    recalls = (replace(found.recalls[0], attack=HOSTILE),)
    recipes, idle = {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE}
    now = replace(found, recalls=recalls, recipes=recipes, idle=idle, false_by={HOSTILE: 1})
    page, told = html_page(now, [HOSTILE]), markdown(case_report(now, [HOSTILE]))
    assert "<script" not in page
    assert "<script" not in told.replace("\\<", "")
    for text in (page, told, to_sarif(now, HOSTILE)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert {tag for tag, _ in Page(page).tags}.isdisjoint({"script"})


# Whether the page scrolls sideways in a frame as wide as a phone, and how its tables behave.
MEASURED = """<!DOCTYPE html><body><script>
for (const scheme of ["light", "dark"]) {
  const frame = document.createElement("iframe");
  Object.assign(frame, {width: 390, height: 844, srcdoc: PAGE});
  frame.style.colorScheme = scheme;
  frame.onload = () => {
    const inside = frame.contentDocument, root = inside.documentElement;
    const wide = [...inside.querySelectorAll(".wide")];
    const outside = [...inside.querySelectorAll("body *")].filter((each) =>
      !each.closest(".wide") && each.getBoundingClientRect().right > root.clientWidth + 1);
    document.body.dataset[scheme] = JSON.stringify({
      page: root.scrollWidth, frame: root.clientWidth, outside: outside.length,
      tables: wide.filter((each) => each.scrollWidth > each.clientWidth).length,
      paper: frame.contentWindow.getComputedStyle(inside.body).backgroundColor,
    });
  };
  document.body.append(frame);
}
</script></body>"""


@pytest.mark.slow
def test_page_fits_a_phone_in_light_and_dark_mode(found, tmp_path):
    browser = shutil.which("chromium")
    if browser is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no chromium; .ci/run installs it")
        pytest.skip("no chromium; apt-get install chromium")
    long = f"nowhere2break{HOSTILE}" * 30
    page = html_page(replace(found, idle={"clique": long}, recipes={long: long}), [long])
    path = tmp_path / "page.html"
    script = json.dumps(page).replace("<", "\\u003c")
    path.write_text(MEASURED.replace("PAGE", script), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path}/profile", "--dump-dom", path.as_uri()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, encoding="utf-8"
    )
    assert "CONSOLE" not in done.stderr
    (body,) = (attrs for tag, attrs in Page(done.stdout).tags if tag == "body" and attrs)
    light, dark = (json.loads(body[f"data-{scheme}"]) for scheme in ("light", "dark"))
    for measured in (light, dark):
        assert measured["page"] <= measured["frame"] <= 390
        assert measured["outside"] == 0
        assert measured["tables"] > 0  # which are moved within themselves
    assert (light["paper"], dark["paper"]) == ("rgb(255, 255, 255)", "rgb(20, 25, 31)")


# Bounds, baselines and SARIF


def changed(found, name, held):
    """Return an evaluation with another recall for one attack."""
    (main,) = (r for r in found.main_recalls if r.attack == name)
    recalls = tuple(replace(r, held=held) if r is main else r for r in found.recalls)
    return replace(found, recalls=recalls)


def test_main_recall_is_of_the_stream_or_single_text(found):
    assert {(r.attack, r.regime, r.size) for r in found.main_recalls} == {
        (FRONT, "stream", 5),
        ("clones", "stream", 5),
        ("hidden instructions", "alone", 1),
        (QUIET, "alone", 1),
    }


def test_most_specific_bound_of_an_attack_applies(found):
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


def test_upper_bounds_limit_clean_reached_and_lost_rates(found):
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
def test_invalid_bound_is_refused_with_the_valid_forms(text):
    with pytest.raises(SourceError, match="expected one of: recall=SHARE; fpr=SHARE;"):
        read_bounds([text])


@pytest.mark.slow
def test_baseline_comparison_names_figures_that_got_worse(found):
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


def test_missed_and_wrongly_held_entries_match_the_rates(found):
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


@pytest.mark.slow
def test_missed_text_keeps_its_mark_under_another_id(found):
    fewer = small(attacks=[BY_NAME["instructions"].at("blended")], n_targets=2)
    again = {each.mark: each.entry_id for each in fewer.missed}
    before = {each.mark: each.entry_id for each in found.missed}
    assert again
    assert all(before[mark] != entry_id for mark, entry_id in again.items())


# The command


@pytest.fixture
def own_model(monkeypatch):
    from ragshield_core.tools.audit.embedding_cache import CachedEmbedder  # noqa: PLC0415

    asked = []

    def counted(texts):
        asked.extend(texts)
        return embed(texts)

    monkeypatch.setattr(
        "ragshield_core.tools.evaluate.command.cached_embedder",
        lambda name, folder: CachedEmbedder(counted, name, folder),
    )
    return asked


def run(*arguments):
    options = ["--fpr", "0.1", "--targets", "2", "--stream", "40", "--workers", "1"]
    chosen = ["--attack", "PoisonedRAG, question in front", "--attack", "hidden instructions"]
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments), *options, *chosen])


@pytest.mark.slow
def test_a_folder_of_markdown_is_evaluated_again_and_gated(own_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    rows = help_desk()
    for number in range(0, len(rows), 2):
        page = "\n\n".join(f"# Page {number}\n\n{row['text']}" for row in rows[number : number + 2])
        (folder / ("deep" if number % 4 else "") / f"p{number}.md").write_text(page)
    done = run(folder, "--output", "report.json", "--output", "report.html")
    assert done.exit_code == 0, done.output
    assert "question in front" in done.output
    report = Evaluation.read(tmp_path / "report.json")
    assert report.n_known + report.n_clean == len(rows) // 2
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    n_embedded = len(own_model)
    again = run(folder, "--baseline", "report.json")
    assert again.exit_code == 0, again.output
    assert len(own_model) == n_embedded  # all vectors were kept
    low = run(folder, "--bound", "recall.hidden-instructions=1", "--bound", "lost=1")
    assert low.exit_code == 0, low.output
    recall = next(r for r in report.main_recalls if "front" in r.attack).held
    worse = run(folder, "--bound", "recall=1", "--bound", "reached=0")
    reached = any(each.after.hits for each in report.reached)
    assert worse.exit_code == int(recall.hits < recall.n or reached)
    assert ("worse:" in worse.output) is bool(worse.exit_code)


@pytest.mark.slow
@pytest.mark.usefixtures("own_model")
def test_harder_steps_and_sizes_are_planted_and_sarif_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": row["id"], "text": row["text"]}) for row in help_desk()]
    (tmp_path / "kb.jsonl").write_text("\n".join(lines))
    options = ["--difficulty", "published", "--difficulty", "blended"]
    options += ["--sizes", "2,4", "--output", "out.json", "--output", "out.sarif"]
    done = run("kb.jsonl", *options)
    assert done.exit_code == 0, done.output
    found = Evaluation.read(tmp_path / "out.json")
    front = "PoisonedRAG, question in front"
    assert set(found.recipes) == {
        *(front, f"{front}, blended"),
        *("hidden instructions", "hidden instructions, reworded"),  # it has no harder step
    }
    assert set(found.groups_alone[f"{front}, blended"]) == {2, 4, 5}
    results = json.loads((tmp_path / "out.sarif").read_text())["runs"][0]["results"]
    assert len(results) == len(found.missed) + len(found.wrongly_held) > 0
    refused = run("kb.jsonl", "--baseline", "out.json", "--top-k", "6")
    assert refused.exit_code == 2
    assert "measured with top_k" in refused.output


def test_a_folder_that_is_too_small_is_refused_before_anything_is_embedded(
    own_model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for n, files in enumerate((1, 11)):
        folder = tmp_path / f"docs{n}"
        folder.mkdir()
        for number in range(files):
            (folder / f"p{number}.md").write_text(f"one of some texts, number {number}")
        done = run(folder.name, "--seed", "3")  # 5 of 11 are known, 9 are needed at 0.1
        assert done.exit_code == 2
        assert "too few for a false-positive rate of 0.1: 30 or more" in " ".join(
            done.output.split()
        )
    assert own_model == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["missing"], "does not exist"),
        (["kb.jsonl", "--baseline", "kb.jsonl"], "no report"),
        (["kb.jsonl", "--attacks", "none.jsonl"], "cannot be read"),
        (["kb.jsonl", "--output", "no/such/folder.json"], "is not a folder"),
        (["kb.jsonl", "--attack", "magic"], "'magic' is not known"),
        (["kb.jsonl", "--difficulty", "magic"], "'magic' is not known, expected one of: published"),
        (["kb.jsonl", "--sizes", "1,0"], "numbers from 1 on"),
        (["kb.jsonl", "--bound", "precision=.5"], "recall.ATTACK=SHARE"),
        (["kb.jsonl", "--bound", "recall.clones=.5"], "recall.clones is not measured"),
        (["kb.jsonl", "--output", "no/such/out.sarif"], "is not a folder"),
        (["kb.jsonl", "--attack", "label flips"], "fewer than two labels"),
    ],
)
@pytest.mark.usefixtures("own_model")
def test_errors_exit_with_two_and_name_the_cause(arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        json.dumps({"id": i, "text": f"one of some texts, number {i} " * 5}) for i in range(20)
    ]
    (tmp_path / "kb.jsonl").write_text("\n".join(lines))
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert named in " ".join(done.output.split())
