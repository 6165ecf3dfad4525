"""Everything that retrieves, embeds or answers, of any framework, behind one interface each."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError
from ragshield_core.model.findings import printable

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.store.guarded import Guarded

Revision = tuple[str, str]  # an entry's id, and the hash of its text

# Metadata keys under which programs keep the id of a chunk, and of what it was cut from.
ID_KEYS = ("id", "chunk_id", "_id")
LINEAGE_KEYS = ("source", "lineage", "doc_id", "file_path", "title")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passage:
    """One retrieved entry.

    Attributes
    ----------
    id, text, lineage, metadata
        As in the knowledge base; where a retriever gives no id, a hash of the text stands for it.
    vector
        Shape (dim,), unit length, where the retriever knows it.
    """

    id: str
    text: str
    lineage: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Vectors | None = None
    _revision: str = field(default="", init=False, repr=False)

    @property
    def revision(self) -> str:
        """A hash of the text: an entry that was changed under its old id is new."""
        if not self._revision:  # asked for several times in every check
            object.__setattr__(self, "_revision", _digest(self.text))
        return self._revision

    @classmethod
    def of(
        cls,
        entry_id: Any,
        text: Any,
        metadata: Any = None,
        lineage: Any = None,
        vector: Vectors | None = None,
    ) -> Self:
        """Return a passage of what a program keeps of an entry.

        Parameters
        ----------
        entry_id, lineage
            Default: what the metadata names, see :data:`ID_KEYS` and :data:`LINEAGE_KEYS`.
        text, metadata, vector
            As of a passage.

        Raises
        ------
        CanaryError
            If the text is none.
        """
        if not isinstance(text, str):
            msg = f"a retrieved entry has a text of type {type(text).__name__}, expected a str."
            raise CanaryError(msg)
        known = dict(metadata or {})
        if entry_id is None:
            entry_id = next((known[key] for key in ID_KEYS if known.get(key)), None)
        if lineage is None:
            lineage = next((known[key] for key in LINEAGE_KEYS if known.get(key)), None)
        return cls(
            id=f"text:{_digest(text)}" if entry_id is None else str(entry_id),
            text=text,
            lineage=None if lineage is None else str(lineage),
            metadata=known,
            vector=vector,
        )


def as_passage(item: Any) -> Passage:
    """Return what a retriever found as a passage.

    Raises
    ------
    CanaryError
        If it is nothing that holds a text.
    """
    if isinstance(item, Passage):
        return item
    if isinstance(item, str):
        return Passage.of(None, item)
    if isinstance(item, tuple) and len(item) == 2:  # noqa: PLR2004 - a document and a score, or
        if isinstance(item[0], str) and isinstance(item[1], str):  # an id and a text
            return Passage(id=item[0], text=item[1])
        return as_passage(item[0])
    if isinstance(item, Mapping):
        rest = {key: value for key, value in item.items() if key not in ("id", "text")}
        metadata = item.get("metadata", rest)
        return Passage.of(item.get("id"), item.get("text"), metadata, item.get("lineage"))
    found = by_framework(item, lambda framework: framework.passage(item))
    if found is not None:
        return found
    msg = (
        f"the retriever returned a {type(item).__name__}, expected documents of LangChain, nodes "
        "of LlamaIndex, dicts with 'id' and 'text', pairs of id and text, or texts."
    )
    raise CanaryError(msg)


def batch_of(passages: Sequence[Passage], vectors: Any = None) -> Batch:
    """Return passages as entries, with these vectors."""
    return Batch.of(
        ids=[p.id for p in passages],
        texts=[p.text for p in passages],
        embeddings=vectors,
        lineages=[p.lineage for p in passages],
        metadatas=[p.metadata for p in passages],
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


Vectors = NDArray[np.float32]

# Texts whose vectors tell whether the embedder is still the same: short, long, and not English.
PROBES = (
    "canary",
    "What was paid back, to whom, and why did it take 14 days?",
    "Der Fluss tritt im Frühjahr über die Ufer.",
)


class Embedder:
    """One embedding model, of whichever kind; :meth:`of` finds out which.

    Parameters
    ----------
    queries, documents
        Functions of a list of texts that return one vector each.
    """

    def __init__(
        self,
        queries: Callable[[list[str]], ArrayLike],
        documents: Callable[[list[str]], ArrayLike],
    ) -> None:
        self._queries = queries
        self._documents = documents

    @classmethod
    def of(cls, model: Any) -> Embedder:
        """Return the interface to a model.

        Parameters
        ----------
        model
            An embedding model of LangChain or LlamaIndex, or a function from a list of texts to one
            vector each.

        Raises
        ------
        CanaryError
            If it is none of these.
        """
        if isinstance(model, Embedder):
            return model
        found = by_framework(model, lambda framework: framework.embedder(model))
        if found is not None:
            return found
        if callable(model):
            return cls(model, model)
        msg = (
            f"embedder is a {type(model).__name__}, expected a LangChain or LlamaIndex embedding "
            "model, or a function from a list of texts to vectors."
        )
        raise CanaryError(msg)

    def queries(self, texts: Sequence[str], *, unit: bool = True) -> Vectors:
        """Return vectors of queries, shape (n_texts, dim).

        Of unit length; or as the model gave them, which is what stores that compare distances want
        to be asked with.
        """
        vectors = _matrix(self._queries(list(texts)), len(texts))
        return unit_vectors(vectors, len(texts)) if unit else vectors

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors of texts, shape (n_texts, dim)."""
        return unit_vectors(self._documents(list(texts)), len(texts))


