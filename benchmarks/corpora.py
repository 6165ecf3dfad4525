"""Real corpora with their vectors, from the folder in ``RAGSHIELD_DATA``."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ragshield_core import Batch

# Clean passages, by name of the corpus, and the column of their lineage.
CLEAN = {
    "wiki_passages": "title",
    "redundant_web_passages": None,
    "nq_target_contexts": "title",
    "hotpotqa_target_contexts": "title",
    "msmarco_half_target_contexts": None,
    "near_duplicate_docs": None,
    "banking77": None,
}
ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path:
    """Return the folder of corpora: ``RAGSHIELD_DATA``, else ``shared/data`` beside the clone."""
    folder = Path(os.environ.get("RAGSHIELD_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        msg = f"{folder} is not a folder; set RAGSHIELD_DATA to the folder with the corpora."
        raise SystemExit(msg)
    return folder


def load(name: str, *, text: str = "text", lineage: str | None = None) -> Batch:
    """Return a corpus, with the vectors stored beside it.

    Parameters
    ----------
    name
        File name without ending.
    text
        Column of the text; every column but ``"text"`` has its own file of vectors.
    lineage
        Column of the lineage, if any.
    """
    rows = read_rows(name)
    suffix = "" if text == "text" else f".{text}"
    with np.load(data_folder() / "embeddings" / f"{name}{suffix}.npz", allow_pickle=False) as file:
        ids, embeddings = file["ids"].tolist(), file["embeddings"]
    if ids != [row["id"] for row in rows]:
        msg = f"the vectors of {name}{suffix} do not belong to the rows of {name}."
        raise SystemExit(msg)
    return Batch.of(
        ids=ids,
        texts=[row[text] for row in rows],
        embeddings=embeddings,
        labels=[row.get("label") for row in rows],
        lineages=[row.get(lineage) for row in rows] if lineage else None,
    )


def many(n: int, longest: int | None = None) -> Batch:
    """Return n clean entries of several corpora.

    If the corpora have fewer, entries repeat with noisy vectors and shuffled words: no copies. Of
    these, repeated ones keep at most ``longest`` words, by default all.
    """
    parts = [load(name, lineage=lineage) for name, lineage in CLEAN.items()]
    texts = [text for part in parts for text in part.texts]
    vectors = np.concatenate([part.vectors for part in parts])
    lineages = [lineage for part in parts for lineage in part.lineages]
    rng = np.random.default_rng(0)
    order = rng.permutation(len(texts))
    rows = np.resize(order, n)
    again = np.arange(n) >= len(order)
    vectors = vectors[rows]
    noise = rng.normal(size=(int(again.sum()), vectors.shape[1])) / np.sqrt(vectors.shape[1])
    vectors[again] += (0.6 * noise).astype(np.float32)
    chosen = [texts[row] for row in rows.tolist()]
    for number in np.flatnonzero(again).tolist():
        chosen[number] = " ".join(rng.permutation(chosen[number].split()).tolist()[:longest])
    return Batch.of(
        ids=[f"entry-{number}" for number in range(n)],
        texts=chosen,
        embeddings=vectors,
        lineages=[lineages[row] for row in rows.tolist()],
    )


def from_source(batch: Batch, source: str | Sequence[str | None] | None) -> Batch:
    """Return the entries with a source, if this version of `Batch` has sources.

    Parameters
    ----------
    batch
        The entries.
    source
        One source for all entries, or one for each.
    """
    if "sources" not in {column.name for column in fields(Batch)}:
        return batch
    one = source is None or isinstance(source, str)
    columns: dict[str, Any] = {"sources": (source,) * len(batch) if one else tuple(source or ())}
    return replace(batch, **columns)


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a corpus."""
    with gzip.open(data_folder() / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
