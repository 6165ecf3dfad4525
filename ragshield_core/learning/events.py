"""Changes to a fitted guard, as values that can be stored and applied elsewhere."""

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
from ragshield_core.model.ragged import divided, joined
from ragshield_core.screening.knowledge import Prepared
from ragshield_core.state import check_format, part_of

FORMAT = 1

# Errors that damaged parts raise when they are read.
_DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


class Change(StrEnum):
    """Kind of change that an event records."""

    LEARNED = "learned"  # entries came into the knowledge base
    FORGOTTEN = "forgotten"  # entries left it
    HELD = "held"  # entries were held; `accused` has the detectors
    RECALLED = "recalled"  # entries that were admitted earlier were held; `accused` as for HELD
    CONFIRMED = "confirmed"  # a person confirmed `entries`, or took back the confirmation of `ids`
    HELD_FORGOTTEN = "held_forgotten"  # held entries were released, or deleted for good
    TRUSTED = "trusted"  # a person has judged entries good
    COUNTED = "counted"  # the decisions on a batch count against the accepted rate
    UNSCREENED = "unscreened"  # entries were admitted although the detectors in `failed` failed
    SCREENED = "screened"  # unscreened entries were screened again
    RECALIBRATED = "recalibrated"  # thresholds were due; the ids are those of confirmed entries
    REPLACED = "replaced"  # fitted, adopted, calibrated or refreshed: everything may differ


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """One change to the knowledge of a guard, applied by its state.

    Equal guards stay equal if the same events are applied to them in the same order. A stored event
    has the vectors of entries at unit length only: guards learn no other.

    Examples
    --------
    >>> batch = Batch.of(ids=["a"], texts=["hi"], embeddings=[[3, 4]])
    >>> values, arrays = Event(change=Change.LEARNED, entries=batch).to_parts()
    >>> again = Event.from_parts(values, arrays)
    >>> again.entries.texts, again.entries.embeddings
    (('hi',), array([[0.6, 0.8]], dtype=float32))
    """

    change: Change
    entries: Batch | None = None  # in full; None where ids are enough
    ids: tuple[str, ...] = ()
    # The detectors that accused held and recalled entries, by entry id.
    accused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counted: Counted | None = None  # the decisions on a batch, counted
    measured: Measured | None = None  # scores of clean entries, measured in the background
    # Readings of the texts by reader, so that other processes need not read the texts again.
    readings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    # By detector, its findings about the entries, so that other processes need not search.
    prepared: Prepared = field(default_factory=dict)
    # The failures on entries that were admitted unscreened: by entry id, detector to message.
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return everything as JSON-ready values and arrays, to be stored without pickle.

        Raises
        ------
        TypeError
            If the metadata of an entry has a type that only pickle can store; names the key.
        """
        values: dict[str, Any] = {"format": FORMAT, "change": str(self.change)}
        arrays: dict[str, NDArray[Any]] = {}
        if self.ids:
            values["ids"] = list(self.ids)
        if self.accused:
            values["accused"] = {i: list(names) for i, names in self.accused.items()}
        if self.readings:
            values["readings"], joint = _readings_to_parts(self.readings)
            arrays |= joint
        if self.prepared:
            values["prepared"] = list(self.prepared)
        for name, columns in self.prepared.items():
            arrays |= {f"prepared.{name}.{key}": column for key, column in columns.items()}
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
        """Return the event from the result of :meth:`to_parts`.

        Raises
        ------
        StateError
            If a part is missing, damaged, or of another format.
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
                readings=_readings_from_parts(
                    values.get("readings", {}), part_of(arrays, "readings.")
                ),
                prepared={
                    name: part_of(arrays, f"prepared.{name}.")
                    for name in values.get("prepared", ())
                },
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
    """Events that will happen once a store is written."""

    events: tuple[Event, ...]
    # Positions in a journal that lists them as pending; its guards know of them already.
    positions: tuple[int, ...] = ()


def _readings_to_parts(
    readings: Mapping[str, Sequence[Any]],
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the readings of each reader as JSON-ready values, arrays of one reader as one."""
    values, arrays = dict[str, Any](), dict[str, NDArray[Any]]()
    for name, kept in readings.items():
        values[name] = kept
        if any(isinstance(reading, np.ndarray) for reading in kept):
            values[name] = None
            whole, ends = joined(kept, kept[0].dtype)
            arrays |= {f"readings.{name}.whole": whole, f"readings.{name}.ends": ends}
    return values, arrays


def _readings_from_parts(
    values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, list[Any]]:
    readings = {name: kept for name, kept in values.items() if kept is not None}
    for name in values.keys() - readings.keys():
        readings[name] = divided(arrays[f"{name}.whole"], arrays[f"{name}.ends"])
    return readings


def _entries_to_parts(entries: Batch) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    from ragshield_core.quarantine import metadata_json  # noqa: PLC0415 - brings SQLAlchemy

    values: dict[str, Any] = {"ids": list(entries.ids)}
    arrays: dict[str, NDArray[Any]] = {"embeddings": entries.embeddings}
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

    ids, embeddings = tuple(values["ids"]), arrays["embeddings"]
    nothing = (None,) * len(ids)
    contexts: Sequence[str | None] = nothing
    if "contexts" in arrays:
        contexts = _unpacked(arrays["contexts"], arrays["context_lengths"])
    metadatas = values.get("metadatas", ["{}"] * len(ids))
    return Batch(  # its constructor checks all values
        ids=ids,
        texts=_unpacked(arrays["texts"], arrays["text_lengths"]),  # type: ignore[arg-type]
        embeddings=embeddings,
        labels=tuple(values.get("labels", nothing)),
        lineages=tuple(values.get("lineages", nothing)),
        metadatas=tuple(metadata_json.loads(metadata) for metadata in metadatas),
        vectors=embeddings,
        contexts=tuple(contexts),
        sources=tuple(values.get("sources", nothing)),
    )


def _packed(texts: Iterable[str | None]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return texts as bytes, and the length of each; -1 for ``None``.

    JSON would join two lone surrogates in a text into one character.
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
