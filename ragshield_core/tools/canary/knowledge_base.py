"""Interfaces to retrievers, embedding models and answerers of any framework."""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.entries import Batch
from ragshield_core.model.errors import CanaryError
from ragshield_core.model.findings import printable

if TYPE_CHECKING:
    from ragshield_core.quarantine import Quarantine
    from ragshield_core.store.guarded import Guarded

Revision = tuple[str, str]  # an entry's id, and the hash of its text

# Metadata keys under which programs keep the id of a chunk, and of its document.
ID_KEYS = ("id", "chunk_id", "_id")
LINEAGE_KEYS = ("source", "lineage", "doc_id", "file_path", "title")


@dataclass(frozen=True, kw_only=True, eq=False)
class Passage:
    """One retrieved entry.

    Attributes
    ----------
    id, text, lineage, metadata
        As in the knowledge base; a hash of the text replaces an id that the retriever lacks.
    vector
        Shape (dim,), unit length, if the retriever knows it.
    """

    id: str
    text: str
    lineage: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Vectors | None = None

    @cached_property
    def revision(self) -> str:
        """A hash of the text: a changed entry under its old id counts as new."""
        return _digest(self.text)

    @classmethod
    def of(
        cls,
        entry_id: Any,
        text: Any,
        metadata: Any = None,
        lineage: Any = None,
        vector: Vectors | None = None,
    ) -> Self:
        """Return the passage of a program's entry.

        A missing id or lineage comes from the metadata, if present there (:data:`ID_KEYS`,
        :data:`LINEAGE_KEYS`).

        Raises
        ------
        CanaryError
            If ``text`` is not a str.
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
    """Return a retriever's result as a passage."""
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
    found: Passage | None = by_framework(item, "passage")
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


class Embedder:
    """Interface to an embedding model of any kind; :meth:`of` recognises the kind.

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
        """Return the interface to a model of LangChain or LlamaIndex, or to a function of texts."""
        if isinstance(model, Embedder):
            return model
        found: Embedder | None = by_framework(model, "embedder")
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

        They have unit length, or with ``unit=False`` the model's own length, which stores that
        compare distances need.
        """
        vectors = _matrix(self._queries(list(texts)), len(texts))
        return unit_vectors(vectors, len(texts)) if unit else vectors

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors of texts, shape (n_texts, dim)."""
        return unit_vectors(self._documents(list(texts)), len(texts))


def unit_vectors(given: ArrayLike, n: int) -> Vectors:
    """Return n vectors as rows of unit length; zeros stay zeros."""
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


# Adapter module for each framework, by the package of its classes. The adapter's functions
# (knowledge_base, passage, embedder, answerer) return None for other objects.
ADAPTERS = {
    "langchain_core": "ragshield_langchain.canary",
    "llama_index": "ragshield_llamaindex.canary",
}


def by_framework(thing: Any, function: str) -> Any:
    """Return the adapter's interface to a framework's object, None for other objects.

    ``function`` names a function of the modules in :data:`ADAPTERS`, whose imports may be missing.
    """
    packages = (str(parent.__module__).partition(".")[0] for parent in type(thing).__mro__)
    for package in dict.fromkeys(packages):
        if package not in ADAPTERS:
            continue
        try:
            adapter = import_module(ADAPTERS[package])
        except ImportError as error:
            msg = (
                f"objects of {package} are known by {ADAPTERS[package]}, which cannot be imported "
                f"({error}); install what it needs (pip install 'ragshield[all]'), or pass "
                "functions in place of such objects."
            )
            raise CanaryError(msg) from error
        made = getattr(adapter, function)(thing)
        if made is not None:
            return made
    return None


class KnowledgeBase(ABC):
    """A searchable knowledge base; subclass it for one of your own.

    Only :meth:`search` has to be defined. :meth:`size` helps to tell growth from takeover. Without
    :meth:`remove` and :meth:`restore`, suspects are held but stay in the knowledge base.

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
            More than the compared places: passages that would move up are needed too.
        """

    def size(self) -> int | None:
        """Return the number of entries, if known."""
        return None

    def texts(self, ids: Sequence[str]) -> Mapping[str, str]:  # noqa: ARG002 - for subclasses
        """Return the current texts of ids, as far as they are known.

        Hours may pass between a traceback and the quarantine: entries that were corrected meanwhile
        stay in the knowledge base.
        """
        return {}

    def remove(self, ids: Sequence[str]) -> Sequence[str]:
        """Delete entries that are held by now, and return the ids that could not be deleted.

        Missing ids are ignored.
        """
        return ids

    def restore(self, entries: Batch) -> None:  # noqa: B027 - optional
        """Put back entries that were held, under their ids."""

    @property
    def embedder(self) -> Any:
        """The knowledge base's embedding model, of any kind; None if there is none."""
        return None

    @property
    def guarded(self) -> Guarded | None:
        """The guarded store, whose quarantine takes deleted entries; None without a guard."""
        return None

    @property
    def quarantine(self) -> Quarantine | None:
        """The guard's quarantine; None without a guard."""
        return None if self.guarded is None else self.guarded.quarantine


