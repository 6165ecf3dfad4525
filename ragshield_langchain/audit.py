"""What a live store holds: read back, audited, and findings taken out if asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ragshield_core import Batch
from ragshield_core.model.errors import InvalidBatchError
from ragshield_core.model.findings import printable
from ragshield_langchain.convert import MetadataKeys, columns_of
from ragshield_langchain.inner import InnerStore
from ragshield_langchain.mask import Mask

NO_ENTRIES = Batch.of(ids=[], texts=[], embeddings=[])

# Told what is being done, how many are done, and of how many; 0 of 0 where nobody knows.
Progress = Callable[[str, int, int], object]


def read_all(
    access: InnerStore, keys: MetadataKeys, mask: Mask, batch_size: int, tell: Progress
) -> Batch:
    """Return all that reads of a guarded store can return, fetched part by part.

    Raises
    ------
    InvalidBatchError
        If an entry cannot be judged; names it.
    """
    ids = access.ids()
    batches, vectors = [], None
    done = 0
    tell("reading", 0, len(ids))
    for start in range(0, len(ids), batch_size):
        part = ids[start : start + batch_size]
        documents, found = access.read(part)
        shown = [row for row, document in enumerate(documents) if not mask.hides(document)]
        if shown:
            if vectors is None:  # one matrix from the start: the vectors are most of it
                vectors = np.empty((len(ids), found.shape[1]), dtype=np.float32)
            if found.shape[1] != vectors.shape[1]:
                msg = (
                    f"the vector of entry {documents[0].id!r} has {found.shape[1]} dimensions, "
                    f"expected {vectors.shape[1]} as before it; delete what another model embedded."
                )
                raise InvalidBatchError(msg)
            vectors[done : done + len(shown)] = found[shown]
            done += len(shown)
            batches += [documents[row] for row in shown]
        tell("reading", start + len(part), len(ids))
    if vectors is None:
        return NO_ENTRIES
    columns = columns_of(
        [str(document.id) for document in batches],
        [document.page_content for document in batches],
        [document.metadata for document in batches],
        vectors[:done],
        keys,
    )
    for row, reason in columns.reasons.items():
        msg = f"entry {printable(columns.ids[row], 80)!r} cannot be judged: {reason}"
        raise InvalidBatchError(msg)
    return columns.batch()


@contextmanager
def shown(progress: bool) -> Iterator[Progress]:  # noqa: FBT001 - as the caller got it
    """Yield what shows on standard error how far it is."""
    if not progress:
        yield lambda *_: None
        return
    from rich.console import Console  # noqa: PLC0415 - only where something is shown
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks = {}

        def tell(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of or None)
            bar.update(tasks[what], completed=done, total=of or None)

        yield tell
