"""Anything that retrieves, answers or embeds, behind one interface each; no framework is imported.

Objects of LangChain and LlamaIndex are known by the methods that they have.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.canary.sizes import size_of
from ragshield_core.entries import Batch
from ragshield_core.errors import CanaryError
from ragshield_core.findings import printable

Vectors = NDArray[np.float32]

# Texts whose vectors tell whether the embedder is still the same: short, long, and not English.
PROBES = (
    "canary",
    "What was paid back, to whom, and why did it take 14 days?",
    "Der Fluss tritt im Frühjahr über die Ufer.",
)
# Metadata keys under which programs keep the id of a chunk, and of what it was cut from.
ID_KEYS = ("id", "chunk_id", "_id")
LINEAGE_KEYS = ("source", "lineage", "doc_id", "file_path", "title")
# Keys under which chains return what they answer.
ANSWER_KEYS = ("answer", "result", "output", "response", "text")
# Entries whose similarities to all queries are held at a time: 32 MB for 1,000 queries.
BLOCK = 8_192
# float32 products differ by so much with their shape: equals are told apart by their row instead,
# so that entries added elsewhere do not change a ranking.
TIE, DECIMALS = 1e-5, 5


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


class Retriever(Protocol):
    """What the monitor asks."""

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return at most k passages per query, best first.

        The vectors are as the embedding model gave them: of any length, None without a model.
        """

    def size(self) -> int | None:
        """Return how many entries there are, if that is known."""


class MatrixRetriever:
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
        self.embeddings = embedder

    def size(self) -> int:
        """Return how many entries there are."""
        return len(self.batch)

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return the k nearest entries of each query."""
        if vectors is None:
            vectors = Embedder.of(self.embeddings).queries(queries)
        if len(self.batch) and vectors.shape[1] != self.batch.dim:
            msg = (
                f"the queries have vectors of dimension {vectors.shape[1]}, the knowledge base of "
                f"{self.batch.dim}; embed both with the same model."
            )
            raise CanaryError(msg)
        rows, _ = nearest(_unit(vectors, len(queries)), self.batch.embeddings, k)
        # Many queries meet the same entries.
        made = {row: self._passage(row) for row in np.unique(rows).tolist()}
        return [[made[row] for row in found] for found in rows.tolist()]

    def _passage(self, row: int) -> Passage:
        batch = self.batch
        return Passage(
            id=batch.ids[row],
            text=batch.texts[row],
            lineage=batch.lineages[row],
            metadata=batch.metadatas[row],
            vector=batch.embeddings[row],
        )


def nearest(
    queries: Vectors, entries: Vectors, k: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the k most similar entries of each query, best first, and their similarities.

    Parameters
    ----------
    queries, entries
        Shapes (n_queries, dim) and (n_entries, dim), float32.
    k
        At most n_entries count.

    Returns
    -------
    tuple[NDArray[np.intp], NDArray[np.float32]]
        Both of shape (n_queries, min(k, n_entries)).
    """
    k = min(k, len(entries))
    n = len(queries)
    rows = np.empty((n, 0), dtype=np.intp)
    best = np.empty((n, 0), dtype=np.float32)
    for start in range(0, len(entries), BLOCK):
        similarity = queries @ entries[start : start + BLOCK].T
        if best.shape[1] < k:
            # Of a block, no more than k can stay, and those that are equal to the last of them.
            few = min(k, similarity.shape[1])
            bars = np.partition(similarity, -few, axis=1)[:, -few]
        else:
            bars = best[:, -1]  # few entries of later blocks are among the best
        hits = np.nonzero(similarity >= bars[:, None] - TIE)
        more_rows, more = _ragged(n, hits, np.round(similarity[hits], DECIMALS), start)
        rows, best = np.hstack([rows, more_rows]), np.hstack([best, more])
        order = np.argsort(-best, axis=1, kind="stable")[:, :k]  # of equals, the earlier row
        rows, best = (
            np.take_along_axis(rows, order, axis=1),
            np.take_along_axis(best, order, axis=1),
        )
    return rows, best


def _ragged(
    n: int, hits: tuple[NDArray[np.intp], ...], values: Vectors, start: int
) -> tuple[NDArray[np.intp], Vectors]:
    """Return hits, which come sorted by query, as rows of equal length."""
    counts = np.bincount(hits[0], minlength=n)
    width = int(counts.max(initial=0))
    place = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.zeros((n, width), dtype=np.intp)
    best = np.full((n, width), -np.inf, dtype=np.float32)
    rows[hits[0], place] = hits[1] + start
    best[hits[0], place] = values
    return rows, best


