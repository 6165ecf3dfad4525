"""Detectors of text that gives orders to the model, by rules and by meaning."""

from ragshield_core.detectors.instruction.detector import InstructionDetector
from ragshield_core.detectors.instruction.orders import OrderDetector

__all__ = ["InstructionDetector", "OrderDetector"]
