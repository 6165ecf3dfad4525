"""Contradictions between new and standing entries: shown to people, never held."""

from ragshield_core.tools.contradictions.alerts import Alert, Checked
from ragshield_core.tools.contradictions.altered_copies import AlteredCopies
from ragshield_core.tools.contradictions.checker import ContradictionChecker
from ragshield_core.tools.contradictions.models import CrossEncoder, LanguageModel
from ragshield_core.tools.contradictions.pairs import Comparison, ContradictionModel, Pair

__all__ = [
    "Alert",
    "AlteredCopies",
    "Checked",
    "Comparison",
    "ContradictionChecker",
    "ContradictionModel",
    "CrossEncoder",
    "LanguageModel",
    "Pair",
]
