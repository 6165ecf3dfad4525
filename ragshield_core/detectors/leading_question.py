"""Entries that put a question to themselves and answer it, where entries do not usually do so."""
# ruff: noqa: PLR2004 - lengths of words and shares

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.base import Detector, Evidence, Need
from ragshield_core.entries import Batch
from ragshield_core.errors import NotFittedError
from ragshield_core.findings import printable

# What an opening can be, by what it tells; the first that applies.
KINDS = (
    "no question",
    "a short phrase in lower case that comes back",
    "a title that is a question",
    "a question further down",
    "what may be a question",
    "an embedded question",
    "a question without a mark",
    "a marked question without a question word",
    "a marked question",
)
NONE, PHRASE, TITLE, LATER, WEAK, EMBEDDED, UNMARKED, MARKED_OTHER, MARKED = range(len(KINDS))
# How often an entry that was made for a question is of each kind, and, of that kind, starts in
# lower case, runs into its answer without a space ("...?.The"), and repeats the words of its
# question. Broad guesses, not fitted to any attack: each trait is about as likely as not, so that
# an attacker who avoids it gains a bit and no more.
_ATTACK_KIND = np.array([0.02, 0.04, 0.01, 0.06, 0.06, 0.1, 0.25, 0.1, 0.4])
_ATTACK_LOWER = np.array([0.5, 1.0, 0.1, 0.2, 0.5, 0.4, 0.5, 0.2, 0.25])
_ATTACK_GLUED = np.array([0.5, 0.4, 0.1, 0.1, 0.4, 0.4, 0.4, 0.3, 0.3])
_ATTACK_ECHO = np.array([0.1, 0.13, 0.17, 0.25, 0.2, 0.15])
# What is assumed of a knowledge base before anything is known of it, and how many entries that
# assumption is worth.
_PRIOR_KIND = np.array([0.88, 0.02, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01, 0.01])
_PRIOR_LOWER, _PRIOR_GLUED = 0.05, 0.01
_PRIOR_ECHO = np.array([0.25, 0.25, 0.25, 0.12, 0.08, 0.05])
_WORTH = 10.0

_OPENING = 600  # characters in which the first question is looked for
_LONGEST = 60  # words of a question
_CODE = re.compile(r"[(){}\[\]=<>;:|\\$&`_/]")
_SHORT = 15  # words of a phrase that might be one


class Opening(NamedTuple):
    """What a text opens with."""

    kind: int  # index into KINDS
    lower: bool  # starts in lower case
    glued: bool  # runs into the next sentence without a space
    echo: int  # how many of its words come back, 0 to 5
    span: tuple[int, int]  # of the question, or of the first sentence
    n_words: int = 0  # content words of the question
    n_back: int = 0  # of these, come back in the rest of the text


