"""What a deployment decides without code: settings of a file and of the environment."""

from ragshield_core.settings.reading import Settings

__all__ = ["Settings"]
