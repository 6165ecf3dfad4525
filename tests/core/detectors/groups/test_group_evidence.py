"""Tightness, contrast and ties entry by entry, as the module's docstring defines them."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import clones_of, group, join, passages, prose, through_files

from ragshield_core import Batch
from ragshield_core.detectors.groups.agreement import Newcomers, WordShares
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    COPIED_ALL,
    COPIED_FROM,
    FLOOR,
    NO_NUMBERS,
    PARTS,
    SIZES,
    SURROUNDINGS,
    GroupEvidence,
    Held,
    K,
    Kin,
    cosine_of,
    nearness,
)
from ragshield_core.detectors.groups.graph import (
    COMPARE_ABOVE,
    COSINE_STEPS,
    SimilarityGraph,
    rounded,
)
from ragshield_core.detectors.groups.usual import COPIES, Surprisal, Usual, tied_to_groups


def corpus(seed, n=45, dim=6):
    """Return entries in few dimensions: documents, entries of no lineage, and copied text."""
    rng = np.random.default_rng(seed)
    documents = rng.normal(size=(n // 3, dim))
    row = rng.integers(n // 3, size=n)
    texts = [prose(rng, 12) for _ in range(n)]
    vectors = documents[row] + rng.normal(scale=0.3, size=(n, dim))
    for copy, original in rng.integers(n, size=(n // 4, 2)):
        words = texts[original].split()
        words[: rng.integers(6)] = []  # from whole copies to halves
        texts[copy] = " ".join([*words, *prose(rng, int(rng.integers(1, 9))).split()])
        vectors[copy] = vectors[original] + rng.normal(scale=0.05, size=dim)
        row[copy] = row[original] if rng.random() < 0.5 else row[copy]
    lineages = [None if rng.random() < 0.2 else f"doc{r}" for r in row]
    return Batch.of(
        ids=[f"e{seed}-{i}" for i in range(n)], texts=texts, embeddings=vectors, lineages=lineages
    )


# Of kin, half of the nearness counts.
HALF = 0.5
KIN = Kin(np.array([0.0, 10.0], np.float32), np.array([0.0, 10.0 * HALF], np.float32))


class Naive:
    """The definition in the module's docstring, one entry at a time."""

    def __init__(self, batch, channel, exempt=(), of=None):
        self.batch, self.channel, self.exempt = batch, channel, exempt
        mean = (batch if of is None else of).embeddings.mean(axis=0)
        self.unrelated = round(float(1.0 - mean @ mean), 4)
        self.n = len(batch)
        self.members = [self.nearest(i) for i in range(self.n)]
        self.tight = [[self.tightness(i, g) for g in SIZES] for i in range(self.n)]
        self.near = [[self.contrast(i, g, reach=True) for g in SIZES] for i in range(self.n)]
        self.far = [[self.contrast(i, g, reach=False) for g in SIZES] for i in range(self.n)]

    def cosine(self, i, j, *, listed):
        """Return a cosine relative to that of all pairs, rounded if it is in a list."""
        cosine = np.dot(*self.batch.embeddings[[i, j]].astype(np.float64))
        cosine = float(rounded(cosine, COSINE_STEPS)) if listed else cosine
        return float(1.0 - (1.0 - cosine) / self.unrelated)

    def copied(self, i, j):
        words = [re.findall(r"\w+", self.batch.texts[x].lower()) for x in (i, j)]
        for n, least in ((3, 6), (1, 1)):
            a, b = ({tuple(w[s : s + n]) for s in range(len(w) - n + 1)} for w in words)
            if min(len(a), len(b)) >= least:
                return math.floor(240 * len(a & b) / min(len(a), len(b)) + 1e-3) / 240
        return 0.0

    def worth(self, i, j):
        mine, theirs = self.batch.lineages[i], self.batch.lineages[j]
        if mine is None or mine != theirs:
            return float(self.channel != "same")
        return {"cross": 0.0, "same": 1.0, "any": HALF}[self.channel] * (mine not in self.exempt)

    def nearness(self, i, j, *, listed=True):
        cosine = self.cosine(i, j, listed=listed)
        copied = self.copied(i, j) if cosine > COMPARE_ABOVE else 0.0
        explained = min(max((copied - COPIED_FROM) / (COPIED_ALL - COPIED_FROM), 0.0), 1.0)
        near = -math.log(1.0 + FLOOR - min(max(cosine, 0.0), 1.0)) * (1.0 - explained)
        return near * self.worth(i, j)

    def nearest(self, i):
        others = [j for j in range(self.n) if j != i]
        others.sort(key=lambda j: -self.cosine(i, j, listed=False))
        others = others[:K]
        ranked = sorted(((self.nearness(i, j), j) for j in others), key=lambda pair: -pair[0])
        return [(j, near) for near, j in ranked if near > 0.0]

    def tightness(self, i, g):
        members = self.members[i][: g - 1]
        who = [i, *(j for j, _ in members)]
        total = sum(self.nearness(b, a, listed=b == i) for n, a in enumerate(who) for b in who[:n])
        # Not tighter than the entry's own ties to the group are on average.
        return min(total / (g * (g - 1) / 2), sum(near for _, near in members) / (g - 1))

    def contrast(self, i, g, *, reach):
        around = self.members[i][g - 1 : g - 1 + SURROUNDINGS]
        theirs = [self.tight[j][SIZES.index(g)] for j, _ in around]
        if reach:
            theirs = [min(t, near) for t, (_, near) in zip(theirs, around, strict=True)]
        # Where there are fewer, the surroundings are as loose as can be.
        theirs += [0.0] * (len(around) < SURROUNDINGS)
        return self.tight[i][SIZES.index(g)] - max(theirs)

    def tied(self, part):
        values = getattr(self, part)

        def shared(i, c):
            theirs = [values[j][c] for j, _ in self.members[i][: SIZES[c] - 1]]
            return min(values[i][c], max([*theirs, *[0.0] * (len(theirs) < SIZES[c] - 1)]))

        return [[shared(i, c) for c in range(len(SIZES))] for i in range(self.n)]


