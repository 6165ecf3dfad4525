"""Distributions of the evidence in a knowledge base, and the surprisal of an entry's evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.evidence import (
    CHANNELS,
    CROWD,
    CROWD_DISCOUNT,
    DISCOUNTS,
    SIZES,
    WEIGHTS,
    Channel,
    GroupEvidence,
)
from ragshield_core.detectors.groups.graph import COMPARE_ABOVE, NO_LINEAGE, Lists, Marks, Overlay
from ragshield_core.state import part_of

# Beyond this quantile of the reference, few values are left to count; the tail continues
# exponentially, like the maximum of many weak similarities.
TAIL = 0.98
# Quantiles for a reference of which up to a twentieth may be poisoned: they lie below the poison,
# and define an exponential tail.
ROBUST_TAIL = (0.8, 0.93)
# The tail of a small reference is smoothed by the decay from this point on, which weighs as much as
# this number of values beyond TAIL.
STEADY_FROM, STEADY = 0.8, 20
# Least scale of a tail, if the reference shows none. By chance, a log-likelihood ratio exceeds x
# nats in a share of about exp(-x), so agreement is not rarer than its own value says. A small
# sample has hardly any agreement, and the general least scale would make a clean entry with some
# extremely rare.
LEAST_SCALE, LEAST_SCALE_AGREED = 0.05, 1.0
# Shares of the weight of agreement, by group size.
AGREED_SHARES = (np.array(SIZES) - 1) / (SIZES[-1] - 1)
# Points kept of a reference distribution; more change no threshold that matters.
MAX_POINTS = 20_000
# Share of groups below the tightness that reviewers see as usual.
USUAL_SHARE = 0.99
# Fewer entries with a neighbour in their document do not show the usual similarity of these.
MIN_FAMILY_ENTRIES = 100

# Evidence about n entries, tied to their groups, by name: "cross.near" and so on, shape
# (n, len(SIZES)), by channel and part; "crowd", the nearness of the tenth nearest, and "clones" and
# "parts", the number of other documents among new copies, shape (n,).
Tied = Mapping[str, NDArray[Any]]


class Copies(NamedTuple):
    """Definition of a copy: least similarity, and least verbatim share of the shorter text."""

    similarity: float
    copied: float
    # Least scale of the surprisal of further documents with the same new words, also in a knowledge
    # base without copies.
    scale: float


# Near-exact copies of a new text: two further documents are suspicious at 1 %, four well beyond.
# Texts made of each other's sentences: three further ones are suspicious, but a pair of mirrored
# pages is not. (Of 2,700 new pages of templated documentation, 4 came with so many.)
COPIES = {"clones": Copies(0.9, 0.9, 0.75), "parts": Copies(COMPARE_ABOVE, 0.35, 1.25)}
# Kinds of evidence behind a score: groups of each size by channel, crowds, copies.
WHYS: tuple[tuple[str, int], ...] = (
    *((channel, column) for channel in CHANNELS for column in range(len(SIZES))),
    ("crowd", 0),
    *((kind, 0) for kind in COPIES),
)
# Places in WHYS:
CLONES_AT = WHYS.index(("clones", 0))
CROWD_AT = WHYS.index(("crowd", 0))  # groups come before it, copies after
# The channel with the group of a score; for a crowd, the one across documents.
CHANNEL_OF = np.array(["cross" if why == "crowd" else why for why, _ in WHYS])
NO_ROWS = np.empty(0, dtype=np.intp)
NO_EDGES = np.empty((0, 2), dtype=np.int64)


class Judgement(NamedTuple):
    """Scores of the entries of an overlay, and the evidence behind them."""

    scores: NDArray[np.float64]  # (n,); -inf for rows that were not requested
    why: NDArray[np.intp]  # (n,): places in WHYS
    evidence: GroupEvidence
    lineages: dict[str, NDArray[np.int64]]  # (n,) each: other documents among new copies, by kind
    edges: NDArray[np.int64] = NO_EDGES  # (n_edges, 2): of the reference rule
    apart: NDArray[np.intp] = NO_ROWS  # rows in another language, of a small source


class Surprisal:
    """Rarity of a value: -log of the share of values of clean entries that are as high.

    Empirical up to the 98 % point, exponential beyond it, with a scale of at least
    ``least_scale``. If some of the reference may be poisoned (``robust``), the tail passes
    through the :data:`ROBUST_TAIL` points, which a few poisoned entries hardly move.
    """

    def __init__(
        self, reference: NDArray[Any], *, robust: bool = False, least_scale: float = LEAST_SCALE
    ) -> None:
        ordered = np.sort(np.asarray(reference, dtype=np.float64))
        if robust:
            low, high = ROBUST_TAIL
            start, end = np.quantile(ordered, [low, high])
            self.share = 1.0 - low
            scale = (end - start) / np.log((1.0 - low) / (1.0 - high))
        else:
            start = ordered[int(TAIL * len(ordered))]
            beyond = ordered[ordered > start]
            self.share = 1.0 - TAIL
            # A small reference has few values in the tail: they are smoothed with the decay of the
            # values below.
            usual = (start - np.quantile(ordered, STEADY_FROM)) / np.log(
                (1.0 - STEADY_FROM) / (1.0 - TAIL)
            )
            usual = max(usual, least_scale)
            scale = ((beyond - start).sum() + STEADY * usual) / (len(beyond) + STEADY)
        self.tail_from, self.scale = float(start), max(float(scale), least_scale)
        if len(ordered) > MAX_POINTS:
            ordered = ordered[np.linspace(0, len(ordered) - 1, MAX_POINTS).round().astype(np.intp)]
        self.points = _narrow(ordered)

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return surprisals, shape as ``values``."""
        return np.asarray(together([self], np.asarray(values)[..., None])[..., 0])

    def state(self) -> NDArray[np.float64]:
        """Return everything in one array."""
        return np.concatenate([[self.tail_from, self.scale, self.share], self.points])

    @classmethod
    def restored(cls, array: NDArray[np.float64]) -> Surprisal:
        """Return the surprisal that :meth:`state` described."""
        surprisal = cls.__new__(cls)
        surprisal.tail_from, surprisal.scale, surprisal.share = array[:3].tolist()
        surprisal.points = _narrow(array[3:])
        return surprisal


