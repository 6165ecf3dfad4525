"""``ragshield demo``: poison in, wrong answer; guard on, right answer; then flipped labels."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ragshield_core import Quarantine
from ragshield_core.tools.evaluate.help_desk import help_desk
from ragshield_langchain.demo.console import console, embed
from ragshield_langchain.demo.labels import read_rows, show_flipped_labels
from ragshield_langchain.demo.poisoning import show_poisoning


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            help="JSONL (or .jsonl.gz) with id, text, label, for flipped labels in your own "
            "entries; default: a help desk of our own, and poison for one of its questions."
        ),
    ] = None,
    flipped: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the batch with flipped labels.")
    ] = 0.2,
    fpr: Annotated[
        float | None,
        typer.Option(
            help="Accepted false-positive rate of the labels' detector; without it, its default "
            "threshold."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many entries of --data.")] = 2000,
    database: Annotated[
        str | None, typer.Option(help="Keep the quarantine of labels there (SQLAlchemy URL).")
    ] = None,
    namespace: Annotated[str, typer.Option(help="Of the tenant, in --database.")] = "default",
    seed: Annotated[int, typer.Option(help="Of the split and of the flips.")] = 13,
) -> None:
    """Poison a knowledge base with and without a guard, and show what happens."""
    warnings.simplefilter("ignore", DeprecationWarning)  # langchain-community is being sunset
    logging.getLogger("ragshield").setLevel(logging.ERROR)  # the tables say it all
    rng = np.random.default_rng(seed)
    rows = help_desk() if data is None else read_rows(data, limit, rng)
    model, vectors = embed([row["text"] for row in rows])
    if data is None:
        show_poisoning(rows, vectors, model)
    labelled = [number for number, row in enumerate(rows) if "label" in row]
    show_flipped_labels(
        [rows[number] for number in labelled],
        vectors[labelled],
        model,
        flipped=flipped,
        fpr=fpr,
        quarantine=lambda url: Quarantine(database or url, namespace=namespace),
        rng=rng,
    )
    if database is None:
        console.print("\nTo keep the quarantine: ragshield demo --database sqlite:///ragshield.db")
    console.print("To look at one: ragshield quarantine list --database sqlite:///ragshield.db")