class Embedder:
    """One embedding model, of whichever kind; build it with :meth:`of`."""

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
            A LangChain ``Embeddings``, a LlamaIndex ``BaseEmbedding``, or a function from a list of
            texts to one vector each.

        Raises
        ------
        CanaryError
            If it is none of these.
        """
        if isinstance(model, Embedder):
            return model
        if hasattr(model, "embed_query") and hasattr(model, "embed_documents"):
            if hasattr(model, "embed_queries"):  # ours has it: several at once cost less
                return cls(model.embed_queries, model.embed_documents)
            return cls(lambda texts: [model.embed_query(t) for t in texts], model.embed_documents)
        if hasattr(model, "get_query_embedding") and hasattr(model, "get_text_embedding_batch"):
            return cls(
                lambda texts: [model.get_query_embedding(t) for t in texts],
                model.get_text_embedding_batch,
            )
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
        return _unit(vectors, len(texts)) if unit else vectors

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors of texts, shape (n_texts, dim)."""
        return _unit(self._documents(list(texts)), len(texts))


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


def _unit(given: ArrayLike, n: int) -> Vectors:
    vectors = _matrix(given, n)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


def embedder_of(source: Any) -> Any:
    """Return the embedding model that a store, an index or a retriever carries, or None."""
    if isinstance(source, Batch):  # its embeddings are no model
        return None
    for holder in (source, getattr(source, "vectorstore", None)):
        for name in ("embeddings", "_embed_model"):
            if (model := getattr(holder, name, None)) is not None:
                return model
    return None


def as_retriever(source: Any) -> Retriever:
    """Return the interface to anything that retrieves.

    Parameters
    ----------
    source
        A LangChain vector store or retriever, a LlamaIndex index or retriever, something with a
        ``search`` and a ``size`` as :class:`Retriever`, or a function of a query, or of a query and
        k, that returns passages, documents, nodes, dicts, pairs of an id and a text, or texts.

    Raises
    ------
    CanaryError
        If it is none of these.
    """
    if isinstance(source, type):
        msg = f"retriever is the class {source.__name__}, expected an instance of it."
        raise CanaryError(msg)
    if isinstance(source, Batch):
        return MatrixRetriever(source)
    if callable(getattr(source, "search", None)) and callable(getattr(source, "size", None)):
        retriever: Retriever = source
        return retriever
    if hasattr(source, "similarity_search"):
        return _Store(source)
    if hasattr(source, "retrieve"):  # LlamaIndex; its retrievers have no invoke
        return _Function(lambda query, _k: source.retrieve(query), source)
    if hasattr(source, "as_retriever"):
        return _Function(
            lambda query, k: source.as_retriever(similarity_top_k=k).retrieve(query), source
        )
    if hasattr(source, "invoke"):
        return _Function(lambda query, _k: source.invoke(query), source)
    if callable(source):
        if _takes_two(source, {"k", "top_k", "n", "n_results", "limit", "similarity_top_k"}):
            return _Function(source)
        return _Function(lambda query, _k: source(query))
    msg = (
        f"retriever is a {type(source).__name__}, expected a LangChain vector store or retriever, "
        "a LlamaIndex index or retriever, or a function of a query."
    )
    raise CanaryError(msg)


class _Function:
    """One call per query."""

    def __init__(self, find: Callable[[str, int], Any], source: Any = None) -> None:
        self._find = find
        self._source = source

    def size(self) -> int | None:
        """Return how many entries the index behind it holds; a mere function does not tell."""
        return size_of(self._source)

    def search(
        self,
        queries: Sequence[str],
        vectors: Vectors | None,  # noqa: ARG002 - it has an embedder of its own
        k: int,
    ) -> list[list[Passage]]:
        """Return what the function finds."""
        return [[as_passage(item) for item in list(self._find(q, k))[:k]] for q in queries]


