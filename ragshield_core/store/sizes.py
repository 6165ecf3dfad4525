"""Bounds on metadata: one entry with thousands of values stops a Chroma collection for good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ragshield_core.model.claims import NODE_KEY
from ragshield_core.model.findings import printable
from ragshield_core.model.policy import Policy

# Lists and mappings within each other. Readers of JSON stop at some hundreds.
DEEPEST = 50

_NESTED = (Mapping, list, tuple, set, frozenset)


def fitting(
    metadatas: Sequence[Mapping[str, Any]], policy: Policy
) -> tuple[list[Mapping[str, Any]], dict[int, str]]:
    """Return metadata without the keys beyond the bounds of a policy; and why, by row.

    Examples
    --------
    >>> fitting([{"page": 1, "tags": [0] * 8000}], Policy())[0]
    [{'page': 1}]
    """
    kept, reasons = list(metadatas), dict[int, str]()
    for row, metadata in enumerate(metadatas):
        if not _is_small(metadata, policy):
            kept[row], reason = _cut(metadata, policy)
            if reason is not None:
                reasons[row] = reason
    return kept, reasons


def _is_small(metadata: Mapping[str, Any], policy: Policy) -> bool:
    """Return whether metadata is flat and short: nearly always, and told quickly."""
    if type(metadata) is not dict or len(metadata) > policy.metadata_values:
        return False
    values = (*metadata, *metadata.values())
    if any(isinstance(value, _NESTED) for value in metadata.values()):
        return False
    return sum(map(_length, values)) <= policy.metadata_characters


def _cut(metadata: Mapping[str, Any], policy: Policy) -> tuple[Mapping[str, Any], str | None]:
    """Return the keys that fit, in their order, and why the first of the others does not."""
    left = _Room(policy.metadata_values, policy.metadata_characters)
    fit, reason = {}, None
    try:
        for key, value in metadata.items():
            # What LlamaIndex says of a node besides its metadata is one value to a store.
            room = left._replace(values=left.characters) if key == NODE_KEY else left
            taken = _taken(key, value, room)
            if isinstance(taken, str):
                named = f"metadata[{printable(repr(key), 60)}]" if isinstance(key, str) else "it"
                reason = reason or f"{named} {taken.format(policy=policy)}"
                continue
            fit[key] = value
            values = 1 if key == NODE_KEY else taken.values
            left = _Room(left.values - values, left.characters - taken.characters)
    except Exception:  # noqa: BLE001 - a mapping of a class of its own may do anything
        return metadata, None  # and the quarantine says that it cannot keep it
    return (metadata if reason is None else fit), reason


class _Room(NamedTuple):
    values: int
    characters: int


def _taken(key: Any, value: Any, room: _Room) -> _Room | str:
    """Return the room that a key takes, or why it does not fit; looks no further than that."""
    values, characters = 0, _length(key)
    # An iterator per level: what contains itself, or the same list again and again, is not copied.
    levels: list[Iterable[Any]] = [iter((value,))]
    while levels:
        for one in levels[-1]:
            values, characters = values + 1, characters + _length(one)
            if values > room.values:
                return (
                    "has more than the {policy.metadata_values:,} values that an entry may have; "
                    "shorten it, or raise Policy(metadata_values=...)"
                )
            if characters > room.characters:
                return (
                    "has more than the {policy.metadata_characters:,} characters that the metadata "
                    "of an entry may have; shorten it, or raise Policy(metadata_characters=...)"
                )
            if isinstance(one, _NESTED):
                if len(levels) > DEEPEST:
                    return f"is nested more than {DEEPEST} deep; use flat values"
                levels.append(iter(_parts(one)))
                break
        else:
            levels.pop()
    return _Room(values, characters)


def _parts(value: Any) -> Iterable[Any]:
    """Return the values within a list or a mapping, keys among them."""
    if not isinstance(value, Mapping):
        return value  # type: ignore[no-any-return]
    return (part for pair in value.items() for part in pair)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 1
