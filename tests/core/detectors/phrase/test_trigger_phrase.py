import itertools
import zlib
from dataclasses import replace

import numpy as np
import pytest
from effort import assert_linear
from phrases import disguise_phrase, plant_phrase
from support import entries, guard_of, join, passages, prose, slowly, snapshot

from ragshield_core.detectors.phrase import counts as phrase_counts
from ragshield_core.detectors.phrase import detector as trigger_phrase
from ragshield_core.detectors.phrase import memory as phrase_memory
from ragshield_core.detectors.phrase.counts import (
    EMPTY,
    MAX_GRAMS,
    SKETCH,
    Background,
    Grams,
    order_of,
)
from ragshield_core.detectors.phrase.detector import TriggerPhraseDetector
from ragshield_core.detectors.phrase.judging import SAME_TEXT, copies_in
from ragshield_core.detectors.phrase.memory import Memory
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.model.findings import Decision, Finding, Verdict
from ragshield_core.text.normalized import readable, words
from ragshield_core.tools.evaluate.attacks import vary_phrase

# Mostly words of the vocabulary, in an order that random prose does not have.
PHRASES = ("word7 heron", "word3 word200 word41", "word9 word9 word80 word12 word33 word5")
OTHER = [f"other{i}" for i in range(40)]  # words of another source
N = 3000
THRESHOLD = TriggerPhraseDetector.default_threshold


def planted(batch, rows, phrase, position="random", seed=0):
    return replace(batch, texts=tuple(plant_phrase(batch, rows, phrase, position, seed)))


@pytest.fixture(scope="module")
def known():
    return passages(N, 1)


@pytest.fixture(scope="module")
def learned(known):
    return TriggerPhraseDetector().fit(known).state()


@pytest.fixture
def detector(learned):
    detector = TriggerPhraseDetector()
    detector.restore(*learned)
    return detector


def found(detector, batch):
    return set(np.flatnonzero(detector.score(batch) > THRESHOLD).tolist())


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize("position", ["ends", "random"])
@pytest.mark.slow
def test_a_phrase_of_usual_words_is_found_at_any_position_and_only_its_entries(
    detector, phrase, position
):
    clean = passages(200, 2, "new")
    rows = set(range(0, 200, 20))
    assert found(detector, clean) == set()
    assert found(detector, planted(clean, sorted(rows), phrase, position)) == rows


@pytest.mark.slow
def test_single_unknown_word_is_found(detector):
    assert found(detector, planted(passages(200, 2), range(0, 200, 20), "cf")) == set(
        range(0, 200, 20)
    )


def test_several_phrases_are_told_apart(detector):
    batch = passages(200, 2)
    for start, phrase in enumerate(PHRASES):
        batch = planted(batch, range(start, 200, 25), phrase)
    rows = [row for start in range(3) for row in range(start, 200, 25)]
    assert found(detector, batch) == set(rows)
    sentences = [evidence.sentence for evidence in detector.explain(batch, [0, 1, 2])]
    for sentence, phrase in zip(sentences, PHRASES, strict=True):
        assert phrase in sentence


@pytest.mark.parametrize("disguise", [disguise_phrase, vary_phrase])
def test_disguises_and_changed_words_do_not_hide_it(detector, disguise):
    rows = range(0, 200, 10)
    batch = passages(200, 2)
    poisoned = planted(batch, rows, disguise("word9 word88 word80 word12 word33", len(rows)))
    hits = found(detector, poisoned)
    assert hits <= set(rows)
    assert len(hits) >= (20 if disguise is disguise_phrase else 18)


def test_phrase_of_the_knowledge_base_is_not_a_trigger():
    footer = "for word1 word2 see the terms of use"
    clean = passages(600, 1)
    detector = TriggerPhraseDetector().fit(planted(clean, range(0, 600, 4), footer, "ends"))
    batch = passages(200, 2, "new")
    assert found(detector, planted(batch, range(0, 200, 5), footer, "ends")) == set()
    assert len(found(detector, planted(batch, range(0, 200, 5), "other words of use"))) == 40


