"""Recognition of the questions in a text: in front, further down, with or without a mark."""
# ruff: noqa: PLR2004 - lengths of words and shares

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple
from unicodedata import category

from ragshield_core.detectors.question.question_words import (
    ANYTHING,
    ASKS_FOR,
    AUX,
    BE,
    DO,
    MEASURED,
    MODAL,
    ONLY_ASK,
    PREPOSITION,
    UNSPACED,
    VERBS,
    about_of,
    asks_first,
    words_of,
)
from ragshield_core.detectors.question.question_words import WEAK as WEAK_WORDS
from ragshield_core.text.characters import FULL_STOPS, LETTERS, QUESTION_MARKS
from ragshield_core.text.characters import UNSPACED as TOUCHING

# Kinds of openings, in the words of evidence; the first that applies.
KINDS = (
    "no question",
    "a short phrase in lower case that comes back",
    "a title that is a question",
    "a question further down",
    "what may be a question",
    "a question inside a sentence",
    "a question without a question mark",
    "a sentence with a question mark",
    "a question",
    "what may be a question without a question mark",
    "an indirect question",
)
(
    *(NONE, PHRASE, TITLE, LATER, WEAK, EMBEDDED, UNMARKED, MARKED_OTHER, MARKED, VERB_FIRST),
    INDIRECT,
) = range(len(KINDS))
_LOOSE = frozenset({PHRASE, WEAK, EMBEDDED, VERB_FIRST, INDIRECT})
# Steps of a question's echo in its answer: none of its content words come back, or up to four of
# them; each number has two steps, for less than half of the words and for more.
ECHO = 1 + 2 * 4
_MOST_BACK = 4
# Steps of the overlap of a question and its answer with the text elsewhere: the share of their
# content words found there, divided by the same share for the rest of the text. A planted question
# is about something else. Texts that are too short to tell have a step of their own, the first.
ELSEWHERE = (0.3, 0.45, 0.6)
_TOO_LITTLE, _PASSAGES = 60, (150, 250)  # content words of a text, characters beside a question
# Position of a question: in front or after another sentence, alone or beside others.
PLACES = ("in front", "behind another sentence or beside other questions")
_OPENING = 600  # characters that are searched for the first question
_FURTHER = 100_000  # characters that are searched for later questions
_LONGEST = 60  # words of a question
# Characters after a question, or before one that ends a text, that may be its answer and repeat its
# words.
_ANSWER = 400
_CODE = re.compile(r"[(){}\[\]=<>;:|\\$&`_/]")
_SHORT = 15  # words of a phrase that might be one
_WRAPPED = 40  # characters: lines of running text are wrapped later, headings are shorter
_LOOKED_BACK = 250  # characters that are searched for the start of a sentence
# Characters that may follow the last sentence, and how many are read.
_CLOSERS, _CLOSING = f" .!\n\"'”’»){FULL_STOPS}{QUESTION_MARKS}", 40


class Opening(NamedTuple):
    """A question of a text, or its first sentence."""

    kind: int  # index into KINDS
    lower: bool  # starts in lower case
    glued: bool  # runs into the next sentence without a space
    echo: int  # step of its echo in the answer, 0 to 8
    span: tuple[int, int]  # of the question, or of the first sentence
    n_words: int = 0  # content words of the question
    n_back: int = 0  # of these, come back in the answer
    last: bool = False  # nothing follows
    about: int = 0  # index into ABOUT
    place: int = 0  # index into PLACES, of an opening
    elsewhere: int = 0  # step of its and its answer's overlap with the rest of the text, 0 to 4
    behind: bool = False  # another sentence stands in front of it


