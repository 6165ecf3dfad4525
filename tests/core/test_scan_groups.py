"""Groups of a knowledge base, judged by their contrast with their surroundings."""

import numpy as np
import pytest

from ragshield_core import Batch
from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.errors import NotFittedError
from ragshield_core.text.copies import word_hashes
from ragshield_core.tools.audit import groups, scan
from ragshield_core.tools.audit.groups import FEWEST_ENTRIES, with_groups
from ragshield_core.tools.audit.judging import DetectorScores

DIM = 48
WORDS = [f"word{i}" for i in range(400)]


def near(centre, n, rng, spread=0.6):
    """Return vectors around one, with a cosine of about 1 / (1 + spread ** 2) to each other."""
    noise = rng.normal(size=(n, DIM)) * spread
    return centre + noise * np.linalg.norm(centre) / np.sqrt(DIM)


def texts_of(n, rng):
    return [" ".join(rng.choice(WORDS, 30, replace=False)) for _ in range(n)]


def knowledge(*parts, n=FEWEST_ENTRIES, pages=4, seed=0):
    """Return pages of documents of several entries, then entries of parts.

    A part has a name, vectors, texts and document ids.
    """
    rng = np.random.default_rng(seed)
    ids, texts = [f"page-{i}" for i in range(n)], texts_of(n, rng)
    vectors, lineages = [rng.normal(size=(n, DIM))], [f"doc-{i // pages}" for i in range(n)]
    for name, own, said, documents in parts:
        ids += [f"{name}-{i}" for i in range(len(own))]
        vectors.append(own)
        texts += said
        lineages += documents
    together = np.concatenate(vectors).astype(np.float32)
    return Batch.of(ids=ids, texts=texts, embeddings=together, lineages=lineages)


def group(name="group", n=4, *, seed=1, documents=None, texts=None, spread=0.6, centre=None):
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=DIM) if centre is None else centre
    own = texts_of(n, rng) if texts is None else texts
    return name, near(middle, n, rng, spread), own, documents or [f"{name}-{i}" for i in range(n)]


def judged(batch, trusted=None):
    detector = CliqueDetector()
    before = DetectorScores(
        detector=detector,
        scores=detector.audit(batch),
        explain=lambda rows: detector.explain_audit(batch, rows.tolist()),
    )
    after = with_groups(before, batch, None if trusted is None else np.array(trusted))
    return before, after


def of(judge, batch, name):
    rows = [row for row, i in enumerate(batch.ids) if i.startswith(f"{name}-")]
    return judge.scores[rows]


def found_in(batch):
    words = [word_hashes(text) for text in batch.texts]
    return groups.groups_in(batch, words, np.arange(len(batch)), None)


def contrast(batch, name):
    rows = [row for row, i in enumerate(batch.ids) if i.startswith(f"{name}-")]
    return found_in(batch).contrast[rows]


def test_members_of_a_group_score_higher_than_all_pages_and_name_each_other():
    batch = knowledge(group())
    _, judge = judged(batch)
    assert of(judge, batch, "group").min() > of(judge, batch, "page").max()
    (evidence,) = judge.explain(np.array([FEWEST_ENTRIES]))
    assert "one of 4 entries from different documents" in evidence.sentence
    assert sorted(evidence.related_ids) == ["group-1", "group-2", "group-3"]


def test_a_group_that_shares_its_words_is_a_template():
    rng = np.random.default_rng(3)
    shared = " ".join(rng.choice(WORDS, 25, replace=False))
    texts = [f"{shared} {' '.join(rng.choice(WORDS, 5))}" for _ in range(4)]
    batch = knowledge(group("template", texts=texts))
    _, judge = judged(batch)
    own = of(judge, knowledge(group("template")), "template")
    assert own.max() < np.sort(of(judge, batch, "page"))[-20]


def test_others_on_its_template_explain_a_group():
    centre = np.random.default_rng(4).normal(size=DIM)
    few = group("few", centre=centre)
    alone, among = knowledge(few), knowledge(few, group("more", 30, centre=centre, seed=5))
    assert contrast(among, "few").max() < contrast(alone, "few").min() / 2


def test_members_do_not_stand_around_their_group():
    batch = knowledge(group())
    assert contrast(batch, "group").min() > 1.0
    assert np.nanquantile(contrast(batch, "page"), 0.9) < 0.2


def test_a_larger_group_is_more_certain():
    centre = np.random.default_rng(4).normal(size=DIM)
    few, many = (knowledge(group(n=n, centre=centre)) for n in (3, 6))
    assert contrast(many, "group").mean() > 1.2 * contrast(few, "group").mean()


def test_a_pair_is_no_group():
    batch = knowledge(group("pair", 2, spread=0.2))
    found = found_in(batch)
    assert (found.members >= 0).sum(axis=1).min(where=~np.isnan(found.contrast), initial=9) == 3


def test_members_are_of_different_documents():
    batch = knowledge(group(n=6, documents=["a", "a", "b", "b", "c", "d"]))
    numbers = np.unique(np.array(batch.lineages), return_inverse=True)[1]
    for members in found_in(batch).members:
        own = numbers[members[members >= 0]]
        assert len(np.unique(own)) == len(own)


