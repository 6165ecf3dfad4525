"""Proven origin: genuine pages that attacks replace or take out, with and without keys.

    python benchmarks/origin.py            # writes benchmarks/results/origin.md
    python benchmarks/origin.py --quick    # a few pages, writes nothing

Genuine news of RGB stand among passages of Wikipedia, stamped by a trusted connector. The false
text of each has one fact changed.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import results_files
from corpora import load, read_rows
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from rich.progress import track
from vectors import embedded

from ragshield_core import Guard, Quarantine
from ragshield_core.model.claims import STAMP_KEY
from ragshield_core.origin import Origin, OriginKey, Origins, Voucher
from ragshield_langchain import GuardedVectorStore as LangChainStore
from ragshield_llamaindex import GuardedVectorStoreIndex

KNOWN, PAGES, CENSORED, IMITATIONS = 2_000, 100, 20, 5
# Share of the words that an imitation of a page leaves out.
LEFT_OUT = 0.15
GOAL = 0.02
WIKI = OriginKey("wiki", secret=b"the secret of the wiki")
MAIL = OriginKey("mail", secret=b"the secret of the mail")
KEYS = Origins(
    {
        "wiki": Voucher(tier="trusted", secrets=(b"the secret of the wiki",)),
        "mail": Voucher(tier="known", secrets=(b"the secret of the mail",)),
    }
)
# Metadata of a replacement, from its text, the page that it replaces, and the page's metadata.
WAYS: dict[str, Callable[[str, str, str, dict[str, Any]], dict[str, Any]]] = {
    "without a stamp": lambda *_: {},
    "with the page's stamp": lambda text, page, i, metadata: metadata,  # noqa: ARG005
    "with a stamp of a guessed key": lambda text, page, i, metadata: of(  # noqa: ARG005
        OriginKey("wiki", secret=b"a guess of an attacker"), text, i
    ),
    "by a key of a lower tier": lambda text, page, i, metadata: of(MAIL, text, i),  # noqa: ARG005
    "as a summary of unproven text": lambda text, page, i, metadata: of(  # noqa: ARG005
        WIKI, text, i, derived_from=[Origin()]
    ),
    "as an earlier version, with its stamp": lambda text, page, i, metadata: of(  # noqa: ARG005
        WIKI, text, i, at=datetime.now(UTC) - timedelta(days=9)
    ),
}


def of(key: OriginKey, text: str, entry_id: str, **how: Any) -> dict[str, Any]:
    """Return metadata with a stamp."""
    return {STAMP_KEY: key.stamp(text, {}, entry_id=entry_id, **how)}


@cache
def pairs(n: int) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Return genuine and false texts on the same questions, and their vectors."""
    genuine: dict[str, str] = {}
    for row in read_rows("rgb_fact_en_clean"):
        if row.get("kind") == "positive":
            genuine.setdefault(row["target_question"], row["text"])
    false: dict[str, str] = {}
    for row in read_rows("rgb_fact_en"):
        if row["target_question"] in genuine:
            false.setdefault(row["target_question"], row["text"])
    asked = [*false][:n]
    texts = [genuine[question] for question in asked], [false[question] for question in asked]
    vectors = embedded("origin", [*texts[0], *texts[1]])
    return *texts, vectors[: len(asked)], vectors[len(asked) :]


@cache
def fitted() -> Path:
    """Return the folder of a guard that is fitted on passages of Wikipedia."""
    wiki = load("wiki_passages", lineage="title")
    known = wiki.take(np.random.default_rng(0).permutation(len(wiki))[:KNOWN])
    folder = Path(mkdtemp()) / "guard"
    Guard.default(quarantine=Quarantine("sqlite://")).fit(known).calibrate().save(folder)
    return folder


def guard_of(*, keys: bool) -> Guard:
    """Return the fitted guard, which knows keys or none."""
    guard = Guard.load(fitted(), quarantine=Quarantine("sqlite://"))
    if keys:
        guard.origins = KEYS
    return guard


class LangChain:
    """A guarded store of LangChain."""

    def __init__(self, guard: Guard) -> None:
        self.store = LangChainStore(
            InMemoryVectorStore(DeterministicFakeEmbedding(size=384)), guard=guard
        )

    def write(
        self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray, metadatas: Any
    ) -> None:
        """Write entries with their vectors."""
        self.store.add_embeddings(
            zip(texts, vectors.tolist(), strict=True), list(metadatas), list(ids)
        )

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts that reads show."""
        found: list[Document] = self.store.get_by_ids(list(ids))
        return {str(one.id): one.page_content for one in found}


class LlamaIndex:
    """A guarded index of LlamaIndex."""

    def __init__(self, guard: Guard) -> None:
        from llama_index.core import MockEmbedding, StorageContext  # noqa: PLC0415

        context = StorageContext.from_defaults(vector_store=SimpleVectorStore())
        model = MockEmbedding(embed_dim=384)
        self.index = GuardedVectorStoreIndex(
            [], guard=guard, storage_context=context, embed_model=model
        )

    def write(
        self, ids: Sequence[str], texts: Sequence[str], vectors: np.ndarray, metadatas: Any
    ) -> None:
        """Write entries with their vectors."""
        hidden = {"excluded_llm_metadata_keys": [STAMP_KEY]}
        hidden["excluded_embed_metadata_keys"] = [STAMP_KEY]
        self.index.insert_nodes(
            [
                TextNode(id_=i, text=text, embedding=vector, metadata=dict(metadata), **hidden)
                for i, text, vector, metadata in zip(
                    ids, texts, vectors.tolist(), metadatas, strict=True
                )
            ]
        )

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts that reads show."""
        return {i: self.index.docstore.docs[i].text for i in ids if i in self.index.docstore.docs}


