"""Which texts the ideas in them could convict, found for all sentences of a batch at once.

What :mod:`ragshield_core.detectors.instruction.concepts` says of a sentence, said here of all
sentences together: the language, the ideas, their mood and their order, and the log-odds of
sentences that stand together. Hardly any text comes near to what counts; those that do are looked
at there. Sentences of which this is too intricate (with ideographs, or rare signs) are left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from operator import or_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.instruction import concepts
from ragshield_core.detectors.instruction.concepts import (
    ACTS,
    ENOUGH_VOTES,
    JOINED_LENGTH,
    LEADING,
    MAX_JOINED,
    MAX_LANGUAGE_WORDS,
    MIN_IDEAS,
    MIN_STATEMENTS,
    MUST_REACH,
    OPENING,
    QUOTES,
    Idea,
    Model,
    strongest,
)
from ragshield_core.detectors.instruction.rules import plain_of
from ragshield_core.detectors.instruction.sentences import Page
from ragshield_core.text.columns import Dictionary, Words
from ragshield_core.text.lexicon import Lexicon
from ragshield_core.text.linear import IDEOGRAPH, OTHER, narrow

# Log-odds are added up here in another order than there.
ROUNDING = 1e-6
# So few sentences are looked at one by one.
FEW = 12
# Stretches with more ideas than this are looked at in any case: harmless ones have a dozen.
MANY = 32
_TOGETHER = 1 << 12  # stretches, which bounds the memory
# So near to nothing, what the gate adds up to is left to it.
_CLOSE = 1e-6
_BITS = 64
_FAR = 1 << 40  # from any token
_MOST_WORDS = 1 << 20  # in a sentence, and in the words of a text that tell its language

# What a letter can be, as bits.
_TOKEN, _JOINER, _WORD, _OPENS, _QUOTES, _CALLS, _SIGN = (1 << n for n in range(7))
_KINDS = {
    _TOKEN: "".join(
        chr(code)
        for code in range(0x21, 0x7F)
        if not chr(code).isalnum() and chr(code) not in "_'-"
    )
    + "\u3002\u061f\u0964\u300d\u3001\u2014\u2013\u2022\u300c\u300e\u3011",
    _JOINER: "'-",
    _WORD: "abcdefghijklmnopqrstuvwxyz0123456789",
    _OPENS: "".join(OPENING),
    _QUOTES: "".join(QUOTES),
    _CALLS: ",:",
    # Without one of these, a sentence has none of the signs that are looked for in its letters.
    _SIGN: ".:]>!<?_@={/\u3011",
}
# Signs, by characters that one of them holds, and by those that a sentence with it begins with.
_HELD = {
    ".": ("url",), "/": ("url",), "?": ("query_string", "question_mark"), "!": ("image",),
    "<": ("image", "tag", "comment"), ":": ("label", "key"), "]": ("label",), ">": ("label",),
    "\u3011": ("label",), "_": ("identifier",), "@": ("address",), "=": ("placeholder",),
    "{": ("placeholder",),
}  # fmt: skip
_BEGINNINGS = dict.fromkeys("[(*=<-", ("bracket",)) | dict.fromkeys("#/", ("comment",))
SIGNS = sorted({sign for signs in (*_HELD.values(), *_BEGINNINGS.values()) for sign in signs})


def _signs_of(characters: Mapping[str, Sequence[str]]) -> NDArray[np.bool_]:
    found = np.zeros((256, len(SIGNS)), dtype=np.bool_)
    for character, signs in characters.items():
        found[narrow(character)[0], [SIGNS.index(sign) for sign in signs]] = True
    return found


_SIGNS_OF, _BEGUN_BY = _signs_of(_HELD), _signs_of(_BEGINNINGS)


def _kinds() -> bytes:
    found = bytearray(256)
    for kind, characters in _KINDS.items():
        for byte in narrow(characters):
            found[byte] |= kind
    found[OTHER] = _TOKEN
    found[IDEOGRAPH] = 0
    return bytes(found)


_KIND = _kinds()


class Sentences(NamedTuple):
    """Some sentences of a page, and their words."""

    page: Page
    number: NDArray[np.intp]  # (n,), in the page, ascending
    words: Words
    first: NDArray[np.intp]  # (n + 1,), the first word of each

    @property
    def owner(self) -> NDArray[np.intp]:
        """The sentence of each word."""
        return np.repeat(np.arange(len(self.number)), np.diff(self.first))

    @property
    def behind(self) -> NDArray[np.intp]:
        """The first word behind the sentence of each word."""
        return np.repeat(self.first[1:], np.diff(self.first))


def _ranges(
    start: NDArray[np.intp], end: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the numbers of several ranges, one behind the other, and where each begins."""
    n = end - start
    first = np.concatenate([[0], np.cumsum(n)])
    return np.arange(first[-1]) + np.repeat(start - first[:-1], n), first


