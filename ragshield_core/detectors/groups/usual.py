"""Reference distributions of evidence, and the surprisal of an entry by them."""

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
    Channel,
    GroupEvidence,
    Raw,
)
from ragshield_core.detectors.groups.graph import COMPARE_ABOVE, NO_LINEAGE, Lists, Overlay
from ragshield_core.detectors.groups.surprisal import Reference, Surprisal

# Fewer entries with a neighbour of their own lineage say too little about how alike these are.
MIN_FAMILY_ENTRIES = 100


class Copies(NamedTuple):
    """What counts as a copy: how alike, and which share of the shorter text word for word."""

    similarity: float
    copied: float
    # How slowly the surprisal of further lineages with the same new words may grow at the most,
    # also in a knowledge base that holds no copies.
    scale: float


# Near-exact copies of a new text: two further lineages are suspicious at 1 %, four well beyond.
# Texts made of each other's sentences: three further ones are suspicious, as a pair of mirrored
# pages is not. (Of 2,700 new pages of templated documentation 4 came with so many.)
COPIES = {"clones": Copies(0.9, 0.9, 0.75), "parts": Copies(COMPARE_ABOVE, 0.35, 1.25)}
# What a score may rest on: groups of each size across and within lineages and both, crowds, copies.
WHYS: tuple[tuple[str, int], ...] = (
    *((channel, column) for channel in CHANNELS for column in range(len(SIZES))),
    ("crowd", 0),
    *((kind, 0) for kind in COPIES),
)


# In WHYS:
CLONES_AT = WHYS.index(("clones", 0))
CROWD_AT = WHYS.index(("crowd", 0))  # groups stand before it, copies behind
# The channel in which the group of a score is found; a crowd's is that between lineages.
CHANNEL_OF = np.array(["cross" if why == "crowd" else why for why, _ in WHYS])


GROUPS_OF: dict[Channel, str] = {
    "cross": "from different documents",
    "same": "from one document",
    "any": "from the same and from other documents",
}


NO_ROWS = np.empty(0, dtype=np.intp)


class Judgement(NamedTuple):
    """Scores of the entries of an overlay, and what they rest on."""

    scores: NDArray[np.float64]  # (n,); -inf where nobody asked
    why: NDArray[np.intp]  # (n,): of WHYS
    evidence: dict[Channel, GroupEvidence]
    lineages: dict[str, NDArray[np.int64]]  # (n,) each: other lineages among new copies, by kind
    edges: NDArray[np.int64]  # (n_edges, 2): of the reference rule
    apart: NDArray[np.intp] = NO_ROWS  # in another language, and of a small source


NO_EDGES = np.empty((0, 2), dtype=np.int64)


