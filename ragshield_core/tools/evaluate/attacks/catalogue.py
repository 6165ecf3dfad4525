"""Attacks with a public recipe, each as texts for a target, in our own wordings.

A recipe sets the place of the question, the claim, and the number of repetitions; the other words
are drawn from our own wordings. They vary less than those of a language model: measure with texts
of others as well (:func:`~ragshield_core.tools.evaluate.attacks.read_attacks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.text.characters import FULL_STOPS, QUESTION_MARKS
from ragshield_core.tools.evaluate.attacks.passages import (
    STYLES,
    keys_of,
    put_question_in_front,
    vary_phrase,
)

# Wordings by key: {q} the question, {k} its key words, {a} the wrong answer, {r} the right one.
_SHIPPED = json.loads((files(__package__) / "wordings.json").read_text("utf-8"))
WORDINGS: Mapping[str, tuple[str, ...]] = {k: tuple(found) for k, found in _SHIPPED.items()} | {
    # Texts without the question: the texts of a group are drawn from them.
    "passages": tuple(
        wording
        for style, wordings in STYLES.items()
        if style not in ("question in front", "notices")
        for wording in wordings
    )
}
# Number of words of a planted phrase, all different.
PHRASE = 3
# Name in reports of clean entries under another label: no recipe, since it targets entries.
LABEL_FLIPS = "label flips"

# The attacker's knowledge of the guard; each step includes the one before.
Difficulty = Literal["published", "reworded", "blended"]
DIFFICULTIES: tuple[Difficulty, ...] = ("published", "reworded", "blended")
# Tokens of optimised gibberish beside a text: HotFlip's published passages have as many or more.
_N_TOKENS = 25
_SENTENCE_ENDS = re.compile(f"(?<=[.!{FULL_STOPS}{QUESTION_MARKS}]) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of an attack.

    Attributes
    ----------
    question
        Question that is to be answered wrongly.
    wrong_answer
        The wrong answer.
    answer
        The right answer, if known; attacks that deny it otherwise say ``"the earlier answer"``.
    carriers
        Clean texts into which attacks insert text; at least one.
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
        Name of the attack.
    question
        Question whose answer they are to change; ``None`` for texts without a question.
    texts
        One or more texts that arrive together.
    labels
        Label that each text claims; empty if none does.
    """

    attack: str
    question: str | None
    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """Input of a recipe.

    Attributes
    ----------
    target
        Target of the texts.
    n
        Number of texts.
    rng
        Random generator of wordings and places.
    reworded
        Whether to put the telltale parts of the recipe into other words.
    """

    target: Target
    n: int
    rng: np.random.Generator
    reworded: bool = False

    def drawn(self, key: str, n: int | None = None, *, loosely: bool = False) -> list[str]:
        """Return ``n`` filled-in wordings of a key; none repeats before all were used once.

        Loosely: each leaves out other key words of the question, and has the rest in any order.
        """
        wordings, n = WORDINGS[key], self.n if n is None else n
        rounds = -(-n // len(wordings))
        order = np.concatenate([self.rng.permutation(len(wordings)) for _ in range(rounds)])[:n]
        keys = keys_of(self.target.question)
        return [
            _filled(wordings[number], self.target, _some_of(keys, self.rng) if loosely else keys)
            for number in order.tolist()
        ]

    def questions(self) -> list[str]:
        """Return the question for each text, in other words if the draft is reworded."""
        if self.reworded:
            return self.drawn("questions, reworded")
        return [self.target.question] * self.n

    def carrier(self, number: int) -> str:
        """Return a clean text, another one for each number until all are used."""
        return self.target.carriers[number % len(self.target.carriers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A recipe.

    Attributes
    ----------
    name
        Name in reports.
    size
        Number of texts for each target, as published.
    source
        The paper.
    write
        Function that writes the texts of a draft.
    for_question
        Whether the texts are to be retrieved for the target's question.
    reworded
        Changes by an attacker who knows the guard: telltale parts of the recipe are in other words,
        or in other places. Empty if that would change nothing.
    blends
        Whether there is a harder step still: the sentences of each text are spread over a clean
        text of the corpus, another one for each.
    difficulty
        Difficulty of the texts; :meth:`at` returns the attack at another one.
    """

    name: str
    size: int
    source: str
    write: Callable[[Draft], list[str]]
    for_question: bool = True
    reworded: str = ""
    blends: bool = True
    difficulty: Difficulty = "published"

    def at(self, difficulty: Difficulty) -> Self:
        """Return the attack at a difficulty, or at its hardest one below; its name says which.

        Raises
        ------
        ValueError
            If the difficulty is unknown.

        Examples
        --------
        >>> BY_NAME["CorruptRAG"].at("blended").name
        'CorruptRAG, blended'
        >>> BY_NAME["hidden instructions"].at("blended").name  # they stand in clean texts already
        'hidden instructions, reworded'
        """
        if difficulty not in DIFFICULTIES:
            msg = f"difficulty is {difficulty!r}, expected one of {', '.join(DIFFICULTIES)}."
            raise ValueError(msg)
        below = DIFFICULTIES[: DIFFICULTIES.index(difficulty) + 1]
        step = below[: len(self.steps)][-1]
        name = self.name.removesuffix(f", {self.difficulty}")
        name = name if step == "published" else f"{name}, {step}"
        return replace(self, name=name, difficulty=step)

    @property
    def steps(self) -> tuple[Difficulty, ...]:
        """The difficulties of the attack."""
        if not self.reworded:
            return DIFFICULTIES[:1]
        return DIFFICULTIES if self.blends else DIFFICULTIES[:2]

    @property
    def told(self) -> str:
        """The source, and the changes at this difficulty."""
        more = [self.reworded, BLENDED][: DIFFICULTIES.index(self.difficulty)]
        return "; ".join([self.source, *more])

    def plant(self, target: Target, seed: int, size: int | None = None) -> Planted:
        """Return texts for a target; the same for the same seed.

        Parameters
        ----------
        target
            Target of the texts.
        seed
            Seed of all random choices.
        size
            Number of texts; ``None``, the default, for the published one.

        Examples
        --------
        >>> target = Target(question="who built the old pier?", wrong_answer="Ada Quill")
        >>> BY_NAME["CorruptRAG"].plant(target, seed=1).texts[0].startswith(target.question)
        True
        """
        rng = np.random.default_rng(seed)
        draft = Draft(target, size or self.size, rng, self.difficulty != "published")
        texts = self.write(draft)
        if self.difficulty == "blended":
            texts = [_blended(text, draft.carrier(i), rng) for i, text in enumerate(texts)]
        question = target.question if self.for_question else None
        return Planted(attack=self.name, question=question, texts=tuple(texts))


def _filled(wording: str, target: Target, keys: str) -> str:
    """Return a wording filled in with question, keys, wrong and right answer."""
    values = {
        "q": target.question,
        "k": keys,
        "a": target.wrong_answer,
        "r": target.answer or "the earlier answer",
    }
    return re.sub(r"\{([qkar])\}", lambda found: values[found[1]], wording)


def _some_of(keys: str, rng: np.random.Generator) -> str:
    """Return two thirds of the words, at least two, in random order."""
    words = rng.permutation(keys.split(" "))
    return " ".join(words[: max(2, -(-2 * len(words) // 3))].tolist())


def _blended(text: str, carrier: str, rng: np.random.Generator) -> str:
    """Return a clean text with the sentences of another inserted in order, at random places."""
    theirs, found = _SENTENCE_ENDS.split(text), _SENTENCE_ENDS.split(carrier)
    places = np.sort(rng.integers(len(found) + 1, size=len(theirs)))
    for shift, (place, sentence) in enumerate(zip(places.tolist(), theirs, strict=True)):
        found.insert(place + shift, sentence)
    return " ".join(found).strip()


def _raw(draft: Draft) -> list[str]:
    return draft.drawn("passages", loosely=draft.reworded)


def _in_front(draft: Draft) -> list[str]:
    texts = draft.drawn("passages")
    if draft.reworded:
        return [f"{q} {text}" for q, text in zip(draft.questions(), texts, strict=True)]
    return [put_question_in_front(draft.target.question, text) for text in texts]


def _at_the_end(draft: Draft) -> list[str]:
    texts = draft.drawn("passages")
    return [f"{text} {q}" for q, text in zip(draft.questions(), texts, strict=True)]


def _in_the_middle(draft: Draft) -> list[str]:
    found = []
    texts = draft.drawn("passages")
    for question, text in zip(draft.questions(), texts, strict=True):
        first, stop, rest = text.partition(". ")
        if not rest:  # a single sentence is split between two words
            words = text.split(" ")
            first, stop = " ".join(words[: len(words) // 2]), " "
            rest = " ".join(words[len(words) // 2 :])
        found.append(f"{first}{stop}{question} {rest}")
    return found


def _wordings(key: str) -> Callable[[Draft], list[str]]:
    """Return a recipe that consists of wordings only."""

    def write(draft: Draft) -> list[str]:
        return draft.drawn(f"{key}, reworded" if draft.reworded else key)

    return write


_orders = _wordings("orders")


def _claims(draft: Draft) -> list[str]:
    texts = _wordings("claims")(draft)
    return texts if draft.reworded else [f"{draft.target.question} {text}" for text in texts]


def _carried(draft: Draft) -> list[str]:
    """Return orders in the middle of clean texts."""
    found = []
    for number, order in enumerate(_orders(draft)):
        sentences = _SENTENCE_ENDS.split(draft.carrier(number))
        sentences.insert(int(draft.rng.integers(len(sentences) + 1)), order)
        found.append(" ".join(sentences))
    return found


# Places that browsers and editors do not show: the published ones, and less known ones.
_HIDING = (
    lambda text, order: f'{text} <span style="display:none">{order}</span>',
    lambda text, order: f"{text} <!-- {order} -->",
    lambda text, order: text + "".join(chr(0xE0000 + ord(c)) for c in order if c.isascii()),
)
_HIDING_ELSEWHERE = (
    lambda text, order: f"{text}\n\n[//]: # ({order})",
    lambda text, order: f'<div data-note="{order}">{text}</div>',
    lambda text, order: f'<p title="{order}">{text}</p>',
)


def _hidden(draft: Draft) -> list[str]:
    """Return orders behind clean texts, where readers do not see them."""
    ways = _HIDING_ELSEWHERE if draft.reworded else _HIDING
    return [
        ways[number % len(ways)](draft.carrier(number), order)
        for number, order in enumerate(_orders(draft))
    ]


def _clones(draft: Draft) -> list[str]:
    (text,) = draft.drawn("passages", 1)
    if not draft.reworded:
        return [text] * draft.n
    seeds = draft.rng.integers(2**32, size=draft.n).tolist()
    copies = [vary_phrase(text, 1, seed)[0] for seed in seeds]
    return [f"{q} {copy}" for q, copy in zip(draft.questions(), copies, strict=True)]


def _trigger(draft: Draft) -> list[str]:
    """Return clean texts with one phrase of three words planted in each, or variations of it."""
    words = tuple(dict.fromkeys(WORDINGS["triggers"]))
    phrase = " ".join(draft.rng.choice(words, PHRASE, replace=False))
    phrases = [phrase] * draft.n
    if draft.reworded:
        phrases = vary_phrase(phrase, draft.n, int(draft.rng.integers(2**32)))
    found = []
    for number, planted in enumerate(phrases):
        words_around = draft.carrier(number).split(" ")
        at = int(draft.rng.integers(len(words_around) + 1))
        found.append(" ".join([*words_around[:at], planted, *words_around[at:]]))
    return found


def _gibberish(draft: Draft) -> list[str]:
    between = ", " if draft.reworded else " "
    tokens = WORDINGS["tokens"]
    return [
        f"{between.join(draft.rng.choice(tokens, _N_TOKENS))} {text}"
        for text in draft.drawn("passages")
    ]


_POISONED_RAG = "Zou et al., PoisonedRAG, USENIX Security 2025"
_GRESHAKE = "Greshake et al., Not what you've signed up for, AISec 2023"
_RAGDEFENDER = "Kim et al., Rescuing the Unpoisoned, ACSAC 2025"
_OTHER_QUESTION = (
    f"the question in other words and without its form (after the paraphrases of {_RAGDEFENDER})"
)
_QUIET_ORDERS = (
    "orders as conventions that address nobody (after Zhan et al., Adaptive Attacks Break "
    "Defenses Against Indirect Prompt Injection, Findings of NAACL 2025)"
)


BLENDED = (
    "its sentences stand apart in a clean text, another one for each (after the semantic "
    f"dispersion of {_RAGDEFENDER})"
)

ATTACKS: tuple[Attack, ...] = (
    *(
        Attack(
            name=f"PoisonedRAG, question {where}",
            size=5,
            source=_POISONED_RAG,
            write=write,
            reworded=_OTHER_QUESTION,
        )
        for where, write in (
            ("in front", _in_front),
            ("at the end", _at_the_end),
            ("in the middle", _in_the_middle),
        )
    ),
    Attack(
        name="PoisonedRAG, without the question",
        size=5,
        source=_POISONED_RAG,
        write=_raw,
        reworded=(
            "each text with other words of the question left out (after the synonyms "
            f"of {_RAGDEFENDER})"
        ),
    ),
    Attack(
        name="CorruptRAG",
        size=1,
        source="Zhang et al., Practical Poisoning Attacks against RAG, arXiv:2504.03957",
        write=_claims,
        reworded=(
            "no question in front, and a plain statement without a word of other "
            "sources (as its variant CorruptRAG-AK)"
        ),
    ),
    Attack(
        name="AuthChain",
        size=1,
        source="Chang et al., One Shot Dominance, Findings of EMNLP 2025",
        write=_wordings("authority"),
        reworded="the authority is told of in passing, and rejects nothing; no public source",
    ),
    Attack(
        name="blockers",
        size=1,
        source="Shafran et al., Machine Against the RAG, USENIX Security 2025",
        write=_wordings("blockers"),
        reworded=(
            "no question in front, and no refusal: a text that says that nothing is "
            "known; no public source"
        ),
    ),
    Attack(
        name="instructions",
        size=1,
        source=_GRESHAKE,
        write=_orders,
        reworded=_QUIET_ORDERS,
    ),
    Attack(
        name="instructions in clean texts",
        size=1,
        source=_GRESHAKE,
        write=_carried,
        for_question=False,
        reworded=_QUIET_ORDERS,
        blends=False,
    ),
    Attack(
        name="hidden instructions",
        size=1,
        source=_GRESHAKE,
        write=_hidden,
        for_question=False,
        reworded=(
            f"{_QUIET_ORDERS}, in attributes and in notes of Markdown instead of "
            "comments, styles and invisible characters"
        ),
        blends=False,
    ),
    Attack(
        name="clones",
        size=5,
        source="copies of one text under many names",
        write=_clones,
        reworded=(
            "each copy under another opening, with a word replaced, added or left "
            "out; no public source"
        ),
    ),
    Attack(
        name="planted phrase",
        size=10,
        source="Chen et al., AgentPoison, NeurIPS 2024",
        write=_trigger,
        for_question=False,
        reworded=(
            "the phrase with a word replaced, added or left out in each text; no public source"
        ),
        blends=False,
    ),
    Attack(
        name="gibberish",
        size=1,
        source="Zhong et al., Poisoning Retrieval Corpora, EMNLP 2023",
        write=_gibberish,
        reworded="a comma behind every token (docs/limits.md); no public source",
    ),
    Attack(
        name="opinions",
        size=5,
        source="Chen et al., FlippedRAG, CCS 2025",
        write=_wordings("opinions"),
        reworded="told as what others came to think; no public source",
    ),
)
BY_NAME: Mapping[str, Attack] = {attack.name: attack for attack in ATTACKS}


def flip_labels(entries: Batch, n: int, seed: int = 0) -> tuple[list[Planted], NDArray[np.intp]]:
    """Return entries with another label of the batch, and the rows of their originals.

    Parameters
    ----------
    entries
        Clean entries. Those without a text or a label are left alone.
    n
        Maximum number of entries; none are made if there are fewer than two labels.
    seed
        Seed of the draw of entries and labels, each label as likely as any other.

    Returns
    -------
    tuple[list[Planted], NDArray[np.intp]]
        Single texts without a question; and their rows, shape (n_flipped,).

    Examples
    --------
    >>> batch = Batch.of(ids=["a", "b"], texts=["one", "two"], embeddings=[[1.0], [1.0]],
    ...                  labels=["ham", "spam"])
    >>> [(each.texts, each.labels) for each in flip_labels(batch, 2)[0]]
    [(('one',), ('spam',)), (('two',), ('ham',))]
    """
    rng = np.random.default_rng(seed)
    labels = sorted({label for label in entries.labels if label is not None})
    fit = [row for row in range(len(entries)) if entries.labels[row] and entries.texts[row].strip()]
    if len(labels) < 2:  # noqa: PLR2004 - there is no other label
        fit = []
    rows = rng.permutation(np.array(fit, dtype=np.intp))[:n]
    planted = []
    for row in rows:
        others = [label for label in labels if label != entries.labels[row]]
        wrong = others[int(rng.integers(len(others)))]
        planted.append(
            Planted(attack=LABEL_FLIPS, question=None, texts=(entries.texts[row],), labels=(wrong,))
        )
    return planted, rows
