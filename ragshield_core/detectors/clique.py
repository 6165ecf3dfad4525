"""Groups of entries that resemble each other more than their surroundings explain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration import rounded_up
from ragshield_core.detectors.base import N_FOLDS, Detector, Evidence, Need, Scope
from ragshield_core.entries import Batch
from ragshield_core.errors import InvalidBatchError, NotFittedError
from ragshield_core.findings import printable
from ragshield_core.groups import cleanbase
from ragshield_core.groups.agreement import (
    NEW_TO_ALL,
    STANDS,
    Agreed,
    Newcomers,
    WordShares,
)
from ragshield_core.groups.evidence import (
    CHANNELS,
    CROWD,
    CROWD_DISCOUNT,
    DISCOUNTS,
    NEAREST_SUSPECTS,
    OWN_BOND,
    SIZES,
    Channel,
    GroupEvidence,
    Held,
    K,
    Kin,
    Raw,
    Standing,
    cosine_of,
    nearness,
    own_bond,
)
from ragshield_core.groups.graph import Overlay, SimilarityGraph
from ragshield_core.groups.neighbors import GraphNeighbors
from ragshield_core.groups.order import FEWEST, came_together
from ragshield_core.groups.pieces import Pieces
from ragshield_core.groups.sources import (
    AMONG,
    FEWEST_OF_SOURCE,
    MOST_OF_SOURCE,
    MOST_STANDING,
    SourceTable,
    Vocabulary,
    among_standing,
    nearness_of_standing,
    surprisals_within,
)
from ragshield_core.groups.usual import (
    CHANNEL_OF,
    CLONES_AT,
    COPIES,
    CROWD_AT,
    GROUPS_OF,
    MIN_FAMILY_ENTRIES,
    NO_EDGES,
    NO_ROWS,
    WHYS,
    Judgement,
    Tied,
    Usual,
    copies_in,
    new_copies,
)
from ragshield_core.neighbors.known import Lender, NeighborSource
from ragshield_core.neighbors.table import TableUser, VectorTable, Where
from ragshield_core.state import part_of
from ragshield_core.text.copies import borrowed, spelling

logger = logging.getLogger("ragshield")

UNREACHABLE = (
    "no similarity can exceed mean + {:g} * std of the edges; the 99 % quantile of their "
    "similarities is used instead"
)
# Cliques are enumerated only among so few neighbours; larger groups are reported as such.
CLIQUE_CAP = 60

# Fewer entries say too little about what is usual among them.
MIN_ENTRIES = 100
# Fewer entries say too little about which words are usual around a topic.
MIN_WORDED = 2_000
# Share of a knowledge base that is taken as new, to see how often copies arrive together.
ARRIVING = 0.1
# Number of entries that come after it until a held entry counts half, unless a person has confirmed
# it: long enough for a group that trickles in over months of a busy store, and an end to what was
# held by mistake.
HELD_HALF_LIFE = 20_000
# Where more than this share of the graph is held and not confirmed, each counts that much less.
HELD_SHARE = 0.05
TURNS = round(1 / ARRIVING)
# Entries whose words are counted at once: a hundred bytes for each of their words.
COUNTED = 2**16
# Of a clean sample that nobody has vouched for, so small a share of the entries is expected to be
# as suspicious as what does not count as clean there.
EXTREME = 1e-4
# As suspicious as one clean entry in a hundred is suspicious enough for others to be judged apart.
SUSPICIOUS = 0.01
# Up to this number of entries, what is usual is told each of them by the others only, and all are
# looked at in a random order as well; of more, so many.
CROSS_FITTED = 20_000
# What one clean entry in twenty reaches is usual in any order.
UNSUSPICIOUS = 0.05
# Held neighbours on which a standing entry is condemned, at least: one is its imitator, for all
# that anybody can tell.
ACCOMPLICES = 2
# What has so many of its words from an entry is an imitation of it, in whatever order they stand.
# Of texts that were crafted for one question, one in twenty has as many from another.
BORROWED = 0.75
# A held entry shares its id with the live revision; NUL cannot be part of an id.
HELD = "\0held\0"


class CliqueDetector(Detector, Lender, TableUser):
    """Find small groups of entries that are alike in meaning and not in wording.

    By the default rule, the score is how surprising the tightest group around an entry would be in
    this knowledge base, as a negative natural logarithm (4.6 for one in a hundred); see
    :mod:`ragshield_core.groups.evidence`. Copied words explain a resemblance, except where they
    are new here and arrive under several lineages, as clones of one text or as texts made of the
    same sentences: that is flooding, and judged by the number of lineages.

    Entries that :meth:`fit` was given are trusted: they are never condemned afterwards. Those that
    were learned later are watched, and a group that completes condemns its earlier members
    (:meth:`retroactive`), but only on the evidence of two others that are held, and that share more
    with each other than what each could have taken from it: of an entry and its imitation, the
    newcomer is the suspect.

    Held entries stay in the graph, since the rest of their group is still to come. They count
    against members of their group only, not against what lies beside it, and less and less until a
    person has confirmed them.

    What is usual is measured when the detector is fitted, and again whenever :meth:`refresh` says
    so: entries come closer to each other as a knowledge base grows.

    Parameters
    ----------
    rule
        ``"groups"``, the default, as above; ``"cleanbase"``, the reference rule [1]_: neighbours
        more similar than mean + alpha * std of all edges are joined, and every member of a maximal
        clique of three or more is condemned (score 1, else 0). It takes no calibration, and looks
        at neither texts nor lineages; see :mod:`ragshield_core.groups.cleanbase`.
    alpha
        Of the reference rule, 2.5 as in the paper's repository.
    trusted_lineages
        Lineages inside which resemblance is not looked at, for documents of many alike chunks. A
        lineage is a claim of whoever brought the entry: name only those that you control.
    min_entries
        Below this size of the knowledge base entries are not judged.
    exact_up_to
        Size above which the neighbour index is approximate; ``None`` for its default.

    Notes
    -----
    The idea that poisoned documents for one question form cliques is CleanBase's [1]_. Screening
    searches the new entries only; a standing entry near to a new one is reached through the new
    one's list, so that an entry whose list a new one enters from afar is not looked at again.

    References
    ----------
    .. [1] Jin et al., "CleanBase: Detecting Malicious Documents in RAG Knowledge Databases",
       arXiv:2605.00460, 2026.
    """

    kind: ClassVar[str] = "clique"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.EMBEDDING, Need.TEXT})
    taxonomy: ClassVar[tuple[str, ...]] = ("AML.T0070", "AML.T0066", "LLM08:2025")
    # Without a calibration: a group that one clean entry in a thousand would have.
    default_threshold: float = 6.9
    acts_unfitted = False
    in_pieces = True

    scope = Scope.CORPUS

    def __init__(
        self,
        *,
        rule: Literal["groups", "cleanbase"] = "groups",
        alpha: float = cleanbase.ALPHA,
        trusted_lineages: Sequence[str] = (),
        min_entries: int = MIN_ENTRIES,
        exact_up_to: int | None = None,
    ) -> None:
        if rule not in ("groups", "cleanbase"):
            msg = f"rule is {rule!r}, expected 'groups' or 'cleanbase'."
            raise ValueError(msg)
        if min_entries < 2:  # noqa: PLR2004
            msg = f"min_entries is {min_entries}, expected at least 2."
            raise ValueError(msg)
        self.rule = rule
        self.alpha = alpha
        if rule == "cleanbase":  # one of 0 and 1, and no more to calibrate
            self.default_threshold, self.exchangeable = 0.5, False
            self.in_pieces = False  # tasks measure groups only
        self.trusted_lineages = tuple(trusted_lineages)
        self.min_entries = min_entries
        self.exact_up_to = exact_up_to
        self._table: VectorTable | None = None  # where vectors are left; stays at a reset
        self._graph: SimilarityGraph | None = None
        self._neighbors = GraphNeighbors(
            self._fitted, lambda: [key for keys in self._held.values() for key in keys]
        )
        self.reset()

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments that build this detector again."""
        return {
            "rule": self.rule,
            "alpha": self.alpha,
            "trusted_lineages": list(self.trusted_lineages),
            "min_entries": self.min_entries,
            "exact_up_to": self.exact_up_to,
        }

    def reset(self) -> None:
        """Forget everything."""
        self._graph = None
        self._standing = self._no_evidence(0)
        self._scores: NDArray[np.float32] = np.empty(0, dtype=np.float32)  # by slot, rounded up
        self._trusted: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)  # by slot
        self._usual: Usual | None = None
        self._edge_threshold: tuple[float, bool] = (1.0, True)  # of the reference rule
        self._shares: WordShares | None = None  # of words in the knowledge base
        self._kin: Kin | None = None  # what resemblance within a lineage is worth
        self._families = True  # whether lineages of more than one entry are usual
        self._ready = False  # whether what is usual has been measured
        self._audited: tuple[Overlay, Judgement] | None = None
        self._held: dict[str, list[str]] = {}  # id -> keys in the graph
        # By slot: how many had come when it was held; infinite if confirmed, NaN if it is not held.
        self._held_at: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._n_come = 0  # entries learned and held since the fit
        self._measured: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)  # by slot, latest measure
        # Slots of what was fitted and is suspicious for having come together; where there was any,
        # what is usual is measured as if entries had come in a random order.
        self._together: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._shuffled = False
        self._latest: tuple[Batch, Overlay, Judgement] | None = None
        self._overlooked: frozenset[str] = frozenset()
        self._sources = SourceTable()
        self._vocabulary = Vocabulary(np.empty(0, dtype=np.uint32), 0.0)
        # Slots of the standing entries that others are compared with, and how near to each other
        # they are; vectors of these while the graph stays as it is.
        self._usual_nearness: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._compared: tuple[int, NDArray[np.int64], NDArray[np.float32]] | None = None

    def neighbors(self) -> NeighborSource:
        """Return the neighbours of the graph, for detectors that would search for the same."""
        return self._neighbors

    # Vectors in the store

    @property
    def in_store(self) -> str | None:
        """Name of the store in which neighbours are found; ``None`` where they are in memory."""
        if self._graph is None:
            return None if self._table is None else self._table.name
        return self._graph.index.store

    @property
    def n_local(self) -> int:
        """How many vectors are kept in memory."""
        return 0 if self._graph is None else self._graph.index.n_local

    @property
    def connected(self) -> bool:
        """Whether the store is at hand, if neighbours are found there."""
        return self._graph is None or self._graph.index.connected

    def use_table(self, table: VectorTable, where: Where | None) -> None:
        """Find neighbours in a store, or in memory, from now on."""
        if where is not None:
            self._table = table if where == "store" else None
        if self._graph is not None:
            self._graph.use_table(table, where)
            self._table = None if self._graph.index.store is None else table
        self._latest = None

    def let_go(self) -> int:
        """Drop the vectors that the store has by now; return how many."""
        return 0 if self._graph is None else self._graph.index.let_go()

    # Learning

    def learn(self, entries: Batch) -> None:
        """Add entries; the first ones are trusted, as by :meth:`fit`, later ones watched."""
        if not len(entries):
            return
        if self._graph is None:
            self._graph = self._empty_graph(entries.dim)
        if not self._ready:
            self._sources.vouch(entries.sources)
            self._learn_trusted(entries)
        else:
            self._insert(entries.ids, entries)

    def learn_piece(self, piece: Batch) -> None:
        """Add entries whose neighbours are said when all were added."""
        if self._graph is None:
            self._graph = self._empty_graph(piece.dim)
        self._sources.vouch(piece.sources)
        self._sources.put(self._graph.extend(piece.ids, piece), piece.sources)

    def pieces_learned(self, pieces: Pieces, reference: Batch) -> None:  # noqa: ARG002
        """Take over the neighbours, and measure what is usual; all entries are trusted."""
        found, graph = pieces.groups(), self._fitted()
        graph.take_lists(found.words, found.lists)
        if len(graph) >= self.min_entries:
            self._measure(graph.present, tightness=found.tightness)
            self._trusted[graph.present] = True

    def forget(self, entries: Batch) -> None:
        """Take entries out of the graph."""
        graph = self._fitted()
        self._remove(graph.index.among(entries.ids))

    def hold(self, entries: Batch) -> None:
        """Keep held entries in the graph, so that the rest of their group is known."""
        if not self._ready:
            return
        self.forget_held(entries.ids)
        keys = [f"{entry.id}{HELD}{entry.fingerprint}" for entry in entries]
        for entry_id, key in zip(entries.ids, keys, strict=True):
            self._held.setdefault(entry_id, []).append(key)
        self._insert(keys, entries, held=True)

    def overlook(self, ids: Collection[str]) -> None:
        """Judge as if entries that the batch replaces were not there."""
        self._neighbors.overlook(ids)
        if self._overlooked != set(ids):
            self._overlooked, self._latest = frozenset(ids), None

    def forget_held(self, ids: Sequence[str]) -> None:
        """Take held entries out of the graph: they were released, or deleted for good."""
        self._remove([key for entry_id in ids for key in self._held.pop(entry_id, ())])

    def confirm(self, ids: Sequence[str]) -> None:
        """Let held entries count in full, for good: a person has judged them poisoned."""
        keys = [key for entry_id in ids for key in self._held.get(entry_id, ())]
        if keys:
            self._held_at[self._fitted().index.slots_of(keys)] = np.inf

    def refresh(self, reference: Batch) -> None:
        """Measure anew what is usual, among entries of the knowledge base as it is now."""
        if not self._ready:
            return
        slots = self._fitted().index.slots_of(reference.ids)
        slots = slots[slots >= 0]
        if len(slots) >= self.min_entries:
            self._measure(slots)
            self._latest = None

    def distrust(self, ids: Sequence[str]) -> None:
        """Watch fitted entries as if they had come later."""
        slots = self._fitted().index.slots_of(ids)
        self._trusted[slots[slots >= 0]] = False

    def latecomers(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Return which entries have an older one in their group, or two others of them."""
        if self.rule != "groups":
            return super().latecomers(ids)
        slots = self._fitted().index.slots_of(ids)
        overlay = self._fitted().part(slots)
        nearest = [self._evidence(overlay, c).members[:, : SIZES[-1] - 1] for c in CHANNELS]
        group = np.concatenate(nearest, axis=1)
        older = ((group < slots[:, None]) & (group >= 0)).any(axis=1)
        return np.asarray(older | (np.isin(group, slots).sum(axis=1) >= ACCOMPLICES))

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries are so suspicious that one clean one in ten thousand would be.

        Those, too, that are suspicious for having come together; see
        :mod:`ragshield_core.groups.order`.
        """
        if not self._ready or self.rule != "groups":
            return super().outliers(reference)
        slots = self._fitted().index.slots_of(reference.ids)
        known = np.flatnonzero(slots >= 0)
        found = np.isin(slots, self._together)
        if len(known) >= self.min_entries:
            overlay = self._fitted().part(slots[known])
            evidence = {channel: self._evidence(overlay, channel) for channel in CHANNELS}
            tied = Tied.of(evidence, np.s_[:], self._lineages_by_turn(overlay, TURNS))
            scores = tied.columns(Usual.of(tied, robust=True)).max(axis=1)
            found[known] |= scores > self.audit_threshold(EXTREME)
        return found

    def n_doubted(self) -> int:
        """Return how many entries are suspicious for having come together, and still there."""
        if not len(self._together):
            return 0
        return int((~self._fitted().gone[self._together]).sum())

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which entries are so suspicious that one clean one in ten thousand would be."""
        if not self._ready or self.rule != "groups":
            return super().held_outliers(entries, scores)
        return scores > self.audit_threshold(EXTREME)

    def trust(self, ids: Sequence[str]) -> None:
        """Watch entries no longer: a person has judged them good."""
        if self._ready:  # before, all of them will be
            slots = self._fitted().index.slots_of(ids)
            self._trusted[slots[slots >= 0]] = True
            self._together = self._together[~np.isin(self._together, slots)]

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return how each fitted entry scores among the others: none knows itself anyway."""
        if not self._ready:
            return np.full(len(fitted), np.nan)
        slots = self._fitted().index.slots_of(fitted.ids)
        scores = self._scores[slots].astype(np.float64)
        # What was left out when the usual was measured last was not scored by that yet.
        stale = np.flatnonzero(~self._measured[slots])
        if stale.size and self.rule == "groups":
            scores[stale] = self._judge(self._fitted().part(slots[stale])).scores
        return scores

    # Audit

    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        """Score every entry of a knowledge base among the others, some of which may be poisoned.

        What is usual is measured so that up to a twentieth of poisoned entries hardly moves it.
        There is no telling new entries from old ones: copies under several lineages are held
        against how usual that is in the knowledge base. Fit the detector anew to screen with it.
        """
        self.reset()
        if len(entries) < self.min_entries:
            return np.full(len(entries), np.nan)
        self._graph = SimilarityGraph.fixed(entries, self._k, rounded=self._rounded)
        judgement = self._measure(self._graph.present, audit=True)
        self._audited = (self._graph.part(self._graph.present), judgement)
        return judgement.scores

    def audit_threshold(self, fpr: float) -> float:
        """Return the surprisal that one entry in ``1 / fpr`` reaches: an estimate, no guarantee.

        It assumes that tails are exponential, and counts the kinds of evidence, each of which may
        be the most surprising, by their share of the budget.
        """
        if self.rule == "cleanbase":
            return self.default_threshold
        # Groups by channel, crowds, both kinds of copies.
        discounts = (*DISCOUNTS.values(), CROWD_DISCOUNT, 0.0, 0.0)
        return float(np.log(np.exp(np.negative(discounts)).sum() / fpr))

    def explain_audit(self, entries: Batch, rows: Sequence[int]) -> list[Evidence]:  # noqa: ARG002
        """Return the group of each row, its size and mean similarity, and what is usual."""
        if self._audited is None:
            msg = f"{self.name} has audited nothing yet; call audit first."
            raise NotFittedError(msg)
        return [self._sentence(*self._audited, row) for row in rows]

    def take_audit(self, overlay: Overlay, judgement: Judgement, usual: Usual) -> None:
        """Take over an audit that was made elsewhere in parts, to explain its scores.

        Parameters
        ----------
        overlay
            Entries of a graph that holds at least their neighbours.
        judgement
            Of these entries.
        usual
            What is usual in the whole knowledge base.
        """
        self.reset()
        self._graph, self._usual = overlay.graph, usual
        self._audited = (overlay, judgement)

    # Judging

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while the knowledge base is too small, then those nobody can tell."""
        if self._ready:
            return self._told_by_nothing(batch)
        n = 0 if self._graph is None else len(self._graph)
        reason = (
            f"the knowledge base has {n} entries, {self.min_entries} are needed to know what "
            "is usual in it"
        )
        return dict.fromkeys(range(len(batch)), reason)

    def _told_by_nothing(self, batch: Batch) -> dict[int, str]:
        """Return rows unlike the knowledge base, of a source too small to be compared with."""
        if not len(batch):
            return {}
        reason = (
            "it is about nothing that the knowledge base is about, or in another language, and its "
            f"source has fewer than {FEWEST_OF_SOURCE} entries to compare it with"
        )
        _, judgement = self._judged(batch)
        rows = judgement.apart[judgement.apart < len(batch)]
        return dict.fromkeys(rows.tolist(), reason)

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the surprisal of the tightest group around each entry, shape (n_entries,)."""
        if not self._ready:
            if self._graph is None:
                msg = f"{self.name} has learned nothing yet; fit it on the knowledge base."
                raise NotFittedError(msg)
            msg = f"entry {batch.ids[0]!r} cannot be judged: {self.unjudged(batch)[0]}."
            raise InvalidBatchError(msg)
        if not len(batch):
            return np.empty(0)
        _, judgement = self._judged(batch)
        return judgement.scores[: len(batch)]

    def explain_held_out(self, fitted: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the group of each row, its size and mean similarity, and what is usual."""
        ids = [fitted.ids[row] for row in rows]
        overlay = self._fitted().part(self._fitted().index.slots_of(ids))
        judgement = self._judge(overlay)
        return [self._sentence(overlay, judgement, row) for row in range(len(ids))]

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the group of each row, its size and mean similarity, and what is usual."""
        if not rows:
            return []
        overlay, judgement = self._judged(batch)
        return [self._sentence(overlay, judgement, row) for row in rows]

    def retroactive(
        self, batch: Batch, condemned: NDArray[np.bool_]
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Return watched entries near to the batch, with their scores in its presence.

        Entries that were fitted, released by a person, or are held already, are left alone, and so
        are those that speak for themselves: of a group only those are named that at least two held
        others would condemn without having been made from them, of copies all but the oldest.
        """
        if not self._ready or not len(batch):
            return [], np.empty(0)
        overlay, judgement = self._judged(batch)
        rows = self._watched_rows(overlay)
        if self.rule == "groups":
            held = ~np.isnan(self._held_at[: self._fitted().n_slots])
            guilty = np.concatenate([held, condemned])
            rows = self._accused(overlay, judgement, rows, guilty)
        return self._fitted().index.ids_of(overlay.numbers[rows]), judgement.scores[rows]

    def explain_retroactive(self, batch: Batch, ids: Sequence[str]) -> list[Evidence]:
        """Return why entries that :meth:`retroactive` named have the score they have now."""
        overlay, judgement = self._judged(batch)
        slots = self._fitted().index.slots_of(ids)
        row_of = {slot: row for row, slot in enumerate(overlay.numbers.tolist())}
        return [self._sentence(overlay, judgement, row_of[slot]) for slot in slots.tolist()]

    def miss_probability(self, size: int, similarity: float, threshold: float) -> float:
        """Estimate how likely a group of poisoned entries escapes in this knowledge base.

        Parameters
        ----------
        size
            Entries in the group, at least 2.
        similarity
            Cosine between any two of them, in [0, 1].
        threshold
            Score above which entries are quarantined, e.g. ``guard.thresholds["clique"]``.

        Returns
        -------
        float
            Share of the places in the knowledge base where the group would escape, in [0, 1].

        Notes
        -----
        An estimate, no bound. It assumes that all pairs are alike to the same degree, that no
        text is copied between them, that they share no lineage, that all of them are there, and
        that the place where they come to lie is as crowded as that of a random entry that is
        known. Attackers choose the place: groups for questions that the knowledge base
        treats at length escape more often, others less.

        Raises
        ------
        ValueError
            If ``size`` or ``similarity`` is out of range, or the rule is ``"cleanbase"``.
        NotFittedError
            If nothing was fitted.
        """
        if self.rule != "groups" or size < SIZES[0] or not 0.0 <= similarity <= 1.0:
            msg = (
                f"size {size}, similarity {similarity:g} and rule {self.rule!r}, expected a size "
                "of at least 2, a cosine in [0, 1] and rule 'groups'."
            )
            raise ValueError(msg)
        slots = self._fitted().present
        if not self._ready:
            msg = f"{self.name} knows too few entries; fit it on the knowledge base."
            raise NotFittedError(msg)
        known = self._evidence(
            self._fitted().part(slots),
            "cross",
            tightness=self._standing["cross"].of("tight", slots),
        ).raw
        tight = float(nearness(np.array([similarity], dtype=np.float32))[0])
        columns = [column for column, scale in enumerate(SIZES) if scale <= size]
        group = Raw.empty(len(slots))
        for column in columns:
            group.tight[:, column] = tight
            # What the surroundings of each place take off the tightness there, they take off here.
            group.near[:, column] = tight - (known.tight - known.near)[:, column]
            group.far[:, column] = tight - (known.tight - known.far)[:, column]
        assert self._usual is not None  # noqa: S101 - there is one as soon as it is ready
        scores = self._usual.references["cross"].surprisals(group)[:, columns].max(axis=1)
        return float(np.mean(scores <= threshold))

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the graph, its evidence and the reference distributions."""
        if self._graph is None:
            return {"graph": None}, {}
        values, arrays = self._graph.state()
        arrays = {f"graph.{key}": array for key, array in arrays.items()}
        n = self._graph.n_slots  # there may be room for more
        arrays["scores"], arrays["trusted"] = self._scores[:n], self._trusted[:n]
        arrays["held_at"], arrays["measured"] = self._held_at[:n], np.flatnonzero(self._measured)
        arrays["together"] = self._together
        for channel in CHANNELS:
            for name, part in self._standing[channel].part(np.s_[:n]).state().items():
                arrays[f"raw.{channel}.{name}"] = part
        if self._kin is not None:
            arrays["kin"] = self._kin.state()
        if self._shares is not None:
            arrays |= {f"words.{key}": array for key, array in self._shares.state().items()}
        if self._usual is not None:
            arrays |= self._usual.state()
        sources, columns = self._sources.state()
        arrays |= {f"sources.{key}": array[:n] for key, array in columns.items()}
        arrays["usual_nearness"] = self._usual_nearness
        arrays |= {f"vocabulary.{key}": array for key, array in self._vocabulary.state().items()}
        return {
            "graph": values,
            "sources": sources,
            "held": self._held,
            "n_come": self._n_come,
            "ready": self._ready,
            "edge_threshold": list(self._edge_threshold),
            "families": self._families,
            "shuffled": self._shuffled,
        }, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` returned."""
        self.reset()
        if values["graph"] is None:
            return

        # Copies of arrays that are changed in place; each by itself, as they may be large.
        self._graph = SimilarityGraph.restored(values["graph"], part_of(arrays, "graph."))
        self._held = {entry_id: list(keys) for entry_id, keys in values["held"].items()}
        self._scores = arrays["scores"].copy()
        self._trusted = arrays["trusted"].copy()
        self._n_come = int(values["n_come"])
        self._measured = np.zeros(len(self._scores), dtype=np.bool_)
        self._measured[arrays["measured"]] = True
        self._together = arrays["together"].astype(np.int32)
        self._shuffled = bool(values["shuffled"])
        self._held_at = arrays["held_at"].astype(np.float32)
        rounded, n = self._graph.rounded, len(self._scores)
        for channel in CHANNELS:
            saved = part_of(arrays, f"raw.{channel}.")
            self._standing[channel] = Standing.restored(n, saved, rounded=rounded)
        if "kin" in arrays:
            self._kin = Kin.restored(arrays["kin"])
        if words := part_of(arrays, "words."):
            self._shares = WordShares.restored(words)
        self._families = values["families"]
        threshold, reachable = values["edge_threshold"]
        self._edge_threshold, self._ready = (threshold, reachable), values["ready"]
        if values["ready"] and self.rule == "groups":
            self._usual = Usual.restored(arrays)
        self._sources = SourceTable.restored(values["sources"], part_of(arrays, "sources."))
        self._usual_nearness = arrays["usual_nearness"]
        self._vocabulary = Vocabulary.restored(part_of(arrays, "vocabulary."))

    # Inside

    def _fitted(self) -> SimilarityGraph:
        if self._graph is None:
            msg = f"{self.name} has learned nothing yet; fit it on the knowledge base."
            raise NotFittedError(msg)
        return self._graph

    @property
    def _rounded(self) -> bool:
        """Whether similarities are rounded where they are kept; the reference rule is exact."""
        return self.rule == "groups"

    @property
    def _k(self) -> int:
        """How many neighbours each entry has in the graph."""
        return K if self.rule == "groups" else cleanbase.K

    def _empty_graph(self, dim: int) -> SimilarityGraph:
        return SimilarityGraph(
            dim,
            self._k,
            exact_up_to=self.exact_up_to,
            table=self._table,
            rounded=self._rounded,
        )

    def _no_evidence(self, n: int) -> dict[Channel, Standing]:
        rounded = self._rounded if self._graph is None else self._graph.rounded
        return {channel: Standing(n, rounded=rounded) for channel in CHANNELS}

    def _learn_trusted(self, entries: Batch) -> None:
        """Take over a knowledge base, and measure what is usual in it once it is large enough."""
        graph = self._fitted()
        if graph.n_slots:  # of which all may have been forgotten
            self._remove(graph.index.among(entries.ids))
            graph.learn(entries.ids, graph.overlay(entries))
        else:
            graph.fit(entries.ids, entries)
        self._note_sources(graph.n_slots - len(entries), entries)
        if len(graph) >= self.min_entries:
            slots = graph.present
            self._measure(slots)
            self._trusted[slots] = True

    def _measure(
        self,
        slots: NDArray[np.int64],
        *,
        audit: bool = False,
        tightness: Mapping[Channel, NDArray[np.float32]] | None = None,
    ) -> Judgement:
        """Learn what is usual among some entries of the graph, and score them by that.

        ``tightness`` is that of their groups, where it was measured already.
        """
        graph = self._fitted()
        overlay = graph.part(slots)
        self._make_room()
        self._measured[:] = False
        self._measured[slots] = True
        known_before, self._ready = self._ready, True
        if self.rule == "cleanbase":
            _, similarities = cleanbase.undirected(overlay.numbers, overlay.lists)
            self._edge_threshold = cleanbase.edge_threshold(similarities, self.alpha)
            if not self._edge_threshold[1]:
                logger.warning("%s: %s", self.name, UNREACHABLE.format(self.alpha))
        families = self._families
        # A smaller sample of the same knowledge base does not make them unusual.
        self._families = bool(
            (known_before and families) or overlay.with_kin().sum() >= MIN_FAMILY_ENTRIES
        )
        if known_before and families != self._families:  # all edges change sides
            self._measure_edges(graph.part(graph.present))
        found: dict[Channel, GroupEvidence] = {}
        newcomers = self._shares = None
        # An audit cannot tell new from old.
        if self.rule == "groups" and len(graph) >= MIN_WORDED and not audit:
            there = graph.present
            parts = (there[start : start + COUNTED] for start in range(0, len(there), COUNTED))
            self._shares = WordShares.of_all(map(graph.words.take, parts))
            newcomers = Newcomers(overlay, self._shares, self._turns(TURNS))
        for channel in CHANNELS if self.rule == "groups" else ():
            if channel == "any" and self._families:
                known, self._kin = (
                    self._kin,
                    Kin(found["same"].nearness[:, 0], found["cross"].nearness[:, 0]),
                )
                if known is None and known_before:
                    self._measure_edges(graph.part(graph.present), ["any"])
            known_tight = None if tightness is None else tightness[channel]
            found[channel] = evidence = self._evidence(
                overlay, channel, newcomers, tightness=known_tight
            )
            self._standing[channel].put("tight", overlay.numbers, evidence.raw.tight)
        if newcomers is not None and len(graph) >= FEWEST and not known_before:
            found = self._without_order(overlay, found)
        if self.rule == "cleanbase":
            judgement = self._judge_cliques(overlay)
        else:
            self._usual_nearness = nearness_of_standing(overlay.lists)
            self._learn_words()
            judgement = self._measure_groups(overlay, found, audit=audit)
        self._scores[overlay.numbers] = rounded_up(judgement.scores)
        return judgement

    def _learn_words(self) -> None:
        """Take the words of the sources that somebody vouches for; none in an audit."""
        graph = self._fitted()
        slots = graph.present[graph.present < len(self._sources.by_slot)]
        vouched = slots[~self._sources.joining(self._sources.by_slot[slots])]
        if len(vouched) > MOST_STANDING:
            vouched = np.random.default_rng(0).choice(vouched, MOST_STANDING, replace=False)
        self._vocabulary = Vocabulary.of(graph.words.take(vouched))

    def _measure_groups(
        self,
        overlay: Overlay,
        evidence: dict[Channel, GroupEvidence],
        *,
        audit: bool,
    ) -> Judgement:
        n = len(overlay.numbers)
        # An audit cannot tell new from old: there, copies are held against all copies.
        lineages = self._lineages_by_turn(overlay, 1 if audit else TURNS)
        tied = Tied.of(evidence, np.s_[:], lineages)
        self._usual = Usual.of(tied, robust=audit)
        scored = tied.columns(self._usual)
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
        self, overlay: Overlay, found: dict[Channel, GroupEvidence]
    ) -> dict[Channel, GroupEvidence]:
        """Look for what came together; if there is any, return evidence of a random order."""
        n = len(overlay.numbers)
        rows = np.arange(n)
        if n > CROSS_FITTED:
            rows = np.sort(np.random.default_rng(0).choice(n, CROSS_FITTED, replace=False))
        some = self._fitted().part(overlay.numbers[rows])
        ordered = Tied.of(found, rows, self._lineages_by_turn(overlay, TURNS))
        self._shuffled = True  # for now
        evidence = self._again(some, tightness={c: found[c].raw.tight[rows] for c in CHANNELS})
        shuffled = Tied.of(evidence, np.s_[:], self._lineages_by_turn(some, TURNS))
        usual = Usual.of(shuffled, robust=False)
        together = came_together(
            ordered.columns(usual).max(axis=1),
            shuffled.columns(usual).max(axis=1),
            self.audit_threshold(UNSUSPICIOUS),
        )
        together = self._with_groups(some, evidence, together)
        self._together = some.numbers[together].astype(np.int32)
        self._shuffled = bool(together.any())
        if not self._shuffled:
            return found
        logger.warning(
            "%s: %d of %d entries agree with what came together with them as the texts of an "
            "attack do; what is usual is measured as if all had come in a random order. An audit "
            "(scan) says why; take out what is poisoned, and fit or adopt anew",
            *(self.name, len(self._together), n),
        )
        # What lies beside these groups no longer leans on them.
        evidence = self._again(overlay, before=found)
        for channel in CHANNELS:
            self._standing[channel].put("tight", overlay.numbers, evidence[channel].raw.tight)
        return evidence

    def _with_groups(
        self,
        overlay: Overlay,
        evidence: Mapping[Channel, GroupEvidence],
        suspected: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return which rows are suspected, or as near to two of these as their own groups are."""
        weights = np.zeros(self._fitted().n_slots, dtype=np.float32)
        while suspected.any():
            joined = suspected.copy()
            for channel, found in evidence.items():
                held = Held.of(overlay, weights, self._standing[channel])
                held = held.suspecting(np.flatnonzero(suspected), found)
                theirs = (found.members >= 0) & (held.weights[found.members] > 0.0)
                theirs &= found.nearness >= held.bonds[found.members]
                joined |= theirs.sum(axis=1) >= NEAREST_SUSPECTS
            if (joined == suspected).all():
                break
            suspected = joined
        return suspected

    def _again(
        self,
        overlay: Overlay,
        *,
        tightness: Mapping[Channel, NDArray[np.float32]] | None = None,
        before: Mapping[Channel, GroupEvidence] | None = None,
    ) -> dict[Channel, GroupEvidence]:
        """Gather evidence again by turns of now, of groups that are as tight as they were."""
        assert self._shares is not None  # noqa: S101 - without, there is no order to look at
        newcomers = Newcomers(overlay, self._shares, self._turns(TURNS))
        return {
            channel: self._evidence(
                overlay,
                channel,
                newcomers,
                before=None if before is None else before[channel],
                tightness=None if tightness is None else tightness[channel],
            )
            for channel in CHANNELS
        }

    def _measure_edges(self, overlay: Overlay, channels: Sequence[Channel] = CHANNELS) -> None:
        """Gather the evidence of entries of the graph anew."""
        for channel in channels:
            self._standing[channel].put("tight", overlay.numbers, 0.0)
        for channel in channels:
            tight = self._evidence(overlay, channel).raw.tight
            self._standing[channel].put("tight", overlay.numbers, tight)

    def _insert(self, keys: Sequence[str], entries: Batch, *, held: bool = False) -> None:
        graph = self._fitted()
        self._remove(graph.index.among(keys))  # a write that is repeated
        overlay = graph.overlay(entries)
        judgement = self._judge(overlay)
        start = graph.n_slots
        graph.learn(keys, overlay)
        self._make_room()
        self._sources.put(np.arange(start, graph.n_slots), entries.sources)
        self._n_come += len(entries)
        self._held_at[start : graph.n_slots] = self._n_come if held else np.nan
        for channel, evidence in judgement.evidence.items():
            self._standing[channel].put("tight", overlay.numbers, evidence.raw.tight)
        self._scores[overlay.numbers] = rounded_up(judgement.scores)
        self._latest = None

    def _remove(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        graph = self._fitted()
        gone = graph.index.slots_of(keys)
        if self._ready:  # what was released, or deleted for good, no longer counts as held
            self._held_at[gone] = np.nan
        rows = graph.remove(keys)
        self._latest = None
        if self._ready and rows.size:
            overlay = graph.part(rows)
            judgement = self._judge(overlay)
            for channel, evidence in judgement.evidence.items():
                self._standing[channel].put("tight", rows, evidence.raw.tight)
            self._scores[rows] = rounded_up(judgement.scores)
        if graph.index.sparse:
            self._compact()

    def _compact(self) -> None:
        """Renumber the entries of the graph, now that many have left."""
        self._make_room()
        before = self._fitted().compact()
        self._scores, self._trusted = self._scores[before], self._trusted[before]
        self._held_at = self._held_at[before]
        self._measured = self._measured[before]
        self._sources.keep(before)
        self._together = np.flatnonzero(np.isin(before, self._together)).astype(np.int32)
        self._standing = {channel: raw.part(before) for channel, raw in self._standing.items()}

    def _make_room(self) -> None:
        """Let the arrays by slot grow with the graph, by a half more at a time."""
        have, need = len(self._scores), self._fitted().n_slots
        if need <= have:
            return
        size = max(need, have + have // 2)
        scores, held_at = np.zeros(size, dtype=np.float32), np.full(size, np.nan, dtype=np.float32)
        trusted, measured = np.zeros((2, size), dtype=np.bool_)
        scores[:have], held_at[:have] = self._scores, self._held_at
        trusted[:have], measured[:have] = self._trusted, self._measured
        self._scores, self._held_at = scores, held_at
        self._trusted, self._measured = trusted, measured
        self._sources.grow(size)
        for channel, raw in self._standing.items():
            self._standing[channel] = raw.part(np.s_[:have], room=size - have)

    def _judged(self, batch: Batch) -> tuple[Overlay, Judgement]:
        """Judge a batch, or recall it: scores, findings and retroactive ones ask for the same."""
        if self._latest is None or self._latest[0] is not batch:
            older = [key for i in batch.ids for key in (i, *self._held.get(i, ()))]
            older += self._overlooked.difference(batch.ids)
            overlay = self._fitted().overlay(batch, older)
            # Nobody asks for the scores of the others, which are most.
            rows = np.concatenate([np.arange(len(batch)), self._watched_rows(overlay)])
            judgement = self._judge_apart(overlay, rows, self._judge(overlay, rows))
            judgement = self._as_updates(overlay, judgement)
            self._latest = (batch, overlay, judgement)
        return self._latest[1], self._latest[2]

    def _as_updates(self, overlay: Overlay, judgement: Judgement) -> Judgement:
        """Judge new versions that keep the text of known ones by what these were.

        A new footer makes all pages of a site more alike, and none of them an attack.
        """
        graph = self._fitted()
        slots = graph.index.slots_of(overlay.batch.ids)
        known = (slots >= 0) & (judgement.scores[: len(slots)] > self.audit_threshold(SUSPICIOUS))
        scores = judgement.scores.copy()
        for row in np.flatnonzero(known).tolist():
            before = graph.words.take(slots[row : row + 1])[0]
            if borrowed(overlay.words_of(overlay.numbers[row]), before) >= BORROWED:
                scores[row] = min(scores[row], float(self._scores[slots[row]]))
        return judgement._replace(scores=scores)

    def _judge_apart(self, overlay: Overlay, rows: NDArray[np.intp], first: Judgement) -> Judgement:
        """Judge again as if all that is suspicious were held, so that nothing borrows from it.

        What lies beside a group is not held for that; and the surroundings of a group that lean on
        it no longer make it look usual.
        """
        if self.rule != "groups":
            return first
        suspects = rows[first.scores[rows] > self.audit_threshold(SUSPICIOUS)]
        return self._judge(overlay, rows, (suspects, first)) if suspects.size else first

    def _within_sources(self, overlay: Overlay, judgement: Judgement) -> Judgement:
        """Judge groups off the standing topics, of sources that join, by their source as well.

        See :mod:`ragshield_core.groups.sources`.
        """
        suspects = np.flatnonzero(judgement.scores > self.audit_threshold(SUSPICIOUS))
        suspects = suspects[judgement.why[suspects] != CLONES_AT]
        codes = self._sources_of(overlay)
        mine = codes[overlay.numbers[suspects]]
        suspects = suspects[self._sources.joining(mine)]
        scores, apart = judgement.scores.copy(), [NO_ROWS]
        for code in np.unique(codes[overlay.numbers[suspects]]).tolist():
            rows = suspects[codes[overlay.numbers[suspects]] == code]
            foreign = self._vocabulary.foreign(overlay.all_words.take(overlay.numbers[rows]))
            rows = rows[foreign | ~self._among_standing(overlay, judgement, rows, codes)]
            if not rows.size:
                continue
            reference, numbers = self._of_source(overlay, judgement, codes, code)
            if len(numbers) < FEWEST_OF_SOURCE:
                scores[rows] = 0.0
                apart.append(rows)
                continue
            place = {number: row for row, number in enumerate(numbers.tolist())}
            own = np.array(
                [place.get(n, -1) for n in overlay.numbers[rows].tolist()], dtype=np.intp
            )
            tied = Tied.of(judgement.evidence, rows, judgement.lineages)
            within = surprisals_within(tied, reference, own)
            scores[rows] = np.minimum(scores[rows], within)
        return judgement._replace(scores=scores, apart=np.concatenate(apart))

    def _sources_of(self, overlay: Overlay) -> NDArray[np.int32]:
        """Return codes of sources by entry number."""
        n_slots = self._fitted().n_slots
        new = self._sources.codes_of(overlay.batch.sources)
        return np.concatenate([self._sources.by_slot[:n_slots], new])

    def _of_source(
        self, overlay: Overlay, judgement: Judgement, codes: NDArray[np.int32], code: int
    ) -> tuple[Tied, NDArray[np.int64]]:
        """Return evidence about entries of a source, held ones included, and their numbers.

        Were held ones left out, a source that comes one by one would never be large enough. The
        numbers are those of the batch: -1 stands for a standing entry.
        """
        graph, rng = self._fitted(), np.random.default_rng(0)
        new = np.flatnonzero(codes[graph.n_slots :] == code)  # rows of the overlay, too
        standing = np.flatnonzero(codes[: graph.n_slots] == code)
        standing = standing[~graph.gone[standing]]
        if len(new) > MOST_OF_SOURCE:
            new = np.sort(rng.choice(new, MOST_OF_SOURCE, replace=False))
        parts = [Tied.of(judgement.evidence, new, judgement.lineages)]
        numbers = [overlay.numbers[new]]
        if standing.size:
            if len(standing) > MOST_OF_SOURCE:
                standing = np.sort(rng.choice(standing, MOST_OF_SOURCE, replace=False))
            part, turns = graph.part(standing), None
            if self._shares is not None:
                turns = Newcomers(part, self._shares, self._turns(TURNS))
            evidence = {channel: self._evidence(part, channel, turns) for channel in CHANNELS}
            parts.append(Tied.of(evidence, np.s_[:], self._lineages_by_turn(part, TURNS)))
            numbers.append(np.full(len(standing), -1, dtype=np.int64))
        return Tied.joined(parts), np.concatenate(numbers)

    def _among_standing(
        self,
        overlay: Overlay,
        judgement: Judgement,
        rows: NDArray[np.intp],
        codes: NDArray[np.int32],
    ) -> NDArray[np.bool_]:
        """Return which rows, with their groups, sit among standing entries of other sources."""
        graph = self._fitted()
        if self._compared is None or self._compared[0] != graph.version:
            slots = graph.present[np.isnan(self._held_at[graph.present])]
            if len(slots) > MOST_STANDING:
                slots = np.random.default_rng(0).choice(slots, MOST_STANDING, replace=False)
            self._compared = (graph.version, slots, graph.index.vectors(slots))
        _, slots, vectors = self._compared
        code = codes[overlay.numbers[rows[0]]]
        others = vectors[codes[slots] != code]
        group = np.concatenate(
            [
                overlay.numbers[rows][:, None],
                *(judgement.evidence[c].members[rows, : SIZES[-1] - 1] for c in CHANNELS),
            ],
            axis=1,
        )
        group[(group >= 0) & (codes[group] != code)] = -1  # standing members stand among others
        members, place = np.unique(group, return_inverse=True)
        near = among_standing(overlay.vectors(members), others, self._usual_nearness)
        there = group >= 0
        mean = np.where(there, near[place.reshape(group.shape)], 0.0).sum(axis=1) / there.sum(
            axis=1
        )
        return np.asarray(mean >= AMONG)

    def _note_sources(self, start: int, entries: Batch) -> None:
        """Note where entries come from, whose slots begin at ``start``."""
        self._make_room()
        self._sources.put(np.arange(start, start + len(entries)), entries.sources)

    def _judge(
        self,
        overlay: Overlay,
        rows: NDArray[np.intp] | None = None,
        suspected: tuple[NDArray[np.intp], Judgement] | None = None,
    ) -> Judgement:
        """Score entries of an overlay, all or some; given, maybe, which rows were suspicious."""
        if self.rule == "cleanbase":
            return self._judge_cliques(overlay)
        assert self._usual is not None  # noqa: S101 - there is one as soon as it is ready
        weights = self._held_weights()
        evidence: dict[Channel, GroupEvidence] = {}
        # Who is new to whom, and copies, which stand by themselves, are what they were before some
        # were suspected.
        if suspected is None:
            recent = self._recent(overlay)
            newcomers, lineages = self._newcomers(overlay, recent), self._lineages(overlay, recent)
        else:
            newcomers = suspected[1].evidence["cross"].newcomers
            lineages = suspected[1].lineages
        for channel in CHANNELS:
            held, before = Held.of(overlay, weights, self._standing[channel]), None
            if suspected is not None:
                before = suspected[1].evidence[channel]
                held = held.suspecting(suspected[0], before)
            evidence[channel] = self._evidence(overlay, channel, newcomers, held, before)
        n = len(overlay.numbers)
        wanted = np.arange(n) if rows is None else rows
        columns = Tied.of(evidence, wanted, lineages).columns(self._usual)
        why, scores = np.zeros(n, dtype=np.intp), np.full(n, -np.inf)
        why[wanted] = np.argmax(columns, axis=1)
        scores[wanted] = columns.max(axis=1)
        judgement = Judgement(
            scores=scores, why=why, evidence=evidence, lineages=lineages, edges=NO_EDGES
        )
        return judgement if suspected is None else self._within_sources(overlay, judgement)

    def _lineages_by_turn(self, overlay: Overlay, turns: int) -> dict[str, NDArray[np.int64]]:
        """Return the same if each part of the graph had come last in turn, in its own order."""
        turn = self._turns(turns)
        lineages = {kind: np.zeros(len(overlay.numbers), dtype=np.int64) for kind in COPIES}
        for number in range(turns):
            mine = turn[overlay.numbers] == number
            for kind, found_in in self._lineages(overlay, turn == number).items():
                lineages[kind][mine] = found_in[mine]
        return lineages

    def _turns(self, turns: int) -> NDArray[np.int64]:
        """Return the part of the graph in which each entry is, by slot, in their own order.

        Or in a random one, where some of what was fitted is suspicious for its order.
        """
        graph = self._fitted()
        if self._shuffled:  # the same for the same slot, however many there are
            return (np.random.default_rng(0).random(graph.n_slots) * turns).astype(np.int64)
        return np.asarray((np.cumsum(~graph.gone) - 1) * turns // max(1, len(graph)))

    def _newcomers(self, overlay: Overlay, recent: NDArray[np.bool_]) -> Newcomers | None:
        """Return who came together; ``None`` where words were not counted.

        No more at once than was taken as new when the usual was measured: else a large batch would
        be suspicious for being one.
        """
        if self._shares is None:  # there were too few entries
            return None
        graph, n_new = self._fitted(), len(overlay.batch)
        if not n_new:  # as they were measured
            return Newcomers(overlay, self._shares, self._turns(TURNS))
        there = np.concatenate([~graph.gone, np.ones(n_new, dtype=np.bool_)])
        later = np.cumsum(there[::-1])[::-1] - 1
        together = later // max(1, round(ARRIVING * len(graph)))
        arrived = np.where(recent, together, STANDS)
        arrived[: graph.n_slots][~np.isnan(self._held_at[: graph.n_slots])] = NEW_TO_ALL
        return Newcomers(overlay, self._shares, arrived)

    def _lineages(
        self, overlay: Overlay, recent: NDArray[np.bool_]
    ) -> dict[str, NDArray[np.int64]]:
        """Return, by kind, how many other lineages there are among recent copies of each entry."""
        return {kind: new_copies(overlay, recent, copy) for kind, copy in COPIES.items()}

    def _judge_cliques(self, overlay: Overlay) -> Judgement:
        """Score the entries of an overlay by the reference rule."""
        edges = self._edges(overlay)
        names, compact = np.unique(edges, return_inverse=True)
        members = cleanbase.clique_members(len(names), compact.reshape(edges.shape))
        scores = np.isin(overlay.numbers, names[members]).astype(np.float64)
        none = np.zeros(len(scores), dtype=np.int64)
        return Judgement(scores=scores, why=none, evidence={}, lineages={}, edges=edges)

    def _edges(self, overlay: Overlay) -> NDArray[np.int64]:
        """Return the edges of the reference rule around the entries of an overlay."""
        numbers, lists = overlay.numbers, overlay.lists
        beyond = np.setdiff1d(lists.slots[lists.slots >= 0], numbers)
        edges = [cleanbase.undirected(numbers, lists)]
        if len(beyond):  # the lists of neighbours that the overlay does not change
            edges.append(cleanbase.undirected(beyond, self._fitted().part(beyond).lists))
        threshold = self._edge_threshold[0]
        kept = [pairs[similarities > threshold] for pairs, similarities in edges]
        return np.unique(np.concatenate(kept), axis=0)

    def _evidence(
        self,
        overlay: Overlay,
        channel: Channel,
        newcomers: Newcomers | None = None,
        held: Held | None = None,
        before: GroupEvidence | None = None,
        *,
        tightness: NDArray[np.float32] | None = None,
    ) -> GroupEvidence:
        if held is None:
            held = Held.of(overlay, self._held_weights(), self._standing[channel])
        return GroupEvidence(
            overlay,
            channel,
            self._standing[channel],
            overlay.lineage_codes(self.trusted_lineages),
            families=self._families,
            held=held,
            kin=self._kin,
            newcomers=newcomers,
            before=before,
            tightness=tightness,
        )

    def _held_weights(self) -> NDArray[np.float32]:
        """Return how much each entry of the graph counts as a held one; 0 if it is none.

        What is suspicious for having come together counts as one: others are not suspicious for
        lying beside it.
        """
        graph = self._fitted()
        held_at = self._held_at[: graph.n_slots]
        weights = np.zeros(len(held_at), dtype=np.float32)
        weights[self._together] = 1.0
        held = np.flatnonzero(~np.isnan(held_at))
        if not held.size:
            return weights
        waiting = held[np.isfinite(held_at[held])]
        weights[held] = 1.0
        crowding = HELD_SHARE * len(graph) / max(1, len(waiting))
        age = self._n_come - held_at[waiting]
        weights[waiting] = min(1.0, crowding) * np.exp2(-age / HELD_HALF_LIFE)
        return weights

    def _accused(
        self,
        overlay: Overlay,
        judgement: Judgement,
        rows: NDArray[np.intp],
        guilty: NDArray[np.bool_],
    ) -> NDArray[np.intp]:
        """Return the standing rows against which more speaks than imitators of them could.

        Parameters
        ----------
        rows
            Of standing entries.
        guilty
            By entry number, what is held.
        """
        why = judgement.why[rows]
        accused = np.zeros(len(rows), dtype=np.bool_)
        for channel in CHANNELS:
            widths = np.where(why == CROWD_AT, CROWD, SIZES[-1] - 1)
            mine = np.flatnonzero(CHANNEL_OF[why] == channel)
            group = judgement.evidence[channel].members[rows[mine], :CROWD]
            with_them = (group >= 0) & guilty[group]
            with_them &= np.arange(CROWD) < widths[mine, None]
            for place in np.flatnonzero(with_them.sum(axis=1) >= ACCOMPLICES).tolist():
                own = overlay.numbers[rows[mine[place]]]
                model = overlay.words_of(own)
                others = [
                    other
                    for other in group[place, with_them[place]].tolist()
                    if borrowed(overlay.words_of(other), model) < BORROWED
                ]
                if len(others) >= ACCOMPLICES:
                    bond = own_bond(overlay.vectors(np.array([own, *others])))
                    accused[mine[place]] = bond > OWN_BOND
        for place in np.flatnonzero(why > CROWD_AT).tolist():
            # Somebody's words came first: of copies, the oldest is the one that was copied.
            lists = overlay.lists.take(rows[place : place + 1])
            copies = lists.slots[copies_in(lists, COPIES[WHYS[why[place]][0]])]
            accused[place] = (copies < overlay.numbers[rows[place]]).any()
        return rows[accused]

    def _recent(self, overlay: Overlay) -> NDArray[np.bool_]:
        """Return, by entry number, what came lately: the latest tenth, as far as it is watched.

        What is held is always recent: it explains nothing that comes later.
        """
        graph = self._fitted()
        recent = np.ones(graph.n_slots + len(overlay.batch), dtype=np.bool_)
        younger = np.cumsum(~graph.gone[::-1])[::-1]  # itself included
        recent[: graph.n_slots] = younger <= round(ARRIVING * len(graph))
        recent[: graph.n_slots] &= ~self._trusted[: graph.n_slots]
        recent[: graph.n_slots] |= ~np.isnan(self._held_at[: graph.n_slots])
        return recent

    def _watched_rows(self, overlay: Overlay) -> NDArray[np.intp]:
        standing = np.arange(len(overlay.batch), len(overlay.numbers))
        slots = overlay.numbers[standing]
        return standing[~self._trusted[slots] & np.isnan(self._held_at[slots])]

    def _sentence(self, overlay: Overlay, judgement: Judgement, row: int) -> Evidence:
        graph = self._fitted()
        why, column = WHYS[judgement.why[row]]

        def names(numbers: Sequence[int]) -> tuple[str, ...]:
            start, given = graph.n_slots, np.array(numbers, dtype=np.int64)
            standing = iter(graph.index.ids_of(given[given < start]))
            return tuple(
                overlay.batch.ids[n - start] if n >= start else next(standing).partition(HELD)[0]
                for n in numbers
            )

        if self.rule == "cleanbase":
            return self._clique_sentence(judgement.edges, int(overlay.numbers[row]), names)
        if why in COPIES:
            lists = overlay.lists.take(np.array([row]))
            copies = names(lists.slots[copies_in(lists, COPIES[why])].tolist())
            what = f"text ({len(copies)} near-exact copies)"
            if why == "parts":
                what = f"words (at least {COPIES[why].copied:.0%} of the text, {len(copies)} times)"
            return Evidence(
                sentence=(
                    f"flooding: the same {what}, new to the knowledge base, came under "
                    f"{judgement.lineages[why][row]} other lineages"
                ),
                related_ids=copies,
            )
        channel = cast("Channel", str(CHANNEL_OF[judgement.why[row]]))
        size = CROWD + 1 if why == "crowd" else SIZES[column]
        members = judgement.evidence[channel].members[row, : size - 1]
        numbers = np.concatenate([[overlay.numbers[row]], members[members >= 0]])
        vectors = overlay.vectors(numbers)
        alike = (vectors @ vectors.T)[np.triu_indices(len(numbers), 1)]
        where = GROUPS_OF[channel]
        sentence = (
            f"one of a group of {'at least ' if why == 'crowd' else ''}{len(numbers)} {where} that "
            f"are alike in meaning (mean cosine {float(alike.mean()):.3f}) beyond what copied "
            "words or their surroundings explain"
        )
        if why != "crowd":
            assert self._usual is not None  # noqa: S101 - by which this was scored
            reference = self._usual.references[channel]
            usual, share = cosine_of(reference.usual_tightness[column]), reference.usual_share
            sentence += f"; {share:.0%} of the groups of this size here stay below {usual:.3f}"
            if agreed := judgement.evidence[channel].agreed(row, size):
                sentence += _agreement(overlay, row, agreed)
        return Evidence(sentence=sentence, related_ids=names(members[members >= 0].tolist()))

    def _clique_sentence(
        self,
        edges: NDArray[np.int64],
        own: int,
        names: Callable[[Sequence[int]], tuple[str, ...]],
    ) -> Evidence:
        import networkx as nx  # noqa: PLC0415 - slow to import, and for this sentence only

        around = np.unique(edges[(edges == own).any(axis=1)])
        around = around[around != own]
        threshold, reachable = self._edge_threshold
        if len(around) > CLIQUE_CAP:
            size = f"three or more (it has {len(around)} neighbours, too many to enumerate)"
            group = around.tolist()
        else:
            near = np.isin(edges[:, 0], around)
            near[near] = np.isin(edges[near, 1], around)
            graph = nx.Graph(edges[near].tolist())
            cliques: list[list[int]] = [sorted(clique) for clique in nx.find_cliques(graph)]
            group = max(cliques, key=len)
            size = str(len(group) + 1)
        sentence = (
            f"one of a clique of {size} entries, each two of them more similar than "
            f"{threshold:.3f} (mean + {self.alpha:g} * std of all edges)"
        )
        if not reachable:
            sentence += f"; {UNREACHABLE.format(self.alpha)}"
        return Evidence(sentence=sentence, related_ids=names(group))


def _agreement(overlay: Overlay, row: int, agreed: Agreed) -> str:
    """Return the words on which an entry and its new neighbours agree, where texts are at hand."""
    start = overlay.graph.n_slots
    mine = [n - start for n in (overlay.numbers[row], *agreed.numbers) if n >= start]
    spelled = spelling(overlay.batch.texts[mine[0]]) if mine else {}
    words = [spelled[word] for word in agreed.words.tolist() if word in spelled]
    if not words:
        return ""
    shown = ", ".join(repr(printable(word, 40)) for word in words)
    count = f"{agreed.n_having} of" if agreed.n_having else "none of"
    return (
        f"; it shares {shown} with {len(agreed.numbers)} other new ones, and {count} the "
        f"{agreed.n_around} earlier ones around it says so"
    )
