"""``ragshield demo``: a help desk's question, poisoned as in PoisonedRAG, then guarded."""

from __future__ import annotations

import logging
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ragshield_core.database.naming import database_url
from ragshield_core.model.printing import printable

if TYPE_CHECKING:
    import numpy as np
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore
    from numpy.typing import NDArray

QUESTION = "How long does a refund take?"
WRONG_ANSWER = "two years"
N_CRAFTED, TOP_K = 5, 3
# 414 entries justify a rate of one in twenty; a thousand or more would justify one in a hundred.
FPR = 0.05

console = Console()


def demo(
    database: Annotated[
        str | None,
        typer.Option(
            parser=database_url,
            metavar="PATH|URL",
            help="Keep the quarantine in this SQLite file, or at this SQLAlchemy URL.",
        ),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Of the tenant, in --database.")] = "default",
) -> None:
    """Poison a knowledge base with and without a guard, and show what is retrieved and answered."""
    from ragshield_core import Guard, Quarantine
    from ragshield_core.tools.evaluate.attacks import craft_passages
    from ragshield_core.tools.evaluate.help_desk import help_desk
    from ragshield_langchain.vectorstore import GuardedVectorStore

    warnings.simplefilter("ignore", DeprecationWarning)  # langchain-community is being sunset
    logging.getLogger("ragshield").setLevel(logging.ERROR)  # the tables say it all
    rows = help_desk()
    crafted = [
        {"id": f"crafted-{number}", "text": text}
        for number, text in enumerate(craft_passages(QUESTION, WRONG_ANSWER, N_CRAFTED), start=1)
    ]
    model, vectors = _embedded([row["text"] for row in (*rows, *crafted)])
    bare, inner = (_faiss_store(model, vectors.shape[1]) for _ in range(2))
    for store in (bare, inner):
        _write(store, rows, vectors[: len(rows)])
    quarantine = Quarantine(database or "sqlite://", namespace=namespace)
    guard = Guard.default(FPR, quarantine=quarantine)
    guarded = GuardedVectorStore.adopt(inner, guard=guard, progress=False)

    console.rule(Text("Poison in, wrong answer; guard on, right answer", style="bold"))
    _say(
        f"A knowledge base of {len(rows)} entries in a FAISS store, adopted by a guard at {FPR:.0%}"
    )
    console.print(Text(f"  {QUESTION}  ->  {_answer(bare, model)}"))

    _say(f"{N_CRAFTED} passages that say {WRONG_ANSWER!r} are written to the bare store")
    _write(bare, crafted, vectors[len(rows) :])
    _show_retrieved(bare, model)

    _say("The same passages, through the guard")
    _write(guarded, crafted, vectors[len(rows) :])
    report = guarded.last_report
    console.print(Text(f"  {report.summary()}"))
    for decision in report.quarantined[:1]:
        evidence = printable(decision.findings[0].evidence, 400)
        console.print(Text(f"  {decision.entry_id}: {evidence}"))
    _show_retrieved(guarded, model)
    quarantine.close()
    if database is None:
        console.print("\nTo keep the quarantine: ragshield demo --database ragshield.db")
    console.print("To look at one: ragshield quarantine list --database ragshield.db")


def _embedded(texts: list[str]) -> tuple[Embeddings, NDArray[np.float32]]:
    """Return the model and one vector per text."""
    import numpy as np

    from ragshield_langchain.minilm import MiniLMEmbeddings

    with console.status(f"embedding {len(texts)} texts"):
        model = MiniLMEmbeddings()
        return model, np.array(model.embed_documents(texts), dtype=np.float32)


def _faiss_store(model: Embeddings, dim: int) -> Any:
    """Return an empty FAISS store as a user would make it."""
    import faiss
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS

    return FAISS(model, faiss.IndexFlatL2(dim), InMemoryDocstore(), {})


def _write(store: Any, rows: Sequence[dict[str, str]], vectors: NDArray[np.float32]) -> None:
    store.add_embeddings(
        [(row["text"], vector) for row, vector in zip(rows, vectors, strict=True)],
        metadatas=[{} for _ in rows],
        ids=[row["id"] for row in rows],
    )


def _say(text: str) -> None:
    """Print one line of the story."""
    console.print(Text(f"\n{text}", style="bold"))


def _retrieved(store: VectorStore) -> list[Document]:
    return store.similarity_search(QUESTION, k=TOP_K)


def _answer(store: VectorStore, model: Embeddings) -> str:
    """Return the retrieved sentence that is nearest to the question and is no question itself.

    It stands for a language model, which would say the same in more words.
    """
    import numpy as np

    sentences = [
        sentence
        for document in _retrieved(store)
        for sentence in re.split(r"(?<=[.?!]) ", document.page_content)
        if not sentence.endswith("?")
    ]
    question, *vectors = np.array(model.embed_documents([QUESTION, *sentences]))
    return sentences[int(np.argmax(np.array(vectors) @ question))]


def _show_retrieved(store: VectorStore, model: Embeddings) -> None:
    from rich.table import Table

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