def _narrow(points: NDArray[np.float64]) -> NDArray[Any]:
    """Return points in float32 if this loses nothing, else a copy."""
    narrow = points.astype(np.float32)
    return narrow if (narrow == points).all() else points.copy()


def together(surprisals: Sequence[Surprisal], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return surprisals, shape as ``values``, whose last axis has one value per distribution."""
    # In the values' own type: points in float32 would be converted for values in float64.
    places = [np.searchsorted(one.points, values[..., c]) for c, one in enumerate(surprisals)]
    figures = [(len(s.points) + 1.0, s.tail_from, s.scale, s.share) for s in surprisals]
    size, tail_from, scale, share = np.array(figures).T
    beyond = -np.log(share) + (values.astype(np.float64) - tail_from) / scale
    within = -np.log(1.0 - np.stack(places, axis=-1) / size)
    return np.asarray(np.where(values > tail_from, beyond, within))


class Usual:
    """Distributions of the usual evidence in a knowledge base.

    ``surprisals`` has those of single parts of the evidence by size ("cross.near.0"), of all parts
    together ("cross.0"), and of crowds and copies; ``share`` of the groups stays below the usual
    ``tightness``, by channel and size.
    """

    def __init__(
        self, surprisals: dict[str, Surprisal], share: float, tightness: dict[str, list[float]]
    ) -> None:
        self.surprisals, self.share, self.tightness = surprisals, share, tightness

    @classmethod
    def of(cls, tied: Tied, *, robust: bool = False) -> Usual:
        """Learn from the evidence about entries that are all or mostly clean.

        Parts without measurements are left out. Columns are read one after the other.
        """
        usual = cls({}, ROBUST_TAIL[1] if robust else USUAL_SHARE, {})
        for channel in CHANNELS:
            measured = {n: tied[key] for n in WEIGHTS if (key := f"{channel}.{n}") in tied}
            for name, values in measured.items():
                scale = LEAST_SCALE_AGREED if name == "agreed" else LEAST_SCALE
                for c in range(len(SIZES)):
                    surprisal = Surprisal(values[:, c], robust=robust, least_scale=scale)
                    usual.surprisals[f"{channel}.{name}.{c}"] = surprisal
            usual.tightness[channel] = np.quantile(measured["tight"], usual.share, axis=0).tolist()
            weighted = usual._weighted(tied, [channel])
            for c in range(len(SIZES)):
                usual.surprisals[f"{channel}.{c}"] = Surprisal(weighted[:, c], robust=robust)
        usual.surprisals["crowd"] = Surprisal(tied["crowd"], robust=robust)
        for kind, copies in COPIES.items():
            surprisal = Surprisal(tied[kind], robust=robust, least_scale=copies.scale)
            usual.surprisals[kind] = surprisal
        return usual

    def _weighted(self, tied: Tied, channels: Sequence[Channel]) -> NDArray[np.float64]:
        """Return the weighted surprisals of all parts, by channel and size, (n, n_columns)."""
        keys = [(channel, c) for channel in channels for c in range(len(SIZES))]
        total = np.zeros((len(tied[f"{channels[0]}.tight"]), len(keys)))
        for name, weight in WEIGHTS.items():
            if (named := f"{channels[0]}.{name}") in tied and f"{named}.0" in self.surprisals:
                shares = AGREED_SHARES if name == "agreed" else np.ones(len(SIZES))
                surprisals = [self.surprisals[f"{channel}.{name}.{c}"] for channel, c in keys]
                values = np.concatenate([tied[f"{one}.{name}"] for one in channels], axis=1)
                total += np.tile(shares * weight, len(channels)) * together(surprisals, values)
        return total

    def columns(self, tied: Tied) -> NDArray[np.float64]:
        """Return the surprisal of each kind of evidence, shape (n, len(WHYS))."""
        groups = [self.surprisals[f"{kind}.{c}"] for kind, c in WHYS if kind in CHANNELS]
        discounts = np.repeat([DISCOUNTS[channel] for channel in CHANNELS], len(SIZES))
        found = together(groups, self._weighted(tied, CHANNELS)) - discounts
        crowd = self.surprisals["crowd"](tied["crowd"]) - CROWD_DISCOUNT
        copies = [np.where(tied[k] > 0, self.surprisals[k](tied[k]), 0.0) for k in COPIES]
        return np.column_stack([found, crowd, *copies])

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        return (
            {f"usual.{key}": surprisal.state() for key, surprisal in self.surprisals.items()}
            | {f"tightness.{c}": np.array(tightness) for c, tightness in self.tightness.items()}
            | {"share": np.array([self.share])}
        )

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Usual:
        """Return the distributions that :meth:`state` described."""
        surprisals = part_of(arrays, "usual.")
        return cls(
            {key: Surprisal.restored(surprisals[key]) for key in surprisals},
            float(arrays["share"][0]),
            {channel: arrays[f"tightness.{channel}"].tolist() for channel in CHANNELS},
        )


def tied_to_groups(
    evidence: GroupEvidence,
    rows: slice | NDArray[np.intp],
    lineages: Mapping[str, NDArray[np.int64]],
) -> Tied:
    """Return the evidence of all channels about rows of an overlay."""
    groups = {
        f"{channel}.{name}": part
        for channel, raw in evidence.tied(rows).items()
        for name, part in raw._asdict().items()
    }
    crowd = evidence["cross"].nearness[rows, CROWD - 1]
    return {**groups, "crowd": crowd, **{kind: found[rows] for kind, found in lineages.items()}}


def taken(tied: Tied, rows: NDArray[np.bool_]) -> Tied:
    """Return the evidence about some rows."""
    return {name: column[rows] for name, column in tied.items()}


def copies_in(overlay: Overlay, lists: Lists, definition: Copies) -> NDArray[np.bool_]:
    """Return which edges of neighbour lists lead to a copy."""
    alike = overlay.graph.relative(lists.similarities) > definition.similarity
    copied = (lists.copied >= definition.copied) & (lists.copied <= 1.0)  # beyond: no content
    return np.asarray(alike & copied)


def new_copies(overlay: Overlay, recent: Marks, definition: Copies) -> NDArray[np.int64]:
    """Count the other documents among recent copies; 0 if there is an older copy."""
    lists, n = overlay.lists, len(overlay.numbers)
    clone = copies_in(overlay, lists, definition)
    clone &= recent(overlay.numbers)[:, None]
    row, column = np.nonzero(clone)
    other = lists.slots[row, column]
    mine = overlay.lineage_of(overlay.numbers[row])
    theirs = overlay.lineage_of(other)
    stranger = (mine != theirs) | (mine == NO_LINEAGE)
    # Each entry without a document id counts as a document of its own.
    name = np.where(theirs == NO_LINEAGE, -2 - other, theirs)
    new = recent(other)
    counted = stranger & new
    pairs = np.unique(np.stack([row[counted], name[counted]], axis=1), axis=0)
    lineages = np.bincount(pairs[:, 0], minlength=n)
    lineages[row[stranger & ~new]] = 0
    return lineages


def lineages_of(overlay: Overlay, recent: Marks) -> dict[str, NDArray[np.int64]]:
    """Return, by kind, the number of other documents among recent copies of each entry."""
    return {kind: new_copies(overlay, recent, copy) for kind, copy in COPIES.items()}
