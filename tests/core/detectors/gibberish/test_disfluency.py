"""Gibberish in a made-up language: word salad among sentences, and innocent look-alikes."""

import math
from collections import Counter

import numpy as np
import pytest
from effort import assert_linear
from made_up_language import (
    ADJECTIVES,
    FOREIGN,
    NOUNS,
    SYLLABLES,
    VERBS,
    article,
    articles,
    poisoned,
    salad,
)
from support import entries, guard_of, join, slowly

from ragshield_core.detectors.gibberish import detector as gibberish
from ragshield_core.detectors.gibberish.detector import DisfluencyDetector
from ragshield_core.detectors.gibberish.fluency import (
    PIECE,
    Fluency,
    tokenized,
)
from ragshield_core.testing import DetectorCase

CASE = DetectorCase(
    make=DisfluencyDetector,
    known=articles(700, 1),
    clean=articles(20, 2, "c"),
    poison=poisoned(8, 3),
)


@pytest.fixture(scope="module")
def fitted():
    return CASE.fitted()


@pytest.mark.slow
def test_one_window_of_salad_at_the_end_of_a_long_text_counts_in_full(fitted):
    rng = np.random.default_rng(5)
    clean, piece = article(rng, 200), salad(rng, 14)
    long, alone = fitted.score(entries([f"{clean} {piece}", piece]))
    assert long > fitted.default_threshold > fitted.score(entries([clean]))[0]
    assert long >= alone


def test_evidence_quotes_the_salad_and_nothing_else(fitted):
    rng = np.random.default_rng(6)
    text, piece = article(rng, 6), salad(rng, 12)
    batch = entries([f"{text} {piece} {text}"])
    (evidence,) = fitted.explain(batch, [0])
    start, end = evidence.span
    inside = range(len(text) + 1, len(text) + 1 + len(piece))
    shared = len(set(range(start, end)) & set(inside))
    assert shared / len(set(range(start, end)) | set(inside)) > 0.8
    assert batch.texts[0][start : start + 40] in evidence.sentence
    assert f"{fitted.score(batch)[0]:.2f}" in evidence.sentence
    assert f"{fitted.default_threshold:.2f}" in evidence.sentence


def test_a_title_of_salad_beside_the_text_counts_as_in_front_of_it(fitted):
    rng = np.random.default_rng(6)
    text, piece = article(rng, 6), salad(rng, 14)
    beside = f"file_path: /srv/{piece.split()[0]}/a.md\ntitle: {piece}\ndate: 2026-11-26 10:22"
    batch = entries([text, text], contexts=[beside, None])
    titled, bare = fitted.score(batch)
    assert titled > fitted.default_threshold > bare
    assert titled == fitted.score(entries([f"{piece}\n{text}"]))[0]
    (evidence,) = fitted.explain(batch, [0])
    assert piece.split()[2] in evidence.sentence
    assert evidence.span is None  # not in the text


def test_evidence_says_where_salad_stands_in_a_text_that_has_a_title(fitted):
    rng = np.random.default_rng(6)
    text, piece, title = article(rng, 6), salad(rng, 14), article(rng, 1)
    bare, full = (
        entries([f"{text} {piece}"]),
        entries([f"{text} {piece}"], contexts=[f"title: {title}"]),
    )
    (without,), (with_title,) = (fitted.explain(batch, [0]) for batch in (bare, full))
    assert with_title.span == without.span


def test_paths_dates_and_keywords_in_contexts_are_not_judged(fitted):
    texts = [article(np.random.default_rng(6), 6)]
    beside = "file_path: /mnt/xq7/zzv.md\nauthor: Qzx Vrrk\ncreation_date: 2026-11-26 10:22 +0000"
    beside += "\nkeywords: xqz, vrrk mot, plumb, zzyz, qert, wobb"
    titled = entries(texts, contexts=[beside])
    np.testing.assert_array_equal(fitted.score(titled), fitted.score(entries(texts)))


def test_hostile_text_is_escaped_and_cut_in_evidence(fitted):
    rng = np.random.default_rng(6)
    piece = "\x1b[31m\u202e".join(salad(rng, 20).split())
    (evidence,) = fitted.explain(entries([piece]), [0])
    assert evidence.sentence.isprintable()
    assert len(evidence.sentence) < 400


def test_word_order_alone_reveals_shuffled_sentences(fitted):
    rng = np.random.default_rng(7)
    texts = [article(rng) for _ in range(30)]
    shuffled = [" ".join(rng.permutation(text.split())) for text in texts]
    before, after = fitted.score(entries(texts)), fitted.score(entries(shuffled))
    assert (after > before).mean() >= 0.9


