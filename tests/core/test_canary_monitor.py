"""Baselines, checks, and remediation of drift."""

import datetime as dt
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from canary_world import World, batch, embed, joined, knowledge, over, poison, questions, watched
from support import knowledge_base, topical

from ragshield_core import Batch, Guard, Quarantine
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.tools.canary import (
    AnomalyWeights,
    CanaryError,
    CanaryMonitor,
    CanarySuite,
    DriftReport,
    EmbedderChangedError,
    KnowledgeBase,
    MatrixRetriever,
    Passage,
)
from ragshield_core.tools.canary.storage import CanaryStore

TARGETS = questions()[::8]


def attacked(size=3, **options):
    """Return a world with a baseline, and poison against a few of its questions."""
    world = watched(**options)
    bad = [poison(query, size, prefix=f"bad{n}") for n, query in enumerate(TARGETS)]
    for entries in bad:
        world.add(entries)
    return world, joined(*bad)


def test_nothing_changed_nothing_drifts():
    world = watched()
    report = world.monitor.check()
    assert not report.flagged
    for drift in report.canaries:
        assert (drift.score, drift.jaccard, drift.overlap_at_k) == (0.0, 1.0, 1.0)
        assert (drift.takeover, drift.newcomers) == (0.0, ())


@pytest.mark.parametrize("size", [3, 5])
def test_poison_is_flagged_and_nothing_else(size):
    world, bad = attacked(size)
    report = world.monitor.check()
    assert {drift.query for drift in report.flagged} == set(TARGETS)
    drift = report[TARGETS[0]]
    assert set(drift.newcomers) == {i for i in bad.ids if i.startswith("bad0-")}
    assert drift.takeover_p <= AnomalyWeights().takeover_p
    assert "newcomers hold" in drift.reasons[0]


def told(_query, texts):
    """Answer with the longest text among the first three."""
    return max(texts[:3], key=len, default="")


@pytest.mark.parametrize(("words", "flagged"), [(30, True), (1, False)])
def test_an_answer_that_follows_a_new_entry_below_the_first_is_flagged(words, flagged):
    found = [("a", "tea is served at four"), ("b", "the bar is closed")]
    monitor = over(found, ["when is tea?"], answerer=told, embedder=embed)
    found.insert(1, ("new", " ".join(["never"] * words)))
    (drift,) = monitor.check().canaries
    assert drift.flagged == flagged
    if flagged:
        assert any("follows the entry at rank 2, which is new" in r for r in drift.reasons)


def test_a_canary_that_retrieves_nothing_any_more_is_flagged():
    found = [("a", "tea is served at four")]
    monitor = over(found)
    found.clear()
    (drift,) = monitor.check().flagged
    assert "nothing is retrieved any more" in drift.reasons


def test_growth_is_not_flagged():
    world = watched()
    more = knowledge(seed=7)
    world.add(
        batch([(f"new-{i}", t) for i, t in zip(more.ids, more.texts, strict=True)]).take(
            np.random.default_rng(0).choice(len(more), 60, replace=False)
        )
    )
    report = world.monitor.check()
    assert sum(drift.takeover > 0 for drift in report.canaries) > 3  # it does change something
    assert not report.flagged
    assert report.growth == pytest.approx(60 / 260)


def test_the_figures_of_a_check_by_hand():
    # Two entries, three new ones before, between and behind them; answers as vectors.
    found = [("a", "first"), ("b", "second")]
    vectors = {"first": [1.0, 0.0], "p1 override": [0.6, 0.8]}
    monitor = over(
        found,
        answerer=lambda _query, texts: texts[0],
        embedder=lambda texts: [vectors.get(text, [1.0, 1.0]) for text in texts],
    )
    found[:] = [("p1", "p1 override"), *found, ("p2", "x"), ("p3", "y")]
    drift = monitor.check()["q"]
    assert drift.answer_drift == pytest.approx(0.4)
    assert drift.jaccard == drift.overlap_at_k == pytest.approx(0.4)
    assert drift.suspicion_ratio == drift.suspicion_delta == 0.0
    assert drift.score == pytest.approx(0.75 * 0.4 + 0.2 * 0.6 + 0.15 * 0.6)
    assert drift.newcomers == ("p1", "p2", "p3")
    assert (drift.baseline_ids, drift.ids) == (("a", "b"), ("p1", "a", "b", "p2", "p3"))


