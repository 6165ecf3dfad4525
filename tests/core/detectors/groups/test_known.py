"""State of a group detector: questions about few entries are answered as by a pass over all."""

import numpy as np
import pytest
from support import passages

from ragshield_core import Batch
from ragshield_core.detectors.groups import graph as graphs
from ragshield_core.detectors.groups.agreement import NEW_TO_ALL, STANDS, WordShares
from ragshield_core.detectors.groups.graph import SimilarityGraph, find
from ragshield_core.detectors.groups.known import ARRIVING, NOTES, GroupRule, Known

RULE = GroupRule("groups", 2.5, (), "clique")


def known_with(n, seed):
    """Return a state with n slots, some of them gone, trusted or held, and the flags of these."""
    rng = np.random.default_rng(seed)
    batch = passages(n, seed)
    graph = SimilarityGraph(batch.dim, 16, **NOTES)
    graph.fit(batch.ids, batch)
    known = Known(RULE, graph)
    gone = rng.random(n) < rng.choice([0.0, 0.1, 0.6])
    graph.remove([batch.ids[slot] for slot in np.flatnonzero(gone)])
    known.notes["trusted"][:] = rng.random(n) < rng.choice([0.0, 0.5])
    known.hold(np.flatnonzero(~gone & (rng.random(n) < 0.05)))
    known.shares = WordShares.of([graph.words.take(graph.present)])
    return known, gone


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n_new", [1, 7, 60])
def test_recent_entries_and_arrivals_are_those_of_a_pass_over_all(seed, n_new):
    known, gone = known_with(120, seed)
    held = known.is_held(np.arange(120))
    batch = passages(n_new, 99, "new")
    overlay = known.graph.overlay(batch)
    numbers = np.concatenate([known.graph.present, 120 + np.arange(n_new)])

    younger = np.cumsum(~gone[::-1])[::-1]
    wanted = round(ARRIVING * len(known.graph))
    recent = ((younger <= wanted) & ~known.notes["trusted"]) | held
    recent = np.append(recent, np.ones(n_new, dtype=bool))
    np.testing.assert_array_equal(known.recent()(numbers), recent[numbers])

    there = np.append(~gone, np.ones(n_new, dtype=bool))
    later = np.cumsum(there[::-1])[::-1] - 1
    arrived = np.where(recent, later // max(1, wanted), STANDS)
    arrived[:120][held] = NEW_TO_ALL
    newcomers = known.newcomers(overlay, known.recent())
    np.testing.assert_array_equal(newcomers._arrived(numbers), arrived[numbers])


def test_held_slots_are_kept_as_entries_are_held_released_and_renumbered():
    known, _ = known_with(120, 1)

    def held():
        return np.flatnonzero(~np.isnan(known.notes["held_at"]))

    assert len(known.held_slots)
    known.release(known.held_slots[1:3])
    np.testing.assert_array_equal(known.held_slots, held())
    known.hold(known.graph.present[:2])
    np.testing.assert_array_equal(known.held_slots, held())
    known.graph.remove(known.graph.index.ids_of(known.graph.present[2:9]))
    known.compact()
    np.testing.assert_array_equal(known.held_slots, held())
    values, arrays = known.state()
    values["held"] = {}
    np.testing.assert_array_equal(Known.restored(RULE, values, arrays).held_slots, held())
    assert len(known.held().numbers) == len(held())


@pytest.mark.parametrize("cells", [0, 10**6])
def test_places_are_found_in_a_table_as_by_a_search(cells, monkeypatch):
    monkeypatch.setattr(graphs, "CELLS", cells)
    among = np.array([2, 3, 7, 50], dtype=np.int64)
    asked = np.array([[-1, 2, 7], [50, 51, 0], [10**6, 3, 49]], dtype=np.int32)
    assert find(among, asked).tolist() == [[-1, 0, 2], [3, -1, -1], [-1, 1, -1]]
    assert find(among[:0], asked).tolist() == [[-1] * 3] * 3


def test_places_in_an_overlay_are_those_of_its_rows():
    known, _ = known_with(60, 3)
    overlay = known.graph.part(known.graph.present[::-3])
    places = overlay.places(np.arange(-1, 60))
    assert [overlay.numbers[place] for place in places[places >= 0]] == sorted(overlay.numbers)
    assert (places >= 0).sum() == len(overlay.numbers)
    empty = known.graph.overlay(
        Batch.of(ids=[], texts=[], embeddings=np.empty((0, overlay.graph.index.dim)))
    )
    assert empty.places(np.array([1, -1])).tolist() == [-1, -1]
