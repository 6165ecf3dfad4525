"""The parts of the comparison with peers that run without installing them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from peer_groups import CleanBase, GroupPeer, measure
from peer_labels import Centroids, flipped_batches
from peer_lists import K, Ranked
from peer_tables import Counts, Judgement, threshold_at
from retrieval import RetrievedExample

from ragshield_core import Batch
from ragshield_core.detectors import CliqueDetector, LabelCentroidDetector

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def entries(vectors, prefix="e", labels=None):
    n = len(vectors)
    return Batch.of(
        ids=[f"{prefix}{i}" for i in range(n)],
        texts=[f"{prefix} text {i}" for i in range(n)],
        embeddings=vectors,
        labels=labels,
    )


def with_group(seed=0):
    """Return a knowledge base, and new entries of which the first five resemble each other."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(300, 32)) + 0.5
    new = rng.normal(size=(40, 32)) + 0.5
    new[:5] = rng.normal(size=32) + 0.5 + 0.15 * rng.normal(size=(5, 32))
    return entries(known, "known"), entries(new, "new")


@pytest.mark.parametrize("fpr", [0.0, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("ties", [False, True])
def test_threshold_is_the_lowest_that_keeps_the_rate(fpr, ties):
    clean = np.random.default_rng(1).normal(size=997)
    clean = np.round(clean) if ties else clean
    threshold = threshold_at(clean, fpr)
    assert np.mean(clean > threshold) <= fpr
    # One step lower would be too many.
    assert np.mean(clean >= threshold) > fpr


def test_a_table_shows_exact_intervals_and_time_beside_embedding():
    counts = Counts()
    counts.add("a", "clean", np.zeros(100, dtype=bool))
    counts.add("b", "clean", np.array([True, False]))
    counts.took("a", 0.5, 100)
    lines = counts.table(["clean"], embedding=20.0)
    assert lines[2:] == [
        "| a | 0.000 [0.000, 0.036] | 5.00 | 0.250 |",
        "| b | 0.500 [0.013, 0.987] | – | – |",
    ]


def test_default_cleanbase_matches_the_published_rule():
    known, new = with_group()
    peer = CleanBase()
    peer.fit(known)
    (judged,) = peer.judge(new).values()
    everything = Batch.of(
        ids=[*known.ids, *new.ids],
        texts=[*known.texts, *new.texts],
        embeddings=np.concatenate([known.embeddings, new.embeddings]),
    )
    detector = CliqueDetector(rule="cleanbase")
    expected = detector.audit(everything)[len(known) :] > detector.default_threshold
    assert judged.own[:5].all()
    np.testing.assert_array_equal(judged.own, expected)
    np.testing.assert_array_equal(judged.scores >= 2.5 - 1e-9, expected)


def test_copies_are_found_beyond_the_length_of_neighbor_lists():
    known, new = with_group()
    vectors = new.embeddings.copy()
    vectors[:20] = vectors[0]  # more than the lists are long
    peer = CleanBase()
    peer.fit(known)
    (judged,) = peer.judge(entries(vectors, "new")).values()
    assert judged.own[:20].all()


class Fixed(GroupPeer):
    """Scores entries by their ids, and records its inputs."""

    def fit(self, known):
        self.seen = [set(known.ids)]

    def judge(self, new):
        self.seen.append(set(new.ids))
        scores = np.array([1.0 if i.startswith("poison") else 0.0 for i in new.ids])
        return {"fixed": Judgement(scores > 2.0, scores)}


def test_thresholds_come_from_clean_entries_outside_the_test_set():
    known, clean, test = (entries(np.eye(8), name) for name in ("known", "clean", "test"))
    poison = entries(np.eye(3, 8), "poison")
    peer, counts = Fixed(), Counts()
    measure(peer, known, clean, test, {"attack": poison}, counts)
    assert peer.seen[1] == set(clean.ids)
    assert not peer.seen[1] & set().union(*peer.seen[2:])
    assert counts.rate("fixed, at 1 %", "attack") == 1.0
    assert counts.rate("fixed, at 1 %", "clean") == 0.0
    assert counts.rate("fixed, as it comes", "attack") == 0.0


def retrieved(seed, n_poisoned):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(K, 32)) + 0.5
    query = rng.normal(size=32) + 0.5
    if n_poisoned:
        vectors[:n_poisoned] = query + 0.1 * rng.normal(size=(n_poisoned, 32))
    poisoned = np.arange(K) < n_poisoned
    return RetrievedExample("what is it?", query, entries(vectors, f"{seed}-"), poisoned)


@pytest.mark.parametrize("number", [0, 1, 4])
def test_ranked_drops_the_given_number_poisoned_first(number):
    ranked = Ranked([retrieved(seed, 0) for seed in range(20)], lambda _example, _data: number)
    dropped = ranked(retrieved(99, 4), "nq")
    assert dropped.sum() == number
    assert dropped[:4].sum() == number


def test_unguard_flags_entries_nearer_to_another_centroid():
    labels = ["a"] * 20 + ["b"] * 20
    vectors = np.repeat([[1.0, 0.1], [0.1, 1.0]], 20, axis=0)
    peer = Centroids("unguard", LabelCentroidDetector())
    peer.fit(entries(vectors, labels=labels))
    judged = peer.judge(entries(np.array([[1.0, 0.2], [1.0, 0.2]]), "new", ["a", "b"]))
    assert judged.own.tolist() == [False, True]


def test_only_entries_marked_as_bad_have_flipped_labels():
    rest = entries(np.random.default_rng(0).normal(size=(300, 8)), labels=["a", "b", "c"] * 100)
    for name, (batch, bad) in flipped_batches(rest, seed=3).items():
        assert batch.ids == rest.ids
        changed = [old != new for old, new in zip(rest.labels, batch.labels, strict=True)]
        np.testing.assert_array_equal(changed, bad)
        assert bad.mean() == {"clean": 0.0, "10% flipped": 0.1, "40% flipped": 0.4}.get(
            name, pytest.approx(5 / 300)
        )


def test_page_contains_the_last_results_of_every_role():
    stored = json.loads((RESULTS / "peers.json").read_text(encoding="utf-8"))
    page = (RESULTS / "peers.md").read_text(encoding="utf-8")
    assert set(stored) == {"groups", "texts", "lists", "labels", "canaries"}
    for role in stored.values():
        assert "\n".join(role["lines"]) in page


def _figures(cells):
    """Return the figures of cells, without their intervals."""
    return {cell.partition(" [")[0] for cell in cells}


def test_docs_quote_the_figures_of_the_benchmark():
    page = (RESULTS / "peers.md").read_text(encoding="utf-8")
    docs = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- results: peers -->\n(.*?)<!-- end -->", docs, flags=re.DOTALL)
    rows = [row for block in blocks for row in block.splitlines()[2:] if row.startswith("| ")]
    assert len(rows) > 10
    written = [set(line.strip("| ").split(" | ")) for line in page.splitlines()]
    for row in rows:
        cells = row.strip("| ").split(" | ")
        # All of a row's figures stand in one row of the results, where intervals follow them.
        assert any(_figures(cells[1:]) <= _figures(line) for line in written), row
