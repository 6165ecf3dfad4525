"""The first part of the demo: one question of a help desk, poisoned as PoisonedRAG does it."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from ragshield_core import Guard, Quarantine
from ragshield_core.findings import printable
from ragshield_core.tools.evaluate.attacks import craft_passages
from ragshield_langchain.demo.console import console, faiss_store, step, title
from ragshield_langchain.vectorstore import GuardedVectorStore

QUESTION = "How long does a refund take?"
WRONG_ANSWER = "two years"
N_CRAFTED, TOP_K = 5, 3
# 414 entries justify one in twenty; a knowledge base of a thousand and more one in a hundred.
FPR = 0.05


def show_poisoning(
    rows: list[dict[str, str]], vectors: NDArray[np.float32], model: Embeddings
) -> None:
    """Poison a store and a guarded one, and show what is retrieved and answered from each.

    Parameters
    ----------
    rows
        Of the knowledge base, with id and text.
    vectors
        Of their texts, shape (n_rows, dim), rows of unit length.
    model
        That made them.
    """
    title("Poison in, wrong answer; guard on, right answer")
    crafted = [
        {"id": f"crafted-{number}", "text": text}
        for number, text in enumerate(craft_passages(QUESTION, WRONG_ANSWER, N_CRAFTED), start=1)
    ]
    theirs = np.array(model.embed_documents([row["text"] for row in crafted]), dtype=np.float32)
    bare, inner = (faiss_store(model, vectors.shape[1]) for _ in range(2))
    for store in (bare, inner):
        _write(store, rows, vectors)
    guarded = GuardedVectorStore.adopt(
        inner, guard=Guard.default(FPR, quarantine=Quarantine("sqlite://")), progress=False
    )
    step(
        f"A knowledge base of {len(rows)} entries in a FAISS store, adopted by a guard at {FPR:.0%}"
    )
    console.print(Text(f"  {QUESTION}  ->  {_answer(bare, model)}"))

    step(f"{N_CRAFTED} passages that say {WRONG_ANSWER!r} are written to the bare store")
    _write(bare, crafted, theirs)
    _show_retrieved(bare, model)

    step("The same passages, through the guard")
    _write(guarded, crafted, theirs)
    report = guarded.last_report
    console.print(Text(f"  {report.summary()}"))
    for decision in report.quarantined[:1]:
        evidence = printable(decision.findings[0].evidence, 400)
        console.print(Text(f"  {decision.entry_id}: {evidence}"))
    _show_retrieved(guarded, model)


def _write(store: Any, rows: list[dict[str, str]], vectors: NDArray[np.float32]) -> None:
    store.add_embeddings(
        [(row["text"], vector) for row, vector in zip(rows, vectors, strict=True)],
        metadatas=[{} for _ in rows],
        ids=[row["id"] for row in rows],
    )


def _retrieved(store: VectorStore) -> list[Document]:
    return store.similarity_search(QUESTION, k=TOP_K)


def _answer(store: VectorStore, model: Embeddings) -> str:
    """Return the retrieved sentence that is nearest to the question and is none itself.

    It stands for a language model, which would say the same in more words.
    """
    sentences = [
        sentence
        for document in _retrieved(store)
        for sentence in re.split(r"(?<=[.?!]) ", document.page_content)
        if not sentence.endswith("?")
    ]
    question, *vectors = np.array(model.embed_documents([QUESTION, *sentences]))
    return sentences[int(np.argmax(np.array(vectors) @ question))]


def _show_retrieved(store: VectorStore, model: Embeddings) -> None:
    table = Table(title=Text(f"Top {TOP_K} for: {QUESTION}"))
    for column in ("entry", "text"):
        table.add_column(column)
    for document in _retrieved(store):
        crafted = str(document.id).startswith("crafted")
        table.add_row(
            Text(printable(str(document.id)), style="bold red" if crafted else ""),
            Text(printable(textwrap.shorten(document.page_content, 80))),
        )
    console.print(table)
    console.print(Text(f"  {QUESTION}  ->  {printable(_answer(store, model), 200)}", style="bold"))
