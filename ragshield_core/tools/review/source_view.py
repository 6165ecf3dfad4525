"""Sources that a person has to decide on, for the page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ragshield_core.calibration.questions import Question
from ragshield_core.database.read_only import read_only
from ragshield_core.model.errors import RAGShieldError
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine
from ragshield_core.sharing.standing import questions_of
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.review.sources_command import command_of

BEGINNING = 160  # characters of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An entry of a source: its id, its number where it is in quarantine, how its text begins."""

    id: str
    number: int | None = None
    begins: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about a source, as the page shows it.

    Attributes
    ----------
    question
        What is asked.
    key
        Names the source in a form: its own name is hostile.
    held, admitted
        A few entries of both sides.
    commands
        Which to run where the page cannot decide.
    """

    question: Question
    key: str
    held: Sequence[Example]
    admitted: Sequence[Example]
    commands: Sequence[str]


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
            store.guard.writes.catch_up()
            return store.guard.questions()
        with read_only(quarantine.database.url) as session:
            return questions_of(session, quarantine.database.url, quarantine.namespace)
    except RAGShieldError:
        return ()


def source_view(quarantine: Quarantine, store: Guarded | None) -> list[Asked]:
    """Return all that is asked, with examples; changes nothing."""
    return [
        Asked(
            question=question,
            key=key_of(question.source),
            held=_held(quarantine, question.held_ids),
            admitted=_admitted(store, question.admitted_ids),
            commands=[
                command_of(choice, question.source, quarantine.namespace)
                for choice in ("adopt", "keep")
            ],
        )
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
    there = {one.id: one for one in quarantine.list(ids=ids)} if ids else {}
    return [
        Example(
            id=name,
            number=there[name].number if name in there else None,
            begins=printable(there[name].entry.text, BEGINNING) if name in there else "",
        )
        for name in ids
    ]


def _admitted(store: Guarded | None, ids: Sequence[str]) -> list[Example]:
    texts = {}
    if store is not None and ids:
        try:
            texts = {entry.id: entry.text for entry in store.standing(ids)}
        except RAGShieldError:  # which cannot be asked now; the ids are known
            texts = {}
    return [Example(id=name, begins=printable(texts.get(name, ""), BEGINNING)) for name in ids]