def test_an_innocent_entry_is_not_condemned_for_a_common_part_of_the_phrase(detector):
    batch = planted(passages(200, 2), range(0, 200, 10), "word3 blue heron word41")
    assert 7 not in found(detector, planted(batch, [7], "word3 blue"))
    assert 7 in found(detector, planted(batch, [7], "word3 blue heron word41"))


def stream(detector, n_batches, phrase, seed=10):
    """Let batches of 100 arrive with one poisoned entry each; return poisoned and found ids."""
    bad, caught = set(), set()
    for number in range(n_batches):
        batch = planted(passages(100, seed + number, f"s{number}"), [number], phrase)
        bad.add(batch.ids[number])
        hits = detector.score(batch) > THRESHOLD
        earlier, scores = detector.retroactive(batch, hits)
        caught |= {batch.ids[row] for row in np.flatnonzero(hits)}
        caught |= {i for i, score in zip(earlier, scores, strict=True) if score > THRESHOLD}
        detector.remember_held(batch.take(hits))
        detector.learn(batch.take(~hits))
    return bad, caught


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.slow
def test_poisoned_entries_one_per_batch_are_all_found(detector, phrase):
    bad, caught = stream(detector, 12, phrase)
    assert caught == bad


def one_after_the_other(detector, batch, size):
    """Let a batch arrive in parts; return its held entries."""
    held = set()
    for start in range(0, len(batch), size):
        part = batch.take(range(start, start + size))
        hits = detector.score(part) > THRESHOLD
        held |= set(np.flatnonzero(hits) + start)
        detector.remember_held(part.take(hits))
        detector.learn(part.take(~hits))
    return held


def test_of_held_entries_only_the_planted_phrase_counts(known):
    detector = TriggerPhraseDetector().fit(planted(known, range(0, N, 300), "osprey"))
    phrase = "word3 blue heron word41"
    flood = planted(planted(passages(60, 2), range(60), phrase), range(60), "osprey", seed=1)
    held = found(detector, flood)
    assert len(held) > 50
    detector.remember_held(flood.take(sorted(held)))
    new = passages(40, 3, "new")
    assert found(detector, planted(new, [0], "osprey")) == set()
    assert found(detector, planted(new, [7], phrase)) == {7}


@pytest.mark.parametrize("size", [*slowly(1), 10, 100])
def test_vocabulary_of_a_new_source_is_not_a_trigger(detector, size):
    pages = passages(200, 2, "page")
    rng = np.random.default_rng(4)
    texts = tuple(f"{prose(rng, 8)} " + " ".join(rng.choice(OTHER, 22)) for _ in range(200))
    assert one_after_the_other(detector, replace(pages, texts=texts), size) == set()


def test_phrase_within_one_topic_is_not_a_trigger(detector, known):
    batch = passages(200, 2, "new")
    alike = np.argsort(-(batch.embeddings @ known.embeddings[0]))[:20]
    assert found(detector, planted(batch, sorted(alike.tolist()), "word3 blue heron")) == set()


@pytest.mark.parametrize("size", [*slowly(1), 20])
def test_a_new_footer_on_known_documents_is_a_template(detector, known, size):
    pages = planted(known.take(range(0, 300, 3)), range(100), "see our blue heron page", "ends")
    held = set()
    for start in range(0, 100, size):
        part = pages.take(range(start, start + size))
        detector.overlook(part.ids)
        held |= {part.ids[row] for row in found(detector, part)}
        detector.overlook(())
        detector.forget(known.take([known.ids.index(i) for i in part.ids]))
        detector.learn(part)
    assert held == set()


