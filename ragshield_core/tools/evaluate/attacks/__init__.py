"""Builders of poison, for tests, evaluation and red-teaming one's own knowledge base."""

from ragshield_core.tools.evaluate.attacks.catalogue import (
    ATTACKS,
    DIFFICULTIES,
    Attack,
    Difficulty,
    Draft,
    Planted,
    Target,
)
from ragshield_core.tools.evaluate.attacks.files import read_attacks, read_targets
from ragshield_core.tools.evaluate.attacks.labels import LABEL_FLIPS, flip_labels
from ragshield_core.tools.evaluate.attacks.passages import (
    STYLES,
    craft_passages,
    put_question_in_front,
)
from ragshield_core.tools.evaluate.attacks.phrases import disguise_phrase, plant_phrase, vary_phrase
from ragshield_core.tools.evaluate.attacks.wordings import (
    WORDINGS,
    Wordings,
    own_wordings,
    read_wordings,
)

__all__ = [
    "ATTACKS",
    "DIFFICULTIES",
    "LABEL_FLIPS",
    "STYLES",
    "WORDINGS",
    "Attack",
    "Difficulty",
    "Draft",
    "Planted",
    "Target",
    "Wordings",
    "craft_passages",
    "disguise_phrase",
    "flip_labels",
    "own_wordings",
    "plant_phrase",
    "put_question_in_front",
    "read_attacks",
    "read_targets",
    "read_wordings",
    "vary_phrase",
]
