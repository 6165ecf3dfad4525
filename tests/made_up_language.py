"""A language made up here: entries in it, salad of its words, and another language."""

import numpy as np
from support import entries

SYLLABLES = (
    "ba be bo da del do fan fi ga gor hu jen ka kel lan lo mar mi nor nu pa pen ro sil ta tu"
)


def lexicon(n, seed, endings):
    rng = np.random.default_rng(seed)
    stems = {"".join(rng.choice(SYLLABLES.split(), rng.integers(2, 4))) for _ in range(2 * n)}
    return [stem + endings[i % len(endings)] for i, stem in enumerate(sorted(stems))][:n]


NOUNS = lexicon(500, 1, ["", "tion", "er", "ness"])
VERBS = lexicon(200, 2, ["s", "ed", "ates"])
ADJECTIVES = lexicon(200, 3, ["al", "ive", "y"])
FRAMES = (
    "the {a} {n} of the {n} {v} in the {n} , and the {n} {v} a {n} with it .",
    "it was in the {n} that a {n} {v} the {a} {n} , which is not the {n} of the {n} .",
    "on the {n} there is a {n} that {v} , but for the {a} {n} it {v} to the {n} .",
)
FOREIGN = (
    "dol {n} zu dol {n} {v} kem zu {a} {n} , {v} ut dol {n} nek .",
    "kem ut {n} {v} nek zu dol {a} {n} , ip dol {n} {v} kem .",
)


def sentence(rng, frames=FRAMES, lexicons=(NOUNS, VERBS, ADJECTIVES)):
    words = rng.choice(frames).split()
    for i, word in enumerate(words):
        if word in ("{n}", "{v}", "{a}"):
            choices = lexicons["nva".index(word[1])]
            words[i] = choices[min(int(rng.pareto(0.7)), len(choices) - 1)]
    return " ".join(words).capitalize().replace(" ,", ",").replace(" .", ".")


def article(rng, n_sentences=3, **options):
    return " ".join(sentence(rng, **options) for _ in range(n_sentences))


def salad(rng, n_words):
    """Return rare words of all classes, in no order and without function words."""
    return " ".join(rng.choice([*NOUNS[50:], *VERBS[50:], *ADJECTIVES[50:]], n_words))


def articles(n, seed, prefix="kb"):
    rng = np.random.default_rng(seed)
    return entries([article(rng) for _ in range(n)], prefix)


def poisoned(n, seed):
    """Return articles with salad in front, behind or inside, and salad alone."""
    rng = np.random.default_rng(seed)
    texts = []
    for i in range(n):
        text, piece = article(rng, 4), salad(rng, 20)
        first, rest = text.split(". ", 1)
        texts.append(
            (f"{piece} {text}", f"{text} {piece}", f"{first}. {piece} {rest}", piece)[i % 4]
        )
    return entries(texts, "bad")
