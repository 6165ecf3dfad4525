"""Groups of similar meaning: found, explained, and followed as they arrive."""

import itertools
import json
import re
from dataclasses import replace
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
from support import (
    UNIT,
    clones_of,
    group,
    guard_of,
    held_in,
    join,
    loaded,
    parts,
    passages,
    prose,
    saved,
    snapshot,
    write,
)

from ragshield_core import Batch, PoisonedEntryError
from ragshield_core.calibration import arrivals
from ragshield_core.detectors import CliqueDetector
from ragshield_core.detectors.groups import evidence as group_evidence
from ragshield_core.detectors.groups.detector import MIN_ENTRIES
from ragshield_core.detectors.groups.usual import MIN_FAMILY_ENTRIES
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.neighbors import index, slots
from ragshield_core.neighbors.index import NeighborIndex
from ragshield_core.neighbors.search import InvertedLists
from ragshield_core.neighbors.slots import SPARSE_AT

FPR = 0.01
KNOWN = passages(900, 1)
SEEDS = range(20)


def calibrated(detector=None, known=KNOWN, clean=None, **policy):
    guard = guard_of(detector or CliqueDetector(), **policy)
    return guard.fit(known).calibrate(clean)


GUARD = calibrated()  # for tests that only screen
FOLDER = TemporaryDirectory()
GUARD.save(FOLDER.name)


def fresh():
    """Return a separate guard with the same knowledge as GUARD."""
    return loaded(FOLDER.name)


def caught(batch, guard=GUARD):
    """Return the share of a batch that is quarantined."""
    return len(held_in(guard.screen(batch))) / len(batch)


def the_finding(report, row=0):
    (finding,) = report.decisions[row].findings
    return finding


# Detection


@pytest.mark.parametrize(("size", "least"), [(5, 1.0), (3, 1.0), (2, 0.95)])
@pytest.mark.slow
def test_planted_groups_are_found_at_the_calibrated_threshold(size, least):
    assert np.mean([caught(group(size, seed)) for seed in SEEDS]) >= least


@pytest.mark.slow
def test_single_entry_is_not_a_group():
    assert np.mean([caught(group(1, seed)) for seed in SEEDS]) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [True, False], ids=["fitted entries", "clean sample"])
def test_clean_entries_are_condemned_at_about_the_accepted_rate(held_out):
    kept = []
    for seed in range(3):
        clean = None if held_out else passages(600, 30 + seed, "cal")
        guard = calibrated(known=passages(900, 20 + seed), clean=clean)
        kept += [guard.screen(passages(30, 600 + i, "new")).admitted for i in range(20)]
    assert FPR / 10 <= 1 - np.concatenate(kept).mean() <= 1.5 * FPR


@pytest.mark.slow
def test_the_smallest_knowledge_base_that_is_judged_by_the_rule_condemns_few_clean_entries():
    rates = []
    for seed in range(4):
        detector = CliqueDetector().fit(passages(MIN_ENTRIES, seed))
        scores = [detector.score(passages(9, 800 + i, "new")) for i in range(20)]
        rates.append((np.concatenate(scores) > detector.default_threshold).mean())
    assert np.mean(rates) <= 0.02  # the rule says one in a thousand


@pytest.mark.slow
def test_a_group_in_one_lineage_is_found_unless_that_lineage_is_trusted():
    one_file = group(5, 3, lineage="evil.pdf")
    assert caught(one_file) == 1.0
    assert "from one document" in the_finding(GUARD.screen(one_file)).evidence
    chunks_of_clean = np.mean([caught(passages(3, 70 + s, f"c{s}")) for s in range(30)])
    assert chunks_of_clean <= 0.03
    assert caught(one_file, calibrated(CliqueDetector(trusted_lineages=["other.pdf"]))) == 1.0
    trusting = calibrated(CliqueDetector(trusted_lineages=["evil.pdf"]))
    assert caught(group(5, 3), trusting) == 1.0
    assert caught(one_file, trusting) == 0.0


