"""Measurement of the usual evidence in a knowledge base."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import N_FOLDS
from ragshield_core.detectors.base.order import FEWEST, came_together
from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.agreement import WordShares
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    NEAREST_SUSPECTS,
    SIZES,
    Channel,
    GroupEvidence,
    Held,
    Kin,
)
from ragshield_core.detectors.groups.graph import Overlay, unrelated_distance
from ragshield_core.detectors.groups.judging import (
    MOST_STANDING,
    nearness_of_standing,
)
from ragshield_core.detectors.groups.known import TURNS, Known, audit_threshold
from ragshield_core.detectors.groups.usual import (
    MIN_FAMILY_ENTRIES,
    Judgement,
    Usual,
    taken,
    tied_to_groups,
)
from ragshield_core.detectors.groups.words import Vocabulary
from ragshield_core.model.p_values import rounded_up

logger = logging.getLogger("ragshield")

# Fewer entries do not show which words are usual around a topic.
MIN_WORDED = 2_000
# Entries whose words are counted at once: a hundred bytes for each of their words.
COUNTED = 2**16
# Up to this number of entries, each is scored by distributions of the others only, and all are also
# scored in a random order; of more entries, a sample of this size.
CROSS_FITTED = 20_000
# A score that one clean entry in twenty reaches is usual in any order.
UNSUSPICIOUS = 0.05


def measure(
    known: Known,
    slots: NDArray[np.int64],
    *,
    audit: bool = False,
) -> Judgement:
    """Learn the usual evidence of some entries of the graph, and score them by it."""
    graph = known.graph
    if graph.unrelated is None:  # it has grown from nothing
        graph.unrelated = unrelated_distance(graph.index.vectors(slots[:CROSS_FITTED]))
    overlay = graph.part(slots)
    known.measured_edges = False
    known.notes["measured"][:] = False
    known.notes["measured"][slots] = True
    again, known.ready = known.ready, True
    if known.by_groups:
        evidence = _gathered(known, overlay, again=again, audit=audit)
        known.usual_nearness = nearness_of_standing(overlay.lists)
        # The words of vouched-for sources; none in an audit.
        vouched = graph.present[~known.joining(known.notes["source"][graph.present])]
        if len(vouched) > MOST_STANDING:
            vouched = np.random.default_rng(0).choice(vouched, MOST_STANDING, replace=False)
        known.vocabulary = Vocabulary.of(graph.words.take(vouched))
        judgement = _by_groups(known, overlay, evidence, audit=audit)
    else:
        _, similarities = cleanbase.undirected(overlay.numbers, overlay.lists)
        known.edge_threshold = cleanbase.edge_threshold(similarities, known.rule.alpha)
        if not known.edge_threshold[1]:
            message = cleanbase.UNREACHABLE.format(known.rule.alpha)
            logger.warning("%s: %s", known.rule.detector, message)
        judgement = cleanbase.judge(known, overlay)
    known.notes["score"][slots] = rounded_up(judgement.scores)
    return judgement


def _gathered(
    known: Known,
    overlay: Overlay,
    *,
    again: bool,
    audit: bool,
) -> GroupEvidence:
    """Return the evidence about entries; ``again`` if it was gathered before."""
    graph, families = known.graph, known.families
    # Families stay usual if a later sample of the same knowledge base is smaller.
    known.families = (again and families) or bool(overlay.with_kin().sum() >= MIN_FAMILY_ENTRIES)
    if again and families != known.families:  # all edges change sides
        _measure_edges(known, CHANNELS)
    newcomers = known.shares = None
    # An audit does not know which entries are new.
    if len(graph) >= MIN_WORDED and not audit:
        there = graph.present
        parts = (there[start : start + COUNTED] for start in range(0, len(there), COUNTED))
        known.shares = WordShares.of(map(graph.words.take, parts))
        newcomers = known.newcomers_by_turn(overlay)
    if known.families:
        kin_before = known.kin
        # Only the nearness is needed; the given tightness is not read.
        unread = dict.fromkeys(CHANNELS, np.zeros((len(overlay.numbers), len(SIZES)), np.float32))
        nearest = known.evidence(overlay, channels=("same", "cross"), tightness=unread)
        known.kin = Kin(nearest["same"].nearness[:, 0], nearest["cross"].nearness[:, 0])
        if kin_before is None and again:
            _measure_edges(known, ["any"])
    found = known.evidence(overlay, newcomers)
    _note_tightness(known, found)
    if newcomers is not None and len(graph) >= FEWEST and not again:
        return _without_order(known, overlay, found)
    return found


def _by_groups(
    known: Known,
    overlay: Overlay,
    evidence: GroupEvidence,
    *,
    audit: bool,
) -> Judgement:
    """Learn the distributions of evidence, and score entries by them."""
    n = len(overlay.numbers)
    # An audit does not know which entries are new: it compares copies with all copies.
    lineages = known.lineages_by_turn(overlay, 1 if audit else TURNS)
    tied = tied_to_groups(evidence, np.s_[:], lineages)
    known.usual = Usual.of(tied, robust=audit)
    scored = known.usual.columns(tied)
    if not audit and n <= CROSS_FITTED:
        # A rare entry must not be judged by a tail that it has extended itself.
        fold = np.random.default_rng(0).permutation(n) % N_FOLDS
        for number in range(N_FOLDS):
            mine = fold == number
            scored[mine] = Usual.of(taken(tied, ~mine)).columns(taken(tied, mine))
    return Judgement(scored.max(axis=1), scored.argmax(axis=1), evidence, lineages)


def _without_order(known: Known, overlay: Overlay, found: GroupEvidence) -> GroupEvidence:
    """Look for entries that came together; if there are any, return evidence in a random order."""
    n = len(overlay.numbers)
    rows = np.arange(n)
    if n > CROSS_FITTED:
        rows = np.sort(np.random.default_rng(0).choice(n, CROSS_FITTED, replace=False))
    some = known.graph.part(overlay.numbers[rows])
    ordered = tied_to_groups(found, rows, known.lineages_by_turn(overlay, TURNS))
    known.shuffled = True  # for this comparison
    tight = {channel: column[rows] for channel, column in found.tightness().items()}
    evidence = known.evidence(some, known.newcomers_by_turn(some), tightness=tight)
    shuffled = tied_to_groups(evidence, np.s_[:], known.lineages_by_turn(some, TURNS))
    usual = Usual.of(shuffled)
    together = came_together(
        usual.columns(ordered).max(axis=1),
        usual.columns(shuffled).max(axis=1),
        audit_threshold(UNSUSPICIOUS),
    )
    together = _with_groups(known, evidence, together)
    known.came_together = some.numbers[together].astype(np.int32)
    known.shuffled = bool(together.any())
    if not known.shuffled:
        return found
    logger.warning(
        "%s: %d of %d entries agree with entries that came together with them, as the texts "
        "of an attack do; usual values are measured as if all had come in a random order. An "
        "audit (scan) says why; take out the poisoned ones, and fit or adopt anew",
        *(known.rule.detector, len(known.came_together), n),
    )
    # Entries beside these groups no longer gain evidence from them.
    evidence = known.evidence(overlay, known.newcomers_by_turn(overlay), before=found)
    _note_tightness(known, evidence)
    return evidence


def _with_groups(
    known: Known,
    evidence: GroupEvidence,
    suspected: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return the suspected rows, and rows as near to two of these as their own groups are."""
    none, tight = np.empty(0), evidence.tightness()
    nobody = Held.of(
        known.graph, none.astype(np.int64), none.astype(np.float32), none.astype(np.bool_), tight
    )
    while suspected.any():
        held = nobody.suspecting(np.flatnonzero(suspected), evidence)
        place = held.find(evidence.members)
        bonds = held.bonds[evidence.channel_numbers[:, None, None], place]
        theirs = (place >= 0) & (evidence.nearness >= bonds)
        joined = suspected | (theirs.sum(axis=-1) >= NEAREST_SUSPECTS).any(axis=0)
        if (joined == suspected).all():
            break
        suspected = joined
    return suspected


def _measure_edges(known: Known, channels: Sequence[Channel]) -> None:
    """Gather the evidence of all entries of the graph again."""
    overlay = known.graph.part(known.graph.present)
    known.measured_edges = True
    for channel in channels:
        known.notes[channel][overlay.numbers] = 0.0
    _note_tightness(known, known.evidence(overlay, channels=channels))


def _note_tightness(known: Known, evidence: GroupEvidence) -> None:
    """Keep the tightness of the measured groups."""
    for channel, column in evidence.tightness().items():
        known.notes[channel][evidence.numbers] = column