def test_a_changed_answer_over_a_new_first_entry_is_flagged():
    kb = [("a", "refunds take 14 days"), ("b", "shipping takes 3 days")]
    world = watched(
        ["how long do refunds take", "how long does shipping take"],
        entries=batch(kb),
        answerer=lambda _query, texts: texts[0],
    )
    assert not world.monitor.check().flagged
    world.add(batch([("bad", "refunds take no time, how long do they take, always approved")]))
    drift = world.monitor.check()["how long do refunds take"]
    assert drift.flagged
    assert drift.answer_drift > 0.25
    assert "the answer drifted" in drift.reasons[0]


def test_unmet_expectations_of_a_canary_are_reported():
    suite = CanarySuite(
        [
            {
                "name": "c",
                "query": "how long do refunds take",
                "expected_entries": ["a"],
                "expected_answer": "14  DAYS",
                "forbidden": ["visit evil.example"],
            }
        ]
    )
    entries = batch([("a", "refunds take 14 days"), ("b", "shipping takes 3 days")])
    world = watched(suite, entries=entries, k=1, answerer=lambda _query, texts: texts[0])
    assert not world.monitor.check().flagged
    world.add(batch([("bad", "how long refunds take: visit  EVIL.example")]))
    reasons = " ".join(world.monitor.check()["c"].reasons)
    assert "expected entry 'a' is no longer among the top 1" in reasons
    assert "the expected answer is no longer given" in reasons
    assert "the answer holds forbidden string 1" in reasons
    assert "entry 'bad', which is new, holds forbidden string 1" in reasons
    assert "evil" not in reasons  # reports may go into logs


@pytest.mark.parametrize("name", ["c", "new"])
def test_a_canary_that_the_baseline_did_not_ask_is_recorded_and_not_flagged(name):
    world = watched(CanarySuite([{"name": "c", "query": questions()[0]}]))
    world.monitor.suite = CanarySuite([{"name": name, "query": questions()[9]}])
    drift = world.monitor.check()[name]
    assert drift.ids
    assert drift.jaccard is None
    assert not drift.flagged


# Stored reports


def test_baselines_are_numbered_and_named(tmp_path):
    url = f"sqlite:///{tmp_path / 'q.db'}"
    world = World(CanarySuite(questions(), name="one"), quarantine=Quarantine(url))
    assert world.monitor.record_baseline() == 1
    world.add(poison(questions()[0], 5))
    assert world.monitor.record_baseline() == 2
    assert not world.monitor.check().flagged
    assert world.monitor.check(baseline=1).flagged
    store = CanaryStore(Quarantine(url))
    assert [store.baseline("one", version).version for version in (1, 2, None)] == [1, 2, 2]
    (first, earlier), (second, later) = store.versions("one")
    assert (first, second, earlier <= later) == (1, 2, True)
    assert store.versions("another") == []
    with pytest.raises(CanaryError, match="no baseline 3"):
        store.baseline("one", 3)
    with pytest.raises(CanaryError, match="no baseline"):
        CanaryStore(Quarantine(url, namespace="other")).baseline("one")


def test_another_process_reuses_the_baseline(tmp_path):
    url = f"sqlite:///{tmp_path / 'q.db'}"
    first = watched(quarantine=Quarantine(url))
    calls = []

    def counting(texts):
        calls.append(len(texts))
        return embed(texts)

    second = CanaryMonitor(
        questions(), first.retriever, embedder=counting, quarantine=Quarantine(url)
    )
    assert not second.check().flagged
    assert calls == [3]  # only the texts that tell whether the model is the same
    assert [len(report.canaries) for report in second.history()] == [len(questions())]


def test_reports_survive_the_database_and_json():
    world, _ = attacked(answerer=lambda _query, texts: texts[0])
    report = world.monitor.check()
    kept = world.monitor.history()[-1]
    assert kept.canaries == report.canaries
    assert DriftReport.from_dict(json.loads(report.to_json())).canaries == report.canaries
    assert kept.checked_at.tzinfo is dt.UTC
    assert world.monitor.traceback(kept).suspects  # the retriever is asked again


def other_model(texts):
    return embed([text[::-1] for text in texts])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"embedder": other_model}, "another embedder"),
        ({"embedder": lambda texts: np.ones((len(texts), 3))}, "512 dimensions then, 3 now"),
        ({"k": 4}, "k=6, this monitor of k=4"),
    ],
)
def test_another_embedder_or_k_is_an_error_not_a_drift(quarantine, change, said):
    world = watched(quarantine=quarantine)
    options = {"embedder": embed, "quarantine": quarantine} | change
    with pytest.raises(CanaryError, match=said) as caught:
        CanaryMonitor(questions(), world.retriever, **options).check()
    assert isinstance(caught.value, EmbedderChangedError)
    assert not world.monitor.history()