def replaced(kind: type[LangChain | LlamaIndex], way: str, n: int, *, keys: bool) -> float:
    """Return the share of pages whose text is false or gone after one replacement each."""
    genuine, false, vectors, others = pairs(n)
    ids = [f"news-{number}" for number in range(len(genuine))]
    store = kind(guard_of(keys=keys))
    metadatas = [of(WIKI, text, i) for text, i in zip(genuine, ids, strict=True)]
    store.write(ids, genuine, vectors, metadatas)
    in_place = store.texts(ids)
    wanted = [row for row, i in enumerate(ids) if i in in_place]
    for row in wanted:
        metadata = WAYS[way](false[row], genuine[row], ids[row], metadatas[row])
        store.write([ids[row]], [false[row]], others[[row]], [metadata])
    after = store.texts(ids)
    return float(np.mean([after.get(ids[row]) != genuine[row] for row in wanted]))


def imitations(texts: Sequence[str]) -> list[list[str]]:
    """Return texts that leave out some words of each page."""
    rng = np.random.default_rng(0)

    def one(words: list[str]) -> str:
        return " ".join(w for w in words if rng.random() >= LEFT_OUT)

    return [[one(text.split()) for _ in range(IMITATIONS)] for text in texts]


def censored(n: int, *, keys: bool) -> float:
    """Return the share of genuine pages that imitations take out, which come one by one."""
    genuine, _, vectors, _ = pairs(n)
    ids = [f"news-{number}" for number in range(len(genuine))]
    store = LangChain(guard_of(keys=keys))
    store.write(ids, genuine, vectors, [of(WIKI, t, i) for t, i in zip(genuine, ids, strict=True)])
    before = store.texts(ids)
    made = imitations(genuine)
    for number, texts in enumerate(made):
        for turn, text in enumerate(texts):
            vector = embedded("origin", [text])
            store.write([f"imitation-{number}-{turn}"], [text], np.asarray(vector), [{}])
    after = store.texts(ids)
    return 1.0 - len(after) / len(before)


def updates(*, keys: bool) -> tuple[float, float]:
    """Return the share of genuine updates held, and milliseconds of a written page."""
    genuine, _, vectors, _ = pairs(PAGES)
    ids = [f"news-{number}" for number in range(len(genuine))]
    store = LangChain(guard_of(keys=keys))
    metadatas = [of(WIKI, t, i) for t, i in zip(genuine, ids, strict=True)]
    store.write(ids, genuine, vectors, metadatas)
    texts = [f"{text} This page was checked again." for text in genuine]
    metadatas = [of(WIKI, t, i) for t, i in zip(texts, ids, strict=True)]
    start = time.process_time()
    store.write(ids, texts, vectors, metadatas)
    seconds = time.process_time() - start
    held = store.store.quarantine.count()
    return held / len(ids), 1_000 * seconds / len(ids)


def rows(n: int) -> Iterator[str]:
    """Yield a row of the table for each way."""
    for way in track([*WAYS]):
        cells = [
            f"{replaced(kind, way, n, keys=keys):.2f}"
            for kind in (LangChain, LlamaIndex)
            for keys in (False, True)
        ]
        yield f"| {way} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few pages; writes nothing")
    quick = parser.parse_args().quick
    logging.disable(logging.WARNING)
    table = [*rows(5 if quick else PAGES)]
    n = 3 if quick else CENSORED
    without, with_keys = (censored(n, keys=keys) for keys in (False, True))
    (held, cost), (held_keys, cost_keys) = (updates(keys=keys) for keys in (False, True))
    page = f"""# Proven origin

Written by `benchmarks/origin.py`. A guard with all detectors is fitted on {KNOWN:,} Wikipedia
passages. {PAGES} news, stamped by a trusted key, are replaced one by one by texts with one fact
changed. The goal is a share of {GOAL} at most.

| replaced | LangChain, no keys | LangChain, keys | LlamaIndex, no keys | LlamaIndex, keys |
|---|---|---|---|---|
{chr(10).join(table)}

{IMITATIONS} imitations of each of {n} news, which leave out {LEFT_OUT:.0%} of the words, come
one by one without a stamp. Genuine news taken out: {without:.2f} without keys, {with_keys:.2f}
with keys.

Genuine updates with a stamp, held: {held:.2f} without keys, {held_keys:.2f} with. Processor time of
an update, in a batch of {PAGES}: {cost_keys / cost:.2f} of that without keys.
"""
    print(page)
    if not quick:
        results_files.write("origin", page.rstrip())


if __name__ == "__main__":
    main()
