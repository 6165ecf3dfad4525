"""Settings of a deployment, from a file and the environment."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.settings.reading import Settings

__all__ = [
    "Settings",
]

# Module of each name: the help of commands needs no settings.
_HOMES = {
    "Settings": "reading",
}

__getattr__ = attributes(__name__, _HOMES)
