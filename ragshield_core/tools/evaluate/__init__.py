"""How a guard does on one's own corpus: half of it is known, poison comes with the rest."""

from ragshield_core.tools.evaluate.figures import (
    Evaluation,
    Missed,
    Rate,
    Reached,
    Recall,
)
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
