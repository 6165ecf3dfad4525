"""What the parts of the demo print with, and the model they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

console = Console()


def embed(texts: list[str]) -> tuple[Embeddings, NDArray[np.float32]]:
    """Return the model and one vector per text, with progress."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        loading = bar.add_task("loading the model  ", total=1)
        from ragshield_langchain.minilm import MiniLMEmbeddings  # noqa: PLC0415 - slow to import

        embedding = bar.add_task("embedding once     ", total=len(texts), start=False)
        model = MiniLMEmbeddings(on_progress=lambda n: bar.advance(embedding, n))
        bar.advance(loading)
        bar.start_task(embedding)
        vectors = np.array(model.embed_documents(texts), dtype=np.float32)
    return model, vectors


def faiss_store(model: Embeddings, dim: int) -> Any:
    """Return an empty FAISS store as a user would make it."""
    import faiss  # noqa: PLC0415 - an extra
    from langchain_community.docstore.in_memory import InMemoryDocstore  # noqa: PLC0415
    from langchain_community.vectorstores import FAISS  # noqa: PLC0415

    return FAISS(model, faiss.IndexFlatL2(dim), InMemoryDocstore(), {})


def title(text: str) -> None:
    """Print the headline of a part."""
    console.print()
    console.rule(Text(text, style="bold"))


def step(text: str) -> None:
    """Print one line of the story."""
    console.print(Text(f"\n{text}", style="bold"))


@contextmanager
def shown_call(code: str) -> Iterator[None]:
    """Print a call before it is made."""
    console.print(Text(f"  {code}", style="cyan"))
    yield