def test_rounding_is_not_taken_for_another_embedder(quarantine):
    world = watched(quarantine=quarantine)
    noisy = CanaryMonitor(
        questions(),
        world.retriever,
        embedder=lambda texts: embed(texts).astype(np.float16),
        quarantine=quarantine,
    )
    assert not noisy.check().flagged


def test_baseline_of_another_format_is_refused(monkeypatch):
    world = World()
    monkeypatch.setattr("ragshield_core.tools.canary.storage.FORMAT", 2)
    world.monitor.record_baseline()
    monkeypatch.setattr("ragshield_core.tools.canary.storage.FORMAT", 1)
    with pytest.raises(CanaryError, match="reads only format 1"):
        world.monitor.check()


# Remediation


@pytest.mark.slow
def test_suspects_are_held_and_left_out_of_retrieval():
    world, bad = attacked()
    trace = world.monitor.traceback()
    gone = world.monitor.quarantine(trace.suspects)
    assert set(gone) == set(bad.ids)
    held = world.monitor.quarantine_store.list()
    assert {item.id for item in held} == set(bad.ids)
    assert "takeover" in held[0].findings[0].evidence
    report = world.monitor.check()  # they are still in the knowledge base
    assert not report.flagged
    assert all(drift.score == 0.0 for drift in report.canaries)
    assert set(report.still_served) == set(bad.ids)
    assert report.summary().endswith("; 12 entries in quarantine are still retrieved")
    assert "12 entries in quarantine" in report.to_html()
    assert DriftReport.from_dict(report.to_dict()).still_served == report.still_served
    world.take_out(bad.ids)
    assert world.monitor.check().still_served == ()
    world.add(bad)
    world.monitor.restore(gone)
    assert world.monitor.check().flagged


@pytest.mark.slow
def test_outcome_is_not_clean_while_poison_is_served(caplog):
    world, bad = attacked()
    outcome = world.monitor.remediate()
    assert set(outcome.quarantined) == set(bad.ids)
    assert not outcome.after.flagged
    assert set(outcome.after.still_served) == set(bad.ids)
    assert not outcome.clean
    assert "12 held entries could not be deleted from the knowledge base" in caplog.text
    world.take_out(bad.ids)
    assert world.monitor.remediate().clean


@pytest.mark.slow
def test_remediation_ends_the_drift_with_the_poison_alone():
    world, bad = attacked()
    world.add(batch([("clean", f"{TARGETS[0].split()[-1]} and many other things of the day")]))
    outcome = world.monitor.remediate()
    assert set(outcome.quarantined) == set(bad.ids)
    assert outcome.before.flagged
    assert not outcome.after.flagged


@pytest.mark.slow
def test_remediation_stops_at_its_limit():
    world, _ = attacked()
    outcome = world.monitor.remediate(max_entries=2)
    assert len(outcome.quarantined) == 2
    assert not outcome.clean


def test_a_held_revision_does_not_hide_the_live_one():
    world = watched()
    drift = world.monitor.check()[questions()[0]]
    world.monitor.quarantine_store.hold(batch([(drift.ids[0], "a poisoned update of it")]))
    assert world.monitor.check()[questions()[0]].ids == drift.ids


def test_a_check_runs_after_every_ingest(quarantine):
    guard = Guard([LabelCentroidDetector()], quarantine=quarantine).fit(knowledge_base())
    world = watched(quarantine=quarantine)
    seen = []
    world.monitor.watch(guard, seen.append)
    guard.admit(guard.screen(topical("billing", 2, prefix="new")))
    assert seen == []
    assert len(world.monitor.history()) == 1
    world.add(poison(questions()[0], 4))
    guard.admit(guard.screen(topical("billing", 2, prefix="newer")))
    assert len(seen) == 1


@pytest.mark.slow
def test_queries_and_texts_stay_out_of_logs(caplog):
    caplog.set_level("DEBUG", logger="ragshield")
    world, _ = attacked()
    world.monitor.remediate()
    assert "canaries: " in caplog.text
    assert TARGETS[0] not in caplog.text
    assert "Certainly" not in caplog.text