def graph_of(batch):
    graph = SimilarityGraph(batch.dim, K)
    graph.fit(batch.ids, batch)
    return graph


def evidence_of(graph, channels=CHANNELS, exempt=()):
    overlay = graph.part(graph.present)
    return GroupEvidence(overlay, channels, {}, overlay.lineage_codes(exempt), kin=KIN)


def tied_to(graph):
    evidence = evidence_of(graph)
    nothing = {kind: np.zeros(len(graph), dtype=np.int64) for kind in COPIES}
    return tied_to_groups(evidence, np.s_[:], nothing)


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("seed", range(4))
def test_evidence_matches_a_naive_implementation(channel, seed):
    batch = corpus(seed)
    exempt = [lineage for lineage in batch.lineages if lineage][:2]
    evidence = evidence_of(graph_of(batch), exempt=exempt)
    naive = Naive(batch, channel, exempt)
    raw, tied = evidence.raw()[channel], evidence.tied(np.s_[:])[channel]
    for part in ("near", "far", "tight"):
        # nearness is steep close to 1: 1e-6 of a cosine is 2e-4 of it
        np.testing.assert_allclose(getattr(raw, part), getattr(naive, part), atol=1e-3)
        np.testing.assert_allclose(getattr(tied, part), naive.tied(part), atol=1e-3)
    for mine, theirs in zip(evidence[channel].members, naive.members, strict=True):
        assert {m for m in mine.tolist() if m >= 0} == {j for j, _ in theirs}
    copies = [(i, j) for i in range(len(batch)) for j, _ in naive.members[i] if naive.copied(i, j)]
    assert copies, "the corpus shows nothing of copies"
    rows = [2, 5, 3]
    np.testing.assert_array_equal(evidence.tied(np.array(rows))[channel].near, tied.near[rows])


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.slow
def test_evidence_of_a_new_entry_matches_a_full_computation(channel):
    batch = corpus(5)
    for row in range(6):
        known = batch.take(np.delete(np.arange(len(batch)), row))
        graph = graph_of(known)
        raw = evidence_of(graph).raw()
        standing = {part: {c: getattr(raw[c], part) for c in CHANNELS} for part in PARTS}
        overlay = graph.overlay(batch.take([row]))
        new = GroupEvidence(overlay, CHANNELS, standing, overlay.lineage_codes(()), kin=KIN)
        found = new.raw()[channel]
        expected = Naive(batch, channel, of=known)
        for part in ("near", "far", "tight"):
            np.testing.assert_allclose(
                getattr(found, part)[0], getattr(expected, part)[row], atol=1e-3
            )