@pytest.mark.slow
def test_a_group_that_is_split_over_two_lineages_is_found():
    # Each half alone is loose enough to pass: without a look at both at once, .93 are found.
    evidence, shares = [], []
    for seed in range(20):
        loose = group(5, seed, spread=0.45)
        split = replace(loose, lineages=tuple(f"evil {row % 2}" for row in range(5)))
        report = GUARD.screen(split)
        shares.append(len(held_in(report)) / len(split))
        evidence += [d.findings[0].evidence for d in report.quarantined]
    assert np.mean(shares) >= 0.98
    assert any("from the same and from other documents" in sentence for sentence in evidence)


@pytest.mark.slow
def test_a_trusted_lineage_that_is_known_already_is_exempt():
    known = join(KNOWN, group(1, 3, "first", lineage="manual.pdf"))
    chunks = group(5, 3, lineage="manual.pdf")
    assert caught(chunks, calibrated(known=known)) == 1.0
    trusting = CliqueDetector(trusted_lineages=["manual.pdf"])
    assert caught(chunks, calibrated(trusting, known)) == 0.0


@pytest.mark.parametrize("lineage", [None, "one.pdf"], ids=["across lineages", "in one"])
def test_a_group_of_fifty_is_found(lineage):
    assert caught(group(50, 4, lineage=lineage)) == 1.0


def test_evidence_names_the_group_its_size_and_how_alike_it_is():
    batch = group(5, 3)
    finding = the_finding(GUARD.screen(batch), row=2)
    size = int(re.search(r"one of (?:at least )?(\d) entries", finding.evidence)[1])
    assert set(finding.related_ids) <= set(batch.ids) - {batch.ids[2]}
    assert len(finding.related_ids) == size - 1
    rows = [2, *(batch.ids.index(i) for i in finding.related_ids)]
    similar = batch.embeddings[rows] @ batch.embeddings[rows].T
    mean = similar[np.triu_indices(size, 1)].mean()
    assert f"(similarity {mean:.3f}; " in finding.evidence
    usual = float(re.search(r"stay below (\d\.\d+)", finding.evidence)[1])
    assert 0.3 < usual < mean
    assert finding.p_value <= FPR
    assert finding.score > finding.threshold


# Copies


def variants(text, n, changed):
    """Return n texts that share all but some words with a text."""
    words = text.split()
    return [
        " ".join(f"other{i}" if at in changed else word for at, word in enumerate(words))
        for i in range(n)
    ]


def test_copied_words_explain_resemblance_in_proportion():
    rng = np.random.default_rng(1)
    pair = group(2, 5)
    text = prose(rng, 40)
    # Each changed word takes three of 38 grams away.
    copied = [variants(text, 2, {5, 20}), variants(text, 2, {5, 11, 17, 23, 29}), pair.texts]
    scores = [GUARD.screen(replace(pair, texts=tuple(t))).scores["clique"].min() for t in copied]
    assert scores[0] < scores[1] < scores[2]
    assert scores[0] < GUARD.state.calibrator.thresholds["clique"].quarantine < scores[2]
    assert caught(replace(pair, texts=tuple(variants(text, 2, {0})))) == 0.0


def test_entries_with_almost_no_words_are_not_a_group():
    alike = group(12, 3)
    for text in ("", "- {}", "title: module {}"):
        assert (
            caught(replace(alike, texts=tuple([text.format(i) for i in range(len(alike))]))) == 0.0
        )
    assert caught(alike) > 0.5


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [("mill.example/pages/{}", 0.0, 0.0), (None, 0.5, 1.0)],
    ids=["fields of a page", "statements in fields"],
)
def test_pages_of_front_matter_alone_are_a_group_if_they_state_something(field, least, most):
    alike = group(12, 3)
    said = [field.format(row) if field else text for row, text in enumerate(alike.texts)]
    page = "---\ntitle: Module {0}\ndate: 2026-03-{0:02}\nlayout: wide\nnote: {1}\n---\n"
    texts = tuple(page.format(row + 1, text) for row, text in enumerate(said))
    assert least <= caught(replace(alike, texts=texts)) <= most


