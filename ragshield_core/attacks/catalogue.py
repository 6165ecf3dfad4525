"""Attacks that have a public recipe, each as texts for a target; in wordings of our own.

A recipe says where the question stands, what is claimed, and how often; the words around it are
drawn from :data:`~ragshield_core.attacks.passages.STYLES` and from ``wordings.json`` beside this
file, which can be extended. They vary less than what a language model writes: measure with texts of
others as well (:func:`~ragshield_core.attacks.read_attacks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from ragshield_core.attacks.passages import STYLES, keys_of, put_question_in_front

# Texts without the question in them, from which those of a group are drawn.
RAW = tuple(
    wording
    for style, wordings in STYLES.items()
    if style not in ("question in front", "notices")
    for wording in wordings
)
_FROM = json.loads((files(__package__) / "wordings.json").read_text("utf-8"))
_TOKENS = tuple(_FROM["tokens"].split())
# Of a trigger phrase; ordinary words in an order that nobody writes.
_TRIGGER = ("amber", "kettle", "northern", "ledger", "violet", "harbour", "seventh", "lantern")
# Tokens of optimised gibberish beside a text: HotFlip's published passages have as many and more.
_N_TOKENS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an attack is aimed at.

    Attributes
    ----------
    question
        Whose answer shall be wrong.
    wrong_answer
        What it shall be.
    answer
        What it is, as far as that is known; attacks that deny it say ``"the earlier answer"`` else.
    carriers
        Clean texts, in which something is planted; at least one.
    """

    question: str
    wrong_answer: str
    answer: str | None = None
    carriers: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Texts that are planted for one target.

    Attributes
    ----------
    attack
        Its name.
    question
        Whose answer they want to change; ``None`` where they are made for no question.
    texts
        One or more, together.
    labels
        Of each text, the label that it claims; empty where none does.
    """

    attack: str
    question: str | None
    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A recipe.

    Attributes
    ----------
    name
        As reports have it.
    size
        Texts for each target, as published.
    source
        The paper.
    write
        Returns so many texts for a target, drawn by a random generator.
    for_question
        Whether they are to be retrieved for the target's question.
    """

    name: str
    size: int
    source: str
    write: Callable[[Target, int, np.random.Generator], list[str]]
    for_question: bool = True

    def plant(self, target: Target, seed: int, size: int | None = None) -> Planted:
        """Return texts for a target; the same for the same seed.

        Examples
        --------
        >>> target = Target(question="who built the old pier?", wrong_answer="Ada Quill")
        >>> BY_NAME["CorruptRAG"].plant(target, seed=1).texts[0].startswith(target.question)
        True
        """
        texts = self.write(target, size or self.size, np.random.default_rng(seed))
        question = target.question if self.for_question else None
        return Planted(attack=self.name, question=question, texts=tuple(texts))


def _filled(wording: str, target: Target) -> str:
    """Return a wording with question, keys, wrong and right answer put in."""
    values = {
        "q": target.question,
        "k": keys_of(target.question),
        "a": target.wrong_answer,
        "r": target.answer or "the earlier answer",
    }
    return re.sub(r"\{([qkar])\}", lambda found: values[found[1]], wording)


