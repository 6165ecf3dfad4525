"""Neighbour lists that are kept up to date, against lists made from scratch."""

import json

import numpy as np
import pytest
from support import clones_of, group, join, parts, passages, through_files

from ragshield_core.detectors.groups import listers
from ragshield_core.detectors.groups.graph import COMPARE_ABOVE, NO_LINEAGE, SimilarityGraph
from ragshield_core.detectors.groups.words import SHARE_STEPS, SLACK
from ragshield_core.text.copies import containment, word_hashes

K = 6
KNOWN = passages(60, 1)
# Neighbours of the known ones, of each other, and copies of one of them.
NEW = join(passages(12, 2, "new"), group(4, 3), clones_of(KNOWN[0], 3))
EVERYTHING = join(KNOWN, NEW)
N = len(EVERYTHING)


def brute(batch, k):
    """Return the k nearest other rows of every row, their similarities and shares of copies."""
    similar = batch.embeddings.astype(np.float64) @ batch.embeddings.T.astype(np.float64)
    np.fill_diagonal(similar, -np.inf)
    order = np.argsort(-similar, axis=1, kind="stable")[:, : min(k, len(batch) - 1)]
    similar = np.take_along_axis(similar, order, 1)
    row = np.repeat(np.arange(len(batch)), order.shape[1])
    words = [word_hashes(text) for text in batch.texts]
    copied = containment(words, row, order.ravel()).reshape(order.shape)
    copied = np.floor(copied * SHARE_STEPS + SLACK) / SHARE_STEPS
    return order, similar, np.where(similar > COMPARE_ABOVE, copied, 0.0)


def assert_lists(lists, expected, rows=slice(None)):
    """Check lists, ignoring the order of equally similar entries."""
    slots, similarities, copied = (part[rows] for part in expected)
    width = slots.shape[1]
    np.testing.assert_allclose(lists.similarities[:, :width], similarities, atol=1e-5)
    assert (lists.slots[:, width:] == -1).all()
    for mine, theirs, near in zip(lists.slots, slots, similarities, strict=True):
        # A clone more or less at the end of a list is as good as another.
        sure = near > near[-1] + 1e-5 if len(near) == K else np.ones(len(near), dtype=bool)
        assert set(theirs[sure].tolist()) <= set(mine.tolist())
    rows, columns = np.nonzero(lists.slots >= 0)
    ends = zip(rows.tolist(), lists.slots[rows, columns].tolist(), strict=True)
    found = dict(zip(ends, lists.copied[rows, columns].tolist(), strict=True))
    for r, row in enumerate(slots):
        for slot, share in zip(row, copied[r], strict=True):
            assert found.get((r, slot), share) == pytest.approx(share, abs=1e-6)


def test_copies_are_listed_in_the_order_of_their_arrival():
    # More copies than a list is long: products of other shapes give them other cosines.
    copies = clones_of(KNOWN[0], 9)
    graph = grown(K, fitted=join(KNOWN, copies))
    same = graph.index.slots_of([KNOWN.ids[0], *copies.ids])
    late = clones_of(KNOWN[0], 40, "late")
    for overlay in graph.overlay(late), graph.overlay(late.take([0, 1])):
        assert overlay.lists.slots[0].tolist() == same.tolist()[:K]
    graph.learn(late.ids, graph.overlay(late))
    for slot in same.tolist():
        others = [other for other in same.tolist() if other != slot]
        assert graph.lists.slots[slot].tolist() == others[:K]


def grown(k, *parts, fitted=KNOWN):
    graph = SimilarityGraph(KNOWN.dim, k)
    if len(fitted):
        graph.fit(fitted.ids, fitted)
    for part in parts:
        graph.learn(part.ids, graph.overlay(part))
    return graph


def content(graph):
    values, arrays = graph.state()
    return json.dumps(values), {name: array.tobytes() for name, array in arrays.items()}


def test_a_fitted_graph_holds_the_nearest_of_every_entry():
    graph = grown(K, fitted=EVERYTHING)
    assert_lists(graph.lists, brute(EVERYTHING, K))
    assert len(graph) == graph.n_slots == N


@pytest.mark.parametrize("size", [1, 5, N], ids=["singly", "in batches", "at once"])
@pytest.mark.parametrize("known", [60, 1, 0], ids=["known", "one known", "from nothing"])
def test_learning_equals_fitting_if_lists_hold_all_entries(size, known):
    rest = EVERYTHING.take(np.arange(known, N))
    graph = grown(N - 1, *parts(rest, size), fitted=EVERYTHING.take(np.arange(known)))
    assert_lists(graph.lists, brute(EVERYTHING, N - 1))


@pytest.mark.parametrize("size", [1, 7, len(NEW)], ids=["singly", "in batches", "at once"])
def test_new_entries_get_exact_lists_and_update_their_neighbors(size):
    graph = grown(K)
    for part in parts(NEW, size):
        before, start = graph.lists.slots.copy(), graph.n_slots
        overlay = graph.overlay(part)
        graph.learn(part.ids, overlay)
        so_far = EVERYTHING.take(np.arange(graph.n_slots))
        full = brute(so_far, K)
        assert_lists(graph.lists.take(np.s_[start:]), full, np.s_[start:])
        # A standing list holds the best of its old entries and the new ones that reached it.
        new = graph.lists.slots[start:]
        similar = so_far.embeddings @ so_far.embeddings.T
        for slot in range(start):
            reached = start + np.flatnonzero((new == slot).any(axis=1))
            pool = np.concatenate([before[slot][before[slot] >= 0], reached])
            best = np.sort(similar[slot, pool])[::-1][:K]
            np.testing.assert_allclose(graph.lists.similarities[slot], best, atol=1e-5)
            if not len(reached):
                assert (graph.lists.slots[slot] == before[slot]).all()