@pytest.mark.slow
def test_sample_with_few_kin_keeps_the_lineage_baseline():
    lineages = [line if row < 150 else f"{row}" for row, line in enumerate(KNOWN.lineages)]
    known = replace(KNOWN, lineages=tuple(lineages))
    detector = CliqueDetector().fit(known)
    detector.refresh(known.take([*range(MIN_FAMILY_ENTRIES - 10), *range(150, 900)]))
    assert detector.state()[0]["families"]


def test_kin_are_weighed_by_the_nearest_entries_within_and_across_documents():
    known = CliqueDetector().fit(KNOWN)._known
    evidence = known.evidence(known.graph.part(known.graph.present))
    same, cross = (evidence[channel].nearness[:, 0] for channel in ("same", "cross"))
    np.testing.assert_array_equal(known.kin.state(), group_evidence.Kin(same, cross).state())
    assert same.any()


@pytest.mark.slow
def test_families_that_a_copy_finds_count_for_entries_that_came_meanwhile():
    lonely = replace(KNOWN, lineages=KNOWN.ids).take(range(400))
    detector, copy = CliqueDetector().fit(lonely), CliqueDetector()
    detector.learn(KNOWN.take(range(400, 800)))
    copy.restore(*detector.state())
    copy.refresh(join(lonely, KNOWN.take(range(400, 800))))
    assert (detector.state()[0]["families"], copy.state()[0]["families"]) == (False, True)
    detector.learn(KNOWN.take(range(800, 900)))
    detector.forget(KNOWN.take([410, 420]))
    detector.take_usual(*detector.usual(copy))
    known = detector._known
    for channel, now in known.tightness(known.graph.part(known.graph.present)).items():
        np.testing.assert_array_equal(known.notes[channel][known.graph.present], now)
        assert now.any()


def test_mirrors_of_an_old_text_are_not_a_group():
    old = KNOWN[30]
    rng = np.random.default_rng(2)
    jitter = rng.normal(scale=0.03 * UNIT, size=(5, KNOWN.dim))
    mirrors = replace(
        clones_of(old, 5, "mirror"),
        embeddings=(moved := Batch.of(ids=list("abcde"), texts=[""] * 5,
                                      embeddings=old.embedding + jitter)).embeddings,
        vectors=moved.embeddings,
        texts=tuple(variants(old.text, 5, {1})),
    )  # fmt: skip
    assert caught(mirrors) == 0.0
    assert caught(clones_of(old, 5)) == 0.0
    assert caught(replace(mirrors, texts=tuple([prose(rng) for _ in range(5)]))) == 1.0


@pytest.mark.parametrize("n", [4, 5, 50])
def test_clones_of_a_new_text_count_as_flooding(n):
    flood = clones_of(group(1, 6)[0], n)
    report = GUARD.screen(flood)
    assert held_in(report) == set(flood.ids)
    evidence = the_finding(report).evidence
    assert "flooding" in evidence
    if n <= 16:
        assert f"{n - 1} other documents" in evidence
        assert set(the_finding(report).related_ids) == set(flood.ids[1:])


def test_copies_count_by_their_documents():
    new = group(1, 6)[0]
    one_by_one = [GUARD.screen(clones_of(new, n)).scores["clique"].min() for n in range(1, 6)]
    assert (np.diff(one_by_one) > 0).all()
    assert caught(clones_of(new, 2)) == 0.0
    assert caught(clones_of(new, 8, lineage="policy.pdf")) == 0.0  # versions of one document
    assert caught(replace(clones_of(new, 5), lineages=(None,) * 5)) == 1.0  # each is one of its own


@pytest.mark.slow
def test_clones_arriving_singly_are_flooding_except_the_original():
    guard = fresh()
    flood = clones_of(group(1, 6)[0], 5)
    live = stream(guard, parts(flood))
    assert set(flood.ids) & set(live) == {flood.ids[0]}
    assert guard.quarantine.held_ids(flood.ids) == set(flood.ids[1:])