@pytest.mark.parametrize("size", [*slowly(1), 10, 100])
@pytest.mark.slow
def test_phrases_of_a_campaign_are_found_however_they_come(detector, size):
    batch = passages(300, 2, "new")
    for number, phrase in enumerate(PHRASES):
        batch = planted(batch, range(number, 300, 24), phrase)
    held = one_after_the_other(detector, batch, size)
    bad = {row for number in range(3) for row in range(number, 300, 24)}
    assert len(held - bad) <= 3  # one in a hundred batches by chance
    assert {row for row in bad if row >= 150} <= held


@pytest.mark.slow
def test_old_entries_become_background(known, monkeypatch):
    monkeypatch.setattr(phrase_memory, "MAX_RECENT", 300)
    hasty = TriggerPhraseDetector().fit(known)
    assert not stream(hasty, 12, PHRASES[0])[1]


def test_evidence_quotes_the_phrase_escaped_with_its_counts(detector):
    batch = planted(passages(100, 2), range(8), "Blue\u202e \x1b[31mHeron")
    evidence = detector.explain(batch, [0])[0]
    assert "blue" in evidence.sentence
    assert "heron" in evidence.sentence
    assert "8 of the 100 newest entries say" in evidence.sentence
    assert f"of the {N:,} older ones about 0" in evidence.sentence
    assert not {"\u202e", "\x1b"} & set(evidence.sentence)
    assert set(evidence.related_ids) == set(batch.ids[1:8])
    assert "no phrase" in detector.explain(batch, [50])[0].sentence


def test_a_phrase_around_a_changing_word_is_quoted_with_it(detector):
    batch = planted(
        passages(100, 2), range(0, 24, 2), [f"word3 heron{i} word41" for i in range(12)]
    )
    assert "'word3 heron4 word41'" in detector.explain(batch, [8])[0].sentence


def test_retroactive_findings_skip_trusted_and_held_entries(detector):
    early, late = passages(100, 2, "early"), passages(100, 3, "late")
    early = planted(early, range(0, 9, 3), "word3 blue heron")  # of three documents
    late = planted(late, range(72, 99, 3), "word3 blue heron")
    detector.learn(early.take(range(1, 100)))
    detector.remember_held(early.take([0]))
    nobody, hits = np.zeros(100, dtype=np.bool_), detector.score(late) > THRESHOLD
    assert detector.retroactive(late, nobody)[0] == []  # one held entry may repeat their words
    ids, scores = detector.retroactive(late, hits)
    assert {i for i, s in zip(ids, scores, strict=True) if s > THRESHOLD} == {
        early.ids[3],
        early.ids[6],
    }
    (evidence,) = detector.explain_retroactive(late, [early.ids[3]])
    assert "12 of the 200 newest entries say 'word3 blue heron'" in evidence.sentence
    detector.trust([early.ids[3]])
    assert early.ids[3] not in detector.retroactive(late, hits)[0]


def test_trusted_template_explains_later_entries(detector):
    template = planted(passages(60, 2, "new"), range(60), "a new template of ours", "ends")
    assert len(found(detector, template)) == 60
    detector.learn(template)
    detector.trust(template.ids)
    more = planted(
        passages(60, 3, "more").take(range(0, 60, 3)), range(20), "a new template of ours", "ends"
    )
    assert found(detector, more) == set()
    assert len(found(detector, planted(more, range(20), "a new heron of ours"))) == 20


def test_copies_and_entries_of_one_lineage_count_once(detector):
    rng = np.random.default_rng(3)
    copies = entries([*([prose(rng) + " blue heron"] * 20), *(prose(rng) for _ in range(80))])
    assert found(detector, copies) == set()
    texts = [prose(rng) + " running head of the chapter" for _ in range(20)]
    one = entries(texts, "one", lineages=["book"] * 20)
    assert found(detector, one) == set()
    assert len(found(detector, replace(one, lineages=tuple(one.ids)))) == 20


