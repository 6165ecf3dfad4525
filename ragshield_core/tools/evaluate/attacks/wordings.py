"""The words that recipes are written in: our own, and those of files of one's own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from ragshield_core.model.errors import SourceError
from ragshield_core.model.findings import printable
from ragshield_core.tools.evaluate.attacks.passages import STYLES

# Wordings by key: {q} the question, {k} its key words, {a} the wrong answer, {r} the right one.
Wordings = Mapping[str, tuple[str, ...]]

# What stands for our own wordings in somebody's list.
OURS = "..."
PLACES = "qkar"
_PLACE = re.compile(r"\{(\w+)\}")


def _shipped() -> Wordings:
    read = json.loads((files(__package__) / "wordings.json").read_text("utf-8"))
    # Texts without the question in them, from which those of a group are drawn.
    passages = [
        wording
        for style, wordings in STYLES.items()
        if style not in ("question in front", "notices")
        for wording in wordings
    ]
    return {key: tuple(wordings) for key, wordings in ({"passages": passages} | read).items()}


WORDINGS: Wordings = _shipped()
# Of each key, the places one of which every wording has; a wording without says nothing of a
# target. Keys that are not named here are words, and have none.
NEEDED: Mapping[str, str] = {
    "passages": "a",
    "claims": "a",
    "claims, reworded": "a",
    "authority": "a",
    "authority, reworded": "a",
    "blockers": "qk",
    "blockers, reworded": "qk",
    "orders": "a",
    "orders, reworded": "a",
    "opinions": "a",
    "opinions, reworded": "a",
    "questions, reworded": "qk",
}
# Words of a planted phrase, all different.
PHRASE = 3


def own_wordings(values: Mapping[str, Any], where: str = "wordings") -> Wordings:
    """Return wordings to write attacks in: given ones in place of ours, key by key.

    Parameters
    ----------
    values
        Lists of strings by the keys of :data:`WORDINGS`; ours stay under keys that are not named.
        ``"..."`` in a list stands for ours, so that ``["...", "one more"]`` extends them.
    where
        What is named in errors.

    Raises
    ------
    SourceError
        If a key is not known, has no list of strings that are not empty, or a wording has not the
        place that it needs, or one that there is not; names the key and the wording's number.

    Examples
    --------
    >>> mine = own_wordings({"claims": ["A recount of {k} gave {a}."]})
    >>> mine["claims"], mine["orders"] == WORDINGS["orders"]
    (('A recount of {k} gave {a}.',), True)
    >>> len(own_wordings({"claims": ["...", "It is {a}."]})["claims"]) - len(WORDINGS["claims"])
    1
    """
    found = dict(WORDINGS)
    for key, wordings in values.items():
        if key not in WORDINGS:
            _refuse(f"{where}: {printable(key)!r} is not known", f"one of: {'; '.join(WORDINGS)}")
        if not isinstance(wordings, list | tuple) or not wordings:
            _refuse(f"{where}: {key!r} has no list of wordings", "a list of strings, one at least")
        if key == "triggers" and OURS not in wordings and len({*map(str, wordings)}) < PHRASE:
            _refuse(f"{where}: {key!r} has too few words", f"{PHRASE} different ones at least")
        for number, wording in enumerate(wordings, start=1):
            _check(wording, key, f"{where}: {key!r}, wording {number}")
        found[key] = tuple(
            each
            for wording in wordings
            for each in (WORDINGS[key] if wording == OURS else [wording])
        )
    return found


def read_wordings(path: Path) -> Wordings:
    """Return wordings to write attacks in, of a JSON file: see :func:`own_wordings`.

    Parameters
    ----------
    path
        An object of lists of strings, as ``ragshield_core/tools/evaluate/attacks/wordings.json``
        is.

    Raises
    ------
    SourceError
        If the file cannot be read, or a key or wording is not as it has to be; names it.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # whose message would quote the text
        msg = (
            f"{path} cannot be read ({type(error).__name__}); expected JSON in UTF-8: an object of "
            'lists of strings, such as {"claims": ["A recount of {k} gave {a}."]}.'
        )
        raise SourceError(msg) from None
    if not isinstance(values, dict):
        _refuse(f"{path} holds no object", 'one such as {"claims": ["A recount of {k} gave {a}."]}')
    return own_wordings(values, str(path))


def mark_of(wordings: Wordings) -> str:
    """Return what tells own wordings from ours, and from others."""
    if wordings == WORDINGS:
        return "shipped"
    exact = json.dumps({key: list(each) for key, each in wordings.items()}, sort_keys=True)
    return f"own {hashlib.blake2b(exact.encode(), digest_size=8).hexdigest()}"


def _check(wording: object, key: str, what: str) -> None:
    if not isinstance(wording, str) or not wording.strip():
        _refuse(f"{what} is no text", "a string that is not empty")
    if wording != OURS and key in NEEDED:
        places = set(_PLACE.findall(wording))
        if not places <= set(PLACES):
            _refuse(f"{what} has a place in braces that there is not", "{q}, {k}, {a} and {r} only")
        if not places & set(NEEDED[key]):
            needed = " or ".join(f"{{{place}}}" for place in NEEDED[key])
            _refuse(f"{what} has no {needed}", f"{needed} in every wording of {key!r}")


def _refuse(what: str, expected: str) -> NoReturn:
    msg = f"{what}, expected {expected}."
    raise SourceError(msg)