@pytest.mark.slow
def test_audit_tolerates_copies_where_they_are_common():
    def scores(n_pages):
        pages = passages(n_pages, 80, "page")
        copied = [clones_of(entry, 5, f"copy{n}") for n, entry in enumerate(pages)]
        entries = join(KNOWN.take(np.arange(600)), *copied)
        return CliqueDetector().audit(entries)[600:]

    threshold = CliqueDetector().audit_threshold(FPR)
    assert scores(3).min() > threshold > scores(100).max()


# Too little to judge by


def test_below_min_entries_nothing_is_judged_and_the_reason_is_given():
    guard = guard_of(CliqueDetector(min_entries=200))
    guard.fit(KNOWN.take(np.arange(150)))
    poison = group(5, 3)
    report = guard.screen(poison)
    assert report.admitted.all()
    assert {item.entry_id for item in report.unjudged} == set(poison.ids)
    assert all("150 entries" in item.reason and "200" in item.reason for item in report.unjudged)
    with pytest.raises(InvalidBatchError, match="200 are needed"):
        guard.detectors[0].score(poison)
    guard.learn(KNOWN.take(np.arange(150, 230)))
    assert held_in(guard.screen(poison)) == set(poison.ids)


@pytest.mark.parametrize("wrong", [{"rule": "astrology"}, {"min_entries": 1}], ids=str)
def test_wrong_settings_are_refused(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} is .*expected"):
        CliqueDetector(**wrong)


# Audit


def test_an_audit_finds_planted_groups_in_a_knowledge_base():
    planted = [group(size, seed) for seed, size in enumerate((5, 5, 3, 3, 2, 5))]
    flood = clones_of(group(1, 6)[0], 5)
    entries = join(KNOWN, *planted, flood)
    entries = entries.take(np.random.default_rng(0).permutation(len(entries)))
    detector = CliqueDetector()
    with pytest.raises(NotFittedError):
        detector.explain_audit(entries, [0])
    scores = detector.audit(entries)
    poisoned = np.array([i.startswith(("bad", "clone")) for i in entries.ids])
    above = scores > detector.audit_threshold(FPR)
    assert above[poisoned].all()
    assert above[~poisoned].mean() <= 3 * FPR
    row = entries.ids.index("bad1-0")
    (evidence,) = detector.explain_audit(entries, [row])
    assert set(evidence.related_ids) <= {f"bad1-{i}" for i in range(1, 5)}
    (evidence,) = detector.explain_audit(entries, [entries.ids.index("clone-0")])
    assert "flooding" in evidence.sentence


def test_audit_of_too_few_entries_gives_no_scores():
    assert np.isnan(CliqueDetector().audit(group(5, 1))).all()


# Streaming through a guard


def stream(guard, batches):
    """Write batches; return the live entries at the end, by id."""
    live = {}
    for batch in batches:
        write(guard, batch, live)
    return live


def trickle(poison, seed=90, size=6):
    """Return batches of clean entries with one poisoned entry in each."""
    return [
        join(passages(size, seed + row, f"clean{seed}.{row}"), poison.take([row]))
        for row in range(len(poison))
    ]


