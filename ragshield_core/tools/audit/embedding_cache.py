"""Vectors of texts in a folder, so that an interrupted run does not embed them again."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragshield_core.errors import InvalidBatchError
from ragshield_core.state import replace_file

# About a second of work with a small model on one core: what an interruption can cost.
CHUNK_TEXTS = 64

# Texts among which those of like length are looked for: of all of a large knowledge base the long
# ones would come last, and who waits would see it get slower and slower.
WINDOW = 1_024

FORMAT = "ragshield embeddings 1"
# Bytes that name a text, so many that nobody finds another with the same.
DIGEST = 20
# Files whose vectors are at hand: those of texts of one window, as a rule.
AT_HAND = 64


class _Place(NamedTuple):
    """Where the vector of a text is."""

    path: Path
    row: int


class _Kept(NamedTuple):
    """What a file has: the digests of texts, and their vectors, shape (n, dim)."""

    digests: list[bytes]
    vectors: NDArray[np.float32]


def by_length(texts: Sequence[str]) -> NDArray[np.intp]:
    """Return an order in which texts of like length follow each other.

    What is embedded together is padded to the longest text: of 640 passages of an encyclopaedia,
    all-MiniLM-L6-v2 took a third less time in this order.

    Parameters
    ----------
    texts
        Any number.

    Returns
    -------
    NDArray[np.intp]
        Shape (n_texts,): rows, the shortest text of each :data:`WINDOW` first.

    Examples
    --------
    >>> by_length(["of ferries", "tide", "jetty"]).tolist()
    [1, 2, 0]
    """
    lengths = np.array([len(text) for text in texts], dtype=np.intp)
    return np.lexsort((lengths, np.arange(len(texts)) // WINDOW))


class CachedEmbedder:
    """Embed texts in chunks, and keep the vectors of each in a file, with digests of its texts.

    A text is not embedded again by the same model, whatever else has changed in the knowledge base;
    of what is left, texts of like length are embedded together. Files are written whole or not at
    all.

    Parameters
    ----------
    embed
        Returns one vector per text.
    model
        Names the model: other names, other files.
    folder
        Made when the first chunk is written.
    """

    def __init__(self, embed: Callable[[list[str]], ArrayLike], model: str, folder: Path) -> None:
        self._embed = embed
        self._model = model
        self._folder = folder
        self._of_model = _digest(FORMAT, model).hex()[:16]  # the names of its files begin with it
        self._at_hand: dict[Path, NDArray[np.float32]] = {}

    def chunks(self, texts: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of at most :data:`CHUNK_TEXTS` texts at a time, in order.

        Raises
        ------
        InvalidBatchError
            If the model does not return one vector per text, or others than before.
        """
        digests = [_digest(text) for text in texts]
        places = self._kept()
        parts = _missing(texts, digests, places)
        for start in range(0, len(texts), CHUNK_TEXTS):
            chunk = np.s_[start : start + CHUNK_TEXTS]
            while (vectors := self._found(digests[chunk], places)) is None:
                part = next(parts, None)
                if part is None:  # somebody has removed a file
                    parts = _missing(texts[chunk], digests[chunk], places)
                else:
                    self._add(part, places)
            yield vectors

    def _kept(self) -> dict[bytes, _Place]:
        """Return where the vectors of texts are, by the digests of these."""
        places: dict[bytes, _Place] = {}
        for path in sorted(self._folder.glob(f"{self._of_model}-*.npz")):
            if (kept := _read(path)) is not None:
                places.update({one: _Place(path, row) for row, one in enumerate(kept.digests)})
        return places

    def _found(
        self, digests: Sequence[bytes], places: dict[bytes, _Place]
    ) -> NDArray[np.float32] | None:
        """Return the vectors of texts; ``None`` where one is missing, or its file by now."""
        rows = []
        for digest in digests:
            if digest not in places:
                return None
            path, row = places[digest]
            vectors = self._vectors_in(path)
            if vectors is None:
                for lost in [one for one, place in places.items() if place.path == path]:
                    del places[lost]
                return None
            rows.append(vectors[row])
        if len({len(row) for row in rows}) > 1:
            msg = (
                f"the embedder {self._model!r} returns vectors of another length than those that "
                f"{self._folder} has of it; delete that folder."
            )
            raise InvalidBatchError(msg)
        return np.stack(rows)

    def _add(self, part: Mapping[bytes, str], places: dict[bytes, _Place]) -> None:
        """Embed texts, given by their digests, and write their vectors into a file."""
        vectors = self._embedded(list(part.values()))
        path = self._folder / f"{self._of_model}-{_digest(*map(bytes.hex, part)).hex()}.npz"
        _write(path, vectors, list(part))
        self._remember(path, vectors)
        places.update({digest: _Place(path, row) for row, digest in enumerate(part)})

    def _vectors_in(self, path: Path) -> NDArray[np.float32] | None:
        vectors = self._at_hand.pop(path, None)
        if vectors is None:
            kept = _read(path)
            vectors = None if kept is None else kept.vectors
        if vectors is not None:
            self._remember(path, vectors)
        return vectors

    def _remember(self, path: Path, vectors: NDArray[np.float32]) -> None:
        self._at_hand[path] = vectors
        while len(self._at_hand) > AT_HAND:  # the one that was asked for the longest ago
            del self._at_hand[next(iter(self._at_hand))]

    def _embedded(self, texts: list[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self._embed(texts), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):  # noqa: PLR2004
            msg = (
                f"the embedder {self._model!r} returned an array of shape {vectors.shape} for "
                f"{len(texts)} texts, expected ({len(texts)}, dim)."
            )
            raise InvalidBatchError(msg)
        return vectors


def _missing(
    texts: Sequence[str], digests: Sequence[bytes], places: Mapping[bytes, _Place]
) -> Iterator[dict[bytes, str]]:
    """Yield the texts without a vector, each once, to be embedded together, by their digests."""
    left = {d: text for d, text in zip(digests, texts, strict=True) if d not in places}
    names = list(left)
    order = by_length(list(left.values())).tolist()
    for start in range(0, len(order), CHUNK_TEXTS):
        yield {names[n]: left[names[n]] for n in order[start : start + CHUNK_TEXTS]}


def _digest(*parts: str) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(data)}:".encode())  # no text can imitate the border to the next
        digest.update(data)
    return digest.digest()


def _read(path: Path) -> _Kept | None:
    """Return what a file has, or None where it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            vectors, digests = file["vectors"], file["digests"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    whole = vectors.dtype == np.float32 and vectors.ndim == 2 and digests.dtype == np.uint8  # noqa: PLR2004
    if not whole or digests.shape != (len(vectors), DIGEST):
        return None
    return _Kept([bytes(row) for row in digests], vectors)


def _write(path: Path, vectors: NDArray[np.float32], digests: Sequence[bytes]) -> None:
    """Write a file so that an interruption leaves the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, DIGEST)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, vectors=vectors, digests=rows)
    replace_file(path, buffer.getvalue())
