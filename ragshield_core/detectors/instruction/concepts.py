"""Model of the ideas in an instruction to a model, with a weight for each combination of ideas.

Rules find wordings; an author who words the same order differently passes them. This module reduces
a sentence to its ideas (the addressee, the controlled object, the verb and its mood, the
condition), and a logistic model of ideas, of their order and of pairs of them tells an order to a
model from an order to a person. Words, in seven languages, and weights are in a data file.

The weights were fitted by logistic regression (scikit-learn, L2) on orders to models and to people
that were written for this project, against passages of public corpora; the stretch of each text
that the model itself finds most suspicious counts (multiple-instance learning). Log-odds are
shifted so that 0 is convincing. Those texts were not kept. ``benchmarks/fit_instruction_model.py``
fits weights in the same way on texts that were kept; these weights find fewer attacks in unseen
wordings, so that the older ones stay (``benchmarks/results/instruction_model.md``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from importlib.resources import files
from itertools import chain, islice
from operator import or_
from typing import Any

from ragshield_core.text.characters import CJK
from ragshield_core.text.lexicon import Lexicon

LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "zh")
# At most this many sentences are read together, and more than two only up to JOINED_LENGTH.
MAX_JOINED = 5
MAX_REASONS = 4
# Number of ideas from which a sentence is read closely.
MIN_IDEAS = 2
# Number of English function words that settle the language in a text that is usually English.
ENOUGH_VOTES = 3
# Number of words that decide the language of a text.
MAX_LANGUAGE_WORDS = 200
JOINED_LENGTH = 220
# Number of sentences without an order from which the rest of a text counts as statements.
MIN_STATEMENTS = 2
# More words contain more ideas by chance: each doubling of a stretch beyond this many characters
# takes so much of the log-odds.
USUAL_LENGTH, PER_DOUBLING = 100, 2.0

_CJK = re.compile(f"[{CJK}]")
# Marks between letters, as in "don't", are not tokens.
_TOKEN = re.compile(r"[a-z0-9]+|[^\s\w'-]|(?<![a-z0-9])['-]|['-](?![a-z0-9])")
_OPENING = frozenset(
    ".,;:!?\"'()[]{}<>*#|-/>`~=\u2026\u3002\uff0c\uff1b\uff1a\uff01\uff1f\u3001\u201c\u2014\u2013\u2022"
)
# Words that may precede an imperative.
_LEADING = frozenset(
    re.split(
        " ",
        "please kindly now and then just simply but or also so always never immediately first "
        "instead not don t dont ok pls bitte und dann jetzt nun aber oder auch immer et puis alors "
        "maintenant mais ou aussi toujours ne n desormais y luego ahora pero tambien siempre no "
        "despues e poi ora ma anche sempre non adesso depois agora mas tambem nao "
        "\u8bf7 \u7acb \u5373 \u76f4 \u63a5 \u5e76 \u518d \u53ea \u7136 \u540e \u5219 \u8981 "
        "\u5c31 \u90fd \u987b \u52a1 \u5fc5 \u8bf7\u52ff \u5fc5\u987b \u52a1\u5fc5 \u53ea\u80fd "
        "\u4e00\u5f8b \u76f4\u63a5 \u73b0\u5728 \u4e0d\u8981",
    )
)
_LABEL = re.compile(
    r"(?:^|\n)[\s\[(<{#*_=>\"'-]{0,8}(?:system|assistant|user|human|ai|bot|model|developer|operator|"
    r"admin|root|sistema|systeme|asistente|assistente|assistent|utilisateur|usuario|utente|tool|"
    r"instructions?|role|persona|rolle|prompt|trigger|emit|audience|directive|override|action|"
    r"function|policy|response|next|message|admin\w{1,12}|system\w{1,12}|mensaje|messaggio|mensagem"
    r"|\u7cfb\u7edf\S{0,3}|\u52a9\u624b|\u7528\u6237|\u5de5\u5177)"
    r"[\w ,./-]{0,24}[\])>}*\"'_]{0,4}\s?[:>\]\u3011\uff1a]"
)
_PLACEHOLDER = re.compile(
    r"[?&/][\w.-]{0,24}=?(?:[{<\[$%]|[a-z_]{0,8}[A-Z][A-Z_]{3,})|\{\{|\$\{|=[\"']?\s?(?:$|\s|\uff1f)"
)
_URL = re.compile(
    r"https?://|www\.|//[a-z0-9-]{2,40}\.|\b[a-z0-9-]{2,40}\.[a-z]{2,12}/"
    r"|\b[a-z0-9-]{2,40}\.(?:com|net|org|io|dev|app|info|example|test)\b"
)
_PART_OF_URL = re.compile(r"\.[a-z]|//|www\.")  # a faster first test


def _url(plain: str) -> bool:
    return bool(_PART_OF_URL.search(plain) and _URL.search(plain))


# Name of each sign, substrings one of which a sentence needs (a faster first test), and the test.
_SIGNS: tuple[tuple[str, tuple[str, ...], Callable[[str], object]], ...] = (
    ("url", (".",), _url),
    ("query_string", ("?",), re.compile(r"\?[\w-]{1,24}=").search),
    ("image", ("!", "<"), re.compile(r"!\[|<img").search),
    ("label", (":", "]", ">", "\uff1a", "\u3011"), _LABEL.search),
    ("key", (":",), re.compile(r"(?:^|\n|[{,])\s?[\"']?[a-z_]{2,24}[\"']?\s?:\s").search),
    ("tag", ("<",), re.compile(r"<[|/\[<]?[a-z\u4e00-\u9fff_]{2,24}").search),
    ("comment", ("<!--",), re.compile("<!--").search),
    ("comment", ("# ", "// "), re.compile("#|//").match),
    ("bracket", ("",), re.compile(r"[\[(*=<-]").match),
    ("identifier", ("_",), re.compile(r"\b[a-z]{2,20}_[a-z_]{2,30}\b").search),
    ("address", ("@",), re.compile(r"[\w.-]{1,40}@[\w-]{1,40}\.").search),
    ("question_mark", ("?", "\uff1f"), re.compile("[?\uff1f]").search),
)
_CALLING = frozenset(",:\uff0c\uff1a")
_QUOTES = frozenset("\"'\u201c\u300c`\u300e\u201d")
# Ideas whose verb names an action; only these have a mood.
ACTS = (
    "say",
    "compose",
    "promote",
    "dismiss",
    "call",
    "send",
    "refuse",
    "reveal",
    "prefer",
    "role",
)
# Pairs of ideas, the second after the first within this many tokens.
ORDERED: tuple[tuple[str, str, int], ...] = (
    ("ai", "must", 5), ("helper", "must", 4), ("note", "ai", 5), ("note", "helper", 4),
    ("note", "user", 3), ("your", "reply", 3), ("your", "orders", 4), ("your", "meta", 3),
    ("your", "boss", 3), ("dismiss", "orders", 8), ("dismiss", "meta", 8), ("dismiss", "prior", 6),
    ("dismiss", "sources", 6), ("prior", "orders", 5), ("orders", "revoked", 12),
    ("prior", "revoked", 10), ("sources", "wrong", 8), ("wrong", "sources", 4),
    ("newest", "sources", 4), ("thisdoc", "newest", 8), ("sources", "newest", 6),
    ("say", "user", 4), ("say", "person", 3), ("say", "customer", 4), ("promote", "user", 4),
    ("reply", "must", 8), ("reply", "quote", 8), ("say", "quote", 6), ("compose", "quote", 8),
    ("cond", "ask", 8), ("cond", "user", 4), ("cond", "query", 5), ("cond", "ai", 5),
    ("cond", "customer", 5), ("ask", "say", 16), ("query", "say", 16), ("query", "reply", 14),
    ("whatever", "query", 4), ("whatever", "reply", 4), ("whatever", "orders", 4),
    ("compose", "genre", 7), ("compose", "reply", 6), ("compose", "private", 7),
    ("send", "private", 8), ("send", "meta", 8), ("send", "reply", 7), ("reveal", "meta", 6),
    ("reveal", "private", 6), ("reveal", "orders", 6), ("call", "tool", 6), ("you", "role", 4),
    ("you", "must", 3), ("refuse", "query", 6), ("refuse", "reply", 4), ("refuse", "thisdoc", 8),
    ("prefer", "thisdoc", 5), ("only", "thisdoc", 5), ("done", "next", 12), ("me", "please", 4),
    ("compose", "me", 5), ("say", "only", 4), ("only", "say", 4), ("ai", "refuse", 10),
    ("helper", "refuse", 10), ("ai", "say", 8), ("helper", "say", 8), ("ai", "prefer", 8),
    ("user", "reply", 6), ("must", "conceal", 6), ("prior", "meta", 5), ("boss", "orders", 5),
    ("ai", "thisdoc", 8), ("reply", "query", 8), ("next", "say", 8), ("next", "compose", 6),
    ("reply", "shape", 8), ("shape", "quote", 5), ("compose", "only", 4), ("only", "compose", 4),
    ("whatever", "ask", 5), ("user", "say", 8), ("query", "must", 8), ("only", "quote", 5),
    ("compose", "user", 5), ("send", "user", 6), ("instead", "say", 6), ("compose", "instead", 9),
    ("must", "reply", 6), ("neg", "reply", 5), ("please", "say", 4), ("please", "compose", 4),
)  # fmt: skip
MUST_REACH = 6


@dataclass(frozen=True, slots=True)
class Idea:
    """The stretch of sentences whose ideas are most suspicious."""

    logit: float  # log-odds of an instruction to a model against other text
    lasting: float  # the same, reduced for a long stretch
    span: tuple[int, int]  # of the stretch, in characters of the plain text
    mask: int  # the ideas found there, as bits

    def reasons(self) -> tuple[str, ...]:
        """Return the ideas, or pairs of ideas, with the most weight, the heaviest first."""
        return tuple(model().reasons(self.mask)[:MAX_REASONS])


class IdeaModel:
    """Ideas, their words, and the weights of their combinations."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.names: list[str] = [
            *data["concepts"],
            "quote",
            *dict.fromkeys(name for name, _, _ in _SIGNS),
            "placeholder",
            *(f"imperative {act}" for act in ACTS),
            *(f"obligation {act}" for act in ACTS),
            "model named first",
            "order among statements",
            "answer on condition",
            "answer dictated",
            *(f"{first} then {second}" for first, second, _ in ORDERED),
        ]
        self.number = {name: number for number, name in enumerate(self.names)}
        self.signs = [(1 << self.number[name], hints, found) for name, hints, found in _SIGNS]
        self.stopwords: dict[str, frozenset[str]] = {
            language: frozenset(words.split()) for language, words in data["stopwords"].items()
        }
        phrases = {
            language: [
                (phrase, 1 << self.number[concept])
                for concept, words in data["concepts"].items()
                for phrase in "|".join(
                    words[key] for key in ("any", language) if words.get(key)
                ).split("|")
            ]
            for language in LANGUAGES
            if language != "zh"
        }
        self.lexicons = {language: Lexicon(listed) for language, listed in phrases.items()}
        self.all_languages = Lexicon(chain.from_iterable(phrases.values()))
        self.chinese: dict[str, int] = {}
        for concept, words in data["concepts"].items():
            for phrase in filter(None, words.get("zh", "").lower().split("|")):
                self.chinese[phrase] = self.chinese.get(phrase, 0) | 1 << self.number[concept]
        longest = sorted(self.chinese, key=len, reverse=True)
        self.chinese_token = re.compile(
            "|".join(map(re.escape, longest)) + rf"|[a-z0-9]+|[{CJK}]|[^\s\w]"
        )
        self.orders = self.mask(
            f"{mood} {act}" for mood in ("imperative", "obligation") for act in ACTS
        )
        self.must = self.mask(("must",))
        self.models = self.mask(("ai", "helper"))
        self.addressed = self.mask(("note", "please", "must"))
        self.demands = self.must | self.orders
        self.lone = self.mask(("order among statements",))
        self.acting = self.mask(ACTS)
        self.acts = [
            tuple(self.mask((name,)) for name in (act, f"imperative {act}", f"obligation {act}"))
            for act in ACTS
        ]
        self.openings = self.mask(("say", "compose", "promote", "call", "dismiss"))
        self.asked = self.mask(("query", "ask", "cond", "whatever"))
        self.spoken = self.mask(("reply", "say"))
        self.anchors = self.mask(data["anchors"])
        self.ordered = [
            (1 << self.number[a], 1 << self.number[b], reach, 1 << self.number[f"{a} then {b}"])
            for a, b, reach in ORDERED
        ]
        self.bias = float(data.get("bias", 0.0))
        self.single: dict[int, float] = {}
        self.pairs: dict[int, dict[int, float]] = {}
        for name, weight in data.get("weights", {}).items():
            if " + " in name:
                low, high = sorted(self.number[part] for part in name.split(" + "))
                self.pairs.setdefault(low, {})[high] = weight
            else:
                self.single[self.number[name]] = weight
        self.logit = lru_cache(maxsize=50_000)(self._logit)
        self.gate: dict[int, float] = {
            self.number[name]: weight for name, weight in data["gate"].items()
        }
        self.gate_bias = float(data["gate_bias"])
        self.dull = lru_cache(maxsize=50_000)(self._dull)

    def mask(self, names: Iterable[str]) -> int:
        """Return ideas as bits."""
        return sum(1 << self.number[name] for name in names)

    def _few(self, mask: int) -> bool:
        """Return whether a sentence has too few ideas to be an order."""
        return (mask & self.anchors).bit_count() < MIN_IDEAS

    def _dull(self, mask: int) -> bool:
        """Return whether a sentence has too few ideas for their order to matter."""
        if self._few(mask):
            return True
        return self.gate_bias + sum(self.gate.get(n, 0.0) for n in _numbers(mask)) < 0.0

    def _logit(self, mask: int) -> float:
        present = _numbers(mask)
        total = self.bias
        for number in present:
            total += self.single.get(number, 0.0)
            pairs = self.pairs.get(number)
            if pairs:
                total += sum(map(pairs.__getitem__, filter(pairs.__contains__, present)))
        return total

    def reasons(self, mask: int) -> list[str]:
        """Return the ideas and pairs that are evidence of an instruction, the heaviest first."""
        present = _numbers(mask)
        weights = {self.names[n]: self.single.get(n, 0.0) for n in present}
        for number in present:
            for other, weight in self.pairs.get(number, {}).items():
                if other in present:
                    weights[f"{self.names[number]} + {self.names[other]}"] = weight
        return sorted((n for n, w in weights.items() if w > 0), key=lambda name: -weights[name])

    def language(self, words: Sequence[str]) -> str:
        """Return the language with the most function words among these words, then most ideas."""
        votes, near = self._near(words, None)
        return near[0] if len(near) == 1 else self._most(words, votes, near)[0]

    def _read(self, words: Sequence[str], usual: str) -> list[int]:
        """Return the ideas of each word in the language of the words, none if they are too few."""
        if usual == "en" and len(self.stopwords["en"].intersection(words)) >= ENOUGH_VOTES:
            return self.lexicons["en"].ideas(words)
        # Most sentences have too few ideas in all languages together.
        if self._few(reduce(or_, self.all_languages.ideas(words), 0)):
            return []
        return self._most(words, *self._near(words, usual))[1]

    def _near(self, words: Sequence[str], usual: str | None) -> tuple[dict[str, int], list[str]]:
        """Return the votes for each language, and the languages that words may be in."""
        there = frozenset(words)
        votes = {
            language: 2 * len(stopwords & there) + (language == usual)
            for language, stopwords in self.stopwords.items()
        }
        # One vote is not decisive: the only function word of a short order may be in two languages.
        least = max(votes.values()) - 1
        return votes, [language for language, count in votes.items() if count >= least]

    def _most(
        self, words: Sequence[str], votes: Mapping[str, int], near: Sequence[str]
    ) -> tuple[str, list[int]]:
        """Return the language in which words have most ideas, and the ideas of each word."""
        found = {language: self.lexicons[language].ideas(words) for language in near}
        return max(found.items(), key=lambda item: (sum(map(bool, item[1])), votes[item[0]]))

    def ideas(self, plain: str, original: str, words: Sequence[str], usual: str) -> int:
        """Return the ideas of one sentence as bits, 0 if it has too few.

        ``plain`` is in lower case without marks; ``usual`` is the language of the text around.
        """
        if not plain.isascii() and _CJK.search(plain):
            tokens = self.chinese_token.findall(plain)
            english = self.lexicons["en"].bits
            bits = [self.chinese.get(token, 0) or english(token) for token in tokens]
            if self.dull(reduce(or_, bits, 0)):
                return 0
        else:
            bits = self._read(words, usual)
            mask = reduce(or_, bits, 0)
            if self._few(mask) or (self.dull(mask) and not bits[0] & self.openings):
                return 0
            tokens = _TOKEN.findall(plain)
            left = iter(bits)
            bits = [next(left) if token[0].isalnum() else 0 for token in tokens]
        return self._syntax(tokens, bits) | self._signs_of(plain, original)

    def _signs_of(self, plain: str, original: str) -> int:
        """Return the signs in a sentence, such as addresses and labels, as bits."""
        bits = 0
        for bit, hints, found in self.signs:
            for hint in hints:
                if hint in plain:
                    bits |= bit if found(plain) else 0
                    break
        if ("=" in plain or "{" in plain) and _PLACEHOLDER.search(original):
            bits |= 1 << self.number["placeholder"]
        return bits

    def _syntax(self, tokens: Sequence[str], bits: Sequence[int]) -> int:
        """Return the ideas of tokens, their mood and their order."""
        quote = 1 << self.number["quote"]
        marked = [
            (at, each | quote if token in _QUOTES else each)
            for at, (token, each) in enumerate(zip(tokens, bits, strict=True))
            if each or token in _QUOTES
        ]
        mask = reduce(or_, (each for _, each in marked), 0)
        mask |= self._moods(tokens, bits, marked)
        if mask & self.spoken and mask & self.demands:
            if mask & self.asked:
                mask |= 1 << self.number["answer on condition"]
            if mask & (quote | 1 << self.number["only"]):
                mask |= 1 << self.number["answer dictated"]
        for one, other, reach, both in self.ordered:
            if mask & one and mask & other and _follows(marked, one, other, reach):
                mask |= both
        return mask

    def _moods(
        self, tokens: Sequence[str], ideas: Sequence[int], marked: Sequence[tuple[int, int]]
    ) -> int:
        """Return the acts in the imperative or an obligation, and whether a model is addressed."""
        mask, obliged = 0, -MUST_REACH - 1
        for at, bits in marked:
            word = tokens[at - 1] if at else "."
            first = word in _OPENING or word in _LEADING
            near = at - obliged <= MUST_REACH
            if bits & self.acting and (first or near):
                for act, imperative, obligation in self.acts:
                    if bits & act:
                        mask |= (imperative if first else 0) | (obligation if near else 0)
            if bits & self.must:
                obliged = at
            called = at + 1 < len(tokens) and tokens[at + 1] in _CALLING
            by_name = first or (at > 0 and bool(ideas[at - 1] & self.addressed))
            if bits & self.models and called and by_name:
                mask |= 1 << self.number["model named first"]
        return mask