@pytest.mark.parametrize("n_claimed", [1, 2])
def test_claimed_lineages_do_not_explain_a_phrase(detector, n_claimed):
    new = planted(passages(1_000, 2, "new"), range(0, 1_000, 5), "blue heron at noon")
    lineages = list(new.lineages)
    for row in range(0, 1_000, 5):
        lineages[row] = f"claimed {row % n_claimed}"
    hits = found(detector, replace(new, lineages=tuple(lineages)))
    assert hits == set(range(0, 1_000, 5))
    again = TriggerPhraseDetector()
    again.restore(*detector.state())
    assert found(again, replace(new, lineages=tuple(lineages))) == hits


@pytest.mark.slow
def test_long_documents_are_usual_where_there_are_many():
    rng = np.random.default_rng(3)
    long = [
        replace(passages(60, 100 + n, f"long{n}"), lineages=(f"book {n}",) * 60) for n in range(40)
    ]
    books = TriggerPhraseDetector().fit(join(*long))
    heads = [prose(rng) + " running head of the chapter" for _ in range(60)]
    head = entries(heads, "one", lineages=["book"] * 60)
    assert found(books, head) == set()
    short = join(*(replace(batch, lineages=batch.ids) for batch in long))
    strict = TriggerPhraseDetector().fit(short)
    texts = tuple(f"{prose(rng)} running head of the chapter" for _ in range(300))
    lines = replace(passages(300, 7, "x"), texts=texts, lineages=("book",) * 300)
    assert len(found(strict, lines)) == 300
    assert found(books, lines.take(range(120))) == set()


def test_a_batch_that_is_screened_again_does_not_count_twice(detector):
    batch = planted(passages(100, 2), range(0, 30, 3), "word3 blue heron")
    first = detector.score(batch)
    assert first.max() > THRESHOLD
    detector.learn(batch)
    again = detector.score(batch.take(range(100)))
    assert again.max() <= first.max() + 1e-9
    assert detector.retroactive(batch, first > THRESHOLD)[0] == []


def test_a_small_knowledge_base_does_not_judge(known):
    with pytest.raises(NotFittedError):
        TriggerPhraseDetector().score(known)
    detector = TriggerPhraseDetector().fit(known.take(range(99)))
    batch = known.take(range(100, 105))
    assert "99 entries, 100 are needed" in detector.unjudged(batch)[0]
    with pytest.raises(InvalidBatchError, match="99 entries"):
        detector.score(batch)
    detector.learn(known.take([99]))
    assert detector.unjudged(batch) == {}


@pytest.mark.slow
def test_held_out_scores_are_those_of_arriving_entries(detector, known):
    before = snapshot(detector)
    scores = detector.held_out_scores(known, 0)
    assert snapshot(detector) == before
    assert scores.shape == (N,)
    assert np.isfinite(scores).all()
    assert (scores > THRESHOLD).mean() < 0.01
    # A phrase in one known entry of ten is background when they arrive; in few, it is not.
    often = planted(known, range(0, N, 10), "word3 blue heron")
    assert TriggerPhraseDetector().fit(often).held_out_scores(often, 0).max() < THRESHOLD


@pytest.mark.slow
def test_a_calibrated_guard_recalls_earlier_entries(known):
    guard = guard_of(TriggerPhraseDetector()).fit(known).calibrate(fpr=0.01)
    condemned, bad = set(), set()
    for number in range(10):
        batch = planted(passages(100, 50 + number, f"b{number}"), [3, 60], "word3 blue heron")
        bad |= {batch.ids[3], batch.ids[60]}
        report = guard.hold(guard.screen(batch))
        condemned |= {d.entry_id for d in (*report.quarantined, *report.retroactive)}
        guard.admit(report)
    assert condemned == bad


@pytest.mark.slow
@pytest.mark.parametrize("word", ["a", "a b ", "\u200b", "é\u0301 ", "a" * 50 + " ", "1.", "漢"])
def test_a_megabyte_of_anything_costs_no_more_than_its_length(detector, word):
    def work(text):
        batch = join(passages(5, 2), replace(passages(1, 3, "long"), texts=(text,)))
        assert np.isfinite(detector.score(batch)).all()

    assert_linear(work, word, 1_000_000)


