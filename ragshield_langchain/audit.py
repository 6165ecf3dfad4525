"""What a live store holds: read back, audited, and findings taken out if asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ragshield_core import Batch, Guard
from ragshield_core.errors import InvalidBatchError
from ragshield_core.scan import ScanReport
from ragshield_langchain.convert import MetadataKeys, keepable, to_batch
from ragshield_langchain.inner import InnerStore
from ragshield_langchain.mask import Mask

NO_ENTRIES = Batch.of(ids=[], texts=[], embeddings=[])

# Told what is being done, how many are done, and of how many; 0 of 0 where nobody knows.
Progress = Callable[[str, int, int], object]


def read_back(access: InnerStore, ids: Sequence[str], keys: MetadataKeys) -> Batch:
    """Return documents of a store as entries, with their stored vectors; missing ones are left out.

    Raises
    ------
    InvalidBatchError
        If metadata holds a label or lineage that is no scalar; names the document.
    """
    documents, vectors = access.read(ids)
    return to_batch(
        [str(document.id) for document in documents],
        [document.page_content for document in documents],
        [document.metadata for document in documents],
        vectors,
        keys,
    )


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
    return to_batch(
        [str(document.id) for document in batches],
        [document.page_content for document in batches],
        [document.metadata for document in batches],
        vectors[:done],
        keys,
    )


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


def take_out(
    report: ScanReport,
    access: InnerStore,
    keys: MetadataKeys,
    mask: Mask,
    guard: Guard,
    delete: Callable[[Sequence[str]], object],
) -> ScanReport:
    """Move findings from a store into quarantine, durably before they are deleted.

    What a person has released before stays in the store, and so does what is no longer the revision
    that was judged: the report returned says so.

    Parameters
    ----------
    report
        An audit of the store.
    access, keys, mask, guard
        Of the store; nobody else may write to it meanwhile.
    delete
        Takes entries out of the store; what it leaves in there is hidden.
    """
    decision_of = {decision.entry_id: decision for decision in report.found}
    judged = report.batch.take([row for row in report.ranking if not report.kept[row]])
    fingerprints = {entry.id: entry.fingerprint for entry in judged}
    present = read_back(access, list(decision_of), keys)
    unchanged = present.take(
        np.array([e.fingerprint == fingerprints[e.id] for e in present], dtype=np.bool_)
    )
    decisions = [decision_of[entry_id] for entry_id in unchanged.ids]
    entries, cut = keepable(unchanged)

    def take_away(ids: Sequence[str]) -> None:
        delete([entry_id for entry_id in ids if entry_id not in cut])

    gone = set(mask.recall(guard, entries, decisions, take_away, by="scan"))
    staying = {i: "released by a person before" for i in unchanged.ids if i not in gone}
    changed = decision_of.keys() - set(unchanged.ids)
    return report.overruled(
        staying | dict.fromkeys(changed, "changed or deleted while it was audited")
    )
