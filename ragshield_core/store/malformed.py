"""Malformed entries, which cannot be judged as they are and do not stop the rest of a write.

An entry with an unusable vector, label, lineage or metadata is held with the reason, as far as the
quarantine can keep it. An entry without a usable id or text cannot be held either: it is refused by
name, once the others are written. Metadata has bounds, since one entry with thousands of values
stops a Chroma collection for good.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragshield_core.guard import Guard
from ragshield_core.model.claims import NODE_KEY
from ragshield_core.model.entries import Batch, unfit
from ragshield_core.model.errors import (
    InvalidBatchError,
    MalformedEntriesError,
    MalformedEntriesWarning,
    QuarantineError,
)
from ragshield_core.model.findings import Decision, Report, Verdict, printable
from ragshield_core.model.policy import Policy
from ragshield_core.quarantine import HeldEntry, unkeepable
from ragshield_core.store.steps import Step, Steps

logger = logging.getLogger("ragshield")  # ids and counts, never text

T = TypeVar("T")

# One vector per entry; None for an entry without one.
Vectors = NDArray[Any] | Sequence[Any]

# Columns with the same name here and in a batch.
SAME = ("ids", "texts", "labels", "lineages", "metadatas", "contexts")

NOT_FINITE = "its vector holds NaN or infinite values, expected finite numbers"
OF_ANOTHER_LENGTH = "its vector has "
# From so many vectors on, a write without one finite vector is a fault of the embedding model.
SEVERAL = 2
# Start of a malformed entry's note.
NOT_JUDGED = "not judged: "
# Models raise these for texts that they cannot read, not when they cannot be reached.
REFUSALS = (ValueError, TypeError)
# Deepest nesting of lists and mappings. JSON readers stop at some hundreds.
DEEPEST = 50
UNSTORABLE = "holds a NUL or a lone surrogate, expected valid Unicode text"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEntries:
    """Entries as a framework's package reads them, and reasons for those that it could not read."""

    ids: Sequence[Any]
    texts: Sequence[Any]
    vectors: Vectors | None  # None for entries that need none
    labels: Sequence[str | None]
    lineages: Sequence[str | None]
    metadatas: Sequence[Mapping[str, Any]]
    contexts: Sequence[str | None]
    reasons: Mapping[int, str] = field(default_factory=dict)  # by row, why it is malformed
    refused: Mapping[int, str] = field(default_factory=dict)  # by row, why it cannot be kept

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the columns of well-formed entries."""
        return cls(vectors=batch.vectors, **{name: getattr(batch, name) for name in SAME})

    def batch(self) -> Batch:
        """Return the entries as a batch; none may be malformed."""
        return Batch.of(embeddings=self.vectors, **{name: getattr(self, name) for name in SAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sifted:
    """Entries of one write, with the malformed ones set apart.

    The batch has malformed entries as far as they can be kept. A stand-in takes the place of an
    unusable vector there; it is never stored, learned or held.
    """

    rows: tuple[int, ...]  # rows of the input that are in the batch, in its order
    batch: Batch
    reasons: Mapping[int, str]  # why entries are malformed, by row of the batch
    bare: frozenset[int]  # rows of those that are held without a vector
    refused: Mapping[int, str]  # why some can be neither stored nor held, by row of the input
    unfit: frozenset[int] = frozenset()  # rows that the store cannot keep, even once released
    # Decisions on entries that are held already, by row of the batch: they are not judged again.
    decided_before: Mapping[int, Decision] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return entries that are all well-formed."""
        rows, none = tuple(range(len(batch))), frozenset[int]()
        return cls(rows=rows, batch=batch, reasons={}, bare=none, refused={})

    @property
    def whole(self) -> Batch:
        """The entries to judge."""
        return self.batch.take(self._open) if self.reasons or self.decided_before else self.batch

    @property
    def _open(self) -> list[int]:
        """Rows of the entries to judge."""
        rows = range(len(self.batch))
        return [row for row in rows if row not in self.reasons and row not in self.decided_before]

    def but(self, decided_before: Mapping[int, Decision]) -> Sifted:
        """Return a copy with decisions on entries that are held already."""
        left = {row: one for row, one in decided_before.items() if row not in self.reasons}
        return replace(self, decided_before=left) if left else self

    def beside(self, report: Report, look: Callable[[Report], Report]) -> Report:
        """Return a report on :attr:`whole` after ``look`` saw it, with suspects held before in it.

        ``look`` changes decisions on some entries because of others.
        """
        suspects = {row: one for row, one in self.decided_before.items() if one.findings}
        if not suspects:
            return look(report)
        rows = self._open
        places = {row: n for n, row in enumerate(sorted({*rows, *suspects}))}
        mine = [places[row] for row in rows]
        among = spread(report, self.batch.take(list(places)), mine)
        also = {places[row]: one for row, one in suspects.items()}
        return taken(look(replace(among, remarkable={**among.remarkable, **also})), mine)

    def changed(self, report: Report) -> Self:
        """Return a copy with the entries of :attr:`whole` as a report on them has them."""
        if len(report.batch) == len(self.batch):
            return replace(self, batch=report.batch)
        metadatas, contexts = list(self.batch.metadatas), list(self.batch.contexts)
        for row, one in zip(self._open, report.batch, strict=True):
            metadatas[row], contexts[row] = one.metadata, one.context
        batch = replace(self.batch, metadatas=tuple(metadatas), contexts=tuple(contexts))
        return replace(self, batch=batch)

    def without(self, unfit: Mapping[int, str]) -> Sifted:
        """Return a copy with further malformed entries, by row of the batch, e.g. from a store."""
        if not unfit:
            return self
        reasons = {
            row: "; ".join(filter(None, (self.reasons.get(row), unfit.get(row))))
            for row in sorted({*self.reasons, *unfit})
        }
        return replace(self, reasons=reasons, unfit=self.unfit | frozenset(unfit))

    def check(self, guard: Guard) -> None:
        """Refuse malformed entries by name, before any write or hold, if the policy raises."""
        if guard.policy.on_detect == "raise" and (self.reasons or self.refused):
            of_input = {self.rows[row]: reason for row, reason in self.reasons.items()}
            of_input |= dict(self.refused)
            named = {row: f"{self._name(row)}{reason}" for row, reason in of_input.items()}
            raise MalformedEntriesError(named, written=False)

    def _name(self, row: int) -> str:
        names = dict(zip(self.rows, self.batch.ids, strict=True))
        return f"{_named(names[row])}: " if row in names else ""

    def hold_malformed(self, report: Report, guard: Guard) -> Report:
        """Hold the malformed entries durably; return the report on :attr:`batch`.

        A malformed entry that a person has released before is admitted, if the store can keep it.
        """
        if not self.reasons:
            return self._with_decided(report) if self.decided_before else report
        released: dict[str, str] = {}
        for bare in (False, True):
            if rows := [row for row in self.reasons if (row in self.bare) is bare]:
                some = self.batch.take(rows)
                if bare:
                    nothing = np.empty((len(rows), 0), dtype=np.float32)
                    some = replace(some, embeddings=nothing, vectors=nothing)
                released |= guard.quarantine.hold(some, [self._decision(row) for row in rows])
        if len(self.reasons) == len(self.batch):
            # Perhaps the caller made a mistake, such as a label key that holds lists everywhere.
            first = min(self.reasons)
            msg = (
                f"none of the {len(self.batch)} entries of this write can be judged as they came: "
                f"they are held. The first, {_named(self.batch.ids[first])}: {self.reasons[first]}"
            )
            warnings.warn(msg, MalformedEntriesWarning, stacklevel=2)
        logger.warning(
            "%d of %d entries, such as %r, cannot be judged as they came: they are held",
            *(len(self.reasons) - len(released), len(self.batch)),
            printable(self.batch.ids[min(self.reasons)], 80),
        )
        report = self._with_decided(report)
        remarkable = dict(report.remarkable)
        for row in self.reasons:
            decision = self._decision(row)
            if decision.entry_id in released:
                verdict = Verdict.QUARANTINE if row in self.unfit else Verdict.ADMIT
                note = f"{decision.note}; {released[decision.entry_id]}"
                decision = replace(decision, verdict=verdict, note=note)
            remarkable[row] = decision
        return replace(report, remarkable=remarkable)

    def _with_decided(self, report: Report) -> Report:
        """Return a report on :attr:`whole` as one on the batch, with earlier decisions."""
        report = spread(report, self.batch, self._open)
        return replace(report, remarkable={**report.remarkable, **self.decided_before})

    def _decision(self, row: int) -> Decision:
        note = f"{NOT_JUDGED}{self.reasons[row]}"
        return Decision(entry_id=self.batch.ids[row], verdict=Verdict.QUARANTINE, note=note)


