"""A small example of a knowledge base: a shop's help desk, in our own texts."""

from __future__ import annotations

import json
from importlib.resources import files

PARTS = ("handbook", "tickets")


def help_desk(part: str | None = None) -> list[dict[str, str]]:
    """Return 414 texts of a shop's help desk: 24 of its handbook, 390 tickets of customers.

    Parameters
    ----------
    part
        ``"handbook"`` or ``"tickets"`` for one of them; ``None``, the default, for both.

    Returns
    -------
    list[dict[str, str]]
        Each has ``id`` and ``text``; tickets also have a ``label``: billing, delivery or technical.

    Raises
    ------
    ValueError
        If the part is unknown.

    Examples
    --------
    >>> help_desk("handbook")[0]["text"].partition(" after")[0]
    'Refunds reach your account within five working days'
    """
    if part is not None and part not in PARTS:
        msg = f"part is {part!r}, expected one of {', '.join(PARTS)}, or None for all."
        raise ValueError(msg)
    folder = files("ragshield_core.tools.evaluate.help_desk")
    return [
        json.loads(line)
        for name in PARTS
        if part in (None, name)
        for line in (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
