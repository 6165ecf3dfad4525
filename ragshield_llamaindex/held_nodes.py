"""Held nodes: found by their ids or documents, and made ready to be stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode

from ragshield_core import Guard, Quarantine
from ragshield_core.model.errors import QuarantineError
from ragshield_core.quarantine import HeldEntry, Status
from ragshield_core.store.malformed import embedding
from ragshield_llamaindex.convert import embedded, source_of, text_of, version_of, without_path

# Returns nodes with vectors.
Embed = Callable[[Sequence[BaseNode]], Sequence[BaseNode]]


def nodes_of(quarantine: Quarantine, ids: Sequence[str]) -> list[str]:
    """Return ids with those of documents replaced by the ids of their held nodes."""
    nodes = quarantine.held_ids(ids)
    by_document: dict[str, list[str]] = {}
    others = [entry_id for entry_id in ids if entry_id not in nodes]
    for one in quarantine.list(documents=others) if others else ():
        source = source_of(one.entry.metadata)
        if source is not None:
            by_document.setdefault(source, []).append(one.id)
    wanted = ([i] if i in nodes else by_document.get(i, [i]) for i in ids)
    return list(dict.fromkeys(chain.from_iterable(wanted)))


def release(guard: Guard, ids: Sequence[str], by: str, note: str | None) -> tuple[HeldEntry, ...]:
    """Judge held nodes good, where no store keeps step with the guard."""
    ids = nodes_of(guard.quarantine, ids)

    def let_in() -> tuple[HeldEntry, ...]:
        held = guard.quarantine.release(ids, by=by, note=note)
        guard.writes.forget_held(ids)
        guard.trust(ids)
        return held

    return guard.writes.together(let_in)


def replaced_of(quarantine: Quarantine, ids: Sequence[str]) -> list[HeldEntry]:
    """Return the nodes that were replaced last under ids of nodes, or as parts of documents.

    Raises
    ------
    QuarantineError
        If there are none; names the id.
    """
    latest: dict[str, HeldEntry] = {}
    by_document: dict[str, list[HeldEntry]] = {}
    replaced = partial(quarantine.list, Status.REPLACED)
    some = (*replaced(ids=ids), *replaced(documents=ids))
    for one in sorted(some, key=lambda one: one.held_at):
        latest[one.id] = one
        source = source_of(one.entry.metadata)
        if source is not None:
            by_document.setdefault(source, []).append(one)
    found: dict[str, HeldEntry] = {}
    for wanted in ids:
        if wanted in latest:
            found[wanted] = latest[wanted]
        elif wanted in by_document:
            version = version_of(by_document[wanted][-1])
            same = [one for one in by_document[wanted] if version_of(one) == version]
            found |= {one.id: one for one in same}
        else:
            quarantine.show(wanted, Status.REPLACED)  # raises
    return list(found.values())


def with_vectors(nodes: Sequence[BaseNode], embed: Embed | None) -> list[BaseNode]:
    """Return nodes, those that were held without a vector embedded now.

    Raises
    ------
    QuarantineError
        If there is one, and nothing to embed it with; names it.
    """
    bare = [node for node in nodes if node.embedding is None]
    if not bare:
        return list(nodes)
    with embedding([node.node_id for node in bare], [text_of(node) for node in bare]):
        made = {} if embed is None else {node.node_id: node for node in embed(bare)}
    missing = [node for node in bare if node.node_id not in made]
    missing += [node for node in made.values() if node.embedding is None]
    if missing:
        msg = (
            f"node {missing[0].node_id!r} was held without a vector, and nothing was released; "
            "pass embed_model=, the one that the store is filled with."
        )
        raise QuarantineError(msg)
    return [made.get(node.node_id, node) for node in nodes]


def embedding_with(model: BaseEmbedding) -> Embed:
    """Return a function that embeds nodes as an index does, without the paths of their files."""

    def embed(nodes: Sequence[BaseNode]) -> list[BaseNode]:
        texts = [without_path(one).get_content(metadata_mode=MetadataMode.EMBED) for one in nodes]
        vectors = model.get_text_embedding_batch(texts)
        return [embedded(node, vector) for node, vector in zip(nodes, vectors, strict=True)]

    return embed
