"""Evidence that an entry belongs to a group that is tighter than the groups around it.

Texts crafted for one question are close to each other in meaning and far in wording, and they stand
out against their own surroundings rather than against the whole corpus. For an entry and a group
size g, the group is the entry and its g - 1 nearest, and

- its *tightness* is the mean nearness over all pairs of the group, where nearness is the negative
  logarithm of the cosine distance, reduced by copied words, which explain it;
- its *contrast* is the excess of its tightness over that of the groups of its surroundings, the ten
  next nearest entries;
- the evidence of an entry is limited to the best of the other members: one text forms no group.

Entries of one document are similar for an honest reason. So groups are searched across documents,
within one, and, since a document id is only a claim, in both at once. There, a resemblance within
a document counts as much as an equally rare one across documents (:class:`Kin`).

The knowledge base itself shows how rare such values are (:class:`Surprisal`), so that a corpus of
similar entries raises its own threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.agreement import Agreed, Newcomers
from ragshield_core.detectors.groups.graph import (
    COMPARE_ABOVE,
    NO_LINEAGE,
    Lists,
    Overlay,
    SimilarityGraph,
    find,
    rounded,
)
from ragshield_core.neighbors.threads import in_threads

Channel = Literal["cross", "same", "any"]
# Edges across documents, edges within one, and both: a document id is a claim, and a group with two
# ids would show half of its edges in each.
CHANNELS: tuple[Channel, ...] = ("cross", "same", "any")
# Group sizes; larger groups contain groups of five.
SIZES = (2, 3, 4, 5)
# Entries beyond a group that it is compared with: enough for a maximum that does not depend on one
# outlier of a crowded place.
SURROUNDINGS = 10
# Neighbours per entry: four of the group, ten of its surroundings, two to spare for copies.
K = 16
# Floor of 1 - cosine: vectors that went through float16 or bfloat16 differ by about this much.
FLOOR = 0.005
# From half of the shorter text on, copied words explain a resemblance; from nine tenths, all of it.
COPIED_FROM, COPIED_ALL = 0.5, 0.9
# Weights of the surprisals. Contrast within reach is the main evidence; far and tight correct it if
# all entries are crowded or sparse. Agreement is another kind of evidence: in a group of five it
# counts as much as these three, which are similar; in smaller groups it counts less.
WEIGHTS = {"near": 1.0, "far": 0.5, "tight": 0.5, "agreed": 2.0}
PARTS = tuple(WEIGHTS)
# Discounts of surprisals: groups across documents get most of the error budget, groups within one a
# quarter of that, mixed ones, most of which the other channels find too, a sixteenth.
DISCOUNTS: dict[Channel, float] = {
    "cross": 0.0,
    "same": float(np.log(4.0)),
    "any": float(np.log(16.0)),
}
# Points of the distributions that translate a resemblance within a document into one across.
KIN_POINTS = 1_001
# A group much larger than SIZES contains its own surroundings, so that it has no contrast: for such
# groups, the nearness of the tenth nearest entry counts. Budget as within a document.
CROWD, CROWD_DISCOUNT = 10, float(np.log(4.0))
# Rows that are processed at once, to bound the memory of large corpora.
CHUNK = 1_500
# An entry belongs to the group of a held or suspicious one up to twice the cosine distance between
# that one and its own group; for a held one also if it is nearer to the group than to the group's
# surroundings. Entries farther off lie beside the group, on its topic, and are judged without it.
BESIDE = float(np.log(2.0))
# The two nearest suspicious entries define the group of a suspicious one: a single twin would form
# a group of the two, with the others beside it.
NEAREST_SUSPECTS = 2
# Steps per unit to which the figures of groups, nearness and its differences, are rounded, with an
# error up to 8e-5.
FIGURE_STEPS = 6_000


NO_NUMBERS = np.empty(0, dtype=np.int64)


class Raw(NamedTuple):
    """Evidence before an entry is tied to its group; shape (n, len(SIZES)) each."""

    near: NDArray[np.float32]
    far: NDArray[np.float32]
    tight: NDArray[np.float32]
    agreed: NDArray[np.float32]


def nearness(
    similarities: NDArray[np.float32], copied: NDArray[np.float32] | float = 0.0
) -> NDArray[np.float32]:
    """Return the negative logarithm of the cosine distance, reduced by copied text.

    A tenth of the distance adds 2.3. Shape as ``similarities``, which may be -inf.
    """
    distance = 1.0 + FLOOR - np.clip(similarities, 0.0, 1.0)
    unexplained = np.clip((COPIED_ALL - copied) / (COPIED_ALL - COPIED_FROM), 0.0, 1.0)
    return np.asarray(-np.log(distance) * unexplained, dtype=np.float32)


def cosine_of(value: float) -> float:
    """Return the cosine whose unexplained :func:`nearness` is ``value``."""
    return float(1.0 + FLOOR - np.exp(-value))


class Held(NamedTuple):
    """Entries that count only against members of their group; few of all, in ascending order."""

    numbers: NDArray[np.int64]  # (n,)
    weights: NDArray[np.float32]  # (n,): of an entry for members of its group, > 0
    bonds: NDArray[np.float32]  # (len(CHANNELS), n): nearness of its own group to it
    waiting: NDArray[np.bool_]  # (n,): whether it is in quarantine, and not only suspected
    graph: SimilarityGraph
    suspected: NDArray[np.int64] = NO_NUMBERS  # the suspicious ones that came last, ascending

    @classmethod
    def of(
        cls,
        graph: SimilarityGraph,
        slots: NDArray[np.int64],
        weights: NDArray[np.float32],
        waiting: NDArray[np.bool_],
        tight: Mapping[Channel, NDArray[np.float32]],
    ) -> Held:
        """Build them; ``tight`` has the tightness of all entries by channel and slot."""
        some = weights > 0.0
        slots, weights, waiting = slots[some], weights[some], waiting[some]
        bonds = np.stack([tight[channel][slots, 0] for channel in CHANNELS])
        return cls(slots, weights, bonds, waiting, graph)

    def suspecting(self, rows: NDArray[np.intp], evidence: GroupEvidence) -> Held:
        """Return the same with additional rows of an overlay that are suspicious."""
        numbers = evidence.numbers[rows]
        group = evidence.members[:, rows, : SIZES[-1] - 1]
        mates = (group >= 0) & np.isin(group, numbers)
        mates[np.cumsum(mates, axis=-1) > NEAREST_SUSPECTS] = False
        mates[~mates.any(axis=-1), 0] = True  # no known group: use the nearest entry
        near = evidence.nearness[:, rows, : group.shape[-1]]
        bonds = np.zeros((len(CHANNELS), len(numbers)), dtype=np.float32)
        bonds[evidence.channel_numbers] = np.where(mates, near, np.float32(np.inf)).min(axis=-1)
        others = ~np.isin(self.numbers, numbers)
        columns = (
            (self.numbers, numbers),
            (self.weights, np.ones(len(numbers), dtype=np.float32)),
            (self.bonds, bonds),
            (self.waiting, self.waits(numbers)),
        )
        joined = [np.concatenate([old[..., others], new], axis=-1) for old, new in columns]
        order = np.argsort(joined[0])
        return Held._make([*(one[..., order] for one in joined), self.graph, np.sort(numbers)])

    def find(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
        """Return the places of entries among these, -1 for others; shape as ``numbers``."""
        return find(self.numbers, numbers)

    def waits(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which entries are in quarantine; shape as ``numbers``."""
        place = self.find(numbers)
        return np.asarray((place >= 0) & self.waiting[place]) if len(self.numbers) else place >= 0

    def explained(self, lists: Lists, before: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the copied shares that explain edges; originals have numbers below ``before``.

        Words copied from held entries explain nothing, unless others have them, too.
        """
        held = self.waits(lists.slots) & (lists.slots < before[:, None])
        rows = np.flatnonzero(held.any(axis=1))
        if not rows.size:
            return lists.copied
        copied = lists.copied.copy()
        others = np.where(held[rows] | (lists.slots[rows] < 0), np.float32(0.0), copied[rows])
        common = -np.sort(-others, axis=1)[:, SIZES[-1] - 1 :][:, :1]
        copied[rows] = np.where(held[rows], np.minimum(copied[rows], common), copied[rows])
        return copied

    def step_aside(
        self, slots: NDArray[np.int64], near: NDArray[np.float32], channels: NDArray[np.intp]
    ) -> None:
        """Remove edges to held entries from entries beside their groups.

        ``slots``, shape (n, k), are lists of entries; ``near``, shape (len(channels), n, k), is
        changed in place; ``channels`` are places in :data:`CHANNELS`.
        """
        place = self.find(slots)
        row, column = np.nonzero(place >= 0)
        if not row.size:
            return
        some, which = np.unique(place[row, column], return_inverse=True)
        numbers, bonds = self.numbers[some], self.bonds[channels][:, some]
        reach = bonds - BESIDE  # least nearness of members
        if (there := np.flatnonzero(self.waiting[some])).size:
            lists = self.graph.lists.take(numbers[there])
            others = nearness(self.graph.relative(lists.similarities), lists.copied)
            others[(lists.slots < 0) | (self.find(lists.slots) >= 0)] = 0.0
            # The nearest others may be admitted members. With only few others, the distance of the
            # surroundings is unknown: a group within a flood does not get a longer reach.
            around = -np.sort(-others, axis=1)[:, SIZES[-1] - 1]
            mine = bonds[:, there]
            middle = np.where(around > 0.0, (mine + around) / 2.0, mine)
            reach[:, there] = np.minimum(reach[:, there], middle)
        beside = near[:, row, column] < reach[:, which]
        near[:, row, column] *= np.where(beside, np.float32(0.0), self.weights[some][which])


class Kin:
    """Translation of a resemblance within a document into an equally rare one across documents.

    Built from the nearness of each entry's nearest in its own document, and in any other, shape
    (n,) each; 0 if there is none.
    """

    def __init__(self, same: NDArray[np.float32], cross: NDArray[np.float32]) -> None:
        shares = np.linspace(0.0, 1.0, KIN_POINTS)
        self._same, self._cross = np.quantile(same, shares), np.quantile(cross, shares)

    def __call__(self, near: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the equally rare nearness across documents, at most the given one."""
        beyond = np.maximum(near - self._same[-1], 0.0)
        worth = np.interp(near, self._same, self._cross) + beyond
        return np.asarray(np.minimum(worth, near), dtype=np.float32)

    def state(self) -> NDArray[np.float64]:
        """Return everything in one array."""
        return np.stack([self._same, self._cross])

    @classmethod
    def restored(cls, array: NDArray[np.float64]) -> Kin:
        """Return the translation that :meth:`state` described."""
        kin = cls(*np.zeros((2, 1), dtype=np.float32))
        kin._same, kin._cross = array
        return kin


class ChannelEvidence(NamedTuple):
    """Groups of n entries in one channel."""

    members: NDArray[np.int32]  # (n, K): nearest unexplained first, padded with -1
    nearness: NDArray[np.float32]  # (n, K): of the members
    tight: NDArray[np.float32]  # (n, len(SIZES))


class GroupEvidence:
    """Evidence about the entries of an overlay.

    ``channels``: ``"cross"`` uses edges across documents, ``"same"`` edges within one, ``"any"``
    both, where ``kin`` translates edges within one; without ``kin``, it uses none.
    ``standing``: evidence of the graph's entries by part, channel and slot, for entries outside the
    overlay. A graph keeps the tightness of groups; their contrast is computed from that and its
    lists on demand, unless ``standing`` has it.
    ``exempt``: codes of documents whose inner edges are ignored.
    ``families``: whether the knowledge base shows the usual similarity within documents. If not,
    every edge is of the channel ``"cross"``.
    ``held``: entries that count only against members of their group.
    ``newcomers``: entries that came together, for the words on which they agree.
    ``before``: evidence of the same channels, whose unchanged groups are not measured again: of the
    same overlay with fewer held entries, or of one whose batch has more entries; then ``kept`` are
    the rows of this batch in that one.
    ``tightness``: of each row and size, by channel, if it was measured already; then vectors and
    words of the entries are not read.

    All channels are measured together: for a single new entry, an operation on an array costs more
    than its work. Arrays have a first axis of the channels that have edges; their places in
    :data:`CHANNELS` are :attr:`channel_numbers`.
    """

    def __init__(  # noqa: PLR0913 - of one overlay
        self,
        overlay: Overlay,
        channels: Sequence[Channel],
        standing: Mapping[str, Mapping[Channel, NDArray[np.float32]]] | None,
        exempt: NDArray[np.int64],
        *,
        families: bool = True,
        held: Held | None = None,
        kin: Kin | None = None,
        newcomers: Newcomers | None = None,
        before: GroupEvidence | None = None,
        kept: NDArray[np.intp] | None = None,
        tightness: Mapping[Channel, NDArray[np.float32]] | None = None,
    ) -> None:
        self.overlay, self.channels, self._exempt = overlay, tuple(channels), exempt
        self._standing, self._families, self._kin = standing, families, kin
        self._kept, self._suspecting = kept, before is not None and kept is None
        self._held = held if held is not None and len(held.numbers) else None
        self.newcomers, self._known_tightness = newcomers, tightness
        self._beyond: GroupEvidence | None = None
        self._with_edges = tuple(
            one
            for one in self.channels
            if one == "cross" or (families and (one == "same" or kin is not None))
        )
        self.channel_numbers = np.array(list(map(CHANNELS.index, self._with_edges)), dtype=np.intp)
        m, n = len(self._with_edges), len(overlay.numbers)
        self.members = np.full((m, n, K), -1, dtype=np.int32)  # see ChannelEvidence
        self.nearness = np.zeros((m, n, K), dtype=np.float32)
        self._unordered = np.zeros((m, n, K), dtype=np.float32)  # in the order of the lists
        self.tight = np.zeros((m, n, len(SIZES)), dtype=np.float32)
        # Most rows of an overlay only lend their tightness to others: their contrast and agreement
        # are found when they are asked for.
        self._figures = Raw(*np.zeros((len(PARTS), m, n, len(SIZES)), dtype=np.float32))
        self._figures = self._figures._replace(tight=self.tight)
        self._known = np.zeros((2, n), dtype=np.bool_)  # contrast, agreement
        if not m:
            self._known[:] = True
            return
        rows = np.arange(n)
        if before is not None and self._held is not None and len(self._held.suspected):
            changed = (find(self._held.suspected, overlay.lists.slots) >= 0).any(axis=1)
            self._take(before, np.flatnonzero(~changed))
            rows = np.flatnonzero(changed)
        self._measured = rows
        _in_parts(lambda some: self._tightness(some, before), rows)

    def _take(self, before: GroupEvidence, rows: NDArray[np.intp]) -> None:
        """Take over some rows of earlier evidence about this overlay, except for their contrast."""
        for mine, theirs in (
            (self.members, before.members),
            (self.nearness, before.nearness),
            (self._unordered, before._unordered),
            (self.tight, before.tight),
            (self._figures.agreed, before._figures.agreed),
        ):
            mine[:, rows] = theirs[:, rows]
        self._known[1, rows] = before._known[1, rows]

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the entries, by row."""
        return self.overlay.numbers

    def __getitem__(self, channel: Channel) -> ChannelEvidence:
        """Return the groups of all rows in one channel."""
        found = self._in(channel, (self.members, self.nearness, self.tight))
        if channel not in self._with_edges:
            found[0] -= 1  # no members
        return ChannelEvidence(*found)

    def changed(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rows whose evidence may differ from that before entries were suspected."""
        if self._held is None or not len(self.members):
            return rows
        group = self.members[:, :, : SIZES[-1] - 1]
        around = self.members[:, :, : SIZES[-1] - 1 + SURROUNDINGS]
        changed = np.zeros(len(self.numbers), dtype=np.bool_)
        changed[self._measured] = True
        changed |= np.isin(around, self.numbers[changed]).any(axis=(0, 2))  # by their contrast
        outside = np.setdiff1d(group, np.append(self.numbers, -1))
        lists = self.overlay.graph.lists.slots[outside]
        outside = outside[(self._held.find(lists) >= 0).any(axis=1)]
        others = np.concatenate([self.numbers[changed], outside])
        changed |= np.isin(group, others).any(axis=(0, 2))  # by the other members
        return rows[changed[rows]]

    def tightness(self) -> dict[Channel, NDArray[np.float32]]:
        """Return the tightness of all rows, by channel."""
        return {channel: self[channel].tight for channel in self.channels}

    def raw(self) -> dict[Channel, Raw]:
        """Return the evidence of all rows by channel, before they are tied to their groups."""
        rows = np.arange(len(self.numbers))
        self.find_contrast(rows)
        self._find_agreement(rows)
        return {one: Raw(*self._in(one, self._figures)) for one in self.channels}

    def tied(self, rows: slice | NDArray[np.intp]) -> dict[Channel, Raw]:
        """Return the evidence of rows by channel, limited to the best of the other members."""
        group = by_rank(self.members[:, rows, : SIZES[-1] - 1])
        place = self.overlay.places(group)
        mine = np.arange(len(self.numbers))[rows]
        wanted = np.zeros(len(self.numbers), dtype=np.bool_)
        wanted[mine] = wanted[place[place >= 0]] = True
        self.find_contrast(np.flatnonzero(wanted))
        self._find_agreement(mine)
        self._look_beyond(group[(group >= 0) & (place < 0)])
        columns = []
        for name, figures in self._figures._asdict().items():
            own = figures[:, rows]
            if name != "agreed":  # which involves other members already
                theirs = self.of(name, group, place)
                best = [theirs[: size - 1, :, :, c].max(axis=0) for c, size in enumerate(SIZES)]
                own = np.minimum(own, np.stack(best, axis=-1))
            columns.append(own)
        return {one: Raw(*self._in(one, columns)) for one in self.channels}

    def _in(self, channel: Channel, columns: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the parts of columns that belong to a channel: zeros if it has no edges."""
        if channel not in self._with_edges:
            return [np.zeros(column.shape[1:], dtype=column.dtype) for column in columns]
        at = self._with_edges.index(channel)
        return [column[at] for column in columns]

    def _look_beyond(self, members: NDArray[np.integer[Any]]) -> None:
        """Gather the evidence of members, which are outside the overlay, if it is not stored."""
        self._beyond = None
        if self._standing is None or "near" in self._standing:
            return
        beyond = np.unique(members).astype(np.int64)
        if beyond.size:
            self._beyond = GroupEvidence(
                self.overlay.graph.part(beyond),
                self._with_edges,
                self._standing,
                self._exempt,
                families=self._families,
                held=self._held,
                kin=self._kin,
                tightness={one: self._standing["tight"][one][beyond] for one in self._with_edges},
            )
            self._beyond.find_contrast(np.arange(len(beyond)))

    def agreed(self, channel: Channel, row: int, size: int) -> Agreed | None:
        """Return the agreement of an entry with the new members of its group, if any."""
        if self.newcomers is None or channel not in self._with_edges:
            return None
        rows = np.arange(row, row + 1)
        (mates,) = self._in(channel, [self._mates(rows)])
        return self.newcomers.agreed(row, mates, size - 1)

    def _tightness(self, rows: NDArray[np.intp], before: GroupEvidence | None) -> None:
        overlay = self.overlay
        slots, own = overlay.lists.slots[rows], overlay.numbers[rows]
        near = self._near(rows)
        self._unordered[:, rows] = near
        order = np.argsort(-near, axis=-1, kind="stable")
        near = np.take_along_axis(near, order, -1)
        listed = slots[np.arange(len(rows))[:, None], order]
        members = np.where(near > 0.0, listed, -1)
        self.members[:, rows], self.nearness[:, rows] = members, near
        if self._known_tightness is not None:
            for place, channel in enumerate(self._with_edges):
                self.tight[place, rows] = self._known_tightness[channel][rows]
            return
        group = members[:, :, : max(SIZES) - 1]
        tight = np.empty((*group.shape[:2], len(SIZES)), dtype=np.float32)
        same = np.zeros(group.shape[:2], dtype=np.bool_)
        if self._standing is not None and len(overlay.batch) and not self._suspecting:
            # Without a new entry among the nearest, the tightness is unchanged.
            start = overlay.graph.n_slots
            same = (own < start) & (group < start).all(axis=-1)
            for place, channel in enumerate(self._with_edges):
                standing = self._standing["tight"][channel]
                tight[place, same[place]] = standing[own[same[place]]]
        if before is not None:
            then, width = before.overlay.places(self._before(own)), np.s_[: group.shape[-1]]
            found = (before.members[:, then, width] == self._before(group)).all(axis=-1)
            found &= (before.nearness[:, then, width] == near[:, :, width]).all(axis=-1)
            found &= (then >= 0) & ~same
            tight[found] = before.tight[:, then][found]
            same |= found
        new = np.nonzero(~same)
        tight[new] = rounded(self._tightness_of(group[new], near[new], new[0]), FIGURE_STEPS)
        self.tight[:, rows] = tight

    def _before(self, numbers: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Return the numbers that entries had in the overlay before; -1 stays."""
        start = self.overlay.graph.n_slots
        if self._kept is None or not len(self._kept):
            return numbers
        later = start + self._kept[np.maximum(numbers - start, 0)]
        return np.asarray(np.where(numbers < start, numbers, later))

    def _near(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the nearness of the entries in the lists of rows that counts in each channel."""
        lists, own = self.overlay.lists.take(rows), self.overlay.numbers[rows]
        copied = lists.copied
        if self._held is not None:
            copied = self._held.explained(lists, np.minimum(own, self.overlay.graph.n_slots))
        near = nearness(self.overlay.graph.relative(lists.similarities), copied)
        near = self._seen(near, own[:, None], lists.slots)
        if self._held is not None:
            self._held.step_aside(lists.slots, near, self.channel_numbers)
        return near

    def _tightness_of(
        self, group: NDArray[np.int64], near: NDArray[np.float32], channel: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return the tightness per group size, given the other members and their nearness.

        ``channel``, shape (n,), are places in the axis of channels.
        """
        between = self._between(group, channel)
        tight = np.empty((len(group), len(SIZES)), dtype=np.float32)
        for column, size in enumerate(SIZES):
            others = size - 1
            total = near[:, :others].sum(axis=1) + between[:, :others, :others].sum(axis=(1, 2))
            # An outsider next to a group must not borrow its tightness.
            reach = near[:, :others].mean(axis=1)
            tight[:, column] = np.minimum(total / (size * others / 2), reach)
        return tight

    def _between(self, group: NDArray[np.int64], channel: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the nearness between the other members, 0 if one is missing.

        Shape (n, n_others, n_others); only above the diagonal, so that each pair counts once.
        """
        n, others = group.shape
        similar = np.zeros((n, others, others), dtype=np.float32)
        found = self.overlay.vectors(group.ravel())
        vectors = found.reshape(n, others, found.shape[1])
        np.matmul(vectors, vectors.transpose(0, 2, 1), out=similar)
        first = np.broadcast_to(group[:, :, None], similar.shape)
        second = np.broadcast_to(group[:, None, :], similar.shape)
        there = (first >= 0) & (second >= 0) & np.triu(np.ones((others, others), np.bool_), 1)
        copied = np.zeros(similar.shape, dtype=np.float32)
        similar = self.overlay.graph.relative(similar)
        compare = there & (similar > COMPARE_ABOVE)
        copied[compare] = self.overlay.all_words.copied(first[compare], second[compare])
        near = np.where(there, nearness(similar, copied), np.float32(0.0))
        seen = self._seen(near[there], first[there], second[there])
        near[there] = seen[channel[np.nonzero(there)[0]], np.arange(seen.shape[1])]
        return near

    def _find_agreement(self, rows: NDArray[np.intp]) -> None:
        """Find the agreement of rows with newcomers, where it is not known yet."""
        new = self._new(1, rows)
        if self.newcomers is not None:
            _in_parts(self._agreement, new)

    def find_contrast(self, rows: NDArray[np.intp]) -> None:
        """Find the contrast of rows, where it is not known yet."""
        _in_parts(self._contrast, self._new(0, rows))

    def _new(self, kind: int, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rows whose figures of a kind are not known yet, and note them as known."""
        new: NDArray[np.intp] = rows[~self._known[kind, rows]]
        self._known[kind, new] = True
        return new

    def _mates(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the nearness of possible mates of rows in each channel, 0 of others."""
        copied = self.overlay.lists.copied[rows]
        return np.where(copied < COPIED_FROM, self._unordered[:, rows], np.float32(0.0))

    def _agreement(self, rows: NDArray[np.intp]) -> None:
        assert self.newcomers is not None  # noqa: S101 - the caller has looked
        agreed = self.newcomers.agreement(rows, self._mates(rows), len(SIZES))
        self._figures.agreed[:, rows] = agreed

    def _contrast(self, rows: NDArray[np.intp]) -> None:
        tight = self.tight[:, rows]
        others = np.s_[: SIZES[-1] - 1 + SURROUNDINGS]
        members = by_rank(self.members[:, rows, others])
        theirs = self.of("tight", members, self.overlay.places(members))
        if self._held is not None:  # entries in quarantine do not make a group look usual
            theirs[self._held.waits(members)] = 0.0
        # The surroundings count at most as much as their own nearness to the entry.
        reached = np.minimum(theirs, by_rank(self.nearness[:, rows, others])[..., None])
        for figures, counted in ((self._figures.near, reached), (self._figures.far, theirs)):
            around = [
                counted[size - 1 : size - 1 + SURROUNDINGS, :, :, column].max(axis=0)
                for column, size in enumerate(SIZES)
            ]
            figures[:, rows] = rounded(tight - np.stack(around, axis=-1), FIGURE_STEPS)

    def _seen(
        self, near: NDArray[np.float32], first: NDArray[np.int64], second: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the nearness of pairs that counts in each channel; shape (n_channels, ...)."""
        mine = self.overlay.lineage_of(np.maximum(first, 0))
        theirs = self.overlay.lineage_of(np.maximum(second, 0))
        same = (mine == theirs) & (mine != NO_LINEAGE)
        without = second < 0
        if self._exempt.size:
            without |= same & np.isin(mine, self._exempt)
        if not self._families:
            same &= False
        seen = np.empty((len(self._with_edges), *near.shape), dtype=np.float32)
        for place, channel in enumerate(self._with_edges):
            seen[place] = np.where(same if channel == "same" else ~same, near, np.float32(0.0))
            if channel == "any" and self._kin is not None and same.any():
                seen[place, same] = self._kin(near[same])
        seen[:, without] = 0.0
        return seen

    def of(
        self, part: str, numbers: NDArray[np.integer[Any]], place: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return evidence by entry number, with a last axis of sizes; 0 for a negative number.

        ``numbers``, and their places in the overlay, have shape (n_ranks, n_channels, n).
        """
        figures: NDArray[np.float32] = getattr(self._figures, part)
        n_channels, n, _ = figures.shape
        # Rows of one long table are taken in a tenth of the time.
        at = place + np.arange(0, n_channels * n, n)[:, None] if n else place
        here = figures.reshape(n_channels * n, -1).take(at, axis=0)
        outside = (place < 0) & (numbers >= 0)
        if self._standing is not None and outside.any():
            if part in self._standing:
                slots = np.where(outside, numbers, 0)
                for row, channel in enumerate(self._with_edges):
                    theirs = self._standing[part][channel].take(slots[:, row], axis=0)
                    np.copyto(here[:, row], theirs, where=outside[:, row, :, None])
            elif self._beyond is not None:
                place = self._beyond.overlay.places(np.where(outside, numbers, -1))
                theirs = self._beyond.of(part, numbers, place)
                np.copyto(here, theirs, where=outside[..., None])
        here[numbers < 0] = 0.0
        return here


def _in_parts(do: Callable[[NDArray[np.intp]], None], rows: NDArray[np.intp]) -> None:
    """Do something with rows, in bounded memory; many parts are shared by threads."""
    if len(rows) <= CHUNK:
        if len(rows):
            do(rows)
        return
    in_threads(do, [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)])


def by_rank(members: NDArray[Any]) -> NDArray[Any]:
    """Return members, shape (n_channels, n, n_ranks), with the ranks first."""
    return np.ascontiguousarray(np.moveaxis(members, -1, 0))


def own_bond(vectors: NDArray[np.float32]) -> float:
    """Return the similarity of a group's other entries beyond their similarity to the first.

    Texts that were made from one model resemble each other by their parts of it: given the model,
    little similarity is left. Texts that were crafted for one question share the question, even if
    any of them is left out.

    For three or more unit vectors, the entry in question first: the mean partial correlation of the
    others given the first, relative to a group whose entries are all equally similar. About 0 for
    imitations of the first, 1 for a group in which it is one of many.

    Notes
    -----
    If all cosines are c, the partial correlation of two entries given a third is
    (c - c^2) / (1 - c^2) = c / (1 + c).
    """
    first, others = vectors[0].astype(np.float64), vectors[1:].astype(np.float64)
    shared = others @ first
    rest = others - shared[:, None] * first
    length = np.linalg.norm(rest, axis=1, keepdims=True)
    rest /= np.maximum(length, np.sqrt(2.0 * FLOOR))  # a copy has no rest
    partial = float((rest @ rest.T)[np.triu_indices(len(rest), 1)].mean())
    mean = float(np.clip(shared.mean(), FLOOR, 1.0))
    return partial * (1.0 + mean) / mean
