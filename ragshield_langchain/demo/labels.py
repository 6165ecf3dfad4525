"""The second part of the demo: flipped labels are kept out of a FAISS store."""

from __future__ import annotations

import gzip
import json
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from ragshield_core import Batch, Guard, Policy, Quarantine, Report
from ragshield_core.detectors import LabelCentroidDetector
from ragshield_core.errors import RAGShieldError
from ragshield_core.findings import printable, why
from ragshield_core.tools.evaluate.rates import DetectionRates
from ragshield_langchain.demo.console import console, faiss_store, shown_call, step, title
from ragshield_langchain.vectorstore import GuardedVectorStore

# Of the entries: six tenths are the knowledge base, the rest arrives as the new batch.
SHARE_KNOWN = 0.6
SHOWN = 8
TOP_K = 3
COLUMNS = ("id", "text", "label")


def show_flipped_labels(
    rows: list[dict[str, str]],
    vectors: NDArray[np.float32],
    model: Embeddings,
    *,
    flipped: float,
    fpr: float | None,
    quarantine: Callable[[str], Quarantine],
    rng: np.random.Generator,
) -> None:
    """Guard a FAISS store against flipped labels, and show what happens.

    Parameters
    ----------
    rows
        Of id, text and label.
    vectors
        Of their texts, shape (n_rows, dim), rows of unit length.
    model
        That made them.
    flipped
        Share of the new entries whose label is flipped, [0, 1].
    fpr
        Accepted false-positive rate; ``None`` for the default threshold.
    quarantine
        Returns the quarantine, given the URL of a temporary one.
    rng
        Of the split and of the flips.
    """
    title("Flipped labels in, flipped labels held")
    order = rng.permutation(len(rows))
    n_known = round(SHARE_KNOWN * len(rows))
    known, new = order[:n_known], order[n_known:]
    labels = [row["label"] for row in rows]
    claimed, poisoned = flip([labels[row] for row in new], flipped, rng)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        held = quarantine(f"sqlite:///{folder}/quarantine.db")
        guard = Guard(
            [LabelCentroidDetector()],
            policy=Policy(quarantine_at=fpr or 0.01),
            quarantine=held,
        )
        guard.fit(
            Batch.of(
                ids=[rows[row]["id"] for row in known],
                texts=[rows[row]["text"] for row in known],
                embeddings=vectors[known],
                labels=[labels[row] for row in known],
            )
        )
        if fpr is not None:
            guard.calibrate(fpr=fpr)
        unguarded = faiss_store(model, vectors.shape[1])
        inner = faiss_store(model, vectors.shape[1])
        for store in (unguarded, inner):
            add(store, rows, known, [labels[row] for row in known], vectors)
        guarded = GuardedVectorStore(inner, guard=guard)

        step(f"Knowledge base of {n_known} entries, {len(set(labels))} labels, in a FAISS store")
        step(
            f"New batch of {len(new)} entries; of {int(poisoned.sum())} the label is flipped. "
            "Written to the bare store, and through the guard:"
        )
        start = time.perf_counter()
        add(guarded, rows, new, claimed, vectors)
        seconds = time.perf_counter() - start
        add(unguarded, rows, new, claimed, vectors)
        report = guarded.last_report
        show_decisions(report, poisoned, guard.calibrated)
        console.print(f"{seconds * 1000 / len(new):.2f} ms per entry, embedding left out\n")
        show_rates(report, poisoned)
        show_retrieval(unguarded, guarded, report, poisoned, labels, rows, new)
        show_release(guarded, report, poisoned)
        held.close()


def read_rows(path: Path, limit: int, rng: np.random.Generator) -> list[dict[str, str]]:
    """Return rows of id, text and label, at most ``limit`` of a file of the user's.

    Raises
    ------
    RAGShieldError
        If a line is not a JSON object with these three strings, or there is one label only.
    """
    if path.suffix == ".gz":
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    else:
        text = path.read_text("utf-8")
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({column: str(row[column]) for column in COLUMNS})
        except (ValueError, KeyError, TypeError) as error:
            msg = (
                f"line {number} of {path} is not a JSON object with id, text and label "
                f"({type(error).__name__}); each line must have all three."
            )
            raise RAGShieldError(msg) from error
    if len(rows) > limit:
        rows = [rows[row] for row in np.sort(rng.permutation(len(rows))[:limit])]
    if len({row["label"] for row in rows}) < 2:  # noqa: PLR2004
        msg = f"{path} has fewer than two labels; label detectors compare an entry with both."
        raise RAGShieldError(msg)
    return rows


