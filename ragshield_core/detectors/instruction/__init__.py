"""Text that talks to the model instead of to the reader."""

from ragshield_core.detectors.instruction.detector import InstructionDetector

__all__ = ["InstructionDetector"]
