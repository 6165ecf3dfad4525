"""The entries that a guard knows, and its detectors, which learn them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, GroupDetector, Need, SharesLearning
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.neighbors.known import Borrower
from ragshield_core.neighbors.slots import Labels, packed, unpacked
from ragshield_core.neighbors.stored import IndexOwner
from ragshield_core.screening.screening import crash
from ragshield_core.state import part_of

logger = logging.getLogger("ragshield")  # ids and counts, never text

# Bytes of a fingerprint, see Entry.fingerprint.
PRINT = 16
PRINTS = np.dtype(f"V{PRINT}")
# Prefix of the names of the arrays of a saved state.
SAVED = "known."

# By detector, its findings about entries that are about to be learned; see SharesLearning.
Prepared = Mapping[str, Mapping[str, NDArray[Any]]]
NOTHING: Prepared = MappingProxyType({})


class Revisions(Labels):
    """The known entries, by id, in order of arrival.

    Examples
    --------
    >>> known = Revisions()
    >>> known.know(["a", "b"], ["spam", None], ["00" * 16, "00" * 15 + "ff"])
    >>> "a" in known, list(known), known.labels_of(["b", "a"]), known.prints_of(["b"])
    (True, ['a', 'b'], [None, 'spam'], ['000000000000000000000000000000ff'])
    """

    def __init__(self) -> None:
        super().__init__(print=np.zeros((), PRINTS))

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def labels_of(self, ids: Sequence[str]) -> list[str | None]:
        """Return the labels of known entries."""
        names = [*self.names, None]
        return [names[code] for code in self.codes_of(ids).tolist()]

    def prints_of(self, ids: Sequence[str]) -> list[str]:
        """Return the fingerprints of known entries."""
        return [one.tobytes().hex() for one in self.columns["print"][self.slots_of(ids)]]

    def know(self, ids: Sequence[str], labels: Sequence[str | None], prints: Sequence[str]) -> None:
        """Add entries, or replace the revisions under their ids."""
        whole = b"".join(map(bytes.fromhex, prints))
        rows = self.put(ids, labels)
        self.columns["print"][rows] = np.frombuffer(whole, dtype=PRINTS)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything, as JSON-ready values and arrays."""
        prints = self.columns["print"][self.present].view(np.uint8).reshape(-1, PRINT)
        arrays = packed(self.ids) | {"labels": self.codes, "prints": prints}
        named = {f"{SAVED}{key}": array for key, array in arrays.items()}
        return {"known_labels": list(self.names)}, named

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the result of :meth:`state`."""
        ids = known_ids(arrays)
        own = part_of(arrays, SAVED)
        if own["prints"].shape != (len(ids), PRINT):
            msg = f"there are not as many labels or fingerprints as ids ({len(ids)})"
            raise ValueError(msg)
        self.take(ids, own["labels"].astype(np.int32), values["known_labels"])
        prints = np.ascontiguousarray(own["prints"], dtype=np.uint8)
        self.columns["print"][self.slots_of(ids)] = prints.view(PRINTS).ravel()


def known_ids(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the ids in a saved state."""
    return unpacked(part_of(arrays, SAVED))


