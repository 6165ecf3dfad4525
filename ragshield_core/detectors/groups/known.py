"""State of a group detector: the graph, notes on its entries, and what is usual in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.agreement import (
    NEW_TO_ALL,
    STANDS,
    Newcomers,
    WordShares,
)
from ragshield_core.detectors.groups.books import ARRIVING, TURNS, Books
from ragshield_core.detectors.groups.evidence import (
    CROWD_DISCOUNT,
    DISCOUNTS,
    Channel,
    GroupEvidence,
    Held,
    Kin,
)
from ragshield_core.detectors.groups.graph import Overlay, SimilarityGraph
from ragshield_core.detectors.groups.sources import SourceTable, Vocabulary
from ragshield_core.detectors.groups.usual import COPIES, Usual, lineages_of
from ragshield_core.state import part_of

# As suspicious as one clean entry in a hundred is suspicious enough for others to be judged apart.
SUSPICIOUS = 0.01
# Scores of the reference rule are 0 and 1.
BY_CLIQUE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a group detector judges, see :class:`.detector.CliqueDetector`."""

    name: Literal["groups", "cleanbase"]
    alpha: float
    trusted_lineages: tuple[str, ...]
    detector: str
    """The detector's name, for messages."""


def audit_threshold(fpr: float) -> float:
    """Return the surprisal that one entry in ``1 / fpr`` reaches: an estimate, no guarantee.

    It assumes that tails are exponential, and counts the kinds of evidence, each of which may be
    the most surprising, by their share of the budget.
    """
    # Groups by channel, crowds, both kinds of copies.
    discounts = (*DISCOUNTS.values(), CROWD_DISCOUNT, 0.0, 0.0)
    return float(np.log(np.exp(np.negative(discounts)).sum() / fpr))


