"""Evaluation of a guard on a corpus: half is known, poison comes with the other half."""

from typing import TYPE_CHECKING

from ragshield_core.lazy import attributes

if TYPE_CHECKING:
    from ragshield_core.tools.evaluate.figures import Evaluation, Missed, Rate, Reached, Recall
    from ragshield_core.tools.evaluate.gate import read_bounds, worse_than
    from ragshield_core.tools.evaluate.targets import carriers_of, targets_of
    from ragshield_core.tools.evaluate.trial import evaluate

__all__ = [
    "Evaluation",
    "Missed",
    "Rate",
    "Reached",
    "Recall",
    "carriers_of",
    "evaluate",
    "read_bounds",
    "targets_of",
    "worse_than",
]

# A guard imports the hooks of this package, and need not import the trial.
_HOMES = {
    **dict.fromkeys(("Evaluation", "Missed", "Rate", "Reached", "Recall"), "figures"),
    **dict.fromkeys(("read_bounds", "worse_than"), "gate"),
    **dict.fromkeys(("carriers_of", "targets_of"), "targets"),
    "evaluate": "trial",
}

__getattr__ = attributes(__name__, _HOMES)