_AUX_START = re.compile(rf"(?:{AUX})\b", re.IGNORECASE)
# A question word does not ask for these words.
_NOT_ASKED = (
    rf"(?!(?:{BE}|{MODAL}|{DO}|he|she|it|they|we|i|you|his|her|its|their|our|the|a|an|this|that"
    r"|these|those|to|now|became|all|some|many|most|both|each|one|two|people|in|on|at|by)\b)"
)
# Without a mark: a question word and a verb before its subject, or a measure.
_STRONG = re.compile(
    rf"(?:(?:who|whom|whose|who's|what's|where's|why)\b"
    rf"|(?:please\s)?tell\s(?:me|us)\b|name\sthe\b|i\s(?:(?:was|am)\s)?wonder(?:ing)?\b"
    rf"|(?:what|where|when|how)\s(?:{AUX})\b"
    rf"|(?:what|which)\s{_NOT_ASKED}(?:\S{{1,20}}\s){{1,6}}(?:{AUX})\b"
    rf"|which\s{_NOT_ASKED}(?!\w{{1,20}}(?:s|ed)\b)\w{{1,20}}\s"
    rf"|how\s(?:{MEASURED})\b"
    rf"|(?:{PREPOSITION})\s(?:what|whom|whose|which\s\w{{1,20}}\s(?:{AUX})|how\s(?:many|much))\b"
    rf"|(?!(?:do|have)\s(?:the|it|this|that)\b)(?:{DO}|is|are|was|were|can|could|will|would|has|have|should)\s(?:the|there|it|this|that"
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
    rf"|(?:{BE})\s(?:who|whom|what|which|where|when)\b"
    rf"|(?:which|what|who)\s(?:\w{{1,20}}\s){{0,2}}(?:{AUX})\b"
    rf"|(?:what|which)\s{_NOT_ASKED}\w{{1,20}}(?:\s\w{{1,20}}){{0,3}}$)"
    rf"|\s(?:who|whom|what|when|where|which|why|how)$",
    re.IGNORECASE,
)
_MID_END = re.compile(
    rf"\s(?:who|whom|what|when|where|which|why|how)$"
    rf"|\s(?:(?:by|in|of|for|with|to|on|from|as|under|at|{BE})\s(?:what|which)"
    rf"\s{_NOT_ASKED}\w{{1,20}}(?:\s\w{{1,20}}){{0,3}}|(?:what|which)\s{_NOT_ASKED}\w{{1,20}})$",
    re.IGNORECASE,
)
_ASKING_ENDS = ("か", "까", "나요", "가요", "는가", "은가")
_MID_WORDS = frozenset(["who", "whom", "what", "when", "where", "which", "why", "how"])
# "Do the test", "Have the form ready".
_IMPERATIVE = dict.fromkeys(("do", "have"), ("the", "this", "that", "it", "your", "fun"))
_NO_SUBJECT = frozenset(
    ("a", "an", "not", "be", "been", "to", "of", "in", "for", "by", "as", "also")
)
_LATER_BE = re.compile(r"\s\S{1,200}\s(?:is|was|are|were)\s", re.IGNORECASE)
# A sentence that ends before its answer: "the capital of the province is."
_OPEN_END = re.compile(r"\s(?:is|are|was|were|of|by|the|in|called|as|from)$", re.IGNORECASE)
# An indirect question: "This page covers who ..."; after other words than these, "who", "which",
# "when" and "where" mostly refer to a noun.
_INDIRECT = re.compile(
    r"\b(?:(?:know|knows|wonder|wonders|wondered|wondering|ask|asks|asked|asking|out|learn|explain"
    r"|explains|explained|cover|covers|covering|describes?|tell|tells|told|shows?|answers?|answered"
    r"|discuss|discusses|discover|see|understand|decide|decides|settle|settles)\s[\"'“‘*_]{0,3}"
    r"(?=(?:who|whom|whose|what|which|when|where|why|how|whether)\s\S)"
    r"|(?:question|topic|subject|here|here's|about|of|on|into|is|was|as|to|regarding|concerning"
    r"|[:,])\s[\"'“‘*_]{0,3}(?=(?:what|why|how|whether)\s\S))",
    re.IGNORECASE,
)

