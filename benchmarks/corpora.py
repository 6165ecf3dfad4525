"""Real corpora with their vectors, from the folder that ``RAGSHIELD_DATA`` names."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ragshield_core import Batch

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
        Column of the text; any but ``"text"`` has a file of vectors of its own.
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


def read_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a corpus."""
    with gzip.open(data_folder() / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
