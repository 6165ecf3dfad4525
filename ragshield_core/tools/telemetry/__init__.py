"""What an operator's tools hear: traces and metrics, never a text."""

from ragshield_core.tools.telemetry.screenings import Gauges

__all__ = ["Gauges"]
