"""What changes a guard once it is fitted, as values that can be kept and applied elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.calibration.arrivals import Counted
from ragshield_core.calibration.calibrator import Measured
from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import StateError
from ragshield_core.state import check_format, part_of

FORMAT = 1

# What reading damaged parts raises.
_DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


class Change(StrEnum):
    """What an event says has happened."""

    LEARNED = "learned"  # entries came into the knowledge base
    FORGOTTEN = "forgotten"  # entries left it
    HELD = "held"  # entries were held; `accused` says by which detectors
    RECALLED = "recalled"  # entries that were admitted earlier were held; `accused` says by whom
    CONFIRMED = "confirmed"  # a person has confirmed held entries; the ids are taken back
    HELD_FORGOTTEN = "held_forgotten"  # held entries were released, or deleted for good
    TRUSTED = "trusted"  # a person has judged entries good
    COUNTED = "counted"  # what was decided of a batch counts against the accepted rate
    UNSCREENED = "unscreened"  # entries were let in on which detectors failed; `failed` says which
    SCREENED = "screened"  # those were screened again
    RECALIBRATED = "recalibrated"  # thresholds were due; the ids are those of confirmed entries
    REPLACED = "replaced"  # fitted, adopted, calibrated or refreshed: all may be different


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """One change of what a guard knows, applied by its state.

    Guards that were alike stay so if the same events are applied to them in the same order.

    Examples
    --------
    >>> batch = Batch.of(ids=["a"], texts=["hi"], embeddings=[[3, 4]])
    >>> values, arrays = Event(change=Change.LEARNED, entries=batch).to_parts()
    >>> again = Event.from_parts(values, arrays)
    >>> again.entries.texts, again.entries.vectors.tolist()
    (('hi',), [[3.0, 4.0]])
    """

    change: Change
    entries: Batch | None = None  # in full; none where ids are enough
    ids: tuple[str, ...] = ()
    # Of held and recalled entries, by id, the detectors that accused them.
    accused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counted: Counted | None = None  # what was decided of a batch
    measured: Measured | None = None  # how clean entries score, taken in the background
    # What detectors read in the texts of the entries, by reader: others need not read them again.
    readings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    # Of what was let in, by id, the detectors that failed on it, and what was said of each.
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays, to be kept without pickle.

        Raises
        ------
        TypeError
            If the metadata of an entry is of a type that could only be pickled; names the key.
        """
        values: dict[str, Any] = {"format": FORMAT, "change": str(self.change)}
        arrays: dict[str, NDArray[Any]] = {}
        if self.ids:
            values["ids"] = list(self.ids)
        if self.accused:
            values["accused"] = {i: list(names) for i, names in self.accused.items()}
        if self.readings:
            values["readings"] = dict(self.readings)
        if self.failed:
            values["failed"] = {i: dict(failures) for i, failures in self.failed.items()}
        parts = {
            "entries": None if self.entries is None else _entries_to_parts(self.entries),
            "counted": None if self.counted is None else self.counted.to_parts(),
            "measured": None if self.measured is None else self.measured.to_parts(),
        }
        for name, part in parts.items():
            if part is not None:
                values[name], columns = part
                arrays |= {f"{name}.{key}": column for key, column in columns.items()}
        return values, arrays

    @classmethod
    def from_parts(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the event that :meth:`to_parts` described.

        Raises
        ------
        StateError
            If something is missing, damaged, or of another format.
        """

        def part(name: str, read: Callable[..., Any]) -> Any:
            if name in values:
                return read(values[name], part_of(arrays, f"{name}."))
            return None

        try:
            check_format(values["format"], FORMAT, "an event")
            return cls(
                change=Change(values["change"]),
                ids=tuple(map(str, values.get("ids", ()))),
                accused={i: tuple(names) for i, names in values.get("accused", {}).items()},
                readings={name: list(kept) for name, kept in values.get("readings", {}).items()},
                failed={i: dict(failures) for i, failures in values.get("failed", {}).items()},
                entries=part("entries", _entries_from_parts),
                counted=part("counted", Counted.from_parts),
                measured=part("measured", Measured.from_parts),
            )
        except StateError:
            raise
        except _DAMAGE as error:
            msg = (
                f"an event cannot be read ({type(error).__name__}), expected what Event.to_parts "
                "returned; load a guard that was saved later than it."
            )
            raise StateError(msg) from error


@dataclass(slots=True, eq=False, weakref_slot=True)
class Intent:
    """Events that are going to happen, once a store is written."""

    events: tuple[Event, ...]
    # Of a journal that has them as pending, and whose guards know of them already.
    positions: tuple[int, ...] = ()


def _entries_to_parts(entries: Batch) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    from ragshield_core.quarantine import metadata_json  # noqa: PLC0415 - brings SQLAlchemy

    values: dict[str, Any] = {"ids": list(entries.ids)}
    arrays: dict[str, NDArray[Any]] = {"embeddings": entries.embeddings}
    if entries.vectors is not entries.embeddings:
        arrays["vectors"] = entries.vectors
    arrays["texts"], arrays["text_lengths"] = _packed(entries.texts)
    if any(context is not None for context in entries.contexts):
        arrays["contexts"], arrays["context_lengths"] = _packed(entries.contexts)
    for name in ("labels", "lineages", "sources"):
        column = getattr(entries, name)
        if any(value is not None for value in column):
            values[name] = list(column)
    if any(entries.metadatas):
        values["metadatas"] = [metadata_json.dumps(metadata) for metadata in entries.metadatas]
    return values, arrays


def _entries_from_parts(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Batch:
    from ragshield_core.quarantine import metadata_json  # noqa: PLC0415 - brings SQLAlchemy

    ids = tuple(values["ids"])
    nothing = (None,) * len(ids)
    contexts: Sequence[str | None] = nothing
    if "contexts" in arrays:
        contexts = _unpacked(arrays["contexts"], arrays["context_lengths"])
    metadatas = values.get("metadatas", ["{}"] * len(ids))
    return Batch(  # whose constructor checks all of it
        ids=ids,
        texts=_unpacked(arrays["texts"], arrays["text_lengths"]),  # type: ignore[arg-type]
        embeddings=arrays["embeddings"],
        labels=tuple(values.get("labels", nothing)),
        lineages=tuple(values.get("lineages", nothing)),
        metadatas=tuple(metadata_json.loads(metadata) for metadata in metadatas),
        vectors=arrays.get("vectors", arrays["embeddings"]),
        contexts=tuple(contexts),
        sources=tuple(values.get("sources", nothing)),
    )


def _packed(texts: Iterable[str | None]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return texts as bytes, and the length of each; -1 for none.

    JSON would join the two halves of a surrogate pair that stand alone in a text.
    """
    parts = [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = [-1 if part is None else len(part) for part in parts]
    data = np.frombuffer(b"".join(part or b"" for part in parts), dtype=np.uint8)
    return data, np.array(lengths, dtype=np.int64)


def _unpacked(data: NDArray[np.uint8], lengths: NDArray[np.int64]) -> tuple[str | None, ...]:
    texts: list[str | None] = []
    whole, start = data.tobytes(), 0
    for length in lengths.tolist():
        part = whole[start : start + max(0, length)]
        texts.append(None if length < 0 else part.decode("utf-8", "surrogatepass"))
        start += len(part)
    if start != len(whole) or np.maximum(lengths, 0).sum() != start:
        msg = f"{len(whole)} bytes of text, expected {int(np.maximum(lengths, 0).sum())}"
        raise ValueError(msg)
    return tuple(texts)
