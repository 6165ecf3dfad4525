"""State of a group detector: the graph, notes on its entries, and its usual evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.agreement import NEW_TO_ALL, STANDS, Newcomers, WordShares
from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    CROWD_DISCOUNT,
    DISCOUNTS,
    SIZES,
    Channel,
    GroupEvidence,
    Held,
    Kin,
)
from ragshield_core.detectors.groups.graph import Marks, Overlay, SimilarityGraph, codes_of
from ragshield_core.detectors.groups.usual import COPIES, Usual, lineages_of
from ragshield_core.detectors.groups.words import Vocabulary
from ragshield_core.model.entries import Batch
from ragshield_core.neighbors.known import KnownNeighbors, NeighborSource
from ragshield_core.neighbors.stored import EntryIndex
from ragshield_core.state import part_of

# Share of a knowledge base that is treated as new, to measure how often copies arrive together.
ARRIVING = 0.1
TURNS = round(1 / ARRIVING)
# Number of later entries after which a held entry counts half, unless a person has confirmed it:
# long enough for a group that trickles into a busy store over months, while the weight of entries
# that were held by mistake still ends.
HELD_HALF_LIFE = 20_000
# A held entry shares its id with the live revision; NUL cannot be part of an id.
HELD = "\0held\0"
# Most held entries that a search skips: they lie close together, and there may be many.
PAST_HELD = 32
# Others are judged without entries that are as suspicious as one clean entry in a hundred.
SUSPICIOUS = 0.01
# Scores of the reference rule are 0 and 1.
BY_CLIQUE = 0.5
# The source of a slot without a noted source.
NO_SOURCE = -1
# Notes on each entry: its score in the last measurement, rounded up; whether it was fitted, or
# judged good by a person, so that it is never condemned afterwards; the number of entries that came
# before it was held, infinite if a person has confirmed it, NaN if it is not held; whether its
# neighbours are those of that score; its source; and the tightness of its groups, by channel.
NOTES: dict[str, Any] = {
    "score": np.float32(0.0),
    "trusted": np.False_,
    "held_at": np.float32(np.nan),
    "measured": np.False_,
    "source": np.int32(NO_SOURCE),
    **{channel: np.zeros(len(SIZES), dtype=np.float32) for channel in CHANNELS},
}

# Notes on the tightness of groups, by channel.
Tightness = Mapping[Channel, NDArray[np.float32]]
# The notes that a measurement changes, and the prefix of their names in its result.
MEASURED, NOTED = ("measured", "score", *CHANNELS), "notes."


class GroupRule(NamedTuple):
    """Rule of a group detector, see :class:`.detector.CliqueDetector`, and its name in messages."""

    name: Literal["groups", "cleanbase"]
    alpha: float
    trusted_lineages: tuple[str, ...]
    detector: str


def audit_threshold(fpr: float) -> float:
    """Return an estimate of the surprisal that one entry in ``1 / fpr`` reaches, not a guarantee.

    It assumes exponential tails, and adds up the kinds of evidence, each of which may be the most
    surprising, by their share of the budget.
    """
    # Groups by channel, crowds, both kinds of copies.
    discounts = (*DISCOUNTS.values(), CROWD_DISCOUNT, 0.0, 0.0)
    return float(np.log(np.exp(np.negative(discounts)).sum() / fpr))


class Known:
    """The state of a group detector.

    ``rule`` is the detector's rule; ``graph`` has entries and their neighbours, with :data:`NOTES`
    as columns; ``usual`` is None before it is measured, and for the reference rule.
    """

    def __init__(self, rule: GroupRule, graph: SimilarityGraph, usual: Usual | None = None) -> None:
        self.rule, self.graph, self.usual = rule, graph, usual
        self.notes = graph.columns
        # Slots of fitted entries that are suspicious because they came together. If there were any,
        # the usual evidence is measured as if entries had come in a random order.
        self.came_together = np.empty(0, dtype=np.int32)
        self.shuffled = False
        # By id, the keys of held entries in the graph; number of entries learned or held since fit.
        self.keys: dict[str, list[str]] = {}
        self.n_come = 0
        self.held_slots = np.empty(0, dtype=np.int64)  # slots of held entries, ascending
        # Codes of sources by name, codes of vouched-for sources, and the words of these.
        self.sources: dict[str | None, int] = {}
        self.vouched: set[int] = set()
        self.vocabulary = Vocabulary(np.empty(0, dtype=np.uint32), 0.0)
        self.measured_edges = False  # whether the latest measurement changed notes of all entries
        self.ready = False  # whether the usual evidence has been measured
        # Threshold of the reference rule, and whether a similarity can exceed it.
        self.edge_threshold = (1.0, True)
        # Shares of words in the knowledge base; None if it is small.
        self.shares: WordShares | None = None
        # Whether documents of several entries are usual; weight of resemblance within a document.
        self.families = True
        self.kin: Kin | None = None
        # Nearness of stored entries to each other; the version of the graph, and the slots and
        # vectors of the stored entries that others are compared with.
        self.usual_nearness = np.empty(0, dtype=np.float32)
        self.compared: tuple[int, NDArray[np.int64], NDArray[np.float32]] | None = None

    @property
    def by_groups(self) -> bool:
        """Whether the detector uses the default rule."""
        return self.rule.name == "groups"

    @property
    def suspicious(self) -> float:
        """The score above which an entry is suspicious, so that others are judged without it."""
        return audit_threshold(SUSPICIOUS) if self.by_groups else BY_CLIQUE

    # Held entries

    def note_held(self, entries: Batch) -> list[str]:
        """Note that entries are held; return their keys in the graph."""
        keys = [f"{entry.id}{HELD}{entry.fingerprint}" for entry in entries]
        for entry_id, key in zip(entries.ids, keys, strict=True):
            self.keys.setdefault(entry_id, []).append(key)
        return keys

    def keys_of(self, ids: Sequence[str]) -> list[str]:
        """Return the keys of held entries."""
        return [key for entry_id in ids for key in self.keys.get(entry_id, ())]

    def hold(self, slots: NDArray[np.int64]) -> None:
        """Note that the entries in some slots are held from now on."""
        self.notes["held_at"][slots] = self.n_come
        self.held_slots = np.union1d(self.held_slots, slots)

    def release(self, slots: NDArray[np.int64]) -> None:
        """Note that the entries in some slots are held no longer."""
        self.notes["held_at"][slots] = np.nan
        self.held_slots = np.setdiff1d(self.held_slots, slots)

    def is_held(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which entries are held."""
        return np.asarray(~np.isnan(self.notes["held_at"][slots]))

    def watched_rows(self, overlay: Overlay) -> NDArray[np.intp]:
        """Return the rows of an overlay that can be recalled: stored, neither trusted nor held."""
        standing = np.arange(len(overlay.batch), len(overlay.numbers))
        slots = overlay.numbers[standing]
        return standing[~self.notes["trusted"][slots] & ~self.is_held(slots)]

    def _tightness(self) -> dict[Channel, NDArray[np.float32]]:
        """Return the tightness of all entries, by channel and slot."""
        return {channel: self.notes[channel] for channel in CHANNELS}

    def held(self) -> Held:
        """Return the entries that count only against members of their group.

        Entries that are suspicious because they came together count as held: others are not
        suspicious for being beside them.
        """
        slots = np.union1d(self.came_together, self.held_slots)
        # The weight of unconfirmed entries decays.
        age = self.n_come - self.notes["held_at"][slots].astype(np.float64)
        weights = np.where(np.isfinite(age), np.exp2(-age / HELD_HALF_LIFE), 1.0)
        held = self.is_held(slots)
        return Held.of(self.graph, slots, weights.astype(np.float32), held, self._tightness())

    # Newcomers

    def _begin_of_latest(self, count: int) -> int:
        """Return the first slot of the latest so many present entries."""
        gone = self.notes["gone"]
        begin = len(gone)
        while begin and (missing := count - int(np.count_nonzero(~gone[begin:]))) > 0:
            begin = max(0, begin - missing)
        return begin

    def recent(self) -> Marks:
        """Return which entries are recent: new ones, and the watched ones of the latest tenth.

        Held entries are always recent: they explain no later entries.
        """
        begin = self._begin_of_latest(round(ARRIVING * len(self.graph)))
        n_slots = self.graph.n_slots

        def recent(numbers: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
            slots = np.where(numbers < n_slots, numbers, -1)
            watched = (slots >= begin) & ~self.notes["trusted"][slots]
            return np.asarray(watched | self.is_held(slots) | (numbers >= n_slots))

        return recent

    def turns(self, turns: int) -> NDArray[np.int64]:
        """Return the part of the graph to which each entry belongs, by slot, in order of arrival.

        The order is random if some fitted entries are suspicious because of their own order.
        """
        if self.shuffled:  # the value of a slot does not depend on the number of slots
            random = np.random.default_rng(0).random(self.graph.n_slots)
            return (random * turns).astype(np.int64)
        there = np.cumsum(~self.notes["gone"]) - 1
        return np.asarray(there * turns // max(1, len(self.graph)))

    def newcomers(self, overlay: Overlay, recent: Marks) -> Newcomers | None:
        """Return the entries that came together; ``None`` if words were not counted.

        A large batch is split into parts as large as those of the measurement: otherwise its size
        would be suspicious.
        """
        if self.shares is None:  # there were too few entries
            return None
        n_new = len(overlay.batch)
        if not n_new:
            return self.newcomers_by_turn(overlay)
        n_slots, size = self.graph.n_slots, max(1, round(ARRIVING * len(self.graph)))
        # Stored entries before the first slot of a part came with an earlier part.
        ends = range(size - n_new, size + 1, size)
        begins = np.sort([self._begin_of_latest(max(0, end)) for end in ends])

        def arrived(numbers: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
            slots = np.where(numbers < n_slots, numbers, -1)
            stored = len(begins) - np.searchsorted(begins, slots, side="right")
            part = np.where(numbers < n_slots, stored, (n_slots + n_new - 1 - numbers) // size)
            part = np.where(recent(numbers), part, STANDS)
            return np.where((slots >= 0) & self.is_held(slots), NEW_TO_ALL, part)

        return Newcomers(overlay, self.shares, arrived)

    def newcomers_by_turn(self, overlay: Overlay) -> Newcomers | None:
        """Return the same as in the measurement: as if each part of the graph had come together."""
        if self.shares is None:
            return None
        return Newcomers(overlay, self.shares, self.turns(TURNS).__getitem__)

    def lineages_by_turn(self, overlay: Overlay, turns: int) -> dict[str, NDArray[np.int64]]:
        """Return :func:`.usual.lineages_of` entries; each part of the graph in turn comes last."""
        turn = self.turns(turns)
        lineages = {kind: np.zeros(len(overlay.numbers), dtype=np.int64) for kind in COPIES}
        for number in range(turns):
            mine = turn[overlay.numbers] == number
            for kind, found_in in lineages_of(overlay, (turn == number).__getitem__).items():
                lineages[kind][mine] = found_in[mine]
        return lineages

    def evidence(
        self,
        overlay: Overlay,
        newcomers: Newcomers | None = None,
        *,
        held: Held | None = None,
        before: GroupEvidence | None = None,
        kept: NDArray[np.intp] | None = None,
        tightness: Mapping[Channel, NDArray[np.float32]] | None = None,
        channels: Sequence[Channel] = CHANNELS,
    ) -> GroupEvidence:
        """Return the evidence about the entries of an overlay."""
        return GroupEvidence(
            overlay,
            channels,
            {"tight": self._tightness()},
            overlay.lineage_codes(self.rule.trusted_lineages),
            families=self.families,
            held=self.held() if held is None else held,
            kin=self.kin,
            newcomers=newcomers,
            before=before,
            kept=kept,
            tightness=tightness,
        )

    def tightness(
        self,
        overlay: Overlay,
        before: GroupEvidence | None = None,
        kept: NDArray[np.intp] | None = None,
    ) -> Tightness:
        """Return the tightness of the groups of an overlay's entries, which the graph keeps."""
        if not self.by_groups:
            return {}
        return self.evidence(overlay, before=before, kept=kept).tightness()

    def note_tightness(self, slots: NDArray[np.int64], tightness: Tightness) -> None:
        """Keep the tightness of groups that have changed, so that their scores are outdated."""
        self.notes["measured"][slots] = False
        for channel, column in tightness.items():
            self.notes[channel][slots] = column

    # Sources

    def source_codes(self, sources: Sequence[str | None]) -> NDArray[np.int64]:
        """Return a code for each source name; new names are not noted."""
        return codes_of(sources, self.sources)[0]

    def note_sources(
        self, slots: NDArray[np.int64], sources: Sequence[str | None], *, vouch: bool = False
    ) -> None:
        """Note the sources of slots; ``vouch`` marks these sources as vouched for."""
        codes, new = codes_of(sources, self.sources)
        self.sources |= new
        self.notes["source"][slots] = codes
        if vouch:
            self.vouched.update(codes.tolist())

    def joining(self, codes: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which codes belong to sources that are not vouched for, shape as ``codes``."""
        return ~np.isin(codes, list(self.vouched))

    # Usual values that another process has measured in the same state

    def usual_state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the latest measurement, with the notes that it changed."""
        slots = np.flatnonzero(self.notes["measured"] | self.measured_edges)
        values, arrays = self._usual_parts()
        notes = {f"{NOTED}{name}": self.notes[name][slots] for name in MEASURED}
        return values | {"unrelated": self.graph.unrelated}, arrays | notes | {"slots": slots}

    def take_usual(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the result of :meth:`usual_state`."""
        self.graph.unrelated = values["unrelated"]
        before = self.families, self.kin is None
        self._take_usual_parts(values, arrays)
        self.notes["measured"][:] = False
        for name, column in part_of(arrays, NOTED).items():
            self.notes[name][arrays["slots"]] = column
        if before != (self.families, self.kin is None):  # all edges changed sides
            others = np.setdiff1d(self.graph.present, arrays["slots"])
            self.note_tightness(others, self.tightness(self.graph.part(others)))

    def _usual_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        arrays: dict[str, NDArray[Any]] = {"usual_nearness": self.usual_nearness}
        arrays |= {f"vocabulary.{key}": array for key, array in self.vocabulary.state().items()}
        if self.kin is not None:
            arrays["kin"] = self.kin.state()
        if self.shares is not None:
            arrays |= {f"words.{key}": array for key, array in self.shares.state().items()}
        if self.usual is not None:
            arrays |= self.usual.state()
        return {"edge_threshold": list(self.edge_threshold), "families": self.families}, arrays

    def _take_usual_parts(
        self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> None:
        self.vocabulary = Vocabulary.restored(part_of(arrays, "vocabulary."))
        self.usual_nearness = arrays["usual_nearness"]
        self.kin = Kin.restored(arrays["kin"]) if "kin" in arrays else None
        words = part_of(arrays, "words.")
        self.shares = WordShares.restored(words) if words else None
        threshold, reachable = values["edge_threshold"]
        self.edge_threshold, self.families = (threshold, reachable), values["families"]
        if self.ready and self.by_groups:
            self.usual = Usual.restored(arrays)

    # State

    def compact(self) -> None:
        """Renumber the entries of the graph, after many have left."""
        before = self.graph.compact()
        self.came_together = np.flatnonzero(np.isin(before, self.came_together)).astype(np.int32)
        self.held_slots = np.flatnonzero(~np.isnan(self.notes["held_at"]))

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays."""
        values, arrays = self.graph.state()
        arrays = {f"graph.{key}": array for key, array in arrays.items()}
        usual, measured = self._usual_parts()
        arrays |= measured | {"together": self.came_together}
        return {
            "graph": values,
            "held": self.keys,
            "n_come": self.n_come,
            "shuffled": self.shuffled,
            "sources": list(self.sources),
            "vouched": sorted(self.vouched),
            "ready": self.ready,
            **usual,
        }, arrays

    @classmethod
    def restored(
        cls, rule: GroupRule, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> Known:
        """Return the state that :meth:`state` described."""
        graph = SimilarityGraph.restored(values["graph"], part_of(arrays, "graph."), **NOTES)
        known = cls(rule, graph)
        known.keys = {entry_id: list(keys) for entry_id, keys in values["held"].items()}
        known.n_come, known.shuffled = int(values["n_come"]), bool(values["shuffled"])
        known.came_together = arrays["together"].astype(np.int32)
        known.sources = {name: code for code, name in enumerate(values["sources"])}
        known.vouched = set(values["vouched"])
        known.ready = values["ready"]
        known.held_slots = np.flatnonzero(~np.isnan(known.notes["held_at"]))
        known._take_usual_parts(values, arrays)
        return known


class GraphNeighbors(NeighborSource):
    """The neighbours of a graph, lent to other detectors; ``known`` returns the present state.

    One search serves the owner of the graph, which learns and forgets, and all detectors that need
    the neighbours of the same batch. If more than :data:`PAST_HELD` held entries are around an
    entry, fewer neighbours than requested may be found.
    """

    def __init__(self, known: Callable[[], Known]) -> None:
        self._known = known
        super().__init__()

    def standing_neighbors(self, ids: Sequence[str], k: int) -> KnownNeighbors:
        """Return the k nearest other known entries of known ones, from the lists of the graph."""
        graph = self._known().graph
        if k > graph.k or not len(ids):
            return super().standing_neighbors(ids, k)
        slots = graph.lists.slots[graph.index.slots_of(ids)]
        return self._ranked(ids, self.vectors(ids), self._live(slots), k)

    def _fitted(self) -> EntryIndex:
        return self._known().graph.index

    def _nearest(self, batch: Batch, k: int) -> NDArray[np.int64]:
        known = self._known()
        past = min(sum(map(len, known.keys.values())), PAST_HELD)
        return self._live(known.graph.nearest(batch, k + past).slots[:, : k + past])

    def _live(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return slots without those of held entries."""
        known = self._known()
        return np.where((slots >= 0) & known.is_held(slots), -1, slots)