@cache
def model() -> IdeaModel:
    """Return the model of the data file."""
    file = files(__package__).joinpath("concepts.json")
    return IdeaModel(json.loads(file.read_text(encoding="utf-8")))


def windows(
    known: IdeaModel, masks: Sequence[int], spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return stretches of sentences: ideas, first sentence, last sentence (included).

    A text that gives orders throughout is a manual or an exam. One order among statements is out of
    place, which is an idea of its own.
    """
    found = []
    orders = [at for at, mask in enumerate(masks) if mask & known.orders]
    if orders and len(masks) - (orders[-1] - orders[0] + 1) >= MIN_STATEMENTS:
        lone = (orders[0], orders[-1], known.lone)
    else:
        lone = (len(masks), -1, 0)
    for at, own in enumerate(masks):
        if not own:
            continue
        mask = 0
        for last in range(at, min(at + MAX_JOINED, len(masks))):
            if last > at + 1 and spans[last][1] - spans[at][0] > JOINED_LENGTH:
                break
            mask |= masks[last]
            if masks[last]:
                inside = at <= lone[0] and lone[1] <= last
                found.append((mask | (lone[2] if inside else 0), at, last))
    return found


def stretches(
    known: IdeaModel,
    plain: str,
    original: str,
    spans: Sequence[tuple[int, int]],
    words: Sequence[Sequence[str]],
) -> list[tuple[int, int, int]]:
    """Return the :func:`windows` of a text, from the arguments of :func:`strongest`."""
    usual = known.language(list(islice(chain.from_iterable(words), MAX_LANGUAGE_WORDS)))
    masks = [
        known.ideas(plain[start:end], original[start:end], listed, usual)
        for (start, end), listed in zip(spans, words, strict=True)
    ]
    return windows(known, masks, spans)


def strongest(
    plain: str,
    original: str,
    spans: Sequence[tuple[int, int]],
    words: Sequence[Sequence[str]],
) -> Idea | None:
    """Return the stretch of sentences that reads most like an instruction to a model.

    ``plain`` is the text in lower case without marks, with the same length as ``original``;
    ``words`` are those of each sentence. None if no sentence holds two ideas.
    """
    known = model()
    best: Idea | None = None
    for mask, first, last in stretches(known, plain, original, spans, words):
        logit, (start, end) = known.logit(mask), (spans[first][0], spans[last][1])
        lasting = logit - PER_DOUBLING * math.log2(max(1.0, (end - start) / USUAL_LENGTH))
        if best is None or lasting > best.lasting:
            best = Idea(logit, lasting, (start, end), mask)
    return best


def _numbers(mask: int) -> list[int]:
    numbers = []
    while mask:
        low = mask & -mask
        numbers.append(low.bit_length() - 1)
        mask ^= low
    return numbers


def _follows(marked: Sequence[tuple[int, int]], one: int, other: int, reach: int) -> bool:
    last = -reach - 1
    for at, bits in marked:
        if bits & other and 0 < at - last <= reach:
            return True
        if bits & one:
            last = at
    return False
