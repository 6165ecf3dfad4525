"""Builders of poison, for tests, evaluation and red-teaming one's own knowledge base."""

from ragshield_core.attacks.catalogue import ATTACKS, Attack, Planted, Target
from ragshield_core.attacks.files import read_attacks, read_targets
from ragshield_core.attacks.labels import LABEL_FLIPS, flip_labels
from ragshield_core.attacks.passages import STYLES, craft_passages, put_question_in_front
from ragshield_core.attacks.phrases import disguise_phrase, plant_phrase, vary_phrase

__all__ = [
    "ATTACKS",
    "LABEL_FLIPS",
    "STYLES",
    "Attack",
    "Planted",
    "Target",
    "craft_passages",
    "disguise_phrase",
    "flip_labels",
    "plant_phrase",
    "put_question_in_front",
    "read_attacks",
    "read_targets",
    "vary_phrase",
]