def admitted_by(report: Report) -> Batch:
    """Return the entries that a report admits."""
    return report.batch if report.admitted.all() else report.batch.take(report.admitted)


def spread(report: Report, batch: Batch, rows: Sequence[int]) -> Report:
    """Return a report on some rows of a larger batch as a report on that batch."""
    scores = {}
    for name, column in report.scores.items():
        scores[name] = np.full(len(batch), np.nan)
        scores[name][list(rows)] = column
    remarkable = {rows[row]: decision for row, decision in report.remarkable.items()}
    return replace(report, batch=batch, remarkable=remarkable, scores=scores)


def taken(report: Report, rows: Sequence[int]) -> Report:
    """Return a report on some rows of its batch, in their order."""
    decisions = report.remarkable
    return replace(
        report,
        batch=report.batch.take(list(rows)),
        remarkable={n: decisions[row] for n, row in enumerate(rows) if row in decisions},
        scores={name: scores[list(rows)] for name, scores in report.scores.items()},
    )


def sift(columns: RawEntries, guard: Guard) -> Sifted:
    """Separate malformed entries from the others.

    If several vectors are given and none is finite, the embedding model is at fault, and the write
    is refused. If all vectors have another dimension than the knowledge base, all entries are
    refused: the vectors come from another model, and no single entry is at fault.
    """
    refused = {**columns.refused, **unusable(columns.ids, columns.texts)}
    rows = [row for row in range(len(columns.ids)) if row not in refused]
    of: dict[str, list[Any]] = {
        name: [column[row] for row in rows]
        for name in SAME
        if (column := getattr(columns, name)) is not None
    }
    reasons = {n: [columns.reasons[row]] for n, row in enumerate(rows) if row in columns.reasons}
    matrix, odd = np.empty((len(rows), 0), dtype=np.float32), dict[int, str]()
    if columns.vectors is not None:
        given = [columns.vectors[row] for row in rows]
        matrix, odd = usable_vectors(given, guard.judge.dim)
    if len(rows) >= SEVERAL and all(odd.get(n) == NOT_FINITE for n in range(len(rows))):
        msg = (
            f"none of the {len(rows)} vectors can be used, and nothing was written or held: "
            f"{_named(of['ids'][0])}: {NOT_FINITE}; write the entries again once the embedding "
            "model works."
        )
        raise InvalidBatchError(msg)
    of["metadatas"], odd_sizes = fitting(of["metadatas"], guard.policy)
    batch = Batch.of(embeddings=matrix, **of)
    odd_metadatas = unkeepable(batch)
    for found in (odd, odd_sizes, odd_metadatas):
        for n, reason in found.items():
            reasons.setdefault(n, []).append(reason)
    why = {n: "; ".join(listed) for n, listed in reasons.items()}
    batch = keepable(batch) if odd_metadatas else batch
    # A released entry is, or will be, in the store with a usable vector.
    asked = bool(odd) and guard.quarantine.exists()
    released = guard.quarantine.released_among(batch.take(sorted(odd))) if asked else {}
    lengths = any(reason.startswith(OF_ANOTHER_LENGTH) for reason in odd.values())
    of_another_model = lengths and len(odd) == len(rows)
    gone = {}
    for n, entry_id in enumerate(batch.ids):
        if n in odd and entry_id in released:
            gone[n] = f"{_named(entry_id)}: {why[n]}; {released[entry_id]}"
        elif of_another_model:
            gone[n] = f"{_named(entry_id)}: {why[n]}"
    left = [n for n in range(len(rows)) if n not in gone]
    return Sifted(
        rows=tuple(rows[n] for n in left),
        batch=batch.take(left) if gone else batch,
        reasons={position: why[n] for position, n in enumerate(left) if n in why},
        bare=frozenset(position for position, n in enumerate(left) if n in odd),
        unfit=frozenset(position for position, n in enumerate(left) if n in odd_sizes),
        refused=refused | {rows[n]: reason for n, reason in gone.items()},
    )


