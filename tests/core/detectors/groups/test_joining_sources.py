"""Groups of a new source are judged within it, unless they lie on standing topics."""

from dataclasses import replace

import numpy as np
import pytest
from support import (
    answers,
    guard_of,
    held_in,
    loaded,
    of_source,
    parts,
    passages,
    site,
    slowly,
    snapshot,
    write,
)

from ragshield_core.detectors import CliqueDetector
from ragshield_core.model.entries import concatenate

SITE = "docs.example"


KNOWN = of_source(passages(600, 1), "wiki")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard")
    guard_of(CliqueDetector()).fit(KNOWN).calibrate().save(folder)
    return folder


@pytest.fixture
def guard(folder):
    return loaded(folder)


def template(n, seed, spread=0.8, source=SITE):
    """Return entries of a source on a topic that the knowledge base lacks."""
    return of_source(site(n, seed, spread), source)


def write_all(guard, batch, size):
    """Write entries in batches; return the ids of entries held or recalled at the end."""
    out = set()
    for part in parts(batch, size):
        report = write(guard, part)
        out.update(d.entry_id for d in (*report.quarantined, *report.retroactive))
    return out


@pytest.mark.parametrize("spread", [0.3, *slowly(0.5, 0.8)])
@pytest.mark.parametrize("size", [300, 100])
@pytest.mark.slow
def test_a_clean_source_of_one_template_is_not_held(guard, spread, size):
    assert len(write_all(guard, template(300, 1, spread), size)) <= 0.04 * 300


@pytest.mark.slow
def test_same_template_under_a_known_source_is_held(guard):
    assert len(write_all(guard, template(300, 1, source="wiki"), 300)) > 0.5 * 300


@pytest.mark.slow
def test_batch_size_does_not_change_the_held_share(folder):
    batch = template(300, 1, 1.0)
    shares = [len(write_all(loaded(folder), batch, size)) / 300 for size in (300, 20)]
    # A source needs some entries before it has a baseline.
    assert abs(shares[0] - shares[1]) <= 0.1


def in_another_language(batch):
    """Return a batch whose texts have no word of the knowledge base."""
    return replace(batch, texts=tuple(text[::-1] + " ж" for text in batch.texts))


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_source_in_another_language_passes_in_any_batch_size(folder, spread):
    batch = in_another_language(template(200, 1, spread))
    shares = [len(write_all(loaded(folder), batch, size)) / 200 for size in (200, 20, 1)]
    assert max(shares) <= 0.05, shares


@pytest.mark.slow
def test_groups_of_a_small_new_source_are_reported_unjudged(guard):
    report = guard.screen(in_another_language(template(20, 1, 0.3)))
    assert not report.quarantined
    assert {item.detector for item in report.unjudged} == {"clique"}
    assert "fewer than 100 entries" in report.unjudged[0].reason
    # In its own language nothing excuses them, nor copies in any.
    assert len(guard.screen(template(10, 1, 0.3)).quarantined) > 5
    copies = replace(template(20, 1, 0.3), texts=("Zmqx vbrt klpw jdfg hnst qwyz plok.",) * 20)
    assert len(guard.screen(copies).quarantined) > 10


@pytest.mark.parametrize(
    "before", ["documents like standing ones", *slowly("nothing", "its own documents")]
)
@pytest.mark.parametrize("source", [SITE, *slowly("wiki", None)])
@pytest.mark.slow
def test_group_on_standing_topics_is_held_under_any_source(guard, source, before):
    if before != "nothing":
        batch = template(120, 2) if before == "its own documents" else passages(120, 5, "more")
        write_all(guard, of_source(batch, source), 120)
    for seed in range(5):
        bad = of_source(answers(KNOWN[100 * seed], 5, seed), source)
        report = guard.screen(bad)
        assert len(report.quarantined) >= 4, (seed, report.scores)
        # Among clean entries of the same source, too.
        mixed = concatenate([of_source(template(60, 3), source), bad])
        held = held_in(guard.screen(mixed))
        assert len(held & set(bad.ids)) >= 4


# Source records


@pytest.mark.slow
def test_scores_do_not_depend_on_earlier_screening(guard):
    (detector,) = guard.detectors
    write_all(guard, template(120, 1), 60)
    for number in range(6):
        part = replace(template(10, 1), ids=tuple(f"more{number}-{i}" for i in range(10)))
        again = CliqueDetector()
        again.restore(*detector.state())
        np.testing.assert_array_equal(again.score(part), detector.score(part))
        write_all(guard, part, 10)


@pytest.mark.slow
def test_screening_does_not_record_sources(guard):
    (detector,) = guard.detectors
    before = snapshot(detector)
    for number in range(3):
        guard.screen(template(60, number, source=f"{number}.example"))
    assert snapshot(detector) == before


@pytest.mark.slow
def test_source_records_stay_correct_after_many_entries_leave(guard):
    write_all(guard, template(150, 1), 150)
    write_all(guard, template(150, 2, source="gone"), 150)
    (detector,) = guard.detectors
    detector.forget_held(template(150, 2).ids)
    guard.forget(template(150, 2))
    guard.forget(KNOWN.take(range(550)))
    known = detector._known
    slots = known.graph.present
    assert known.graph.n_slots < 650  # renumbered
    codes = dict(zip(("wiki", SITE), known.source_codes(["wiki", SITE]).tolist(), strict=True))
    named = zip(known.graph.index.ids_of(slots), known.notes["source"][slots], strict=True)
    for entry_id, code in named:
        assert code == codes["wiki" if entry_id.startswith("kb") else SITE], entry_id
    assert known.joining(known.source_codes(["wiki", SITE, "gone"])).tolist() == [False, True, True]
    again = CliqueDetector()
    again.restore(*detector.state())
    assert snapshot(again) == snapshot(detector)
