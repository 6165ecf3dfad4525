"""Made-up entries that a client writes, step by step, while it is killed again and again.

Passages of meaningless words, in documents of a few chunks. A tenth of the new entries is poisoned,
in groups crafted for one question: alike in meaning, not in wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core import Batch
from ragshield_core.model.entries import concatenate

DIM = 32
UNIT = DIM**-0.5  # noise of this deviation per coordinate has a length of about one
CHUNKS, GROUP = 3, 5
POISONED = 0.1
RELEASED = 10  # a reviewer releases one group in ten
VOCABULARY = np.array([f"word{i}" for i in range(300)])


class Step(NamedTuple):
    """One call of the client."""

    kind: str  # add, update, delete or release
    ids: tuple[str, ...]
    entries: Batch | None = None


@dataclass(frozen=True)
class Plan:
    """A knowledge base, and the steps of the client.

    Attributes
    ----------
    known
        The knowledge base before the first step.
    steps
        The steps in order.
    poisoned
        Ids of the poisoned entries.
    released
        Ids of poisoned entries that a reviewer releases by mistake.
    """

    known: Batch
    steps: Sequence[Step]
    poisoned: frozenset[str]
    released: frozenset[str]

    def revisions(self, done: int) -> dict[str, list[str]]:
        """Return the texts sent for each id in the first steps; none for deleted ids."""
        sent = {entry.id: [entry.text] for entry in self.known}
        for step in self.steps[:done]:
            for entry in step.entries or ():
                sent.setdefault(entry.id, []).append(entry.text)
            if step.kind == "delete":
                sent |= {entry_id: [] for entry_id in step.ids}
        return sent


@dataclass
class _Writer:
    """Writer of made-up entries."""

    rng: np.random.Generator
    centres: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        centres = self.rng.normal(size=(8, DIM))
        self.centres = centres / np.linalg.norm(centres, axis=1, keepdims=True)

    def text(self) -> str:
        return " ".join(self.rng.choice(VOCABULARY, 30))

    def near(self, n: int) -> NDArray[np.float64]:
        """Return n vectors near random topics: the subjects of documents or questions."""
        about = self.centres[self.rng.integers(len(self.centres), size=n)]
        return about + self.rng.normal(scale=UNIT, size=(n, DIM))

    def passages(self, ids: Sequence[str]) -> Batch:
        n = len(ids)
        rows = np.arange(n) // CHUNKS
        vectors = self.near(-(-n // CHUNKS))[rows]
        return Batch.of(
            ids=ids,
            texts=[self.text() for _ in ids],
            embeddings=vectors + self.rng.normal(scale=0.6 * UNIT, size=(n, DIM)),
            lineages=[f"of {ids[CHUNKS * row]}" for row in rows],
        )

    def again(self, ids: Sequence[str], lineages: Sequence[str | None]) -> Batch:
        """Return new revisions, each on a random topic."""
        return Batch.of(
            ids=ids,
            texts=[self.text() for _ in ids],
            embeddings=self.near(len(ids)),
            lineages=lineages,
        )

    def group(self, ids: Sequence[str]) -> Batch:
        return Batch.of(
            ids=ids,
            texts=[self.text() for _ in ids],
            embeddings=self.near(1) + self.rng.normal(scale=0.25 * UNIT, size=(len(ids), DIM)),
            lineages=list(ids),
        )


def made_up(n: int, *, known: int = 1000, batch: int = 50, seed: int = 0) -> Plan:
    """Return a plan to write n entries in batches, with updates, deletions and releases between.

    Parameters
    ----------
    n, known
        Numbers of entries to write, and of entries in the knowledge base before.
    batch
        Entries per call. The members of a group come in two calls.
    seed
        Seed of all random choices.
    """
    rng = np.random.default_rng(seed)
    writer = _Writer(rng)
    base = writer.passages([f"known-{i}" for i in range(known)])
    n_groups = max(2, round(POISONED * n / GROUP))
    groups = [[f"bad-{g}-{i}" for i in range(GROUP)] for g in range(n_groups)]
    clean = [f"new-{i}" for i in range(n - n_groups * GROUP)]
    parts: list[list[Batch]] = [[] for _ in range(-(-n // batch))]
    for part, ids in zip(parts, np.array_split(np.array(clean), len(parts)), strict=True):
        part.append(writer.passages(ids.tolist()))
    last: dict[int, list[list[str]]] = {}  # groups by the batch of their last members
    places = rng.integers(len(parts), size=n_groups)
    for number, (ids, place) in enumerate(zip(groups, places.tolist(), strict=True)):
        bad, then = writer.group(ids), min(place + 1, len(parts) - 1)
        parts[place].append(bad.take(range(3)))
        parts[then].append(bad.take(range(3, GROUP)))
        if number % RELEASED == 0:
            last.setdefault(then, []).append(ids)
    live = dict(zip(base.ids, base.lineages, strict=True))
    steps: list[Step] = []
    for place, part in enumerate(parts):
        entries = concatenate(part)
        steps.append(Step("add", entries.ids, entries))
        live |= dict(zip(part[0].ids, part[0].lineages, strict=True))
        if place % 2:
            again = rng.choice(list(live), batch // 5, replace=False).tolist()
            revised = writer.again(again, [live[entry_id] for entry_id in again])
            steps.append(Step("update", revised.ids, revised))
        if place % 4 == 2:  # noqa: PLR2004 - now and then
            gone = rng.choice(list(live), batch // 10, replace=False).tolist()
            live = {i: lineage for i, lineage in live.items() if i not in gone}
            steps.append(Step("delete", tuple(gone)))
        steps += [Step("release", tuple(ids)) for ids in last.get(place, ())]
    return Plan(
        known=base,
        steps=steps,
        poisoned=frozenset(i for ids in groups for i in ids),
        released=frozenset(i for some in last.values() for ids in some for i in ids),
    )