def lacks_vector(held: HeldEntry) -> bool:
    """Return whether an entry is held because its vector could not be used."""
    unjudged = (held.note or "").startswith(NOT_JUDGED)
    return unjudged and not held.findings and not held.vector.size


def unfit_metadata(held: HeldEntry) -> bool:
    """Return whether an entry is held because of its metadata alone, and was not judged."""
    return not held.findings and (held.note or "").startswith(f"{NOT_JUDGED}metadata")


def unusable(ids: Sequence[Any], texts: Sequence[Any]) -> dict[int, str]:
    """Return the rows of entries that can be neither stored nor held, each with the reason.

    Of several entries under one id, the first counts.

    Examples
    --------
    >>> unusable(["a", ""], ["text", "text"])
    {1: "its id is '', expected a non-empty str"}
    """
    reasons = {}
    seen: set[str] = set()
    for row, (entry_id, text) in enumerate(zip(ids, texts, strict=True)):
        if not isinstance(entry_id, str):
            reasons[row] = f"its id is of type {type(entry_id).__name__}, expected a str"
        elif not entry_id:
            reasons[row] = "its id is '', expected a non-empty str"
        elif unfit(entry_id):
            reasons[row] = f"its id {printable(ascii(entry_id), 80)} {UNSTORABLE}"
        elif not isinstance(text, str):
            kind = type(text).__name__
            reasons[row] = f"{_named(entry_id)}: its text is of type {kind}, expected a str"
        elif entry_id in seen:
            reasons[row] = (
                f"id {_named(entry_id)} stands before it in this call, expected unique ids"
            )
        else:
            seen.add(entry_id)
    return reasons


