"""A guard is of one store, and so should be the namespace of a quarantine."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

from langchain_core.vectorstores import VectorStore

from ragshield_core import Guard, Quarantine

# Of this process, and only as long as they are used.
_STORE_OF: weakref.WeakKeyDictionary[Guard, weakref.ref[VectorStore]] = weakref.WeakKeyDictionary()
_QUARANTINES: weakref.WeakKeyDictionary[Quarantine, weakref.ref[VectorStore]] = (
    weakref.WeakKeyDictionary()
)


class SharedQuarantineWarning(UserWarning):
    """Two stores hold documents in one namespace of a quarantine."""


def claim(guard: Guard, store: VectorStore) -> None:
    """Note that a guard is a store's.

    Raises
    ------
    ValueError
        If it is another's: what it has learned there says nothing here.
    """
    theirs = _alive(_STORE_OF.get(guard))
    if theirs is not None and theirs is not store:
        msg = (
            f"this guard belongs to another {type(theirs).__name__}, and knows what that one holds:"
            " give each store a guard, and a quarantine with a namespace, of its own."
        )
        raise ValueError(msg)
    _STORE_OF[guard] = weakref.ref(store)
    mine = guard.quarantine
    for quarantine, reference in list(_QUARANTINES.items()):
        other = _alive(reference)
        if other is not None and other is not store and _same(quarantine, mine):
            msg = (
                f"two stores hold documents in {mine!r}: release of one would write documents of "
                "the other into it. Give each a namespace: Quarantine(url, namespace=...)."
            )
            warnings.warn(msg, SharedQuarantineWarning, stacklevel=3)
            break
    _QUARANTINES[mine] = weakref.ref(store)


def _same(one: Quarantine, other: Quarantine) -> bool:
    in_memory = one.url in ("sqlite://", "sqlite:///:memory:")
    same = (one.url, one.namespace) == (other.url, other.namespace)
    return one is other or (same and not in_memory)


def _alive(reference: Any) -> VectorStore | None:
    return None if reference is None else reference()
