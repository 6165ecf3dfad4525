"""Which entries a guard knows: their labels and fingerprints, in a few bytes each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.chunks import Column
from ragshield_core.neighbors.ids import packed, unpacked
from ragshield_core.neighbors.slots import Slots
from ragshield_core.state import part_of

# Bytes of a fingerprint, see Entry.fingerprint.
PRINT = 16
# Of an entry that an early version has learned, which kept none.
NO_PRINT = bytes(PRINT)
# In front of the names of the arrays of a saved state.
SAVED = "known."


class Revisions:
    """The entries that are known, by id, in the order in which they came.

    Examples
    --------
    >>> known = Revisions()
    >>> known.put(["a", "b"], ["spam", None], [None, "00" * 15 + "ff"])
    >>> "a" in known, list(known), known.labels_of(["b", "a"]), known.prints_of(["a"])
    (True, ['a', 'b'], [None, 'spam'], [None])
    """

    def __init__(self) -> None:
        self._slots = Slots()
        self._label_of = Column(np.int32)  # by slot: number of its label, -1 where it has none
        self._print_of = Column(np.dtype(f"V{PRINT}"))  # by slot
        self._labels: dict[str, int] = {}  # their numbers

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._slots

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots.ids(self._slots.present))

    @property
    def labelled(self) -> bool:
        """Whether any entry has a label."""
        return bool((self._label_of.values[self._slots.present] >= 0).any())

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return which of the ids are known, each once."""
        return self._slots.among(ids)

    def labels_of(self, ids: Sequence[str]) -> list[str | None]:
        """Return the labels of entries that are known."""
        names = [*self._labels, None]
        return [names[code] for code in self._label_of.values[self._slots.of(ids)].tolist()]

    def prints_of(self, ids: Sequence[str]) -> list[str | None]:
        """Return the fingerprints of entries that are known; ``None`` where none was kept."""
        found = (one.tobytes() for one in self._print_of.values[self._slots.of(ids)])
        return [None if one == NO_PRINT else one.hex() for one in found]

    def put(
        self, ids: Sequence[str], labels: Sequence[str | None], prints: Sequence[str | None]
    ) -> None:
        """Know entries, or others than before under the same ids."""
        for label in labels:
            if label is not None:
                self._labels.setdefault(label, len(self._labels))
        codes = [-1 if label is None else self._labels[label] for label in labels]
        whole = b"".join(NO_PRINT if one is None else bytes.fromhex(one) for one in prints)
        slots = self._slots.of(ids)
        new = np.flatnonzero(slots < 0)
        slots[new] = self._slots.add([ids[row] for row in new.tolist()])
        for column, values in (
            (self._label_of, np.array(codes, dtype=np.int32)),
            (self._print_of, np.frombuffer(whole, dtype=self._print_of.values.dtype)),
        ):
            column.append(values[new])
            column.values[slots] = values

    def drop(self, ids: Sequence[str]) -> None:
        """Know entries no longer; all of them are known."""
        self._slots.remove(ids)
        if self._slots.sparse:
            before = self._slots.compact()
            self._label_of = Column.of(self._label_of.values[before])
            self._print_of = Column.of(self._print_of.values[before])

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        present = self._slots.present
        prints = self._print_of.values[present].view(np.uint8).reshape(-1, PRINT)
        arrays = packed(self._slots.ids(present))
        arrays |= {"labels": self._label_of.values[present], "prints": prints}
        return (
            {"known_labels": list(self._labels)},
            {f"{SAVED}{key}": array for key, array in arrays.items()},
        )

    @classmethod
    def restored(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return what :meth:`state` described, or early versions, which had all in the values."""
        found, ids = cls(), known_ids(values, arrays)
        if "known" in values:
            prints = values.get("prints") or [None] * len(ids)
            found.put(ids, list(values["known"].values()), prints)
            return found
        own = part_of(arrays, SAVED)
        n, n_labels = len(ids), len(values["known_labels"])
        if own["labels"].shape != (n,) or own["prints"].shape != (n, PRINT):
            msg = f"there are not as many labels or fingerprints as ids ({n})"
            raise ValueError(msg)
        if n and not -1 <= own["labels"].min() <= own["labels"].max() < n_labels:
            msg = f"numbers of labels are out of range, expected up to {n_labels - 1}"
            raise ValueError(msg)
        found._slots.check_new(ids)
        found._slots.add(ids)
        found._labels = {label: code for code, label in enumerate(values["known_labels"])}
        found._label_of = Column.of(own["labels"].astype(np.int32))
        prints = np.ascontiguousarray(own["prints"], dtype=np.uint8)
        found._print_of = Column.of(prints.view(found._print_of.values.dtype).ravel().copy())
        return found


def known_ids(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the ids in a saved state."""
    return list(values["known"]) if "known" in values else unpacked(part_of(arrays, SAVED))