@contextmanager
def embedding(ids: Sequence[str], texts: Sequence[str]) -> Iterator[None]:
    """Name the first entry whose text a tokenizer refuses; pass on other errors unchanged."""
    try:
        yield
    except (TypeError, ValueError):
        pairs = zip(ids, texts, strict=True)
        odd = [i for i, text in pairs if unfit(text.replace("\0", ""))]
        if not odd:
            raise
        reason = "its text holds a lone surrogate."
        raise QuarantineError(no_release(odd[0], "embedded", reason)) from None


def no_release(entry_id: str, done: str, reason: str) -> str:
    """Return a message on why a held entry cannot be released, with the way out."""
    return (
        f"entry {printable(entry_id)!r} cannot be {done}, and nothing was released: {reason} Write "
        "it again without, under the same id, and delete this one: store.purge([id]), or "
        "`ragshield quarantine purge ID`."
    )


def keepable(entries: Batch) -> Batch:
    """Return entries without metadata that the quarantine could not keep."""
    cut = unkeepable(entries)
    metadatas = list(entries.metadatas)
    for row in cut:
        try:
            pairs = list(entries.metadatas[row].items())
        except Exception:  # noqa: BLE001 - a mapping of a class of its own may do anything
            pairs = []
        alone = Batch.of(
            ids=[str(number) for number in range(len(pairs))],
            texts=[""] * len(pairs),
            embeddings=None,
            metadatas=[{key: value} for key, value in pairs],
        )
        lost = unkeepable(alone)
        metadatas[row] = {key: value for n, (key, value) in enumerate(pairs) if n not in lost}
    return replace(entries, metadatas=tuple(metadatas)) if cut else entries


def usable_vectors(
    given: Sequence[Any], dim: int | None
) -> tuple[NDArray[np.float32], dict[int, str]]:
    """Return a matrix of vectors, and the reasons for stand-ins by row.

    ``dim`` is the length of the vectors; ``None`` takes the most common length.

    >>> matrix, odd = usable_vectors([[0.0, 2.0], [0.0, 0.0]], None)
    >>> matrix.tolist(), odd
    ([[0.0, 2.0], [1.0, 0.0]], {1: 'its vector is the zero vector, expected a direction'})
    """
    read = [_vector(one) for one in given]
    lengths = Counter(len(one) for one in read if not isinstance(one, str))
    if dim is None:
        dim = lengths.most_common(1)[0][0] if lengths else 1
    stand_in = np.eye(1, dim, dtype=np.float32)[0]
    odd = {}
    for row, one in enumerate(read):
        if isinstance(one, str):
            odd[row] = one
        elif len(one) != dim:
            odd[row] = (
                f"{OF_ANOTHER_LENGTH}{len(one)} dimensions, expected {dim}; embed all entries with "
                "the same model"
            )
    rows = [stand_in if row in odd else one for row, one in enumerate(read)]
    return np.array(rows, dtype=np.float32).reshape(len(given), dim), odd


