"""Detector of text that readers do not see and a model does."""

from ragshield_core.detectors.hidden.detector import HiddenTextDetector
from ragshield_core.detectors.hidden.payload import Payload
from ragshield_core.detectors.hidden.payloads import payloads

__all__ = ["HiddenTextDetector", "Payload", "payloads"]
