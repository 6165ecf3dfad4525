"""A cache of text vectors in a folder, so that an interrupted run does not embed texts again."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice, repeat
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.model.errors import InvalidBatchError, SourceError

# About a second of work with a small model on one core, the most that an interruption loses.
CHUNK_TEXTS = 64

# Texts are sorted by length in windows of this size: in a large knowledge base sorted as a whole,
# the long texts would come last, and progress would become slower and slower.
WINDOW = 1_024

FILE = "embeddings.sqlite"
TABLE = (
    "CREATE TABLE IF NOT EXISTS vectors (model TEXT, digest BLOB, vector BLOB, "
    "PRIMARY KEY (model, digest)) WITHOUT ROWID"
)


def by_length(texts: Sequence[str]) -> NDArray[np.intp]:
    """Return an order of rows in which texts of like length follow each other.

    The shortest text of each :data:`WINDOW` is first. Texts embedded together are padded to the
    longest: for 640 encyclopaedia passages, this order took all-MiniLM-L6-v2 a third less time.

    >>> by_length(["of ferries", "tide", "jetty"]).tolist()
    [1, 2, 0]
    """
    lengths = np.array([len(text) for text in texts], dtype=np.intp)
    return np.lexsort((lengths, np.arange(len(texts)) // WINDOW))


class CachedEmbedder:
    """Embeds texts in chunks, and keeps the vectors in a database, keyed by text digests.

    A model embeds each text once, whatever else changes in the knowledge base; texts of similar
    length are embedded together. Each model name has its own vectors. The folder is created when
    the first texts are embedded.
    """

    def __init__(self, embed: Callable[[list[str]], ArrayLike], model: str, folder: Path) -> None:
        self._embed = embed
        self._model = model
        self._path = folder / FILE

    def chunks(self, texts: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of at most :data:`CHUNK_TEXTS` texts at a time, in order.

        Raises
        ------
        InvalidBatchError
            If the model does not return one vector per text, or changes their length.
        SourceError
            If the database is damaged.
        """
        digests = [_digest(text) for text in texts]
        with self._opened() as database:
            found = database.execute("SELECT digest FROM vectors WHERE model = ?", (self._model,))
            known = {digest for (digest,) in found}
            left = {d: text for d, text in zip(digests, texts, strict=True) if d not in known}
            names = list(left)
            order = iter([names[row] for row in by_length(list(left.values())).tolist()])
            for start in range(0, len(texts), CHUNK_TEXTS):
                chunk = digests[start : start + CHUNK_TEXTS]
                while not left.keys().isdisjoint(chunk):
                    part = list(islice(order, CHUNK_TEXTS))
                    vectors = self._embedded([left.pop(digest) for digest in part])
                    rows = zip(repeat(self._model), part, map(np.ndarray.tobytes, vectors))
                    with database:  # all of them, or none
                        database.executemany(
                            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows
                        )
                query = "SELECT vector FROM vectors WHERE model = ? AND digest = ?"
                stored = [database.execute(query, (self._model, d)).fetchone()[0] for d in chunk]
                if len({len(row) for row in stored}) > 1:
                    msg = (
                        f"the embedder {self._model!r} returns vectors of another length than "
                        f"those that {self._path} has of it; delete that file."
                    )
                    raise InvalidBatchError(msg)
                yield np.stack([np.frombuffer(row, dtype=np.float32) for row in stored])

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of some texts, shape (n_texts, dim); raises as :meth:`chunks`."""
        return np.concatenate(list(self.chunks(texts)))

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        folder = self._path.parent
        if not folder.exists():  # a Git hook may run where Git does not ignore it yet
            folder.mkdir(parents=True, exist_ok=True)
            folder.joinpath(".gitignore").write_text("*\n", encoding="utf-8")
        try:
            with closing(sqlite3.connect(self._path, timeout=60)) as database:
                database.execute(TABLE)
                yield database
        except sqlite3.DatabaseError as error:
            msg = f"{self._path} cannot be used ({error}); delete it, and texts are embedded anew."
            raise SourceError(msg) from error

    def _embedded(self, texts: list[str]) -> NDArray[np.float32]:
        # Tokenizers refuse halves of surrogate pairs.
        readable = [text.encode("utf-8", "replace").decode() for text in texts]
        vectors = np.asarray(self._embed(readable), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):  # noqa: PLR2004
            msg = (
                f"the embedder {self._model!r} returned an array of shape {vectors.shape} for "
                f"{len(texts)} texts, expected ({len(texts)}, dim)."
            )
            raise InvalidBatchError(msg)
        return vectors


def _digest(text: str) -> bytes:
    """Return the digest of a text, long enough that nobody finds a collision."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).digest()