@pytest.mark.parametrize("lineage", [None, "evil.pdf"], ids=["across lineages", "in one"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_a_group_that_trickles_in_ends_like_one_that_comes_at_once(seed, lineage):
    poison = group(5, seed, lineage=lineage)
    singly, at_once = fresh(), fresh()
    live = stream(singly, trickle(poison))
    assert not set(poison.ids) & set(live)
    assert not set(poison.ids) & set(stream(at_once, [join(*trickle(poison))]))
    assert singly.quarantine.held_ids(poison.ids) == set(poison.ids)
    assert at_once.quarantine.held_ids(poison.ids) == set(poison.ids)
    assert len(live) >= 28  # of 30 clean ones


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.slow
def test_the_order_of_arrival_does_not_matter(order):
    poison = group(3, 2).take(order)
    assert stream(fresh(), parts(poison)) == {}


@pytest.mark.slow
def test_report_lists_earlier_members_with_their_evidence():
    guard = fresh()
    poison = group(5, 3)
    live = {}
    reports = [write(guard, batch, live) for batch in trickle(poison)]
    # One other may be an imitation of it; two that are held speak against it.
    assert [held_in(report) & set(poison.ids) for report in reports[:2]] == [
        set(),
        {poison.ids[1]},
    ]
    assert [report.retroactive for report in reports[:2]] == [(), ()]
    (decision,) = reports[2].retroactive
    assert decision.entry_id == poison.ids[0]
    assert str(decision.verdict) == "quarantine"
    assert set(decision.findings[0].related_ids) >= set(poison.ids[1:3])
    assert decision.findings[0].p_value <= FPR
    assert "retroactive" in json.loads(reports[2].to_json())
    assert poison.ids[0] in json.dumps(json.loads(reports[2].to_json())["retroactive"])
    assert "of earlier ones" in reports[2].summary()
    entry = guard.quarantine.show(poison.ids[0]).entry
    assert entry.text == poison.texts[0]
    assert entry.lineage == poison.lineages[0]


@pytest.mark.slow
def test_fitted_entries_are_never_condemned_afterwards():
    poison = group(5, 3)
    guard = calibrated(known=join(KNOWN, poison.take([0, 1])))
    live = {}
    singly = [poison.take([row]) for row in (2, 3, 4)]
    reports = [write(guard, batch, live) for batch in singly]
    assert all(report.retroactive == () for report in reports)
    assert live == {}


@pytest.mark.slow
def test_held_members_keep_counting():
    poison = group(3, 5)
    third = poison.take([2])
    assert caught(third) == 0.0
    guard = fresh()
    assert stream(guard, [poison.take([0, 1]), third]) == {}
    guard = fresh()
    stream(guard, [poison.take([0, 1])])
    guard.writes.forget_held(poison.ids[:2])
    assert caught(third, guard) == 0.0


@pytest.mark.slow
def test_an_entry_that_is_sent_again_is_held_once():
    guard = fresh()
    poison = group(3, 5)
    for _ in range(4):
        write(guard, poison)
    assert guard.detectors[0].n_local == len(KNOWN) + 3
    guard.writes.forget_held(poison.ids)
    assert guard.detectors[0].n_local == len(KNOWN)


@pytest.mark.parametrize("fitted", [True, False], ids=["fitted", "learned"])
@pytest.mark.parametrize("change", ["wording", "nothing"])
@pytest.mark.slow
def test_an_entry_does_not_make_a_group_with_its_own_older_revision(fitted, change):
    first = replace(passages(1, 95, "page"), lineages=(None,))
    if fitted:
        guard = calibrated(known=join(KNOWN, first))
    else:
        guard = fresh()
        assert set(stream(guard, [first])) == {"page-0"}
    text = first.texts[0] if change == "nothing" else prose(np.random.default_rng(3))
    report = guard.screen(replace(first, texts=(text,)))
    assert report.admitted.all()
    assert report.retroactive == ()


def test_a_new_revision_of_a_member_is_not_condemned_for_the_old_one():
    guard = fresh()
    poison = group(3, 5)
    live = stream(guard, [poison.take([0])])
    harmless = passages(1, 96, "x")
    moved = replace(harmless, ids=(poison.ids[0],), lineages=(poison.lineages[0],))
    (decision,) = guard.screen(poison.take([1, 2])).retroactive
    assert decision.entry_id == poison.ids[0]
    report = guard.screen(join(moved, poison.take([1, 2])))
    assert report.retroactive == ()
    assert report.decisions[0].verdict == "admit"
    guard.forget(live[poison.ids[0]])
    write(guard, moved, live)
    assert caught(poison.take([1]), guard) == 0.0


@pytest.mark.slow
def test_on_detect_raise_changes_nothing_and_its_report_lists_the_earlier_ones(tmp_path):
    guard = calibrated(on_detect="raise")
    poison = group(3, 5)
    live = stream(guard, [poison.take([0])])
    before = saved(guard, tmp_path / "before")
    with pytest.raises(PoisonedEntryError) as raised:
        write(guard, poison.take([1]), live)
    assert raised.value.report.retroactive == ()
    with pytest.raises(PoisonedEntryError) as raised:
        write(guard, poison.take([1, 2]), live)
    assert [d.entry_id for d in raised.value.report.retroactive] == [poison.ids[0]]
    assert saved(guard, tmp_path / "after") == before
    assert set(live) == {poison.ids[0]}
    assert guard.quarantine.count(None) == 0


# State


def verdicts(report):
    said = json.loads(report.to_json())
    return said["decisions"], said["retroactive"], report.scores["clique"].tolist()


@pytest.mark.parametrize("rule", ["groups", "cleanbase"])
@pytest.mark.slow
def test_a_guard_that_is_saved_in_the_middle_goes_on_the_same(tmp_path, rule, monkeypatch):
    monkeypatch.setattr(arrivals, "time", SimpleNamespace(time=lambda: 1e9))
    poison = trickle(group(5, 3), size=8)
    guard = guard_of(CliqueDetector(rule=rule)).fit(KNOWN)
    if rule == "groups":
        guard.calibrate(fpr=FPR)
    live = stream(guard, poison[:2])
    guard.forget(live.popitem()[1])
    guard.save(tmp_path / "middle")
    again = loaded(tmp_path / "middle")
    assert saved(again, tmp_path / "copy") == saved(guard, tmp_path / "middle")
    lives = [dict(live), dict(live)]
    for batch in poison[2:]:
        reports = [guard.screen(batch), again.screen(batch)]
        assert verdicts(reports[0]) == verdicts(reports[1])
        for each, where in zip((guard, again), lives, strict=True):
            write(each, batch, where)
    assert set(lives[0]) == set(lives[1])
    assert saved(again, tmp_path / "end") == saved(guard, tmp_path / "own end")


@pytest.mark.parametrize("rule", ["groups", "cleanbase"])
@pytest.mark.parametrize("rows", [[0], range(50), range(880, 900)], ids=["first", "more", "last"])
@pytest.mark.slow
def test_any_entry_may_be_forgotten(rule, rows):
    detector = CliqueDetector(rule=rule).fit(KNOWN)
    detector.forget(KNOWN.take(list(rows)))
    assert detector.n_local == len(KNOWN) - len(rows)
    poison = group(3, 5)
    assert detector.score(poison).min() > detector.default_threshold
    assert len(detector.explain(poison, range(3))) == 3
    clean = passages(30, 9, "m")
    rest = KNOWN.take(np.setdiff1d(np.arange(len(KNOWN)), list(rows)))
    fresh = CliqueDetector(rule=rule).fit(rest)
    assert (
        np.corrcoef(detector.score(join(clean, poison)), fresh.score(join(clean, poison)))[0, 1]
        > 0.95
    )
    detector.learn(clean)


def replaced(detector, rounds, n=300):
    """Replace entries repeatedly, with held entries and new revisions among them."""
    for number in range(rounds):
        detector.forget(KNOWN.take(range(n)))
        detector.remember_held(group(3, number, "held"))
        detector.learn(passages(n, number, "kb").take(np.arange(n)))
        detector.forget_held([f"held{number - 2}-{row}" for row in range(3)])
        detector.refresh(KNOWN.take(range(n, len(KNOWN))))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["groups", "cleanbase"])
def test_removed_entries_leave_nothing_in_the_saved_state(rule):
    detector = CliqueDetector(rule=rule).fit(KNOWN)
    n_bytes = []
    for _ in range(3):
        replaced(detector, 4)
        values, arrays = detector.state()
        n_bytes.append(len(json.dumps(values)) + sum(array.nbytes for array in arrays.values()))
        assert len(arrays["graph.score"]) <= detector.n_local / (1 - SPARSE_AT) + 1
    assert max(n_bytes) < 1.5 * n_bytes[0]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["groups", "cleanbase"])