class FunctionKnowledgeBase(KnowledgeBase):
    """A function of a query and of k, called for one query after the other."""

    def __init__(self, find: Callable[[str, int], Any]) -> None:
        self._find = find

    def search(
        self,
        queries: Sequence[str],
        vectors: Vectors | None,  # noqa: ARG002 - the function has its own embedder
        k: int,
    ) -> list[list[Passage]]:
        """Return the function's results as passages."""
        return [[as_passage(item) for item in list(self._find(q, k))[:k]] for q in queries]


# Queries whose similarities to all entries are in memory at a time: 26 MB for 100,000 entries.
BLOCK = 64
# Decimals of a similarity. float32 products differ by less with their shape, so equals are ranked
# by row, and entries added elsewhere do not change a ranking.
DECIMALS = 5


class MatrixRetriever(KnowledgeBase):
    """Exact search in a batch by one matrix product: for audits, tests and the command line.

    Parameters
    ----------
    batch
        The knowledge base, with vectors.
    embedder
        Model for queries without given vectors.
    """

    def __init__(self, batch: Batch, embedder: Any = None) -> None:
        self.batch = batch
        self._embedder = embedder

    @property
    def embedder(self) -> Any:
        """The model for queries, if one was given."""
        return self._embedder

    def size(self) -> int:
        """Return the number of entries."""
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
        # Each passage is made once: many queries find the same entries.
        made = {row: self._passage(row) for row in {row for rows in found for row in rows}}
        return [[made[row] for row in rows] for rows in found]

    def passages(self) -> list[Passage]:
        """Return all entries as passages, in their order."""
        return [self._passage(row) for row in range(len(self.batch))]

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
    """Return the rows of the k most similar entries of each query, best first."""
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


def search(
    knowledge_base: KnowledgeBase,
    quarantine: Quarantine,
    queries: Sequence[str],
    vectors: Vectors | None,
    k: int,
    *,
    shown: int,
) -> tuple[list[list[Passage]], tuple[str, ...]]:
    """Return the k best passages per query without held entries and repetitions.

    It also returns the ids of held or confirmed entries that are still retrieved among the first
    ``shown``.
    """
    found = knowledge_base.search(queries, vectors, k)
    held = _held(quarantine, found)
    first = (p for passages in found for p in passages[:shown])
    still_served = tuple(dict.fromkeys(p.id for p in first if (p.id, p.revision) in held))
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
        held = _held(quarantine, found)
    listed = []
    for passages in found:  # retrievers that merge the results of others may repeat a passage
        once = {(p.id, p.revision): p for p in passages}
        listed.append([p for revision, p in once.items() if revision not in held][:k])
    return listed, still_served


def _held(quarantine: Quarantine, found: Sequence[Sequence[Passage]]) -> set[Revision]:
    """Return the retrieved passages that are held or confirmed as poisoned."""
    passages = {(p.id, p.revision): p for listed in found for p in listed}
    if not passages or not quarantine.exists():
        return set()
    ids = list(dict.fromkeys(entry_id for entry_id, _ in passages))
    # A later revision of an id may be held while an earlier one is live.
    latest = {i: quarantine.show(i).entry.text for i in quarantine.held_ids(ids)}
    held = {revision for revision, p in passages.items() if latest.get(p.id) == p.text}
    if not quarantine.count("confirmed"):
        return held
    rest = {p.id: p for revision, p in passages.items() if revision not in held}
    confirmed = quarantine.confirmed_among(batch_of(list(rest.values())))
    return held | {(i, rest[i].revision) for i in confirmed}


# Names of the second parameter of functions that take more than a query.
PLACES = ("k", "top_k", "n", "n_results", "limit", "similarity_top_k")
TEXTS = ("texts", "passages", "contexts", "context", "documents")
# Keys under which programs return an answer, and attributes that hold its text.
ANSWER_KEYS = ("answer", "result", "output", "response", "text")
TEXT_NAMES = ("content", "response", "text")


def as_knowledge_base(source: Any) -> KnowledgeBase:
    """Return the interface to a retriever of any kind: see :class:`CanaryMonitor`."""
    if isinstance(source, type):
        msg = f"retriever is the class {source.__name__}, expected an instance of it."
        raise CanaryError(msg)
    if isinstance(source, KnowledgeBase):
        return source
    if isinstance(source, Batch):
        return MatrixRetriever(source)
    found: KnowledgeBase | None = by_framework(source, "knowledge_base")
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
    """Return the interface to an answerer of any kind: a function of a query and of passages."""
    ask = by_framework(source, "answerer") or source
    if ask is source and callable(source) and takes_two(source, TEXTS):
        return lambda query, texts: answer_text(source(query, texts))
    if callable(ask):
        return lambda query, _texts: answer_text(ask(query))
    msg = (
        f"answerer is a {type(source).__name__}, expected a LangChain Runnable, a LlamaIndex query "
        "engine, or a function of a query (and of the texts retrieved for it)."
    )
    raise CanaryError(msg)


def answer_text(answer: Any) -> str:
    """Return the text of an answer.

    A mapping without an answer is refused, since an empty answer would be equal at every check.
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
    """Return whether a function's second parameter is required or has one of the names.

    Other second parameters are options, such as a configuration.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [p for p in parameters if p.kind in kinds][1:2]
    return any(p.default is inspect.Parameter.empty or p.name in names for p in second)
