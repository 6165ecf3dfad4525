"""Vectors of corpora without stored vectors: embedded once, and cached in a folder.

python benchmarks/vectors.py doc_sites.npz xquad_passages.npz   # imports `ids`, `embeddings`
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from corpora import read_rows
from numpy.typing import ArrayLike
from rich.progress import Progress

from ragshield_core.huggingface.minilm import MiniLM

VARIABLE = "RAGSHIELD_VECTORS"
SAVED_EVERY = 1_000  # texts; an interrupted run loses at most these


def vectors_folder() -> Path:
    """Return the folder of vectors: ``RAGSHIELD_VECTORS``, else a folder in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(VARIABLE) or cache / "ragshield-benchmarks")


def use_folder(folder: Path | None) -> None:
    """Use another folder of vectors in this process and its children."""
    if folder is not None:
        os.environ[VARIABLE] = str(folder)


class Model(Protocol):
    """An embedding model."""

    def embed(self, texts: Sequence[str], progress: Callable[[int], object]) -> ArrayLike:
        """Return a vector of each text; ``progress`` gets the number of newly finished texts."""
        ...


def embedded(
    name: str, texts: Sequence[str], model: Callable[[], Model] | None = None
) -> np.ndarray:
    """Return the vectors of texts, shape (n, dim), unit length.

    Parameters
    ----------
    name
        Name of the file in the folder of vectors; several sets of texts may share one.
    texts
        The texts; each is embedded once, and then found by its hash.
    model
        Makes the model of all vectors in that file, where a text is missing; MiniLM by default.
    """
    path = vectors_folder() / f"{name}.npz"
    known = _read(path)
    keys = [_key(text) for text in texts]
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    if missing:
        _embed(name, path, known, missing, (model or MiniLM)())
    found = np.array([known[key] for key in keys], dtype=np.float32).reshape(len(keys), -1)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def take_over(path: Path) -> None:
    """Import vectors of the corpus with the file's name, made with the same model."""
    with np.load(path, allow_pickle=False) as file:
        vectors = dict(zip(file["ids"].tolist(), file["embeddings"], strict=True))
    texts = {row["id"]: row["text"] for row in read_rows(path.stem)}
    kept = vectors_folder() / f"{path.stem}.npz"
    _save(kept, _read(kept) | {_key(texts[i]): vector for i, vector in vectors.items()})


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _embed(
    name: str, path: Path, known: dict[str, np.ndarray], missing: dict[str, str], model: Model
) -> None:
    keys = list(missing)
    with Progress(transient=True) as progress:
        task = progress.add_task(f"embedding {name}", total=len(keys))
        for start in range(0, len(keys), SAVED_EVERY):
            part = keys[start : start + SAVED_EVERY]
            vectors = model.embed(
                [missing[key] for key in part], lambda n: progress.advance(task, n)
            )
            known.update(zip(part, np.array(vectors, dtype=np.float16), strict=True))
            _save(path, known)


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return dict(zip(file["keys"].tolist(), file["embeddings"], strict=True))


def _save(path: Path, known: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez(file, keys=np.array(list(known)), embeddings=np.array(list(known.values())))
    part.replace(path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        take_over(Path(name))