def nobody_held(graph, tight):
    none = np.empty(0)
    kinds = (np.int64, np.float32, np.bool_)
    return Held.of(graph, *(none.astype(kind) for kind in kinds), tight)


@pytest.mark.parametrize("seed", range(3))
def test_suspicion_changes_only_the_evidence_of_those_beside_suspects(seed, monkeypatch):
    batch = corpus(seed, n=60)
    graph = graph_of(batch.take(range(45)))
    overlay = graph.overlay(batch.take(range(45, 60)))
    exempt = overlay.lineage_codes(())
    tight = evidence_of(graph).tightness()
    held = nobody_held(graph, tight)
    newcomers = Newcomers(
        overlay, WordShares.of([graph.words.take(graph.present)]), lambda numbers: numbers // 30
    )
    given = {"standing": {"tight": tight}, "exempt": exempt, "kin": KIN, "newcomers": newcomers}
    first = GroupEvidence(overlay, CHANNELS, **given)
    first.tied(np.arange(0, 20))  # some are known already
    suspecting = held.suspecting(np.array([0, 3]), first)
    seen, near = [], GroupEvidence._near

    def counting(self, rows):
        seen.append(len(rows))
        return near(self, rows)

    monkeypatch.setattr(GroupEvidence, "_near", counting)
    quick, whole = (
        GroupEvidence(overlay, CHANNELS, **given, held=one, before=first)
        for one in (suspecting, suspecting._replace(suspected=NO_NUMBERS))
    )
    assert sum(seen[:-1]) < seen[-1] == len(overlay.numbers)
    for channel, expected in whole.raw().items():
        for part in PARTS:
            np.testing.assert_array_equal(
                getattr(quick.raw()[channel], part), getattr(expected, part), err_msg=part
            )
    np.testing.assert_array_equal(quick.members, whole.members)
    np.testing.assert_array_equal(quick.nearness, whole.nearness)


@pytest.mark.parametrize(
    ("seed", "known", "n_new", "stored"),
    [
        *((seed, 294, 6, stored) for seed in range(1, 5) for stored in (False, True)),
        (10, 294, 6, False),  # by the contrast of another member
        (44, 294, 6, True),
        (11, 117, 3, True),  # by a member whose own list is not part of the overlay
        (14, 596, 4, True),
    ],
)
def test_only_rows_whose_evidence_suspicion_may_change_are_judged_again(seed, known, n_new, stored):
    batch = corpus(seed, n=known + n_new)
    graph = graph_of(batch.take(range(known)))
    overlay = graph.overlay(batch.take(range(known, known + n_new)))
    standing = evidence_of(graph).tightness()
    given = {"standing": {"tight": standing}, "exempt": overlay.lineage_codes(()), "kin": KIN}
    first, rows = GroupEvidence(overlay, CHANNELS, **given), np.arange(len(overlay.numbers))
    assert first.changed(rows).tolist() == rows.tolist()
    before = first.tied(rows)
    suspect = n_new + seed % (len(rows) - n_new) if stored else 0
    held = nobody_held(graph, standing).suspecting(np.array([suspect]), first)
    again = GroupEvidence(overlay, CHANNELS, **given, held=held, before=first)
    differs = np.zeros(len(rows), dtype=np.bool_)
    for channel, after in again.tied(rows).items():
        for one, other in zip(before[channel], after, strict=True):
            differs |= (one != other).any(axis=1)
    changed = again.changed(rows)
    assert set(np.flatnonzero(differs)) <= set(changed.tolist())
    assert differs.any()
    assert len(changed) < len(rows)
    assert again.changed(rows[::2]).tolist() == [row for row in changed.tolist() if row % 2 == 0]


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_channel_has_the_same_evidence_alone_and_with_the_others(channel):
    batch = corpus(7, n=60)
    graph = graph_of(batch.take(range(45)))
    overlay = graph.overlay(batch.take(range(45, 60)))
    tight = evidence_of(graph).tightness()
    newcomers = Newcomers(
        overlay, WordShares.of([graph.words.take(graph.present)]), lambda numbers: numbers // 30
    )
    alone, together = (
        GroupEvidence(
            overlay,
            channels,
            {"tight": tight},
            overlay.lineage_codes(()),
            kin=KIN,
            newcomers=newcomers,
        )
        for channels in ((channel,), CHANNELS)
    )
    for part in PARTS:
        one, other = (getattr(each.tied(np.s_[:])[channel], part) for each in (alone, together))
        assert one.any(), part
        np.testing.assert_array_equal(one, other, err_msg=part)
    for column, expected in zip(together[channel], alone[channel], strict=True):
        np.testing.assert_array_equal(column, expected)
    words = [
        [one.agreed(channel, row, 3) for row in range(len(overlay.numbers))]
        for one in (alone, together)
    ]
    said = [[one and (one.words.tolist(), one.numbers.tolist()) for one in each] for each in words]
    assert said[0] == said[1]
    assert any(said[0])


