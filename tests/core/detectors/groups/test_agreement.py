"""Claims that new entries share and their neighbours lack: by definition, and in a guard."""

import math

import numpy as np
import pytest
from support import passages
from topics import CENTRES, DIM, clean, on_topics

from ragshield_core import Batch
from ragshield_core.detectors import CliqueDetector
from ragshield_core.detectors.groups import agreement as of_agreement
from ragshield_core.detectors.groups.agreement import (
    COVERAGE,
    FADING,
    LEAST_SHARE,
    NEAREST,
    NEW_TO_ALL,
    PRIOR,
    STANDS,
    TELLING,
    Newcomers,
    Shared,
    WordShares,
    agreement,
)
from ragshield_core.detectors.groups.graph import SimilarityGraph
from ragshield_core.detectors.groups.words import EntryWords, Words
from ragshield_core.text.copies import spelling, word_hashes

N, K = 30, 8


def words_at_random(rng, n):
    """Return the hashes of n texts of a small vocabulary, some of them empty."""
    return [
        word_hashes(" ".join(f"w{i}" for i in rng.integers(0, 25, size=rng.integers(0, 14))))
        for _ in range(n)
    ]


class Naive:
    """The definition, word by word."""

    def __init__(self, words, slots, similarities, mates, standing):
        self.words = [set(one.tolist()) for one in words]
        self.slots, self.similarities = slots, similarities
        self.mates, self.standing = mates, standing

    def share(self, word):
        return (sum(word in one for one in self.words) + 0.5) / (len(self.words) + 1)

    def telling(self, row, n_mates):
        mates = [c for c in self.mates[row, :n_mates] if c >= 0]
        if len(mates) < n_mates:
            return {}
        near = [self.similarities[row, c] for c in self.mates[row, :NEAREST] if c >= 0]
        reach = sum(float(one) for one in near) / len(near)
        around = {
            self.slots[row, c]: math.exp(min(0.0, self.similarities[row, c] - reach) / FADING)
            for c in np.flatnonzero(self.standing[row])
        }
        found = {}
        for word in self.words[row]:
            have = sum(weight for slot, weight in around.items() if word in self.words[slot])
            p = (have + PRIOR * self.share(word)) / (sum(around.values()) + PRIOR)
            p = min(max(p, LEAST_SHARE), 1 - LEAST_SHARE)
            q = sum(word in self.words[self.slots[row, c]] for c in mates) / n_mates
            q = min(max(q, LEAST_SHARE), 1 - LEAST_SHARE)
            gain = n_mates * (q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p)))
            found[word] = max(gain, 0.0) if q > p else 0.0
        return found

    def agreement(self, row, n_mates):
        telling = sorted(self.telling(row, n_mates).values(), reverse=True)
        claim = sum(telling[:TELLING]) - sum(telling[TELLING : 2 * TELLING])
        mates = [self.slots[row, c] for c in self.mates[row, :n_mates]]
        around = [self.slots[row, c] for c in np.flatnonzero(self.standing[row])]
        total = covered = 0.0
        for word in self.words[row]:
            topic = -math.log(self.share(word)) * sum(word in self.words[m] for m in mates)
            total += topic
            covered += topic * any(word in self.words[a] for a in around)
        return max(claim, 0.0) * (covered / total) ** COVERAGE if total and telling else 0.0