_LEAD = re.compile(
    r"(?:\s{0,8}<[^<>]{1,100}>){0,4}[\s\ufeff#>*_~\"'“”‘’«»„¿¡(\[\-–—•]{0,20}"
    r"(?:(?:\d{1,3}[.)]|(?:q|a?faq|title|question|query|frage|pregunta|domanda|pergunta|вопрос|问题?|問)"
    r"\s?\d{0,3}\s?[:：.)])[\s*_\"'“¿]{1,6})?",
    re.IGNORECASE,
)
_MARK = re.compile(f"[{QUESTION_MARKS}]")
_GREEK = re.compile(r"(?<=[\u0370-\u03ff\u1f00-\u1fff]);(?=\s|$)")  # the Greek question mark
# The Armenian question mark stands within a word, and a full stop ends the sentence.
_ARMENIAN = re.compile("\u055e([^\u0589\n\u055e]{0,400})[\u0589:]")
_ASIDE = re.compile(r"\[[^\][]{0,80}\]|\([^()?]{0,20}\?[^()?]{0,20}\)")
_WORD = re.compile(rf"[{LETTERS}\d]+(?:['’.-][{LETTERS}\d]+)*")
_OTHERS = (
    "the a an and or but not that this these those there their they its it his her he she you your "
    "we our i my me be been being do done any some most more than then as such first last many "
    "much new one two name called der die das ein eine und ist sind le la les un une et est sont "
    "el los las una y es son il lo gli e o os"
)
_UNSPACED_RUN = re.compile(f"[{TOUCHING}]{{2,4000}}")
_STEM = 5  # letters that two forms of a word have in common
_STOP = frozenset(
    word[:_STEM] for word in (*ASKS_FOR, *f"{AUX}|{PREPOSITION}".split("|"), *_OTHERS.split())
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(.])(?:[^\W\d_]|mr|mrs|ms|dr|st|mt|jr|sr|vs|no|vol|inc|ltd|co|prof|gen|col|sgt|lt|gov|sen"
    r"|rep|rev|hon|approx|ca|cf|etc|al|ed|fig|u\.s|e\.g|i\.e)$",
    re.IGNORECASE,
)
# The pattern starts with one character class, which the engine finds quickly; so below.
_STOPS = re.compile(
    rf"[.!\n{FULL_STOPS}{QUESTION_MARKS}](?:(?<=[.!{FULL_STOPS}])(?=[\s\"'”’»)]|$|[{LETTERS}])"
    rf"|(?<=\n)\s{{0,9}}(?:\n|(?=[-*+•]\s|[#|>`~<\[]|//|\d{{1,3}}[.)]\s))|(?<=[{QUESTION_MARKS}]))"
)
# Characters of code, if the mark stands apart as in "a = b ? c : d" and "where name = ?".
_IN_CODE = re.compile(r"[={}(;\[]")
_RUNS_ON = re.compile("[.?!]|[A-Za-z]")
# The sentence continues after the mark: mostly the title of a work.
_GOES_ON = re.compile(
    r"[\"'”’»*_)]{0,3}(?:\]\(|[,;:(]|\s{1,3}(?:\(|(?:is|was|are|were|has|had|and|or|by|in|from|of|on|at"
    r"|with|to|as|for|which|who|that|the|starring|featuring|written|directed)\s))"
)
_BREAK = re.compile(r"\s{0,9}(?:\n|\s[-–—|]\s|[:;]\s)")
# Thai, Lao, Burmese and Khmer have no full stops, but spaces between sentences.
_SPACE = re.compile(r"(?<=[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\s(?=\S)")
_CAPITAL = re.compile(r"(?<=[a-z0-9])\s(?=(?:The|In|It|A|An)\s)")  # after a question in lower case
_PIECE_END = re.compile(
    rf"[.!\n{FULL_STOPS}{QUESTION_MARKS}](?:(?<=\n)\s{{0,9}}(?=\S)"
    rf"|(?<!\n)[.!{FULL_STOPS}{QUESTION_MARKS}]{{0,2}}[\"'”’»)\]]{{0,3}}\s{{0,3}}"
    rf"(?=[^\s.!{FULL_STOPS}{QUESTION_MARKS}]))"
)
# First words of unmarked questions after an opening.
_STARTS = frozenset("|".join([*ASKS_FOR, AUX, PREPOSITION, "tell|name|please|i"]).split("|"))
_STARTS -= WEAK_WORDS