def test_a_page_beside_a_large_group_is_no_member():
    rng = np.random.default_rng(12)
    centre = rng.normal(size=DIM)
    page = ("beside", near(centre, 1, rng, 1.2), texts_of(1, rng), ["doc-0"])
    batch = knowledge(group(n=12, spread=0.3, centre=centre), page)
    members = found_in(batch).members[batch.ids.index("beside-0")]
    assert not any(batch.ids[row].startswith("group") for row in members[members >= 0])


def test_chunks_of_one_document_are_no_group():
    apart, one = knowledge(group()), knowledge(group(documents=["one"] * 4))
    lower = of(judged(one)[1], one, "group").max()
    assert lower < of(judged(apart)[1], apart, "group").min()


def test_small_documents_add_to_the_evidence():
    large = [f"large-{i}" for i in range(4)]
    rest, rng = [document for document in large for _ in range(3)], np.random.default_rng(6)
    own, fill = group(), ("rest", rng.normal(size=(12, DIM)), texts_of(12, rng), rest)
    small, padded = knowledge(own, fill), knowledge(group(documents=large), fill)
    less = of(judged(padded)[1], padded, "group")
    assert of(judged(small)[1], small, "group").min() > less.max() + 2.0


def test_an_outsider_borrows_half_of_the_contrast_at_most():
    rng = np.random.default_rng(8)
    centre = rng.normal(size=DIM)
    beside = ("outsider", near(centre, 1, rng, 1.0), texts_of(1, rng), ["doc-0"])
    batch = knowledge(group(n=4, spread=0.2, centre=centre), beside)
    found, outsider = found_in(batch), batch.ids.index("outsider-0")
    assert any(batch.ids[row].startswith("group") for row in found.members[outsider])
    assert found.contrast[outsider] < 0.7 * contrast(batch, "group").min()


def test_trusted_entries_on_the_topic_explain_a_group():
    rng = np.random.default_rng(9)
    centre = rng.normal(size=DIM)
    clean = group("clean", 6, centre=centre, spread=0.5)
    batch = knowledge(clean, group("planted", 4, seed=10, spread=0.75))
    pages = list(range(0, FEWEST_ENTRIES, 2))
    trusted = sorted([*pages, *(FEWEST_ENTRIES + i for i in range(3))])
    without, with_trust = judged(batch)[1], judged(batch, trusted)[1]
    assert of(without, batch, "clean").max() >= of(without, batch, "planted").max()
    assert of(with_trust, batch, "clean").max() < of(with_trust, batch, "planted").min()


def test_a_scan_compares_with_trusted_entries():
    batch = knowledge(group("clean", 6, spread=0.5), group("planted", 4, seed=10, spread=0.75))
    trusted = [batch.ids[row] for row in range(0, FEWEST_ENTRIES, 2)]
    trusted += ["clean-0", "clean-1", "clean-2"]
    report = scan(batch, [CliqueDetector()], clean_ids=trusted)
    found = {decision.entry_id for decision in report.found}
    assert {f"planted-{i}" for i in range(4)} <= found
    assert not any(i.startswith("clean") for i in found)


def test_a_few_trusted_entries_are_no_side():
    batch = knowledge(group())
    few = list(range(0, FEWEST_ENTRIES, 10))
    np.testing.assert_array_equal(judged(batch, few)[1].scores, judged(batch)[1].scores)


def test_copies_in_many_documents_are_found_with_their_own_reason():
    said = texts_of(1, np.random.default_rng(11)) * 12
    batch = knowledge(group("copy", 12, texts=said, spread=0.02))
    _, judge = judged(batch)
    assert of(judge, batch, "copy").min() > np.sort(of(judge, batch, "page"))[-20]
    (evidence,) = judge.explain(np.array([FEWEST_ENTRIES]))
    assert "different documents that agree" not in evidence.sentence


def test_copies_are_explained_without_groups():
    batch, detector = knowledge(group(spread=0.2)), CliqueDetector()
    before = detector.audit(batch)
    assert "93% of groups of 4" in detector.explain_audit(batch, [FEWEST_ENTRIES])[0].sentence
    after = detector.judge_copies()
    assert after.shape == before.shape
    assert (after <= before).all()
    assert "groups of 4" not in detector.explain_audit(batch, [FEWEST_ENTRIES])[0].sentence


def test_small_knowledge_bases_keep_the_scores_of_the_audit():
    batch = knowledge(group(), n=FEWEST_ENTRIES - 5)
    before, after = judged(batch)
    assert after is before


def test_one_document_shows_no_groups():
    batch = knowledge(pages=FEWEST_ENTRIES)
    before, after = judged(batch)
    assert after is before


def test_a_crash_among_groups_costs_no_finding(monkeypatch, caplog):
    batch = knowledge(group())

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(groups, "groups_in", broken)
    found = {d.entry_id for d in scan(batch, [CliqueDetector()]).found}
    assert "clique, judging groups: the detector failed with ZeroDivisionError" in caplog.text
    monkeypatch.setattr(groups, "FEWEST_ENTRIES", len(batch) + 1)
    assert found == {d.entry_id for d in scan(batch, [CliqueDetector()]).found}


def test_copies_cannot_be_judged_before_an_audit():
    with pytest.raises(NotFittedError, match="call audit first"):
        CliqueDetector().judge_copies()
