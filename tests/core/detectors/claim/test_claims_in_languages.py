"""Claims about other sources in sixteen languages beside English, and innocent passages."""

import json
from pathlib import Path

import pytest
from corpora import read_rows
from support import entries

from ragshield_core.detectors import MetaClaimDetector
from ragshield_core.detectors.claim.roles import passage_of, roles

# The first six of each language were written before any of them was tried.
CLAIMS = json.loads(Path(__file__).with_name("claims_in_languages.json").read_text("utf-8"))
KNOWN = [
    f"The mill of {name} was built in {year} by the old river. It is now a museum, and its records "
    "say that it was never moved."
    for year in range(1700, 1900)
    for name in ("Brill", "Lorn")
]


@pytest.fixture(scope="module")
def detector():
    return MetaClaimDetector().fit(entries(KNOWN))


@pytest.mark.parametrize("language", CLAIMS)
def test_claims_are_found(language, detector):
    scores = detector.score(entries(CLAIMS[language]))
    assert (scores > detector.default_threshold).mean() >= 0.8


def test_every_language_has_words_for_every_role():
    assert roles().languages == {"en", *CLAIMS}
    data = json.loads(Path("ragshield_core/detectors/claim/roles.json").read_text("utf-8"))
    for role in data.values():
        assert roles().languages == {*role["strong"], *role["weak"]}


@pytest.mark.usefixtures("corpora_at_hand")
@pytest.mark.parametrize("language", ["ar", "de", "es", "hi", "ru", "tr", "zh"])
@pytest.mark.slow
def test_ordinary_passages_are_not_claims(language):
    rows = [row["text"] for row in read_rows("xquad_passages") if row["language"] == language]
    known = [row["text"] for row in read_rows("wiki_passages")[:1_000]]
    detector = MetaClaimDetector().fit(entries(known))
    scores = detector.score(entries(rows))
    assert (scores > detector.default_threshold).mean() <= 0.005
    assert not detector.unjudged(entries(rows))


def test_text_in_a_language_without_a_lexicon_is_not_judged(detector):
    thai = "พิพิธภัณฑ์เปิดทุกวันยกเว้นวันจันทร์ และเก็บรักษาเรือเก่าไว้หลายลำ"
    greek = "Το μουσείο είναι ανοιχτό κάθε μέρα εκτός από τη Δευτέρα."
    hungarian = (
        "A múzeum minden nap nyitva van, kivéve a hétfőt, és sok régi hajó is van benne, "
        "de nem lehet tudni, hogy meddig lesz ez így."
    )
    texts = [thai, greek, hungarian, f"{greek} {CLAIMS['ru'][0]}", "The museum is open.", ""]
    found = detector.unjudged(entries(texts))
    assert sorted(found) == [0, 1, 2]
    assert "Thai" in found[0]
    assert "hu" in found[2].split()[3]


def test_letters_without_spaces_are_quoted_and_counted_as_half_a_word(detector):
    text = CLAIMS["zh"][4]
    (evidence,) = detector.explain(entries([text]), [0])
    assert "其他来源" in evidence.sentence
    start, end = evidence.span
    assert "过时" in text[start:end]
    passage = passage_of(text)
    assert passage.place(passage.n_words) <= passage.n_words // 2 + 1


def test_letters_without_an_unmarked_form_do_not_split_words():
    assert passage_of("błędne").n_words == 1
    assert passage_of("błędne").played == passage_of("bledne").played != []


def test_foreign_words_without_a_role_are_ignored():
    assert passage_of("The mill of Брилл").n_words == 3
    assert passage_of("The mill 磨坊 is old").letters == []
