"""Asking a knowledge base, as if what is in quarantine were not there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ragshield_core.tools.canary.embedder import Vectors
from ragshield_core.tools.canary.knowledge_base import KnowledgeBase
from ragshield_core.tools.canary.passages import Passage, Revision, batch_of

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine


class Found(NamedTuple):
    """What is retrieved per query, and the held entries that retrieval shows among the first."""

    passages: list[list[Passage]]
    still_served: tuple[str, ...]


def search(
    knowledge_base: KnowledgeBase,
    quarantine: Quarantine,
    queries: Sequence[str],
    vectors: Vectors | None,
    k: int,
    *,
    shown: int,
    without: Collection[Revision] = (),
) -> Found:
    """Return the k best passages per query, each once, as if what is held were not there.

    Parameters
    ----------
    knowledge_base
        What is asked.
    quarantine
        What is held there, or confirmed as poisoned, is left out.
    queries, vectors, k
        As of :meth:`KnowledgeBase.search`.
    shown
        Of how many first places it is said what is held and retrieved nevertheless.
    without
        Some more revisions that are left out.
    """
    found = knowledge_base.search(queries, vectors, k)
    held = _held(quarantine, found)
    first = (p for passages in found for p in passages[:shown])
    still_served = tuple(dict.fromkeys(p.id for p in first if (p.id, p.revision) in held))
    held |= {*without}
    wide = k
    while held and any(
        sum((p.id, p.revision) not in held for p in passages) < k <= len(passages)
        for passages in found
    ):
        wide = 2 * wide + len(held)
        wider = knowledge_base.search(queries, vectors, wide)
        if sum(map(len, wider)) <= sum(map(len, found)):
            break
        found = wider
        held = _held(quarantine, found) | {*without}
    listed = []
    for passages in found:  # retrievers that join the results of others may repeat one
        once = {(p.id, p.revision): p for p in passages}
        listed.append([p for revision, p in once.items() if revision not in held][:k])
    return Found(listed, still_served)


def _held(quarantine: Quarantine, found: Sequence[Sequence[Passage]]) -> set[Revision]:
    """Return what is retrieved although it is in quarantine, or confirmed as poisoned."""
    passages = {(p.id, p.revision): p for listed in found for p in listed}
    if not passages or not quarantine.exists():
        return set()
    ids = list(dict.fromkeys(entry_id for entry_id, _ in passages))
    # Of an id, a later revision may be held while the one before is live.
    latest = {i: quarantine.show(i).entry.text for i in quarantine.held_ids(ids)}
    held = {revision for revision, p in passages.items() if latest.get(p.id) == p.text}
    if not quarantine.count("confirmed"):
        return held
    rest = {p.id: p for revision, p in passages.items() if revision not in held}
    confirmed = quarantine.confirmed_among(batch_of(list(rest.values())))
    return held | {(i, rest[i].revision) for i in confirmed}
