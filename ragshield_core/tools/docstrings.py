"""Texts of docstrings for people at a terminal."""

from __future__ import annotations

import inspect
import re

_ROLE = re.compile(r":[a-z]+:`([^`]*)`")


def sections(documented: type) -> dict[str, str]:
    """Return the parts of a class's docstring by heading, ``""`` for the part before the first."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.getdoc(documented) or "", flags=re.MULTILINE)
    return {"": parts[0].strip()} | {
        heading: text.strip() for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def parameters(documented: type) -> dict[str, str]:
    """Return the description of each parameter of a class, on one line and without markup."""
    found: dict[str, str] = {}
    for names, text in re.findall(
        r"^(\S.*)\n((?:(?: +.*)?\n?)*)", sections(documented).get("Parameters", ""), re.MULTILINE
    ):
        found |= dict.fromkeys(names.split(", "), plain(" ".join(text.split())))
    return found


def plain(text: str) -> str:
    """Return a text without the markup of Sphinx.

    >>> plain("``None`` of :class:`~ragshield_core.Policy`, see [1]_")
    'None of Policy, see [1]'
    """
    text = _ROLE.sub(_named, text).replace("``", "")
    return re.sub(r"(\[\d+\])_", r"\1", text)


def _named(role: re.Match[str]) -> str:
    """Return the last part of the name in a role."""
    return role[1].rpartition("<")[2].rstrip(">").rpartition(".")[2].lstrip("~")