def test_the_bond_of_a_suspect_is_its_nearness_to_the_nearest_suspects_of_its_group():
    graph = graph_of(corpus(4, n=60))
    evidence = evidence_of(graph)
    rows = np.array([3, *evidence["cross"].members[3, :2].tolist(), 40])
    held = nobody_held(graph, evidence.tightness()).suspecting(rows, evidence)
    for place, channel in enumerate(CHANNELS):
        found = evidence[channel]
        for number, bond in zip(held.numbers.tolist(), held.bonds[place].tolist(), strict=True):
            group = found.members[number, : SIZES[-1] - 1].tolist()
            mates = [rank for rank, member in enumerate(group) if member in rows][:2] or [0]
            assert bond == min(found.nearness[number, rank] for rank in mates)
    assert held.bonds.all(axis=1).any()


def test_a_channel_without_edges_has_no_evidence():
    graph = graph_of(corpus(3))
    overlay = graph.part(graph.present)
    found = GroupEvidence(overlay, CHANNELS, {}, overlay.lineage_codes(()), families=False, kin=KIN)
    assert found["cross"].tight.any()
    for channel in ("same", "any"):
        assert (found[channel].members == -1).all()
        assert not found[channel].nearness.any()
        assert not any(part.any() for part in found.tied(np.s_[:])[channel])
        assert found.agreed(channel, 0, 3) is None


def test_kin_similarity_maps_to_equally_rare_stranger_similarity():
    rng = np.random.default_rng(0)
    same, cross = rng.normal(2.0, 0.5, 4_000), rng.normal(1.0, 0.25, 4_000)
    kin = Kin(same.astype(np.float32), cross.astype(np.float32))
    at = [0.1, 0.5, 0.9, 0.99]
    worth = kin(np.quantile(same, at).astype(np.float32))
    np.testing.assert_allclose(worth, np.quantile(cross, at), atol=1e-3)
    # Beyond all that is known, it goes on; and a lineage never makes anything worse.
    highest = np.float32(same.max())
    assert kin(np.array([highest + 1.0], np.float32)) == pytest.approx(cross.max() + 1.0, abs=1e-3)
    near = np.linspace(0.0, 1.0, 50, dtype=np.float32)
    assert (Kin(cross, same)(near) <= near).all()
    np.testing.assert_array_equal(Kin.restored(kin.state())(near), kin(near))


def test_nearness_inverts_cosine_of_and_fades_for_copies():
    cosines = np.linspace(0.1, 1.0, 20).astype(np.float32)
    back = [cosine_of(value) for value in nearness(cosines).tolist()]
    np.testing.assert_allclose(back, cosines, atol=1e-6)
    faded = nearness(np.float32([0.9] * 5), np.float32([0.0, 0.5, 0.7, 0.9, 1.0]))
    assert faded[:2] == pytest.approx([2 * faded[2]] * 2, rel=1e-5)
    assert faded[3:] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert nearness(np.float32([-np.inf, -0.5])) == pytest.approx([-math.log(1 + FLOOR)] * 2)