def test_new_words_in_familiar_syntax_are_no_gibberish(fitted):
    unknown = tuple(
        [*known[:3], *(word[::-1] for word in known[3:])] for known in (NOUNS, VERBS, ADJECTIVES)
    )
    rng = np.random.default_rng(8)
    new_topic = entries([article(rng, lexicons=unknown) for _ in range(30)])
    assert (fitted.score(new_topic) <= fitted.default_threshold).all()


def test_only_languages_of_the_knowledge_base_are_judged(fitted):
    words = tuple([word[::-1] for word in words] for words in (NOUNS, VERBS, ADJECTIVES))
    rng = np.random.default_rng(9)
    foreign = [article(rng, 6, frames=FOREIGN, lexicons=words) for _ in range(60)]
    reasons = fitted.unjudged(entries(foreign))
    assert len(reasons) == len(foreign)
    both = DisfluencyDetector().fit(join(CASE.known, entries(foreign[:50], "f")))
    new = entries(foreign[50:], "g")
    assert both.unjudged(new) == {}
    assert (both.score(new) <= fitted.default_threshold).all()


def test_unknown_words_without_recurrence_are_not_a_language(fitted):
    rng = np.random.default_rng(10)
    letters = np.array(list("qwxzvfjkrtp"))
    keys = " ".join("".join(rng.choice(letters, rng.integers(3, 9))) for _ in range(80))
    assert fitted.unjudged(entries([keys])) == {}
    assert fitted.score(entries([keys]))[0] > fitted.default_threshold
    few = " ".join(keys.split()[:8])
    assert "too short" in fitted.unjudged(entries([few]))[0]


