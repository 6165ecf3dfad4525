"""Which entries a guard knows: their labels and fingerprints, in a few bytes each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.neighbors.slots import Labels, packed, unpacked
from ragshield_core.state import part_of

# Bytes of a fingerprint, see Entry.fingerprint.
PRINT = 16
PRINTS = np.dtype(f"V{PRINT}")
# In front of the names of the arrays of a saved state.
SAVED = "known."


class Revisions:
    """The entries that are known, by id, in the order in which they came.

    Examples
    --------
    >>> known = Revisions()
    >>> known.put(["a", "b"], ["spam", None], ["00" * 16, "00" * 15 + "ff"])
    >>> "a" in known, list(known), known.labels_of(["b", "a"]), known.prints_of(["b"])
    (True, ['a', 'b'], [None, 'spam'], ['000000000000000000000000000000ff'])
    """

    def __init__(self) -> None:
        self.reset()

    def __len__(self) -> int:
        return len(self._labels)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._labels

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels.ids)

    @property
    def labelled(self) -> bool:
        """Whether any entry has a label."""
        return bool((self._labels.counts > 0).any())

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return which of the ids are known, each once."""
        return self._labels.among(ids)

    def labels_of(self, ids: Sequence[str]) -> list[str | None]:
        """Return the labels of entries that are known."""
        names = [*self._labels.names, None]
        return [names[code] for code in self._labels.codes_of(ids).tolist()]

    def prints_of(self, ids: Sequence[str]) -> list[str]:
        """Return the fingerprints of entries that are known."""
        return [one.tobytes().hex() for one in self._prints[self._labels.slots_of(ids)]]

    def put(self, ids: Sequence[str], labels: Sequence[str | None], prints: Sequence[str]) -> None:
        """Know entries, or others than before under the same ids."""
        whole = b"".join(map(bytes.fromhex, prints))
        rows = self._labels.put(ids, labels)
        self._prints[rows] = np.frombuffer(whole, dtype=PRINTS)

    def drop(self, ids: Sequence[str]) -> None:
        """Know entries no longer; all of them are known."""
        self._labels.drop(ids)

    def reset(self) -> None:
        """Know nothing."""
        self._labels = Labels(print=np.zeros((), PRINTS))

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        prints = self._prints[self._labels.present].view(np.uint8).reshape(-1, PRINT)
        arrays = packed(self._labels.ids) | {"labels": self._labels.codes, "prints": prints}
        return (
            {"known_labels": list(self._labels.names)},
            {f"{SAVED}{key}": array for key, array in arrays.items()},
        )

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what :meth:`state` returned."""
        ids = known_ids(arrays)
        own = part_of(arrays, SAVED)
        if own["prints"].shape != (len(ids), PRINT):
            msg = f"there are not as many labels or fingerprints as ids ({len(ids)})"
            raise ValueError(msg)
        self._labels.take(ids, own["labels"].astype(np.int32), values["known_labels"])
        prints = np.ascontiguousarray(own["prints"], dtype=np.uint8)
        self._prints[self._labels.slots_of(ids)] = prints.view(PRINTS).ravel()

    @property
    def _prints(self) -> NDArray[Any]:
        """The fingerprints, by row."""
        return self._labels.columns["print"]


def known_ids(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the ids in a saved state."""
    return unpacked(part_of(arrays, SAVED))