def test_contrast_beyond_an_overlay_is_computed_from_neighbor_lists():
    graph = graph_of(passages(150, 1))
    new = join(passages(12, 2, "new"), group(4, 3), clones_of(passages(1, 1)[0], 3))
    graph.learn(new.ids, graph.overlay(new))
    graph.remove(new.ids[:2])
    exempt = np.empty(0, dtype=np.int64)
    whole = graph.part(graph.present)
    raw = GroupEvidence(whole, CHANNELS, None, exempt, kin=KIN).raw()
    shared = [name for name in PARTS if name != "agreed"]
    everything = {}
    for name in shared:
        everything[name] = {
            c: np.zeros((graph.n_slots, len(SIZES)), dtype=np.float32) for c in CHANNELS
        }
        for channel, column in everything[name].items():
            column[whole.numbers] = getattr(raw[channel], name)
    kept = {"tight": everything["tight"]}
    some = graph.present[::7]
    told, looked_up = (
        GroupEvidence(graph.part(some), CHANNELS, one, exempt, kin=KIN).tied(np.s_[:])
        for one in (kept, everything)
    )
    for channel in CHANNELS:
        for name in shared:
            np.testing.assert_array_equal(
                getattr(told[channel], name), getattr(looked_up[channel], name)
            )
        assert told[channel].tight.any()


# Surprisal

VALUES = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=200)


@given(VALUES, st.booleans())
def test_surprisal_rises_with_the_value(reference, robust):
    surprisal = Surprisal(np.array(reference), robust=robust)
    at = np.sort([*reference, *np.linspace(-60, 60, 50), surprisal.tail_from])
    found = surprisal(at)
    assert np.isfinite(found).all()
    assert (found >= 0.0).all()
    assert (np.diff(found) >= -1e-9).all()


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("kind", ["normal", "exponential"])
def test_surprisal_is_calibrated_on_its_own_reference(kind, robust):
    reference = getattr(np.random.default_rng(2), kind)(size=20_000)
    found = Surprisal(reference, robust=robust)(reference)
    for share in (0.5, 0.25, *([] if robust else [0.1, 0.03])):
        assert (found > -np.log(share)).mean() == pytest.approx(share, rel=0.02)
    for share in (0.01, 0.003):  # the tail is assumed: exactly that of one of the two
        low, high = (0.8, 1.25) if kind == "exponential" else (0.05, 1.25)
        assert low * share < (found > -np.log(share)).mean() < high * share


def test_the_robust_variant_is_hardly_moved_by_a_twentieth_of_outliers_however_large():
    clean = np.random.default_rng(3).exponential(size=4000)
    outliers = [np.concatenate([clean, np.full(200, size)]) for size in (1e2, 1e9)]
    pure = Surprisal(clean, robust=True)
    large, huge = (Surprisal(reference, robust=True) for reference in outliers)
    fooled = Surprisal(outliers[0])
    usual = np.linspace(0, 12, 40)
    np.testing.assert_array_equal(large(usual), huge(usual))
    assert (large(usual) <= pure(usual) + 0.1).all()  # it never condemns more for it
    assert (large(usual) >= pure(usual) / 2.5).all()
    assert large([100.0])[0] > 25.0
    assert fooled([12.0])[0] < 4.0 < large([12.0])[0]


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("n_agreeing", [0, 3, 10])
@pytest.mark.slow
def test_agreement_is_never_rarer_than_its_likelihood_ratio_says(n_agreeing, robust):
    # A sample of a thousand in which next to nothing agrees says nothing about how far it could.
    tied = tied_to(graph_of(passages(1000, 4)))
    tied["cross.agreed"] = np.zeros((1000, len(SIZES)))
    tied["cross.agreed"][:n_agreeing] = 4.0
    of_five = Usual.of(tied, robust=robust).surprisals["cross.agreed.3"]
    assert of_five([12.0])[0] <= 12.0 - math.log(of_five.share)


@pytest.mark.parametrize("robust", [False, True])
def test_references_survive_as_arrays(robust):
    tied = tied_to(graph_of(passages(150, 4)))
    usual = Usual.of(tied, robust=robust)
    again = Usual.restored(through_files({}, usual.state())[1])
    np.testing.assert_array_equal(again.columns(tied), usual.columns(tied))
    assert (again.tightness, again.share) == (usual.tightness, usual.share)
    single = Surprisal(np.arange(90.0), robust=robust)
    values = np.linspace(-5, 200, 33)
    np.testing.assert_array_equal(Surprisal.restored(single.state())(values), single(values))