# Words that open questions, in English, German, French, Spanish, Italian, Portuguese, Russian.
_WH = (
    "who|whom|whose|who's|what|what's|when|where|where's|which|why|how"
    "|wer|wem|wen|wessen|wann|welche[rsmn]?|warum|wieso|weshalb|woher|wohin|wieviele?"
    "|quand|quel|quelle|quels|quelles|comment|combien|pourquoi|qu'est-ce|est-ce|où"
    "|quién|quiénes|qué|cuándo|dónde|cuál|cuáles|cómo|cuánto|cuánta|cuántos|cuántas"
    "|chi|cosa|quando|dove|dov'è|quale|quali|quanto|quanta|quanti|quante|perché|qual"
    "|quem|quais|onde|quantos|quantas"
    "|кто|кого|кому|что|когда|где|куда|откуда|какой|какая|какое|какие|каком|сколько|почему|зачем"
)
# These open statements just as well.
_WH_WEAK = "was|wo|wie|wen|qui|que|où|come|che|como|quanto|quando|как|чем"
_BE = "is|are|was|were|am|isn't|aren't|wasn't|weren't"
_DO = "do|does|did|don't|doesn't|didn't"
_MODAL = "can|could|will|would|has|have|had|should|shall|may|might|must|can't|won't|hasn't"
_AUX = f"{_BE}|{_DO}|{_MODAL}"
_PREPOSITION = (
    "in|on|at|for|from|to|of|by|with|under|during|since|until|about|into|through|after|before"
    "|auf|aus|bei|mit|von|zu|seit|dans|de|à|avec|pour|par|en|con|por|para|desde|di|da|per|su|em"
    "|a|с|в|на|из|к|о"
)
_WH_START = re.compile(rf"(?:(?:{_PREPOSITION})\s)?(?:{_WH}|{_WH_WEAK})\b", re.IGNORECASE)
_AUX_START = re.compile(rf"(?:{_AUX})\b", re.IGNORECASE)
# Not what a question word asks for.
_NOT_ASKED = (
    rf"(?!(?:{_BE}|{_MODAL}|{_DO}|he|she|it|they|we|i|you|his|her|its|their|our|the|a|an|this|that"
    r"|these|those|to|now|became|all|some|many|most|both|each|one|two|people|in|on|at|by)\b)"
)
# Without a mark: a question word and a verb that comes before its subject, or a measure.
_STRONG = re.compile(
    rf"(?:(?:who|whom|whose|who's|what's|where's|why)\b"
    rf"|(?:please\s)?tell\s(?:me|us)\b|name\sthe\b|i\s(?:(?:was|am)\s)?wonder(?:ing)?\b"
    rf"|(?:what|where|when|how)\s(?:{_AUX})\b"
    rf"|(?:what|which)\s{_NOT_ASKED}(?:\S{{1,20}}\s){{1,6}}(?:{_AUX})\b"
    rf"|which\s{_NOT_ASKED}\w{{1,20}}\s"
    rf"|how\s(?:many|much|long|old|far|tall|big|large|high|deep|often|fast|hot|wide|heavy|late)\b"
    rf"|(?:{_PREPOSITION})\s(?:what|whom|whose|which\s\w{{1,20}}\s(?:{_AUX})|how\s(?:many|much))\b"
    rf"|(?!(?:do|have)\s(?:the|it|this|that)\b)(?:{_DO}|is|are|was|were|can|could|will|would|has|have|should)\s(?:the|there|it|this|that"
    rf"|these|those|all|both|any|you|we|they|he|she|i|my|your)\s(?!is\b|are\b|was\b)"
    rf"|(?:wer|wann|warum|wieso|weshalb|woher|wohin|welche[rsn]?|wieviele?|wie\s(?:viele?|alt|hoch"
    rf"|lang|groß|heißt|heisst)|was\s(?:ist|sind|war)|wo\s(?:ist|sind|war|liegt|wurde))\s"
    rf"|(?:qui\s(?:est|a|sont|était)|quand|quel(?:le)?s?|comment|combien|pourquoi|qu'est-ce|est-ce"
    rf"|où\s(?:est|se|sont|a))\s"
    rf"|(?:quiénes?|qué|cuándo|dónde|cuáles|cuál|cómo|cuánt[oa]s?)\s"
    rf"|(?:chi\s(?:è|ha|sono|era|fu)|dove\s(?:è|si|sono)|dov'è|quale?\s|quali\s|quanti\s|quante\s"
    rf"|che\scos|cosa\s(?:è|sono)|perché\s|quando\s(?:è|fu|sono))"
    rf"|(?:quem|quais|quantos|quantas|onde\s(?:fica|está|é)|qual\sé)\s"
    rf"|(?:кто|когда|где|куда|откуда|сколько|почему|зачем|как(?:ой|ая|ое|ие))\s)",
    re.IGNORECASE,
)
# In the middle: "was written by whom", "is based in which city", or at the end: "ended when".
_MID = re.compile(
    rf"\s(?:(?:by|in|of|for|with|to|on|from|as|under|at)\s(?:who|whom|what|how\smany)\b"
    rf"|(?:{_BE})\s(?:who|whom|what|which|where|when)\b"
    rf"|(?:which|what|who)\s(?:\w{{1,20}}\s){{0,2}}(?:{_AUX})\b"
    rf"|(?:what|which)\s{_NOT_ASKED}\w{{1,20}}(?:\s\w{{1,20}}){{0,3}}$)"
    rf"|\s(?:who|whom|what|when|where|which|why|how)$",
    re.IGNORECASE,
)
_MID_END = re.compile(
    rf"\s(?:who|whom|what|when|where|which|why|how)$"
    rf"|\s(?:(?:by|in|of|for|with|to|on|from|as|under|at|{_BE})\s(?:what|which)"
    rf"\s{_NOT_ASKED}\w{{1,20}}(?:\s\w{{1,20}}){{0,3}}|(?:what|which)\s{_NOT_ASKED}\w{{1,20}})$",
    re.IGNORECASE,
)
_MID_WORDS = frozenset(("who", "whom", "what", "when", "where", "which", "why", "how"))
_VERBS = frozenset(f"{_BE}|do|does|did|has|have|had|can|could|will|would|should".split("|"))
# "Do the test", "Have the form ready".
_IMPERATIVE = dict.fromkeys(("do", "have"), ("the", "this", "that", "it", "your", "fun"))
_NO_SUBJECT = frozenset(
    ("a", "an", "not", "be", "been", "to", "of", "in", "for", "by", "as", "also")
)
_LATER_BE = re.compile(r"\s\S{1,200}\s(?:is|was|are|were)\s", re.IGNORECASE)
# A sentence that stops where its answer should follow: "the capital of the province is."
_OPEN_END = re.compile(r"\s(?:is|are|was|were|of|by|the|in|called|as|from)$", re.IGNORECASE)
_CHINESE = re.compile(
    "谁|什么|哪|何时|何地|多少|吗|为什么|怎么|如何|几[个年月天岁次]|誰|什麼|哪|嗎|為什麼|何[がをの年時人]|どこ|いつ|だれ|なぜ|ですか|ますか"
)