def test_grams_are_distinct_within_a_text_and_bounded():
    grams = Grams.of(["one two one two one two", "", "two"])
    assert grams.n_rows == 3
    # one, two; one-two, two-one, one-one, two-two; 2 triples; 2 quadruples
    assert grams.sizes().tolist() == [10, 0, 1]
    assert set(grams.hashes[grams.rows == 2].tolist()) < set(grams.hashes[grams.rows == 0].tolist())
    long = Grams.of([" ".join(map(str, range(20_000))), "0 1 2"])
    assert long.sizes().tolist() == [MAX_GRAMS, 7]


def test_background_counts_are_taken_back_and_stop_at_the_top():
    background = Background()
    grams = Grams.of(["blue heron"])
    background.add(grams.hashes, 1, 1)
    background.add(grams.hashes, 1, 1)
    assert background.of(grams.hashes).tolist() == [2.0, 2.0, 2.0]
    background.add(grams.hashes, 1, -1)
    assert background.of(grams.hashes).tolist() == [1.0, 1.0, 1.0]
    background.add(np.repeat(grams.hashes[:1], 70_000), 70_000, 1)
    background.add(grams.hashes, 1, -1)
    assert np.isinf(background.of(grams.hashes[:1])[0])


def test_recent_entries_are_found_by_their_n_grams(monkeypatch):
    texts = ["blue heron", "grey goose", "a blue goose"]
    batch = entries(texts)
    memory = Memory(batch.dim, 1 << 16)
    memory.arrive(batch, held=False)
    vectors = memory.recent["vector"]
    np.testing.assert_array_equal(vectors, batch.embeddings.astype(np.float16))
    wanted = np.unique(Grams.of(["blue"]).hashes)
    assert memory.holders(wanted)[0].tolist() == [0, 2]
    assert memory.at_most(wanted).tolist() == [2]
    memory.forget_recent(batch.ids[:1], held=False)
    assert memory.holders(wanted)[0].tolist() == [1]
    monkeypatch.setattr(phrase_memory, "MAX_RECENT_GRAMS", len(memory.recent["hashes"][1]) + 1)
    # Held ones have a limit of their own.
    memory.arrive(entries(["one"], "held"), held=True)
    memory.arrive(entries(["one"], "new"), held=False)
    assert memory.recent["id"].tolist() == [batch.ids[2], "held0", "new0"]


@pytest.mark.parametrize(
    "texts",
    [
        ["It's snake_case, STRASSE: stra\u00dfe 3.5 \u4f60\u597d \u201cMill\u201d\u2014mill"],
        ["Москва город 你好世界ABCété \ud800 café", "", "\u2026", "one", "word " * 50],
        [],
    ],
)
def test_n_grams_of_a_batch_are_those_of_its_words_text_by_text(texts):
    grams = Grams.of(texts)
    for row, text in enumerate(texts):
        listed = words(readable(text).text)
        plain = Grams.of([" ".join(word if word.isascii() else f" {word} " for word in listed)])
        assert grams.hashes[grams.rows == row].tolist() == plain.hashes.tolist()
        singles = {zlib.crc32(word.encode()) for word in listed}
        assert np.count_nonzero((grams.rows == row) & (order_of(grams.hashes) == 0)) == len(singles)


@pytest.mark.parametrize("repeated", [1, 30])
@pytest.mark.slow
def test_long_text_keeps_its_lowest_grams_in_any_batch(repeated, monkeypatch):
    rng = np.random.default_rng(7)
    long = " ".join(f"w{number}" for number in rng.integers(0, 9_000, 8_000)) + " again"
    text = " ".join([long] * repeated)
    alone, beside = Grams.of([text]), Grams.of(["one two three", text, "four"])
    monkeypatch.setattr(phrase_counts, "MAX_GRAMS", 1 << 30)
    everything = Grams.of([text]).hashes
    mixed = everything * np.uint32(0x85EBCA6B)
    lowest = np.sort(everything[np.argsort(mixed)[:MAX_GRAMS]])
    assert len(everything) > 2 * MAX_GRAMS
    assert alone.hashes.tolist() == beside.hashes[beside.rows == 1].tolist() == lowest.tolist()


