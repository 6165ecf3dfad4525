"""Detector of text that gives orders to the model."""

from ragshield_core.detectors.instruction.detector import InstructionDetector

__all__ = ["InstructionDetector"]
