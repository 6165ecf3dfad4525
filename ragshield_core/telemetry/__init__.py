"""What an operator's tools hear: traces, metrics and structured logs; never a text."""

from ragshield_core.telemetry.gauges import Gauges
from ragshield_core.telemetry.logs import JsonFormatter

__all__ = ["Gauges", "JsonFormatter"]