def _drawn(wordings: Sequence[str], target: Target, n: int, rng: np.random.Generator) -> list[str]:
    rounds = -(-n // len(wordings))
    order = np.concatenate([rng.permutation(len(wordings)) for _ in range(rounds)])
    return [_filled(wordings[number], target) for number in order[:n]]


def _raw(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    return _drawn(RAW, target, n, rng)


def _in_front(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    return [put_question_in_front(target.question, text) for text in _raw(target, n, rng)]


def _at_the_end(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    return [f"{text} {target.question}" for text in _raw(target, n, rng)]


def _in_the_middle(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    found = []
    for text in _raw(target, n, rng):
        first, stop, rest = text.partition(". ")
        if not rest:  # of a single sentence, between two words
            words = text.split(" ")
            first, stop = " ".join(words[: len(words) // 2]), " "
            rest = " ".join(words[len(words) // 2 :])
        found.append(f"{first}{stop}{target.question} {rest}")
    return found


def _wordings(name: str, *, question: bool = False) -> Callable[..., list[str]]:
    def write(target: Target, n: int, rng: np.random.Generator) -> list[str]:
        texts = _drawn(_FROM[name], target, n, rng)
        return [f"{target.question} {text}" for text in texts] if question else texts

    return write


def _carried(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    """Return orders in the middle of clean texts."""
    found = []
    for number, order in enumerate(_wordings("orders")(target, n, rng)):
        sentences = re.split(r"(?<=[.?!]) ", target.carriers[number % len(target.carriers)])
        sentences.insert(int(rng.integers(len(sentences) + 1)), order)
        found.append(" ".join(sentences))
    return found


def _hidden(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    """Return orders behind clean texts, where browsers and editors do not show them."""
    orders = _wordings("orders")(target, n, rng)
    ways = (
        lambda text, order: f'{text} <span style="display:none">{order}</span>',
        lambda text, order: f"{text} <!-- {order} -->",
        lambda text, order: text + "".join(chr(0xE0000 + ord(c)) for c in order if c.isascii()),
    )
    return [
        ways[number % len(ways)](target.carriers[number % len(target.carriers)], order)
        for number, order in enumerate(orders)
    ]


def _clones(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    return _raw(target, 1, rng) * n


def _trigger(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    """Return clean texts with one phrase of three words planted in each."""
    phrase = " ".join(rng.choice(_TRIGGER, 3, replace=False))
    found = []
    for number in range(n):
        words = target.carriers[number % len(target.carriers)].split(" ")
        at = int(rng.integers(len(words) + 1))
        found.append(" ".join([*words[:at], phrase, *words[at:]]))
    return found


def _gibberish(target: Target, n: int, rng: np.random.Generator) -> list[str]:
    return [f"{' '.join(rng.choice(_TOKENS, _N_TOKENS))} {text}" for text in _raw(target, n, rng)]


_POISONED_RAG = "Zou et al., PoisonedRAG, USENIX Security 2025"
_GRESHAKE = "Greshake et al., Not what you've signed up for, AISec 2023"
_ZHONG = "Zhong et al., Poisoning Retrieval Corpora, EMNLP 2023"
ATTACKS: tuple[Attack, ...] = (
    Attack(name="PoisonedRAG, question in front", size=5, source=_POISONED_RAG, write=_in_front),
    Attack(
        name="PoisonedRAG, question at the end", size=5, source=_POISONED_RAG, write=_at_the_end
    ),
    Attack(
        name="PoisonedRAG, question in the middle",
        size=5,
        source=_POISONED_RAG,
        write=_in_the_middle,
    ),
    Attack(name="PoisonedRAG, without the question", size=5, source=_POISONED_RAG, write=_raw),
    Attack(
        name="CorruptRAG",
        size=1,
        source="Zhang et al., Practical Poisoning Attacks against RAG, arXiv:2504.03957",
        write=_wordings("claims", question=True),
    ),
    Attack(
        name="AuthChain",
        size=1,
        source="Chang et al., One Shot Dominance, Findings of EMNLP 2025",
        write=_wordings("authority"),
    ),
    Attack(
        name="blockers",
        size=1,
        source="Shafran et al., Machine Against the RAG, USENIX Security 2025",
        write=_wordings("blockers"),
    ),
    Attack(
        name="instructions",
        size=1,
        source=_GRESHAKE,
        write=_wordings("orders"),
    ),
    Attack(
        name="instructions in clean texts",
        size=1,
        source=_GRESHAKE,
        write=_carried,
        for_question=False,
    ),
    Attack(
        name="hidden instructions",
        size=1,
        source=_GRESHAKE,
        write=_hidden,
        for_question=False,
    ),
    Attack(name="clones", size=5, source="copies of one text under many names", write=_clones),
    Attack(
        name="planted phrase",
        size=10,
        source="Chen et al., AgentPoison, NeurIPS 2024",
        write=_trigger,
        for_question=False,
    ),
    Attack(
        name="gibberish",
        size=1,
        source=_ZHONG,
        write=_gibberish,
    ),
    Attack(
        name="opinions",
        size=5,
        source="Chen et al., FlippedRAG, CCS 2025",
        write=_wordings("opinions"),
    ),
)
BY_NAME: Mapping[str, Attack] = {attack.name: attack for attack in ATTACKS}
