"""Ids in a few bytes each: their characters in one buffer, and a number for every id.

A million Python strings, numbered in a dict, take 200 MB and more; here they take a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.chunks import Column, Ends

# Ids may hold halves of surrogate pairs.
ENCODING = ("utf-8", "surrogatepass")
# Ids that came last stand in a dict until there are so many, and more than this share of all.
LEAST_LATEST, LATEST = 1_024, 1 / 16
GONE = -1


class Ids:
    """Ids by number, in one buffer; only appended to."""

    def __init__(self) -> None:
        self._text = Column(np.uint8)
        self._ends = Ends()  # of each id; the first begins at 0

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self._text.nbytes + self._ends.nbytes

    def append(self, ids: Sequence[str | None]) -> None:
        """Add ids, which have the next numbers; ``None`` leaves one out."""
        parts = [b"" if entry_id is None else entry_id.encode(*ENCODING) for entry_id in ids]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        self._ends.append(len(self._text) + np.cumsum(lengths))
        self._text.append(np.frombuffer(b"".join(parts), dtype=np.uint8))

    def leave(self) -> None:
        """Nobody else keeps anything here, so that there is nothing to give back."""

    def take(self, numbers: NDArray[np.int64]) -> list[str]:
        """Return ids by their numbers, each of which has one."""
        text, (starts, ends) = self._text.values.data, self._ends.at(numbers)
        borders = zip(starts.tolist(), ends.tolist(), strict=True)
        return [str(text[start:end], *ENCODING) for start, end in borders]


class Numbers:
    """The numbers of ids: a sorted table of hashes, and a dict of those that came last.

    A hash only says where to look: an id is found where the id of that number is the same. Of two
    ids with the same hash, one stays in the dict.
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._latest: dict[str, int] = {}
        self._hashes: NDArray[np.uint32] = np.empty(0, dtype=np.uint32)  # ascending
        self._numbers: NDArray[np.int32] = np.empty(0, dtype=np.int32)  # GONE where removed

    @property
    def nbytes(self) -> int:
        """About the memory that they take."""
        # An entry of a dict, with an id and a number of its own.
        return self._hashes.nbytes + self._numbers.nbytes + 180 * len(self._latest)

    def of(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the number of each id, shape (n,); -1 where it has none."""
        names = list(ids)
        numbers = np.fromiter(map(self._latest.get, names, repeat(GONE)), np.int64, len(names))
        place = self._places(names, np.flatnonzero(numbers < 0))
        found = np.flatnonzero(place >= 0)
        numbers[found] = self._numbers[place[found]]
        return numbers

    def put(self, ids: Sequence[str], numbers: NDArray[np.int64]) -> None:
        """Give numbers to ids that have none, once :class:`Ids` has them under these."""
        if len(self._latest) + len(ids) <= max(LEAST_LATEST, LATEST * len(self._hashes)):
            self._latest.update(zip(ids, numbers.tolist(), strict=True))
        else:
            self._sort(ids, numbers)

    def drop(self, ids: Sequence[str]) -> None:
        """Take their numbers from ids that have one."""
        left = [row for row, i in enumerate(ids) if self._latest.pop(i, None) is None]
        place = self._places(ids, np.array(left, dtype=np.int64))
        self._numbers[place[place >= 0]] = GONE

    def _places(self, ids: Sequence[Any], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where the ids of some rows stand in the table, shape (n_ids,); -1 for nowhere."""
        place = np.full(len(ids), -1, dtype=np.int64)
        if not len(rows) or not len(self._hashes):
            return place
        names = [ids[row] for row in rows.tolist()]
        hashes = _hashes(names)
        near = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        alike = np.flatnonzero((self._hashes[near] == hashes) & (self._numbers[near] >= 0))
        there = self._ids.take(self._numbers[near[alike]].astype(np.int64))
        same = [names[row] == name for row, name in zip(alike.tolist(), there, strict=True)]
        alike = alike[np.array(same, dtype=np.bool_)]
        place[rows[alike]] = near[alike]
        return place

    def _sort(self, ids: Sequence[str], numbers: NDArray[np.int64]) -> None:
        """Move the latest into the table, and more ids with them."""
        there = self._numbers >= 0
        names = [*self._latest, *ids]
        hashes = np.concatenate([self._hashes[there], _hashes(names)])
        latest = np.fromiter(self._latest.values(), np.int32, len(self._latest))
        numbers = np.concatenate([self._numbers[there], latest, numbers.astype(np.int32)])
        order = np.argsort(hashes, kind="stable")
        hashes, numbers = hashes[order], numbers[order]
        first = np.append(True, hashes[1:] != hashes[:-1])
        rest = numbers[~first].astype(np.int64)
        self._latest = dict(zip(self._ids.take(rest), rest.tolist(), strict=True))
        self._hashes, self._numbers = hashes[first], numbers[first]


def _hashes(names: Sequence[Any]) -> NDArray[np.uint32]:
    """Return half of the hash of each id: of a million ids, a hundred share it with another."""
    return np.fromiter(map(hash, names), np.int64, len(names)).astype(np.uint32)


def packed(ids: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return ids as arrays, for a saved state."""
    parts = [entry_id.encode(*ENCODING) for entry_id in ids]
    return {
        "ids": np.frombuffer(bytearray().join(parts), dtype=np.uint8),
        "id_lengths": np.fromiter(map(len, parts), np.int64, len(parts)),
    }


def unpacked(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the ids that were :func:`packed`.

    Raises
    ------
    ValueError
        If they do not fit together.
    """
    text, lengths = arrays["ids"], arrays["id_lengths"]
    if text.dtype != np.uint8 or lengths.dtype != np.int64 or lengths.ndim != 1:
        msg = "its ids are not bytes and their lengths"
        raise ValueError(msg)
    if (lengths < 0).any() or lengths.sum() != len(text):
        msg = f"{len(text)} bytes of ids, expected {lengths.sum()}"
        raise ValueError(msg)
    whole, ends = np.ascontiguousarray(text).data, np.cumsum(lengths)
    borders = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    return [str(whole[start:end], *ENCODING) for start, end in borders]