@pytest.mark.parametrize("seed", range(4))
def test_agreement_matches_a_naive_implementation(seed, monkeypatch):
    monkeypatch.setattr(of_agreement, "AT_ONCE", 10**seed)
    rng = np.random.default_rng(seed)
    words = words_at_random(rng, N)
    slots = np.stack([rng.permutation(np.delete(np.arange(N), row))[:K] for row in range(N)])
    slots[rng.random(slots.shape) < 0.1] = -1
    similarities = np.sort(rng.random((N, K)), axis=1)[:, ::-1].astype(np.float32)
    new = (rng.random(slots.shape) < 0.4) & (slots >= 0)
    standing = (slots >= 0) & ~new
    mates = np.full((N, 4), -1)
    for row in range(N):
        columns = np.flatnonzero(new[row])[:4]
        mates[row, : len(columns)] = columns
    shared = Shared.of(np.arange(N), slots, Words(EntryWords(), words).take, new)
    found = agreement(shared, WordShares.of([words]), mates, standing, similarities)
    naive = Naive(words, slots, similarities, mates, standing)
    expected = [[naive.agreement(row, n + 1) for n in range(4)] for row in range(N)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert (found > 0.0).sum() > N


def test_shares_count_entries_and_not_words():
    shares = WordShares.of([[word_hashes(text) for text in ("x x y", "x", "z")]])
    again = WordShares.restored(shares.state())
    for one in (shares, again):
        np.testing.assert_allclose(
            one(word_hashes("x y never")), [2.5 / 4, 1.5 / 4, 0.5 / 4], rtol=1e-12
        )
    assert WordShares.of([[]])(word_hashes("x")).tolist() == [0.5]


def test_spelling_covers_exactly_the_hashed_words():
    text = "Ünïcode words, AND ascii_words: 3.5"
    spelled = spelling(text)
    assert set(spelled) == set(word_hashes(text).tolist())
    assert {"ünïcode", "ascii_words", "3", "5", "and"} <= set(spelled.values())


def test_only_entries_that_came_together_count_as_new():
    vectors = 1.0 + 0.05 * np.random.default_rng(0).normal(size=(17, DIM))
    texts = [f"topic matter standing {i}" for i in range(11)] + ["topic matter claimed"] * 6
    batch = Batch.of(ids=[str(i) for i in range(17)], texts=texts, embeddings=vectors)
    graph = SimilarityGraph(batch.dim, 16)  # all are in all lists
    graph.fit(batch.ids, batch)
    overlay = graph.part(graph.present)
    near = np.ones(overlay.lists.slots.shape, dtype=np.float32)
    arrived = np.full(17, STANDS)
    arrived[11:14], arrived[14:16], arrived[16] = 0, 1, NEW_TO_ALL
    newcomers = Newcomers(
        overlay, WordShares.of([graph.words.take(graph.present)]), arrived.__getitem__
    )

    def found(row, n_mates):
        agreed = newcomers.agreed(row, near[:1], n_mates)
        return None if agreed is None else set(agreed.numbers.tolist())

    assert found(11, 3) == {12, 13, 16}
    assert found(11, 4) is None
    assert found(14, 2) == {15, 16}
    assert found(0, 1) is None  # it was there before
    agreed = newcomers.agreed(11, near[:1], 3)
    assert [spelling(texts[11])[word] for word in agreed.words.tolist()] == ["claimed"]
    assert (agreed.n_around, agreed.n_having) == (13, 2)  # two of them came another time
    scores = newcomers.agreement(np.arange(17), near[None], 4)[0]
    assert (scores[:11] == 0.0).all()
    assert (scores[11:14, :3] > 0.0).all()


KNOWN = clean(2_400, 0)


def newcomers(seed, topic=0, claim="march fifteenth"):
    """Return entries on one topic, near to each other, that share a claim."""
    rng = np.random.default_rng(seed)
    middle = CENTRES[topic] + 0.6 * rng.normal(size=DIM)
    vectors = middle + 0.35 * rng.normal(size=(5, DIM))
    return on_topics(rng, [topic] * 5, vectors, "new", [claim] * 5)


@pytest.fixture(scope="module")
def detector():
    return CliqueDetector().fit(KNOWN)


@pytest.mark.slow
def test_a_claim_on_a_covered_topic_makes_a_group_more_suspicious(detector):
    """In most cases, since a claim may also use words that the knowledge base lacks."""
    with_claim, without = (
        [np.median(detector.score(newcomers(seed, seed % 8, claim))) for seed in range(40)]
        for claim in ("march fifteenth", "")
    )
    assert np.mean(with_claim) > np.mean(without) + 1.0
    assert np.mean(np.array(with_claim) > np.array(without)) >= 0.8


@pytest.mark.slow
def test_evidence_names_agreed_words_and_their_use_elsewhere(detector):
    batch = newcomers(3)
    detector.score(batch)
    sentences = [evidence.sentence for evidence in detector.explain(batch, range(5))]
    assert any("'march'" in one and "'fifteenth'" in one for one in sentences)
    assert any("none of the" in one for one in sentences)
    assert all(" older entries on the topic do" in one for one in sentences)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_large_batch_is_not_suspicious_for_its_size(detector, seed):
    """Each tenth of a large batch is compared as new on its own."""
    group = newcomers(seed, topic=1)
    rng = np.random.default_rng(100 + seed)
    texts = [" ".join(rng.permutation(text.split())) for text in KNOWN.texts[:1_200]]
    vectors = KNOWN.embeddings[:1_200] + 0.6 * rng.normal(size=(1_200, DIM))

    def score(places):
        mixed, moved = list(texts), vectors.copy()
        for place, text in zip(places, group.texts, strict=True):
            mixed[place] = text
        moved[places] = group.embeddings
        batch = Batch.of(ids=[f"fresh-{i}" for i in range(1_200)], texts=mixed, embeddings=moved)
        return detector.score(batch)[places]

    together, apart = score([600, 601, 602, 603, 604]), score([0, 300, 600, 900, 1_199])
    np.testing.assert_allclose(together, detector.score(group), atol=2.0)
    assert (apart < together - 2.0).all()


def test_few_entries_say_too_little_about_words():
    detector = CliqueDetector().fit(passages(900, 1))
    _, arrays = detector.state()
    assert not any(key.startswith("words.") for key in arrays)


def test_word_counts_are_the_same_part_by_part():
    texts = [word_hashes(text) for text in ("x x y", "x", "", "z y", "w")]
    whole = WordShares.of([texts])
    parts = WordShares.of([texts[:2], [], texts[2:3], texts[3:]])
    for name, array in whole.state().items():
        np.testing.assert_array_equal(parts.state()[name], array)
        assert parts.state()[name].dtype == array.dtype
    assert WordShares.of([]).n_entries == 0
