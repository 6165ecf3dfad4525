"""Which framework an object is of, and the adapter that knows such objects; none is imported here.

The classes that an object inherits from tell the framework: by the package that defines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from ragshield_core.model.errors import CanaryError

if TYPE_CHECKING:
    from ragshield_core.tools.canary.embedder import Embedder
    from ragshield_core.tools.canary.knowledge_base import KnowledgeBase
    from ragshield_core.tools.canary.passages import Passage

T = TypeVar("T")

# An adapter names its Framework in this group of entry points, under the package that the classes
# of its framework come from.
ENTRY_POINT_GROUP = "ragshield.frameworks"
# The adapters that come with the core are found where nothing is installed, too: in a source tree.
OURS = (
    EntryPoint("langchain_core", "ragshield_langchain.canary:LangChain", ENTRY_POINT_GROUP),
    EntryPoint("llama_index", "ragshield_llamaindex.canary:LlamaIndex", ENTRY_POINT_GROUP),
)


class Framework:
    """What objects of one framework are to canaries; an adapter subclasses it.

    Each method returns None for an object that it does not know, as those here do for all.
    """

    def knowledge_base(self, source: Any) -> KnowledgeBase | None:  # noqa: ARG002 - for subclasses
        """Return the knowledge base that a store, an index or a retriever asks."""
        return None

    def passage(self, item: Any) -> Passage | None:  # noqa: ARG002
        """Return something that was retrieved as a passage."""
        return None

    def embedder(self, model: Any) -> Embedder | None:  # noqa: ARG002
        """Return the interface to an embedding model."""
        return None

    def answerer(self, source: Any) -> Callable[[str], Any] | None:  # noqa: ARG002
        """Return the function that answers a query."""
        return None


def by_framework(thing: Any, ask: Callable[[Framework], T | None]) -> T | None:
    """Return what the framework of an object makes of it, None where it is of none.

    Parameters
    ----------
    thing
        Any object.
    ask
        A method of :class:`Framework`, applied to the object.

    Raises
    ------
    CanaryError
        If the adapter of its framework cannot be imported, or is none.
    """
    for framework in _frameworks_of(type(thing)):
        made = ask(framework)
        if made is not None:
            return made
    return None


def _frameworks_of(kind: type) -> Iterator[Framework]:
    """Yield the frameworks that a class is of, that of the class itself first."""
    packages = (str(parent.__module__).partition(".")[0] for parent in kind.__mro__)
    for package in dict.fromkeys(packages):
        framework = _framework(package)
        if framework is not None:
            yield framework


@cache
def _framework(package: str) -> Framework | None:
    found = (*OURS, *entry_points(group=ENTRY_POINT_GROUP))
    point = next((point for point in found if point.name == package), None)
    if point is None:
        return None
    try:
        framework = point.load()
    except ImportError as error:
        msg = (
            f"objects of {package} are known by {point.value}, which cannot be imported ({error}); "
            "install what it needs (pip install 'ragshield[all]' for the adapters of RAGShield), "
            "or pass functions in place of such objects."
        )
        raise CanaryError(msg) from error
    if not (isinstance(framework, type) and issubclass(framework, Framework)):
        msg = (
            f"the entry point {point.name!r} of the group {point.group!r} names {point.value}, "
            "expected a subclass of ragshield_core.tools.canary.Framework."
        )
        raise CanaryError(msg)
    return framework()
