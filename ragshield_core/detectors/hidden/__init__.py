"""What a text hides from those who read it, and not from a model."""

from ragshield_core.detectors.hidden.detector import HiddenTextDetector
from ragshield_core.detectors.hidden.payload import Payload
from ragshield_core.detectors.hidden.payloads import payloads

__all__ = ["HiddenTextDetector", "Payload", "payloads"]
