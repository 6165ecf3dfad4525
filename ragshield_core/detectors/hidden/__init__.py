"""Detector of text that a model reads but people do not see."""

from ragshield_core.detectors.hidden.detector import HiddenTextDetector, payloads
from ragshield_core.detectors.hidden.payload import Payload

__all__ = ["HiddenTextDetector", "Payload", "payloads"]
