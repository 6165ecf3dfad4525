"""Notes on each entry of a graph, by slot: its score, and whether it is trusted or held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.groups.evidence import CHANNELS, SIZES
from ragshield_core.detectors.groups.graph import SimilarityGraph
from ragshield_core.model.entries import Batch

# Share of a knowledge base that is taken as new, to see how often copies arrive together.
ARRIVING = 0.1
TURNS = round(1 / ARRIVING)
# Number of entries that come after it until a held entry counts half, unless a person has confirmed
# it: long enough for a group that trickles in over months of a busy store, and an end to what was
# held by mistake.
HELD_HALF_LIFE = 20_000
# A held entry shares its id with the live revision; NUL cannot be part of an id.
HELD = "\0held\0"


class Books:
    """What a group detector notes of each entry.

    Attributes
    ----------
    scores
        Rounded up.
    trusted
        Entries that were fitted or that a person has judged good: never condemned afterwards.
    held_at
        How many entries had come when it was held; infinite if a person has confirmed it, NaN if
        it is not held.
    measured
        Entries by which the usual was measured last.
    tight
        How tight their groups are, by channel; shape (n, len(SIZES)) each.
    together
        Slots of fitted entries that are suspicious for having come together.
    shuffled
        Whether there was any: what is usual is then measured as if entries had come in a random
        order.
    keys
        By id, the keys of held entries in the graph.
    n_come
        Entries learned and held since the fit.
    """

    def __init__(self) -> None:
        self.scores = np.empty(0, dtype=np.float32)
        self.trusted = np.empty(0, dtype=np.bool_)
        self.held_at = np.empty(0, dtype=np.float32)
        self.measured = np.empty(0, dtype=np.bool_)
        self.tight = {c: np.empty((0, len(SIZES)), dtype=np.float32) for c in CHANNELS}
        self.came_together = np.empty(0, dtype=np.int32)
        self.shuffled = False
        self.keys: dict[str, list[str]] = {}
        self.n_come = 0

    def __len__(self) -> int:
        return len(self.scores)

    def note_held(self, entries: Batch) -> list[str]:
        """Note that entries are held; return their keys in the graph."""
        keys = [f"{entry.id}{HELD}{entry.fingerprint}" for entry in entries]
        for entry_id, key in zip(entries.ids, keys, strict=True):
            self.keys.setdefault(entry_id, []).append(key)
        return keys

    def keys_of(self, ids: Sequence[str]) -> list[str]:
        """Return the keys of held entries."""
        return [key for entry_id in ids for key in self.keys.get(entry_id, ())]

    def is_held(self, slots: NDArray[np.integer[Any]] | slice) -> NDArray[np.bool_]:
        """Return which entries are held."""
        return np.asarray(~np.isnan(self.held_at[slots]))

    def is_watched(self, slots: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which entries can be recalled: they are neither trusted nor held."""
        return np.asarray(~self.trusted[slots] & ~self.is_held(slots))

    def held_weights(self, graph: SimilarityGraph) -> NDArray[np.float32]:
        """Return how much each entry counts as a held one, by slot; 0 if it is none.

        Entries that are suspicious for having come together count as held: others are not
        suspicious for lying beside them.
        """
        held_at = self.held_at[: graph.n_slots]
        weights = np.zeros(len(held_at), dtype=np.float32)
        weights[self.came_together] = 1.0
        held = np.flatnonzero(~np.isnan(held_at))
        if not held.size:
            return weights
        waiting = held[np.isfinite(held_at[held])]
        weights[held] = 1.0
        age = self.n_come - held_at[waiting]
        weights[waiting] = np.exp2(-age / HELD_HALF_LIFE)
        return weights

    def recent(self, graph: SimilarityGraph, n_new: int) -> NDArray[np.bool_]:
        """Return, by entry number, which came lately: of the latest tenth those that are watched.

        Held entries are always recent: they explain nothing that comes later.
        """
        n = graph.n_slots
        recent = np.ones(n + n_new, dtype=np.bool_)
        younger = np.cumsum(~graph.gone[::-1])[::-1]  # itself included
        recent[:n] = younger <= round(ARRIVING * len(graph))
        recent[:n] &= ~self.trusted[:n]
        recent[:n] |= self.is_held(np.s_[:n])
        return recent

    def turns(self, graph: SimilarityGraph, turns: int) -> NDArray[np.int64]:
        """Return in which part of the graph each entry is, by slot, in their own order.

        In a random order, where some fitted entries are suspicious for their own.
        """
        if self.shuffled:  # the same for the same slot, however many there are
            return (np.random.default_rng(0).random(graph.n_slots) * turns).astype(np.int64)
        return np.asarray((np.cumsum(~graph.gone) - 1) * turns // max(1, len(graph)))

    def grow(self, size: int) -> None:
        """Make room for more entries."""
        room = size - len(self)
        nothing = np.full(room, np.nan, dtype=np.float32)
        self.held_at = np.concatenate([self.held_at, nothing])
        self.scores = np.concatenate([self.scores, np.zeros(room, dtype=np.float32)])
        self.trusted = np.concatenate([self.trusted, np.zeros(room, dtype=np.bool_)])
        self.measured = np.concatenate([self.measured, np.zeros(room, dtype=np.bool_)])
        loose = np.zeros((room, len(SIZES)), dtype=np.float32)
        self.tight = {c: np.concatenate([tight, loose]) for c, tight in self.tight.items()}

    def keep(self, before: NDArray[np.int64]) -> None:
        """Renumber entries, given the slot that each had before."""
        self.scores, self.trusted = self.scores[before], self.trusted[before]
        self.held_at, self.measured = self.held_at[before], self.measured[before]
        self.tight = {channel: tight[before] for channel, tight in self.tight.items()}
        self.came_together = np.flatnonzero(np.isin(before, self.came_together)).astype(np.int32)

    def state(self, n: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the notes on n slots, as JSON-ready values and arrays."""
        values = {"held": self.keys, "n_come": self.n_come, "shuffled": self.shuffled}
        return values, {
            "scores": self.scores[:n],
            "trusted": self.trusted[:n],
            "held_at": self.held_at[:n],
            "measured": np.flatnonzero(self.measured),
            "together": self.came_together,
        } | {f"tight.{channel}": tight[:n] for channel, tight in self.tight.items()}

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Books:
        """Return the notes that :meth:`state` described, as copies: they change in place."""
        books = cls()
        books.keys = {entry_id: list(keys) for entry_id, keys in values["held"].items()}
        books.n_come, books.shuffled = int(values["n_come"]), bool(values["shuffled"])
        books.scores, books.trusted = arrays["scores"].copy(), arrays["trusted"].copy()
        books.held_at = arrays["held_at"].astype(np.float32)
        books.came_together = arrays["together"].astype(np.int32)
        books.measured = np.zeros(len(books), dtype=np.bool_)
        books.measured[arrays["measured"]] = True
        books.tight = {c: arrays[f"tight.{c}"].astype(np.float32) for c in CHANNELS}
        return books