@pytest.fixture(scope="module")
def adopted():
    """Return a store of prose whose last sixty entries contain a phrase."""
    return planted(passages(2_400, 1), range(2_340, 2_400), "amber kettle northern")


@pytest.mark.slow
def test_a_phrase_that_came_at_the_end_of_a_store_is_doubted_and_remembered(adopted, caplog):
    detector = TriggerPhraseDetector().fit(adopted)
    out = detector.outliers(adopted)
    assert out[-60:].mean() > 0.8
    assert not out[:-60].any()
    assert f"{out.sum()} of 2400 entries hold a phrase" in caplog.text
    again = TriggerPhraseDetector()
    again.restore(*detector.state())
    part = adopted.take(range(1_000, 2_400))  # fewer than are looked at
    np.testing.assert_array_equal(again.outliers(part), out[1_000:])
    assert again.n_doubted() == out.sum()
    again.trust(adopted.ids[2_340:2_360])
    again.forget(adopted.take(range(2_360, 2_400)))
    assert again.n_doubted() == 0
    assert not again.outliers(adopted).any()  # looked for once
    assert again.fit(passages(2_400, 2)).n_doubted() == 0


@pytest.mark.slow
def test_order_of_a_large_store_is_measured_by_sample(
    monkeypatch,
):
    monkeypatch.setattr(trigger_phrase, "MAX_HELD_OUT", 1_000)
    compared, compare = [], trigger_phrase.came_together
    monkeypatch.setattr(
        trigger_phrase,
        "came_together",
        lambda *orders: (compared.append(orders), compare(*orders))[1],
    )
    store = passages(2_400, 1)
    detector = TriggerPhraseDetector().fit(store)
    scored = ~np.isnan(detector.held_out_scores(store, 7))
    assert scored.sum() == 1_000
    np.testing.assert_array_equal(~np.isnan(detector.held_out_scores(store, 8)), scored)
    store = planted(store, np.flatnonzero(scored)[-60:], "amber kettle northern")
    detector.fit(store)
    named = detector.outliers(store)
    assert named[np.flatnonzero(scored)[-60:]].mean() > 0.8
    assert not named[~scored].any()
    assert named.sum() <= 60
    ((ordered, shuffled, _),) = compared
    assert (len(ordered), len(shuffled)) == (1_000, 1_000)
    again = TriggerPhraseDetector().fit(store)
    assert np.corrcoef(again.held_out_scores(store, 0)[scored], ordered)[0, 1] > 0.95


@pytest.mark.slow
def test_doubted_entries_stay_doubted_while_held_and_on_return(adopted):
    detector, again = TriggerPhraseDetector().fit(adopted), TriggerPhraseDetector()
    named = adopted.take(detector.outliers(adopted))
    nothing = np.zeros(len(named))
    assert detector.held_outliers(named, nothing).all()
    detector.forget(named)  # held entries are forgotten first
    detector.remember_held(named)
    again.restore(*detector.state())
    for each in (detector, again):
        assert each.n_doubted() == 0
        assert not each.outliers(adopted).any()
        assert each.held_outliers(named, nothing).all()
        assert not each.held_outliers(adopted.take(range(100)), np.zeros(100)).any()
    detector.trust(named.ids[:5])  # released
    detector.forget_held(named.ids)
    detector.learn(named.take(range(5, 10)))  # the same text, written again
    detector.learn(replace(named.take(range(10, 15)), texts=passages(5, 9).texts))
    assert detector.n_doubted() == 5
    doubted = (np.arange(len(named)) >= 5) & ~np.isin(np.arange(len(named)), range(10, 15))
    np.testing.assert_array_equal(detector.held_outliers(named, nothing), doubted)


