"""Builders of poison, for tests, evaluation and red-teaming your own knowledge base."""

from ragshield_core.tools.evaluate.attacks.catalogue import (
    ATTACKS,
    BY_NAME,
    DIFFICULTIES,
    LABEL_FLIPS,
    Attack,
    Difficulty,
    Draft,
    Planted,
    Target,
    flip_labels,
)
from ragshield_core.tools.evaluate.attacks.files import read_attacks, read_targets
from ragshield_core.tools.evaluate.attacks.passages import (
    STYLES,
    craft_passages,
    put_question_in_front,
    vary_phrase,
)

__all__ = [
    "ATTACKS",
    "BY_NAME",
    "DIFFICULTIES",
    "LABEL_FLIPS",
    "STYLES",
    "Attack",
    "Difficulty",
    "Draft",
    "Planted",
    "Target",
    "craft_passages",
    "flip_labels",
    "put_question_in_front",
    "read_attacks",
    "read_targets",
    "vary_phrase",
]