class _Store:
    """A LangChain vector store: by vector where it can, all queries at once where it is FAISS."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._by_vector = True

    def size(self) -> int | None:
        """Return how many entries the store holds, where it can be asked."""
        return size_of(self._store)

    def search(
        self, queries: Sequence[str], vectors: Vectors | None, k: int
    ) -> list[list[Passage]]:
        """Return the k nearest documents of each query."""
        if vectors is None or not vectors.size:
            return [self._texts(query, k) for query in queries]
        index = self._faiss()
        if index is not None:
            return self._at_once(index, vectors, k)
        return [self._one(query, vector, k) for query, vector in zip(queries, vectors, strict=True)]

    def _faiss(self) -> Any:
        """Return the index of LangChain's FAISS store, none of any other."""
        store = self._store
        known = all(hasattr(store, name) for name in ("index_to_docstore_id", "docstore"))
        return getattr(store, "index", None) if known else None

    def _at_once(self, index: Any, vectors: Vectors, k: int) -> list[list[Passage]]:
        store = self._store
        _, found = index.search(np.ascontiguousarray(vectors), min(k, max(1, index.ntotal)))
        made: dict[int, Passage] = {}
        for number in np.unique(found[found >= 0]).tolist():
            document = store.docstore.search(store.index_to_docstore_id[number])
            made[number] = as_passage(document, vector=_reconstructed(index, number))
        return [[made[number] for number in row if number >= 0] for row in found.tolist()]

    def _one(self, query: str, vector: Vectors, k: int) -> list[Passage]:
        if self._by_vector:
            try:
                found = self._store.similarity_search_by_vector(vector.tolist(), k=k)
                return [as_passage(document) for document in found]
            except (NotImplementedError, AttributeError):
                self._by_vector = False
        return self._texts(query, k)

    def _texts(self, query: str, k: int) -> list[Passage]:
        return [as_passage(document) for document in self._store.similarity_search(query, k=k)]


def _reconstructed(index: Any, number: int) -> Vectors | None:
    try:
        vector = np.asarray(index.reconstruct(number), dtype=np.float32)
    except (RuntimeError, AttributeError):  # an index that keeps no vectors
        return None
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0.0 else None


def as_passage(item: Any, vector: Vectors | None = None) -> Passage:
    """Return what a retriever found as a passage.

    Raises
    ------
    CanaryError
        If it is nothing that holds a text.
    """
    if isinstance(item, Passage):
        return item
    if isinstance(item, str):
        return Passage(id=f"text:{_digest(item)}", text=item)
    if isinstance(item, tuple) and len(item) == 2:  # noqa: PLR2004 - a document and a score, or
        if isinstance(item[0], str) and isinstance(item[1], str):  # an id and a text
            return Passage(id=item[0], text=item[1])
        return as_passage(item[0], vector)
    if isinstance(item, Mapping):
        item_id, text = item.get("id"), item.get("text", item.get("page_content"))
        metadata = item.get("metadata", {k: v for k, v in item.items() if k not in ("id", "text")})
        return _passage(item_id, text, metadata, item.get("lineage"), vector)
    if hasattr(item, "page_content"):
        return _passage(getattr(item, "id", None), item.page_content, item.metadata, None, vector)
    node = getattr(item, "node", item)
    if hasattr(node, "node_id") and hasattr(node, "get_content"):
        lineage = getattr(node, "ref_doc_id", None)
        return _passage(node.node_id, node.get_content(), node.metadata, lineage, vector)
    msg = (
        f"the retriever returned a {type(item).__name__}, expected documents, nodes, dicts with "
        "'id' and 'text', pairs of id and text, or texts."
    )
    raise CanaryError(msg)


def _passage(given: Any, text: Any, metadata: Any, lineage: Any, vector: Vectors | None) -> Passage:
    if not isinstance(text, str):
        msg = f"a retrieved entry has a text of type {type(text).__name__}, expected a str."
        raise CanaryError(msg)
    known = dict(metadata or {})
    if given is None:
        given = next((known[key] for key in ID_KEYS if known.get(key)), None)
    if lineage is None:
        lineage = next((known[key] for key in LINEAGE_KEYS if known.get(key)), None)
    return Passage(
        id=f"text:{_digest(text)}" if given is None else str(given),
        text=text,
        lineage=None if lineage is None else str(lineage),
        metadata=known,
        vector=vector,
    )


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
    if hasattr(source, "invoke"):
        return lambda query, _texts: answer_text(source.invoke(query))
    if hasattr(source, "query"):
        return lambda query, _texts: answer_text(source.query(query))
    if callable(source):
        if _takes_two(source, {"texts", "passages", "contexts", "context", "documents"}):
            return lambda query, texts: answer_text(source(query, texts))
        return lambda query, _texts: answer_text(source(query))
    msg = (
        f"answerer is a {type(source).__name__}, expected a LangChain Runnable, a LlamaIndex query "
        "engine, or a function of a query (and of the texts retrieved for it)."
    )
    raise CanaryError(msg)


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
    for name in ("content", "response", "text"):  # a message's content may be a list of blocks
        value = getattr(answer, name, None)
        if isinstance(value, str):
            return value.strip()
    return str(answer).strip()


def _takes_two(function: Callable[..., Any], names: Collection[str]) -> bool:
    """Return whether a function has a second parameter that it needs, or that has such a name.

    Others are options, such as the ``config`` of a bound ``invoke``.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [p for p in parameters if p.kind in kinds][1:2]
    return any(p.default is inspect.Parameter.empty or p.name in names for p in second)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