def test_renumbering_changes_no_score(rule, monkeypatch):
    often, never = CliqueDetector(rule=rule).fit(KNOWN), CliqueDetector(rule=rule).fit(KNOWN)
    replaced(often, 3)
    assert len(often.state()[1]["graph.score"]) < len(KNOWN) + 3 * 300
    monkeypatch.setattr(slots, "SPARSE_AT", 1.0)
    replaced(never, 3)
    assert len(never.state()[1]["graph.score"]) > len(KNOWN) + 3 * 300
    new = join(group(4, 50), group(3, 1, "held"), passages(30, 9, "m"), clones_of(KNOWN[5], 4))
    np.testing.assert_array_equal(often.score(new), never.score(new))
    standing = KNOWN.take(range(300, 900))
    scores = [each.held_out_scores(standing, 0) for each in (often, never)]
    np.testing.assert_array_equal(*scores)


def recombined(n, seed=21, *, lineage=None):
    """Return texts of two sentences each out of six new ones, alike in meaning."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=KNOWN.dim)
    sentences = [prose(rng, 9) for _ in range(6)]
    texts = [". ".join(sentences[i] for i in rng.choice(6, 2, replace=False)) for _ in range(n)]
    return Batch.of(
        ids=[f"mixed-{i}" for i in range(n)],
        texts=texts,
        embeddings=centre + 0.7 * rng.normal(size=(n, KNOWN.dim)),
        lineages=[lineage] * n,
    )


def test_many_new_texts_made_of_the_same_sentences_are_flooding():
    crowd = recombined(50)
    report = GUARD.screen(crowd)
    assert held_in(report) == set(crowd.ids)
    reasons = [the_finding(report, row).evidence for row in range(50)]
    assert any("bring much of the same text at the same time" in reason for reason in reasons)


def test_texts_made_of_sentences_that_the_knowledge_base_holds_are_not_flooding():
    known, crowd = recombined(12, 22), recombined(24, 22)
    guard = guard_of(CliqueDetector()).fit(join(KNOWN, known))
    again = replace(crowd, ids=tuple(f"again-{i}" for i in range(24)))
    reasons = [f.evidence for d in guard.screen(again).decisions for f in d.findings]
    assert not any("flooding" in reason for reason in reasons)


def test_entries_can_be_trusted_before_enough_are_known_to_judge():
    detector = CliqueDetector().fit(KNOWN.take(range(20)))
    detector.trust([KNOWN.ids[3], "unknown"])
    assert "20 entries" in detector.unjudged(KNOWN.take([30]))[0]


def test_audit_of_too_few_entries_counts_them():
    detector, few = CliqueDetector(), KNOWN.take(range(20))
    assert np.isnan(detector.audit(few)).all()
    assert "has 20 entries, 100 are needed" in detector.unjudged(few)[0]


@pytest.mark.slow
def test_a_knowledge_base_may_be_forgotten_to_the_last_entry_and_learned_anew():
    first, rest = KNOWN.take([0]), KNOWN.take(range(1, 200))
    detector, fresh = CliqueDetector(), CliqueDetector()
    for _ in range(2):
        detector.learn(first)
        detector.forget(first)
    for one in (detector, fresh):
        one.learn(rest)
    bad = group(3, 5)
    np.testing.assert_allclose(detector.score(bad), fresh.score(bad), rtol=1e-6)
    restored = CliqueDetector()
    restored.restore(*detector.state())
    np.testing.assert_allclose(restored.score(bad), fresh.score(bad), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("exact_up_to", [100, 25_000])
def test_scores_do_not_depend_on_the_chunk_size(monkeypatch, exact_up_to):
    monkeypatch.setattr(index, "EXACT_UP_TO", exact_up_to)
    known = passages(2_500, 1)
    new = group(4, 5)

    def scores():
        detector = CliqueDetector().fit(known)
        audit = CliqueDetector().audit(known)
        return detector.held_out_scores(known, 0), audit, detector.score(new)

    at_once = scores()
    monkeypatch.setattr(group_evidence, "CHUNK", 70)
    for some, all_ in zip(scores(), at_once, strict=True):
        np.testing.assert_array_equal(some, all_)


def test_fit_trains_the_inverted_lists_once(monkeypatch):
    trained, made = InvertedLists.trained, []

    def training(rows, *given):
        made.append(len(rows))
        return trained(rows, *given)

    monkeypatch.setattr(InvertedLists, "trained", training)
    monkeypatch.setattr(index, "EXACT_UP_TO", 100)
    CliqueDetector().fit(KNOWN)
    assert made == [len(KNOWN)]


@pytest.mark.parametrize("n", [1, 4, 150])  # around many, some are scored only
@pytest.mark.slow
def test_learning_screened_entries_reuses_their_search(n, monkeypatch):
    screened, other = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    searched, search = [], NeighborIndex.search
    monkeypatch.setattr(
        NeighborIndex, "search", lambda self, *args: (searched.append(1), search(self, *args))[1]
    )
    for number in range(3):
        batch = join(passages(n, 50 + number, f"new{number}"), group(3, number, f"bad{number}-"))
        screened.score(batch)
        before = len(searched)
        screened.learn(batch)
        assert len(searched) == before
        other.learn(batch)
    assert snapshot(screened) == snapshot(other)


@pytest.mark.parametrize("n", [12, 150])
@pytest.mark.slow
def test_the_admitted_part_of_a_batch_is_learned_as_if_it_came_alone(n, monkeypatch):
    screened, other = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    measured, tightness = [], group_evidence.GroupEvidence._tightness_of
    monkeypatch.setattr(
        group_evidence.GroupEvidence,
        "_tightness_of",
        lambda self, group, *rest: (measured.append(len(group)), tightness(self, group, *rest))[1],
    )
    for number in range(3):
        new = passages(n, 50 + number, f"new{number}")
        flood = clones_of(new[1], 4, f"clone{number}")
        whole = join(group(3, number, f"bad{number}-"), new, flood)
        order = np.random.default_rng(number).permutation(len(whole))
        admitted = whole.take(order[order > 2][:-2])
        screened.score(whole)
        measured.clear()
        screened.learn(admitted)
        reused = sum(measured)
        measured.clear()
        other.learn(admitted)
        assert reused < sum(measured) / 2
        assert snapshot(screened) == snapshot(other)


def test_other_texts_under_screened_ids_are_compared_anew():
    screened, other = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    batch = join(passages(9, 50, "new"), clones_of(KNOWN[0], 3, "clone"))
    screened.score(batch)
    changed = replace(batch, texts=tuple(reversed(batch.texts))).take(range(1, 12))
    for detector in (screened, other):
        detector.learn(changed)
    assert snapshot(screened) == snapshot(other)


@pytest.mark.slow
def test_stale_screening_is_repeated_when_learning():
    screened, other = CliqueDetector().fit(KNOWN), CliqueDetector().fit(KNOWN)
    flood = clones_of(KNOWN[0], 6, "clone")
    batch = clones_of(KNOWN[0], 2, "last")
    for detector in (screened, other):
        detector.learn(passages(400, 3, "came"))
        detector.remember_held(flood)
        detector.learn(passages(400, 4, "later"))
    for change in (
        lambda detector: detector.confirm(flood.ids),
        lambda detector: detector.trust(KNOWN.ids[:3]),
        lambda detector: detector.forget_held(flood.ids[:2]),
        lambda detector: detector.forget(KNOWN.take([5, 6])),
    ):
        screened.score(batch)
        for detector in (screened, other):
            change(detector)
            detector.learn(batch)
        assert snapshot(screened) == snapshot(other)
        for detector in (screened, other):
            detector.forget(batch)