def opening_of(text: str) -> Opening:
    """Return the opening of a text.

    Only the first 600 characters and the last sentence are searched for a question, and the first
    100,000 characters for its words.
    """
    text = _with_marks(text)
    head = text[:_OPENING]
    if "?" in head and ("[" in head or "(" in head):  # marks that editors inserted
        head = _ASIDE.sub(lambda match: " " * len(match[0]), head)
    lead = _LEAD.match(head)
    start = lead.end() if lead else 0
    if (marked := _marked(text, head, start)) is not None:
        return marked
    end, stop = next(((end, stop) for _, end, stop in _sentences(head, start)), (len(head), ""))
    after = head[end + 1 : end + 2]
    glued = stop != "" and after.isascii() and after.isalpha()
    if broken := _broken(head, start, end):
        end, glued = broken.start(), False
    kind = _unmarked_kind(head[start:end])
    if kind == NONE and (indirect := _INDIRECT.search(head, start, end)):
        start, kind = indirect.end(), INDIRECT
    if kind != NONE:
        opening = _opening(text, kind, (start, end), glued=glued)
        if kind not in (PHRASE, INDIRECT) or 2 * opening.n_back >= max(1, opening.n_words):
            return opening
    if len(text) > _OPENING and _MARK.match(text.rstrip()[-1:]):
        *_, (begin, last, stop) = [(0, 0, ""), *_sentences(text, len(text) - _OPENING // 2)]
        if _MARK.match(stop):
            return _opening(text, LATER, (begin, last + 1), glued=False, behind=True)
    return Opening(NONE, head[start : start + 1].islower(), glued, 0, (start, end))


def _marked(text: str, head: str, start: int) -> Opening | None:
    """Return the first question with a question mark in the beginning of a text, if any."""
    for n_before, (begin, end, stop) in enumerate(_sentences(head, start)):
        if _MARK.match(stop):
            kind, glued = MARKED_OTHER, bool(_RUNS_ON.match(head, end + 1))
            if _GOES_ON.match(head, end + 1):
                kind = TITLE
            elif n_before > 1:
                kind, glued = LATER, False
            elif _is_direct(head[begin:end].lstrip()):
                kind = MARKED
            return _opening(text, kind, (begin, end + 1), glued=glued, behind=n_before > 0)
    return None


def _broken(head: str, start: int, end: int) -> re.Match[str] | None:
    """Return the end of a sentence without a full stop, such as a heading, if there is one."""
    broken = _BREAK.search(head, start, end)
    if broken is None and head[start : start + 1].islower():
        broken = _CAPITAL.search(head, start, end)
    return broken or (None if head.isascii() else _SPACE.search(head, start, end))


def inside_of(text: str, opening: Opening) -> tuple[int, list[Opening]]:
    """Return the number of sentences after a text's opening, and the questions among them.

    The first 100,000 characters are searched. Each question is judged with the text around it, so
    that its traits are the same in a long text as in a short one.

    Examples
    --------
    >>> text = "The mill stands in Brill. It was built in 1790. who built the mill of brill"
    >>> n_pieces, (found,) = inside_of(text, opening_of(text))
    >>> start, end = found.span
    >>> text[start:end]
    'who built the mill of brill'
    """
    text = _with_marks(text[:_FURTHER])
    # An opening question after another sentence counts as a later question, too.
    done = 0 if opening.kind == NONE or opening.behind else opening.span[1]
    n_pieces, asked, words = 0, list[Opening](), None
    for start, end, glued in _pieces(text):
        n_pieces += 1
        if start < done or (kind := _further_kind(text[start:end])) == NONE:
            continue
        # A possible question counts only if nothing follows; otherwise it is a clause or a name.
        # The rest of a wrapped sentence is no question without a mark.
        wrapped = _wrapped(text, start)
        unmarked = kind not in (MARKED, MARKED_OTHER)
        if (kind in _LOOSE and not _is_last(text, end)) or (unmarked and wrapped):
            continue
        words = words or _Words(text)
        found = _question(text, words, kind, (start, end), glued=glued)
        found = found._replace(lower=found.lower and not wrapped)
        if kind != PHRASE or (found.n_back >= 3 and 2 * found.n_back >= found.n_words):
            asked.append(found)
    return n_pieces, asked


def _with_marks(text: str) -> str:
    """Return a text with "?" in place of Greek and Armenian question marks."""
    if text.isascii():
        return text
    if ";" in text:
        text = _GREEK.sub("?", text)
    return _ARMENIAN.sub("\u055e\\1?", text) if "\u055e" in text else text


# Sentences


def _sentences(text: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield the start and the end of each sentence, and its closing mark."""
    begin = start
    for match in _STOPS.finditer(text, start):
        end, stop = match.start(), match[0].strip()
        if _MARK.match(stop):
            if not _ends_a_question(text, end) or _in_code(text, begin, end):
                continue
        elif stop == ".":
            before, after = text[max(0, end - 8) : end], text[end + 1 : end + 2]
            inside = after.isalpha() and not after.isupper()  # example.com
            initials = before[-1:].isupper() and after.isupper()
            if inside or initials or _ABBREVIATION.search(before):
                continue
        yield begin, end, stop
        begin = match.end()


def _pieces(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each sentence but the first, and whether no space precedes it."""
    begin, glued = -1, False
    for match in _PIECE_END.finditer(text):
        end = match.start()
        marked = _MARK.match(text, end) is not None
        if text[end] == "." and _ABBREVIATION.search(text[max(0, end - 8) : end]):
            continue
        if marked and not _ends_a_question(text, end):
            continue
        if begin >= 0:
            yield begin, end + marked, glued
        begin, glued = match.end(), not match[0][-1].isspace()
    if begin >= 0:
        yield begin, max(begin, len(text.rstrip().rstrip(f".!{FULL_STOPS}"))), glued


def _ends_a_question(text: str, place: int) -> bool:
    """Return whether a question mark follows a word, and is not part of a link or a word."""
    before = text[max(0, place - 40) : place].rpartition(" ")[2]
    after = text[place + 1 : place + 2]
    if "/" in before or after.islower() or after in ("=", "&", "/", "_"):
        return False
    last = text[place - 1 : place]
    return last.isalnum() or last in " \"'”’»)`*_" or category(last).startswith("M")


def _in_code(text: str, start: int, place: int) -> bool:
    """Return whether a question mark belongs to code: apart from words, in a line of code."""
    if text[place - 1 : place] not in ("", " ") and text[place + 1 : place + 2] != ".":
        return False
    line = text.rfind("\n", start, place) + 1
    return bool(_IN_CODE.search(text, max(start, line), place))


def _wrapped(text: str, start: int) -> bool:
    """Return whether a line starting there continues the sentence of the line before."""
    before = text[max(0, start - _LOOKED_BACK) : start].rstrip(" \t")
    if not before.endswith("\n"):
        return False
    line = before[:-1].rpartition("\n")[2].rstrip()
    return len(line) > _WRAPPED and (line[-1].isalnum() or line[-1] in ",;)`'\"’”*_")


def _is_last(text: str, end: int) -> bool:
    return not text[end : end + _CLOSING].strip(_CLOSERS)


# Kinds of questions


def _further_kind(piece: str) -> int:
    """Return the kind of question of a sentence after the opening."""
    first, _, rest = piece.partition(" ")
    if _MARK.match(piece[-1:]):
        return MARKED if _is_direct(piece[:-1]) else MARKED_OTHER
    if first[:1].islower() or first.lower() in _STARTS or (not piece.isascii() and not rest):
        return _unmarked_kind(piece)
    return NONE


def _is_direct(question: str) -> bool:
    """Return whether a sentence with a question mark has a question word, or a verb in front."""
    return about_of(question) != ANYTHING or any(map(asks_first, re.split("[:,]", question)))


def _unmarked_kind(sentence: str) -> int:
    """Return the kind of question of a sentence without a question mark."""
    words = sentence.split(maxsplit=_LONGEST)
    if len(words) > _LONGEST:
        return NONE
    if not sentence.isascii() and (asks := UNSPACED.search(sentence)):
        sure = asks.start() == 0 or asks.end() == len(sentence) or sentence.endswith(_ASKING_ENDS)
        return UNMARKED if sure else WEAK
    if len(words) < 3:
        return NONE
    verb, second = words[0].lower(), words[1].lower()
    # The verb stands first, and no other verb stands in its normal place.
    inverted = verb in VERBS and second not in (*_NO_SUBJECT, *_IMPERATIVE.get(verb, ()))
    inverted = inverted and not _LATER_BE.search(sentence)
    if inverted or words_of(sentence, 1)[0] in ONLY_ASK or _STRONG.match(sentence):
        # "Who Framed Roger Rabbit is a film": a title, or a question in capitals.
        capitals = sum(word[0].isupper() for word in words[1:5])
        title = capitals >= min(3, len(words) - 1) and sentence[0].isupper()
        if title and _LATER_BE.search(sentence):
            return TITLE
        return VERB_FIRST if verb in VERBS else UNMARKED
    if asks_first(sentence) or _AUX_START.match(sentence):
        return WEAK
    return _embedded_kind(sentence, words)


def _embedded_kind(sentence: str, words: list[str]) -> int:
    """Return the kind of a sentence that does not begin like a question."""
    lower = sentence[0].islower()
    if not _MID_WORDS.isdisjoint(words) and _MID.search(sentence):
        return EMBEDDED if lower or _MID_END.search(sentence) else WEAK
    if lower and _OPEN_END.search(sentence):
        return EMBEDDED
    return PHRASE if lower and len(words) <= _SHORT and not _CODE.search(sentence) else NONE


# The text around a question


def _opening(
    text: str, kind: int, span: tuple[int, int], *, glued: bool, behind: bool = False
) -> Opening:
    """Return an opening question of a text."""
    text, end = text[:_FURTHER], span[1]
    found = _question(text, _Words(text), kind, span, glued=glued, behind=behind)
    among = len(_MARK.findall(text[:_OPENING])) > bool(_MARK.match(text[end - 1 : end]))
    return found._replace(place=int(behind or among), last=False, behind=behind)


def _question(
    text: str, words: _Words, kind: int, span: tuple[int, int], *, glued: bool, behind: bool = False
) -> Opening:
    """Return a question with its traits, given the words of the text."""
    start, end = span
    last = _is_last(text, end)
    asked = set(words.between(start, end))
    elsewhere = words.elsewhere(start, end, last=last)
    # A question after the first sentence of a short text has its answer on both sides.
    answer = words.between(start - _ANSWER, start) if last or (behind and not elsewhere) else []
    if not last:
        answer += words.between(end, end + _ANSWER)
    n_back = len(asked.intersection(answer))
    return Opening(
        kind=kind,
        lower=text[start : start + 1].islower() and kind != INDIRECT,  # all of these are lower
        glued=glued,
        echo=2 * min(n_back, _MOST_BACK) - (2 * n_back < len(asked)) if n_back else 0,
        span=span,
        n_words=len(asked),
        n_back=n_back,
        last=last,
        about=about_of(text[start:end]),
        elsewhere=elsewhere,
    )


class _Words:
    """Content words of a text, and their positions."""

    def __init__(self, text: str) -> None:
        found = sorted(_places(text))
        self._starts = [start for start, _ in found]
        self._stems = [stem for _, stem in found]
        self._counts = Counter(self._stems)
        self._n_repeated = sum(n for n in self._counts.values() if n > 1)

    def between(self, start: int, end: int) -> list[str]:
        """Return the content words that start between two places."""
        return self._stems[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def elsewhere(self, start: int, end: int, *, last: bool) -> int:
        """Return the step of the overlap of a question and its answer with the rest, 0 to 4."""
        sides = [(start - n, end) if last else (start, end + n) for n in (*_PASSAGES, _ANSWER)]
        *passages, around = (self.between(*side) for side in sides)
        near = Counter(around)
        n_far = len(self._stems) - len(around)
        if n_far < _TOO_LITTLE or not passages[0]:
            return 0
        # The repeated words of the rest: the share of any part of it that also stands elsewhere.
        n_repeated = self._n_repeated
        for stem, n in near.items():
            n_all = self._counts[stem]
            n_repeated += (n_all - n) * (n_all - n > 1) - n_all * (n_all > 1)
        # An answer may be short, and the text after it is ordinary text.
        share = min(
            sum(self._counts[stem] > near[stem] for stem in passage) / len(passage)
            for passage in map(set, passages)
        )
        return 1 + bisect_left(ELSEWHERE, share / max(0.05, n_repeated / n_far))


def _places(text: str) -> Iterator[tuple[int, str]]:
    """Yield starts and stems of content words; pairs of letters in scripts without spaces."""
    for match in _WORD.finditer(text):
        word = match[0]
        stem = word[:_STEM].lower()
        if len(word) <= 2 and not word.isdigit():
            continue
        if stem not in _STOP and (word.isascii() or not _UNSPACED_RUN.match(word)):
            yield match.start(), stem
    for run in () if text.isascii() else _UNSPACED_RUN.finditer(text):
        for start in range(run.start(), run.end() - 1):
            yield start, text[start : start + 2]


def content_words(text: str) -> set[str]:
    """Return the stems of a text's content words."""
    return {stem for _, stem in _places(text)}