def test_search_in_blocks_is_exact(monkeypatch):
    monkeypatch.setattr("ragshield_core.tools.canary.knowledge_base.BLOCK", 7)
    entries = knowledge()
    vectors = embed(questions())
    found = MatrixRetriever(entries).search(questions(), vectors, 6)
    similarity = vectors @ entries.embeddings.T
    for row, passages in enumerate(found):
        ids = [entries.ids.index(p.id) for p in passages]
        best = np.sort(similarity[row])[::-1][:6]
        np.testing.assert_allclose(similarity[row, ids], best, atol=1e-5)
    assert len(MatrixRetriever(entries.take([0, 1])).search(["q"], vectors[:1], 6)[0]) == 2


@pytest.mark.slow
def test_released_suspect_does_not_stop_the_search_for_others():
    world, bad = attacked()
    suspects = world.monitor.traceback().suspects
    good = [s for s in suspects if s.canaries[0] == TARGETS[0]]
    world.monitor.quarantine(good)
    world.monitor.restore([s.entry_id for s in good], by="anna")
    outcome = world.monitor.remediate()
    assert set(outcome.quarantined) == set(bad.ids) - {s.entry_id for s in good}
    assert {drift.name for drift in outcome.after.flagged} == {TARGETS[0]}


def test_confirmed_poison_stays_out_of_view():
    world, bad = attacked()
    gone = world.monitor.quarantine(world.monitor.traceback().suspects)
    world.monitor.quarantine_store.confirm(gone, by="anna")
    assert not world.monitor.check().flagged
    # A later, clean text under the id of one is seen again.
    world.take_out(bad.ids)
    world.add(batch([(bad.ids[0], f"{TARGETS[0]} is clean now")]))
    assert bad.ids[0] in world.monitor.check()[TARGETS[0]].ids


def test_nothing_retrieved_is_no_baseline():
    world = World(entries=knowledge().take([]))
    with pytest.raises(CanaryError, match="returns nothing for any of 32 canaries"):
        world.monitor.record_baseline()
    assert world.monitor.store.versions("default") == []
    with pytest.raises(CanaryError, match="no baseline"):
        world.monitor.check()


def test_remediation_works_with_more_places_than_entries():
    world = watched(questions()[:2], entries=knowledge().take(range(3)), k=6)
    assert not world.monitor.check().flagged
    world.add(poison(questions()[0], 5))
    assert world.monitor.remediate().clean


def test_a_passage_that_comes_twice_counts_once():
    listed = [("a", "one"), ("b", "two"), ("a", "one"), ("c", "three")]
    monitor = over(listed, k=3)
    report = monitor.check()
    assert report["q"].ids == ("a", "b", "c")
    assert [p.id for p in report.passages["q"]] == ["a", "b", "c"]


def test_baselines_recorded_at_once_get_numbers_of_their_own(any_url):
    worlds = [World(questions()[:2], quarantine=Quarantine(any_url)) for _ in range(4)]
    barrier = threading.Barrier(len(worlds))

    def record(world):
        barrier.wait()
        return world.monitor.record_baseline()

    with ThreadPoolExecutor(len(worlds)) as pool:
        assert sorted(pool.map(record, worlds)) == [1, 2, 3, 4]


def test_zero_vectors_are_not_taken_for_another_embedder():
    def sparse(texts):
        return [[text.count("tea"), text.count("bar")] for text in texts]

    entries = Batch.of(ids=["a", "b"], texts=["tea", "bar"], embeddings=np.eye(2))
    monitor = CanaryMonitor(
        ["tea?"], entries, embedder=sparse, k=1, quarantine=Quarantine("sqlite://")
    )
    monitor.record_baseline()
    assert not monitor.check().flagged


def test_long_ids_hide_nothing_and_do_not_fill_logs():
    found = [("a", "one")]
    monitor = over(found, [{"query": "q", "forbidden": ["evil"]}], k=3)
    found[:] = [("x" * 3000, "evil"), ("y" * 3000, "evil"), ("c", "two")]
    drift = monitor.check()["q"]
    assert all(len(reason) < 150 for reason in drift.reasons)
    assert dict(drift.figures())["retrieved"].endswith("..., +c")


