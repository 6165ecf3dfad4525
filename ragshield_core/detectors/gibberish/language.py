"""Model of the languages and scripts that a knowledge base holds."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragshield_core.detectors.gibberish.fluency import Tokens, recurrences, slot, tokenized

# Counts of words are in one table of 4 MiB. If two words share a slot, an unknown word counts as
# known, so that a text is judged rather than not.
WORDS = 1 << 20
# The common words are the most frequent ones that make up a third of the knowledge base: some
# thirty function words, which texts of any topic in its languages need. With half of the knowledge
# base, words such as "data" and "form" were among them, which code in texts of other languages
# contains as well.
COMMON = 1 / 3
# The rare words are those beyond the most frequent ones that make up this share.
RARE = 0.7
# A text in a language of the knowledge base has at least this part of the common words of an
# average entry, unless it is code or a list. 98 in 100 passages in other languages have fewer.
FEW_COMMON = 0.45
# A text in a script that few entries use has at least this part of the known words of an average
# entry, or it is in another language: almost no clean entry has fewer.
MIN_KNOWN = 0.65
# A text in another language has at most this part of the known words of an average entry.
LEAST_KNOWN = 0.9
# Words beyond ASCII, such as accented words, are a sign of another language if their share is
# larger than in 95 of 100 entries and larger than one word in 30: names have accents, too.
ACCENTED, MOST_ACCENTED = 1 / 30, 0.95
# In running text of another language, at least this share of all words are recurring words that are
# rare in the knowledge base: its function words. Among eleven languages, in passages of 100 words,
# Turkish has the fewest.
RECURRING = 0.08
# At least this many different words must recur. Optimisers repeat one or two effective words.
RECURRING_WORDS = 3
# In a text of fewer words function words need not recur. If it has less than this part of the known
# words that it needs, gibberish and other languages look the same.
FEW_WORDS, FEW_KNOWN = 64, 0.5
# The scripts of the knowledge base have at least this share of its letters; it only quotes others.
PRINCIPAL = 0.1

_BLOCK = 7  # bits of a code point that share a script, with few exceptions
# Scripts that Japanese and Chinese mix.
_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "FULLWIDTH": "CJK", "IDEOGRAPHIC": "CJK"}


class _Profile(NamedTuple):
    """Counts for each text, shape (n_texts,): words, and letters of scripts."""

    words: NDArray[np.int64]
    known: NDArray[np.int64]
    common: NDArray[np.int64]
    recurring: NDArray[np.int64]  # words that are rare in the knowledge base and recur in the text
    repeated: NDArray[np.int64]  # number of different recurring words
    accented: NDArray[np.int64]  # words beyond ASCII
    main: NDArray[np.int64]  # script of most letters, -1 where none has more than half of them


class Languages:
    """Test of whether a text is in a language of a knowledge base.

    Detectors that compare words with those of the knowledge base cannot judge a text in another
    language. This class learns words and scripts from the texts of the knowledge base, and names
    the texts that no such detector should judge, with the reason:

    - Most letters are of a script that the knowledge base only quotes, and the words are unknown.
    - The common words of the knowledge base are missing, and the text has rare words that recur, as
      function words do in every language, or letters that are rare in the knowledge base.
    - The text is short, and most of its words are unknown.

    Attributes
    ----------
    n_words
        Number of learned words, without forgotten ones.

    Notes
    -----
    The benefit for an attacker is small. Gibberish of an English model's vocabulary consists of
    words in the script of the knowledge base, rarely recurring, and is judged. A text of only
    random letters, accents, words of other languages or repeated words is not judged, nor is
    gibberish inside a German passage. Beside a passage in a language of the knowledge base, which
    brings its common words, nearly all of these texts are judged, and most are found. The attacker
    is therefore limited to a text without any prose that readers of the knowledge base understand,
    and every report names it as not judged.

    Learning and forgetting are exact. :meth:`refresh` measures the usual values, in entries of the
    knowledge base only.

    Examples
    --------
    >>> known = [f"the mill of the town has {n} wheels and a long way to go" for n in
    ...                    ("two", "three", "four")]
    >>> languages = Languages()
    >>> languages.learn(known)
    >>> languages.refresh(known)
    >>> reasons = languages.unheld(["the mill has four wheels", "Это мельница"])
    >>> list(reasons), "CYRILLIC" in reasons[1]
    ([1], True)
    """

    def __init__(self) -> None:
        self.n_words = 0
        self._counts: NDArray[np.int32] = np.zeros(WORDS, dtype=np.int32)
        self._scripts: NDArray[np.int64] = np.zeros(len(_scripts()[1]), dtype=np.int64)
        self._common = 1.0  # least share of all words for a common word
        self._rare = 0.0  # share that every rare word is below
        self._usually_known = 1.0
        self._most_accented = 1.0

    def learn(self, texts: Sequence[str]) -> None:
        """Count the words of texts, and the letters of each script."""
        self._count(texts, 1)

    def forget(self, texts: Sequence[str]) -> None:
        """Subtract learned texts from the counts."""
        self._count(texts, -1)

    def refresh(self, texts: Sequence[str]) -> None:
        """Find the common words, and measure the usual share of known words in new entries.

        The texts are entries of the knowledge base, forgotten for the measurement.
        """
        nonzero = np.sort(self._counts[self._counts > 0])[::-1]
        if len(nonzero):
            up_to = np.cumsum(nonzero) / nonzero.sum()
            places = np.minimum(np.searchsorted(up_to, [COMMON, RARE]), len(nonzero) - 1)
            self._common, self._rare = (nonzero[places] / self.n_words).tolist()
        profile = self._profile(texts)
        n = profile.words.sum()
        if n:
            self._usually_known = float(profile.known.sum() / n)
            some = profile.words > 0
            accented = profile.accented[some] / profile.words[some]
            self._most_accented = max(ACCENTED, float(np.quantile(accented, MOST_ACCENTED)))

    def unheld(self, texts: Sequence[str]) -> dict[int, str]:
        """Return the texts in no language or script of the knowledge base, each with the reason.

        A text in a quoted script with less than :data:`MIN_KNOWN` of the usual known words is in a
        language that the knowledge base lacks.
        """
        found = self._profile(texts)
        words, known = found.words, found.known
        least = self._usually_known * MIN_KNOWN
        principal = self.principal()
        rare_script = (found.main >= 0) & ~principal[found.main] & (known < least * words)
        recurs = (found.recurring >= RECURRING * words) & (found.repeated >= RECURRING_WORDS)
        accents = found.accented > self._most_accented * words
        language = (
            (known < LEAST_KNOWN * self._usually_known * words)
            & (found.common < FEW_COMMON * COMMON * words)
            & (recurs | accents)
        )
        short = (words < FEW_WORDS) & (known < least * FEW_KNOWN * words)
        reasons = {}
        for row in np.flatnonzero(rare_script | language | short).tolist():
            has = (
                f"the knowledge base has {known[row]} of its {words[row]} words, so that it does "
                "not know how such text reads"
            )
            if rare_script[row]:
                name = _scripts()[1][found.main[row]]
                why = f"it is written in a script ({name}) that hardly any entry is written in"
            elif language[row] and accents[row]:
                why = f"{found.accented[row]} words have letters that are rare there"
            elif language[row]:
                why = (
                    f"{found.recurring[row]} words that are rare in the knowledge base recur, as "
                    "those of another language do"
                )
            else:
                why = "the entry is too short to tell another language from gibberish"
            reasons[row] = f"{has}; {why}"
        return reasons

    def principal(self) -> NDArray[np.bool_]:
        """Return the mask of the scripts of a good part of the knowledge base, (n_scripts,)."""
        principal: NDArray[np.bool_] = self._scripts >= PRINCIPAL * max(1, self._scripts.sum())
        return principal

    def quoted(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Return the mask of unknown words next to other words in the same, rare script.

        They are quotations; optimisers of multilingual models change the script from token to
        token.
        """
        words = np.flatnonzero(tokens.letters)
        script, owner = script_of(tokens)[words], tokens.owner[words]
        same = (script[1:] == script[:-1]) & (owner[1:] == owner[:-1])
        beside = np.zeros(len(words), dtype=np.bool_)
        beside[1:] |= same
        beside[:-1] |= same
        unknown = self._counts[slot(tokens.word[words], WORDS)] == 0
        quoted = np.zeros(len(tokens), dtype=np.bool_)
        quoted[words[beside & unknown & ~self.principal()[script]]] = True
        return quoted

    @property
    def usual(self) -> list[float]:
        """The usual values, as :meth:`refresh` has measured them."""
        return [self._common, self._rare, self._usually_known, self._most_accented]

    @usual.setter
    def usual(self, values: Sequence[float]) -> None:
        self._common, self._rare, self._usually_known, self._most_accented = map(float, values)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the counts that are not zero, and the usual values."""
        slots = np.flatnonzero(self._counts)
        arrays: dict[str, NDArray[Any]] = {
            "word_slots": slots.astype(np.uint32),
            "word_counts": self._counts[slots],
            "script_letters": self._scripts.copy(),
        }
        return {"n_words": self.n_words, "usual": self.usual}, arrays

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that :meth:`state` returned."""
        self.n_words = int(values["n_words"])
        self.usual = values["usual"]
        self._counts = np.zeros(WORDS, dtype=np.int32)
        self._counts[arrays["word_slots"]] = arrays["word_counts"]
        self._scripts = arrays["script_letters"].astype(np.int64)

    def _count(self, texts: Sequence[str], sign: int) -> None:
        for _, tokens in tokenized(texts):
            words = tokens.word[tokens.letters]
            np.add.at(self._counts, slot(words, WORDS), np.int32(sign))
            self.n_words += sign * len(words)
            self._scripts += sign * self._letters(tokens)

    def _letters(self, tokens: Tokens) -> NDArray[np.int64]:
        chosen = np.flatnonzero(tokens.letters)
        sizes = (tokens.end - tokens.start)[chosen]
        counted = np.bincount(
            script_of(tokens)[chosen], weights=sizes, minlength=len(self._scripts)
        )
        return np.rint(counted).astype(np.int64)

    def _profile(self, texts: Sequence[str]) -> _Profile:
        n = len(texts)
        counted = np.zeros((6, n), dtype=np.int64)
        keys, letters_of = [], []
        common = max(1.0, self._common * self.n_words)
        for first, tokens in tokenized(texts):
            counts = self._counts[slot(tokens.word, WORDS)]
            letters = tokens.letters
            is_common = counts >= common
            often = recurrences(tokens)
            again = letters & (counts < self._rare * self.n_words) & (often > 0)
            owner = tokens.owner + first
            for row, chosen in enumerate((letters, letters & (counts > 0), letters & is_common)):
                counted[row] += np.bincount(owner[chosen], minlength=n)
            counted[3] += np.bincount(owner[again], minlength=n)
            counted[5] += np.bincount(owner[letters & tokens.accented], minlength=n)
            # Each of the k places of a recurring word counts as one k-th of a different word.
            different = np.bincount(owner[again], 1.0 / (often[again] + 1.0), minlength=n)
            counted[4] += np.rint(different).astype(np.int64)
            # A text has few scripts: count pairs of text and script, not a table of all scripts.
            pairs, inverse = np.unique(
                owner[letters] * len(self._scripts) + script_of(tokens)[letters],
                return_inverse=True,
            )
            keys.append(pairs)
            letters_of.append(np.bincount(inverse, (tokens.end - tokens.start)[letters]))
        main = np.full(n, -1, dtype=np.int64)
        if keys:
            pairs, inverse = np.unique(np.concatenate(keys), return_inverse=True)
            sizes = np.bincount(inverse, np.concatenate(letters_of))
            text, script = np.divmod(pairs, len(self._scripts))
            most = 2.0 * sizes > np.bincount(text, sizes, minlength=n)[text]
            main[text[most]] = script[most]
        words, known, frequent, recurring, repeated, accented = counted
        return _Profile(words, known, frequent, recurring, repeated, accented, main)


def script_of(tokens: Tokens) -> NDArray[np.intp]:
    """Return the script of the first character of each token, shape (n_tokens,)."""
    table, _ = _scripts()
    script: NDArray[np.intp] = table[np.minimum(tokens.first >> np.uint32(_BLOCK), len(table) - 1)]
    return script


@functools.cache
def _scripts() -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """Return the script of each block of 128 characters, and the names of scripts.

    The script of a block is that of most of its letters, by their Unicode names.
    """
    size = 1 << _BLOCK
    names = ["OTHER"]
    table = np.zeros((0x10000 >> _BLOCK) + 1, dtype=np.intp)
    for block in range(len(table)):
        counts: dict[str, int] = {}
        for code in range(block * size, (block + 1) * size):
            character = chr(code)
            if unicodedata.category(character)[0] == "L":
                name = unicodedata.name(character, "OTHER").split()[0].split("-")[0]
                name = _TOGETHER.get(name, name)
                counts[name] = counts.get(name, 0) + 1
        if counts:
            script = max(counts, key=lambda name: counts[name])
            if script not in names:
                names.append(script)
            table[block] = names.index(script)
    table[-1] = names.index("CJK")  # beyond the basic plane: rare ideographs
    return table, tuple(names)
