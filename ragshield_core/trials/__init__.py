"""How a guard does on one's own corpus: half of it is known, poison comes with the rest."""

from ragshield_core.trials.figures import Evaluation, Rate, Reached, Recall
from ragshield_core.trials.gate import worse_than
from ragshield_core.trials.targets import carriers_of, targets_of
from ragshield_core.trials.trial import evaluate

__all__ = [
    "Evaluation",
    "Rate",
    "Reached",
    "Recall",
    "carriers_of",
    "evaluate",
    "targets_of",
    "worse_than",
]
