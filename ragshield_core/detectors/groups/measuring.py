"""Measure what is usual in a knowledge base."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS
from ragshield_core.detectors.base.order import FEWEST, came_together
from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.agreement import WordShares
from ragshield_core.detectors.groups.books import TURNS
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    NEAREST_SUSPECTS,
    Channel,
    GroupEvidence,
    Held,
    Kin,
)
from ragshield_core.detectors.groups.graph import Overlay, unrelated_distance
from ragshield_core.detectors.groups.judging import judge_cliques
from ragshield_core.detectors.groups.known import Known, audit_threshold
from ragshield_core.detectors.groups.sources import MOST_STANDING, Vocabulary, nearness_of_standing
from ragshield_core.detectors.groups.usual import (
    MIN_FAMILY_ENTRIES,
    NO_EDGES,
    Judgement,
    Tied,
    Usual,
)
from ragshield_core.model.p_values import rounded_up

logger = logging.getLogger("ragshield")

# Fewer entries say too little about which words are usual around a topic.
MIN_WORDED = 2_000
# Entries whose words are counted at once: a hundred bytes for each of their words.
COUNTED = 2**16
# Up to this number of entries, what is usual is told each of them by the others only, and all are
# looked at in a random order as well; of more, so many.
CROSS_FITTED = 20_000
# What one clean entry in twenty reaches is usual in any order.
UNSUSPICIOUS = 0.05


def measure(
    known: Known,
    slots: NDArray[np.int64],
    *,
    audit: bool = False,
) -> Judgement:
    """Learn what is usual among some entries of the graph, and score them by that."""
    if known.graph.unrelated is None:  # it has grown from nothing
        vectors = known.graph.index.vectors(slots[:CROSS_FITTED])
        known.graph.unrelated = unrelated_distance(vectors)
    overlay = known.graph.part(slots)
    known.make_room()
    known.books.measured[:] = False
    known.books.measured[slots] = True
    again, known.ready = known.ready, True
    if known.by_groups:
        evidence = _gathered(known, overlay, again=again, audit=audit)
        known.usual_nearness = nearness_of_standing(overlay.lists)
        _learn_words(known)
        judgement = _by_groups(known, overlay, evidence, audit=audit)
    else:
        judgement = _by_cliques(known, overlay)
    known.books.scores[overlay.numbers] = rounded_up(judgement.scores)
    return judgement


def _by_cliques(known: Known, overlay: Overlay) -> Judgement:
    """Take the threshold of the reference rule, and score entries by it."""
    _, similarities = cleanbase.undirected(overlay.numbers, overlay.lists)
    known.edge_threshold = cleanbase.edge_threshold(similarities, known.rule.alpha)
    if not known.edge_threshold[1]:
        message = cleanbase.UNREACHABLE.format(known.rule.alpha)
        logger.warning("%s: %s", known.rule.detector, message)
    return judge_cliques(known, overlay)


def _gathered(
    known: Known,
    overlay: Overlay,
    *,
    again: bool,
    audit: bool,
) -> dict[Channel, GroupEvidence]:
    """Return the evidence about entries by channel; ``again`` if it was gathered before."""
    graph, families = known.graph, known.families
    # A smaller sample of the same knowledge base does not make them unusual.
    known.families = (again and families) or bool(overlay.with_kin().sum() >= MIN_FAMILY_ENTRIES)
    if again and families != known.families:  # all edges change sides
        _measure_edges(known, graph.part(graph.present))
    newcomers = known.shares = None
    # An audit cannot tell new from old.
    if len(graph) >= MIN_WORDED and not audit:
        there = graph.present
        parts = (there[start : start + COUNTED] for start in range(0, len(there), COUNTED))
        known.shares = WordShares.of(map(graph.words.take, parts))
        newcomers = known.newcomers_by_turn(overlay)
    found: dict[Channel, GroupEvidence] = {}
    for channel in CHANNELS:
        if channel == "any" and known.families:
            kin_before = known.kin
            known.kin = Kin(found["same"].nearness[:, 0], found["cross"].nearness[:, 0])
            if kin_before is None and again:
                _measure_edges(known, graph.part(graph.present), ["any"])
        found[channel] = evidence = known.evidence(overlay, channel, newcomers)
        known.books.tight[channel][overlay.numbers] = evidence.raw.tight
    if newcomers is not None and len(graph) >= FEWEST and not again:
        return _without_order(known, overlay, found)
    return found


def _learn_words(known: Known) -> None:
    """Take the words of the sources that somebody vouches for; none in an audit."""
    graph = known.graph
    slots = graph.present[graph.present < len(known.sources.by_slot)]
    vouched = slots[~known.sources.joining(known.sources.by_slot[slots])]
    if len(vouched) > MOST_STANDING:
        vouched = np.random.default_rng(0).choice(vouched, MOST_STANDING, replace=False)
    known.vocabulary = Vocabulary.of(graph.words.take(vouched))


def _by_groups(
    known: Known,
    overlay: Overlay,
    evidence: dict[Channel, GroupEvidence],
    *,
    audit: bool,
) -> Judgement:
    """Take the distributions of evidence, and score entries by them."""
    n = len(overlay.numbers)
    # An audit cannot tell new from old: there, copies are held against all copies.
    lineages = known.lineages_by_turn(overlay, 1 if audit else TURNS)
    tied = Tied.of(evidence, np.s_[:], lineages)
    known.usual = Usual.of(tied, robust=audit)
    scored = tied.columns(known.usual)
    if not audit and n <= CROSS_FITTED:
        # What is rare must not be judged by a tail that it has drawn out itself.
        fold = np.random.default_rng(0).permutation(n) % N_FOLDS
        for number in range(N_FOLDS):
            mine = fold == number
            usual = Usual.of(tied.take(~mine), robust=False)
            scored[mine] = tied.take(mine).columns(usual)
    return Judgement(
        scores=scored.max(axis=1),
        why=scored.argmax(axis=1),
        evidence=evidence,
        lineages=lineages,
        edges=NO_EDGES,
    )


def _without_order(
    known: Known, overlay: Overlay, found: dict[Channel, GroupEvidence]
) -> dict[Channel, GroupEvidence]:
    """Look for what came together; if there is any, return evidence of a random order."""
    n = len(overlay.numbers)
    rows = np.arange(n)
    if n > CROSS_FITTED:
        rows = np.sort(np.random.default_rng(0).choice(n, CROSS_FITTED, replace=False))
    some = known.graph.part(overlay.numbers[rows])
    ordered = Tied.of(found, rows, known.lineages_by_turn(overlay, TURNS))
    known.books.shuffled = True  # for now
    evidence = _again(known, some, tightness={c: found[c].raw.tight[rows] for c in CHANNELS})
    shuffled = Tied.of(evidence, np.s_[:], known.lineages_by_turn(some, TURNS))
    usual = Usual.of(shuffled, robust=False)
    together = came_together(
        ordered.columns(usual).max(axis=1),
        shuffled.columns(usual).max(axis=1),
        audit_threshold(UNSUSPICIOUS),
    )
    together = _with_groups(known, some, evidence, together)
    known.books.came_together = some.numbers[together].astype(np.int32)
    known.books.shuffled = bool(together.any())
    if not known.books.shuffled:
        return found
    logger.warning(
        "%s: %d of %d entries agree with what came together with them as the texts of an "
        "attack do; what is usual is measured as if all had come in a random order. An audit "
        "(scan) says why; take out what is poisoned, and fit or adopt anew",
        *(known.rule.detector, len(known.books.came_together), n),
    )
    # What lies beside these groups no longer leans on them.
    evidence = _again(known, overlay, before=found)
    for channel in CHANNELS:
        known.books.tight[channel][overlay.numbers] = evidence[channel].raw.tight
    return evidence


def _with_groups(
    known: Known,
    overlay: Overlay,
    evidence: Mapping[Channel, GroupEvidence],
    suspected: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return which rows are suspected, or as near to two of these as their own groups are."""
    weights = np.zeros(known.graph.n_slots, dtype=np.float32)
    waiting = np.zeros(len(weights), dtype=np.bool_)
    while suspected.any():
        joined = suspected.copy()
        for channel, found in evidence.items():
            held = Held.of(overlay, weights, known.books.tight[channel], waiting)
            held = held.suspecting(np.flatnonzero(suspected), found)
            theirs = (found.members >= 0) & (held.weights[found.members] > 0.0)
            theirs &= found.nearness >= held.bonds[found.members]
            joined |= theirs.sum(axis=1) >= NEAREST_SUSPECTS
        if (joined == suspected).all():
            break
        suspected = joined
    return suspected


def _again(
    known: Known,
    overlay: Overlay,
    *,
    tightness: Mapping[Channel, NDArray[np.float32]] | None = None,
    before: Mapping[Channel, GroupEvidence] | None = None,
) -> dict[Channel, GroupEvidence]:
    """Gather evidence again by turns of now, of groups that are as tight as they were."""
    newcomers = known.newcomers_by_turn(overlay)
    return {
        channel: known.evidence(
            overlay,
            channel,
            newcomers,
            before=None if before is None else before[channel],
            tightness=None if tightness is None else tightness[channel],
        )
        for channel in CHANNELS
    }


def _measure_edges(known: Known, overlay: Overlay, channels: Sequence[Channel] = CHANNELS) -> None:
    """Gather the evidence of entries of the graph anew."""
    for channel in channels:
        known.books.tight[channel][overlay.numbers] = 0.0
    for channel in channels:
        tight = known.evidence(overlay, channel).raw.tight
        known.books.tight[channel][overlay.numbers] = tight
