"""Normal growth: similarity of newcomers, against samples of the passages already there."""

import json

import numpy as np
import pytest

from ragshield_core import Batch, Quarantine
from ragshield_core.tools.canary import (
    CanaryMonitor,
    CanarySuite,
    DriftReport,
    MatrixRetriever,
    Passage,
)
from ragshield_core.tools.canary.compare import (
    MATES,
    UsualResemblance,
    _contrasts,
    _List,
)

K, DEPTH, DIM = 6, 18, 48


def near(rng, centre, spread, n):
    """Return n unit vectors around a centre."""
    vectors = centre + spread * rng.normal(size=(n, DIM)) / np.sqrt(DIM)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def topics(rng, n):
    """Return n lists of passages, each about one thing."""
    found = []
    for number in range(n):
        vectors = near(rng, near(rng, np.zeros(DIM), 1.0, 1)[0], 1.0, DEPTH)
        found.append(
            [Passage(id=f"{number}-{row}", text="", vector=v) for row, v in enumerate(vectors)]
        )
    return found


def with_group(rng, passages, rows, *, spread=0.3, lineage=None):
    """Return a list in which some ranks are of texts that were made from one."""
    model = passages[0].vector + 0.6 * near(rng, np.zeros(DIM), 1.0, 1)[0]
    changed = list(passages)
    for row, vector in zip(rows, near(rng, model, spread, len(rows)), strict=True):
        changed[row] = Passage(id=f"bad-{row}", text="", vector=vector, lineage=lineage)
    return changed


def flags(rows):
    return [row in rows for row in range(DEPTH)]


def test_the_contrast_by_hand():
    # Two newcomers at the head with cosine .9; to the standing passage, cosines .5 and .7.
    similar = np.array([[1, 0.9, 0.5], [0.9, 1, 0.7], [0.5, 0.7, 1]], dtype=np.float32)
    apart = ~np.eye(3, dtype=np.bool_)
    new = np.array([[True, True, False]])
    found = _contrasts([_List(similar, apart)], new, 2)
    assert found.shape == (1, MATES)
    assert found[0, 0] == pytest.approx(0.9 - 0.7)  # the least of both
    assert np.isneginf(found[0, 1:]).all()  # no group of three
    assert np.isneginf(_contrasts([_List(similar, apart)], new, 1)).all()  # one is below the head


def test_a_group_is_rare_and_good_news_is_not():
    rng = np.random.default_rng(0)
    lists = topics(rng, 60)
    new = [flags(())] * 60
    for row in range(5):
        lists[row] = with_group(rng, lists[row], (0, 1, 2))
        new[row] = flags((0, 1, 2))
    for row in range(5, 25):
        new[row] = flags([*rng.permutation(K)[:3].tolist(), 7, 9, 12])
    usual = UsualResemblance(lists, new, K)
    assert max(usual.p_value(row) for row in range(5)) < 0.01
    good = np.array([usual.p_value(row) for row in range(5, 25)])
    assert np.mean(good < 0.1) <= 0.25
    assert np.mean(good > 0.3) > 0.4


@pytest.mark.slow
def test_p_value_is_valid_under_growth():
    p = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        lists = topics(rng, 60)
        new = [flags(rng.permutation(DEPTH)[: rng.integers(2, 9)].tolist()) for _ in lists]
        usual = UsualResemblance(lists, new, K)
        p += [usual.p_value(row) for row in range(60)]
    told = np.array([value for value in p if value is not None])
    assert len(told) > 200
    for level in (0.02, 0.1, 0.3):
        assert np.mean(told <= level) <= level + 2.5 * np.sqrt(level * (1 - level) / len(told))


def test_p_value_is_deterministic_in_any_order():
    rng = np.random.default_rng(3)
    lists = topics(rng, 20)
    lists[4] = with_group(rng, lists[4], (1, 3))
    new = [flags((1, 3) if row == 4 else ()) for row in range(20)]
    first = UsualResemblance(lists, new, K)
    second = UsualResemblance(lists, new, K)
    second._drawn(3, 1)
    assert first.p_value(4) == second.p_value(4)


