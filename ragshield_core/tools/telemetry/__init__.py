"""Traces and metrics for an operator's tools, never texts."""

from ragshield_core.tools.telemetry.screenings import Gauges

__all__ = ["Gauges"]