class Knowledge:
    """The detectors of a guard, and the entries that they have learned."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.detectors = tuple(detectors)
        # The owner of the index learns first, so that its borrowers find the new entries there.
        self.learners = sorted(self.detectors, key=lambda d: not isinstance(d, IndexOwner))
        if isinstance(lender := self.learners[0], IndexOwner):
            for detector in self.learners[1:]:
                if isinstance(detector, Borrower):
                    detector.borrow(lender.neighbors())
        self.known = Revisions()
        self.dim: int | None = None  # length of vectors, 0 without vectors; None before learning
        # By id, the fingerprint of the revision that people have confirmed as poisoned, if the
        # detectors were told since they were fitted.
        self.confirmed: dict[str, str] = {}
        self.missed: dict[str, str] = {}  # by detector, the last call that failed, and its error

    def __len__(self) -> int:
        return len(self.known)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self.known

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return the known ids among these, each once."""
        return self.known.among(ids)

    def fit(self, batch: Batch) -> None:
        """Learn a knowledge base, and forget everything else."""
        self._check_complete(batch)
        self.dim = batch.dim if len(batch) else None
        self._forget_all()
        self.known.know(batch.ids, batch.labels, batch.fingerprints())
        for detector in self.learners:
            detector.fit(batch)

    def _forget_all(self) -> None:
        """Forget all entries."""
        self.known = Revisions()
        self.confirmed = {}
        for detector in self.learners:
            detector.reset()

    def prepared(self, entries: Batch, names: Collection[str]) -> Prepared:
        """Return the findings of these detectors about entries that they are about to learn."""
        found = {}
        for name, detector in self.sharing.items():
            if name in names:
                with suppress(Exception):  # learning fails in the same way, and says so
                    found[name] = detector.prepared(entries)
        return found

    def learn(self, entries: Batch, prepared: Prepared = NOTHING) -> None:
        """Learn new entries; ``prepared`` has another process's findings about them."""
        self.check_learnable(entries)
        for name, detector in self.sharing.items():
            if prepared.get(name):
                detector.take_prepared(entries, prepared[name])
        self._tell(self.learners, "learn", entries)
        self.known.know(entries.ids, entries.labels, entries.fingerprints())
        self.dim = entries.dim

    def forget(self, entries: Batch) -> None:
        """Forget known entries that have left, under the labels with which they were learned."""
        there = set(self.known.among(entries.ids))
        known = entries.take(np.array([i in there for i in entries.ids], dtype=np.bool_))
        if not len(known):
            return
        known = replace(known, labels=tuple(self.known.labels_of(known.ids)))
        self.check_dim(known)
        self._tell(self.learners, "forget", known)
        self.known.drop(known.ids)

    def remembered(self, ids: Sequence[str]) -> Batch:
        """Return entries that no store has any more, as far as remembered, to forget them.

        They have their labels, and their vectors if a detector keeps them in memory. Their texts
        are lost: detectors that count words or phrases keep these counts.
        """
        known = self.among(ids)
        lender = self.learners[0]
        vectors = lender.neighbors().vectors(known) if isinstance(lender, IndexOwner) else None
        if vectors is not None and not vectors.any(axis=1).all():
            vectors = None  # only the store had them
        return Batch.of(
            ids=known,
            texts=[""] * len(known),
            embeddings=vectors if known else None,
            labels=self.known.labels_of(known),
        )

    def note_held(self, entries: Batch, accused: Mapping[str, Collection[str]]) -> None:
        """Let each detector remember the held entries that it accused itself.

        Otherwise, a flood of texts held by another detector would make ordinary words and topics
        suspicious. Some entries may have no vectors; ``accused`` has the detectors by id.
        """
        for detector in self._grouping:
            if not entries.dim and Need.EMBEDDING in detector.needs:
                continue
            own = [r for r, i in enumerate(entries.ids) if detector.name in accused.get(i, ())]
            if own:
                self._tell([detector], "remember_held", entries.take(own))

    def note_confirmed(self, entries: Batch | None, taken_back: Collection[str] = ()) -> None:
        """Let every group detector remember confirmed entries, also if another one accused them.

        Either all entries have vectors, or none. Detectors are told again of an id that was taken
        back if it is confirmed again.
        """
        for entry_id in taken_back:
            self.confirmed.pop(entry_id, None)
        if entries is None:
            return
        for detector in self._grouping:
            if entries.dim or Need.EMBEDDING not in detector.needs:
                self._tell([detector], "remember_held", entries)
                self._tell([detector], "confirm", entries.ids)
        self.confirmed |= zip(entries.ids, entries.fingerprints(), strict=True)

    def forget_held(self, ids: Sequence[str]) -> None:
        """Forget held entries: they were released, or deleted for good."""
        self._tell(self._grouping, "forget_held", ids)

    def trust(self, ids: Sequence[str]) -> None:
        """Stop accusing entries that a person has judged good."""
        self._tell(self._grouping, "trust", ids)

    def complete(self, entries: Batch) -> bool:
        """Return whether entries have vectors, if a detector needs them."""
        return bool(entries.dim) or not any(Need.EMBEDDING in d.needs for d in self.detectors)

    def check_learnable(self, entries: Batch) -> None:
        """Refuse entries whose vectors are missing, or of another dimension."""
        self._check_complete(entries)
        self.check_dim(entries)

    def check_dim(self, batch: Batch) -> None:
        """Refuse vectors whose dimension differs from that of the known ones."""
        if batch.dim and self.dim and batch.dim != self.dim:
            msg = (
                f"embeddings of entry {batch.ids[0]!r} and its batch have {batch.dim} dimensions, "
                f"expected {self.dim} as in the knowledge base; embed them with the same model."
            )
            raise InvalidBatchError(msg)

    def _check_complete(self, entries: Batch) -> None:
        if len(entries) and not self.complete(entries):
            needing = ", ".join(d.name for d in self.detectors if Need.EMBEDDING in d.needs)
            msg = (
                f"entry {entries.ids[0]!r} has no vector, and {needing} cannot learn it "
                "without; pass its embedding, or use a guard without these detectors."
            )
            raise InvalidBatchError(msg)

    def _tell(self, detectors: Iterable[Detector], method: str, of: Batch | Sequence[str]) -> None:
        """Call a method of detectors; on the first failure, add a note that it can be repeated.

        Detectors accept the same call twice.
        """
        for detector in detectors:
            try:
                getattr(detector, method)(of)
            except Exception as error:
                reason = f"could not {method} {len(of)} entries: {crash(error)}"
                logger.error("%s %s", detector.name, reason)  # noqa: TRY400
                self.missed[detector.name] = reason
                error.add_note(
                    f"RAGShield: {detector.name} {reason}; repeat it once that is mended."
                )
                raise
            self.missed.pop(detector.name, None)

    @property
    def sharing(self) -> dict[str, SharesLearning]:
        """The detectors whose learning one process prepares for all, by name."""
        return {d.name: d for d in self.detectors if isinstance(d, SharesLearning)}

    @property
    def _grouping(self) -> list[GroupDetector]:
        return [d for d in self.detectors if isinstance(d, GroupDetector)]
