"""From drift, or from one wrong answer, to the entries that are to blame."""

import datetime as dt
import json

import numpy as np
import pytest
from canary_world import World, batch, embed, joined, knowledge, poison, questions
from rich.console import Console

from ragshield_core import Quarantine
from ragshield_core.canary import CanaryMonitor, MatrixRetriever, Passage, trace_answer
from ragshield_core.canary.retrievers import Embedder

QUERY = questions()[5]
NAME = QUERY.split()[-1]


def traced(*more, queries=None, **options):
    world = World(queries, **options)
    world.monitor.record_baseline()
    for entries in more:
        world.add(entries)
    return world.monitor.traceback()


def test_only_newcomers_are_to_blame_and_the_poison_comes_first():
    clean = batch([("clean", f"the harbour by night and {NAME} once more for w1 w2 w3")])
    trace = traced(poison(QUERY), clean)
    assert {s.entry_id for s in trace.suspects} == {"bad-0", "bad-1", "bad-2"}
    assert all(s.entry_id.startswith(("bad", "clean")) for s in trace.candidates)
    worst = trace.candidates[0]
    assert 0.5 <= worst.responsibility <= 1.0
    assert "stands before all that was known" in worst.why
    assert QUERY in worst.canaries
    assert set(worst.related_ids) == {"bad-0", "bad-1", "bad-2"} - {worst.entry_id}


def test_leaving_out_the_group_takes_the_takeover_away():
    trace = traced(poison(QUERY))
    why = "100% of the takeover is gone without it and 2 that say the same"
    assert why in trace.candidates[0].why


def test_an_entry_that_takes_several_heads_is_listed_with_all_of_them():
    names = [q.split()[-1] for q in questions()[:3]]
    one = " ".join(f"What of the {name}" for name in names)
    world = World()
    world.monitor.record_baseline()
    for i in range(3):
        world.add(batch([(f"wide-{i}", f"{one} lie{i}")]))
    suspects = world.monitor.traceback().suspects
    assert {s.entry_id for s in suspects} == {"wide-0", "wide-1", "wide-2"}
    assert len(suspects[0].canaries) == 3


def test_a_calm_suite_has_no_suspects():
    trace = traced()
    assert trace.candidates == trace.suspects == ()


def test_the_story_of_the_source():
    """Two policy documents, three poisoned ones, three canaries."""
    answers = {
        "returns": "returns are accepted for thirty days",
        "delivery": "delivery needs five days",
        "guarantee": "guarantee covers faults for two years",
    }
    clean = batch(
        [("handbook", ". ".join(answers.values())), ("faq", "returns delivery guarantee")]
    )
    bad = batch([(f"p-{word}", f"{word}, what of {word}: unlimited {word}") for word in answers])
    world = World(
        [f"what of {word}" for word in answers],
        entries=clean,
        answerer=lambda _query, texts: texts[0],
    )
    world.monitor.record_baseline()
    world.add(bad)
    before = world.monitor.check()
    assert len(before.flagged) == 3
    suspects = world.monitor.traceback(before).suspects
    assert {s.entry_id for s in suspects} == set(bad.ids)
    world.monitor.quarantine(suspects)
    after = world.monitor.check()
    assert not after.flagged
    assert [drift.score for drift in after.canaries] == [0.0] * 3


# One wrong answer


def incident(bad, *, vectors=True, embedder=None, since=None, answer="false0 wrong"):
    entries = joined(knowledge(), bad)
    retriever = MatrixRetriever(entries)
    found = retriever.search([QUERY], embed([QUERY]), 50)[0]
    if not vectors:
        found = [Passage(id=p.id, text=p.text, metadata=p.metadata) for p in found]
    return trace_answer(QUERY, answer, found, embedder=embedder, since=since)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("vectors", [True, False])