_LEAD = re.compile(
    r"(?:\s{0,8}<[^<>]{1,100}>){0,4}[\s\ufeff#>*_~\"'“”‘’«»„¿¡(\[\-–—•]{0,20}"
    r"(?:(?:\d{1,3}[.)]|(?:q|a?faq|question|query|frage|pregunta|domanda|pergunta|вопрос|问题?|問)"
    r"\s?\d{0,3}\s?[:：.)])[\s*_\"'“¿]{1,6})?",
    re.IGNORECASE,
)
_MARKS = frozenset("?？؟⁇")
_ASIDE = re.compile(r"\[[^\][]{0,80}\]|\([^()?]{0,20}\?[^()?]{0,20}\)")
_WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")
_OTHERS = (
    "the a an and or but not that this these those there their they its it his her he she you your "
    "we our i my me be been being do done any some most more than then as such first last many "
    "much new one two name called der die das ein eine und ist sind le la les un une et est sont "
    "el los las una y es son il lo gli e o os"
)
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]{2,4000}")
_STEM = 5  # letters that two forms of a word have in common
_STOP = frozenset(
    word[:_STEM]
    for word in (*f"{_WH}|{_WH_WEAK}|{_AUX}|{_PREPOSITION}".split("|"), *_OTHERS.split())
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(.])(?:[^\W\d_]|mr|mrs|ms|dr|st|mt|jr|sr|vs|no|vol|inc|ltd|co|prof|gen|col|sgt|lt|gov|sen"
    r"|rep|rev|hon|approx|ca|cf|etc|al|ed|fig|u\.s|e\.g|i\.e)$",
    re.IGNORECASE,
)
_STOPS = re.compile(r"[.!。！](?=[\s\"'”’»)]|$|[^\W\d_])|\n\s{0,9}\n|[?？؟⁇]")
_RUNS_ON = re.compile("[.?!]|[A-Za-z]")
# What goes on after the mark in the same sentence: the title of a work, mostly.
_GOES_ON = re.compile(
    r"[\"'”’»*_)]{0,3}(?:[,;:(]|\s{1,3}(?:\(|(?:is|was|are|were|has|had|and|or|by|in|from|of|on|at"
    r"|with|to|as|for|which|who|that|the|starring|featuring|written|directed)\s))"
)
_BREAK = re.compile(r"\s{0,9}(?:\n|\s[-–—|]\s|[:;]\s)")
_CAPITAL = re.compile(r"(?<=[a-z0-9])\s(?=(?:The|In|It|A|An)\s)")  # after a question in lower case


