"""What a text hides from those who read it, and not from a model."""

from ragshield_core.text.hidden.payload import Payload
from ragshield_core.text.hidden.payloads import payloads

__all__ = ["Payload", "payloads"]
