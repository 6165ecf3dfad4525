"""A guard is of one store; two stores in one namespace of a quarantine are warned of."""

import warnings

import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from support import CountingEmbeddings, Scripted

from ragshield_core import Guard, Quarantine
from ragshield_langchain import GuardedVectorStore, SharedQuarantineWarning


def bare():
    return InMemoryVectorStore(CountingEmbeddings())


def guard_of(quarantine):
    return Guard([Scripted()], quarantine=quarantine)


def test_a_guard_in_two_stores_is_refused(quarantine):
    inner = bare()
    store = GuardedVectorStore(inner, guard=guard_of(quarantine))
    with pytest.raises(ValueError, match="belongs to another InMemoryVectorStore"):
        GuardedVectorStore(bare(), guard=store.guard)
    GuardedVectorStore(inner, guard=store.guard)  # of the same store


def test_two_stores_in_one_namespace_are_warned_of(on_file):
    first = GuardedVectorStore(bare(), guard=guard_of(Quarantine(on_file)))
    with pytest.warns(SharedQuarantineWarning, match="Give each a namespace") as seen:
        GuardedVectorStore(bare(), guard=guard_of(Quarantine(on_file)))
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedQuarantineWarning)
        GuardedVectorStore(bare(), guard=guard_of(Quarantine(on_file, namespace="second")))
        GuardedVectorStore(first.inner, guard=guard_of(Quarantine(on_file)))
        GuardedVectorStore(bare(), guard=guard_of(Quarantine("sqlite://")))
        GuardedVectorStore(bare(), guard=guard_of(Quarantine("sqlite://")))
