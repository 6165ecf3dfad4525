"""Settings of a deployment, from a file and the environment."""

from ragshield_core.settings.reading import Settings

__all__ = ["Settings"]
