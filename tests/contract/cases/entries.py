"""Entries that several detectors are tried on."""

from dataclasses import replace
from unittest import mock

from support import TOPICS, group, join, knowledge_base, passages, topical

from ragshield_core.neighbors import index

KNOWN = knowledge_base(12)
CLEAN = knowledge_base(6, prefix="clean")
SWAPPED = dict(zip(TOPICS, TOPICS[1:] + TOPICS[:1], strict=True))
FLIPPED = join(*(topical(t, 4, label=SWAPPED[t], prefix="flip") for t in TOPICS))

LABELS = {"known": KNOWN, "clean": CLEAN, "poison": FLIPPED}

# Without labels, and enough of them to know what is usual.
GROUPS = {
    "known": passages(300, 2),
    "clean": passages(20, 2, "clean"),
    "poison": join(group(5, 1), group(3, 2)),
}


def said(*texts):
    """Return entries of those texts among passages."""
    return replace(passages(len(texts), 5, "bad"), texts=texts)


TEXTS = {"known": GROUPS["known"], "clean": GROUPS["clean"]}


def learning_with(detector, module, name, value):
    """Return a kind of detector that learns with another constant of a module."""

    class Learning(detector):
        def learn(self, entries):
            with mock.patch.object(module, name, value):
                super().learn(entries)

    return Learning


def approximate(detector):
    """Return a kind of detector whose index is approximate from the first entry on."""
    return learning_with(detector, index, "EXACT_UP_TO", 0)