def opening_of(text: str) -> Opening:
    """Return what a text opens with.

    Parameters
    ----------
    text
        Only its first 600 characters and its last sentence are searched for a question, and 4,000
        for the words of it.
    """
    head = text[:_OPENING]
    if "?" in head and ("[" in head or "(" in head):
        head = _ASIDE.sub(lambda match: " " * len(match[0]), head)
    lead = _LEAD.match(head)
    start = lead.end() if lead else 0
    first: tuple[int, int, str] | None = None
    for n, (begin, end, stop) in enumerate(_sentences(head, start)):
        if stop in _MARKS:
            return _marked(text, head, (begin, end), early=n < 2)
        first = first or (begin, end, stop)
    _, end, stop = first or (start, len(head), "")
    after = head[end + 1 : end + 2]
    glued = stop != "" and after.isascii() and after.isalpha()
    broken = _BREAK.search(head, start, end)  # a heading, or no full stop at all
    if not broken and head[start : start + 1].islower():
        broken = _CAPITAL.search(head, start, end)
    if broken:
        end, glued = broken.start(), False
    kind = _unmarked_kind(head[start:end])
    if kind != NONE:
        opening = _question(text, kind, (start, end), glued=glued)
        if kind != PHRASE or opening.echo > 1:
            return opening
    if len(text) > _OPENING and text.rstrip()[-1:] in _MARKS:
        *_, last = [(0, 0, ""), *_sentences(text, len(text) - _OPENING // 2)]
        if last[2] in _MARKS:
            return _question(text, LATER, (last[0], last[1] + 1), glued=False)
    return Opening(NONE, head[start : start + 1].islower(), glued, 0, (start, end))


def _sentences(text: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield where sentences start and end, and by which mark."""
    begin = start
    for match in _STOPS.finditer(text, start):
        end, stop = match.start(), match[0].strip()
        if stop in _MARKS:
            if not _ends_a_question(text, end):
                continue
        elif stop == "." and _is_abbreviation(text, end):
            continue
        yield begin, end, stop
        begin = match.end()


def _marked(text: str, head: str, span: tuple[int, int], *, early: bool) -> Opening:
    """Return the opening of a text whose first question mark ends a span of it."""
    start, end = span
    glued = bool(_RUNS_ON.match(head, end + 1))
    if _GOES_ON.match(head, end + 1):
        kind = TITLE
    elif not early:
        kind, glued = LATER, False
    else:
        kind = MARKED if _is_direct(head[start:end].lstrip()) else MARKED_OTHER
    return _question(text, kind, (start, end + 1), glued=glued)


def _ends_a_question(head: str, place: int) -> bool:
    """Return whether a question mark stands behind a word, and not in a link."""
    before = head[max(0, place - 40) : place].rpartition(" ")[2]
    after = head[place + 1 : place + 2]
    if "://" in before or "/" in before or after in ("=", "&", "/"):
        return False
    return place > 0 and (head[place - 1].isalnum() or head[place - 1] in " \"'”’»)")


def _is_abbreviation(head: str, place: int) -> bool:
    after = head[place + 1 : place + 2]
    if after.isalpha() and not after.isupper():
        return True  # example.com
    before = head[max(0, place - 8) : place]
    initials = before[-1:].isupper() and after.isupper()
    return initials or bool(_ABBREVIATION.search(before))


def _is_direct(question: str) -> bool:
    """Return whether a sentence with a question mark has a question word, or its verb first."""
    return bool(
        _AUX_START.match(question)
        or any(_WH_START.match(part.lstrip()) for part in re.split("[:,]", question))
        or _MID.search(question)
        or _CHINESE.search(question)
    )


def _unmarked_kind(sentence: str) -> int:
    """Return whether a sentence that no question mark ends is a question nonetheless."""
    words = sentence.split(maxsplit=_LONGEST)
    if len(words) > _LONGEST:
        return NONE
    if not sentence.isascii() and (asks := _CHINESE.search(sentence)):
        return UNMARKED if asks.start() == 0 or asks.end() == len(sentence) else WEAK
    if len(words) < 3:
        return NONE
    if _STRONG.match(sentence) or _is_inverted(sentence, words):
        # "Who Framed Roger Rabbit is a film": a title, or a question in capitals.
        capitals = sum(word[0].isupper() for word in words[1:5])
        title = capitals >= min(3, len(words) - 1) and sentence[0].isupper()
        return TITLE if title and _LATER_BE.search(sentence) else UNMARKED
    if _WH_START.match(sentence) or _AUX_START.match(sentence):
        return WEAK
    lower = sentence[0].islower()
    if not _MID_WORDS.isdisjoint(words) and _MID.search(sentence):
        return EMBEDDED if lower or _MID_END.search(sentence) else WEAK
    if lower and _OPEN_END.search(sentence):
        return EMBEDDED
    return PHRASE if lower and len(words) <= _SHORT and not _CODE.search(sentence) else NONE


def _is_inverted(sentence: str, words: Sequence[str]) -> bool:
    """Return whether the verb stands first, and no other comes where it would stand."""
    return (
        words[0].lower() in _VERBS
        and words[1].lower() not in (*_NO_SUBJECT, *_IMPERATIVE.get(words[0].lower(), ()))
        and not _LATER_BE.search(sentence)
    )


def _question(text: str, kind: int, span: tuple[int, int], *, glued: bool) -> Opening:
    start, end = span
    words = {word for word in _stems(text[start:end]) if word not in _STOP}
    back = len(words & _stems(text[max(0, start - 400) : start] + " " + text[end : end + 4000]))
    share = back / len(words) if words else 0.0
    echo = int(share >= 0.25) if share < 0.5 else 2 + (back > 2) + (back > 4) + (back > 6)
    return Opening(kind, text[start : start + 1].islower(), glued, echo, span, len(words), back)


def _stems(text: str) -> set[str]:
    """Return the beginnings of words, in lower case, and pairs of letters where words touch."""
    stems = {w[:_STEM] for w in _WORD.findall(text.lower()) if len(w) > 2 or w.isdigit()}
    if not text.isascii():
        for run in _UNSPACED.findall(text):
            stems.discard(run[:_STEM])
            stems.update(run[i : i + 2] for i in range(len(run) - 1))
    return stems


# Malformed questions that make up so large a share of a sample that nobody has vouched for are
# taken for poison: fewer hardly change what is usual, more are the habit of those who write there.
DOUBTFUL = (0.0075, 0.03)


class LeadingQuestionDetector(Detector):
    """Look for entries that put a question to themselves and answer it.

    Black-box PoisonedRAG puts the question it is aimed at before the text that answers it wrongly,
    so that the entry is retrieved for that question. Whether that is strange depends on the
    knowledge base: entries of a FAQ open with questions, articles of an encyclopaedia do not.

    The score is a likelihood ratio in bits: how much likelier the opening is for an entry made for
    a question than for an entry of the knowledge base. Of an opening it is known what kind of
    question it is (with a question mark, by its question word, one further down, ...), whether it
    starts in lower case, whether it runs into the answer without a space, and how many of its
    words come back in the answer. How usual each of these is, is counted in the knowledge base;
    what is assumed of the attack is broad, so that none of them is needed. English best, and
    German, French, Spanish, Italian, Portuguese, Russian, Chinese and any language that has
    question marks.

    Notes
    -----
    By default more than 5 bits are suspicious, which is 32 times likelier; nothing up to 0 bits is
    ever acted on. State is a table of counts; learning and forgetting are exact.

    In a knowledge base that nobody has vouched for, ten poisoned entries in a thousand would make
    their openings usual. Openings that are malformed, in lower case or run into the answer, and as
    frequent as poison may be (:data:`DOUBTFUL`) are therefore not counted there. Well-formed ones
    are: as many pages of questions and answers are nothing unusual.

    References
    ----------
    Zou, Geng, Wang, Jia, "PoisonedRAG: Knowledge Corruption Attacks to Retrieval-Augmented
    Generation of Large Language Models", USENIX Security 2025 (black-box attack, S = Q + I).

    Examples
    --------
    >>> from ragshield_core import Batch
    >>> known = [f"Passage {i} tells of a river." for i in range(100)]
    >>> known = Batch.of(ids=[*map(str, range(100))], texts=known, embeddings=[[1.0]] * 100)
    >>> texts = ["Who owns the mill? The mill is owned by Ann.", "The mill stands in the village."]
    >>> new = Batch.of(ids=["a", "b"], texts=texts, embeddings=[[1.0]] * 2)
    >>> LeadingQuestionDetector().fit(known).score(new) > 5
    array([ True, False])
    """

    kind: ClassVar[str] = "leading_question"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TEXT})
    taxonomy: ClassVar[tuple[str, ...]] = ("AML.T0070", "AML.T0066", "LLM04:2025", "LLM05:2026")

    default_threshold: float = 5.0
    floor: float = 0.0
    acts_unfitted = False

    def __init__(self) -> None:
        self.reset()

    def config(self) -> dict[str, Any]:
        """Return nothing: there is nothing to choose."""
        return {}

    def reset(self) -> None:
        """Forget every opening."""
        self._counts = np.zeros((len(KINDS), 2, 2, len(_ATTACK_ECHO)), dtype=np.int64)
        self._doubtful = np.zeros(self._counts.shape, dtype=np.bool_)

    def learn(self, entries: Batch) -> None:
        """Count what entries open with."""
        self._add(entries, 1)

    def forget(self, entries: Batch) -> None:
        """Take entries that were learned out of the counts."""
        self._add(entries, -1)

    def unjudged(self, batch: Batch) -> dict[int, str]:
        """Return every row while nothing is known of how entries usually open."""
        if self._counts.any():
            return {}
        return dict.fromkeys(range(len(batch)), "no entry of a knowledge base was learned yet")

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts."""
        return {}, {"counts": self._counts.copy(), "doubtful": self._doubtful.copy()}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: ARG002
        """Take over the counts."""
        self.reset()
        self._counts = np.array(arrays["counts"], dtype=np.int64).reshape(self._counts.shape)
        if "doubtful" in arrays:  # early versions doubted nothing
            self._doubtful = np.array(arrays["doubtful"], dtype=np.bool_)

    def score(self, batch: Batch) -> NDArray[np.float64]:
        """Return how much likelier each opening is for poison, in bits, shape (n_entries,)."""
        self._check_fitted()
        return self._bits(_openings(batch), self._usual)

    def outliers(self, reference: Batch) -> NDArray[np.bool_]:
        """Return which entries open with malformed questions that are rare; count these no more."""
        shapes = np.argwhere(self._counts > 0)
        kind, lower, glued, _ = shapes.T
        shapes = shapes[(kind != NONE) & ((lower == 1) | (glued == 1))]
        sample = tuple(_openings(reference).T)
        doubtful = self._malformed(shapes, np.zeros(self._counts.shape, dtype=np.bool_))
        fewest, most = DOUBTFUL
        if len(reference) and doubtful[sample].mean() >= fewest:
            while True:  # without the most striking ones, others stand out
                more = self._malformed(shapes, doubtful)
                if (more == doubtful).all():
                    break
                doubtful = more
            if doubtful[sample].mean() > most:
                doubtful[...] = False
        else:
            doubtful[...] = False
        self._doubtful = doubtful
        return np.asarray(doubtful[sample])

    def _malformed(self, shapes: NDArray[np.intp], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which shapes are suspicious where neither they nor known ones are counted."""
        found = known.copy()
        for shape in shapes:
            rest = np.where(known, 0, self._counts)
            rest[tuple(shape)] = 0
            found[tuple(shape)] |= self._bits(shape[None], rest)[0] > self.default_threshold
        return found

    def held_out_scores(self, fitted: Batch, seed: int) -> NDArray[np.float64]:  # noqa: ARG002
        """Return scores of the fitted entries, each by the counts without it."""
        openings = _openings(fitted)
        shapes, inverse = np.unique(openings, axis=0, return_inverse=True)
        scores = np.empty(len(shapes))
        for i, shape in enumerate(shapes):
            counts = self._usual
            counts[tuple(shape)] = max(0, counts[tuple(shape)] - 1)
            scores[i] = self._bits(shape[None], counts)[0]
        return scores[inverse.reshape(-1)]

    def explain(self, batch: Batch, rows: Sequence[int]) -> list[Evidence]:
        """Return the question, how usual its kind is, and how much of it comes back."""
        return [self._evidence(batch.texts[row]) for row in rows]

    def _evidence(self, text: str) -> Evidence:
        opening = opening_of(text)
        shape = np.array([_shape(opening)])
        score, n = self._bits(shape, self._usual)[0], int(self._counts.sum())
        alike = int(self._counts[opening.kind].sum())
        start, end = opening.span
        traits = [KINDS[opening.kind]]
        traits += ["starts in lower case"] if opening.lower else []
        traits += ["runs into the next sentence"] if opening.glued else []
        back = f"{opening.n_back} of {opening.n_words} of its words come back, "
        sentence = (
            f"opens with {', '.join(traits)}, as {alike} of {n} known entries do, "
            f"{back if opening.n_words else ''}score {score:.1f} bits: "
            f'"{printable(text[start:end], 80)}"'
        )
        return Evidence(sentence=sentence, span=opening.span if end > start else None)

    @property
    def _usual(self) -> NDArray[np.int64]:
        """Counts of what is not in doubt; a copy."""
        return np.where(self._doubtful, 0, self._counts)

    def _check_fitted(self) -> None:
        if not self._counts.any():
            msg = f"{self.name} has learned no entry yet; fit it on the knowledge base first."
            raise NotFittedError(msg)

    def _add(self, entries: Batch, sign: int) -> None:
        np.add.at(self._counts, tuple(_openings(entries).T), sign)
        np.maximum(self._counts, 0, out=self._counts)  # what was never learned cannot be taken off

    @staticmethod
    def _bits(shapes: NDArray[np.intp], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return log2 of P(shape | attack) / P(shape | knowledge base), shape (n_shapes,)."""
        kind, lower, glued, echo = shapes.T
        by_kind = counts.sum(axis=(1, 2, 3))
        known = _smoothed(by_kind, _PRIOR_KIND)[kind]
        attack = _ATTACK_KIND[kind]
        # Of a kind that is rare in the knowledge base, traits are taken to be as everywhere in it.
        for trait, axes, prior, assumed in (
            (lower, (2, 3), np.array([1 - _PRIOR_LOWER, _PRIOR_LOWER]), _ATTACK_LOWER),
            (glued, (1, 3), np.array([1 - _PRIOR_GLUED, _PRIOR_GLUED]), _ATTACK_GLUED),
        ):
            table = counts.sum(axis=axes)
            everywhere = _smoothed(table.sum(axis=0), prior)
            known = known * _smoothed(table, everywhere)[kind, trait]
            attack = attack * np.where(trait == 1, assumed[kind], 1 - assumed[kind])
        table = counts.sum(axis=(1, 2))[1:]
        everywhere = _smoothed(table.sum(axis=0), _PRIOR_ECHO)
        repeated = _smoothed(table, everywhere)[kind - 1, echo]
        asks = kind != NONE
        known = known * np.where(asks, repeated, 1.0)
        attack = attack * np.where(asks, _ATTACK_ECHO[echo], 1.0)
        return np.asarray(np.log2(attack / known), dtype=np.float64)


def _smoothed(counts: NDArray[np.int64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return shares along the last axis, drawn to the prior where little was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.asarray((counts + _WORTH * prior) / (total + _WORTH), dtype=np.float64)


def _shape(opening: Opening) -> tuple[int, int, int, int]:
    return opening.kind, int(opening.lower), int(opening.glued), opening.echo


def _openings(batch: Batch) -> NDArray[np.intp]:
    """Return what each entry opens with, as indices into the counts, shape (n_entries, 4)."""
    shapes = [_shape(opening_of(text)) for text in batch.texts]
    return np.array(shapes, dtype=np.intp).reshape(len(shapes), 4)