@pytest.mark.slow
def test_recalled_phrase_does_not_become_usual(adopted):
    guard = guard_of(TriggerPhraseDetector()).adopt(adopted)
    before = guard.state.calibrator.calibration.n_doubtful
    gone = adopted.take(range(2_340, 2_400))
    why = {"score": 9.0, "threshold": 2.0, "p_value": None, "evidence": ""}
    held = [
        Decision(
            entry_id=i,
            verdict=Verdict.QUARANTINE,
            findings=(Finding(detector="trigger_phrase", entry_id=i, **why),),
        )
        for i in gone.ids
    ]
    guard.recall(gone, held, lambda _: None)
    guard.calibration.refresh()
    assert len(guard.state.calibrator.sample.outside) == 60
    assert guard.state.calibrator.calibration.n_doubtful == before > 50


@pytest.mark.slow
def test_scattered_entries_and_small_stores_are_not_doubted(adopted):
    order = np.random.default_rng(0).permutation(len(adopted))
    for store in (adopted.take(order), adopted.take(range(401, 2_400)), passages(2_400, 3)):
        detector = TriggerPhraseDetector().fit(store)
        assert not detector.outliers(store).any()


@pytest.mark.slow
def test_phrase_in_an_adopted_store_hides_no_other_phrase(adopted):
    def thresholds(store):
        guard = guard_of(TriggerPhraseDetector()).adopt(store)
        return guard, guard.calibration.thresholds["trigger_phrase"]

    poisoned, threshold = thresholds(adopted)
    assert threshold <= thresholds(passages(2_400, 1))[1] + 1.0
    new = planted(passages(500, 4, "new"), range(0, 500, 25), "copper lantern eastward")
    report = poisoned.screen(new)
    assert {d.entry_id for d in report.quarantined} == {new.ids[row] for row in range(0, 500, 25)}


def copies_one_by_one(sketches):
    """Return numbers of texts like :func:`copies_in`, from the definition."""
    numbers = list(range(len(sketches)))
    for a, b in itertools.combinations(range(len(sketches)), 2):
        mine, theirs = ({*each[each != EMPTY].tolist()} for each in sketches[[a, b]])
        at_place = int(np.count_nonzero((sketches[a] == sketches[b]) & (sketches[a] != EMPTY)))
        if mine & theirs and at_place >= SAME_TEXT * max(len(mine), len(theirs)):
            numbers = [numbers[a] if number == numbers[b] else number for number in numbers]
    return numbers


def test_copies_have_one_number_and_other_texts_another():
    rng = np.random.default_rng(1)
    sketches = rng.integers(0, 2**32 - 2, size=(60, SKETCH), dtype=np.uint32)
    sketches[30:45] = sketches[rng.integers(0, 30, size=15)]
    sketches[45:50] = sketches[:5]
    sketches[45:50, 3] = EMPTY  # nearly a copy
    sketches[50:52, 1:] = EMPTY  # both have a single phrase, not the same
    sketches[52:54] = EMPTY  # texts without a phrase are no copies
    found = copies_in(sketches).tolist()
    expected = copies_one_by_one(sketches)
    pairs = list(itertools.combinations(range(60), 2))
    assert [found[a] == found[b] for a, b in pairs] == [
        expected[a] == expected[b] for a, b in pairs
    ]
    assert len(set(found)) == 40
    assert copies_in(sketches[:1]).tolist() == [0]
    assert copies_in(sketches[:0]).tolist() == []


def test_a_copy_of_the_memory_changes_by_itself(detector):
    memory, new = detector._fitted(), passages(30, 9, "new")
    hashes = Grams.of(new.texts).hashes
    before = memory.at_most(hashes)
    other = memory.copy()
    other.arrive(new, held=False)
    assert memory.at_most(hashes).tolist() == before.tolist()
    assert (other.at_most(hashes) > before).all()
