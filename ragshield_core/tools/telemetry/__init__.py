"""What an operator's tools hear: traces, metrics and structured logs; never a text."""

from ragshield_core.tools.telemetry.gauges import Gauges
from ragshield_core.tools.telemetry.logs import JsonFormatter

__all__ = ["Gauges", "JsonFormatter"]
