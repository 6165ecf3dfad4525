"""Sources that a person has to decide on, for the page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ragshield_core.calibration.questions import Question
from ragshield_core.database.read_only import read_only
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine
from ragshield_core.sharing.standing import questions_of
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.review.sources_command import command_of

BEGINNING = 160  # characters of a text


class Example(NamedTuple):
    """An entry of a source: its id, its number where it is in quarantine, how its text begins."""

    id: str
    number: int | None
    begins: str


def open_questions(quarantine: Quarantine, store: Guarded | None) -> tuple[Question, ...]:
    """Return the open questions of the guard; none if there is no guard.

    Parameters
    ----------
    quarantine
        In whose database the guard is, if there is no store.
    store
        Whose guard is asked, if there is one.
    """
    try:
        if store is not None:
            store.guard.catch_up()
            return store.guard.questions()
        with read_only(quarantine.database.url) as session:
            return questions_of(session, quarantine.database.url, quarantine.namespace)
    except RAGShieldError:
        return ()


def source_view(quarantine: Quarantine, store: Guarded | None) -> list[dict[str, Any]]:
    """Return all that is asked, with examples of both sides; changes nothing.

    The key names a source in a form: its own name is hostile. Where the page cannot decide, people
    run one of the commands.
    """
    return [
        {
            "question": question,
            "key": key_of(question.source),
            "held": _held(quarantine, question.held_ids),
            "admitted": _admitted(store, question.admitted_ids),
            "commands": [
                command_of(choice, question.source, quarantine.namespace)
                for choice in ("adopt", "keep")
            ],
        }
        for question in open_questions(quarantine, store)
    ]


def key_of(source: str | None) -> str:
    """Return the key of a source in a form.

    Examples
    --------
    >>> key_of(None) == key_of("None")
    False
    """
    return hashlib.sha256(repr(source).encode("utf-8", "backslashreplace")).hexdigest()


def _held(quarantine: Quarantine, ids: Sequence[str]) -> list[Example]:
    there = quarantine.list(ids=ids) if ids else ()
    found = {one.id: (one.number, printable(one.entry.text, BEGINNING)) for one in there}
    return [Example(name, *found.get(name, (None, ""))) for name in ids]


def _admitted(store: Guarded | None, ids: Sequence[str]) -> list[Example]:
    texts = {}
    if store is not None and ids:
        with suppress(RAGShieldError):  # a store that cannot be asked now; the ids are known
            texts = {entry.id: entry.text for entry in store.standing(ids)}
    return [Example(name, None, printable(texts.get(name, ""), BEGINNING)) for name in ids]