@pytest.mark.parametrize(
    ("what", "lineage", "spread"), [("chunks of one document", "doc", 0.3), ("copies", None, 0.0)]
)
def test_chunks_and_copies_of_a_document_are_not_a_group(what, lineage, spread):
    rng = np.random.default_rng(1)
    lists = topics(rng, 20)
    lists[0] = with_group(rng, lists[0], (0, 1, 2), spread=spread, lineage=lineage)
    new = [flags((0, 1, 2))] + [flags(())] * 19
    assert UsualResemblance(lists, new, K).p_value(0) is None, what


def test_p_value_is_none_without_vectors_or_company():
    rng = np.random.default_rng(2)
    lists = topics(rng, 20)
    bare = [Passage(id=p.id, text=p.text) for p in lists[0]]
    usual = UsualResemblance([bare, *lists[1:]], [flags((0, 1))] * 2 + [flags(())] * 18, K)
    assert not usual.knows(0)
    assert usual.p_value(0) is None
    assert usual.p_value(1) is not None
    alone = UsualResemblance(lists, [flags((0,))] + [flags(())] * 19, K)
    assert alone.p_value(0) is None
    everything = UsualResemblance(lists, [[True] * DEPTH] + [flags(())] * 19, K)
    assert everything.p_value(0) is None  # nothing stands there to be compared with
    few = UsualResemblance(lists[:4], [flags((0, 1))] + [flags(())] * 3, K)
    assert not few.knows(0)
    assert UsualResemblance([[]] * 6, [[]] * 6, K).p_value(0) is None


# In a check


def growing(by_topic):
    """Return a monitor over sixty topics of thirty pages, a few of which come later."""
    rng = np.random.default_rng(5)
    names = [f"What is known of matter {number}?" for number in range(60)]
    centres = near(rng, np.zeros(DIM), 1.0, 60)
    vectors = np.concatenate([near(rng, centre, 0.9, 30) for centre in centres])
    pages = Batch.of(
        ids=[f"page-{row}" for row in range(len(vectors))],
        texts=[f"a page on something, number {row}" for row in range(len(vectors))],
        embeddings=vectors,
    )
    if by_topic:  # half of the pages on eight topics
        late = [row for row in range(8 * 30) if rng.random() < 0.5]
    else:
        late = rng.choice(len(pages), 120, replace=False).tolist()
    asked = dict(zip(names, centres, strict=True))

    def embed(queries):
        return np.stack([asked[query] for query in queries])

    base = pages.take(np.setdiff1d(np.arange(len(pages)), late))
    retriever = MatrixRetriever(base, embed)
    suite = CanarySuite([{"name": name, "query": name} for name in names])
    monitor = CanaryMonitor(suite, retriever, k=K, quarantine=Quarantine("sqlite://"))
    monitor.record_baseline()
    return monitor, retriever, pages, names, centres, rng


@pytest.mark.parametrize("by_topic", [True, False])
@pytest.mark.slow
def test_growth_by_topics_is_no_drift_and_poison_within_it_is(by_topic):
    monitor, retriever, pages, names, centres, rng = growing(by_topic)
    retriever.batch = pages
    before = monitor.compare()
    assert sum(any(d.newcomers) for d in before.canaries) >= 8  # there is growth
    assert len(before.flagged) <= 1
    targets = (0, 5, 30, 50)  # two of which grow by topic
    vectors = np.concatenate(
        [near(rng, near(rng, centres[t], 0.5, 1)[0], 0.25, 4) for t in targets]
    )
    bad = Batch.of(
        ids=[f"bad-{row}" for row in range(len(vectors))],
        texts=[f"what nobody else says, {row}" for row in range(len(vectors))],
        embeddings=vectors,
    )
    retriever.batch = Batch.of(
        ids=[*pages.ids, *bad.ids],
        texts=[*pages.texts, *bad.texts],
        embeddings=np.concatenate([pages.embeddings, bad.embeddings]),
    )
    after = monitor.compare()
    assert {names[t] for t in targets} <= {d.name for d in after.flagged}
    reasons = " ".join(after[names[0]].reasons)
    assert "resemble each other more than what stands around them" in reasons
    again = DriftReport.from_dict(json.loads(after.to_json()))
    assert again[names[0]].resemblance_p == after[names[0]].resemblance_p