def unit_vectors(given: ArrayLike, n: int) -> Vectors:
    """Return n vectors as rows of unit length; zeros stay zeros.

    Raises
    ------
    CanaryError
        If they are not n vectors of finite values.
    """
    vectors = _matrix(given, n)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def _matrix(given: ArrayLike, n: int) -> Vectors:
    vectors = np.asarray(given, dtype=np.float32) if n else np.empty((0, 0), "f4")
    if vectors.ndim != 2 or len(vectors) != n:  # noqa: PLR2004 - a matrix
        msg = (
            f"the embedder returned an array of shape {vectors.shape} for {n} texts, expected "
            f"({n}, dim)."
        )
        raise CanaryError(msg)
    if not np.isfinite(vectors).all():
        msg = "the embedder returned values that are not finite; check the model."
        raise CanaryError(msg)
    return vectors


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


# Queries whose similarities to all entries are held at a time: 26 MB for 100,000 entries.
BLOCK = 64
# float32 products differ by less than that with their shape: equals are told apart by their row
# instead, so that entries added elsewhere do not change a ranking.
DECIMALS = 5


class MatrixRetriever(KnowledgeBase):
    """Exact search in a batch by one matrix product: for audits, tests and the command line.

    Parameters
    ----------
    batch
        The knowledge base, with vectors.
    embedder
        For queries whose vectors are not given.
    """

    def __init__(self, batch: Batch, embedder: Any = None) -> None:
        self.batch = batch
        self._embedder = embedder

    @property
    def embedder(self) -> Any:
        """The model for queries, if it was given one."""
        return self._embedder

    def size(self) -> int:
        """Return how many entries there are."""
        return len(self.batch)

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return the k nearest entries of each query."""
        if vectors is None:
            vectors = Embedder.of(self._embedder).queries(queries)
        if len(self.batch) and vectors.shape[1] != self.batch.dim:
            msg = (
                f"the queries have vectors of dimension {vectors.shape[1]}, the knowledge base of "
                f"{self.batch.dim}; embed both with the same model."
            )
            raise CanaryError(msg)
        found = nearest(unit_vectors(vectors, len(queries)), self.batch.embeddings, k)
        # Many queries meet the same entries.
        made = {row: self._passage(row) for row in {row for rows in found for row in rows}}
        return [[made[row] for row in rows] for rows in found]

    def _passage(self, row: int) -> Passage:
        batch = self.batch
        return Passage(
            id=batch.ids[row],
            text=batch.texts[row],
            lineage=batch.lineages[row],
            metadata=batch.metadatas[row],
            vector=batch.embeddings[row],
        )


def nearest(queries: Vectors, entries: Vectors, k: int) -> list[list[int]]:
    """Return the rows of the k most similar entries of each query, best first.

    Parameters
    ----------
    queries, entries
        Shapes (n_queries, dim) and (n_entries, dim), float32.
    k
        At most n_entries count.
    """
    k = min(k, len(entries))
    found: list[list[int]] = []
    for start in range(0, len(queries) if k else 0, BLOCK):
        similarities = np.round(queries[start : start + BLOCK] @ entries.T, DECIMALS)
        thresholds = np.partition(similarities, -k, axis=1)[:, -k]
        for mine, threshold in zip(similarities, thresholds, strict=True):
            rows = np.flatnonzero(mine >= threshold)
            order = np.argsort(-mine[rows], kind="stable")[:k]  # of equals, the earlier row
            found.append(rows[order].tolist())
    return found or [[] for _ in queries]


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


# Names of a function's second parameter where it takes more than a query.
PLACES = ("k", "top_k", "n", "n_results", "limit", "similarity_top_k")
TEXTS = ("texts", "passages", "contexts", "context", "documents")
# Keys under which programs return what they answer, and attributes that hold its text.
ANSWER_KEYS = ("answer", "result", "output", "response", "text")
TEXT_NAMES = ("content", "response", "text")


def as_knowledge_base(source: Any) -> KnowledgeBase:
    """Return the interface to anything that retrieves.

    Parameters
    ----------
    source
        A :class:`KnowledgeBase`; a vector store or retriever of LangChain, an index, retriever or
        query engine of LlamaIndex; a batch; or a function of a query, or of a query and k, that
        returns passages, documents, nodes, dicts, pairs of an id and a text, or texts.

    Raises
    ------
    CanaryError
        If it is none of these.
    """
    if isinstance(source, type):
        msg = f"retriever is the class {source.__name__}, expected an instance of it."
        raise CanaryError(msg)
    if isinstance(source, KnowledgeBase):
        return source
    if isinstance(source, Batch):
        return MatrixRetriever(source)
    found = by_framework(source, lambda framework: framework.knowledge_base(source))
    if found is not None:
        return found
    if callable(source):
        if takes_two(source, PLACES):
            return FunctionKnowledgeBase(source)
        return FunctionKnowledgeBase(lambda query, _k: source(query))
    msg = (
        f"retriever is a {type(source).__name__}, expected a LangChain vector store or retriever, "
        "a LlamaIndex index or retriever, a function of a query, or a subclass of "
        "ragshield_core.tools.canary.KnowledgeBase."
    )
    raise CanaryError(msg)


def as_answerer(source: Any) -> Callable[[str, list[str]], str]:
    """Return the interface to anything that answers: a function of a query and of passages.

    Parameters
    ----------
    source
        A LangChain ``Runnable``, a LlamaIndex query engine, or a function of a query, or of a query
        and the texts retrieved for it.

    Raises
    ------
    CanaryError
        If it is none of these.
    """
    found = by_framework(source, lambda framework: framework.answerer(source))
    if found is not None:
        return _answerer(found)
    if callable(source):
        if takes_two(source, TEXTS):
            return lambda query, texts: answer_text(source(query, texts))
        return _answerer(source)
    msg = (
        f"answerer is a {type(source).__name__}, expected a LangChain Runnable, a LlamaIndex query "
        "engine, or a function of a query (and of the texts retrieved for it)."
    )
    raise CanaryError(msg)


def _answerer(ask: Callable[[str], Any]) -> Callable[[str, list[str]], str]:
    return lambda query, _texts: answer_text(ask(query))


def answer_text(answer: Any) -> str:
    """Return the text of what an answerer returned.

    Raises
    ------
    CanaryError
        If it is a mapping without an answer: an empty one would be the same at every check.
    """
    if isinstance(answer, Mapping):
        found = [answer[key] for key in ANSWER_KEYS if key in answer]
        if not found:
            msg = (
                f"the answerer returned a mapping with {printable(str(sorted(map(str, answer))))}, "
                f"expected one of {', '.join(ANSWER_KEYS)}; return the text of the answer."
            )
            raise CanaryError(msg)
        answer = found[0]
    for name in TEXT_NAMES:  # a message's content may be a list of blocks
        value = getattr(answer, name, None)
        if isinstance(value, str):
            return value.strip()
    return str(answer).strip()


def takes_two(function: Callable[..., Any], names: Collection[str]) -> bool:
    """Return whether a function has a second parameter that it needs, or that has such a name.

    Others are options, such as a configuration.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [p for p in parameters if p.kind in kinds][1:2]
    return any(p.default is inspect.Parameter.empty or p.name in names for p in second)