class Tied(NamedTuple):
    """Evidence about some entries, tied to their groups."""

    groups: dict[Channel, Raw]
    crowd: NDArray[np.float32]  # (n,): nearness of the tenth nearest
    lineages: dict[str, NDArray[np.int64]]  # (n,) each, by kind of copies

    @classmethod
    def of(
        cls,
        evidence: Mapping[Channel, GroupEvidence],
        rows: slice | NDArray[np.intp],
        lineages: Mapping[str, NDArray[np.int64]],
    ) -> Tied:
        """Return the evidence of all channels about rows of an overlay."""
        return cls(
            groups={channel: evidence[channel].tied(rows) for channel in CHANNELS},
            crowd=evidence["cross"].nearness[rows, CROWD - 1],
            lineages={kind: found_in[rows] for kind, found_in in lineages.items()},
        )

    def take(self, rows: NDArray[np.bool_]) -> Tied:
        """Return some rows."""
        return Tied(
            groups={channel: raw.take(rows) for channel, raw in self.groups.items()},
            crowd=self.crowd[rows],
            lineages={kind: found_in[rows] for kind, found_in in self.lineages.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[Tied]) -> Tied:
        """Return the evidence of several parts, one after the other."""
        first = parts[0]
        return cls(
            groups={
                channel: Raw(
                    *map(np.concatenate, zip(*(p.groups[channel] for p in parts), strict=True))
                )
                for channel in first.groups
            },
            crowd=np.concatenate([part.crowd for part in parts]),
            lineages={
                kind: np.concatenate([part.lineages[kind] for part in parts])
                for kind in first.lineages
            },
        )

    def columns(self, usual: Usual) -> NDArray[np.float64]:
        """Return how surprising each kind of evidence is, shape (n, len(WHYS))."""
        groups = [usual.references[c].surprisals(self.groups[c]) - DISCOUNTS[c] for c in CHANNELS]
        floods = [
            np.where(found_in > 0, usual.copies[kind](found_in), 0.0)[:, None]
            for kind, found_in in self.lineages.items()
        ]
        crowd = usual.crowds(self.crowd) - CROWD_DISCOUNT
        return np.concatenate([*groups, crowd[:, None], *floods], axis=1)


class Usual(NamedTuple):
    """What is usual in a knowledge base."""

    references: dict[Channel, Reference]
    crowds: Surprisal
    copies: dict[str, Surprisal]

    @classmethod
    def of(cls, tied: Tied, *, robust: bool) -> Usual:
        """Learn from the evidence about entries that are clean, or most of which are."""
        return cls(
            references={c: Reference.of(raw, robust=robust) for c, raw in tied.groups.items()},
            crowds=Surprisal(tied.crowd, robust=robust),
            copies={
                kind: Surprisal(found_in, robust=robust, least_scale=COPIES[kind].scale)
                for kind, found_in in tied.lineages.items()
            },
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays."""
        return (
            {
                f"reference.{channel}.{key}": array
                for channel, reference in self.references.items()
                for key, array in reference.state().items()
            }
            | {f"copies.{kind}": usual.state() for kind, usual in self.copies.items()}
            | {"crowds": self.crowds.state()}
        )

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Usual:
        """Return what :meth:`state` described."""

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            found = (key for key in arrays if key.startswith(prefix))
            return {key.removeprefix(prefix): arrays[key] for key in found}

        return cls(
            references={c: Reference.restored(part(f"reference.{c}.")) for c in CHANNELS},
            crowds=Surprisal.restored(arrays["crowds"]),
            copies={kind: Surprisal.restored(arrays[f"copies.{kind}"]) for kind in COPIES},
        )


def copies_in(overlay: Overlay, lists: Lists, definition: Copies) -> NDArray[np.bool_]:
    """Return which edges of neighbour lists lead to a copy."""
    alike = overlay.graph.relative(lists.similarities) > definition.similarity
    copied = (lists.copied >= definition.copied) & (lists.copied <= 1.0)  # beyond: no content
    return np.asarray(alike & copied)


def new_copies(
    overlay: Overlay, recent: NDArray[np.bool_], definition: Copies
) -> NDArray[np.int64]:
    """Count the other lineages among recent copies; 0 where an older one stands."""
    lists, n = overlay.lists, len(overlay.numbers)
    clone = copies_in(overlay, lists, definition)
    clone &= recent[overlay.numbers][:, None]
    row, column = np.nonzero(clone)
    other = lists.slots[row, column]
    mine = overlay.lineage_of(overlay.numbers[row])
    theirs = overlay.lineage_of(other)
    stranger = (mine != theirs) | (mine == NO_LINEAGE)
    # Entries without a lineage are strangers to each other: each counts as one of its own.
    name = np.where(theirs == NO_LINEAGE, -2 - other, theirs)
    counted = stranger & recent[other]
    pairs = np.unique(np.stack([row[counted], name[counted]], axis=1), axis=0)
    lineages = np.bincount(pairs[:, 0], minlength=n)
    lineages[row[stranger & ~recent[other]]] = 0
    return lineages


def lineages_of(overlay: Overlay, recent: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
    """Return, by kind, how many other lineages there are among recent copies of each entry."""
    return {kind: new_copies(overlay, recent, copy) for kind, copy in COPIES.items()}