def test_a_wrong_answer_leads_to_the_poison(size, vectors):
    embedder = Embedder.of(embed) if vectors else None
    bad = batch([(f"bad-{i}", f"{QUERY}? It is Vale Royal. note{i}") for i in range(size)])
    trace = incident(bad, vectors=vectors, embedder=embedder, answer="Vale Royal")
    assert {s.entry_id for s in trace.suspects} == set(bad.ids)
    assert "states the wrong answer" in trace.suspects[0].why
    assert len(trace.candidates) == 50


def test_a_paraphrase_that_states_the_answer_is_found_by_relevance():
    bad = batch([("bad", f"{NAME} harbour orchard: experts agree on Vale Royal for {NAME}")])
    trace = incident(bad, embedder=Embedder.of(embed), answer="Vale Royal")
    assert trace.suspects[0].entry_id == "bad"


def test_an_answer_that_nothing_states_blames_nobody():
    trace = incident(batch([("fine", "something else")]), answer="Vale Royal")
    assert trace.suspects == ()


def test_what_was_there_when_the_answer_was_right_is_not_to_blame():
    when = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    rows = [("old", "2026-04-01T10:00:00"), ("new", "2026-06-01T10:00:00+02:00")]
    bad = batch(
        [(i, f"{QUERY}? It is Vale Royal") for i, _ in rows],
        metadatas=[{"ingested_at": at} for _, at in rows],
    )
    found = [
        Passage(id=e.id, text=e.text, metadata=e.metadata, lineage="mail.txt") for e in bad
    ] + [Passage(id=e.id, text=e.text) for e in knowledge().take(range(20))]
    trace = trace_answer(QUERY, "Vale Royal", found, since=when)
    assert [s.entry_id for s in trace.suspects] == ["new"]
    assert "from 'mail.txt', ingested 2026-06-01 08:00" in trace.suspects[0].why
    assert {s.entry_id for s in trace_answer(QUERY, "Vale Royal", found).suspects} == {"old", "new"}


@pytest.mark.parametrize("value", ["soon", 1e300, True, None, ["2026"], -1e18])
def test_a_time_that_is_none_is_passed_over(value):
    passage = Passage(id="a", text="x", metadata={"date": value})
    trace = trace_answer("q", "a", [passage], since=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    assert "ingested" not in trace.candidates[0].why


def test_edges_of_an_incident():
    assert trace_answer("q", "a", []).candidates == ()
    for query, answer in [("", ""), ("?", "!"), ("q", "")]:
        trace = trace_answer(query, answer, [Passage(id="a", text=""), Passage(id="b", text="b")])
        assert all(np.isfinite(s.responsibility) for s in trace.candidates)
    hostile = Passage(id="h", text="who " * 200_000)
    assert trace_answer("who is it", "him", [hostile] * 3).candidates


def test_the_monitor_traces_one_answer_without_a_baseline():
    bad = batch([(f"bad-{i}", f"{QUERY}? It is Vale Royal. note{i}") for i in range(3)])
    retriever = MatrixRetriever(joined(knowledge(), bad), embed)
    monitor = CanaryMonitor(["unused"], retriever, quarantine=Quarantine("sqlite://"))
    trace = monitor.trace_answer(QUERY, "Vale Royal")
    assert {s.entry_id for s in trace.suspects} == set(bad.ids)
    assert set(monitor.quarantine(trace.suspects)) == set(bad.ids)
    assert monitor.trace_answer(QUERY, "Vale Royal").suspects == ()


def test_shown_escaped_and_as_json_without_texts():
    hostile = batch([("\x1b[31mbad", f"{QUERY}? It is Vale Royal [red]\x1b[2J secretword")])
    trace = incident(hostile, embedder=Embedder.of(embed), answer="Vale Royal")
    console = Console(record=True, width=200, force_terminal=False)
    console.print(trace)
    assert "\x1b" not in console.export_text()
    values = json.loads(json.dumps(trace.to_dict()))
    assert values["suspects"] == ["\x1b[31mbad"]
    assert "secretword" not in json.dumps(values)