def _some(page: Page, number: NDArray[np.intp]) -> Sentences:
    words, first = _ranges(page.first_word[number], page.first_word[number + 1])
    return Sentences(page, number, page.words.only(words), first)


class _Tables:
    """The model of ideas, as arrays."""

    def __init__(self, known: Model) -> None:
        self.known = known
        self.languages = list(known.stopwords)
        self.lexicons = [known.lexicons[language] for language in self.languages]
        self.anchors = np.uint64(known.anchors)
        self.anchoring = Lexicon(
            (phrase, bits & known.anchors)
            for lexicon in known.lexicons.values()
            for phrase, bits in lexicon
            if bits & known.anchors
        )
        voting = sorted(known.votes)
        self.voting = Dictionary([word.encode() for word in voting])
        n_parts = -(-len(voting) // _BITS)
        self.vote = np.zeros((len(voting) + 1, n_parts), dtype=np.uint64)
        self.of_language = np.zeros((len(self.languages), n_parts), dtype=np.uint64)
        for n, word in enumerate(voting):
            bit = np.uint64(1 << n % _BITS)
            self.vote[n + 1, n // _BITS] = bit
            for row, language in enumerate(self.languages):
                if word in known.stopwords[language]:
                    self.of_language[row, n // _BITS] |= bit
        self.leading = Dictionary([word.encode() for word in sorted(LEADING) if word.isascii()])
        self.gate = np.array([known.gate.get(n, 0.0) for n in range(_BITS)])
        n = len(known.names)
        self.single = np.array([known.single.get(i, 0.0) for i in range(n)], dtype=np.float64)
        self.pairs = np.zeros((n, n))
        for low, others in known.pairs.items():
            for high, weight in others.items():
                self.pairs[low, high] = weight
        self.together = self.pairs + self.pairs.T
        number = known.number
        self.signs = np.array([number[sign] for sign in SIGNS])
        self.acts = np.array([number[act] for act in ACTS])
        self.imperatives = np.array([number[f"imperative {act}"] for act in ACTS])
        self.obligations = np.array([number[f"obligation {act}"] for act in ACTS])
        ordered = [
            (one.bit_length() - 1, other.bit_length() - 1, reach, both.bit_length() - 1)
            for one, other, reach, both in known.ordered
        ]
        self.one, self.other, self.reach, self.both = np.array(ordered).T
        self.ones = np.uint64(sum({1 << n for n in self.one.tolist()}))
        self.others = np.uint64(sum({1 << n for n in self.other.tolist()}))
        self.spoken, self.demands, self.asked, self.orders = map(
            self.numbers, (known.spoken, known.demands, known.asked, known.orders)
        )

    def numbers(self, mask: int) -> list[int]:
        """Return the ideas of a mask by number."""
        return [n for n in range(len(self.known.names)) if mask >> n & 1]


@lru_cache(maxsize=2)
def _tables(known: Model) -> _Tables:
    return _Tables(known)


def hopeful(page: Page) -> NDArray[np.bool_]:
    """Return which sentences may hold ideas enough to be looked at, shape (n_sentences,)."""
    tables = _tables(concepts.model())
    n = len(page.start)
    hopes = np.zeros(n, dtype=np.bool_)
    some = np.flatnonzero(np.diff(page.first_word))
    if len(some):
        behind = np.repeat(page.first_word[1:], np.diff(page.first_word))
        bits = tables.anchoring.found(page.words, behind)
        anchors = np.bitwise_or.reduceat(bits, page.first_word[some])
        hopes[some] = np.bitwise_count(anchors) >= MIN_IDEAS
    if IDEOGRAPH in page.words.joined:
        hopes[page.sentences_with(np.flatnonzero(page.letters == IDEOGRAPH))] = True
    return hopes


def strongest_of(page: Page, texts: Iterable[int], least: float) -> dict[int, Idea | None]:
    """Return the stretch of sentences that reads most like an instruction, of some texts.

    Parameters
    ----------
    page
        All texts.
    texts
        Of which it is asked for, besides those where it may have as high log-odds as ``least``.
    """
    known, hopes = concepts.model(), hopeful(page)
    number = np.flatnonzero(hopes)
    if len(number) <= FEW:  # which are sooner looked at one by one
        asked = sorted({*texts, *page.text[number].tolist()})
        return {text: _strongest(page, text, hopes) for text in asked}
    tables = _tables(known)
    number, ideas, signs = _ideas(tables, page, number)
    found = _stretches(tables, page, number, ideas, signs)
    likely = found.text[found.most >= least - ROUNDING]
    asked = sorted({*texts, *likely.tolist()})
    some = np.zeros(len(page.views), dtype=np.bool_)
    some[asked] = True
    at = np.flatnonzero(some[found.text])
    at = at[np.lexsort((-found.most[at], found.text[at]))]
    ends = np.searchsorted(found.text[at], asked, side="right").tolist()
    masks = _Masks(known, page, number, ideas, signs)
    return {
        text: _best(page, masks, found.take(at[first:behind]))
        for text, (first, behind) in zip(asked, pairwise([0, *ends]), strict=True)
    }


class _Masks(dict[int, int]):
    """The ideas of sentences as bits, found when first asked for."""

    def __init__(
        self,
        known: Model,
        page: Page,
        number: NDArray[np.intp],
        ideas: NDArray[np.bool_],
        signs: NDArray[np.bool_],
    ) -> None:
        self.known, self.number = known, number
        self._page, self._signs = page, np.asarray(signs.any(axis=1))
        self._bits = np.packbits(ideas, axis=1, bitorder="little")

    def __missing__(self, row: int) -> int:
        mask = int.from_bytes(self._bits[row].tobytes(), "little")
        if self._signs[row]:
            mask |= self.known.signs_of(*_sentence(self._page, int(self.number[row])))
        self[row] = mask
        return mask


def _best(page: Page, masks: _Masks, found: _Stretches) -> Idea | None:
    """Return the stretch of the highest log-odds, the first of them, of those of one text."""
    known, best = masks.known, -np.inf
    where = None
    for most, row, last, lone in zip(
        found.most.tolist(),
        found.first.tolist(),
        found.last.tolist(),
        found.lone.tolist(),
        strict=True,
    ):
        if most < best - ROUNDING:
            break  # nor have the others more
        mask = reduce(or_, map(masks.__getitem__, range(row, last + 1)))
        mask |= known.lone if lone else 0
        logit = known.logit(mask)
        if logit > best or (logit == best and where is not None and (row, last) < where[:2]):
            best, where = logit, (row, last, mask)
    if where is None:
        return None
    row, last, mask = where
    begin = page.words.begin[found.text[0]]
    start, end = page.start[masks.number[row]] - begin, page.end[masks.number[last]] - begin
    return Idea(best, (int(start), int(end)), mask)


def _strongest(page: Page, text: int, hopes: NDArray[np.bool_]) -> Idea | None:
    possible = hopes[page.first[text] : page.first[text + 1]].tolist()
    return strongest(page.plain(text), page.views[text].text, page.spans(text), possible)


def _ideas(
    tables: _Tables, page: Page, number: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which of some sentences hold ideas, which, and which signs they may hold besides.

    Shapes (n,), (n, n_ideas) and (n, n_signs).
    """
    letters = page.letters
    is_rare = np.zeros(len(page.start), dtype=np.bool_)
    if IDEOGRAPH in page.words.joined or OTHER in page.words.joined:
        places = np.flatnonzero((letters == IDEOGRAPH) | (letters == OTHER))
        is_rare[page.sentences_with(places)] = True
    rare = is_rare[number]
    usual = _usual(tables, page, np.unique(page.text[number]))
    chosen = _some(page, number[~rare])
    language = _languages(
        tables, chosen.words, chosen.owner, len(chosen.number), usual[page.text[chosen.number]]
    )
    bits = np.zeros(len(chosen.words), dtype=np.uint64)
    for each in np.unique(language).tolist():
        at = np.flatnonzero(language[chosen.owner] == each)
        owner = chosen.owner[at]
        behind = np.searchsorted(owner, owner, side="right")
        bits[at] = tables.lexicons[each].found(chosen.words.only(at), behind)
    masks = np.bitwise_or.reduceat(bits, chosen.first[:-1]) if len(chosen.number) else bits[:0]
    enough = np.bitwise_count(masks & tables.anchors) >= MIN_IDEAS
    gate = tables.known.gate_bias + (_unpacked(masks) * tables.gate).sum(axis=1)
    opens = (bits[chosen.first[:-1]] & np.uint64(tables.known.openings)) > 0
    close = enough & ~opens & (np.abs(gate) < _CLOSE)
    kept = np.flatnonzero(enough & ~close & (opens | (gate >= 0.0)))
    at, first = _ranges(chosen.first[kept], chosen.first[kept + 1])
    some = Sentences(page, chosen.number[kept], chosen.words.only(at), first)
    kinds = np.frombuffer(page.words.joined.translate(_KIND), dtype=np.uint8)
    ideas, signs = _syntax(tables, some, bits[at], kinds), _signs(some, kinds)
    left = np.concatenate([number[rare], chosen.number[close]])
    more = np.zeros((len(left), ideas.shape[1]), dtype=np.bool_)
    known, languages = tables.known, tables.languages
    for row, each in enumerate(left.tolist()):
        plain, original = _sentence(page, each)
        more[
            row, tables.numbers(known.ideas(plain, original, languages[usual[page.text[each]]]))
        ] = True
    ideas = np.concatenate([ideas, more])
    signs = np.concatenate([signs, np.zeros((len(left), signs.shape[1]), dtype=np.bool_)])
    number = np.concatenate([some.number, left])
    order = np.argsort(number)
    order = order[ideas[order].any(axis=1)]
    return number[order], ideas[order], signs[order]


def _sentence(page: Page, number: int) -> tuple[str, str]:
    """Return a sentence in small letters without marks, and as it was."""
    text = page.text[number]
    begin = page.words.begin[text]
    original = page.views[text].text[page.start[number] - begin : page.end[number] - begin]
    return plain_of(original), original


def _usual(tables: _Tables, page: Page, texts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the languages of some texts by their first words, shape (n_texts,)."""
    first, behind = page.words.first[texts], page.words.first[texts + 1]
    at, begin = _ranges(first, np.minimum(first + MAX_LANGUAGE_WORDS, behind))
    owner = np.repeat(np.arange(len(texts)), np.diff(begin))
    found = np.zeros(len(page.views), dtype=np.intp)
    found[texts] = _languages(tables, page.words.only(at), owner, len(texts), None)
    return found


def _languages(
    tables: _Tables,
    words: Words,
    owner: NDArray[np.intp],
    n: int,
    usual: NDArray[np.intp] | None,
) -> NDArray[np.intp]:
    """Return the language of several lists of words, shape (n,): see :meth:`Model.language`."""
    votes = tables.voting(words.keys)
    at = np.flatnonzero(votes)
    cast = np.zeros((n, tables.vote.shape[1]), dtype=np.uint64)
    if len(at):
        begins = np.flatnonzero(np.diff(owner[at], prepend=-1))
        cast[owner[at][begins]] = np.bitwise_or.reduceat(tables.vote[votes[at]], begins, axis=0)
    shared = cast[:, None, :] & tables.of_language
    counts = np.bitwise_count(shared).sum(axis=2, dtype=np.int64)
    weighed = 2 * counts
    settled = np.zeros(n, dtype=np.bool_)
    if usual is not None:
        weighed[np.arange(n), usual] += 1
        english = tables.languages.index("en")
        settled = (usual == english) & (counts[:, english] >= ENOUGH_VOTES)
    near = weighed >= weighed.max(axis=1, keepdims=True) - 1
    found: NDArray[np.intp] = np.argmax(weighed, axis=1)
    if usual is not None:
        found[settled] = english
    open_ = np.flatnonzero((near.sum(axis=1) > 1) & ~settled)
    if len(open_):
        rank = weighed[open_]
        place = np.full(n, -1)
        for column, lexicon in enumerate(tables.lexicons):
            rows = np.flatnonzero(near[open_, column])
            place[...] = -1
            place[open_[rows]] = rows
            row = place[owner]
            at = np.flatnonzero(row >= 0)
            row = row[at]
            behind = np.searchsorted(row, row, side="right")
            with_ideas = row[lexicon.found(words.only(at), behind) > 0]
            rank[:, column] += _MOST_WORDS * np.bincount(with_ideas, minlength=len(open_))
        rank[~near[open_]] = -1
        found[open_] = np.argmax(rank, axis=1)
    return found


class _Tokens(NamedTuple):
    """The tokens of some sentences: words, and marks between them."""

    word: NDArray[np.intp]
    """Places of words, those of two sentences further apart than any reach, (n_words,)."""
    opens: NDArray[np.bool_]
    """Whether a command may begin with a word: behind a mark, a word that leads, or nothing."""
    follows: NDArray[np.bool_]
    """Whether the token before is a word."""
    called: NDArray[np.bool_]
    """Whether a comma or colon stands behind."""
    quote: NDArray[np.intp]
    """Places of quotation marks, and their sentences, (n_quotes,)."""
    of_quote: NDArray[np.intp]


def _tokens(tables: _Tables, some: Sentences, kinds: NDArray[np.uint8]) -> _Tokens:
    words, n = some.words, len(some.number)
    start, end = some.page.start[some.number], some.page.end[some.number]
    # Marks between letters, as in "don't", are none.
    marks = np.flatnonzero(kinds & (_TOKEN | _JOINER))
    at, first = _ranges(np.searchsorted(marks, start), np.searchsorted(marks, end))
    marks, of_mark = marks[at], np.repeat(np.arange(n), np.diff(first))
    joins = (kinds[marks] & _JOINER > 0) & (kinds[marks - 1] & kinds[marks + 1] & _WORD > 0)
    joins &= (start[of_mark] < marks) & (marks + 1 < end[of_mark])
    marks, of_mark = marks[~joins], of_mark[~joins]
    first = np.searchsorted(of_mark, np.arange(n + 1))
    n_before = np.searchsorted(marks, words.start)
    begins, lasts = some.first[:-1], some.first[1:] - 1
    marked = np.diff(n_before, prepend=0) > 0
    marked[begins] = n_before[begins] > first[:-1]
    follows = ~marked
    follows[begins] = False
    opens = np.zeros(len(words), dtype=np.bool_)
    opens[begins] = ~marked[begins]
    opens[marked] = kinds[marks[n_before[marked] - 1]] & _OPENS > 0
    leads = tables.leading(words.keys) > 0
    opens[1:] |= follows[1:] & leads[:-1]
    n_behind = np.append(n_before[1:], 0)
    n_behind[lasts] = first[1:]
    called = n_behind > n_before
    called[called] = kinds[marks[n_before[called]]] & _CALLS > 0
    quote = np.flatnonzero(kinds[marks] & _QUOTES)
    apart = int(tables.reach.max()) + MUST_REACH + 1
    place = np.arange(len(words)) + n_before + apart * some.owner
    of_quote = of_mark[quote]
    n_words = np.searchsorted(words.start, marks[quote])
    return _Tokens(place, opens, follows, called, quote + n_words + apart * of_quote, of_quote)


def _syntax(
    tables: _Tables, some: Sentences, bits: NDArray[np.uint64], kinds: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Return the ideas of sentences but for signs: see :meth:`Model.ideas`."""
    known, owner = tables.known, some.owner
    ideas = np.zeros((len(some.number), len(known.names)), dtype=np.bool_)
    if not len(some.number):
        return ideas
    ideas[:, :_BITS] |= _unpacked(np.bitwise_or.reduceat(bits, some.first[:-1]))
    tokens = _tokens(tables, some, kinds)
    quote = known.number["quote"]
    ideas[tokens.of_quote, quote] = True
    _add_moods(tables, ideas, bits, owner, tokens)
    spoken = ideas[:, tables.spoken].any(axis=1) & ideas[:, tables.demands].any(axis=1)
    asked = ideas[:, tables.asked].any(axis=1)
    dictated = ideas[:, quote] | ideas[:, known.number["only"]]
    ideas[:, known.number["answer on condition"]] = spoken & asked
    ideas[:, known.number["answer dictated"]] = spoken & dictated
    telling = np.flatnonzero(bits)
    places = np.concatenate([tokens.word[telling], tokens.quote])
    held = np.concatenate([bits[telling], np.full(len(tokens.quote), 1 << quote, dtype=np.uint64)])
    sentence = np.concatenate([owner[telling], tokens.of_quote])
    order = np.argsort(places)
    _add_order(tables, ideas, places[order], held[order], sentence[order])
    return ideas


def _add_moods(
    tables: _Tables,
    ideas: NDArray[np.bool_],
    bits: NDArray[np.uint64],
    owner: NDArray[np.intp],
    tokens: _Tokens,
) -> None:
    """Add which acts are in the imperative or an obligation, and who is called."""
    known = tables.known
    must = np.where(bits & np.uint64(known.must) > 0, tokens.word, -_FAR)
    obliged = np.full(len(must), -_FAR)
    obliged[1:] = np.maximum.accumulate(must)[:-1]
    near = tokens.word - obliged <= MUST_REACH
    acting = np.flatnonzero((bits & np.uint64(known.acting) > 0) & (tokens.opens | near))
    acts = _unpacked(bits[acting])[:, tables.acts]
    for mood, numbers in ((tokens.opens, tables.imperatives), (near, tables.obligations)):
        word, act = np.nonzero(acts & mood[acting][:, None])
        ideas[owner[acting[word]], numbers[act]] = True
    addressed = tokens.follows & (np.roll(bits, 1) & np.uint64(known.addressed) > 0)
    named = tokens.called & (tokens.opens | addressed) & (bits & np.uint64(known.models) > 0)
    ideas[owner[named], known.number["model named first"]] = True


def _add_order(
    tables: _Tables,
    ideas: NDArray[np.bool_],
    places: NDArray[np.intp],
    held: NDArray[np.uint64],
    sentence: NDArray[np.intp],
) -> None:
    """Add which idea follows which, of ideas by the places of their tokens."""
    begins, follows = held & tables.ones > 0, held & tables.others > 0
    for lag in range(1, len(places)):
        apart = places[lag:] - places[:-lag]
        near = apart <= tables.reach.max()
        if not near.any():
            break
        at = np.flatnonzero(near & begins[:-lag] & follows[lag:])
        both = _unpacked(held[at])[:, tables.one] & _unpacked(held[at + lag])[:, tables.other]
        both &= apart[at][:, None] <= tables.reach
        pair, which = np.nonzero(both)
        ideas[sentence[at[pair]], tables.both[which]] = True


def _signs(some: Sentences, kinds: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which signs, of addresses, labels and the like, sentences may hold: (n, n_signs)."""
    page = some.page
    letters = page.letters
    found = np.zeros((len(page.start), len(SIGNS)), dtype=np.bool_)
    places = np.flatnonzero(kinds & _SIGN)
    first, before, behind = letters[places], letters[places - 1], letters[places + 1]
    # In an address: not the end of a sentence, one slash or an exclamation mark.
    part = np.ones(len(places), dtype=np.bool_)
    part[first == ord(".")] = False
    part |= (kinds[places + 1] & _WORD > 0) | (before == ord("w"))
    part &= (first != ord("/")) | (behind == ord("/"))
    part &= (first != ord("!")) | (behind == ord("["))
    places = places[part]
    place, sign = np.nonzero(_SIGNS_OF[letters[places]])
    found[page.sentences_with(places)[place], sign] = True
    return found[some.number] | _BEGUN_BY[letters[page.start[some.number]]]


class _Stretches(NamedTuple):
    """Stretches of sentences that hold ideas: see ``concepts.windows``; shape (n,) each."""

    most: NDArray[np.float64]
    """Log-odds, at most."""
    text: NDArray[np.intp]
    first: NDArray[np.intp]
    """Of the sentences with ideas, the first and the last one."""
    last: NDArray[np.intp]
    lone: NDArray[np.bool_]
    """Whether it holds the only orders among statements."""

    def take(self, which: NDArray[np.intp]) -> _Stretches:
        """Return some of them, by number."""
        most, text, first, last, lone = self
        return _Stretches(most[which], text[which], first[which], last[which], lone[which])


def _stretches(
    tables: _Tables,
    page: Page,
    number: NDArray[np.intp],
    ideas: NDArray[np.bool_],
    signs: NDArray[np.bool_],
) -> _Stretches:
    """Return the stretches of all texts, given the sentences with ideas."""
    known = tables.known
    text = page.text[number]
    lone = known.number["order among statements"]
    first_order = np.full(len(page.views), np.iinfo(np.intp).max)
    last_order = np.full(len(page.views), -1)
    orders = np.flatnonzero(ideas[:, tables.orders].any(axis=1))
    np.minimum.at(first_order, text[orders], number[orders])
    np.maximum.at(last_order, text[orders], number[orders])
    others = np.diff(page.first) - (last_order - first_order + 1)
    last_order[others < MIN_STATEMENTS] = np.iinfo(np.intp).max
    place = np.full(len(page.start) + MAX_JOINED, -1)
    place[number] = np.arange(len(number))
    found = []
    joined, besides = ideas.copy(), signs.copy()
    for more in range(MAX_JOINED):
        last = number + more
        row = place[last]
        there = (row >= 0) & (page.text[np.minimum(last, len(page.start) - 1)] == text)
        joined[there] |= ideas[row[there]]
        besides[there] |= signs[row[there]]
        if more > 1:
            there &= (
                page.end[np.minimum(last, len(page.start) - 1)] - page.start[number]
                <= JOINED_LENGTH
            )
        at = np.flatnonzero(there)
        held = joined[at]
        held[:, lone] = (number[at] <= first_order[text[at]]) & (last_order[text[at]] <= last[at])
        most = np.empty(len(at))
        for first in range(0, len(at), _TOGETHER):
            part = slice(first, first + _TOGETHER)
            most[part] = _added(tables, held[part]) + _most(tables, held[part], besides[at[part]])
        found.append(_Stretches(most, text[at], at, row[at], held[:, lone]))
    most, text, one, other, alone = map(np.concatenate, zip(*found, strict=True))
    return _Stretches(most, text, one, other, alone)


def _added(tables: _Tables, held: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return log-odds of ideas, shape (n,); of very many of them, without adding up: infinite."""
    n = held.sum(axis=1)
    held = held & (n <= MANY)[:, None]
    row, idea = np.nonzero(held)
    behind = np.cumsum(held.sum(axis=1))[row]
    other, first = _ranges(np.arange(1, len(row) + 1), behind)
    one = np.repeat(np.arange(len(row)), np.diff(first))
    weights = [tables.single[idea], tables.pairs[idea[one], idea[other]]]
    rows = np.concatenate([row, row[one]])
    total = np.bincount(rows, np.concatenate(weights), minlength=len(held))
    return np.where(n > MANY, np.inf, tables.known.bias + total)


def _most(
    tables: _Tables, held: NDArray[np.bool_], signs: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the most that signs could add to the log-odds of ideas, shape (n,)."""
    most = np.zeros(len(held))
    for column in np.flatnonzero(signs.any(axis=0)).tolist():
        row, sign = np.flatnonzero(signs[:, column]), tables.signs[column]
        # Each of a pair of signs is given half of what they add together.
        pairs = tables.together[sign]
        added = tables.single[sign] + (held[row] * pairs).sum(axis=1)
        added += (signs[row] * np.maximum(pairs[tables.signs], 0.0)).sum(axis=1) / 2
        most[row] += np.maximum(added, 0.0)
    return most


def _unpacked(masks: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return bits one by one, shape (n, 64)."""
    little = masks.astype("<u8", copy=False).view(np.uint8).reshape(len(masks), 8)
    return np.unpackbits(little, axis=1, bitorder="little").view(np.bool_)