def _vector(given: Any) -> NDArray[np.float32] | str:
    """Return a vector, or the reason why it is unusable."""
    if given is None:
        return "it has no vector: none was given, or the embedding model refused its text"
    try:
        with np.errstate(over="ignore"):
            vector = np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        vector = np.empty((0, 0), dtype=np.float32)
    if vector.ndim != 1 or not vector.size:
        return f"its vector is of type {type(given).__name__}, expected a vector of floats"
    if not np.isfinite(vector).all():
        return NOT_FINITE
    if not np.any(vector):
        return "its vector is the zero vector, expected a direction"
    return vector


def fitting(
    metadatas: Sequence[Mapping[str, Any]], policy: Policy
) -> tuple[list[Mapping[str, Any]], dict[int, str]]:
    """Return metadata without keys beyond the bounds of a policy, and the reasons by row.

    Examples
    --------
    >>> fitting([{"page": 1, "tags": [0] * 8000}], Policy())[0]
    [{'page': 1}]
    """
    kept, reasons = list(metadatas), dict[int, str]()
    for row, metadata in enumerate(metadatas):
        values, characters = policy.metadata_values, policy.metadata_characters
        fit: dict[str, Any] = {}
        try:
            for key, value in metadata.items():
                # A store counts LlamaIndex's data on a node besides its metadata as one value.
                is_node = key == NODE_KEY
                size = _size(key, value, characters if is_node else values, characters)
                if isinstance(size, str):
                    shown = printable(repr(key), 60)
                    where = f"metadata[{shown}]" if isinstance(key, str) else "it"
                    reasons.setdefault(row, f"{where} {size.format(policy=policy)}")
                    continue
                fit[key] = value
                values, characters = values - (1 if is_node else size[0]), characters - size[1]
        except Exception:  # noqa: BLE001 - a mapping of a class of its own may do anything
            reasons.pop(row, None)  # and the quarantine says that it cannot keep it
        if row in reasons:
            kept[row] = fit
    return kept, reasons


def _size(key: Any, value: Any, most_values: int, most_characters: int) -> tuple[int, int] | str:
    """Return how many values and characters a key has, or at once why they are too many."""
    values, characters = 0, _length(key)
    # One iterator per level: a value that contains itself, or one list many times, is not copied.
    levels: list[Iterator[Any]] = [iter((value,))]
    while levels:
        for one in levels[-1]:
            values, characters = values + 1, characters + _length(one)
            if values > most_values:
                return (
                    "has more than the {policy.metadata_values:,} values that an entry may have; "
                    "shorten it, or raise Policy(metadata_values=...)"
                )
            if characters > most_characters:
                return (
                    "has more than the {policy.metadata_characters:,} characters that the metadata "
                    "of an entry may have; shorten it, or raise Policy(metadata_characters=...)"
                )
            if isinstance(one, Mapping | list | tuple | set | frozenset):
                if len(levels) > DEEPEST:
                    return f"is nested more than {DEEPEST} deep; use flat values"
                parts = chain.from_iterable(one.items()) if isinstance(one, Mapping) else one
                levels.append(iter(parts))
                break
        else:
            levels.pop()
    return values, characters


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 1


def embedded(items: Sequence[T], embed: Callable[[Sequence[T]], Step]) -> Steps[list[Any]]:
    """Return a model's results, None for items that it refuses; raise if it refuses all of them.

    ``embed`` returns a step that asks the model for one result per item.
    """

    def tried(some: Sequence[T]) -> Steps[list[Any]]:
        try:
            return list((yield embed(some))) if some else []
        except REFUSALS:
            if len(some) == 1:
                return [None]
        half = len(some) // 2
        first = yield from tried(some[:half])
        return first + (yield from tried(some[half:]))

    found = yield from tried(items)
    if items and all(one is None for one in found):
        return list((yield embed(items)))  # raises again
    return found


def _named(entry_id: str) -> str:
    return repr(printable(entry_id, 80))
