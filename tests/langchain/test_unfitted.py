"""A guard that knows nothing, and one that began with nothing, say so and what to do."""

import warnings

import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from store_kinds import KINDS
from support import DIM, CountingEmbeddings, guard_of, the_one

from ragshield_core.detectors import InstructionDetector
from ragshield_langchain import GuardedVectorStore, UnfittedGuardWarning

TEXTS = [f"billing {n}" for n in range(5)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_guard_that_knows_nothing_of_what_its_store_holds_is_warned_of(kind, make_store):
    inner = make_store(kind, CountingEmbeddings(), DIM)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        first = GuardedVectorStore(inner, guard=guard_of())  # a new one
        first.add_texts(TEXTS)
    with pytest.warns(UnfittedGuardWarning, match=r"holds 5 entries.*adopt.*Guard\.load") as seen:
        GuardedVectorStore(inner, guard=guard_of())
    assert the_one(seen, UnfittedGuardWarning).filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        GuardedVectorStore(inner, guard=first.guard)
        GuardedVectorStore.adopt(inner, guard=guard_of(), progress=False)
        GuardedVectorStore(inner, guard=guard_of(InstructionDetector()))  # compares with nothing


async def test_adopting_in_the_background_warns_of_nothing():
    inner = InMemoryVectorStore(CountingEmbeddings())
    inner.add_texts(TEXTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfittedGuardWarning)
        await GuardedVectorStore.aadopt(inner, guard=guard_of(), progress=False)
