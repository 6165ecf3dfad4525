"""Detector of text that readers do not see and a model does."""

from ragshield_core.detectors.hidden.detector import HiddenTextDetector, payloads
from ragshield_core.detectors.hidden.payload import Payload

__all__ = ["HiddenTextDetector", "Payload", "payloads"]