def test_overlay_previews_learning_without_changing_the_graph():
    graph = grown(K)
    before = content(graph)
    overlay = graph.overlay(NEW)
    overlay.vectors(overlay.numbers), overlay.all_words.take(overlay.numbers)
    assert content(graph) == before
    graph.learn(NEW.ids, overlay)
    np.testing.assert_array_equal(graph.lists.take(overlay.numbers).slots, overlay.lists.slots)
    untouched = np.setdiff1d(np.arange(len(KNOWN)), overlay.numbers)
    assert len(untouched) > 0
    np.testing.assert_array_equal(
        graph.lists.take(untouched).slots, grown(K).lists.take(untouched).slots
    )
    np.testing.assert_allclose(
        overlay.vectors(overlay.numbers), EVERYTHING.embeddings[overlay.numbers], atol=1e-7
    )


def test_removed_entry_leaves_all_lists_and_an_empty_slot():
    graph = grown(N - 1, NEW)
    gone = np.array([0, 7, 8, 61, N - 1])
    rows = graph.remove([EVERYTHING.ids[row] for row in gone])
    stay = np.setdiff1d(np.arange(N), gone)
    assert set(rows.tolist()) >= set(stay.tolist())
    np.testing.assert_array_equal(graph.present, stay)
    slots, similarities, copied = brute(EVERYTHING.take(stay), N - 1)
    assert_lists(graph.lists.take(stay), (stay[slots], similarities, copied))
    assert (graph.lists.slots[gone] == -1).all()
    again = EVERYTHING.take([7])
    graph.learn(again.ids, graph.overlay(again))
    assert graph.present[-1] == N
    assert 7 not in graph.lists.slots
    np.testing.assert_allclose(
        graph.lists.similarities[N, : len(stay)],
        np.sort(EVERYTHING.embeddings[stay] @ EVERYTHING.embeddings[7])[::-1],
        atol=1e-5,
    )


def test_removing_finds_every_list_that_had_the_entry(monkeypatch):
    monkeypatch.setattr(listers, "AT_ONCE", 20)
    rng = np.random.default_rng(0)
    pool = [EVERYTHING, passages(120, 7, "more"), clones_of(KNOWN[1], 40, "copy")]  # copies: hubs
    coming = parts(join(*pool[1:]), 5)
    graph, found = grown(K, fitted=EVERYTHING), []
    for step, part in enumerate(coming):
        graph.learn(part.ids, graph.overlay(part))
        if step == 20:
            graph.compact()
        if step % 2:  # learned entries, and later the fitted ones
            leaving = rng.choice(graph.present, 4, replace=False)
            had = np.flatnonzero(np.isin(graph.lists.slots, leaving).any(axis=1))
            rows = graph.remove(graph.index.ids_of(leaving))
            np.testing.assert_array_equal(rows, had)
            assert not np.isin(graph.lists.slots, leaving).any()
            found.append(len(rows))
    assert len(found) == 16
    assert min(found) > 0


def test_renumbering_changes_the_numbers_and_nothing_else():
    compact, other = grown(K, NEW), grown(K, NEW)
    for graph in (compact, other):
        graph.remove(EVERYTHING.ids[5:45])
    standing = other.present
    np.testing.assert_array_equal(compact.compact(), standing)
    more = passages(9, 5, "more")
    for graph in (compact, other):
        graph.learn(more.ids, graph.overlay(more))
        graph.remove(NEW.ids[:1])
    assert compact.n_slots == N - 40 + len(more) < other.n_slots
    rows = [graph.index.slots_of((*EVERYTHING.ids[:5], *more.ids)) for graph in (compact, other)]
    lists = [graph.lists.take(row) for graph, row in zip((compact, other), rows, strict=True)]
    named = [
        [graph.index.ids_of(row[row >= 0]) for row in found.slots]
        for graph, found in zip((compact, other), lists, strict=True)
    ]
    assert named[0] == named[1]
    for part in ("similarities", "copied"):
        np.testing.assert_array_equal(*(getattr(found, part) for found in lists))
    words = [
        [words.tolist() for words in graph.words.take(row)]
        for graph, row in zip((compact, other), rows, strict=True)
    ]
    assert words[0] == words[1]


def test_renumbering_forgets_unused_lineages():
    graph = grown(K, NEW)
    left = [row for row in range(N) if row not in range(5, 45)]
    graph.remove(EVERYTHING.ids[5:45])
    graph.compact()
    names = graph.state()[0]["lineages"]
    stand = [lineage for lineage in EVERYTHING.take(left).lineages if lineage is not None]
    assert set(names) == set(stand)
    codes = graph.columns["lineage"].tolist()
    assert [None if code == NO_LINEAGE else names[code - 1] for code in codes] == list(
        EVERYTHING.take(left).lineages
    )


@pytest.mark.parametrize("known", [60, 1, 0])
def test_state_survives_json_and_npz_without_pickle(known):
    graph = grown(K, *parts(NEW, 4), fitted=KNOWN.take(np.arange(known)))
    graph.remove(NEW.ids[2:5])
    again = SimilarityGraph.restored(*through_files(*graph.state()))
    assert content(again) == content(graph)
    more = passages(9, 5, "more")
    for each in (graph, again):
        each.learn(more.ids, each.overlay(more))
        each.remove(NEW.ids[:1])
    assert content(again) == content(graph)