@dataclass(slots=True, kw_only=True, eq=False)
class Known:
    """The state of a group detector.

    Attributes
    ----------
    rule
        How the detector judges.
    graph
        Entries and their neighbours.
    books
        Notes on each entry.
    sources, vocabulary
        Where entries come from, and the words of sources that somebody vouches for.
    ready
        Whether what is usual has been measured.
    usual
        What is usual; ``None`` before it is measured, and for the reference rule.
    edge_threshold
        Of the reference rule, and whether a similarity can exceed it.
    shares
        Of words in the knowledge base; ``None`` where it is small.
    kin
        What resemblance within a lineage is worth.
    families
        Whether lineages of more than one entry are usual.
    usual_nearness
        How near to each other the standing entries are with which others are compared.
    compared
        The vectors of these, while the graph stays as it is.
    """

    rule: Rule
    graph: SimilarityGraph
    books: Books = field(default_factory=Books)
    sources: SourceTable = field(default_factory=SourceTable)
    vocabulary: Vocabulary = field(
        default_factory=lambda: Vocabulary(np.empty(0, dtype=np.uint32), 0.0)
    )
    ready: bool = False
    usual: Usual | None = None
    edge_threshold: tuple[float, bool] = (1.0, True)
    shares: WordShares | None = None
    kin: Kin | None = None
    families: bool = True
    usual_nearness: NDArray[np.float32] = field(
        default_factory=lambda: np.empty(0, dtype=np.float32)
    )
    compared: tuple[int, NDArray[np.int64], NDArray[np.float32]] | None = None

    @property
    def by_groups(self) -> bool:
        """Whether the default rule is in force."""
        return self.rule.name == "groups"

    @property
    def suspicious(self) -> float:
        """The score above which an entry is suspicious enough for others to be judged apart."""
        return audit_threshold(SUSPICIOUS) if self.by_groups else BY_CLIQUE

    def evidence(
        self,
        overlay: Overlay,
        channel: Channel,
        newcomers: Newcomers | None = None,
        held: Held | None = None,
        before: GroupEvidence | None = None,
        *,
        tightness: NDArray[np.float32] | None = None,
    ) -> GroupEvidence:
        """Return the evidence that a channel holds about the entries of an overlay."""
        if held is None:
            held = self.held(overlay, channel)
        return GroupEvidence(
            overlay,
            channel,
            {"tight": self.books.tight[channel]},
            overlay.lineage_codes(self.rule.trusted_lineages),
            families=self.families,
            held=held,
            kin=self.kin,
            newcomers=newcomers,
            before=before,
            tightness=tightness,
        )

    def held(self, overlay: Overlay, channel: Channel) -> Held:
        """Return what counts against members of its group only."""
        weights = self.books.held_weights(self.graph)
        waiting = self.books.is_held(np.s_[: len(weights)])
        return Held.of(overlay, weights, self.books.tight[channel], waiting)

    def newcomers(self, overlay: Overlay, recent: NDArray[np.bool_]) -> Newcomers | None:
        """Return who came together; ``None`` where words were not counted.

        No more at once than was taken as new when the usual was measured: else a large batch would
        be suspicious for being one.
        """
        if self.shares is None:  # there were too few entries
            return None
        graph, n_new = self.graph, len(overlay.batch)
        if not n_new:
            return self.newcomers_by_turn(overlay)
        there = np.concatenate([~graph.gone, np.ones(n_new, dtype=np.bool_)])
        later = np.cumsum(there[::-1])[::-1] - 1
        together = later // max(1, round(ARRIVING * len(graph)))
        arrived = np.where(recent, together, STANDS)
        arrived[: graph.n_slots][self.books.is_held(np.s_[: graph.n_slots])] = NEW_TO_ALL
        return Newcomers(overlay, self.shares, arrived)

    def newcomers_by_turn(self, overlay: Overlay) -> Newcomers | None:
        """Return the same as it was measured: as if each part of the graph had come together."""
        if self.shares is None:
            return None
        return Newcomers(overlay, self.shares, self.books.turns(self.graph, TURNS))

    def lineages_by_turn(self, overlay: Overlay, turns: int) -> dict[str, NDArray[np.int64]]:
        """Return :func:`.usual.lineages_of` entries, each part of the graph come last in turn."""
        turn = self.books.turns(self.graph, turns)
        lineages = {kind: np.zeros(len(overlay.numbers), dtype=np.int64) for kind in COPIES}
        for number in range(turns):
            mine = turn[overlay.numbers] == number
            for kind, found_in in lineages_of(overlay, turn == number).items():
                lineages[kind][mine] = found_in[mine]
        return lineages

    def watched_rows(self, overlay: Overlay) -> NDArray[np.intp]:
        """Return the rows of an overlay that are known entries which can be recalled."""
        standing = np.arange(len(overlay.batch), len(overlay.numbers))
        return standing[self.books.is_watched(overlay.numbers[standing])]

    def make_room(self) -> None:
        """Let the notes by slot grow with the graph, by a half more at a time."""
        have, need = len(self.books), self.graph.n_slots
        if need <= have:
            return
        size = max(need, have + have // 2)
        self.books.grow(size)
        self.sources.grow(size)

    def compact(self) -> None:
        """Renumber the entries of the graph, now that many have left."""
        self.make_room()
        before = self.graph.compact()
        self.books.keep(before)
        self.sources.keep(before)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        n = self.graph.n_slots  # there may be room for more
        values, arrays = self.graph.state()
        arrays = {f"graph.{key}": array for key, array in arrays.items()}
        notes, columns = self.books.state(n)
        arrays |= columns
        if self.kin is not None:
            arrays["kin"] = self.kin.state()
        if self.shares is not None:
            arrays |= {f"words.{key}": array for key, array in self.shares.state().items()}
        if self.usual is not None:
            arrays |= self.usual.state()
        sources, columns = self.sources.state()
        arrays |= {f"sources.{key}": array[:n] for key, array in columns.items()}
        arrays["usual_nearness"] = self.usual_nearness
        arrays |= {f"vocabulary.{key}": array for key, array in self.vocabulary.state().items()}
        return notes | {
            "graph": values,
            "sources": sources,
            "ready": self.ready,
            "edge_threshold": list(self.edge_threshold),
            "families": self.families,
        }, arrays

    @classmethod
    def restored(
        cls, rule: Rule, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> Known:
        """Return what :meth:`state` described."""
        graph = SimilarityGraph.restored(values["graph"], part_of(arrays, "graph."))
        known = cls(rule=rule, graph=graph, books=Books.restored(values, arrays))
        if "kin" in arrays:
            known.kin = Kin.restored(arrays["kin"])
        if words := part_of(arrays, "words."):
            known.shares = WordShares.restored(words)
        known.families, known.ready = values["families"], values["ready"]
        threshold, reachable = values["edge_threshold"]
        known.edge_threshold = (threshold, reachable)
        if known.ready and known.by_groups:
            known.usual = Usual.restored(arrays)
        known.sources = SourceTable.restored(values["sources"], part_of(arrays, "sources."))
        known.usual_nearness = arrays["usual_nearness"]
        known.vocabulary = Vocabulary.restored(part_of(arrays, "vocabulary."))
        return known
