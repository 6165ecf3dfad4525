"""What canaries need of a knowledge base: to ask it, and to take out what drift is traced to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragshield_core.model.entries import Batch
from ragshield_core.tools.canary.embedder import Vectors
from ragshield_core.tools.canary.passages import Passage, as_passage

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.store.guarded import Guarded


class KnowledgeBase(ABC):
    """A knowledge base that can be asked; subclass it for one of your own.

    Only :meth:`search` has to be defined. What :meth:`size` says tells growth from takeover.
    Without the methods of :class:`WritableKnowledgeBase`, suspects are held, but stay in it.

    Examples
    --------
    >>> class Shelf(KnowledgeBase):
    ...     def __init__(self, books):
    ...         self.books = books
    ...     def search(self, queries, vectors, k):
    ...         found = [[i for i, text in self.books.items() if q in text] for q in queries]
    ...         return [[Passage(id=i, text=self.books[i]) for i in ids[:k]] for ids in found]
    ...     def size(self):
    ...         return len(self.books)
    >>> [[p.id for p in found] for found in Shelf({"a": "on tea"}).search(["tea"], None, 6)]
    [['a']]
    """

    @abstractmethod
    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return at most k passages per query, best first.

        Parameters
        ----------
        queries
            Texts.
        vectors
            Shape (n_queries, dim), of any length, as the embedding model gave them; None without a
            model.
        k
            More than the places that are compared: what would move up counts as well.
        """

    def size(self) -> int | None:
        """Return how many entries there are, if that is known."""
        return None

    def texts(self, ids: Sequence[str]) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """Return what stands under ids now, where it tells.

        Between a traceback and what is done about it, hours may pass: what was corrected meanwhile
        is not taken out.
        """
        return {}

    @property
    def embedder(self) -> Any:
        """The embedding model that it carries, of any kind; None if there is none."""
        return None

    @property
    def guarded(self) -> Guarded | None:
        """The guarded store that holds what is taken out of it; None if it has no guard."""
        return None

    @property
    def quarantine(self) -> Quarantine | None:
        """Where its guard holds entries; None if it has no guard."""
        return None if self.guarded is None else self.guarded.quarantine


class FunctionKnowledgeBase(KnowledgeBase):
    """A function that is asked one query after the other.

    Parameters
    ----------
    find
        A function of a query and of k, which returns whatever :func:`as_passage` takes.
    """

    def __init__(self, find: Callable[[str, int], Any]) -> None:
        self._find = find

    def search(
        self,
        queries: Sequence[str],
        vectors: Vectors | None,  # noqa: ARG002 - it has an embedder of its own
        k: int,
    ) -> list[list[Passage]]:
        """Return what the function finds."""
        return [[as_passage(item) for item in list(self._find(q, k))[:k]] for q in queries]


class WritableKnowledgeBase(KnowledgeBase):
    """A knowledge base that entries can be taken out of, and put back into."""

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> Sequence[str]:
        """Delete entries, which are held by now; missing ones are ignored.

        Returns
        -------
        Sequence[str]
            Those that could not be deleted.
        """

    @abstractmethod
    def restore(self, entries: Batch) -> None:
        """Put back entries that were held, under their ids."""