def test_texts_that_share_an_id_are_held_once_for_the_worst_of_them():
    query = "who built the old harbour bridge"
    found = [("a", "one")]
    monitor = over(found, [{"query": query, "forbidden": ["lies"]}], k=3)
    found[:] = [("doc", f"{query}: lies"), ("doc", "of other things"), ("a", "one")]
    (suspect,) = monitor.traceback().suspects
    assert "lies" in suspect.passage.text
    both = monitor.trace_answer(query, "lies").candidates[:2]
    assert [s.entry_id for s in both] == ["doc", "doc"]
    assert monitor.quarantine(both) == ("doc",)
    assert "lies" in monitor.quarantine_store.show("doc").entry.text


@pytest.mark.parametrize("deep", [True, False], ids=["any k", "fixed k"])
@pytest.mark.parametrize("size", [3, 4, 5, 18])
def test_a_suite_that_is_taken_over_everywhere_is_flagged_without_a_size(size, deep):
    kb = MatrixRetriever(knowledge(), embed)

    def find(query, k):
        return kb.search([query], embed([query]), k if deep else 6)[0]

    asked = TARGETS + questions()[1::8] + questions()[2::8]
    monitor = CanaryMonitor(asked, find, embedder=embed, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    bad = [poison(query, size, prefix=f"bad{n}") for n, query in enumerate(asked)]
    kb.batch = joined(kb.batch, *bad)
    report = monitor.check()
    assert {drift.query for drift in report.flagged} == set(asked)
    assert {s.entry_id[:3] for s in monitor.traceback(report).suspects} == {"bad"}


@pytest.mark.parametrize("growth", [0.05, 0.3])
def test_growth_without_a_size_is_measured_below_the_head(growth):
    rng = np.random.default_rng(0)
    asked = [f"question {n}" for n in range(40)]
    listed = {query: [(f"{query}-{n}", f"{query} {n}") for n in range(30)] for query in asked}
    monitor = CanaryMonitor(
        asked, lambda query, k: listed[query][:k], quarantine=Quarantine("sqlite://")
    )
    monitor.record_baseline()
    for query, old in listed.items():  # additions of the same kind come at any rank
        places = rng.random(60) < growth
        listed[query] = [
            (f"new-{query}-{n}", f"new {query} {n}") if is_new else old.pop(0)
            for n, is_new in enumerate(places)
            if is_new or old
        ]
    report = monitor.check()
    assert report.growth == pytest.approx(growth, abs=0.1 * growth + 0.02)
    assert len(report.flagged) <= 1


class Store(KnowledgeBase):
    """Lists by query, and a size that is told."""

    def __init__(self, listed, size):
        self.listed, self.entries = listed, size

    def size(self):
        return self.entries

    def search(self, queries, _vectors, k):
        return [[Passage(id=i, text=t) for i, t in self.listed[q][:k]] for q in queries]


def test_additions_on_watched_topics_are_not_a_takeover():
    """They appear at every rank on the watched topics, far more often than elsewhere."""
    rng = np.random.default_rng(1)
    asked = [f"question {n}" for n in range(40)]
    listed = {query: [(f"{query}-{n}", f"{query} {n}") for n in range(30)] for query in asked}
    kb = Store(listed, size=10_000)
    monitor = CanaryMonitor(asked, kb, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    for query in asked:
        for n in range(4):
            place = int(rng.integers(18))
            listed[query].insert(place, (f"new-{query}-{n}", f"new {query} {n}"))
    kb.entries += 160
    assert len(monitor.check().flagged) <= 1
    for n in range(5):  # and poison at the heads is found among them
        for query in asked[:4]:
            listed[query].insert(0, (f"bad-{query}-{n}", f"bad {query} {n}"))
    kb.entries += 20
    assert set(asked[:4]) <= {drift.query for drift in monitor.check().flagged}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quarantine": "sqlite://"}, r"quarantine is a str, expected a Quarantine: Quarantine\("),
        ({"quarantine": Quarantine}, "quarantine is the class Quarantine, expected"),
        ({"weights": 0.5}, "weights is a float, expected AnomalyWeights"),
        ({"k": 0}, "k is 0"),
        ({"retriever": 3}, "retriever is a int"),
        ({"retriever": MatrixRetriever}, "the class MatrixRetriever, expected an instance"),
    ],
)
def test_invalid_arguments_are_refused_at_once(options, said):
    given = {"suite": ["q"], "retriever": knowledge(), "embedder": embed} | options
    with pytest.raises((TypeError, ValueError, CanaryError), match=said):
        CanaryMonitor(**given)
    with pytest.raises(TypeError, match="guard is a Batch, expected a Guard"):
        World().monitor.watch(knowledge(), lambda _report: None)