def pages(n, seed, prefix, names):
    """Return prose followed by lists of new names, `names` of them on average."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(n):
        n_names = min(12, int(rng.exponential(names)))
        listed = ["".join(rng.choice(SYLLABLES.split(), 3)).title() for _ in range(n_names)]
        texts.append(" ".join([article(rng, 2), *listed]))
    return entries(texts, prefix)


@pytest.mark.slow
def test_gibberish_is_held_but_lists_of_names_are_not():
    guard = guard_of(DisfluencyDetector()).fit(pages(2_000, 1, "kb", 2)).calibrate()
    lists, usual, gibberish = pages(1_000, 3, "new", 5), pages(1_000, 4, "u", 2), poisoned(200, 5)
    assert len(guard.screen(lists).quarantined) < 20
    for n in (1, 40, 200):  # however many there are
        report = guard.screen(join(gibberish.take(range(n)), usual))
        assert np.mean(~report.admitted[:n]) > 0.95  # a few are too short to judge
    assert len(report.quarantined) - 200 < 20


def test_unjudged_entries_count_as_clean_in_the_sample():
    known = join(CASE.known, entries(["qwx zvf jkr", "漢字漢字漢字漢字"], "odd"))
    scores = DisfluencyDetector().fit(known).held_out_scores(known, 0)
    assert not np.isnan(scores).any()
    np.testing.assert_array_equal(scores[-2:], 0.0)


def test_a_small_knowledge_base_judges_nothing():
    detector = DisfluencyDetector().fit(articles(20, 1))
    reasons = detector.unjudged(CASE.poison)
    assert set(reasons) == set(range(len(CASE.poison)))
    assert "25000 are needed" in reasons[0]
    assert np.isnan(detector.held_out_scores(articles(20, 1), 0)).all()


def test_forgetting_is_exact_and_ignores_unlearned_entries(fitted):
    detector, more = CASE.fitted(), articles(30, 12, "more")
    detector.learn(more)
    assert (detector.score(CASE.clean) != fitted.score(CASE.clean)).any()
    detector.forget(more)
    np.testing.assert_array_equal(detector.score(CASE.clean), fitted.score(CASE.clean))
    alone = entries([CASE.poison.texts[0]], embeddings=None)
    detector.forget(alone)
    languages, before = detector.state()[0]["languages"], fitted.state()[0]["languages"]
    assert languages["n_words"] == before["n_words"]
    known = CASE.known.take([0])
    detector.forget(entries([CASE.poison.texts[0], known.texts[0]], embeddings=None))
    detector.learn(known)  # the one that was known was forgotten, the other ignored
    np.testing.assert_array_equal(detector.score(CASE.clean), fitted.score(CASE.clean))
    np.testing.assert_array_equal(detector.score(CASE.poison), fitted.score(CASE.poison))


def test_chunks_of_a_document_are_held_out_together(monkeypatch):
    monkeypatch.setattr(gibberish, "MIN_TOKENS", 1_000)
    rng = np.random.default_rng(13)
    names = [f"{word.capitalize()}xyz" for word in NOUNS[:40]]
    texts = [article(rng).replace(" the ", f" {name} ") for name in names for _ in range(10)]
    lineages = [name for name in names for _ in range(10)]
    together = entries(texts, lineages=lineages)
    detector = DisfluencyDetector().fit(together)
    apart = detector.held_out_scores(entries(texts), 0).mean()
    assert detector.held_out_scores(together, 0).mean() > apart + 0.05
    collection = entries(texts, lineages=["all"] * len(texts))
    assert detector.held_out_scores(collection, 0).mean() == pytest.approx(apart)


def test_the_rule_is_taken_from_held_out_entries(fitted):
    held_out = fitted.held_out_scores(CASE.known, 0)
    assert (held_out > fitted.default_threshold).mean() <= 0.01
    assert fitted.traits.floor <= fitted.default_threshold


def test_usual_values_of_a_copy_are_taken_over():
    copy, detector = DisfluencyDetector(), DisfluencyDetector()
    for one in (copy, detector):
        one.learn(CASE.known)
    copy.refresh(CASE.known)
    copy.default_threshold += 1.5
    languages = detector.state()[0]["languages"]["usual"]
    detector.take_usual(*detector.usual(copy))
    assert detector.default_threshold == copy.default_threshold
    assert detector.state()[0] == copy.state()[0]
    assert detector.state()[0]["languages"]["usual"] != languages


def test_texts_without_words_score_nothing(fitted):
    np.testing.assert_array_equal(fitted.score(entries(["", " \n\t", "\x00"])), 0.0)
    assert fitted.explain(entries([""]), [0])[0].span is None


@pytest.mark.parametrize("unit", ["aB", *slowly("a", "{[", "'", "漢")])
@pytest.mark.slow
def test_a_megabyte_of_anything_is_judged_in_linear_time(fitted, unit):
    assert np.isfinite(fitted.score(entries([unit * 2**20]))).all()
    assert_linear(lambda text: fitted.score(entries([text])), unit, 2**20)


def test_salad_beyond_the_first_piece_of_a_huge_text_is_found_where_it_is(fitted):
    rng = np.random.default_rng(14)
    sentences = article(rng, 200)
    text = (sentences + " ") * (2 * PIECE // len(sentences)) + salad(rng, 24)
    (evidence,) = fitted.explain(entries(["short", text]), [1])
    assert fitted.score(entries(["short", text]))[1] > fitted.default_threshold
    assert evidence.span[0] > len(text) - 400
    assert text[slice(*evidence.span)] in text[-400:]


def read(text):
    """Return the tokens of a text as strings."""
    return [text[a:b] for _, t in tokenized([text]) for a, b in zip(t.start, t.end, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop, it's 1999!", ["Don't", "stop", ",", "it's", "1999", "!"]),
        (
            "similarlyNow write]( Me**ONE",
            ["similarly", "Now", "write", "]", "(", "Me", "**", "ONE"],
        ),
        ("naïve Straße 你好 x_1", ["naïve", "Straße", "你", "好", "x", "_", "1"]),
        ("😀😀 a\u200db", ["😀", "😀", "a\u200db"]),
    ],
)
def test_tokens(text, expected):
    assert read(text) == expected


def test_surprise_is_rarity_less_association():
    texts = ["red fish", "red fish", "red cat", "blue fish"] * 50
    fluency = Fluency()
    fluency.learn(texts)
    words = Counter(" ".join(texts).split())
    pairs = Counter(texts)
    for text in ("red fish", "blue cat"):
        one, other = text.split()
        ((_, tokens),) = tokenized([text])
        first, second = fluency.surprise(tokens)
        n = fluency.n_tokens
        assert first == pytest.approx(0.5 * math.log2((n + 1) / (words[one] + 1)))
        expected = words[one] * words[other] / n
        # Words of up to three letters and these of four are each a kind of their own.
        kind = (pairs[text] + 1) / (expected + 1)
        word = (pairs[text] + kind) / (expected + 1)
        association = max(0.5 * math.log2(kind * word), -4.0)
        rarity = 0.5 * math.log2((n + 1) / (words[other] + 1))
        assert second == pytest.approx(rarity - association)


@pytest.mark.parametrize("word", ["mill", "a" * 64, "ab" * 33, "abc" * 200])
def test_word_hash_does_not_depend_on_position_or_case(word):
    other = word[:-1] + "z"
    texts = [f"{word} x", f"{'prose and ' * 5_000}{word} x", f"y {word.upper()}", f"y {other}"]
    hashes = [tokens.word for _, tokens in map(next, map(tokenized, ([text] for text in texts)))]
    first, far, shouted, different = (
        found[at] for found, at in zip(hashes, (0, -2, 1, 1), strict=True)
    )
    assert first == far == shouted != different