def flip(
    labels: list[str], share: float, rng: np.random.Generator
) -> tuple[list[str], NDArray[np.bool_]]:
    """Return labels of which a share is replaced by another one, and which."""
    kinds = sorted(set(labels))
    flipped = np.zeros(len(labels), dtype=np.bool_)
    flipped[rng.permutation(len(labels))[: round(share * len(labels))]] = True
    steps = rng.integers(1, max(2, len(kinds)), len(labels))
    claimed = [
        kinds[(kinds.index(label) + step) % len(kinds)] if is_flipped else label
        for label, step, is_flipped in zip(labels, steps.tolist(), flipped.tolist(), strict=True)
    ]
    return claimed, flipped


def add(
    store: Any,
    rows: list[dict[str, str]],
    chosen: NDArray[np.intp],
    claimed: list[str],
    vectors: NDArray[np.float32],
) -> None:
    """Write rows into a store, guarded or not, with the labels that are claimed for them."""
    store.add_embeddings(
        [(rows[row]["text"], vectors[row]) for row in chosen],
        metadatas=[{"label": label} for label in claimed],
        ids=[rows[row]["id"] for row in chosen],
    )


def show_decisions(report: Report, poisoned: NDArray[np.bool_], calibrated: bool) -> None:  # noqa: FBT001
    """Print how many were admitted, and the first of those that were not, with the numbers."""
    held = ~report.admitted
    rule = "calibrated" if calibrated else "default threshold 0"
    table = Table(title=f"{report.summary()} ({rule})")
    for column in ("entry", "score", "truth", "why"):
        table.add_column(column, justify="right" if column == "score" else "left")
    rows = np.flatnonzero(held).tolist()
    # Mistakes first: they are what a user has to live with.
    rows.sort(key=lambda row: (bool(poisoned[row]), -report.decisions[row].findings[0].score))
    for row in rows[:SHOWN]:
        decision = report.decisions[row]
        table.add_row(
            Text(printable(decision.entry_id)),
            f"{decision.findings[0].score:+.3f}",
            "flipped" if poisoned[row] else Text("clean", style="yellow"),
            Text(printable(why(decision))),
        )
    if len(rows) > SHOWN:
        table.caption = f"and {len(rows) - SHOWN} more"
    console.print(table)


def show_rates(report: Report, poisoned: NDArray[np.bool_]) -> None:
    """Print precision and recall against the known truth."""
    held = ~report.admitted
    rates = DetectionRates.of(poisoned, held)
    step(
        f"Against the known truth: precision {rates.precision:.2f}, recall {rates.recall:.2f}, F1 "
        f"{rates.f1:.2f}, false-positive rate {rates.fpr:.3f} ({int((held & poisoned).sum())} "
        f"flipped entries held, {int((~held & poisoned).sum())} missed, "
        f"{int((held & ~poisoned).sum())} clean ones held)"
    )


def show_retrieval(
    unguarded: VectorStore,
    guarded: VectorStore,
    report: Report,
    poisoned: NDArray[np.bool_],
    labels: list[str],
    rows: list[dict[str, str]],
    new: NDArray[np.intp],
) -> None:
    """Print what one query finds without and with the guard."""
    caught = np.flatnonzero(~report.admitted & poisoned)
    if caught.size == 0:
        return
    scores = [report.decisions[row].findings[0].score for row in caught]
    victim = rows[new[caught[int(np.argmax(scores))]]]
    query = " ".join(victim["text"].split()[:12])
    truth = {row["id"]: label for row, label in zip(rows, labels, strict=True)}
    table = Table(title=Text(f"Top {TOP_K} for: {printable(query, 80)} ..."))
    for column in ("store", "entry", "label says", "truth", "text"):
        table.add_column(column)
    for name, store in (("unguarded", unguarded), ("guarded", guarded)):
        for document in store.similarity_search(query, k=TOP_K):
            claimed, entry_id = document.metadata["label"], str(document.id)
            wrong = claimed != truth[entry_id]
            table.add_row(
                name,
                Text(printable(entry_id)),
                Text(printable(claimed), style="bold red" if wrong else ""),
                Text(printable(truth[entry_id])),
                Text(printable(textwrap.shorten(document.page_content, 60))),
            )
        table.add_section()
    console.print(table)


def show_release(
    store: GuardedVectorStore,
    report: Report,
    poisoned: NDArray[np.bool_],
) -> None:
    """Release an entry that was held by mistake, or say how it would be done."""
    mistakes = np.flatnonzero(~report.admitted & ~poisoned)
    if mistakes.size:
        entry_id = report.decisions[int(mistakes[0])].entry_id
        step("A clean entry was held. A person looks at it and puts it back, vector and all:")
        with shown_call(f"store.release([{entry_id!r}], by='you')"):
            store.release([entry_id], by="you")
        found = [document.id for document in store.get_by_ids([entry_id])]
        console.print(Text(f"in the store now: {found}; still held: {store.quarantine.count()}"))
    elif not report.admitted.all():
        entry_id = report.quarantined[0].entry_id
        step("No clean entry was held. Releasing one would be:")
        console.print(Text(f"  store.release([{entry_id!r}], by='you')", style="cyan"))
