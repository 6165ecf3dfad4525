"""Your own attack texts and targets, in files of JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ragshield_core.model.errors import SourceError
from ragshield_core.tools.audit.readers.records import objects
from ragshield_core.tools.evaluate.attacks.catalogue import Planted, Target


def read_attacks(path: Path) -> list[Planted]:
    """Return attack texts from a file of JSON Lines.

    Each line has ``text``. Optional are the name of its ``attack`` (default: the file's name), the
    ``target`` that texts of a group share (default: each text is alone), and the ``question`` that
    should retrieve it (default: none).

    Raises
    ------
    SourceError
        If the file cannot be read, or a line is not such an object; names the line.
    """
    groups: dict[tuple[str, str], tuple[str | None, list[str]]] = {}
    for number, row in _rows(path, ("text",), ("attack", "target", "question")):
        key = (row.get("attack") or path.stem, row.get("target") or f"line {number}")
        groups.setdefault(key, (row.get("question"), []))[1].append(row["text"])
    return [
        Planted(attack=attack, question=question, texts=tuple(texts))
        for (attack, _), (question, texts) in groups.items()
    ]


def read_targets(path: Path, carriers: Sequence[str]) -> list[Target]:
    """Return targets from a file of JSON Lines, each with ``question`` and ``wrong_answer``.

    ``answer``, the right one, is optional: attacks that deny it name it.

    Parameters
    ----------
    path
        The file.
    carriers
        Clean texts into which attacks insert text; the same for all targets.

    Raises
    ------
    SourceError
        If the file cannot be read, or a line is not such an object; names the line.
    """
    return [
        Target(
            question=row["question"],
            wrong_answer=row["wrong_answer"],
            answer=row.get("answer"),
            carriers=tuple(carriers),
        )
        for _, row in _rows(path, ("question", "wrong_answer"), ("answer",))
    ]


def _rows(
    path: Path, needed: Sequence[str], possible: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each line and its values that are not null; at least one line."""
    names, number = (*needed, *possible), 0
    example = json.dumps(dict.fromkeys(names, "..."))
    for number, row in objects(path):
        values = {name: row[name] for name in names if row.get(name) is not None}
        strings = all(isinstance(value, str) for value in values.values())
        if not strings or not all(values.get(name) for name in needed):
            msg = (
                f"{path}, line {number}: expected an object such as {example}, all of them "
                f"strings, {' and '.join(needed)} not empty."
            )
            raise SourceError(msg)
        yield number, values
    if not number:
        msg = f"{path} is empty, expected at least one line such as {example}."
        raise SourceError(msg)
