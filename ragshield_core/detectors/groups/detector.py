"""Detect groups of entries that resemble each other more than their neighbourhood explains."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import (
    Audits,
    Evidence,
    GroupDetector,
    Need,
    Scope,
    SharesLearning,
    SharesUsual,
    Traits,
)
from ragshield_core.detectors.groups import cleanbase
from ragshield_core.detectors.groups.evidence import CHANNELS, SIZES, K
from ragshield_core.detectors.groups.graph import Lists, Overlay, SimilarityGraph
from ragshield_core.detectors.groups.judging import (
    ACCOMPLICES,
    FEWEST_FOREIGN,
    accused,
    judge,
    judge_batch,
)
from ragshield_core.detectors.groups.known import (
    BY_CLIQUE,
    NOTED,
    NOTES,
    TURNS,
    GraphNeighbors,
    GroupRule,
    Known,
    Tightness,
    audit_threshold,
)
from ragshield_core.detectors.groups.measuring import measure
from ragshield_core.detectors.groups.sentences import explained
from ragshield_core.detectors.groups.usual import (
    CROWD_AT,
    NO_ROWS,
    Judgement,
    Usual,
    tied_to_groups,
)
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError, NotFittedError
from ragshield_core.model.taxonomy import CRAFTED, OUTLIERS, POISONING, VECTORS
from ragshield_core.neighbors.known import NeighborSource, rows_within
from ragshield_core.neighbors.stored import IndexOwner, VectorTable, Where
from ragshield_core.state import part_of
from ragshield_core.text.copies import content_words

# Fewer entries do not show the usual evidence among them.
MIN_ENTRIES = 100
# Up to this number of changed entries, scoring all of them costs no more than scoring some.
FEW = 256
# Entries of a sample that nobody has vouched for do not count as clean if they are so suspicious
# that only this share of clean entries would be.
EXTREME = 1e-4
# The lists in which neighbours are searched, in a measurement of usual values.
SORTED = "sorted"


class CliqueDetector(GroupDetector, Audits, SharesUsual, SharesLearning, IndexOwner):
    """Find small groups of entries that are similar in meaning but not in wording.

    By the default rule, the score is the surprisal of the tightest group around an entry in this
    knowledge base, as a negative natural logarithm (4.6 for one in a hundred); see
    :mod:`.evidence`. Copied words explain a resemblance, unless they are new here and arrive in
    several documents, as clones of one text or as texts made of the same sentences: this is
    flooding, and judged by the number of documents.

    Entries given to :meth:`fit` are trusted: they are never condemned afterwards. Entries learned
    later are watched, and a completed group condemns its earlier members (:meth:`retroactive`).
    This requires the evidence of two other members that are held and share more with each other
    than each could have taken from the earlier entry: of an entry and its imitation, the newcomer
    is the suspect.

    Held entries stay in the graph, because the rest of their group may follow. They count only
    against members of their group, not against entries beside it, and their weight decays until a
    person has confirmed them.

    The detector measures the usual evidence when it is fitted, and again at each :meth:`refresh`:
    entries come closer to each other as a knowledge base grows.

    Parameters
    ----------
    rule
        ``"groups"``, the default, as above; ``"cleanbase"``, the reference rule [1]_: neighbours
        more similar than mean + alpha * std of all edges are joined, and every member of a maximal
        clique of three or more is condemned (score 1, else 0). It takes no calibration, and reads
        neither texts nor document ids; see :mod:`.cleanbase`.
    alpha
        Option of the reference rule, 2.5 as in the paper's repository.
    trusted_lineages
        Ids of documents inside which resemblance is ignored, for documents of many similar chunks.
        The source of an entry claims its document id: name only ids that you control.
    min_entries
        Below this size of the knowledge base entries are not judged.

    Notes
    -----
    The idea that poisoned documents for one question form cliques is CleanBase's [1]_. Screening
    searches neighbours of the new entries only. A stored entry is judged again if it is in the list
    of a new entry, and not if only its own list would change.

    References
    ----------
    .. [1] Jin et al., "CleanBase: Detecting Malicious Documents in RAG Knowledge Databases",
       arXiv:2605.00460, 2026.
    """

    name: str = "clique"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.EMBEDDING, Need.TEXT})
    # Without a calibration: one clean entry in a thousand would have such a group.
    default_threshold: float = 6.9
    traits = Traits(
        taxonomy=("AML.T0070", "AML.T0066", *POISONING, *VECTORS, OUTLIERS, CRAFTED, "CWE-349"),
        scope=Scope.CORPUS,
        acts_unfitted=False,
        reads=(content_words,),
    )

    def __init__(
        self,
        *,
        rule: Literal["groups", "cleanbase"] = "groups",
        alpha: float = cleanbase.ALPHA,
        trusted_lineages: Sequence[str] = (),
        min_entries: int = MIN_ENTRIES,
    ) -> None:
        if rule not in ("groups", "cleanbase"):
            msg = f"rule is {rule!r}, expected 'groups' or 'cleanbase'."
            raise ValueError(msg)
        if min_entries < 2:  # noqa: PLR2004
            msg = f"min_entries is {min_entries}, expected at least 2."
            raise ValueError(msg)
        self.rule = rule
        self.alpha = alpha
        if rule == "cleanbase":  # its scores are 0 and 1, without calibration
            self.default_threshold = BY_CLIQUE
            # Tasks measure groups only.
            self.traits = replace(self.traits, exchangeable=False)
        self.trusted_lineages = tuple(trusted_lineages)
        self.min_entries = min_entries
        self._table: VectorTable | None = None  # the table with the vectors; a reset keeps it
        self._known: Known | None = None
        self._neighbors = GraphNeighbors(self._fitted)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._known = None
        self._audited: tuple[Overlay, Judgement] | None = None
        # The last element is the judgement before suspicion, if learning the batch can reuse it.
        self._latest: tuple[Batch, Overlay, Judgement, Judgement | None] | None = None
        self._prepared: tuple[Batch, Overlay, Tightness] | None = None  # to be learned next
        self._overlooked: frozenset[str] = frozenset()

    def neighbors(self) -> NeighborSource:
        """Return the neighbours of the graph, for detectors that need the same search."""
        return self._neighbors

    # Vectors in the store

    @property
    def in_store(self) -> str | None:
        """Name of the store that finds neighbours; ``None`` if they are found in memory."""
        if self._known is None:
            return None if self._table is None else self._table.name
        return self._known.graph.index.store

    @property
    def n_local(self) -> int:
        """Number of vectors in memory."""
        return 0 if self._known is None else self._known.graph.index.n_local

    @property
    def connected(self) -> bool:
        """Whether the store is connected, if neighbours are found there."""
        return self._known is None or self._known.graph.index.connected

    def use_table(self, table: VectorTable, where: Where | None) -> None:
        """Find neighbours in a store, or in memory, from now on."""
        if where is not None:
            self._table = table if where == "store" else None
        if self._known is not None:
            self._known.graph.use_table(table, where)
            self._table = None if self._known.graph.index.store is None else table
        self._changed()

    def let_go(self) -> int:
        """Drop the vectors that the store has by now; return their number."""
        return 0 if self._known is None else self._known.graph.index.let_go()

    # Learning

    def learn(self, entries: Batch) -> None:
        """Add entries; the first ones are trusted, as in :meth:`fit`, later ones watched."""
        if not len(entries):
            return
        if self._known is None:
            graph = SimilarityGraph(entries.dim, self._k, table=self._table, **NOTES)
            self._known = Known(self._rule, graph)
        if not self._known.ready:
            self._learn_trusted(entries)
        else:
            self._insert(entries.ids, entries)
        self._changed()

    def forget(self, entries: Batch) -> None:
        """Remove entries from the graph."""
        known = self._fitted()
        self._remove(known.graph.index.among(entries.ids))

    def refresh(self, reference: Batch) -> None:
        """Measure the usual evidence again, among entries of the present knowledge base."""
        if (known := self._ready) is None:
            return
        known.graph.sort()
        slots = known.graph.index.slots_of(reference.ids)
        slots = slots[slots >= 0]
        if len(slots) >= self.min_entries:
            measure(known, slots)
        self._changed()

    def usual(self, earlier: Self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the latest measurement of a copy; nothing before there is any."""
        if (known := self._ready) is None or (then := earlier._ready) is None:
            return {}, {}
        values, arrays = then.usual_state()
        slots = arrays["slots"]
        same = known.graph.same_lists(then.graph, slots)
        arrays = {
            name: column[same] if name == "slots" or name.startswith(NOTED) else column
            for name, column in arrays.items()
        }
        values[SORTED], lists = known.graph.sorted_by(then.graph)
        return values, arrays | {f"{SORTED}.{name}": column for name, column in lists.items()}

    def prepared(self, entries: Batch) -> dict[str, NDArray[Any]]:
        """Return the neighbours and the tightness that :meth:`learn` is about to write."""
        if self.in_store is not None or not self._is_new(entries):
            return {}  # no store is asked while a transaction is open
        overlay, tightness = self._found(entries)
        self._prepared = (entries, overlay, tightness)
        columns: dict[str, NDArray[Any]] = overlay.lists.take(np.s_[: len(entries)])._asdict()
        return columns | {**tightness}

    def take_prepared(self, entries: Batch, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Let the next :meth:`learn` of these entries use the neighbours and tightness."""
        channels = CHANNELS if self.rule == "groups" else ()
        if not self._is_new(entries) or arrays.keys() != {*Lists._fields, *channels}:
            return
        graph, lists = self._fitted().graph, Lists(*(arrays[name] for name in Lists._fields))
        if graph.fits(lists, len(entries)):
            overlay = graph.overlay(entries, lists=lists)
            tightness: Tightness = {channel: arrays[channel] for channel in channels}
            if all(len(column) == len(overlay.numbers) for column in tightness.values()):
                self._prepared = (entries, overlay, tightness)

    def take_usual(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over a measurement of the usual evidence."""
        if values and self._ready is not None:
            self._ready.take_usual(values, arrays)
            self._ready.graph.take_sorted(values[SORTED], part_of(arrays, f"{SORTED}."))
            self._changed()

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return the score of each fitted entry among the others: it never counts for itself."""
        if (known := self._ready) is None:
            return np.full(len(fitted), np.nan)
        slots = known.graph.index.slots_of(fitted.ids)
        scores = known.notes["score"][slots].astype(np.float64)
        # The others came after the last measurement, or have new neighbours since.
        stale = np.flatnonzero(~known.notes["measured"][slots])
        if stale.size:
            scores[stale] = judge(known, known.graph.part(slots[stale])).scores
        return scores

    # Held, trusted and doubted entries

    def remember_held(self, entries: Batch) -> None:
        """Keep held entries in the graph, so that the rest of their group is recognised."""
        if (known := self._ready) is None:
            return
        self.forget_held(entries.ids)
        self._insert(known.note_held(entries), entries, held=True)

    def forget_held(self, ids: Sequence[str]) -> None:
        """Remove held entries from the graph: they were released, or deleted for good."""
        if self._known is not None:
            keys = self._known.keys
            self._remove([key for entry_id in ids for key in keys.pop(entry_id, ())])

    def overlook(self, ids: Collection[str]) -> None:
        """Ignore entries that the batch replaces."""
        self._neighbors.overlook(ids)
        if self._overlooked != set(ids):
            self._overlooked = frozenset(ids)
            self._changed()

    def confirm(self, ids: Sequence[str]) -> None:
        """Let held entries count in full, for good: a person has judged them poisoned."""
        if (known := self._known) is not None and (keys := known.keys_of(ids)):
            known.notes["held_at"][known.graph.index.slots_of(keys)] = np.inf
            self._changed()

    def trust(self, ids: Sequence[str]) -> None:
        """Stop watching entries: a person has judged them good."""
        if (known := self._ready) is not None:  # otherwise all of them will be trusted
            slots = known.graph.index.slots_of(ids)
            known.notes["trusted"][slots[slots >= 0]] = True
            known.came_together = np.setdiff1d(known.came_together, slots)
            self._changed()

    def distrust(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        """Watch fitted entries as if they had come later.

        Return which of them have an older entry in their group, or two other given ones.
        """
        known = self._fitted()
        slots = known.graph.index.slots_of(ids)
        known.notes["trusted"][slots[slots >= 0]] = False
        self._changed()
        if not known.by_groups:
            return super().distrust(ids)
        evidence = known.evidence(known.graph.part(slots))
        group = np.concatenate([evidence[c].members[:, : SIZES[-1] - 1] for c in CHANNELS], axis=1)
        older = ((group < slots[:, None]) & (group >= 0)).any(axis=1)
        return np.asarray(older | (np.isin(group, slots).sum(axis=1) >= ACCOMPLICES))

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries are as suspicious as one clean entry in ten thousand.

        Entries that are suspicious because they came together are included; see
        :mod:`ragshield_core.detectors.base.order`.
        """
        if (known := self._ready) is None or not known.by_groups:
            return np.zeros(len(reference), dtype=np.bool_)
        slots = known.graph.index.slots_of(reference.ids)
        there = np.flatnonzero(slots >= 0)
        found = np.isin(slots, known.came_together)
        if len(there) >= self.min_entries:
            overlay = known.graph.part(slots[there])
            lineages = known.lineages_by_turn(overlay, TURNS)
            tied = tied_to_groups(known.evidence(overlay), np.s_[:], lineages)
            scores = Usual.of(tied, robust=True).columns(tied).max(axis=1)
            found[there] |= scores > audit_threshold(EXTREME)
        return found

    def held_outliers(self, entries: Batch, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which entries are as suspicious as one clean entry in ten thousand."""
        if (known := self._ready) is None or not known.by_groups:
            return np.zeros(len(entries), dtype=np.bool_)
        return scores > audit_threshold(EXTREME)

    def n_doubted(self) -> int:
        """Return how many present entries are suspicious because they came together."""
        known = self._known
        if known is None or not len(known.came_together):
            return 0
        return int((~known.notes["gone"][known.came_together]).sum())

    # Audit

    def audit(self, entries: Batch, seed: int = 0) -> NDArray[np.float64]:  # noqa: ARG002
        """Score every entry of a knowledge base among the others, some of which may be poisoned.

        The measurement is robust: up to a twentieth of poisoned entries hardly changes it. An audit
        does not know which entries are new: it compares copies in several documents with all such
        copies in the knowledge base. Fit the detector again before you screen with it.
        """
        self.reset()
        graph = SimilarityGraph.fixed(entries, self._k, **NOTES)
        self._known = Known(self._rule, graph)
        if len(entries) < self.min_entries:
            return np.full(len(entries), np.nan)
        judgement = measure(self._known, graph.present, audit=True)
        self._audited = (graph.part(graph.present), judgement)
        return judgement.scores

    def judge_copies(self) -> NDArray[np.float64]:
        """Restrict the latest audit to crowds and copies; return the scores, shape (n_entries,).

        An audit that judges groups by other means keeps these: copied words explain a group, and a
        crowd is its own surroundings.
        """
        if self._audited is None:
            raise _not_audited(self.name)
        overlay, judgement = self._audited
        tied = tied_to_groups(judgement.evidence, np.s_[:], judgement.lineages)
        usual = self._fitted().usual
        assert usual is not None  # noqa: S101 - an audit has measured it
        columns = usual.columns(tied)[:, CROWD_AT:]
        scores, why = columns.max(axis=1), columns.argmax(axis=1) + CROWD_AT
        self._audited = (overlay, judgement._replace(scores=scores, why=why))
        return np.asarray(scores)

    @property
    def audited_neighbors(self) -> NDArray[Any] | None:
        """Rows of the nearest entries of each entry in the last audit, if there was one.

        Shape (n_entries, k), nearest first, padded with -1.
        """
        return None if self._audited is None else self._audited[0].lists.slots

    def audit_threshold(self, fpr: float) -> float:
        """Return the estimated surprisal that one entry in ``1 / fpr`` reaches: no guarantee."""
        return audit_threshold(fpr) if self.rule == "groups" else self.default_threshold

    def explain_audit(self, entries: Batch, rows: Sequence[int]) -> list[Evidence]:  # noqa: ARG002
        """Return the group of each row, its size and mean similarity, and the usual values."""
        if self._audited is None:
            raise _not_audited(self.name)
        return [explained(self._fitted(), *self._audited, row) for row in rows]

    def take_audit(self, overlay: Overlay, judgement: Judgement, usual: Usual) -> None:
        """Accept an audit that ran elsewhere in parts, to explain its scores.

        The judgement belongs to ``overlay``, whose graph has at least the neighbours of its
        entries; ``usual`` was measured on the whole knowledge base.
        """
        self.reset()
        self._known = Known(self._rule, overlay.graph, usual)
        self._audited = (overlay, judgement)

    # Judging

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return all rows while the knowledge base is too small, then those in other languages."""
        if self._ready is None:
            n = 0 if self._known is None else len(self._known.graph)
            reason = (
                f"the knowledge base has {n} entries, {self.min_entries} are needed to know what "
                "is usual in it"
            )
            return dict.fromkeys(range(len(batch)), reason)
        apart = self._judged(batch)[1].apart if len(batch) else NO_ROWS
        reason = (
            "it is in a language that the knowledge base does not hold, and its source has fewer "
            f"than {FEWEST_FOREIGN} entries to compare it with"
        )
        return dict.fromkeys(apart[apart < len(batch)].tolist(), reason)

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return the surprisal of the tightest group around each entry, shape (n_entries,)."""
        if not self._fitted().ready:
            msg = f"entry {batch.ids[0]!r} cannot be judged: {self.unjudged(batch)[0]}."
            raise InvalidBatchError(msg)
        if not len(batch):
            return np.empty(0)
        _, judgement = self._judged(batch)
        return judgement.scores[: len(batch)]

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the group of each row, its size and mean similarity, and the usual values."""
        if not rows:
            return []
        overlay, judgement = self._judged(batch)
        return [explained(self._fitted(), overlay, judgement, row) for row in rows]

    def explain_held_out(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the group of each row, its size and mean similarity, and the usual values."""
        known, ids = self._fitted(), [batch.ids[row] for row in rows]
        overlay = known.graph.part(known.graph.index.slots_of(ids))
        judgement = judge(known, overlay)
        return [explained(known, overlay, judgement, row) for row in range(len(ids))]

    def retroactive(
        self, batch: Batch, condemned: NDArray[np.bool_], unusual: Collection[str] = ()
    ) -> tuple[list[str], NDArray[np.float64]]:
        """Return watched entries near the batch, with their scores in its presence.

        Entries that were fitted, released by a person, or are already held are never returned. A
        member of a group is only returned if at least two other members are held that are not made
        from it, or if it was unusual before these came. Of copies, the oldest is never returned.
        """
        if (known := self._ready) is None or not len(batch):
            return [], np.empty(0)
        overlay, judgement = self._judged(batch)
        rows = known.watched_rows(overlay)
        if known.by_groups:
            new = known.graph.n_slots + np.flatnonzero(condemned)
            guilty = np.concatenate([known.held_slots, new])
            rows = accused(overlay, judgement, rows, guilty, unusual)
        return known.graph.index.ids_of(overlay.numbers[rows]), judgement.scores[rows]

    def explain_retroactive(self, batch: Batch, ids: Sequence[str]) -> list[Evidence]:
        """Return the evidence for entries that :meth:`retroactive` named, with their new score."""
        known, (overlay, judgement) = self._fitted(), self._judged(batch)
        slots = known.graph.index.slots_of(ids)
        row_of = {slot: row for row, slot in enumerate(overlay.numbers.tolist())}
        return [explained(known, overlay, judgement, row_of[slot]) for slot in slots.tolist()]

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the graph, its evidence and the reference distributions."""
        return ({"graph": None}, {}) if self._known is None else self._known.state()

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`state` returned."""
        self.reset()
        if values["graph"] is not None:
            self._known = Known.restored(self._rule, values, arrays)

    # Inside

    @property
    def _ready(self) -> Known | None:
        """The state, once the usual evidence was measured; before that ``None``."""
        return self._known if self._known is not None and self._known.ready else None

    @property
    def _rule(self) -> GroupRule:
        return GroupRule(
            name=self.rule,
            alpha=self.alpha,
            trusted_lineages=self.trusted_lineages,
            detector=self.name,
        )

    @property
    def _k(self) -> int:
        """Number of neighbours of each entry in the graph."""
        return K if self.rule == "groups" else cleanbase.K

    def _fitted(self) -> Known:
        if self._known is None:
            msg = f"{self.name} has learned nothing yet; fit it on the knowledge base."
            raise NotFittedError(msg)
        return self._known

    def _learn_trusted(self, entries: Batch) -> None:
        """Learn a knowledge base, and measure its usual evidence once it is large enough."""
        known, graph = self._fitted(), self._fitted().graph
        if graph.n_slots:  # all entries of these slots may have been forgotten
            self._remove(graph.index.among(entries.ids))
            slots = graph.learn(entries.ids, graph.overlay(entries))
        else:
            graph.fit(entries.ids, entries)
            slots = graph.present
        known.note_sources(slots, entries.sources, vouch=True)
        if len(graph) >= self.min_entries:
            measure(known, graph.present)
            known.notes["trusted"][graph.present] = True

    def _insert(self, keys: Sequence[str], entries: Batch, *, held: bool = False) -> None:
        """Insert entries into the graph under keys, and update the notes of their neighbours."""
        known, graph = self._fitted(), self._fitted().graph
        self._remove(graph.index.among(keys))  # if the write is repeated
        if self._prepared is None or self._prepared[0] is not entries:
            self._prepared = (entries, *self._found(entries))
        _, overlay, tightness = self._prepared
        slots = graph.learn(keys, overlay)
        known.note_sources(slots, entries.sources)
        known.n_come += len(entries)
        if held:
            known.hold(slots)
        known.note_tightness(overlay.numbers, tightness)
        self._changed()

    def _remove(self, keys: Sequence[str]) -> None:
        """Remove keys from the graph, and judge the entries again that had them as neighbours."""
        if not keys:
            return
        known, graph = self._fitted(), self._fitted().graph
        gone = graph.index.slots_of(keys)
        if known.ready:  # released and deleted entries no longer count as held
            known.release(gone)
        rows = graph.remove(keys)
        if known.ready and rows.size:
            known.note_tightness(rows, known.tightness(graph.part(rows)))
        if graph.index.sparse:
            known.compact()
        self._changed()

    def _judged(self, batch: Batch) -> tuple[Overlay, Judgement]:
        """Judge a batch, or reuse the last judgement: several methods need the same one."""
        if self._latest is None or self._latest[0] is not batch:
            known = self._fitted()
            older = [*batch.ids, *known.keys_of(batch.ids)]
            older += self._overlooked.difference(batch.ids)
            overlay = known.graph.overlay(batch, older)
            # The scores of the other rows, which are most, are not needed.
            rows = np.concatenate([np.arange(len(batch)), known.watched_rows(overlay)])
            first = judge(known, overlay, rows if len(overlay.numbers) > FEW else None)
            judgement = judge_batch(known, overlay, rows, first)
            whole = known.by_groups and not known.graph.index.among(older)
            self._latest = (batch, overlay, judgement, first if whole else None)
        return self._latest[1:3]

    def _found(self, entries: Batch) -> tuple[Overlay, Tightness]:
        """Measure the groups of entries to learn, as far as their screening has not done so."""
        known = self._fitted()
        if self._latest is not None and (first := self._latest[3]) is not None:
            screened, overlay = self._latest[:2]
            if screened is entries:
                return overlay, first.evidence.tightness()
            if (kept := rows_of(entries, screened)) is not None:
                overlay = known.graph.overlay(entries)
                return overlay, known.tightness(overlay, first.evidence, kept)
        overlay = known.graph.overlay(entries)
        return overlay, known.tightness(overlay)

    def _is_new(self, entries: Batch) -> bool:
        """Whether entries will be watched, and none of them was learned before."""
        return self._ready is not None and not self._ready.graph.index.among(entries.ids)

    def _changed(self) -> None:
        self._latest = self._prepared = None


def rows_of(part: Batch, whole: Batch) -> NDArray[np.intp] | None:
    """Return the rows of one batch's entries in another; None unless all are there, unchanged."""
    rows = rows_within(part, whole)
    if rows is None or not len(rows):
        return None
    same = whole.take(rows)
    return rows if (same.texts, same.lineages) == (part.texts, part.lineages) else None


def _not_audited(name: str) -> NotFittedError:
    return NotFittedError(f"{name} has audited nothing yet; call audit first.")
