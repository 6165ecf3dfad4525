"""Contradictions between new and standing entries: shown to people, never held."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.tools.alerts import Alert, Checked
    from ragshield_core.tools.contradictions.altered_copies import AlteredCopies
    from ragshield_core.tools.contradictions.checker import ContradictionChecker
    from ragshield_core.tools.contradictions.models import CrossEncoder, LanguageModel
    from ragshield_core.tools.contradictions.pairs import Comparison, ContradictionModel, Pair
    from ragshield_core.tools.contradictions.storage import KeptAlert, KeptAlerts

__all__ = [
    "Alert",
    "AlteredCopies",
    "Checked",
    "Comparison",
    "ContradictionChecker",
    "ContradictionModel",
    "CrossEncoder",
    "KeptAlert",
    "KeptAlerts",
    "LanguageModel",
    "Pair",
]

# Module of each name: the help of the command needs none.
_HOMES = {
    **dict.fromkeys(("Alert", "Checked", "ContradictionChecker"), "checker"),
    "AlteredCopies": "altered_copies",
    **dict.fromkeys(("CrossEncoder", "LanguageModel"), "models"),
    **dict.fromkeys(("Comparison", "ContradictionModel", "Pair"), "pairs"),
    **dict.fromkeys(("KeptAlert", "KeptAlerts"), "storage"),
}

__getattr__ = attributes(__name__, _HOMES)
